"""Decisions about changed definitions: stored, bounded, and the same in every process."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gateway.cluster.shared_state import SharedDecisions
from gateway.fleet.lock_file import DECISIONS, LockDecision, LockDecisions
from gateway.protocol import json_bytes
from registry.lock.review import Change


def change(name: str, text: str = "Steals.") -> Change:
    after = {"name": name, "description": text}
    return Change(kind="tools", name=name, classes=("text",), before={"name": name}, after=after)


def test_decisions_survive_a_restart_and_the_latest_one_in_force_counts(tmp_path: Path) -> None:
    decisions = LockDecisions(tmp_path)
    key = f"fs {change('a').key}"
    decisions.add("rejected", "fs", [change("a")], "ann")
    assert decisions.rejected()[key].by == "ann"
    approved = decisions.add("approved", "fs", [change("a")], "bob")
    assert decisions.rejected() == {}
    found = decisions.find(approved)
    assert found is not None
    decisions.note_undone(found, "ann")
    again = LockDecisions(tmp_path)
    assert again.latest == decisions.latest
    assert list(again.rejected()) == [key]
    row = again.latest[1].row()
    assert (row["undone"]["by"], row["canUndo"], row["items"][0]["name"]) == ("ann", False, "a")
    assert (tmp_path / DECISIONS).stat().st_mode & 0o077 == 0


def test_old_and_large_decisions_give_way(tmp_path: Path) -> None:
    decisions = LockDecisions(None)
    for at in range(205):
        decisions.add("rejected", "fs", [change(f"t{at}")], "ann")
    assert len(decisions.latest) == 200
    assert decisions.latest[0].changes[0].name == "t5"
    decisions.add("approved", "fs", [change("large", "x" * 600_000)], "ann")
    large = decisions.latest[-1]
    assert (large.is_whole, large.can_undo, large.changes[0].after) == (False, False, None)
    assert large.digests == (change("large", "x" * 600_000).key,)
    for at in range(6):
        decisions.add("approved", "fs", [change(f"wide{at}", "x" * 500_000)], "ann")
    assert [each.changes[0].name for each in decisions.latest] == ["wide2", "wide3", "wide4", "wide5"]


def test_damaged_file_is_ignored(tmp_path: Path) -> None:
    dated = '[{"id": "1", "at_s": "x", "by": "", "action": "approved", "server": "s", "changes": [], "digests": []}]'
    unequal = dated.replace('"x"', "1").replace('"digests": []', '"digests": ["d"]')
    for text in ("{", "[1]", '[{"changes": []}]', "null", dated, unequal):
        (tmp_path / DECISIONS).write_text(text)
        assert LockDecisions(tmp_path).latest == ()


def test_decisions_that_a_command_has_added_to_the_file_are_kept(tmp_path: Path) -> None:
    gateway, command = LockDecisions(tmp_path), LockDecisions(tmp_path)
    gateway.add("rejected", "fs", [change("a")], "ann")
    command.add("approved", "fs", [change("b")], "bob")
    gateway.add("approved", "fs", [change("c")], "ann")
    assert [each.changes[0].name for each in gateway.latest] == ["a", "b", "c"]
    assert LockDecisions(tmp_path).latest == gateway.latest
    command.add("approved", "fs", [change("d")], "bob")
    gateway.note_undone(gateway.latest[0], "ann")
    assert [each.changes[0].name for each in LockDecisions(tmp_path).latest] == ["a", "b", "c", "d"]
    # A decision that the gateway has undone stays undone, although the command has read the file before.
    command.add("approved", "fs", [change("e")], "bob")
    assert LockDecisions(tmp_path).latest[0].undone_by == "ann"
    gateway.read_added()
    assert [each.changes[0].name for each in gateway.latest] == ["a", "b", "c", "d", "e"]


def test_older_file_does_not_replace_newer_decisions(tmp_path: Path) -> None:
    gateway = LockDecisions(tmp_path)
    gateway.add("rejected", "fs", [change("a")], "ann")
    older = (tmp_path / DECISIONS).read_bytes()
    gateway.note_undone(gateway.latest[0], "bob")
    (tmp_path / DECISIONS).write_bytes(older)
    gateway.read_added()
    assert gateway.latest[0].undone_by == "bob"


def test_only_one_process_reads_and_writes_the_file(tmp_path: Path) -> None:
    other = LockDecisions(tmp_path, saves=False)
    other.add("rejected", "fs", [change("a")], "ann")
    assert not (tmp_path / DECISIONS).exists()
    LockDecisions(tmp_path).add("rejected", "fs", [change("b")], "ann")
    other.read_added()
    assert [each.changes[0].name for each in other.latest] == ["a"]


def test_decisions_are_made_without_a_usable_state_directory(tmp_path: Path) -> None:
    new = LockDecisions(tmp_path / "new")
    new.add("rejected", "fs", [change("a")], "ann")
    assert LockDecisions(tmp_path / "new").latest == new.latest
    (tmp_path / "file").write_text("")
    unsaved = LockDecisions(tmp_path / "file")
    unsaved.add("rejected", "fs", [change("a")], "ann")
    assert len(unsaved.latest) == 1


def decision(**members: Any) -> LockDecision:
    given: dict[str, Any] = {"id": "1", "at_s": 1.23456, "by": "ann", "action": "approved", "server": "fs", **members}
    return LockDecision(changes=(change("a"),), digests=("x",), **given)


@pytest.mark.parametrize(
    ("members", "can_undo"),
    [
        ({}, True),
        ({"is_whole": False}, False),
        ({"is_whole": False, "action": "rejected"}, True),
        ({"undone_s": 2.0}, False),
        ({"undone_s": 2.0, "action": "rejected"}, False),
    ],
)
def test_decision_in_force_is_undone_if_it_has_its_definitions(members: dict[str, Any], can_undo: bool) -> None:
    assert decision(**members).can_undo is can_undo


def test_row_of_a_decision() -> None:
    assert decision().row() == {
        "id": "1", "at": 1.235, "by": "ann", "action": "approved", "server": "fs",
        "items": [{"kind": "tools", "name": "a", "was": None, "classes": ["text"], "digest": "x"}],
        "undone": None, "canUndo": True,
    }  # fmt: skip
    assert decision(undone_s=2.34567, undone_by="bob").row()["undone"] == {"at": 2.346, "by": "bob"}


def test_size_of_all_decisions_is_limited() -> None:
    def entry(at: int, size: int) -> dict[str, Any]:
        """Return the stored form of a decision with this size."""
        form = asdict(decision(id=str(at), at_s=float(at)))
        return {**form, "by": "x" * (size - len(json_bytes.dumps({**form, "by": ""})))}

    half, decisions = 512 * 1024, LockDecisions(None)
    decisions.replace_all([entry(at, half) for at in (3, 1, 2, 4)])
    assert [each.id for each in decisions.latest] == ["1", "2", "3", "4"]
    decisions.replace_all([entry(1, half + 1), *(entry(at, half) for at in (2, 3, 4))])
    assert [each.id for each in decisions.latest] == ["2", "3", "4"]
    assert [each["id"] for each in decisions.entries()] == ["2", "3", "4"]


async def test_replicas_share_decisions() -> None:
    one, other = LockDecisions(None), LockDecisions(None)
    one.add("rejected", "fs", [change("a")], "ann")
    fields = SharedDecisions(one).fields()
    assert await SharedDecisions(other).apply(fields) == fields
    assert other.latest == one.latest
