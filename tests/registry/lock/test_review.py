"""A listing compared with what is approved: what is held is as it was, its siblings are as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.lock.changes import CHANGE_CLASSES
from registry.lock.review import Policy, approved_with, default_decision, review, surface_of

LOCKED: Policy = {one: default_decision(one, locked=True) for one in CHANGE_CLASSES}


def tool(name: str, description: str = "Does.", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, **more}


def listing(*tools: dict[str, Any], **more: Any) -> ServerListing:
    return ServerListing(server=ServerName("fs"), epoch=1, tools=tools, **more)


A, B = tool("a", "First."), tool("b", "Second.")
APPROVED = surface_of(listing(A, B), "npm:fs@1")


def test_what_is_as_approved_is_the_very_same_listing() -> None:
    now = listing(A, B)
    found = review(now, APPROVED, identity="npm:fs@1", policy=LOCKED)
    assert found.listing is now
    assert found.changes == ()


def test_a_changed_description_is_held_as_approved_and_its_sibling_is_not() -> None:
    found = review(listing(tool("a", "Steal."), B), APPROVED, identity="npm:fs@1", policy=LOCKED).listing
    assert found.tools == (A, B)
    assert list(found.held["tools"]) == ["a"]
    reason = found.held["tools"]["a"]
    assert reason.startswith("held: its description changed")
    assert "typegate approve fs__a" in reason


def test_an_added_tool_is_not_there_and_its_name_is_known_as_held() -> None:
    found = review(listing(A, B, tool("c")), APPROVED, identity="npm:fs@1", policy=LOCKED).listing
    assert found.tools == (A, B)
    assert "it is new" in found.held["tools"]["c"]


def test_a_removed_tool_goes_by_default_and_stays_where_that_is_held() -> None:
    found = review(listing(A), APPROVED, identity="npm:fs@1", policy=LOCKED).listing
    assert found.tools == (A,)
    found = review(listing(A), APPROVED, identity="npm:fs@1", policy={**LOCKED, "removed": "hold"}).listing
    assert found.tools == (A, B)
    assert "no longer has it" in found.held["tools"]["b"]


def test_a_renamed_tool_that_is_held_is_listed_under_its_former_name() -> None:
    now = listing({**A, "name": "z"}, B)
    warned = review(now, APPROVED, identity="npm:fs@1", policy={**LOCKED, "renamed": "warn"})
    assert warned.listing.tools == now.tools
    found = review(now, APPROVED, identity="npm:fs@1", policy=LOCKED).listing
    assert found.tools == (A, B)
    assert set(found.held["tools"]) == {"a", "z"}


def test_another_identity_holds_all_of_a_server() -> None:
    found = review(listing(A, tool("c")), APPROVED, identity="npm:fs@2", policy=LOCKED).listing
    assert found.tools == (A, B)
    assert set(found.held["tools"]) == {"a", "b", "c"}


def test_a_change_of_several_classes_is_held_if_one_of_them_is() -> None:
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


def test_without_a_lock_file_nothing_is_held_unless_somebody_says_so() -> None:
    assert {default_decision(one, locked=False) for one in CHANGE_CLASSES} == {"warn"}


def test_what_is_approved_is_taken_by_name_and_by_class() -> None:
    now = surface_of(listing(tool("a", "Other."), B, tool("c")), "npm:fs@1")
    one, taken, left = approved_with(APPROVED, now, item="a")
    assert one.of("tools") == {"a": tool("a", "Other."), "b": B}
    assert [change.name for change in taken] == ["a"]
    assert left == ()
    other, taken, left = approved_with(APPROVED, now, classes={"added"})
    assert other.of("tools") == {"a": A, "b": B, "c": tool("c")}
    assert [change.name for change in left] == ["a"]
    whole, _, _ = approved_with(APPROVED, now)
    assert whole.of("tools") == now.of("tools")


def test_a_rename_that_rules_tell_apart_is_held_whatever_the_policy_says() -> None:
    now, policy = listing({**A, "name": "z"}, B), {**LOCKED, "renamed": "accept"}
    same = review(now, APPROVED, identity="npm:fs@1", policy=policy, tells_apart=lambda was, name: was == "b")
    other = review(
        now, APPROVED, identity="npm:fs@1", policy=policy, tells_apart=lambda was, name: (was, name) == ("a", "z")
    )
    assert same.listing.tools == now.tools
    assert other.listing.tools == (A, B)
    assert "it was renamed" in other.listing.held["tools"]["z"]


@pytest.mark.parametrize("name", ["a", "z"])
def test_a_rename_is_approved_by_either_name(name: str) -> None:
    now = surface_of(listing({**A, "name": "z"}, B), "npm:fs@1")
    assert set(approved_with(APPROVED, now, item=name)[0].of("tools")) == {"z", "b"}
