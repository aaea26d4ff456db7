"""Rights of a caller by rules and scopes."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wrappers import wrapper_of

from registry.catalog.catalog import ToolWrapper
from registry.catalog.listed_items import ListedItem
from registry.catalog.names import ServerName, WrapperName, alias_prefix
from registry.catalog.shape import ServerShape
from registry.policy.policy import CallRules, Decision, Grant, Policy, ServerRules
from registry.policy.rules import ArgumentCondition, CallerPatterns, Conditions, ItemPatterns, Rule, tool_hints

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
    ("who", "concerned"),
    [
        (CallerPatterns(groups=("interns",)), True),
        (CallerPatterns(groups=("staff",)), None),
        (CallerPatterns(groups=("staff",), principals=("ann",)), None),
        (CallerPatterns(groups=("staff",), principals=("bob",)), False),
        (CallerPatterns(claims={"dept": ("it",)}), True),
        (CallerPatterns(claims={"dept": ("hr",)}), None),
        (CallerPatterns(claims={"dept": ("hr",), "level": ("2",)}), False),
        (CallerPatterns(scopes=("tools",)), True),
        (CallerPatterns(scopes=("dept", "it")), False),
    ],
)
def test_rule_may_apply_to_callers_with_unknown_groups_or_claims(who: CallerPatterns, concerned: bool | None) -> None:
    somebody = Somebody(
        scopes=frozenset({"tools"}),
        claims=frozenset({("dept", "it"), ("level", "1")}),
        knows_groups=False,
        unknown_claims=frozenset({"dept"}),
    )
    assert who.concerns(somebody) is concerned


def test_rule_that_may_apply_denies_and_asks_but_does_not_allow() -> None:
    staff = CallerPatterns(groups=("staff",))
    unknown = Somebody(knows_groups=False)
    doubt = "; the caller's token does not say whether the rule 'r' concerns the caller"
    denied = decided(Policy([rule("deny", "*", who=staff)]).grant(unknown))
    assert (denied.effect, denied.reason) == ("deny", f"the rule 'r' denies it{doubt}")
    by_arguments = decided(
        Policy([rule("deny", "*", who=staff, conditions=above(1))]).grant(unknown), None, {"amount": 2}
    )
    assert by_arguments.reason == f"the rule 'r' denies these arguments{doubt}"
    asked = decided(Policy([rule("ask", "*", who=staff)]).grant(unknown))
    assert (asked.effect, asked.reason) == ("ask", f"the rule 'r' requires the decision of a person{doubt}")
    allowing = Policy([rule("allow", "*", who=staff)]).grant(unknown)
    assert decided(allowing) == Decision(effect="deny", reason=f"no rule allows it{doubt}", hidden=True)
    assert not allowing.permits_server("calendar-mcp", SHAPE)
    sure = Policy([rule("allow", "*", who=staff)]).grant(Somebody(groups=frozenset({"staff"})))
    assert decided(sure) == Decision(effect="allow", rule="r", reason="the rule 'r' allows it")


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
        (ItemPatterns(patterns=("*",)), True),
        (ItemPatterns(patterns=("*__*",)), True),
        (ItemPatterns(patterns=("other__*",)), False),
        (ItemPatterns(patterns=("calendar-mcp",)), False),
        (ItemPatterns(patterns=("a", "calendar-mcp__*")), True),
        (ItemPatterns(servers=("other",), patterns=("*",)), False),
    ],
)
def test_only_a_pattern_without_conditions_covers_a_whole_server(what: ItemPatterns, whole: bool) -> None:
    assert what.covers_whole("calendar-mcp", "calendar-mcp", SHAPE) is whole


@pytest.mark.parametrize(
    ("what", "covered"),
    [
        (ItemPatterns(), True),
        (ItemPatterns(servers=("x", "cal*")), True),
        (ItemPatterns(servers=("cal",)), False),
        (ItemPatterns(servers=()), False),
        (ItemPatterns(tags=("m*",)), True),
        (ItemPatterns(tags=("mail",)), False),
        (ItemPatterns(servers=("cal*",), tags=("mail",)), False),
        (ItemPatterns(patterns=("wire",)), True),
        (ItemPatterns(patterns=("other__wire",)), False),
        (ItemPatterns(patterns=("other__wire", "calendar-mcp__x")), True),
        # The alias in wrapper names may be shortened, and a URI may contain the separator.
        (ItemPatterns(patterns=("cal__wire",)), True),
        (ItemPatterns(patterns=("file:///a__b",)), True),
        (ItemPatterns(wrappers=("other__wire",)), False),
        (ItemPatterns(wrappers=("*__wire",)), True),
        (ItemPatterns(patterns=("wire",), wrappers=("other__wire",)), False),
        (ItemPatterns(patterns=("other__wire",), wrappers=("wire",)), False),
    ],
)
def test_rule_may_cover_items_of_a_server(what: ItemPatterns, covered: bool) -> None:
    assert what.covers_server("calendar-mcp", "cal", SHAPE) is covered


PROMPT = ListedItem(key="calendar-mcp__p", server=ServerName("calendar-mcp"), original="p", definition={})


@pytest.mark.parametrize(
    ("what", "tools", "prompts", "completions", "uris"),
    [
        (ItemPatterns(), True, True, True, True),
        (ItemPatterns(kinds=frozenset({"tools"})), True, False, False, False),
        (ItemPatterns(kinds=frozenset({"prompts"})), False, True, False, False),
        (ItemPatterns(kinds=frozenset({"completions"})), False, False, True, False),
        (ItemPatterns(kinds=frozenset({"resources"})), False, False, False, True),
        (ItemPatterns(wrappers=("*",)), True, False, False, False),
        (ItemPatterns(patterns=("wire",), wrappers=("read",)), False, False, False, False),
        (ItemPatterns(patterns=("read",), wrappers=("wire",)), False, False, False, False),
        (ItemPatterns(patterns=("*__w*", "p")), True, True, True, False),
        (ItemPatterns(patterns=("mem://*",)), False, False, False, True),
        (ItemPatterns(patterns=("mem://a__b",)), False, False, False, True),
        (ItemPatterns(patterns=("calendar-mcp__mem://*",)), False, False, False, True),
        (ItemPatterns(patterns=("other__mem://*",)), False, False, False, False),
        (ItemPatterns(patterns=("x",)), False, False, False, False),
    ],
)
def test_rule_covers_items_that_all_of_its_keys_select(
    what: ItemPatterns, tools: bool, prompts: bool, completions: bool, uris: bool
) -> None:
    assert what.covers_tool(tool(), SHAPE) is tools
    assert what.covers_prompt(PROMPT, SHAPE) is prompts
    assert what.covers_prompt(PROMPT, SHAPE, "completions") is completions
    for strictly in (True, False):
        assert what.covers_uri("calendar-mcp", "mem://a__b", strictly=strictly) is uris


def test_ask_rule_does_not_ask_in_doubt() -> None:
    doubtful = Rule(name="r", effect="ask", conditions=above(10))
    found = CallRules(allow_rules=(doubtful,))
    # The server may read the text as a number, so the value is in doubt: an ask rule then does not ask, and an allow
    # rule does not allow.
    assert found.decide({"amount": "x"}).effect == "allow"
    assert CallRules(allow_rules=(replace(doubtful, effect="allow"),)).decide({"amount": "x"}).effect == "deny"


def asking(by: Any = None, name: str = "r", **members: Any) -> Rule:
    return rule("ask", "*", asks=by, name=name, **members)


def test_stricter_approver_decides_first() -> None:
    rules = [asking("host", "h"), asking(None, "n"), asking("administrator", "a")]
    for some, first in ((rules, "a"), (rules[:2], "n"), (rules[:1], "h")):
        found = decided(Grant(some))
        assert (found.rule, found.by) == (first, some[-1].asks)


@pytest.mark.parametrize(
    ("rules", "by_arguments", "effect", "always_asks"),
    [
        (CallRules(), False, "allow", False),
        (CallRules(ask_rules=(asking(),)), False, "ask", True),
        (CallRules(ask_rules=(asking("host"),)), False, "ask", True),
        (CallRules(ask_rules=(asking("administrator"), asking())), False, "ask", False),
        (CallRules(ask_rules=(asking(conditions=above(1)),)), True, "depends", False),
        (CallRules(ask_rules=(asking(ask_conditions=above(1)),)), True, "depends", False),
        (CallRules(ask_rules=(asking("administrator", conditions=above(1)), asking("host"))), True, "depends", True),
        (CallRules(ask_rules=(asking(ask_conditions=above(1)), asking("host"))), True, "depends", True),
        (CallRules(deny_rules=(rule("deny", conditions=above(1)),)), True, "depends", False),
        (CallRules(allow_rules=(rule("allow", conditions=above(1)),)), True, "depends", False),
        (CallRules(allow_rules=()), False, "deny", False),
    ],
)
def test_rules_of_a_tool_say_whether_calls_differ(
    rules: CallRules, by_arguments: bool, effect: str, always_asks: bool
) -> None:
    assert (rules.by_arguments, rules.usual_effect, rules.always_asks) == (by_arguments, effect, always_asks)


def test_rules_of_a_tool_are_those_of_all_effects() -> None:
    deny, ask, allow = rule("deny"), rule("ask"), rule("allow")
    assert CallRules(deny_rules=(deny,), ask_rules=(ask,), allow_rules=(allow,)).rules == (deny, ask, allow)
    assert CallRules(deny_rules=(deny,)).rules == (deny,)


def test_refusal_names_the_rules_that_do_not_apply() -> None:
    grant = Grant([rule("allow", name="one", conditions=above(5)), rule("allow", name="two", conditions=above(9))])
    assert decided(grant, arguments={"amount": 1}).reason == (
        "only the rule 'one', 'two' allows this tool, and not with these arguments"
    )
    assert decided(grant, arguments={"amount": 6}) == Decision(
        effect="allow", rule="one", reason="the rule 'one' allows it"
    )
    assert decided(grant, arguments={"amount": 10}).rule == "one"
    # Arguments that are no object have no members.
    assert decided(Grant([rule("deny", conditions=above(1))]), arguments=["amount"]).effect == "allow"


@pytest.mark.parametrize(
    ("rules", "effect", "name"),
    [
        ([rule("deny", conditions=above(1), name="a"), rule("deny", name="b")], "deny", "b"),
        ([Rule(name="a", effect="deny", what=ItemPatterns(kinds=frozenset({"prompts"}))), rule("deny", name="b")],
         "deny", "b"),
        ([rule("deny", conditions=Conditions(hints={"readOnlyHint": True}), name="a"), rule("deny", name="b")],
         "deny", "b"),
        ([rule("ask", ask_conditions=Conditions(hints={"readOnlyHint": True}), name="a"), rule("deny", name="b")],
         "deny", "b"),
        ([rule("allow", conditions=above(1), name="a"), rule("allow", name="b")], "allow", "b"),
        ([rule("allow", name="a"), rule("allow", conditions=above(1), name="b")], "allow", "a"),
        ([rule("ask", name="a"), rule("allow", name="b")], "ask", "a"),
    ],
)  # fmt: skip
def test_later_rules_count_after_those_that_do_not_decide(rules: list[Rule], effect: str, name: str) -> None:
    found = decided(Grant(rules))
    assert (found.effect, found.rule) == (effect, name)


def test_scope_for_reading_permits_only_tools_marked_as_read_only() -> None:
    for scopes, permitted in (({"tools"}, True), ({"tools:read"}, False), ({"tools", "tools:read"}, True)):
        assert Grant(scopes=frozenset(scopes)).permits(tool(), SHAPE) is permitted
    refused = decided(Grant(scopes=frozenset({"tools:read"})))
    assert refused.reason == "its key or token only has a scope for tools that are marked as read-only"
    assert decided(Grant(scopes=frozenset({"x"}))).reason == "its key or token has no scope for tools"
    grant = Grant(scopes=frozenset({"tools"}))
    assert grant.prompt(PROMPT, SHAPE).reason == "its key or token has no scope for prompts"
    assert grant.uri("calendar-mcp", "mem://a", SHAPE).reason == "its key or token has no scope for resources"
    assert not Grant([rule("allow", "*__read")], scopes=frozenset({"tools"})).permits(tool(), SHAPE)


def test_grant_is_open_without_any_restriction() -> None:
    assert Grant().is_open
    for grant in (Grant([rule("deny")]), Grant(closed=True), Grant(scopes=frozenset({"tools"}))):
        assert not grant.is_open
    assert not Grant(closed=True).permits_server("calendar-mcp", SHAPE)
    assert Grant().permits_server("calendar-mcp", SHAPE)


def test_default_and_scopes_apply_without_rules() -> None:
    assert Policy(default="deny").grant(Somebody()).closed
    assert Policy().grant(Somebody(scopes=frozenset({"tools"}))).scopes == {"tools"}
    assert not Policy([rule("deny")]).grant(Somebody()).is_open


def test_forgotten_callers_and_grants_free_their_memory() -> None:
    policy = Policy()

    def caller(number: int) -> Somebody:
        return Somebody(name=str(number), scopes=frozenset({f"s{number}"}))

    first = caller(0)
    grant = policy.grant(first)
    assert policy.grant(first) is grant is policy.grant(caller(0))
    unused = weakref.ref(first), weakref.ref(grant)
    del first, grant
    for number in range(1, 9_999):
        policy.grant(caller(number))
    assert all(each() is not None for each in unused)
    for number in range(9_999, 10_002):
        policy.grant(caller(number))
    assert all(each() is None for each in unused)


def test_rules_of_a_server_are_indexed_once() -> None:
    grant = Grant([rule("deny", "*__wire")])
    assert grant.rules_for_server("calendar-mcp", SHAPE) is grant.rules_for_server("calendar-mcp", SHAPE)
    assert not Grant([rule("deny", "other__*")]).rules_for_server("calendar-mcp", SHAPE)
    assert Grant([rule("deny", "wire")]).rules_for_server("calendar-mcp", SHAPE)


def test_long_aliases_are_matched_in_their_shortened_form() -> None:
    alias = "a" * 30
    short = alias_prefix(alias, 24)
    assert short != alias
    grant = Grant([rule("deny", f"{short}__*")], max_length=24)
    assert grant.rules_for_server(alias, SHAPE)
    assert not grant.permits_server(alias, SHAPE)
    assert not Grant([rule("deny", f"{short}__*")]).rules_for_server(alias, SHAPE)


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


def test_rules_for_other_tools_are_not_evaluated() -> None:
    rules = [
        rule("deny", name="all"),
        rule("deny", "*__read", name="other name"),
        rule("deny", "calendar-mcp__re*", name="other pattern"),
        rule("deny", "x*__wire", name="other server"),
        rule("deny", "*__*", name="any"),
        rule("deny", "*__[w]ire", name="brackets"),
        Rule(name="other wrapper", effect="deny", what=ItemPatterns(wrappers=("*__read",))),
        Rule(name="wrapper", effect="deny", what=ItemPatterns(wrappers=("*__wire",))),
    ]
    found = [each.name for each in ServerRules(rules).rules_for(tool())]
    assert found == ["all", "other server", "any", "brackets", "wrapper"]


@pytest.mark.parametrize(
    ("name", "exposed", "pattern"),
    [
        ("_read", "_read", "calendar-mcp___read"),
        ("_read", "calendar-mcp__load", "calendar-mcp___read"),
        ("_read", "calendar-mcp___read", "calendar-mcp___read"),
        ("__read", "__read", "calendar-mcp____read"),
        ("__read", "__read", "__read"),
        ("read", "read", "calendar-mcp__read"),
        ("a__b", "calendar-mcp__a__b", "*__a__b"),
        ("a", "calendar-mcp__b__c", "*__b__c"),
        ("a", "calendar-mcp__b__c", "calendar-mcp__b__?"),
        ("a", "b", "b"),
        ("a", "b", "a"),
    ],
)
def test_rule_is_found_by_either_name_of_a_tool(name: str, exposed: str, pattern: str) -> None:
    wrapper, denial = replace(tool(name), name=WrapperName(exposed)), rule("deny", pattern)
    shape = ServerShape(prefixed=exposed.startswith("calendar-mcp__"))
    assert denial.what.covers_tool(wrapper, shape)
    assert list(ServerRules([denial]).rules_for(wrapper)) == [denial]
    assert not Grant([denial]).permits(wrapper, shape)


def test_hundreds_of_patterns_are_found() -> None:
    index = ServerRules(rule("deny", f"*__t{number}_*", name=str(number)) for number in range(200))
    for number in (0, 63, 64, 127, 128, 199):
        assert str(number) in {each.name for each in index.rules_for(tool(f"t{number}_x"))}


@given(
    patterns=st.lists(st.lists(NAMES, min_size=1, max_size=2), min_size=1, max_size=5),
    as_wrappers=st.booleans(),
    name=st.text("ab_x", min_size=1, max_size=6),
    exposed=st.none() | st.text("ab_x", min_size=1, max_size=6),
    prefixed=st.booleans(),
)
def test_every_rule_covering_a_tool_is_evaluated(
    patterns: list[list[str]], as_wrappers: bool, name: str, exposed: str | None, prefixed: bool
) -> None:
    rules = [
        Rule(
            name=f"r{at}", effect="deny", what=ItemPatterns(**{"wrappers" if as_wrappers else "patterns": tuple(some)})
        )
        for at, some in enumerate(patterns)
    ]
    wrapper = replace(tool(name), name=WrapperName(("calendar-mcp__" if prefixed else "") + (exposed or name)))
    shape = ServerShape(prefixed=prefixed)
    looked_at = list(ServerRules(rules).rules_for(wrapper))
    covering = [rule for rule in rules if rule.what.covers_tool(wrapper, shape)]
    assert [rule for rule in looked_at if rule in covering] == covering
