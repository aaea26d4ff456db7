"""Decisions about changed definitions: stored, bounded, and the same in every process."""

from __future__ import annotations

from pathlib import Path

from gateway.cluster.shared_parts import SharedDecisions
from gateway.fleet.lock_file import DECISIONS, LockDecisions
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
    for text in ("{", "[1]", '[{"changes": []}]', "null", dated):
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


async def test_replicas_share_decisions() -> None:
    one, other = LockDecisions(None), LockDecisions(None)
    one.add("rejected", "fs", [change("a")], "ann")
    fields = SharedDecisions(one).fields()
    assert await SharedDecisions(other).apply(fields) == fields
    assert other.latest == one.latest
