"""Search the audit log, latest entries first, and verify its hash chain."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, Final

from gateway.audit.audit_entries import format_time
from gateway.audit.log_writer import (
    GENESIS,
    LogFile,
    LogState,
    digest_of,
    earlier_files,
    first_number,
    locked,
    parsed,
    read_head,
)

# The maximum number of bytes that one search reads. It keeps searches short. When a search reaches this limit, it
# returns the entries found so far, and the number from which the client can continue.
MAX_SCANNED_BYTES: Final = 64 * 2**20
_BLOCK_BYTES: Final = 256 * 1024
# Entries can be out of order by this time, because each process queues its entries and clocks are adjusted.
_DISORDER_S: Final = 60.0
_NUMBER: Final = re.compile(rb'\{"seq":(\d{1,18}),')
_AGO: Final = re.compile(r"([1-9]\d{0,5})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


# RFC 9110, section 15.5: the first status of an error.
_FIRST_ERROR_STATUS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter for entries. None and the empty text match every entry.

    Attributes:
        tool: A pattern for the wrapper, the tool, or another requested name.
        event: The kind of entry, such as `call`.
        text: A text that any member contains, regardless of case.
        outcome: `ok`, `failed` or `refused`.
        server, session, client: The server of the tool, the hash of the session id, and the name of the host.
        since: Only entries of this time or later, formatted as in entries.
        until: Only entries before this time, formatted as in entries.
        before: Only entries with a smaller sequence number.
    """

    principal: str = ""
    tool: str = ""
    event: str = ""
    text: str = ""
    outcome: str = ""
    server: str = ""
    session: str = ""
    client: str = ""
    since: str = ""
    until: str = ""
    before: int | None = None

    def matches(self, row: dict[str, Any]) -> bool:
        """Return whether an entry matches."""
        if self.before is not None and row["seq"] >= self.before:
            return False
        if self.principal and row.get("principal") != self.principal:
            return False
        at = str(row.get("time", ""))
        if at < self.since or (self.until and at >= self.until):
            return False
        if self.event and row.get("event") != self.event:
            return False
        if self.outcome and outcome_of(row) != self.outcome:
            return False
        exact = (("server", self.server), ("session", self.session), ("client", self.client))
        if any(wanted and row.get(member) != wanted for member, wanted in exact):
            return False
        if self.text and not _contains(row, self.text.casefold()):
            return False
        names = (row.get("wrapper"), row.get("tool"), row.get("name"))
        return not self.tool or any(isinstance(name, str) and fnmatchcase(name, self.tool) for name in names)


OUTCOMES: Final = ("ok", "failed", "refused")
"""The outcomes by which entries can be selected."""
REFUSALS: Final = frozenset({"policy", "asked", "denied", "expired", "unknown"})
"""The values of `reason` in entries of calls that a rule or a person has stopped."""
_REFUSED_EVENTS: Final = frozenset({"refused", "credentials_refused"})


def outcome_of(row: dict[str, Any]) -> str | None:
    """Return the outcome of an entry; None if the entry is not about a call, a request or an administrator's change."""
    event = row.get("event")
    if event in _REFUSED_EVENTS:
        return "refused"
    if event == "changed":
        return "failed" if int(row.get("status") or 0) >= _FIRST_ERROR_STATUS else "ok"
    if event not in ("call", "request"):
        return None
    if row.get("reason") in REFUSALS or row.get("hook") is not None:
        return "refused"
    found = row.get("outcome")
    outcome = found if isinstance(found, dict) else {}
    if event == "request":
        return "ok" if outcome.get("jsonrpc") == "ok" else "failed"
    if outcome.get("tool") is not None:
        return "failed" if outcome["tool"] == "error" else "ok"
    # If there is neither an outcome nor a reason, a hook has answered in place of the server.
    is_empty = outcome.get("transport") is None and outcome.get("jsonrpc") is None and row.get("reason") is None
    return "ok" if is_empty else "failed"


def _contains(value: Any, folded: str) -> bool:
    """Return whether an entry or a value in it contains a case-folded text."""
    if isinstance(value, dict):
        return any(_contains(item, folded) for item in value.values())
    if isinstance(value, list):
        return any(_contains(item, folded) for item in value)
    return isinstance(value, str) and folded in value.casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of matching entries.

    Attributes:
        rows: The entries, latest first.
        next: The value of `Filter.before` for the next page; None for the last page.
    """

    rows: list[dict[str, Any]]
    next: int | None


def read(path: Path, selection: Filter, *, limit: int, most_bytes: int | None = MAX_SCANNED_BYTES) -> Page:
    """Return a page of the audit log; an empty page if the log does not exist.

    Args:
        path: The current file of the log.
        selection: The entries to return.
        limit: The maximum number of entries.
        most_bytes: The maximum amount of text to read; None to read the whole log if necessary.

    Raises:
        OSError: The log cannot be read.
    """
    rows: list[dict[str, Any]] = []
    bytes_left, number = most_bytes, None
    stop = format_time(datetime.fromisoformat(selection.since).timestamp() - _DISORDER_S) if selection.since else ""
    for line in _backwards(path, selection.before):
        row = parsed(line)
        if row is not None:
            if str(row.get("time", "")) < stop:
                return Page(rows=rows, next=None)
            if len(rows) == limit and selection.matches(row):
                return Page(rows=rows, next=rows[-1]["seq"] if rows else None)
            number = row["seq"]
            if selection.matches(row):
                rows.append(row)
        if bytes_left is not None and (bytes_left := bytes_left - len(line)) < 0:
            return Page(rows=rows, next=number)
    return Page(rows=rows, next=None)


def parse_since(text: str, now: datetime | None = None) -> str:
    """Return the time that `2h`, `30m`, `7d` or a date refers to, as formatted in entries.

    Raises:
        ValueError: The text has none of these forms.
    """
    match = _AGO.fullmatch(text)
    if match is not None:
        moment = (now or datetime.now(UTC)) - timedelta(**{_UNITS[match[2]]: int(match[1])})
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a time; expected 2h, 7d, 2027-01-31 or 2027-01-31T08:00") from None
        # The time is local, unless the text states a time zone.
        moment = moment.astimezone(UTC)
    return format_time(moment.timestamp())


def _backwards(path: Path, before: int | None) -> Iterator[bytes]:
    """Yield the lines with numbers below `before`, latest first. A file renamed during the search is read only once."""
    seen: set[tuple[int, int]] = set()
    for line in _lines_of(path, seen):
        if before is None or not _is_beyond(line, before):
            yield line
    for earlier in reversed(earlier_files(path)):
        if before is not None and first_number(earlier) >= before:
            continue
        for line in _lines_of(earlier, seen):
            if before is None or not _is_beyond(line, before):
                yield line


def _is_beyond(line: bytes, before: int) -> bool:
    # Match only the number instead of parsing the line, because a search for a later page skips all previous pages.
    match = _NUMBER.match(line)
    return match is not None and int(match[1]) >= before


def _lines_of(path: Path, seen: set[tuple[int, int]]) -> Iterator[bytes]:
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; a deleted file is skipped
    except FileNotFoundError:
        return
    with file:
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        end, line_start = status.st_size, b""
        while end > 0:
            begin = max(0, end - _BLOCK_BYTES)
            file.seek(begin)
            line_start, *lines = (file.read(end - begin) + line_start).split(b"\n")
            end = begin
            yield from reversed(lines)
        if line_start:
            yield line_start


# The maximum number of reported faults. They fit on one screen, and the first faults show what was changed.
MAX_FAULTS: Final = 20


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The result of a verification.

    Attributes:
        lines: The number of lines read.
        files: The number of files read.
        faults: Where the log has been changed, as `FILE:LINE: description`; at most `MAX_FAULTS`.
        head: True if the head file states where the log ends, so that lines missing at the end are reported.
    """

    lines: int = 0
    files: int = 0
    faults: list[str] = field(default_factory=list)
    head: bool = False

    def add(self, fault: str) -> None:
        """Add a fault, unless there are already `MAX_FAULTS`."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(fault)


def verify(log: LogFile, anchors: Mapping[int, str] | None = None) -> Verdict:
    """Verify a whole audit log, even while a gateway writes to it.

    Args:
        anchors: Digests by line number, which the gateway has written to its process log. Anchors of lines in deleted
            files are ignored.

    Raises:
        FileNotFoundError: The log does not exist.
        OSError: The log cannot be read.
    """
    with ExitStack() as opened:
        head, files = _snapshot(log, opened)
        if not files and (head is None or head.last == 0):
            raise FileNotFoundError(log.path)
        verdict = Verdict(files=len(files), head=head is not None)
        chain = _Chain(verdict, head, anchors or {})
        for path, file, size in files:
            for number, line in enumerate(_lines(file, size), 1):
                verdict.lines += 1
                chain.check(line, f"{path}:{number}")
        chain.finish(log.path)
    return verdict


class _Chain:
    """Checks the lines one after the other, and adds faults to the verdict."""

    def __init__(self, verdict: Verdict, head: LogState | None, anchors: Mapping[int, str]) -> None:
        self._verdict = verdict
        self._anchors = anchors
        self._head = head
        self._last: int | None = None
        self._digest = GENESIS
        self._reaches_head = head is None

    def check(self, line: bytes, place: str) -> None:
        add = self._verdict.add
        row = parsed(line.removesuffix(b"\n")) if line.endswith(b"\n") else None
        if row is None:
            add(f"{place}: the line is truncated, or is not a line of the audit log")
            return
        number, head = row["seq"], self._head
        if self._last is None:
            first = head.first if head is not None else number
            if number > first:
                add(f"{place}: {_lines_missing(first, number - 1)} before this one")
            elif number == 1 and row["prev"] != GENESIS:
                add(f"{place}: line 1 has been altered")
        elif number > self._last + 1:
            add(f"{place}: {_lines_missing(self._last + 1, number - 1)} before this one")
        elif number <= self._last:
            add(f"{place}: line {number} comes after line {self._last}")
        elif row["prev"] != self._digest:
            add(f"{place}: this line or the previous line {self._last} has been altered")
        self._last, self._digest = number, digest_of(line.removesuffix(b"\n"))
        if self._anchors.get(number, self._digest) != self._digest:
            add(f"{place}: line {number} or an earlier line does not match the anchor logged by the gateway")
        if head is not None and number == head.last:
            self._reaches_head = True
            if self._digest != head.digest:
                add(f"{place}: line {number} has been altered")

    def finish(self, path: Path) -> None:
        last = self._last or 0
        for number in sorted(self._anchors):
            if number > last:
                self._verdict.add(f"{path}: line {number} is missing, for which the gateway has logged an anchor")
        if not self._reaches_head and self._head is not None and (self._last or 0) < self._head.last:
            self._verdict.add(f"{path}: {_lines_missing((self._last or self._head.first - 1) + 1, self._head.last)}")


def _lines_missing(first: int, last: int) -> str:
    return f"line {first} is missing" if first == last else f"lines {first} to {last} are missing"


def _snapshot(log: LogFile, opened: ExitStack) -> tuple[LogState | None, list[tuple[Path, BinaryIO, int]]]:
    """Return the state in the head file, and all files of the log with their current sizes.

    The files are opened while the head file is locked, so that no process renames or deletes them first.
    """
    try:
        with locked(log.head_path, write=False) as descriptor:
            return read_head(descriptor), _open(log.path, opened)
    except FileNotFoundError:
        return None, _open(log.path, opened)


def _open(path: Path, opened: ExitStack) -> list[tuple[Path, BinaryIO, int]]:
    files: list[tuple[Path, BinaryIO, int]] = []
    for part in (*earlier_files(path), path):
        if part.exists():
            file = opened.enter_context(part.open("rb"))
            files.append((part, file, os.fstat(file.fileno()).st_size))
    return files


def _lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    bytes_left = size
    while bytes_left > 0:
        line = file.readline(bytes_left)
        if not line:
            return
        bytes_left -= len(line)
        yield line
