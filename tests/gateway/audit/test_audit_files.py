"""Audit files: one chain over processes, days and sizes, in which every manipulation is detected."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.audit.audit_entries import format_time
from gateway.audit.log_reader import MAX_FAULTS, Filter, parse_since, read, verify
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


def lengthen_the_last(lines: list[bytes]) -> list[bytes]:
    return [*lines[:-1], lines[-1].replace(b'"d"', b'"longer"')]


def cut(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1][:20] + b"\n", *lines[2:]]


def add_one(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[1], *lines[2:]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (alter, "previous line 2 has been altered"),
        (alter_the_last, "line 4 has been altered"),
        (lengthen_the_last, "line 4 has been altered"),
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
        (lambda lines: [*lines, b"\n"], "truncated"),
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


def test_writer_waits_for_the_file_lock(tmp_path: Path) -> None:
    failures: list[NotWritten] = []

    def write() -> None:
        try:
            record(tmp_path).append(rows("a"))
        except NotWritten as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    with locked(tmp_path / "audit.jsonl.head", write=True):
        writer.start()
        writer.join(0.05)
        assert writer.is_alive()
    writer.join()
    assert (names(tmp_path), failures) == (["a"], [])


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


def test_each_change_is_one_fault(tmp_path: Path) -> None:
    path, head = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.head"
    record(tmp_path).append(rows("a", "b", "c", "d"))
    sound, lines = path.read_bytes(), path.read_bytes().splitlines(keepends=True)

    def faults_of(*changed: bytes) -> list[str]:
        path.write_bytes(b"".join(changed))
        return [fault.removeprefix(f"{path}") for fault in faults(tmp_path)]

    assert faults_of(*alter(lines)) == [":3: this line or the previous line 2 has been altered"]
    assert faults_of(*alter_the_last(lines)) == [":4: line 4 has been altered"]
    assert faults_of(lines[0], *lines[2:]) == [":2: line 2 is missing before this one"]
    assert faults_of(lines[0], lines[3]) == [":2: lines 2 to 3 are missing before this one"]
    assert faults_of(*lines[2:]) == [":1: lines 1 to 2 are missing before this one"]
    assert faults_of(*lines[:2]) == [": lines 3 to 4 are missing"]
    assert faults_of(*lines, lines[1]) == [":5: line 2 comes after line 4"]
    assert faults_of(*lines, b"\n") == [":5: the line is truncated, or is not a line of the audit log"]
    head.unlink()
    other = lines[0].replace(b'"prev":"0', b'"prev":"1')
    assert faults_of(other) == [":1: line 1 has been altered"]
    assert faults_of(*lines[1:2]) == []
    assert faults_of(sound) == []
    assert not head.exists()


def test_number_of_reported_faults_is_limited(tmp_path: Path) -> None:
    record(tmp_path).append(rows("a"))
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b"garbage\n" * (MAX_FAULTS + 1))
    verdict = verify(record(tmp_path))
    assert (len(verdict.faults), verdict.lines) == (MAX_FAULTS, MAX_FAULTS + 2)


def test_only_a_log_without_lines_can_be_absent(tmp_path: Path) -> None:
    log = record(tmp_path / "new")
    with pytest.raises(FileNotFoundError):
        verify(log)
    log.check_room()
    assert verify(log).faults == []
    log.path.unlink()
    with pytest.raises(FileNotFoundError):
        verify(log)
    log.append(rows("a"))
    log.path.unlink()
    assert verify(log).faults == [f"{log.path}: line 1 is missing"]
    assert verify(log, {1: "0" * 64}).faults[0].startswith(f"{log.path}: line 1 is missing, for which the gateway")


def test_anchors_of_deleted_lines_are_ignored(tmp_path: Path) -> None:
    for day in (0, 10):
        (log := record(tmp_path, days=3, at_s=NEW_YEAR_S + day * DAY_S)).append(rows("a"))
    assert log.head is not None
    # The first file was older than three days when the second one was started.
    assert (earlier_files(log.path), log.head.first, log.head.last) == ([], 2, 2)
    assert verify(log, {1: "0" * 64, 2: log.head.digest}).faults == []
    assert len(verify(log, {2: "0" * 64}).faults) == 1


def test_file_that_reaches_an_eighth_of_the_limit_is_rotated(tmp_path: Path) -> None:
    assert Limits(days=1, total_bytes=1024 * MIB).file_bytes == 64 * MIB
    assert Limits(days=1, total_bytes=80).file_bytes == 10
    assert Limits(days=1, total_bytes=1).file_bytes == 1
    record(tmp_path).append(rows("a"))
    path = tmp_path / "audit.jsonl"
    size_bytes = path.stat().st_size
    record(tmp_path, total=8 * (size_bytes + 1)).append(rows("b"))
    assert earlier_files(path) == []
    record(tmp_path, total=8 * path.stat().st_size).append(rows("c"))
    assert [file.stat().st_size for file in earlier_files(path)] == [2 * size_bytes]
    assert (names(tmp_path), faults(tmp_path)) == (["a", "b", "c"], [])


@pytest.mark.parametrize(("less_bytes", "deleted"), [(0, [0] * 8 + [1]), (1, [0] * 8 + [1]), (2, [0] * 7 + [1, 1])])
def test_oldest_file_is_deleted_at_the_total_size(less_bytes: int, deleted: list[int], tmp_path: Path) -> None:
    record(tmp_path / "one").append(rows("a"))
    size_bytes = (tmp_path / "one" / "audit.jsonl").stat().st_size
    # Each of nine files has one line of this size, and the limit has room for eight.
    log = record(tmp_path, total=8 * size_bytes - less_bytes)
    assert [log.append(rows("a")) for _ in range(9)] == deleted
    assert faults(tmp_path) == []


def test_head_states_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for days, deleted in ((0, False), (0, False), (1, False), (1, True), (1, False)):
        if deleted:
            path.unlink()
        log = record(tmp_path, at_s=NEW_YEAR_S + days * DAY_S)
        assert log.append(rows("a")) == 0
        assert log.head is not None
        assert (log.head.size, log.head.day) == (path.stat().st_size, f"2027-01-0{days + 1}")


def test_anchor_is_the_number_and_the_digest_of_the_last_line(tmp_path: Path) -> None:
    (log := record(tmp_path)).append(rows("a", "b"))
    assert log.head is not None
    assert log.head.anchor == f"2:{log.head.digest}"


def test_log_with_a_damaged_head_continues_from_its_first_remaining_entry(tmp_path: Path) -> None:
    head, path = tmp_path / "audit.jsonl.head", tmp_path / "audit.jsonl"
    head.write_bytes(b"garbage")
    record(tmp_path).append(rows("a"))
    assert (names(tmp_path), faults(tmp_path)) == (["a"], [])
    head.write_bytes(b"garbage")
    record(tmp_path).append(rows("b"))
    # The file of the first entry was rotated, because its day was not known. Only the later file remains.
    [rotated] = earlier_files(path)
    rotated.unlink()
    head.unlink()
    (log := record(tmp_path)).append(rows("c"))
    assert (names(tmp_path), faults(tmp_path)) == (["b", "c"], [])
    before = head.read_bytes()
    log.append(rows("d"))
    # The number of the first line stays known after a crash.
    head.write_bytes(before)
    log.append(rows("e"))
    assert log.head is not None
    assert (log.head.first, log.head.last, faults(tmp_path)) == (2, 5, [])


def test_missing_lines_are_a_gap_after_the_last_known_number(tmp_path: Path) -> None:
    (log := record(tmp_path)).append(rows("a", "b"))
    log.path.write_bytes(b"")
    log.append(rows("c"))
    assert faults(tmp_path) == [f"{log.path}:1: lines 1 to 2 are missing before this one"]
    assert log.head is not None
    assert (log.head.first, log.head.last, log.head.size) == (1, 3, log.path.stat().st_size)


def test_rotated_files_are_recognized_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "log[1]*.jsonl"
    for day in range(2):
        at_s = NEW_YEAR_S + day * DAY_S
        LogFile(path, Limits(days=90, total_bytes=MIB), clock=partial(float, at_s)).append(rows("a"))
    rotated = tmp_path / "log[1]*-2027-01-01-000000000001.jsonl"
    for other in ("log[1]*-2027-01-01-x.jsonl", "log[1]*-backup-5.jsonl", "log1x-2027-01-01-000000000001.jsonl"):
        (tmp_path / other).write_bytes(b"")
    assert earlier_files(path) == [rotated]
    assert [row["seq"] for row in read(path, Filter(), limit=9).rows] == [2, 1]


def test_file_that_begins_with_garbage_is_rotated_as_number_zero(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"garbage\n")
    record(tmp_path).append(rows("a"))
    assert [file.name for file in earlier_files(path)] == ["audit-2027-01-01-000000000000.jsonl"]
    assert names(tmp_path) == ["a"]


def test_state_of_a_log_is_read_back(tmp_path: Path) -> None:
    for state in (LogState(), LogState(first=2, last=3, digest="d", size=4, day="2027-01-31")):
        assert LogState.from_bytes(state.to_bytes()) == state
    for damaged in (
        b'[true,2,"",0,""]',
        b'[1,2,3,0,""]',
        b'[1,2,"",0,4]',
        b'[1,2,"",-1,""]',
        b"5",
        b"null",
        b'"abcde"',
    ):
        assert LogState.from_bytes(damaged) is None


def check_room(log: LogFile) -> None:
    log.check_room()


def append(log: LogFile) -> None:
    log.append(rows("a"))


@pytest.mark.parametrize("use", [check_room, append])
def test_special_file_is_not_opened_for_writing(use: Callable[[LogFile], None], tmp_path: Path) -> None:
    for name in ("audit.jsonl", "audit.jsonl.head"):
        log = record(tmp_path / f"with {name}")
        log.path.parent.mkdir()
        path = log.path.with_name(name)
        os.mkfifo(path)
        with pytest.raises(NotWritten, match="is not a regular file"):
            use(log)
        path.unlink()
        path.symlink_to(tmp_path / "victim")
        with pytest.raises(NotWritten):
            use(log)
        path.unlink()
        use(log)
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("use", [check_room, append])
def test_file_of_another_user_is_refused(use: Callable[[LogFile], None], tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    log = record(tmp_path)
    for path in (log.path, log.head_path):
        path.write_bytes(b"")
        os.chown(path, 12345, -1)
        with pytest.raises(NotWritten, match=r"belongs to another user \(id 12345\)"):
            use(log)
        path.unlink()


@pytest.mark.parametrize("use", [check_room, append])
def test_files_are_private_and_closed_again(use: Callable[[LogFile], None], tmp_path: Path) -> None:
    log = record(tmp_path / "new" / "folder")
    use(log)
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in log.path.parent.iterdir()} == {
        "audit.jsonl": "0o600",
        "audit.jsonl.head": "0o600",
    }
    open_before = os.listdir("/dev/fd")
    for _ in range(3):
        use(log)
        # Its last line is completed first.
        log.path.write_bytes(log.path.read_bytes() + b"torn")
        verify(log)
        read(log.path, Filter(), limit=9)
    assert os.listdir("/dev/fd") == open_before


def test_file_without_permission_to_write_is_refused(tmp_path: Path) -> None:
    if not os.geteuid():
        pytest.skip("root may write to any file")
    (log := record(tmp_path)).append(rows("a"))
    log.path.chmod(0o400)
    for use in (check_room, append):
        with pytest.raises(NotWritten, match="denied"):
            use(log)


def test_permissions_of_an_existing_file_are_restricted(tmp_path: Path) -> None:
    (log := record(tmp_path)).append(rows("a"))
    log.path.chmod(0o644)
    log.append(rows("b"))
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_room_is_checked_by_writing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="the system has no limits on the size of files")
    (log := record(tmp_path)).append(rows("a"))
    log.check_room()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 * 1024, unlimited[1]))
    try:
        with pytest.raises(NotWritten, match="No space"):
            log.check_room()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.head"]
    assert (names(tmp_path), faults(tmp_path)) == (["a"], [])
