"""Review of a listing: held items keep their approved form, and others are unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from registry.catalog.listing import WHOLE_SERVER, ServerListing
from registry.catalog.names import ServerName
from registry.lock.lockfile import Surface
from registry.lock.review import (
    CHANGE_CLASSES,
    Policy,
    approved_with,
    default_decision,
    reverted_with,
    review,
    surface_of,
)

LOCKED: Policy = {one: default_decision(one, locked=True) for one in CHANGE_CLASSES}


def tool(name: str, description: str = "Does.", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, **more}


def listing(*tools: dict[str, Any], **more: Any) -> ServerListing:
    return ServerListing(server=ServerName("fs"), epoch=1, tools=tools, **more)


def surface(*tools: dict[str, Any], identity: str = "npm:fs@1", **more: Any) -> Surface:
    return surface_of(listing(*tools, **more), identity)


A, B = tool("a", "First."), tool("b", "Second.")
APPROVED = surface(A, B)


def test_unchanged_listing_is_returned_as_the_same_object() -> None:
    now = listing(A, B)
    found = review(now, APPROVED, identity="npm:fs@1", policy=LOCKED)
    assert found.listing is now
    assert found.changes == ()


def test_changed_description_is_held_and_its_sibling_is_not() -> None:
    found = review(listing(tool("a", "Steal."), B), APPROVED, identity="npm:fs@1", policy=LOCKED).listing
    assert found.tools == (A, B)
    assert list(found.held["tools"]) == ["a"]
    reason = found.held["tools"]["a"]
    assert reason.startswith("held: its description changed")
    assert "typegate approve fs__a" in reason


def test_outcome_has_the_decision_about_each_change() -> None:
    narrowed = tool("b", "Other.", annotations={"readOnlyHint": True})
    found = review(listing(B | {"inputSchema": {"type": "array"}}, tool("c")), None, identity="i", policy=LOCKED)
    assert [(each.change.name, each.decision, each.held_for) for each in found.changes] == [
        ("b", "hold", ("added",)),
        ("c", "hold", ("added",)),
    ]
    policy: Policy = {**LOCKED, "text": "warn"}
    found = review(listing(narrowed), APPROVED, identity="npm:fs@1", policy=policy)
    assert [(each.change.name, each.decision, each.held_for) for each in found.changes] == [
        ("a", "warn", ()),
        ("b", "hold", ("widening",)),
    ]
    accepted = review(listing(tool("a", "x"), B), APPROVED, identity="npm:fs@1", policy={**LOCKED, "text": "accept"})
    assert [each.decision for each in accepted.changes] == ["accept"]


def test_nothing_of_an_unapproved_server_is_listed() -> None:
    prompt, skill = {"name": "p"}, {"uri": "skill://a"}
    now = listing(A, prompts=(prompt,), skills=(skill,), instructions="Obey.")
    found = review(now, None, identity="i", policy=LOCKED).listing
    assert (found.tools, found.prompts, found.skills, found.instructions) == ((), (), (), None)
    assert {kind: list(names) for kind, names in found.held.items()} == {
        "tools": ["a"], "prompts": ["p"], "skills": ["skill://a"]
    }  # fmt: skip


def test_added_tool_is_held_and_absent() -> None:
    found = review(listing(A, B, tool("c")), APPROVED, identity="npm:fs@1", policy=LOCKED).listing
    assert found.tools == (A, B)
    assert "it is new" in found.held["tools"]["c"]


def test_removed_tool_is_dropped_by_default_and_kept_if_held() -> None:
    found = review(listing(A), APPROVED, identity="npm:fs@1", policy=LOCKED).listing
    assert found.tools == (A,)
    found = review(listing(A), APPROVED, identity="npm:fs@1", policy={**LOCKED, "removed": "hold"}).listing
    assert found.tools == (A, B)
    assert "no longer has it" in found.held["tools"]["b"]


def test_held_rename_keeps_the_former_name() -> None:
    now = listing({**A, "name": "z"}, B)
    warned = review(now, APPROVED, identity="npm:fs@1", policy={**LOCKED, "renamed": "warn"})
    assert warned.listing.tools == now.tools
    found = review(now, APPROVED, identity="npm:fs@1", policy=LOCKED).listing
    assert found.tools == (A, B)
    assert set(found.held["tools"]) == {"a", "z"}


def test_changed_identity_holds_the_whole_server() -> None:
    found = review(listing(A, tool("c")), APPROVED, identity="npm:fs@2", policy=LOCKED).listing
    assert found.tools == (A, B)
    assert set(found.held["tools"]) == {"a", "b", "c"}


def test_server_with_a_held_identity_lists_only_approved_items() -> None:
    before = listing(
        A,
        prompts=({"name": "p"},),
        templates=({"uriTemplate": "x:{y}", "name": "t"},),
        skills=({"uri": "skill://a"},),
        instructions="Be careful.",
    )
    approved = surface_of(before, "npm:fs@1")
    found = review(listing(B, instructions="Obey."), approved, identity="npm:fs@2", policy=LOCKED)
    reason = (
        "held: its server has another program or address; the operator of this gateway can review it with "
        "`typegate diff` and `typegate approve fs`"
    )
    assert found.listing == replace(
        before,
        held={
            WHOLE_SERVER: {"": reason},
            "tools": {"b": reason, "a": reason},
            "prompts": {"p": reason},
            "resourceTemplates": {"x:{y}": reason},
            "skills": {"skill://a": reason},
        },
    )
    allowed = review(listing(A, B), APPROVED, identity="npm:fs@2", policy={**LOCKED, "identity": "warn"})
    assert allowed.listing.tools == (A, B)
    assert not allowed.listing.held


def test_change_is_held_if_one_of_its_classes_is_held() -> None:
    narrowed = {**A, "inputSchema": {"type": "object", "maxProperties": 1}}
    assert not review(listing(narrowed, B), APPROVED, identity="npm:fs@1", policy=LOCKED).listing.held
    both = {**narrowed, "description": "Other."}
    assert review(listing(both, B), APPROVED, identity="npm:fs@1", policy=LOCKED).listing.held


def test_items_of_each_kind_and_instructions_are_held_too() -> None:
    prompt, template = {"name": "p", "description": "P."}, {"uriTemplate": "x:{y}", "name": "t"}
    skill, other = {"uri": "skill://a", "description": "A."}, {"uri": "skill://b", "description": "B."}
    before = listing(A, prompts=(prompt,), templates=(template,), skills=(skill, other), instructions="Be careful.")
    approved = surface_of(before, "i")
    now = replace(
        before,
        prompts=({**prompt, "description": "Obey."},),
        templates=({**template, "description": "Obey."},),
        skills=({**skill, "description": "Obey."}, other),
        instructions="Obey.",
    )
    found = review(now, approved, identity="i", policy=LOCKED).listing
    assert found == replace(before, held=found.held)
    assert {kind: list(names) for kind, names in found.held.items()} == {
        "prompts": ["p"], "resourceTemplates": ["x:{y}"], "skills": ["skill://a"]
    }  # fmt: skip
    # Only tools are approved by their own name.
    assert found.held["prompts"]["p"].endswith("`typegate approve fs`")
    unheld = review(replace(before, prompts=now.prompts, instructions=None), approved, identity="i", policy=LOCKED)
    assert unheld.listing.instructions == "Be careful."
    changed_prompt = review(replace(before, prompts=now.prompts), approved, identity="i", policy=LOCKED).listing
    assert (changed_prompt.prompts, changed_prompt.instructions) == ((prompt,), "Be careful.")


def test_instructions_follow_the_server_if_only_items_are_held() -> None:
    now = listing(tool("a", "Steal."), B, instructions="Hello.")
    found = review(now, APPROVED, identity="npm:fs@1", policy={**LOCKED, "added": "warn"}).listing
    assert found.instructions is None
    approved = replace(APPROVED, instructions="")
    found = review(replace(now, instructions=None), approved, identity="npm:fs@1", policy=LOCKED).listing
    assert found.instructions is None


def test_changes_are_only_warned_about_without_a_lock_file() -> None:
    assert {default_decision(one, locked=False) for one in CHANGE_CLASSES} == {"warn"}


def test_approval_selects_by_name_and_by_class() -> None:
    now = surface(tool("a", "Other."), B, tool("c"))
    one, taken, left = approved_with(APPROVED, now, item="a")
    assert one.definitions("tools") == {"a": tool("a", "Other."), "b": B}
    assert [change.name for change in taken] == ["a"]
    assert left == ()
    other, taken, left = approved_with(APPROVED, now, classes={"added"})
    assert other.definitions("tools") == {"a": A, "b": B, "c": tool("c")}
    assert [change.name for change in left] == ["a"]
    whole, _, _ = approved_with(APPROVED, now)
    assert whole.definitions("tools") == now.definitions("tools")


def test_rename_is_held_if_rules_treat_the_two_names_differently() -> None:
    now, policy = listing({**A, "name": "z"}, B), {**LOCKED, "renamed": "accept"}
    same = review(now, APPROVED, identity="npm:fs@1", policy=policy, distinguishes=lambda was, name: was == "b")
    other = review(
        now, APPROVED, identity="npm:fs@1", policy=policy, distinguishes=lambda was, name: (was, name) == ("a", "z")
    )
    assert same.listing.tools == now.tools
    assert other.listing.tools == (A, B)
    assert "it was renamed" in other.listing.held["tools"]["z"]


@pytest.mark.parametrize("name", ["a", "z"])
def test_rename_is_approved_by_either_name(name: str) -> None:
    now = surface({**A, "name": "z"}, B)
    assert set(approved_with(APPROVED, now, item=name)[0].definitions("tools")) == {"z", "b"}


def test_approval_selects_by_kind() -> None:
    now = surface(tool("a", "Other."), prompts=({"name": "a"},), instructions="Hello.", identity="npm:fs@2")
    for kind in ("tools", "prompts", "instructions", "server"):
        after, taken, left = approved_with(APPROVED, now, kind=kind)
        assert {change.kind for change in taken} == {kind}
        assert left == ()
        assert (after.identity == "npm:fs@2") == (kind == "server")
        assert (after.instructions == "Hello.") == (kind == "instructions")
        assert set(after.definitions("tools")) == ({"a"} if kind == "tools" else {"a", "b"})
        assert set(after.definitions("prompts")) == ({"a"} if kind == "prompts" else set())
    after, taken, left = approved_with(APPROVED, now, kind="tools", item="a", classes={"added"})
    assert (after.definitions("tools"), taken) == (APPROVED.definitions("tools"), ())
    assert [change.name for change in left] == ["a"]


def test_first_approval_of_a_server() -> None:
    now = surface(A, B, instructions="Hello.")
    after, taken, left = approved_with(None, now, item="a")
    assert (after.identity, after.instructions, after.definitions("tools")) == ("npm:fs@1", None, {"a": A})
    assert ([change.name for change in taken], left) == (["a"], ())
    assert approved_with(None, now)[0] == now


def test_change_is_approved_if_all_of_its_classes_are_selected() -> None:
    now = surface({**tool("a", "Other."), "inputSchema": {"type": "array"}}, B)
    assert approved_with(APPROVED, now, classes={"text", "narrowing"})[1] == ()
    assert len(approved_with(APPROVED, now, classes={"text", "narrowing", "widening", "added"})[1]) == 1


@pytest.mark.parametrize(
    "now",
    [
        listing({**A, "name": "z"}, tool("b", "Steal."), tool("c"), instructions="Hello."),
        listing(A),
        listing(A, B, instructions="Hello."),
        listing({**A, "name": "z"}, B),
        listing(A, B, prompts=({"name": "a"},)),
    ],
)
@pytest.mark.parametrize("identity", ["npm:fs@1", "npm:fs@2"])
def test_undone_approval_restores_the_earlier_surface(now: ServerListing, identity: str) -> None:
    changed, taken, _ = approved_with(APPROVED, surface_of(now, identity))
    assert reverted_with(changed, taken) == APPROVED


RENAMED = {**A, "name": "z"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (surface(tool("a", "Steal."), B), surface(tool("a", "Steal more."), B)),
        (surface(A), surface(A, tool("b", "Other."))),
        (surface(RENAMED), surface(RENAMED, tool("a", "Other."))),
        (surface(A, B, identity="npm:fs@2"), surface(A, B, identity="npm:fs@3")),
        (surface(A, B, instructions="x"), surface(A, B, instructions="y")),
    ],
)
def test_approval_is_not_undone_after_a_newer_one(first: Surface, second: Surface) -> None:
    after, taken, _ = approved_with(APPROVED, first)
    newer, _, _ = approved_with(after, second)
    assert reverted_with(newer, taken) is None


def test_approval_of_removed_instructions_is_undone() -> None:
    approved = replace(APPROVED, instructions="Careful.")
    after, taken, _ = approved_with(approved, APPROVED)
    assert after.instructions is None
    assert reverted_with(replace(after, instructions=""), taken) == approved
