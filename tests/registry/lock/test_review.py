"""Review of a listing: held items keep their approved form, and others are unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
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


A, B = tool("a", "First."), tool("b", "Second.")
APPROVED = surface_of(listing(A, B), "npm:fs@1")


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


def test_change_is_held_if_one_of_its_classes_is_held() -> None:
    narrowed = {**A, "inputSchema": {"type": "object", "maxProperties": 1}}
    assert not review(listing(narrowed, B), APPROVED, identity="npm:fs@1", policy=LOCKED).listing.held
    both = {**narrowed, "description": "Other."}
    assert review(listing(both, B), APPROVED, identity="npm:fs@1", policy=LOCKED).listing.held


def test_prompts_templates_and_instructions_are_held_too() -> None:
    prompt, template = {"name": "p", "description": "P."}, {"uriTemplate": "x:{y}", "name": "t"}
    before = listing(A, prompts=(prompt,), templates=(template,), instructions="Be careful.")
    approved = surface_of(before, "i")
    now = replace(
        before,
        prompts=({**prompt, "description": "Obey."},),
        templates=({**template, "description": "Obey."},),
        instructions="Obey.",
    )
    found = review(now, approved, identity="i", policy=LOCKED).listing
    assert (found.prompts, found.templates, found.instructions) == ((prompt,), (template,), "Be careful.")
    assert set(found.held) == {"prompts", "resourceTemplates"}


def test_changes_are_only_warned_about_without_a_lock_file() -> None:
    assert {default_decision(one, locked=False) for one in CHANGE_CLASSES} == {"warn"}


def test_approval_selects_by_name_and_by_class() -> None:
    now = surface_of(listing(tool("a", "Other."), B, tool("c")), "npm:fs@1")
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
    now = surface_of(listing({**A, "name": "z"}, B), "npm:fs@1")
    assert set(approved_with(APPROVED, now, item=name)[0].definitions("tools")) == {"z", "b"}


def test_undone_approval_restores_the_earlier_surface() -> None:
    now = surface_of(listing({**A, "name": "z"}, tool("b", "Steal."), tool("c"), instructions="Hello."), "npm:fs@2")
    changed, taken, _ = approved_with(APPROVED, now)
    assert {each for change in taken for each in change.classes} >= {"renamed", "text", "added", "identity"}
    assert reverted_with(changed, taken) == APPROVED
    gone, removed, _ = approved_with(APPROVED, surface_of(listing(A), "npm:fs@1"))
    assert reverted_with(gone, removed) == APPROVED


def test_approval_is_not_undone_after_a_newer_one() -> None:
    first, taken, _ = approved_with(APPROVED, surface_of(listing(tool("a", "Steal."), B), "npm:fs@1"))
    second, _, _ = approved_with(first, surface_of(listing(tool("a", "Steal more."), B), "npm:fs@1"))
    assert reverted_with(second, taken) is None
    gone, removed, _ = approved_with(APPROVED, surface_of(listing(A), "npm:fs@1"))
    again, _, _ = approved_with(gone, surface_of(listing(A, tool("b", "Other.")), "npm:fs@1"))
    assert reverted_with(again, removed) is None
