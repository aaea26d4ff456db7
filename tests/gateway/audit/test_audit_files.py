"""Audit files: one chain over processes, days and sizes, in which every manipulation is detected."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.audit.log_reader import Filter, format_time, parse_since, read, verify
from gateway.audit.log_writer import Limits, LogFile, LogState, NotWritten, earlier_files, locked
from gateway.protocol import json_bytes

NEW_YEAR_S = 1_798_761_600.0  # 2027-01-01
DAY_S = 86_400.0
MIB = 2**20


def record(tmp_path: Path, *, days: int = 90, total: int = 1024 * MIB, at_s: float = NEW_YEAR_S) -> LogFile:
    return LogFile(tmp_path / "audit.jsonl", Limits(days=days, total_bytes=total), clock=lambda: at_s)


def rows(*names: str, at_s: float = NEW_YEAR_S) -> list[bytes]:
    lines = [{"time": format_time(at_s), "event": "call", "principal": "ann", "wrapper": name} for name in names]
    return [json_bytes.dumps(line)[1:-1] for line in lines]


def faults(tmp_path: Path) -> list[str]:
    return verify(record(tmp_path)).faults


def names(tmp_path: Path, **wanted: Any) -> list[str]:
    page = read(tmp_path / "audit.jsonl", Filter(**wanted), limit=1_000)
    return [row["wrapper"] for row in reversed(page.rows)]


def test_entries_are_numbered_and_chained_by_digest(tmp_path: Path) -> None:
    record(tmp_path).append(rows("a", "b"))
    # Another process, which knows nothing of the first one.
    record(tmp_path).append(rows("c"))
    verdict = verify(record(tmp_path))
    assert (verdict.lines, verdict.files, verdict.head, verdict.faults) == (3, 1, True, [])
    assert names(tmp_path) == ["a", "b", "c"]
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def alter(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b'"b"', b'"x"'), *lines[2:]]


def alter_the_last(lines: list[bytes]) -> list[bytes]:
    return [*lines[:-1], lines[-1].replace(b'"d"', b'"x"')]


def alter_the_first(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b'"a"', b'"x"'), *lines[1:]]


def cut(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1][:20] + b"\n", *lines[2:]]


def add_one(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[1], *lines[2:]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (alter, "previous line 2 has been altered"),
        (alter_the_last, "line 4 has been altered"),
        (alter_the_first, "previous line 1 has been altered"),
        (lambda lines: [lines[0], *lines[2:]], "line 2 is missing"),
        (lambda lines: lines[1:], "line 1 is missing"),
        (lambda lines: lines[:-1], "line 4 is missing"),
        (lambda lines: lines[:1], "lines 2 to 4 are missing"),
        (lambda lines: [], "lines 1 to 4 are missing"),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], "line 2 comes after line 3"),
        (cut, "truncated"),
        (lambda lines: [*lines[:-1], lines[-1][:-5]], "truncated"),
        (lambda lines: [*lines, b'{"event":"call"}\n'], "not a line of the audit log"),
        (add_one, "line 2 comes after line 2"),
    ],
)  # fmt: skip
def test_every_change_of_an_entry_is_detected(
    change: Callable[[list[bytes]], list[bytes]], words: str, tmp_path: Path
) -> None:
    record(tmp_path).append(rows("a", "b", "c", "d"))
    assert faults(tmp_path) == []
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    assert any(words in fault for fault in faults(tmp_path)), faults(tmp_path)
    # The change is still found after this or another process has written more.
    record(tmp_path).append(rows("e", "f"))
    assert faults(tmp_path), "what is written after a change does not heal it"


def test_deleted_file_is_detected_as_a_gap(tmp_path: Path) -> None:
    record(tmp_path).append(rows("a", "b"))
    (tmp_path / "audit.jsonl").unlink()
    assert any("lines 1 to 2 are missing" in fault for fault in faults(tmp_path))
    record(tmp_path).append(rows("c"))
    assert any("lines 1 to 2 are missing" in fault for fault in faults(tmp_path))


def test_chain_continues_over_days_and_old_files_are_deleted(tmp_path: Path) -> None:
    for day in range(6):
        at_s = NEW_YEAR_S + day * DAY_S
        record(tmp_path, days=3, at_s=at_s).append(rows(f"day{day}", at_s=at_s))
    kept = [path.name for path in earlier_files(tmp_path / "audit.jsonl")]
    assert kept == [f"audit-2027-01-0{day}-{day:012d}.jsonl" for day in (3, 4, 5)]
    assert names(tmp_path) == ["day2", "day3", "day4", "day5"]
    verdict = verify(record(tmp_path))
    assert (verdict.lines, verdict.files, verdict.faults) == (4, 4, []), "what was deleted by its age is no gap"
    (tmp_path / kept[1]).unlink()
    assert any("line 4 is missing" in fault for fault in faults(tmp_path))
    (tmp_path / kept[0]).unlink()
    assert any("lines 3 to 4 are missing" in fault for fault in faults(tmp_path))


def test_large_log_is_split_and_bounded_in_size(tmp_path: Path) -> None:
    deleted = sum(record(tmp_path, total=80_000).append(rows(*(["x" * 100] * 20))) for _ in range(40))
    sizes = [path.stat().st_size for path in (*earlier_files(tmp_path / "audit.jsonl"), tmp_path / "audit.jsonl")]
    assert deleted > 0
    assert len(sizes) > 4
    # A batch is not taken apart, so that a file may be longer than an eighth by one of them.
    assert sum(sizes) < 90_000
    assert faults(tmp_path) == []


def test_log_continues_after_a_process_died_while_writing(tmp_path: Path) -> None:
    record(tmp_path).append(rows("a", "b"))
    head, path = (tmp_path / "audit.jsonl.head").read_bytes(), tmp_path / "audit.jsonl"
    record(tmp_path).append(rows("c"))
    # The entry exists, but the head does not count it.
    (tmp_path / "audit.jsonl.head").write_bytes(head)
    assert faults(tmp_path) == []
    record(tmp_path).append(rows("d"))
    assert (names(tmp_path), faults(tmp_path)) == (["a", "b", "c", "d"], [])
    with path.open("ab") as file:
        file.write(b'{"seq":5,"ti')
    record(tmp_path).append(rows("e"))
    assert names(tmp_path) == ["a", "b", "c", "d", "e"]
    [fault] = faults(tmp_path)
    assert "audit.jsonl:5: the line is truncated" in fault


def test_log_without_head_file_continues_from_its_last_entry(tmp_path: Path) -> None:
    record(tmp_path).append(rows("a", "b"))
    (tmp_path / "audit.jsonl.head").unlink()
    assert verify(record(tmp_path)).head is False
    record(tmp_path).append(rows("c"))
    verdict = verify(record(tmp_path))
    assert (verdict.head, verdict.faults) == (True, [])
    (tmp_path / "audit.jsonl.head").write_bytes(b"garbage")
    record(tmp_path).append(rows("d"))
    assert (names(tmp_path), faults(tmp_path)) == (["a", "b", "c", "d"], [])


def test_symlink_or_special_file_is_not_written_to(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "audit.jsonl").symlink_to(victim)
    with pytest.raises(NotWritten):
        record(tmp_path).append(rows("a"))
    assert victim.read_text() == "mine"
    (tmp_path / "audit.jsonl").unlink()
    os.mkfifo(tmp_path / "audit.jsonl")
    with pytest.raises(NotWritten, match="regular"):
        record(tmp_path).append(rows("a"))


def test_full_disk_leaves_no_partial_entry(tmp_path: Path) -> None:
    record(tmp_path).append(rows("a"))
    before = (tmp_path / "audit.jsonl").read_bytes()
    real = os.write

    def half(descriptor: int, data: bytes) -> int:
        return real(descriptor, data[: len(data) // 2])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gateway.audit.log_writer.os.write", half)
        with pytest.raises(NotWritten, match="No space"):
            record(tmp_path).append(rows("b"))
    assert (tmp_path / "audit.jsonl").read_bytes() == before
    record(tmp_path).append(rows("c"))
    assert (names(tmp_path), faults(tmp_path)) == (["a", "c"], [])


def test_waiting_for_the_file_lock_is_bounded(tmp_path: Path) -> None:
    head = tmp_path / "audit.jsonl.head"
    with (
        locked(head, write=True),
        pytest.raises(NotWritten, match=r"for more than 0\.05 s"),
        locked(head, write=False, within_s=0.05),
    ):
        raise AssertionError("the lock is held")
    record(tmp_path).append(rows("a"))


def test_pages_go_from_latest_to_earliest(tmp_path: Path) -> None:
    for day in range(3):
        at_s = NEW_YEAR_S + day * DAY_S
        record(tmp_path, at_s=at_s).append(rows(*(f"{day}.{place}" for place in range(5)), at_s=at_s))
    path, found, before = tmp_path / "audit.jsonl", [], None
    while True:
        page = read(path, Filter(before=before), limit=4)
        found += [row["wrapper"] for row in page.rows]
        if page.next is None:
            break
        before = page.next
    assert found == [f"{day}.{place}" for day in (2, 1, 0) for place in (4, 3, 2, 1, 0)]
    assert names(tmp_path, since=format_time(NEW_YEAR_S + 2 * DAY_S)) == [f"2.{place}" for place in range(5)]
    assert names(tmp_path, since=format_time(NEW_YEAR_S), until=format_time(NEW_YEAR_S + DAY_S)) == [
        f"0.{place}" for place in range(5)
    ]
    assert names(tmp_path, tool="*.3") == ["0.3", "1.3", "2.3"]
    assert names(tmp_path, principal="bob") == []


def test_page_reads_a_bounded_amount_and_returns_a_cursor(tmp_path: Path) -> None:
    record(tmp_path).append(rows("wanted", *["other"] * 500))
    path, before, pages = tmp_path / "audit.jsonl", None, 0
    while True:
        page = read(path, Filter(tool="wanted", before=before), limit=10, most_bytes=20_000)
        pages, before = pages + 1, page.next
        if page.rows or page.next is None:
            break
    assert [row["wrapper"] for row in page.rows] == ["wanted"]
    assert 2 < pages < 50


def test_relative_times_are_parsed() -> None:
    from datetime import UTC, datetime

    now = datetime(2027, 1, 31, 12, tzinfo=UTC)
    assert parse_since("2h", now) == "2027-01-31T10:00:00.000Z"
    assert parse_since("7d", now) == "2027-01-24T12:00:00.000Z"
    assert parse_since("2027-01-31T08:00:00+00:00") == "2027-01-31T08:00:00.000Z"
    for text in ("", "2", "h", "yesterday", "2 h", "-2h", "0h", "2027-13-01", "9999999d"):
        with pytest.raises(ValueError, match="is not a time"):
            parse_since(text)


def test_head_file_has_a_fixed_size(tmp_path: Path) -> None:
    longest = LogState(first=10**15, last=10**15, digest="f" * 64, size=10**15, day="2027-01-31")
    assert len(longest.to_bytes()) == len(LogState().to_bytes()) == 256
    assert LogState.from_bytes(longest.to_bytes()) == longest
    for damaged in (b"", b"[]", b"[1,2,3,4,5]", b'[1,-2,"",0,""]', b"\xff" * 256):
        assert LogState.from_bytes(damaged) is None


def test_entries_are_selected_by_outcome_server_session_and_client(tmp_path: Path) -> None:
    call = {"event": "call", "server": "up", "session": "5e55", "client": "a-host"}
    entries: list[dict[str, Any]] = [
        {**call, "wrapper": "fine", "outcome": {"transport": "ok", "jsonrpc": "ok", "tool": "ok"}},
        {**call, "wrapper": "wrong", "outcome": {"transport": "ok", "jsonrpc": "ok", "tool": "error"}},
        {**call, "wrapper": "lost", "outcome": {"transport": "timeout", "jsonrpc": None, "tool": None}},
        {**call, "wrapper": "ruled", "reason": "policy", "outcome": {"jsonrpc": -32602}},
        {**call, "wrapper": "hooked", "hook": "masks", "outcome": {}},
        {**call, "wrapper": "answered", "outcome": {"transport": None, "jsonrpc": None, "tool": None}},
        {"event": "request", "wrapper": "read", "server": "other", "outcome": {"jsonrpc": "ok"}, "client": "b-host"},
        {"event": "refused", "wrapper": "hidden", "session": "0000"},
        {"event": "changed", "wrapper": "denied", "status": 409},
        {"event": "started", "wrapper": "started"},
    ]
    lines = [json_bytes.dumps({"time": format_time(NEW_YEAR_S), **each})[1:-1] for each in entries]
    record(tmp_path).append(lines)
    assert names(tmp_path, outcome="ok") == ["fine", "answered", "read"]
    assert names(tmp_path, outcome="failed") == ["wrong", "lost", "denied"]
    assert names(tmp_path, outcome="refused") == ["ruled", "hooked", "hidden"]
    assert names(tmp_path, server="other") == ["read"]
    assert names(tmp_path, session="0000") == ["hidden"]
    assert names(tmp_path, client="b-host") == ["read"]
    assert names(tmp_path, client="a-host", outcome="refused") == ["ruled", "hooked"]
