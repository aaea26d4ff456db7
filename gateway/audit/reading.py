"""Finds lines of a record, the latest first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from gateway.audit.chain import parsed
from gateway.audit.writing import earlier_files, first_number

# As much as a disk reads in a moment: whoever asks for what is hardly ever there gets a page, and goes on from it.
MAX_SCANNED_BYTES: Final = 64 * 2**20
_BLOCK_BYTES: Final = 256 * 1024
# Lines of several processes are out of order by the moment that they wait to be written, and clocks are set.
_DISORDER_S: Final = 60.0
_NUMBER: Final = re.compile(rb'\{"seq":(\d{1,18}),')
_AGO: Final = re.compile(r"([1-9]\d{0,5})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which lines are wanted; None and the empty text stand for any.

    Attributes:
        principal: Whose.
        tool: A pattern for the name of a wrapper, of a tool, or of what else was asked for.
        event: Of this kind, as `call`.
        text: With this text in one of its members, in capitals or not.
        since: Not before this time, as lines have it.
        before: Only lines with a smaller number.
    """

    principal: str = ""
    tool: str = ""
    event: str = ""
    text: str = ""
    since: str = ""
    before: int | None = None

    def wants(self, row: dict[str, Any]) -> bool:
        """Whether this is such a line."""
        if self.before is not None and row["seq"] >= self.before:
            return False
        if self.principal and row.get("principal") != self.principal:
            return False
        if str(row.get("time", "")) < self.since:
            return False
        if self.event and row.get("event") != self.event:
            return False
        if self.text and not _says(row, self.text.casefold()):
            return False
        names = (row.get("wrapper"), row.get("tool"), row.get("name"))
        return not self.tool or any(isinstance(name, str) and fnmatchcase(name, self.tool) for name in names)


def _says(value: Any, folded: str) -> bool:
    """Whether a line, or a part of one, has this text."""
    if isinstance(value, dict):
        return any(_says(one, folded) for one in value.values())
    if isinstance(value, list):
        return any(_says(one, folded) for one in value)
    return isinstance(value, str) and folded in value.casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of the lines that are wanted.

    Attributes:
        rows: The latest first.
        next: What to give as `before` for the lines after these; None where there are none.
    """

    rows: list[dict[str, Any]]
    next: int | None


def read(path: Path, wanted: Filter, *, limit: int, most_bytes: int | None = MAX_SCANNED_BYTES) -> Page:
    """A page of the record whose latest lines are in this file; empty if there is no such file.

    Raises:
        OSError: It cannot be read.
    """
    rows: list[dict[str, Any]] = []
    left, number = most_bytes, None
    stop = as_time(datetime.fromisoformat(wanted.since).timestamp() - _DISORDER_S) if wanted.since else ""
    for line in _backwards(path, wanted.before):
        row = parsed(line)
        if row is not None:
            if str(row.get("time", "")) < stop:
                return Page(rows=rows, next=None)
            if len(rows) == limit and wanted.wants(row):
                return Page(rows=rows, next=rows[-1]["seq"] if rows else None)
            number = row["seq"]
            if wanted.wants(row):
                rows.append(row)
        if left is not None and (left := left - len(line)) < 0:
            return Page(rows=rows, next=number)
    return Page(rows=rows, next=None)


def since(text: str, now: datetime | None = None) -> str:
    """The time that `2h`, `30m`, `7d` or a date stand for, as lines have it.

    Raises:
        ValueError: It is none of these.
    """
    match = _AGO.fullmatch(text)
    if match is not None:
        moment = (now or datetime.now(UTC)) - timedelta(**{_UNITS[match[2]]: int(match[1])})
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text!r} is no time; expected one as 2h, 7d, 2027-01-31 or 2027-01-31T08:00") from None
        # As people here mean it, unless it names its zone.
        moment = moment.astimezone(UTC)
    return as_time(moment.timestamp())


def as_time(seconds: float) -> str:
    """A time as lines have it: it sorts as text."""
    whole = int(seconds)
    return f"{_second(whole)}.{int((seconds - whole) * 1000):03d}Z"


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    # Lines come by the hundred in a second, and this would be most of the work for each.
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def _backwards(path: Path, before: int | None) -> Iterator[bytes]:
    """The lines of a record before one, the latest first; a file that is renamed meanwhile is read once."""
    seen: set[tuple[int, int]] = set()
    for line in _lines_of(path, seen):
        if before is None or not _is_beyond(line, before):
            yield line
    for one in reversed(earlier_files(path)):
        if before is not None and first_number(one) >= before:
            continue
        for line in _lines_of(one, seen):
            if before is None or not _is_beyond(line, before):
                yield line


def _is_beyond(line: bytes, before: int) -> bool:
    # Not parsed: whoever turns pages comes by the lines of all pages before.
    match = _NUMBER.match(line)
    return match is not None and int(match[1]) >= before


def _lines_of(path: Path, seen: set[tuple[int, int]]) -> Iterator[bytes]:
    try:
        file = open(path, "rb")  # noqa: SIM115 - what is deleted before it is opened is not there
    except FileNotFoundError:
        return
    with file:
        found = os.fstat(file.fileno())
        if (found.st_dev, found.st_ino) in seen:
            return
        seen.add((found.st_dev, found.st_ino))
        end, rest = found.st_size, b""
        while end > 0:
            begin = max(0, end - _BLOCK_BYTES)
            file.seek(begin)
            rest, *lines = (file.read(end - begin) + rest).split(b"\n")
            end = begin
            yield from reversed(lines)
        if rest:
            yield rest
