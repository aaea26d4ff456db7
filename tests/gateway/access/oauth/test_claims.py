"""Any token becomes a principal or a rejection."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from support.fake_issuer import AUDIENCE, part

from gateway.access.oauth.access_tokens import Tokens
from gateway.access.oauth.claims import Rejected, principal_of, read_signed
from gateway.access.principal import Principal, Refusal
from gateway.config.auth_config import Issuer, OAuthConfig

NOW_S = 1_900_000_000
ISSUER = Issuer.model_validate(
    {
        "issuer": "https://id.test",
        "audiences": [AUDIENCE],
        "claims": {"groups": "realm.roles"},
        "requiredScopes": ["mcp"],
    }
)
GOOD = {"iss": "https://id.test", "aud": AUDIENCE, "sub": "ann", "exp": NOW_S + 60, "scope": "mcp", "client_id": "host"}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from([*GOOD, "nbf", "iat", "azp", "realm", "scp", "cnf", "jti"]) | st.text(max_size=4)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
@example({"exp": 10**400})
@example({"nbf": -(10**400)})
@example({"sub": "\ud800"})
def test_claims_of_any_kind_are_accepted_or_rejected(claims: dict[str, Any]) -> None:
    try:
        found = principal_of({**GOOD, **claims}, ISSUER, resource=None, now_s=NOW_S)
    except Rejected:
        return
    assert found.name.endswith("@id.test")
    assert "\n" not in found.identity.replace("\n", "", 1)
    assert found.scopes <= {"tools", "tools:read", "prompts", "prompts:read", "resources", "resources:read", "metrics"}
    assert all(isinstance(text, str) for text in found.groups)


@given(st.text() | st.binary().map(lambda raw: f"{part(raw)}.{part(raw)}.{part(raw)}"))
@example(f"{part({'alg': 'RS256', 'kid': 7})}.{part(GOOD)}.x")
@example(f"{part({'alg': ['RS256']})}.{part(GOOD)}.x")
@example(f"{part({'alg': 'RS256', 'typ': 5})}.{part(GOOD)}.x")
def test_text_of_any_kind_is_not_a_token_or_is_rejected(text: str) -> None:
    try:
        found = read_signed(text)
    except Rejected:
        return
    assert found is None or isinstance(found.claims, dict)


@given(st.text(max_size=50), st.text(max_size=50), st.text(max_size=50), st.text(max_size=50))
def test_different_callers_have_different_identities(sub: str, client: str, other_sub: str, other_client: str) -> None:
    found = []
    for one, through in ((sub, client), (other_sub, other_client)):
        try:
            claims = {**GOOD, "sub": one, "client_id": through}
            found.append(principal_of(claims, ISSUER, resource=None, now_s=NOW_S).identity)
        except Rejected:
            return
    assert (found[0] == found[1]) == ((sub, client) == (other_sub, other_client))


async def nothing(*_: Any, **__: Any) -> Any:
    raise AssertionError("nobody is to be asked")


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.text(max_size=20))
def test_unsigned_claims_are_never_accepted(claims: dict[str, Any], algorithm: str) -> None:
    found = Tokens(OAuthConfig(issuers=[ISSUER]), nothing, clock=lambda: NOW_S)
    try:
        body = json.dumps({**GOOD, **claims}).encode("utf-8", "surrogatepass")
    except ValueError:
        return
    for name in ("RS256", "none", algorithm):
        token = f"{part({'alg': name})}.{part(body)}.{part(b'x')}"
        seen = found.principal(token, hashlib.sha256(token.encode()).digest())
        assert not isinstance(seen, Principal)
        assert isinstance(seen, Refusal) or name == "RS256"
