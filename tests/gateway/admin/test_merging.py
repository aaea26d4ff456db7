"""Rows of several processes are merged into the rows of one gateway."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.admin.activity import MAX_EVENTS, EventFeed, ServerState
from gateway.admin.call_history import CallHistory
from gateway.admin.routes import all_failures, all_hooks, all_servers, merge_server_details
from gateway.audit.audit_entries import EventEntry, Line


def test_merged_server_row_shows_the_worst_worker() -> None:
    good = {"name": "s", "state": "ready", "lastError": None, "inFlight": 1, "tools": 3}
    bad = {"name": "s", "state": "waiting", "lastError": "refused", "inFlight": 2, "tools": 0}
    for rows in ([good, bad], [bad, good]):
        assert merge_server_details(rows) == {**bad, "inFlight": 3}
    assert merge_server_details([good, good]) == {**good, "inFlight": 2}
    only = {**good, "name": "t"}
    both = all_servers([{"servers": [good]}, {"servers": [bad, only]}])
    assert [row["name"] for row in both["servers"]] == ["s", "t"]


def test_repairs_are_summed_per_tool() -> None:
    one = [{"wrapper": "b", "calls": 2, "repairs": {"x": 1, "y": 1}}]
    two = [{"wrapper": "b", "calls": 1, "repairs": {"x": 1}}, {"wrapper": "a", "calls": 1, "repairs": {"z": 1}}]
    assert all_failures([{"failures": [], "repaired": rows} for rows in (one, two)])["repaired"] == [
        {"wrapper": "a", "calls": 1, "repairs": {"z": 1}},
        {"wrapper": "b", "calls": 3, "repairs": {"x": 2, "y": 1}},
    ]


def test_hook_counts_are_summed_and_any_error_is_shown() -> None:
    def row(runs: int, breaker: str = "closed", error: str | None = None) -> dict[str, object]:
        counts = {"runs": runs, "failed": 0 if error is None else 1}
        return {
            "name": "h",
            "mode": "transform",
            "breaker": breaker,
            "lastError": error,
            "seconds": 0.5,
            "counts": counts,
        }

    documents = [{"wrappers": [], "hooks": [each]} for each in (row(2), row(3, "open", "it hangs"))]
    [merged] = all_hooks(documents)["hooks"]
    assert merged == {**row(5, "open", "it hangs"), "seconds": 1.0}
    assert all_hooks([{"hooks": []}, {"hooks": []}]) == {"hooks": []}


def test_watchers_at_another_process_learn_of_changed_states(tmp_path: Path) -> None:
    states = {"bank": ServerState({"state": "starting"}), "old": ServerState({"state": "ready"})}
    catalogs = [object()]
    feed = EventFeed(lambda: states, lambda: catalogs[-1], history=CallHistory(tmp_path / "history"))
    assert feed.events_for_peer(-1) == []
    known = feed.latest
    assert feed.events_for_peer(known) == []
    states = {"bank": ServerState({"state": "ready"})}
    catalogs.append(object())
    first, second = feed.events_for_peer(known)
    assert first == {
        "number": known + 1, "event": "state", "servers": {"bank": {"state": "ready"}}, "gone": ["old"]
    }  # fmt: skip
    assert second == {"number": known + 2, "event": "catalog"}
    assert feed.events_for_peer(second["number"]) == []


@pytest.mark.heavy
async def test_watchers_receive_no_earlier_events_of_a_late_process_and_learn_of_dropped_ones(tmp_path: Path) -> None:
    def lines(name: str, count: int) -> list[Line]:
        return [EventEntry(time_s=1.0, members={"event": name}) for _ in range(count)]

    there = EventFeed(dict, lambda: None, history=CallHistory(tmp_path / "there"))
    there.publish(lines("earlier", 3))
    late = anyio.Event()
    answered = anyio.Event()

    async def others(known: Mapping[int, int]) -> Mapping[int, list[dict[str, Any]]]:
        if not late.is_set():
            return {}
        answered.set()
        return {1: there.events_for_peer(known.get(1, -1))}

    here = EventFeed(dict, lambda: None, others, history=CallHistory(tmp_path / "here"))
    batches: list[list[dict[str, Any]]] = []

    async def watch() -> None:
        async with aclosing(here.watch(lambda: len(batches) == 4)) as watching:
            async for batch in watching:
                batches.append([{name: row[name] for name in ("event", "lines") if name in row} for row in batch])
                late.set()
                if len(batches) == 2:
                    there.publish(lines("burst", MAX_EVENTS + 5))
                if len(batches) == 3:
                    here.publish(lines("own", MAX_EVENTS + 7))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await answered.wait()
            there.publish(lines("new", 1))
    assert batches == [
        [],
        [{"event": "new"}],
        [{"event": "missed", "lines": 5}, *[{"event": "burst"}] * MAX_EVENTS],
        [{"event": "missed", "lines": 7}, *[{"event": "own"}] * MAX_EVENTS],
    ]
