"""Whether a record is whole: every line is there, as it was written, in its place, up to the end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from gateway.audit.chain import GENESIS, Head, digest_of, parsed
from gateway.audit.writing import RecordFile, earlier_files, locked, read_head

# A screenful: what was done with an editor is seen from the first ones.
MAX_FAULTS: Final = 20


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What was found.

    Attributes:
        lines: How many lines were read.
        files: How many files.
        faults: Where the record is not as it was written, `FILE:LINE: what`; at most `MAX_FAULTS`.
        head: Whether it is known where the record has to end.
    """

    lines: int = 0
    files: int = 0
    faults: list[str] = field(default_factory=list)
    head: bool = False

    def add(self, fault: str) -> None:
        """Note a fault, if there is room."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(fault)


def verify(record: RecordFile, anchors: Mapping[int, str] | None = None) -> Verdict:
    """Read a whole record, also while it is written to.

    Args:
        record: The record.
        anchors: Digests of lines by their numbers, as the gateway has logged them. One whose line was deleted with
            its file, as the oldest ones are, says nothing.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read.
    """
    with ExitStack() as opened:
        head, files = _snapshot(record, opened)
        if not files and (head is None or head.last == 0):
            raise FileNotFoundError(record.path)
        verdict = Verdict(files=len(files), head=head is not None)
        chain = _Chain(verdict, head, anchors or {})
        for path, file, size in files:
            for number, line in enumerate(_lines(file, size), 1):
                verdict.lines += 1
                chain.follow(line, f"{path}:{number}")
        chain.end(record.path)
    return verdict


class _Chain:
    """The lines so far."""

    def __init__(self, verdict: Verdict, head: Head | None, anchors: Mapping[int, str]) -> None:
        self._verdict = verdict
        self._anchors = anchors
        self._head = head
        self._last: int | None = None
        self._digest = GENESIS
        self._reaches_head = head is None

    def follow(self, line: bytes, place: str) -> None:
        add = self._verdict.add
        row = parsed(line.removesuffix(b"\n")) if line.endswith(b"\n") else None
        if row is None:
            add(f"{place}: the line is cut short, or is no line of the record")
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
            add(f"{place}: line {number} stands after line {self._last}")
        elif row["prev"] != self._digest:
            add(f"{place}: line {self._last}, the one before, has been altered, or this one has")
        self._last, self._digest = number, digest_of(line.removesuffix(b"\n"))
        if self._anchors.get(number, self._digest) != self._digest:
            add(f"{place}: line {number}, or one before it, is not what the gateway has logged as its anchor")
        if head is not None and number == head.last:
            self._reaches_head = True
            if self._digest != head.digest:
                add(f"{place}: line {number} has been altered")

    def end(self, path: Path) -> None:
        last = self._last or 0
        for number in sorted(self._anchors):
            if number > last:
                self._verdict.add(f"{path}: line {number} is missing, which the gateway has logged as an anchor")
        if not self._reaches_head and self._head is not None and (self._last or 0) < self._head.last:
            self._verdict.add(f"{path}: {_lines_missing((self._last or self._head.first - 1) + 1, self._head.last)}")


def _lines_missing(first: int, last: int) -> str:
    return f"line {first} is missing" if first == last else f"lines {first} to {last} are missing"


def _snapshot(record: RecordFile, opened: ExitStack) -> tuple[Head | None, list[tuple[Path, BinaryIO, int]]]:
    """The head, and every file with its size at that moment, opened so that none is renamed or deleted under us."""
    try:
        with locked(record.head_path, write=False) as descriptor:
            return read_head(descriptor), _open(record.path, opened)
    except FileNotFoundError:
        return None, _open(record.path, opened)


def _open(path: Path, opened: ExitStack) -> list[tuple[Path, BinaryIO, int]]:
    found: list[tuple[Path, BinaryIO, int]] = []
    for one in (*earlier_files(path), path):
        if one.exists():
            file = opened.enter_context(one.open("rb"))
            found.append((one, file, os.fstat(file.fileno()).st_size))
    return found


def _lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    left = size
    while left > 0:
        line = file.readline(left)
        if not line:
            return
        left -= len(line)
        yield line
