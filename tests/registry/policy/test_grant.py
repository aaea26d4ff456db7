"""Rights of a caller by rules and scopes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wrappers import wrapper_of

from registry.catalog.catalog import ToolWrapper
from registry.catalog.listed_items import ListedItem
from registry.catalog.names import ServerName
from registry.catalog.shape import ServerShape
from registry.policy.conditions import ArgumentCondition, Conditions
from registry.policy.policy import CallRules, Decision, Grant, Policy, ServerRules
from registry.policy.rules import CallerPatterns, ItemPatterns, Rule, tool_hints

SHAPE = ServerShape(tags=("money",))


@dataclass(frozen=True)
class Somebody:
    name: str = "ann"
    groups: frozenset[str] = frozenset({"interns"})
    scopes: frozenset[str] = frozenset()
    claims: frozenset[tuple[str, str]] = frozenset()
    knows_groups: bool = True
    unknown_claims: frozenset[str] = frozenset()


def tool(name: str = "wire", **annotations: bool) -> ToolWrapper:
    wrapper = wrapper_of(name, {"type": "object"})
    return replace(wrapper, definition={**wrapper.definition, "annotations": annotations}, shared_hints=None)


def rule(effect: Any, *patterns: str, name: str = "r", **members: Any) -> Rule:
    return Rule(name=name, effect=effect, what=ItemPatterns(patterns=patterns or None), **members)


def decided(grant: Grant, wrapper: ToolWrapper | None = None, arguments: Any = None) -> Decision:
    wrapper = wrapper or tool()
    found = grant.tool(wrapper, SHAPE, grant.rules_for_server(wrapper.server, SHAPE))
    return found.decide(arguments or {}) if isinstance(found, CallRules) else found


def above(amount: float) -> Conditions:
    return Conditions(arguments=(ArgumentCondition(path="amount", above=amount),))


def test_grant_without_rules_allows_everything() -> None:
    assert decided(Grant()).effect == "allow"
    assert decided(Grant(closed=True)) == Decision(effect="deny", reason="no rule allows it", hidden=True)


def test_deny_rule_wins_over_allow_rules() -> None:
    denial = rule("deny", "calendar-mcp__w*", name="no wires")
    for rules in ([denial, rule("allow", "*")], [rule("allow", "*"), denial]):
        found = decided(Grant(rules))
        assert (found.effect, found.rule, found.hidden) == ("deny", "no wires", True)
        assert decided(Grant(rules), tool("read")).effect == "allow"


def test_caller_with_an_allow_rule_may_use_only_what_it_allows() -> None:
    grant = Grant([rule("allow", "*__read_*")])
    assert decided(grant, tool("read_mail")).rule == "r"
    assert decided(grant, tool("send_mail")).hidden


def test_pattern_with_two_underscores_matches_server_and_tool_separately() -> None:
    grant = Grant([rule("deny", "bank__*")])
    assert decided(grant, tool("bank__wire")).effect == "allow"
    assert decided(Grant([rule("deny", "*__bank__wire")]), tool("bank__wire")).effect == "deny"


@pytest.mark.parametrize(
    ("annotations", "read_only", "destructive"),
    [({}, False, True), ({"readOnlyHint": True}, True, False), ({"destructiveHint": False}, False, False),
     ({"readOnlyHint": "yes"}, False, True)],
)  # fmt: skip
def test_tool_without_hints_counts_as_destructive(annotations: Any, read_only: bool, destructive: bool) -> None:
    hints = tool_hints(tool(**annotations), SHAPE)
    assert (hints["readOnlyHint"], hints["destructiveHint"]) == (read_only, destructive)


def test_hint_conditions_decide_by_annotations() -> None:
    readers = Grant([rule("allow", "*", conditions=Conditions(hints={"readOnlyHint": True}))])
    assert decided(readers, tool(readOnlyHint=True)).effect == "allow"
    assert decided(readers, tool()).hidden
    careful = Grant([rule("deny", conditions=Conditions(hints={"destructiveHint": True}))])
    assert decided(careful, tool()).hidden
    assert decided(careful, tool(destructiveHint=False)).effect == "allow"


def test_argument_conditions_keep_the_tool_listed_and_decide_each_call() -> None:
    denied = Grant([rule("deny", "*", conditions=above(1000))])
    assert denied.permits(tool(), SHAPE)
    assert decided(denied, arguments={"amount": 1000}).effect == "allow"
    refused = decided(denied, arguments={"amount": 1001})
    assert (refused.effect, refused.rule, refused.hidden) == ("deny", "r", False)
    small = Conditions(arguments=(ArgumentCondition(path="amount", below=10),))
    allowed = Grant([rule("allow", "*", conditions=small)])
    assert decided(allowed, arguments={"amount": 9}).rule == "r"
    assert decided(allowed, arguments={"amount": 10}).effect == "deny"
    assert decided(allowed, arguments={}).effect == "deny"


def test_ask_rule_asks_only_if_its_condition_holds() -> None:
    asking = rule("ask", "*__wire", ask_conditions=above(1000))
    for closed in (False, True):
        grant = Grant([asking], closed=closed)
        assert decided(grant, arguments={"amount": 1}).effect == "allow"
        decision = decided(grant, arguments={"amount": 2000})
        assert (decision.effect, decision.rule) == ("ask", "r")
        assert decided(grant, tool("read")).hidden == closed
    both = Grant([asking, rule("deny", "*", name="never", conditions=above(5000))])
    assert decided(both, arguments={"amount": 6000}).rule == "never"
    assert not Grant([asking]).closed


def test_ask_rule_can_be_limited_by_hints() -> None:
    grant = Grant([rule("ask", "*", ask_conditions=Conditions(hints={"destructiveHint": True}))], closed=True)
    assert decided(grant, tool()).effect == "ask"
    assert decided(grant, tool(readOnlyHint=True)).effect == "allow"


@pytest.mark.parametrize(
    ("scopes", "reads", "writes", "prompts"),
    [((), True, True, True), (("tools",), True, True, False), (("tools:read",), True, False, False),
     (("prompts",), False, False, True), (("prompts:read", "tools:read"), True, False, True),
     (("metrics",), False, False, False)],
)  # fmt: skip
def test_scopes_grant_item_kinds_and_reading(scopes: tuple[str, ...], reads: bool, writes: bool, prompts: bool) -> None:
    grant = Policy().grant(Somebody(scopes=frozenset(scopes)))
    prompt = ListedItem(key="calendar-mcp__p", server=ServerName("calendar-mcp"), original="p", definition={})
    assert grant.permits(tool(readOnlyHint=True), SHAPE) == reads
    assert grant.permits(tool(), SHAPE) == writes
    assert (grant.prompt(prompt, SHAPE).effect == "allow") == prompts
    assert grant.opens("completions") == (not scopes or prompts)


@pytest.mark.parametrize(
    ("who", "concerned"),
    [
        (CallerPatterns(), True),
        (CallerPatterns(principals=("a*",)), True),
        (CallerPatterns(principals=("bob",)), False),
        (CallerPatterns(groups=("interns", "x")), True),
        (CallerPatterns(groups=("staff",)), False),
        (CallerPatterns(principals=("ann",), groups=("staff",)), False),
        (CallerPatterns(claims={"dept": ("fin*",)}), True),
        (CallerPatterns(claims={"dept": ("it",)}), False),
        (CallerPatterns(scopes=("mcp:admin",)), True),
        (CallerPatterns(scopes=("mcp:root",)), False),
    ],
)
def test_rule_applies_to_callers_matching_all_of_its_keys(who: CallerPatterns, concerned: bool) -> None:
    somebody = Somebody(claims=frozenset({("dept", "finance"), ("dept", "hr"), ("scope", "mcp:admin")}))
    assert who.concerns(somebody) == concerned


@pytest.mark.parametrize(
    ("claim", "unknown", "concerned"),
    [
        ("org.team.lead", {"org.team.lead"}, None),
        ("org.team.lead", {"org.team"}, None),
        ("org.team.lead", {"org"}, None),
        ("org.team.lead", {"org.team.lead.of"}, False),
        ("org.team.lead", {"or", "org.t", "o"}, False),
        ("org-team", {"org"}, False),
        ("org", {"org.team"}, False),
    ],
)
def test_unknown_claim_makes_its_nested_claims_unknown(claim: str, unknown: set[str], concerned: bool | None) -> None:
    assert CallerPatterns(claims={claim: ("x",)}).concerns(Somebody(unknown_claims=frozenset(unknown))) is concerned


@pytest.mark.parametrize(
    ("what", "whole"),
    [
        (ItemPatterns(), True),
        (ItemPatterns(servers=("calendar-mcp",)), True),
        (ItemPatterns(servers=("other",)), False),
        (ItemPatterns(tags=("mail",)), False),
        (ItemPatterns(kinds=frozenset({"tools"})), False),
        (ItemPatterns(kinds=frozenset({"prompts", "resources"})), False),
        (ItemPatterns(wrappers=("*",)), False),
        (ItemPatterns(wrappers=("other__*",)), False),
        (ItemPatterns(patterns=("calendar-mcp__*",)), True),
        (ItemPatterns(patterns=("calendar-mcp__a*",)), False),
    ],
)
def test_only_a_pattern_without_conditions_covers_a_whole_server(what: ItemPatterns, whole: bool) -> None:
    assert what.covers_whole("calendar-mcp", "calendar-mcp", SHAPE) is whole


def test_ask_rule_does_not_ask_in_doubt() -> None:
    doubtful = Rule(name="r", effect="ask", conditions=above(10))
    found = CallRules(allow_rules=(doubtful,))
    # The server may read the text as a number, so the value is in doubt: an ask rule then does not ask, and an allow
    # rule does not allow.
    assert found.decide({"amount": "x"}).effect == "allow"
    assert CallRules(allow_rules=(replace(doubtful, effect="allow"),)).decide({"amount": "x"}).effect == "deny"


def test_callers_with_equal_rights_share_one_grant() -> None:
    policy = Policy([rule("deny", "*__x", who=CallerPatterns(groups=("interns",)))])
    ann, ben = Somebody(name="ann"), Somebody(name="ben")
    eve = Somebody(name="eve", groups=frozenset())
    assert policy.grant(ann) is policy.grant(ben)
    assert policy.grant(eve).is_open
    assert policy.grant(eve) is Policy().grant(eve)


def test_uri_is_denied_in_any_form_and_allowed_only_if_all_forms_are() -> None:
    denying = Grant([rule("deny", "file:///secret*")])
    for uri in ("file:///secret/a", "file:///%73ecret/a", "file:///x/../secret/a", "file:////secret"):
        assert denying.uri("calendar-mcp", uri, SHAPE).effect == "deny", uri
        assert denying.denies_uri("calendar-mcp", uri, SHAPE)
    allowing = Grant([rule("allow", "file:///public/*")])
    assert allowing.uri("calendar-mcp", "file:///public/a", SHAPE).effect == "allow"
    assert allowing.uri("calendar-mcp", "file:///public/../secret", SHAPE).effect == "deny"
    assert Grant([rule("deny", "bank__*")]).uri("calendar-mcp", "file:///bank__x", SHAPE).effect == "allow"
    assert Grant([rule("deny", "calendar-mcp__*")]).uri("calendar-mcp", "file:///x", SHAPE).effect == "deny"


def test_server_is_hidden_only_if_all_of_it_is_denied() -> None:
    assert not Grant([rule("deny", "calendar-mcp__*")]).permits_server("calendar-mcp", SHAPE)
    assert not Grant([Rule(name="r", effect="deny", what=ItemPatterns(tags=("money",)))]).permits_server(
        "calendar-mcp", SHAPE
    )
    assert Grant([rule("deny", "calendar-mcp__wire")]).permits_server("calendar-mcp", SHAPE)
    assert not Grant([rule("allow", "bank__*")]).permits_server("calendar-mcp", SHAPE)
    assert Grant([rule("allow", "calendar*__read")]).permits_server("calendar-mcp", SHAPE)


PARTS = st.sampled_from(["a", "b", "a_", "_b", "*", "a*", "*_", "?", "__", "[ab]", "[__]a", "x"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("".join)


@given(
    patterns=st.lists(st.lists(NAMES, min_size=1, max_size=2), min_size=1, max_size=5),
    as_wrappers=st.booleans(),
    name=st.text("ab_x", min_size=1, max_size=6),
)
def test_every_rule_covering_a_tool_is_evaluated(patterns: list[list[str]], as_wrappers: bool, name: str) -> None:
    rules = [
        Rule(
            name=f"r{at}", effect="deny", what=ItemPatterns(**{"wrappers" if as_wrappers else "patterns": tuple(some)})
        )
        for at, some in enumerate(patterns)
    ]
    wrapper = tool(name)
    looked_at = list(ServerRules(rules).rules_for(wrapper))
    covering = [rule for rule in rules if rule.what.covers_tool(wrapper, SHAPE)]
    assert [rule for rule in looked_at if rule in covering] == covering
