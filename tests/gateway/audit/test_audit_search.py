"""The audit log is searched from its latest entry, across files and blocks, up to exact limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gateway.audit import log_reader
from gateway.audit.audit_entries import format_time
from gateway.audit.log_reader import Filter, Page, outcome_of, parse_since, read
from gateway.audit.log_writer import Limits, LogFile
from gateway.protocol import json_bytes

NEW_YEAR_S = 1_798_761_600.0  # 2027-01-01
ROW = {
    "seq": 7, "time": "2027-01-01T00:00:00.000Z", "event": "call", "principal": "ann", "wrapper": "up__echo",
    "server": "up", "tool": "echo", "session": "5e55", "client": "a-host",
    "outcome": {"transport": "ok", "jsonrpc": "ok", "tool": "ok"}, "arguments": {"to": ["Straße", 5]},
}  # fmt: skip


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"before": 8},
        {"principal": "ann"},
        {"since": ROW["time"]},
        {"until": "2027-01-01T00:00:00.001Z"},
        {"since": "2026", "until": "2028"},
        {"event": "call"},
        {"outcome": "ok"},
        {"server": "up"},
        {"session": "5e55"},
        {"client": "a-host"},
        {"text": "STRASSE"},
        {"text": "Host"},
        {"tool": "up__*"},
        {"tool": "ech?"},
    ],
    ids=repr,
)
def test_entry_matches_a_filter(wanted: dict[str, Any]) -> None:
    assert Filter(**wanted).matches(ROW) is True
    everything = Filter(
        before=8, principal="ann", event="call", outcome="ok", server="up", client="a-host", tool="echo"
    )
    assert everything.matches(ROW)


@pytest.mark.parametrize(
    "wanted",
    [
        {"before": 7},
        {"before": 6},
        {"principal": "bob"},
        {"since": "2027-01-01T00:00:00.001Z"},
        {"until": ROW["time"]},
        {"since": "2026", "until": "2026-12-31"},
        {"event": "request"},
        {"outcome": "failed"},
        {"server": "other"},
        {"session": "5e5"},
        {"client": "a-Host"},
        {"text": "nowhere"},
        {"text": "wrapper"},
        {"tool": "UP__*"},
        {"tool": "other"},
    ],
    ids=repr,
)
def test_entry_does_not_match_another_filter(wanted: dict[str, Any]) -> None:
    assert Filter(**wanted).matches(ROW) is False


def test_requested_name_is_found_where_there_is_no_tool() -> None:
    row = {"seq": 1, "event": "request", "name": "p"}
    assert Filter(tool="p").matches(row)
    assert not Filter(tool="q").matches(row)
    assert not Filter(tool="*").matches({"seq": 1, "event": "started"})
    assert not Filter(since="2027").matches(row)
    assert not Filter(principal="ann").matches(row)


@pytest.mark.parametrize(
    ("outcome", "row"),
    [
        ("refused", {"event": "refused"}),
        ("refused", {"event": "credentials_refused"}),
        ("ok", {"event": "changed"}),
        ("ok", {"event": "changed", "status": None}),
        ("ok", {"event": "changed", "status": 399}),
        ("failed", {"event": "changed", "status": 400}),
        (None, {"event": "started"}),
        (None, {"event": "flow", "reason": "policy"}),
        *(("refused", {"event": event, "reason": "policy"}) for event in ("call", "request")),
        *(("refused", {"event": "call", "reason": reason}) for reason in ("asked", "denied", "expired", "unknown")),
        ("refused", {"event": "call", "hook": "h", "outcome": {"tool": "ok"}}),
        ("ok", {"event": "request", "outcome": {"jsonrpc": "ok", "tool": "error"}}),
        ("failed", {"event": "request", "outcome": {"jsonrpc": -1}}),
        ("failed", {"event": "request", "outcome": "ok"}),
        ("ok", {"event": "call", "outcome": {"tool": "input_required"}}),
        ("failed", {"event": "call", "outcome": {"transport": "ok", "jsonrpc": "ok", "tool": "error"}}),
        ("ok", {"event": "call", "outcome": {}}),
        ("ok", {"event": "call", "outcome": None}),
        ("failed", {"event": "call", "reason": "arguments", "outcome": {}}),
        ("failed", {"event": "call", "outcome": {"transport": "timeout"}}),
        ("failed", {"event": "call", "outcome": {"jsonrpc": -1}}),
    ],
)
def test_outcome_is_derived_from_an_entry(outcome: str | None, row: dict[str, Any]) -> None:
    assert outcome_of(row) == outcome


def log_of(tmp_path: Path, *at_s: float) -> Path:
    """Write one entry for each time, and return the path of the log."""
    log = LogFile(tmp_path / "audit.jsonl", Limits(days=90, total_bytes=2**30), clock=lambda: NEW_YEAR_S)
    for number, second in enumerate(at_s, 1):
        row = {"time": format_time(second), "event": "call", "wrapper": f"w{number}"}
        log.append([json_bytes.dumps(row)[1:-1]])
    return log.path


def numbers(page: Page) -> list[int]:
    return [row["seq"] for row in page.rows]


def test_page_ends_at_its_limit_if_another_entry_matches(tmp_path: Path) -> None:
    path = log_of(tmp_path, *[NEW_YEAR_S] * 4)
    for limit, found, following in ((1, [4], 4), (3, [4, 3, 2], 2), (4, [4, 3, 2, 1], None), (5, [4, 3, 2, 1], None)):
        page = read(path, Filter(), limit=limit)
        assert (numbers(page), page.next) == (found, following)
    # No entry before these matches.
    page = read(path, Filter(tool="w[34]"), limit=2)
    assert (numbers(page), page.next) == ([4, 3], None)
    page = read(path, Filter(before=4), limit=1)
    assert (numbers(page), page.next) == ([3], 3)


def test_search_stops_at_its_limit_of_bytes(tmp_path: Path) -> None:
    path = log_of(tmp_path, *[NEW_YEAR_S] * 4)
    size_bytes = len(path.read_bytes().splitlines()[0])
    for most_bytes, found, following in (
        (0, [4], 4),
        (size_bytes - 1, [4], 4),
        (size_bytes, [4, 3], 3),
        (4 * size_bytes, [4, 3, 2, 1], None),
        (None, [4, 3, 2, 1], None),
    ):
        page = read(path, Filter(), limit=9, most_bytes=most_bytes)
        assert (numbers(page), page.next) == (found, following)
    # Entries of earlier pages do not count.
    page = read(path, Filter(before=3), limit=9, most_bytes=0)
    assert (numbers(page), page.next) == ([2], 2)


def test_entries_up_to_a_minute_out_of_order_are_found(tmp_path: Path) -> None:
    since = format_time(NEW_YEAR_S)
    for number, disorder_s in enumerate((60.0, 60.001)):
        (folder := tmp_path / str(number)).mkdir()
        path = log_of(folder, NEW_YEAR_S, NEW_YEAR_S - disorder_s, NEW_YEAR_S)
        page = read(path, Filter(since=since), limit=9)
        assert (numbers(page), page.next) == ([3, 1] if disorder_s == 60.0 else [3], None)


def test_lines_that_are_not_entries_are_skipped(tmp_path: Path) -> None:
    path = log_of(tmp_path, *[NEW_YEAR_S] * 2)
    lines = path.read_bytes().splitlines()
    odd = [
        b"",
        b"torn",
        b"[]",
        b'{"seq":9}',
        b'{"seq":"9","prev":""}',
        b'{"seq":9,"prev":1}',
        b'{"seq":true,"prev":""}',
    ]
    path.write_bytes(b"\n".join([odd[0], lines[0], *odd, lines[1], *odd]))
    assert numbers(read(path, Filter(), limit=9)) == [2, 1]
    assert numbers(read(path, Filter(before=2), limit=9)) == [1]


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("more_bytes", [-1, 0, 1, 2])
def test_lines_are_found_across_blocks(blocks: int, more_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    size_bytes = blocks * log_reader._BLOCK_BYTES + more_bytes
    first, last = b'{"seq":1,"prev":""}\n', b'{"seq":3,"prev":""}\n'
    middle = b'{"seq":2,"prev":"%b"}\n'
    middle %= b"x" * (size_bytes - len(first + last + middle % b""))
    path.write_bytes(first + middle + last)
    assert path.stat().st_size == size_bytes
    assert numbers(read(path, Filter(), limit=9)) == [3, 2, 1]


def test_file_renamed_during_a_search_is_read_once(tmp_path: Path) -> None:
    path = log_of(tmp_path, NEW_YEAR_S, NEW_YEAR_S)
    os.link(path, tmp_path / "audit-2027-01-01-000000000001.jsonl")
    assert numbers(read(path, Filter(), limit=9)) == [2, 1]


def test_log_that_does_not_exist_has_no_entries(tmp_path: Path) -> None:
    assert read(tmp_path / "audit.jsonl", Filter(), limit=9) == Page(rows=[], next=None)


def test_relative_time_counts_from_now() -> None:
    times = [parse_since(text) for text in ("1w", "1d", "1h", "1m")]
    assert times == sorted(times)
    assert times[0] > "2026"
