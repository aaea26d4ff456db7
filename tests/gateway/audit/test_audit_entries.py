"""Audit entries state the outcome of a call exactly, and one source can write only some of them per minute."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.audit.audit_entries import (
    ANSWERED,
    UNREACHED,
    CallEntry,
    EntryLimit,
    EventEntry,
    Line,
    Outcome,
    session_mark,
)
from gateway.protocol.gateway_errors import RpcError

CALLER = ("ann", "default", "2026-07-28", "127.0.0.1:9", None, None)
TARGET = ("up__echo", "up", "echo")
AT_S = 1_800_000_000.9985


def row_of(line: Line) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(b"{%b}" % line.text())
    assert line.row() == row
    return row


def call_row(**changed: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "time_s": AT_S,
        "caller": CALLER,
        "target": TARGET,
        "via": "wrapper",
        "outcome": ANSWERED,
        "took_s": 0.0,
    }
    return row_of(CallEntry(**usual | changed))


@pytest.mark.parametrize(
    ("result", "tool"),
    [
        ({}, "ok"),
        ({"isError": False, "resultType": "complete"}, "ok"),
        ({"isError": True}, "error"),
        ({"isError": True, "resultType": "input_required"}, "error"),
        ({"isError": "true"}, "ok"),
        ({"resultType": "input_required"}, "input_required"),
        ({"resultType": "x" * 41}, "x" * 40),
        ({"resultType": 7}, "7"),
    ],
)
def test_outcome_names_the_kind_of_result(result: dict[str, Any], tool: str) -> None:
    for before in (UNREACHED, Outcome(rule="r"), Outcome(changed_by="h")):
        assert before.answered(result) == before._replace(transport="ok", jsonrpc="ok", tool=tool)
    assert Outcome.from_tool_result(result) == Outcome(tool=tool)


@pytest.mark.parametrize("result", [None, [], "text"])
def test_result_that_is_not_an_object_does_not_reach_the_tool_level(result: Any) -> None:
    assert Outcome(rule="r").answered(result) == Outcome("ok", "ok", rule="r")


def test_outcome_combines_failure_refusal_and_hooks() -> None:
    assert Outcome(rule="r").failed("timeout") == Outcome("timeout", rule="r")
    assert Outcome(jsonrpc=-1).failed("lost") == Outcome("lost", -1)
    assert Outcome(jsonrpc=-1).failed("ok", -2) == Outcome("ok", -2)
    assert Outcome(jsonrpc=-1).failed("ok", 0) == Outcome("ok", 0)
    assert UNREACHED.refused("r") == Outcome(rule="r", reason="policy")
    assert Outcome(rule="r").refused(None) == Outcome(reason="policy")
    assert Outcome(rule="r").unsent("arguments") == Outcome(rule="r", reason="arguments")
    assert Outcome(hook="a").hooked(None, []) == Outcome(hook="a")
    assert UNREACHED.hooked("a", []) == Outcome(hook="a")
    assert UNREACHED.hooked(None, ["b", "c", "b"]) == Outcome(changed_by="b, c")
    assert UNREACHED.hooked("a", ["b"]) == Outcome(hook="a", changed_by="b")
    assert UNREACHED.not_checked(["/a", "/b", "/a"]) == Outcome(unchecked="/a, /b")
    assert UNREACHED.not_checked(["x" * 201]) == Outcome(unchecked="x" * 200)


@pytest.mark.parametrize(
    ("before", "error", "after"),
    [
        (UNREACHED, RpcError(-32602, "no"), Outcome(jsonrpc=-32602)),
        (Outcome(rule="r"), RpcError(-32602, "no"), Outcome(jsonrpc=-32602, rule="r")),
        (Outcome("ok"), ValueError("defect"), Outcome("ok")),
        (UNREACHED, ValueError("defect"), UNREACHED),
        (UNREACHED, asyncio.CancelledError(), Outcome("cancelled")),
        (Outcome("timeout"), asyncio.CancelledError(), Outcome("timeout")),
    ],
)
def test_outcome_states_what_ended_the_call(before: Outcome, error: BaseException, after: Outcome) -> None:
    assert before.ended(error) == after


def test_call_entry_has_every_member_in_order() -> None:
    row = call_row(
        caller=("ann", "work", "2025-11-25", "10.0.0.1:9", "a session id", "a host"),
        outcome=Outcome("ok", -32602, None, "r", "policy", "h", "/a", "c"),
        took_s=12.345674,
        arguments=b'{"a":1}',
        result=b"[]",
        trace="0af7651916cd43dd8448eb211c80319c",
    )
    assert list(row.items()) == [
        ("time", "2027-01-15T08:00:00.998Z"),
        ("event", "call"),
        ("principal", "ann"),
        ("profile", "work"),
        ("era", "2025-11-25"),
        ("transport", "http"),
        ("peer", "10.0.0.1:9"),
        ("session", session_mark("a session id")),
        ("client", "a host"),
        ("wrapper", "up__echo"),
        ("server", "up"),
        ("tool", "echo"),
        ("via", "wrapper"),
        ("outcome", {"transport": "ok", "jsonrpc": -32602, "tool": None}),
        ("rule", "r"),
        ("reason", "policy"),
        ("hook", "h"),
        ("unchecked", "/a"),
        ("changedBy", "c"),
        ("ms", 12345.67),
        ("arguments", {"a": 1}),
        ("result", []),
        ("trace", "0af7651916cd43dd8448eb211c80319c"),
    ]


def test_call_entry_omits_what_does_not_apply() -> None:
    row = call_row(caller=(*CALLER[:3], "stdio", None, None), target=("get_server_details",))
    assert (row["name"], row["transport"], row["peer"], row["session"], row["client"]) == (
        "get_server_details", "stdio", "stdio", None, None,
    )  # fmt: skip
    assert not row.keys() & {"wrapper", "server", "tool", "rule", "reason", "hook", "unchecked", "changedBy"}
    assert not row.keys() & {"arguments", "result", "trace"}


@pytest.mark.parametrize(
    ("took_s", "ms"), [(0.0, 0.0), (0.000_004, 0.0), (0.000_005, 0.01), (0.000_994, 0.99), (0.000_996, 1.0), (1, 1000)]
)
def test_duration_is_rounded_to_hundredths_of_a_millisecond(took_s: float, ms: float) -> None:
    assert call_row(took_s=took_s)["ms"] == ms


def test_session_id_is_recorded_only_as_its_hash() -> None:
    assert len(session_mark("a session id")) == 16
    assert session_mark("a session id") != session_mark("another")
    known = EventEntry(AT_S, {"event": "request", "session": "a session id", "ms": 1})
    assert list(row_of(known).items()) == [
        ("time", "2027-01-15T08:00:00.998Z"),
        ("event", "request"),
        ("session", session_mark("a session id")),
        ("ms", 1),
    ]
    assert row_of(EventEntry(AT_S, {"event": "request", "session": None}))["session"] is None
    assert "session" not in row_of(EventEntry(AT_S, {"event": "started"}))


@dataclass
class Sources:
    """A limit with a clock that the test sets."""

    per_minute: int = 2
    now_s: float = 1_000.0
    limit: EntryLimit = field(init=False)

    def __post_init__(self) -> None:
        self.limit = EntryLimit(lambda: self.now_s, per_minute=self.per_minute)

    def admit(self, source: str = "a", *, at_s: float | None = None) -> int | None:
        self.now_s = self.now_s if at_s is None else at_s
        return self.limit.admit(source)


def test_entries_over_the_limit_are_counted_until_the_next_minute() -> None:
    sources = Sources()
    assert [sources.admit() for _ in range(4)] == [0, 0, None, None]
    assert sources.admit("b") == 0
    assert sources.admit(at_s=1_059.9) is None
    assert [sources.admit(at_s=1_060.0), sources.admit(), sources.admit()] == [3, 0, None]
    # The new minute began at 1,060 s.
    assert [sources.admit(at_s=1_119.9), sources.admit(at_s=1_120.0)] == [None, 2]


def test_clock_that_goes_back_begins_another_minute() -> None:
    sources = Sources(per_minute=1)
    assert [sources.admit(), sources.admit()] == [0, None]
    assert [sources.admit(at_s=999.0), sources.admit()] == [1, None]


def test_source_without_recent_entries_is_dropped_first() -> None:
    sources = Sources(per_minute=1)
    for number in range(1_024):
        assert sources.admit(str(number)) == 0
    assert sources.admit("0") is None
    assert sources.admit("one more") == 0
    assert sources.admit("0") is None
    assert sources.admit("2") is None
    assert sources.admit("1") == 0
