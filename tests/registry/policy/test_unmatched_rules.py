"""Rules, patterns and conditions that match nothing that is listed."""

from __future__ import annotations

from typing import Any

import pytest

from registry.catalog.catalog import Catalog
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import build_catalog
from registry.catalog.shape import NameFilter, ServerShape, Shape
from registry.intake.issues import ItemIssue
from registry.policy.rules import ArgumentCondition, Conditions, ItemPatterns, Kind, Rule
from registry.policy.unmatched_rules import find_unmatched

BANK, AWAY = ServerName("bank"), ServerName("away")
WIRE = {"name": "wire", "inputSchema": {"type": "object", "properties": {"amount": {"type": "number"}}}}
READ = {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}


def listing(**members: Any) -> ServerListing:
    given: dict[str, Any] = {
        "tools": (WIRE, READ),
        "prompts": ({"name": "greet"},),
        "resources": ({"uri": "mem://a", "name": "a"},),
        "templates": ({"uriTemplate": "file:///{path}", "name": "f"},),
        "skills": ({"uri": "skill://s", "name": "s", "resources": "dynamic"},),
        "capabilities": {"completions": {}},
        **members,
    }
    return ServerListing(server=BANK, epoch=1, **given)


SHAPE = Shape(servers={BANK: ServerShape(tags=("money",))})
WITH_AWAY = Shape(servers={BANK: ServerShape(), AWAY: ServerShape()})
OTHER = ServerListing(server=AWAY, epoch=1, tools=(READ,), prompts=({"name": "hello"},))


def catalog(shape: Shape = SHAPE, **members: Any) -> Catalog:
    return build_catalog({BANK: listing(**members)}, shape, version=1)


def rule(effect: Any = "deny", *patterns: str, name: str = "r", **members: Any) -> Rule:
    what = {key: members.pop(key) for key in ("kinds", "servers", "tags", "wrappers") if key in members}
    return Rule(name=name, effect=effect, what=ItemPatterns(patterns=patterns or None, **what), **members)


def texts(*rules: Rule, shape: Shape = SHAPE, **members: Any) -> list[str]:
    """Return the texts about rules for the items of the bank, without the name of the rule."""
    found = find_unmatched(rules, catalog(shape, **members), shape)
    return [text.removeprefix("the rule 'r': ") for text in found]


def only(*kinds: Kind) -> frozenset[Kind]:
    return frozenset(kinds)


def hinted(**hints: bool) -> Conditions:
    return Conditions(hints=hints)


def argument(path: str, **tests: Any) -> Conditions:
    return Conditions(arguments=(ArgumentCondition(path=path, **tests),))


NOTHING = "matches nothing that exists"
NONE = "covers no existing completions, prompts, resources, tools"
ABSENT = "no tool that the rule covers has this argument"


@pytest.mark.parametrize(
    "sound",
    [
        rule(),
        rule("deny", "bank__wire"),
        rule("deny", "*__w*", "greet", "mem://*"),
        rule("deny", "bank__mem://a"),
        rule("deny", "skill://s"),
        rule("deny", "file:///etc/*"),
        rule("deny", "bank__file:///etc/passwd"),
        rule("deny", tags=("money",)),
        rule("deny", wrappers=("bank__wire", "read")),
        rule("deny", "*", wrappers=("bank__wire",)),
        rule("deny", kinds=only("tools")),
        rule("deny", kinds=only("prompts", "completions", "resources")),
        rule("deny", wrappers=("*",), kinds=only("tools", "prompts")),
        rule(conditions=hinted(readOnlyHint=True)),
        rule("deny", "bank__wire", conditions=hinted(readOnlyHint=False)),
        # Reading prompts and resources changes nothing.
        rule("deny", "greet", conditions=hinted(readOnlyHint=True)),
        rule("deny", "bank__wire", conditions=argument("amount", above=5)),
        rule("deny", "mem://a", conditions=argument("nonsense", present=True)),
        rule("ask", ask_conditions=hinted(readOnlyHint=True)),
        rule("ask", "bank__wire", ask_conditions=argument("amount", above=5)),
    ],
)
def test_rule_that_applies_to_a_listed_item_is_not_reported(sound: Rule) -> None:
    assert texts(sound) == []


@pytest.mark.parametrize(
    ("vain", "text"),
    [
        (rule("deny", "bank__wrie"), f"{NONE}; did you mean bank__wire?"),
        (rule("deny", "wrie"), f"{NONE}; did you mean wire?"),
        (rule("deny", "bank__gret"), f"{NONE}; did you mean bank__greet?"),
        (rule("deny", "bank__mem://aa"), f"{NONE}; did you mean mem://a?"),
        (rule("deny", "skill://ss"), f"{NONE}; did you mean skill://s?"),
        (rule("deny", "mail://a", "mail://b"), NONE),
        (rule("deny", "wrie", "raed"), NONE),
        (rule("deny", "other__wire", "bank__read"), f"deny: other__wire {NOTHING}"),
        (rule("deny", "other__wire"), NONE),
        (rule("deny", "other__mem://a"), f"{NONE}; did you mean mem://a?"),
        (rule("deny", servers=("other",)), NONE),
        (rule("deny", tags=("mail",)), NONE),
        (rule("deny", "wire", kinds=only("prompts")),
         "kinds: prompts: the rule covers none of these, so the kind has no effect"),
        (rule("deny", "wrie", kinds=only("tools")), "covers no existing tools; did you mean wire?"),
        (rule("deny", "wire", "wrie"), f"deny: wrie {NOTHING}; did you mean wire?"),
        (rule("allow", "wire", "bank__mem://b"), f"allow: bank__mem://b {NOTHING}; did you mean mem://a?"),
        (rule("deny", wrappers=("wire", "xxxx")), f"wrappers: xxxx {NOTHING}"),
        (rule("deny", wrappers=("wrie",)), f"{NONE}; did you mean wire?"),
        (rule("deny", "wire", "xxxx", wrappers=("wire",)), f"deny: xxxx {NOTHING}"),
        (rule("deny", "bank__wire", conditions=hinted(readOnlyHint=True)),
         "when: readOnly true: nothing that the rule covers has these hints"),
        (rule("deny", "greet", conditions=hinted(readOnlyHint=False)),
         "when: readOnly false: nothing that the rule covers has these hints"),
        (rule("deny", "bank__read", conditions=hinted(destructiveHint=True, openWorldHint=True)),
         "when: destructive true, openWorld true: nothing that the rule covers has these hints"),
        (rule("ask", "bank__read", ask_conditions=hinted(destructiveHint=True)),
         "ask.when: destructive true: no tool that the rule covers has these hints"),
        (rule("deny", "bank__wire", conditions=argument("amuont", above=5)),
         f"when.arguments.amuont: {ABSENT}; did you mean amount?"),
        (rule("ask", "bank__wire", ask_conditions=argument("amuont", above=5)),
         f"ask.when.arguments.amuont: {ABSENT}; did you mean amount?"),
        (rule("allow", "bank__wire", conditions=argument("amount", equals=("5",))),
         "when.arguments.amount: no value that the argument may have fits (number)"),
    ],
)  # fmt: skip
def test_rule_that_applies_to_nothing_listed_is_explained(vain: Rule, text: str) -> None:
    assert texts(vain) == [text]


def test_conditions_after_one_that_is_unknown_or_fits_are_examined() -> None:
    both = Conditions(arguments=(ArgumentCondition(path="amount", above=5), ArgumentCondition(path="xyz", above=5)))
    assert texts(rule("deny", "bank__wire", conditions=both)) == [f"when.arguments.xyz: {ABSENT}"]
    # A value of the condition that the schema does not permit may be converted for a deny rule.
    assert texts(rule("deny", "bank__wire", conditions=argument("amount", equals=("5",)))) == []
    # The conditions of `ask` concern only tools to which the rule applies.
    asking = rule("ask", conditions=hinted(readOnlyHint=True), ask_conditions=argument("amount", above=5))
    assert texts(asking, tools=(WIRE, {**READ, "inputSchema": {"type": "object", "properties": {"n": {}}}})) == [
        f"ask.when.arguments.amount: {ABSENT}"
    ]
    silent = rule("ask", "greet", ask_conditions=hinted(readOnlyHint=False))
    assert texts(silent) == []


def test_arguments_of_a_tool_with_an_unchecked_schema_are_unknown() -> None:
    repaired = (ItemIssue(tool="wire", code="remote_ref", detail="its schema cannot be checked"),)
    for pattern in ("bank__wire", "bank__*"):
        unknown = rule("deny", pattern, conditions=argument("xyz", above=5))
        assert texts(unknown, repaired=repaired) == []
        assert len(texts(unknown, tools=(WIRE,))) == 1


def test_kinds_of_a_rule_without_items_are_reported() -> None:
    kinds = only("tools", "prompts", "completions", "resources")
    none = "the rule covers none of these, so the kind has no effect"
    bare: dict[str, Any] = {"prompts": (), "resources": (), "templates": (), "skills": ()}
    assert texts(rule(kinds=kinds), **bare) == []
    assert texts(rule(kinds=only("tools", "prompts", "resources")), **bare) == [
        f"kinds: prompts: {none}", f"kinds: resources: {none}"
    ]  # fmt: skip
    assert texts(rule(kinds=only("prompts", "completions")), capabilities={}) == [f"kinds: completions: {none}"]
    # Templates are completed as well as prompts.
    assert texts(rule("deny", "file:///*", kinds=only("completions"))) == []
    assert texts(rule("deny", "greet", kinds=only("completions"))) == []
    assert texts(rule("deny", "greet", kinds=only("prompts", "resources"))) == [f"kinds: resources: {none}"]
    assert texts(rule("deny", "mem://a", kinds=only("prompts", "resources"))) == [f"kinds: prompts: {none}"]
    assert texts(rule("deny", "greet"), tools=()) == []
    for alone in ("resources", "templates", "skills"):
        items = {**bare, alone: listing().__getattribute__(alone)}
        assert texts(rule(kinds=only("resources")), **items) == []


def test_tools_that_exist_without_being_offered_count_as_matched() -> None:
    shape = Shape(servers={BANK: ServerShape(tools=NameFilter(deny=("wire",)))})
    quarantined = (ItemIssue(tool="odd", code="x", detail="y"),)
    for pattern in ("bank__wire", "wire", "bank__odd", "*__od?"):
        assert texts(rule("deny", pattern), shape=shape, quarantined=quarantined) == []
    assert texts(rule("deny", "bank__od", "bank__read"), shape=shape, quarantined=quarantined) == [
        f"deny: bank__od {NOTHING}; did you mean bank__read?"
    ]
    assert texts(rule("deny", "other__odd", "bank__read"), quarantined=quarantined) == [f"deny: other__odd {NOTHING}"]


def test_items_of_other_servers_do_not_count() -> None:
    both = build_catalog({BANK: listing(), AWAY: OTHER}, WITH_AWAY, version=1)
    rules = [
        rule("deny", "away__wire", name="1"),
        rule("deny", "away__greet", name="2"),
        rule("deny", "away__mem://a", name="3"),
        rule("deny", "bank__hello", name="4"),
        rule(kinds=only("resources"), servers=("away",), name="5"),
        rule("deny", "away__hello", name="6"),
        rule("deny", "hello", name="7"),
        rule("deny", "away__file:///a", name="8"),
    ]
    found = find_unmatched(rules, both, WITH_AWAY)
    assert [text.partition("'")[2][0] for text in found] == ["1", "2", "3", "4", "5", "8"]


@pytest.mark.parametrize(
    ("possible", "reported"),
    [
        (rule("deny", "away__anything"), []),
        (rule("deny", "anything"), []),
        (rule("deny", "mem://b"), []),
        (rule("deny", "*__anything"), []),
        (rule("deny", servers=("away",), kinds=only("prompts")), []),
        (rule("deny", "away__x", conditions=argument("xyz", above=5)), []),
        (rule("deny", "bank__wrie"), [f"{NONE}; did you mean bank__wire?"]),
        (rule("deny", "bank__wire", "bank__xyzxyz", "away__x"), [f"deny: bank__xyzxyz {NOTHING}"]),
        (rule("deny", servers=("bank",), tags=("mail",)), [NONE]),
    ],
)
def test_rule_for_a_server_that_has_listed_nothing_may_apply_later(possible: Rule, reported: list[str]) -> None:
    assert texts(possible, shape=WITH_AWAY) == reported


def test_stored_listings_are_ignored_if_only_live_ones_count() -> None:
    stored = catalog(origin="snapshot")
    vain = [rule("deny", "bank__wrie", name="1"), rule("deny", "away__wire", name="2")]
    assert [text.partition("'")[2][0] for text in find_unmatched(vain, stored, SHAPE)] == ["1", "2"]
    assert [text.partition("'")[2][0] for text in find_unmatched(vain, stored, SHAPE, live_only=True)] == ["2"]
    assert [text.partition("'")[2][0] for text in find_unmatched(vain, catalog(), SHAPE, live_only=True)] == ["1", "2"]


def test_shortened_alias_names_a_server_that_has_listed_nothing() -> None:
    alias = ServerName("a" * 30)
    shape = Shape(servers={alias: ServerShape()}, max_length=24)
    wrapper = build_catalog({alias: ServerListing(server=alias, epoch=1, tools=(READ,))}, shape, version=1).wrappers[0]
    short = wrapper.name.partition("__")[0]
    assert short != alias
    rules = [rule("deny", f"{short}__x"), rule("deny", f"{alias}__x", name="s")]
    assert find_unmatched(rules, Catalog(), shape) == []


@pytest.mark.parametrize(
    ("template", "pattern", "matched"),
    [
        ("file:///{path}", "file:///etc/*", True),
        ("file:///{path}", "file:*", True),
        ("file:///{path}", "*", True),
        ("file:///{path}", "?ile:///x", True),
        ("file:///{path}", "mem:///*", False),
        ("file:///{path}", "bank__file:///x", True),
        ("file:///{path}", "other__file:///x", False),
        ("file:///{path}", "file:///a__b", True),
        ("file:///a", "file:///*", True),
        ("file:///a", "file:///b", False),
        ("file:///a", "file:///a/*", False),
        ("{+uri}", "mem://x", True),
    ],
)
def test_pattern_may_match_a_uri_of_a_template(template: str, pattern: str, matched: bool) -> None:
    templates = ({"uriTemplate": template, "name": "t"},)
    bare: dict[str, Any] = {"tools": (), "prompts": (), "resources": (), "skills": (), "templates": templates}
    assert (texts(rule("deny", pattern), **bare) == []) is matched


def test_number_of_suggestions_is_limited() -> None:
    found = find_unmatched([rule("deny", "bank__wrie", name=str(at)) for at in range(21)], catalog(), SHAPE)
    assert [text.endswith("did you mean bank__wire?") for text in found] == [True] * 20 + [False]
