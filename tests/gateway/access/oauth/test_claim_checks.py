"""Claims of a token at their limits: times, names, audiences, scopes and values."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.fake_issuer import AUDIENCE, part

from gateway.access.oauth.claims import SKEW_S, Rejected, find_claim, principal_of, read_signed
from gateway.access.principal import Principal
from gateway.config.auth_config import Issuer

NOW_S = 1_900_000_000
RESOURCE = "https://gateway.example.test"


def caller(
    issuer: dict[str, Any] | None = None, *, resource: str | None = None, ends: bool = True, **claims: Any
) -> Principal:
    """Return the principal of a token that is valid except for these claims; None removes a claim."""
    settings = {"issuer": "https://id.test", "audiences": [AUDIENCE], **(issuer or {})}
    given = {"iss": "https://id.test", "aud": AUDIENCE, "sub": "ann", "exp": NOW_S + 60, **claims}
    given = {name: value for name, value in given.items() if value is not None}
    return principal_of(given, Issuer.model_validate(settings), resource=resource, now_s=NOW_S, ends=ends)


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": NOW_S - SKEW_S}, "has expired"),
        ({"exp": NOW_S - SKEW_S + 1}, None),
        ({"nbf": NOW_S + SKEW_S}, None),
        ({"nbf": NOW_S + SKEW_S + 1}, "not valid yet"),
        ({"nbf": 0}, None),
        ({"iat": NOW_S + SKEW_S}, None),
        ({"iat": NOW_S + SKEW_S + 1}, "issued in the future"),
        ({"exp": 10**12}, None),
        ({"exp": 10**12 + 1}, "exp of the token is not a time"),
        ({"exp": True}, "exp of the token is not a time"),
        ({"exp": str(NOW_S + 60)}, "exp of the token is not a time"),
        ({"exp": NOW_S + 0.5}, None),
        ({"nbf": -1}, "nbf of the token is not a time"),
        ({"iat": []}, "iat of the token is not a time"),
        ({"exp": None}, "no exp"),
    ],
)
def test_times_are_checked_with_a_tolerance_of_a_minute(claims: dict[str, Any], problem: str | None) -> None:
    if problem is None:
        assert caller(**claims).name == "ann@id.test"
        return
    with pytest.raises(Rejected, match=problem) as rejected:
        caller(**claims)
    refusal = rejected.value.refusal
    assert (refusal.status, refusal.error, refusal.bearer_of_token) == (401, "invalid_token", True)
    assert rejected.value.for_good


def test_token_expires_at_its_exp_and_an_introspected_one_may_have_none() -> None:
    assert caller(exp=NOW_S + 7).expires_s == NOW_S + 7
    assert caller(exp=None, ends=False).expires_s == math.inf
    with pytest.raises(Rejected, match="has expired"):
        caller(exp=NOW_S - 61, ends=False)


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [
        ("a", True),
        ("é" * 255, True),
        ("a" * 256, False),
        ("", False),
        (7, False),
        (None, False),
        ("ann smith", False),
        ("ann\u00a0", False),
        ("ann\u3000smith", False),
        ("ann\n", False),
        ("ann\u200b", False),
        ("ann\u202e", False),
    ],
)
def test_subject_is_a_printable_text_without_spaces_of_limited_length(name: Any, is_valid: bool) -> None:
    if is_valid:
        assert caller(sub=name).name == f"{name}@id.test"
        assert caller(client_id=name).client == name
        return
    with pytest.raises(Rejected, match="sub"):
        caller(sub=name)
    if name not in ("", None):
        with pytest.raises(Rejected, match="client_id"):
            caller({"claims": {"client": "client_id"}}, client_id=name)


def test_client_is_read_from_the_configured_claim_then_from_client_id() -> None:
    settings = {"claims": {"client": "azp"}}
    assert caller(settings, azp="page", client_id="host").client == "page"
    assert caller(settings, client_id="host").client == "host"
    assert caller(settings).client == ""


@pytest.mark.parametrize(
    ("audiences", "resource", "aud", "opened"),
    [
        ([AUDIENCE], None, AUDIENCE, None),
        ([AUDIENCE], None, ["https://other.test", AUDIENCE], None),
        ([AUDIENCE], None, [], "has no audience"),
        ([AUDIENCE], None, None, "has no audience"),
        ([AUDIENCE], None, "https://other.test", "is for another service"),
        # A profile's URL opens the profile if the profile or the whole gateway is an audience.
        ([f"{AUDIENCE}/work"], None, f"{AUDIENCE}/work", {"work"}),
        ([AUDIENCE], None, f"{AUDIENCE}/work", "is for another service"),
        ([AUDIENCE], RESOURCE, f"{AUDIENCE}/work", {"work"}),
        ([AUDIENCE], RESOURCE, [f"{AUDIENCE}/work", f"{AUDIENCE}/play/"], {"work", "play"}),
        ([AUDIENCE], RESOURCE, [f"{AUDIENCE}/work", AUDIENCE], None),
        ([f"{AUDIENCE}/work"], RESOURCE, f"{AUDIENCE}/work", {"work"}),
        ([f"{AUDIENCE}/work"], RESOURCE, f"{AUDIENCE}/play", "is for another service"),
        ([f"{AUDIENCE}/work"], RESOURCE, AUDIENCE, "is for another service"),
        (["api"], RESOURCE, f"{AUDIENCE}/work", "is for another service"),
        (["api"], RESOURCE, ["api", f"{AUDIENCE}/work"], None),
        (["https://other.test/mcp/work"], RESOURCE, "https://other.test/mcp/work", None),
        ([AUDIENCE], RESOURCE, f"{AUDIENCE}/", None),
        (["api"], RESOURCE, f"{AUDIENCE}/", "is for another service"),
        ([AUDIENCE], None, f"{AUDIENCE}/", "is for another service"),
        ([AUDIENCE], RESOURCE, "https://other.test", "is for another service"),
    ],
)
def test_audiences_of_a_token_decide_which_profiles_it_opens(
    audiences: list[str], resource: str | None, aud: Any, opened: Any
) -> None:
    if isinstance(opened, str):
        with pytest.raises(Rejected, match=opened):
            caller({"audiences": audiences}, resource=resource, aud=aud)
    else:
        assert caller({"audiences": audiences}, resource=resource, aud=aud).profiles == opened


def test_token_bound_to_a_key_is_rejected() -> None:
    with pytest.raises(Rejected, match="cnf"):
        caller(cnf={"jkt": "x"})


@pytest.mark.parametrize(
    ("needed", "scope", "missing"),
    [
        (["mcp"], "mcp", None),
        (["mcp"], "other", "mcp"),
        (["mcp", "x"], "mcp", "x"),
        (["mcp", "x"], None, "mcp x"),
        (["tools:read"], "tools", None),
        (["tools:read"], "tools:read", None),
        (["tools:read"], "prompts", "tools:read"),
        (["tools"], "tools:read", "tools"),
    ],
)
def test_token_needs_every_required_scope_or_a_wider_one(needed: list[str], scope: Any, missing: str | None) -> None:
    if missing is None:
        caller({"requiredScopes": needed}, scope=scope)
        return
    with pytest.raises(Rejected, match=f"lacks the scope {missing}$") as rejected:
        caller({"requiredScopes": needed}, scope=scope)
    refusal = rejected.value.refusal
    assert (refusal.status, refusal.error, refusal.scopes) == (403, "insufficient_scope", tuple(needed))
    assert refusal.bearer_of_token


def test_scopes_are_read_from_both_claims() -> None:
    who = caller(scope="tools:read mail,calendar", scp=["prompts"])
    assert who.scopes == {"tools:read", "prompts"}
    # A list with commas that are not scopes of the gateway stays one scope.
    wanted = {("scope", scope) for scope in ("tools:read", "mail,calendar", "prompts")}
    assert {pair for pair in who.claims if pair[0] in ("scope", "scp")} == wanted


@pytest.mark.parametrize(
    ("value", "texts", "is_complete"),
    [
        ("x", {"x"}, True),
        (True, {"true"}, True),
        (2**64 - 1, {str(2**64 - 1)}, True),
        (-(2**64 - 1), {str(-(2**64 - 1))}, True),
        (2**64, set(), False),
        (1.5, set(), False),
        ([], set(), True),
        (["x", 2, False], {"x", "2", "false"}, True),
        (["x", None], {"x"}, False),
        ([["x"]], set(), False),
        ({"a": "x", "b": {"c": ["y"]}}, {"x", "y"}, True),
        ({"a": None}, set(), True),
        ({"a": "x", "b": 1.5}, {"x"}, False),
        ({"a": 1.5, "b": "x"}, {"x"}, False),
        ({"a": {"b": {"c": "x"}}}, {"x"}, True),
        ({"a": {"b": {"c": {"d": "x"}}}}, set(), False),
    ],
)
def test_claims_become_texts_and_incomplete_claims_are_named(value: Any, texts: set[str], is_complete: bool) -> None:
    who = caller(before=None, level=value, after="z")
    assert {text for name, text in who.claims if name.startswith("level")} == texts
    assert who.unknown_claims == (set() if is_complete else {"level"})
    assert ("after", "z") in who.claims


def test_nested_claims_are_named_by_their_path() -> None:
    assert {("a.b.c", "x"), ("a.d", "y")} <= caller(a={"b": {"c": "x"}, "d": ["y"]}).claims


def test_claims_of_a_single_token_are_left_out_wherever_they_stand() -> None:
    who = caller(jti="1", sid="2", nonce="3", auth_time=4, nbf=0, iat=0, tenant="x")
    assert who.claims == {("iss", "https://id.test"), ("aud", AUDIENCE), ("sub", "ann"), ("tenant", "x")}
    assert caller(jti="8", tenant="x") == who


# The usual claims of `caller`, which count as well: iss, aud and sub.
OWN = 3


def test_number_of_values_is_limited() -> None:
    texts = [f"v{number}" for number in range(1024 - OWN + 1)]
    assert len(caller(level=texts[1:]).claims) == 1024
    with pytest.raises(Rejected, match="more than 1024 values"):
        caller(level=texts)


def test_number_of_groups_is_limited_even_if_they_are_one_value() -> None:
    for count in (1024, 1025):
        groups = "[" + ",".join(f'"g{number}"' for number in range(count)) + "]"
        if count == 1024:
            assert len(caller(groups=groups).groups) == 1024
            continue
        with pytest.raises(Rejected, match="more than 1024 values"):
            caller(groups=groups)


def test_object_with_too_many_values_is_unknown_instead() -> None:
    for count, is_known in ((1024 - OWN, True), (1024 - OWN + 1, False)):
        who = caller(tenant={str(number): "x" for number in range(count)})
        assert len(who.claims) == (1024 if is_known else OWN)
        assert who.unknown_claims == (set() if is_known else {"tenant"})


@pytest.mark.parametrize(
    ("claims", "unknown"),
    [
        ({"_claim_names": {"tenant": "src1", "level": "src1"}}, {"tenant", "level"}),
        ({"_claim_names": ["tenant", 7]}, {"tenant"}),
        ({"_claim_names": "x"}, {"groups"}),
        ({"tenant:src1": "x"}, {"tenant"}),
        ({"tenant:src1": "x", "_claim_names": {"level": "src1"}}, {"tenant", "level"}),
        ({"hasgroups": True}, {"groups"}),
        ({"hasgroups": "true"}, {"groups"}),
        ({"hasgroups": False}, set()),
        ({"hasgroups": "false"}, set()),
        ({"level": 1.5, "hasgroups": True}, {"groups", "level"}),
    ],
)
def test_claims_that_a_token_declares_as_omitted_are_unknown(claims: dict[str, Any], unknown: set[str]) -> None:
    assert caller(**claims).unknown_claims == unknown


@pytest.mark.parametrize(
    ("claims", "name", "value"),
    [
        ({"a": 1, "b": 2}, "b", 2),
        ({"a": {"b": 1}}, "a.b", 1),
        ({"a": {"": 1}}, "a.", 1),
        ({"a": {"b": {"c": 1}}}, "a.b.c", 1),
        ({"a": {"b": {}}, "a.b": {"c": 1}}, "a.b.c", 1),
        ({"a": {"b.c": 1}, "a.b": {"d": 2}}, "a.b.c", 1),
        ({"a": {"b.c": 1}, "a.b": "text"}, "a.b.c", 1),
        ({"a": {"b": 1}}, "a.c", None),
        ({"axb": {"c": 1}, "a": {"b": 2}}, "axb", {"c": 1}),
        ({"a": {"c": 1}}, "axc", None),
        ({}, "", None),
    ],
)
def test_claim_is_found_by_its_path(claims: dict[str, Any], name: str, value: Any) -> None:
    assert find_claim(claims, name) == value


HEADER = {"alg": "RS256", "typ": "at+jwt", "kid": "k"}


def read(header: Any, claims: Any = None, signature: str = "c2ln") -> Any:
    return read_signed(f"{part(header)}.{part({} if claims is None else claims)}.{signature}")


@pytest.mark.parametrize("kind", ["at+jwt", "AT+JWT", "JWT", "application/at+jwt", "application/jwt", None])
def test_token_types_that_grant_access(kind: str | None) -> None:
    signed = read({**HEADER, "typ": kind}, {"iss": "https://id.test"})
    assert (signed.algorithm, signed.key_id, signed.issuer) == ("RS256", "k", "https://id.test")
    assert read({"alg": "RS256"}, {"iss": 7}).issuer == ""


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ({**HEADER, "typ": "logout+jwt"}, "not an access token"),
        ({**HEADER, "typ": "dpop+jwt"}, "not an access token"),
        ({**HEADER, "typ": 5}, "not an access token"),
        ({**HEADER, "typ": ["jwt"]}, "not an access token"),
        ({**HEADER, "crit": ["b64"], "b64": False}, "critical"),
        ({**HEADER, "crit": None}, "critical"),
        ({**HEADER, "kid": 7}, "malformed"),
        ({**HEADER, "alg": None}, "malformed"),
        ({**HEADER, "alg": ["RS256"]}, "malformed"),
    ],
)
def test_token_with_an_unsupported_header_is_rejected(header: dict[str, Any], problem: str) -> None:
    with pytest.raises(Rejected, match=problem):
        read(header)


@pytest.mark.parametrize("claims", [[], 5, "x", b"\xff", b"{"])
def test_token_with_other_claims_than_an_object_is_rejected(claims: Any) -> None:
    with pytest.raises(Rejected, match="malformed"):
        read(HEADER, claims)


@pytest.mark.parametrize(
    "text",
    [
        "", "opaque", "a.b", "a.b.c.d", f"{part({'typ': 'jwt'})}.{part({})}.x", f"{part([])}.{part({})}.x", "x.y.z",
        f"{part(HEADER)}.{part({})}.x=", f" {part(HEADER)}.{part({})}.x", f"{part(HEADER)}.{part({})}.x\n",
        f"{part(HEADER)}.{part({})}.é", f"{part(HEADER)}..x",
    ],
)  # fmt: skip
def test_other_text_is_not_a_signed_token(text: str) -> None:
    assert read_signed(text) is None


def test_base64_of_every_length_is_decoded() -> None:
    for length in range(16):
        assert read({**HEADER, "x": "y" * length}, {"iss": "z" * length}, "").issuer == "z" * length
