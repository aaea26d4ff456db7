"""A grant decides as its rules do one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.wrappers import wrapper_of

from registry.catalog.catalog import ToolWrapper
from registry.catalog.listed_items import ListedItem
from registry.catalog.names import ServerName
from registry.catalog.shape import ServerShape
from registry.policy.policy import CallRules, Grant
from registry.policy.rules import KINDS, ArgumentCondition, Conditions, ItemPatterns, Rule, reading_hints, tool_hints

SHAPE = ServerShape(tags=("money",))
SERVER = "calendar-mcp"
TESTS: tuple[dict[str, Any], ...] = ({}, {"amount": 5}, {"amount": 50}, {"amount": "x"}, {"amount": 5, "to": "a"})
ARGUMENTS = st.sampled_from(
    [
        (),
        (ArgumentCondition(path="amount", above=10),),
        (ArgumentCondition(path="amount", below=10),),
        (ArgumentCondition(path="to", present=True),),
        (ArgumentCondition(path="to", present=False),),
    ]
)
HINTED = st.sampled_from([{}, {}, {"readOnlyHint": True}, {"readOnlyHint": False}])
CONDITIONS = st.builds(Conditions, hints=HINTED, arguments=ARGUMENTS)
COVERS = st.builds(
    ItemPatterns,
    kinds=st.sampled_from([frozenset(KINDS), frozenset({"tools"}), frozenset({"prompts", "resources"})]),
    patterns=st.sampled_from([None, None, ("*",), (f"{SERVER}__*",), ("other__*",), ("*__wire",), ("mem://a*",)]),
)


@st.composite
def all_rules(draw: st.DrawFn) -> list[Rule]:
    rules = []
    for at in range(draw(st.integers(0, 5))):
        effect = draw(st.sampled_from(["allow", "deny", "ask"]))
        ask_conditions = draw(CONDITIONS) if effect == "ask" else Conditions()
        rules.append(
            Rule(
                name=f"r{at}",
                effect=effect,
                what=draw(COVERS),
                conditions=draw(CONDITIONS),
                ask_conditions=ask_conditions,
            )
        )
    return rules


def tool(name: str, read_only: bool) -> ToolWrapper:
    wrapper = wrapper_of(name, {"type": "object"})
    annotated = {**wrapper.definition, "annotations": {"readOnlyHint": read_only}}
    return replace(wrapper, definition=annotated, shared_hints=None)


def expected(rules: Sequence[Rule], closed: bool, wrapper: ToolWrapper, arguments: dict[str, Any]) -> str:
    """Return the expected decision: deny rules win, then ask rules, then allow rules."""
    hints = tool_hints(wrapper, SHAPE)
    about = [rule for rule in rules if rule.what.covers_tool(wrapper, SHAPE) and rule.conditions.match_hints(hints)]
    for rule in about:
        if rule.effect == "deny" and rule.conditions.restricts(arguments):
            return "deny"
    for rule in about:
        asks = rule.ask_conditions.match_hints(hints) and rule.ask_conditions.restricts(arguments)
        if rule.effect == "ask" and rule.conditions.restricts(arguments) and asks:
            return "ask"
    if not closed and not any(rule.effect == "allow" for rule in rules):
        return "allow"
    for rule in about:
        if rule.effect == "allow" and rule.conditions.permits(arguments):
            return "allow"
        if rule.effect == "ask" and (rule.conditions.permits(arguments) or rule.conditions.restricts(arguments)):
            return "allow"
    return "deny"


@given(rules=all_rules(), closed=st.booleans())
def test_grant_decides_calls_as_the_rules_do_one_by_one(rules: list[Rule], closed: bool) -> None:
    grant = Grant(rules, closed=closed)
    for name, read_only in itertools.product(("wire", "read"), (True, False)):
        wrapper = tool(name, read_only)
        found = grant.tool(wrapper, SHAPE, grant.rules_for_server(SERVER, SHAPE))
        wanted = {at: expected(rules, closed, wrapper, arguments) for at, arguments in enumerate(TESTS)}
        decided = {
            at: (found.decide(arguments) if isinstance(found, CallRules) else found).effect
            for at, arguments in enumerate(TESTS)
        }
        assert decided == wanted
        # A hidden tool is denied with any arguments, so that no callable tool is missing in a list.
        if not isinstance(found, CallRules) and found.hidden:
            assert set(wanted.values()) == {"deny"}


@given(rules=all_rules(), closed=st.booleans())
def test_prompts_and_reads_ignore_rules_about_arguments(rules: list[Rule], closed: bool) -> None:
    grant = Grant(rules, closed=closed)
    prompt = ListedItem(key=f"{SERVER}__wire", server=ServerName(SERVER), original="wire", definition={})
    plain = [
        rule
        for rule in rules
        if rule.effect != "ask" and not rule.conditions.arguments and rule.conditions.match_hints(reading_hints())
    ]
    allowing = closed or any(rule.effect == "allow" for rule in rules)

    def wanted(covering: Sequence[Rule]) -> str:
        effects = {rule.effect for rule in covering}
        return "deny" if "deny" in effects or (allowing and "allow" not in effects) else "allow"

    assert grant.prompt(prompt, SHAPE).effect == wanted([r for r in plain if r.what.covers_prompt(prompt, SHAPE)])
    for uri in ("mem://a/b", "file:///x"):
        about = [rule for rule in plain if rule.what.covers_uri(SERVER, uri, strictly=rule.effect == "allow")]
        assert grant.uri(SERVER, uri, SHAPE).effect == wanted(about)
        denying = any(rule.effect == "deny" for rule in about)
        assert grant.denies_uri(SERVER, uri, SHAPE) == denying


def test_ask_rule_allows_only_what_its_condition_matches() -> None:
    large = Conditions(arguments=(ArgumentCondition(path="amount", above=10),))
    grant = Grant([Rule(name="r", effect="ask", conditions=large)], closed=True)
    wrapper = tool("wire", False)
    found = grant.tool(wrapper, SHAPE, grant.rules_for_server(SERVER, SHAPE))
    assert isinstance(found, CallRules)
    assert [found.decide({"amount": amount}).effect for amount in (5, 50)] == ["deny", "ask"]
    doubted = Rule(name="r", effect="ask", conditions=large, ask_conditions=Conditions(hints={"readOnlyHint": True}))
    silent = Grant([doubted], closed=True)
    found = silent.tool(wrapper, SHAPE, silent.rules_for_server(SERVER, SHAPE))
    assert isinstance(found, CallRules)
    assert [found.decide({"amount": amount}).effect for amount in (5, 50)] == ["deny", "allow"]


def test_completions_are_open_to_prompt_and_resource_scopes() -> None:
    for scope, opened in (("prompts", True), ("resources:read", True), ("tools", False), ("metrics", False)):
        grant = Grant(scopes=frozenset({scope}))
        assert grant.opens("completions") == opened
        # A key for metrics does not see any server.
        assert grant.permits_server(SERVER, SHAPE) == (scope != "metrics")


def test_rules_of_a_server_follow_its_changed_tags() -> None:
    grant = Grant([Rule(name="r", effect="deny", what=ItemPatterns(tags=("money",)))])
    for _ in range(2):
        assert not grant.permits(tool("wire", False), SHAPE)
        assert grant.permits(tool("wire", False), ServerShape(tags=("mail",)))


def test_server_is_hidden_only_by_an_unconditional_denial() -> None:
    whole = ItemPatterns(servers=(SERVER,))
    for conditions in (Conditions(hints={"readOnlyHint": True}), Conditions(arguments=(ArgumentCondition(path="a"),))):
        grant = Grant([Rule(name="r", effect="deny", what=whole, conditions=conditions)])
        assert grant.permits_server(SERVER, SHAPE)
    assert not Grant([Rule(name="r", effect="deny", what=whole)]).permits_server(SERVER, SHAPE)
    for effect in ("allow", "ask"):
        assert Grant([Rule(name="r", effect=effect, what=whole)], closed=True).permits_server(SERVER, SHAPE)
