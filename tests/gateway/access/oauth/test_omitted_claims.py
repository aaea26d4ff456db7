"""Rules about claims that a token omits count against the caller."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_issuer import AUDIENCE
from support.wrappers import wrapper_of

from gateway.access.oauth.claims import Rejected, find_claim, principal_of
from gateway.access.principal import Principal
from gateway.access.quotas import Quotas
from gateway.config.auth_config import Issuer, QuotasConfig
from registry.catalog.shape import ServerShape
from registry.policy.policy import CallRules, Decision, Policy
from registry.policy.rules import CallerPatterns, ItemPatterns, Rule

NOW_S = 1_900_000_000
WIPE, READ = wrapper_of("wipe", {"type": "object"}), wrapper_of("read", {"type": "object"})
SHAPE = ServerShape()
ALL = ItemPatterns(patterns=("*__wipe",))


def caller(*, named: str = "groups", **claims: Any) -> Principal:
    settings = {"issuer": "https://id.test", "audiences": [AUDIENCE], "claims": {"groups": named}}
    usual = {"iss": "https://id.test", "aud": AUDIENCE, "sub": "ann", "exp": NOW_S + 60}
    return principal_of({**usual, **claims}, Issuer.model_validate(settings), resource=None, now_s=NOW_S)


def decision(who: Principal, *rules: Rule, default: Any = "allow", wrapper: Any = WIPE) -> str:
    grant = Policy(rules, default=default).grant(who)
    found = grant.tool(wrapper, SHAPE, grant.rules_for_server(wrapper.server, SHAPE))
    decided = found.decide({}) if isinstance(found, CallRules) else found
    assert isinstance(decided, Decision)
    return decided.effect


def rule(effect: Any, *groups: str, **members: Any) -> Rule:
    return Rule(name="r", effect=effect, what=ALL, who=CallerPatterns(groups=groups or None, **members))


OVERAGE: list[tuple[str, dict[str, Any]]] = [
    ("groups", {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "https://x.test"}}}),
    ("groups", {"_claim_names": {"groups": "src1"}}),
    ("groups", {"_claim_names": ["groups"]}),
    ("groups", {"_claim_names": "groups"}),
    ("groups", {"_claim_names": True}),
    ("groups", {"hasgroups": True}),
    ("groups", {"hasgroups": "true"}),
    ("groups", {"hasgroups": 1}),
    ("groups", {"groups:src1": "src1"}),
    ("groups", {"groups": ["staff"], "_claim_names": {"groups": "src1"}}),
    ("groups", {"groups": [{"name": "contractors"}]}),
    ("groups", {"groups": ["staff", {"id": 7}]}),
    ("groups", {"groups": {"contractors": True}}),
    ("groups", {"groups": 1.5}),
    ("roles", {"_claim_names": {"roles": "src1"}}),
    ("realm_access.roles", {"_claim_names": {"realm_access": "src1"}}),
    ("realm_access.roles", {"_claim_names": {"realm_access.roles": "src1"}}),
    ("realm_access.roles", {"realm_access": "left out"}),
    ("realm_access.roles", {"realm_access": {"roles": {"contractors": {}}}}),
]


@pytest.mark.parametrize(("named", "claims"), OVERAGE)
def test_omitted_groups_count_against_the_caller_in_every_rule(named: str, claims: dict[str, Any]) -> None:
    who = caller(named=named, **claims)
    assert not who.knows_groups
    assert decision(who, rule("deny", "contractors")) == "deny"
    assert decision(who, rule("deny", "contractors"), wrapper=READ) == "allow"
    assert decision(who, rule("ask", "contractors")) == "ask"
    # In doubt, an allow rule restricts the caller to what it allows, but does not allow that either.
    assert decision(who, rule("allow", "admins")) == "deny"
    assert decision(who, rule("allow", "admins"), wrapper=READ) == "deny"
    assert decision(who, rule("allow", "admins"), default="deny") == "deny"
    assert decision(who, rule("ask", "admins"), default="deny") == "deny"
    # A permission with another reason remains.
    assert decision(who, rule("allow", principals=("ann@*",)), default="deny") == "allow"
    assert decision(who, rule("deny", "contractors", principals=("bob@*",))) == "allow"


@pytest.mark.parametrize(
    ("named", "claims", "groups"),
    [
        ("groups", {}, set()),
        ("groups", {"groups": None, "_claim_names": None, "hasgroups": False}, set()),
        ("groups", {"groups": []}, set()),
        ("groups", {"groups": "contractors"}, {"contractors"}),
        ("groups", {"groups": '["contractors", "staff"]'}, {"contractors", "staff"}),
        ("groups", {"groups": "[not a list"}, {"[not a list"}),
        ("groups", {"groups": [7, "a"]}, {"7", "a"}),
        ("groups", {"_claim_names": {"address": "src1"}}, set()),
        ("roles", {"hasgroups": True, "roles": ["a"]}, {"a"}),
        ("realm_access.roles", {"realm_access": {"roles": ["a"]}}, {"a"}),
        ("https://acme.test/app.roles", {"https://acme.test/app": {"roles": ["a"]}}, {"a"}),
        ("https://acme.test/roles", {"https://acme.test/roles": ["a"]}, {"a"}),
        ("a.b.c", {"a.b": {"c": ["x"]}}, {"x"}),
        ("a.b.c", {"a": {"b.c": ["x"]}}, {"x"}),
        ("a.b.c", {"a": {"b": {"d": 1}}}, set()),
    ],
)
def test_groups_in_the_token_are_known(named: str, claims: dict[str, Any], groups: set[str]) -> None:
    who = caller(named=named, **claims)
    assert (who.groups, who.knows_groups) == (groups, True)
    assert decision(who, rule("deny", "contractors")) == ("deny" if "contractors" in groups else "allow")


@pytest.mark.parametrize(
    ("named", "claims"),
    [
        ("a.b", {"a": "text"}),
        ("a.b.c", {"a": {"b": "text"}}),
        ("a.b.c", {"a": {"b": ["x"]}}),
        ("a.b.c", {"a.b": "text"}),
        ("a.b.c.d", {"a.b": {"c": 7}}),
        ("a.b.c.d", {"a": {"b.c": False}}),
    ],
)
def test_groups_inside_a_non_object_are_unknown(named: str, claims: dict[str, Any]) -> None:
    who = caller(named=named, **claims)
    assert (who.groups, who.knows_groups) == (frozenset(), False)
    assert decision(who, rule("deny", "contractors")) == "deny"


def test_named_group_allows_although_others_are_omitted() -> None:
    who = caller(groups=["admins"], _claim_names={"groups": "src1"})
    assert decision(who, rule("allow", "admins")) == "allow"


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"_claim_names": {"tenant": "src1"}}, "tenant"),
        ({"tenant": {"a": {"b": {"c": {"d": "x"}}}}}, "tenant.a.b.c.d"),
        ({"tenant": [{"id": 5}]}, "tenant"),
        ({"tenant": 1.5}, "tenant"),
        ({"tenant": {str(number): "x" for number in range(2_000)}}, "tenant.id"),
    ],
)
def test_unreadable_claims_count_against_the_caller(claims: dict[str, Any], name: str) -> None:
    who = caller(**claims)
    wanted = CallerPatterns(claims={name: ("evil",)})
    assert decision(who, Rule(name="r", effect="deny", what=ALL, who=wanted)) == "deny"
    assert decision(who, Rule(name="r", effect="allow", what=ALL, who=wanted), default="deny") == "deny"


@pytest.mark.parametrize(
    ("claims", "name", "value"),
    [
        ({"tenant": 5}, "tenant", "5"),
        ({"internal": True}, "internal", "true"),
        ({"app": {"tenant": "x"}}, "app.tenant", "x"),
        ({"https://acme.test/app": {"plan": ["x"]}}, "https://acme.test/app.plan", "x"),
        ({"app.tenant": "x"}, "app.tenant", "x"),
        ({"levels": [1, True, "x"]}, "levels", "true"),
    ],
)
def test_numbers_booleans_and_nested_claims_can_be_named_in_rules(
    claims: dict[str, Any], name: str, value: str
) -> None:
    who = caller(**claims)
    denial = Rule(name="r", effect="deny", what=ALL, who=CallerPatterns(claims={name: (value,)}))
    assert decision(who, denial) == "deny"
    assert decision(caller(), denial) == "allow"


@pytest.mark.parametrize("scope", [{"tools": True}, 5, [["tools:read"]], True])
def test_unreadable_scope_is_rejected(scope: Any) -> None:
    with pytest.raises(Rejected, match="neither a string nor a list of strings"):
        caller(scope=scope)


def test_gateway_scopes_restrict_in_any_separator() -> None:
    for scope in ("tools:read,prompts", "tools:read\tprompts", ["tools:read prompts"], "x tools:read,prompts"):
        assert caller(scope=scope).scopes == {"tools:read", "prompts"}


def test_smallest_quota_applies_until_a_token_names_its_groups() -> None:
    config = {"groups": {"contractors": {"callsPerMinute": 5, "inFlight": 2}, "admins": {"callsPerMinute": None}}}
    quotas = Quotas(QuotasConfig.model_validate(config))
    unknown, known = caller(hasgroups=True), caller()
    assert quotas.account(unknown).limits.calls_per_minute == 5
    assert quotas.account(unknown).limits.in_flight == 2
    assert quotas.account(known).limits.calls_per_minute is None
    assert quotas.account(unknown).limits.calls_per_minute == 5
    quotas.replace(QuotasConfig.model_validate({"default": {"callsPerMinute": 3}, **config}))
    assert quotas.account(unknown).limits.calls_per_minute == 3


def test_claim_is_found_by_dotted_and_nested_name() -> None:
    claims = {"a.b": {"c": 1}, "a": {"b": {"c": 2}, "x": None}}
    assert find_claim(claims, "a.b.c") == 1
    assert find_claim({"a": claims["a"]}, "a.b.c") == 2
    assert find_claim(claims, "a.x") is None
    assert find_claim(claims, ".") is None
