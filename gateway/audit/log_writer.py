"""Append to the audit log from several processes; rotate and delete files.

All processes with the same state directory write to one file. A second file, the head file, describes the log after the
last write (`LogState`). A process locks the head file for each write.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

from gateway.audit.audit_entries import Line
from gateway.process.files import ForeignFile, make_private_folder, try_lock
from gateway.protocol import json_bytes

GENESIS: Final = "0" * 64
"""The `prev` digest of the first line."""
# Each digest starts as a copy of this object, because looking up the algorithm takes as long as hashing a line.
_EMPTY_DIGEST: Final = hashlib.sha256()
HEAD_BYTES: Final = 256
"""The constant size of the head file, so that a single write replaces the content in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """The beginning and the end of an audit log, as stored in the head file.

    Attributes:
        first: The number of the oldest line that has not been deleted.
        last: The number of the latest line; 0 before the first line.
        digest: The digest of the latest line.
        size: The size of the current file in bytes.
        day: The day on which the current file was started, such as 2027-01-31.
    """

    first: int = 1
    last: int = 0
    digest: str = GENESIS
    size: int = 0
    day: str = ""

    @property
    def anchor(self) -> str:
        """The number and digest of the latest line, such as `1234:5e88...`; the digest depends on all earlier lines."""
        return f"{self.last}:{self.digest}"

    def to_bytes(self) -> bytes:
        """Return the content of the head file."""
        return json_bytes.dumps([self.first, self.last, self.digest, self.size, self.day]).ljust(HEAD_BYTES - 1) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> LogState | None:
        """Parse the content of a head file; return None if the content is damaged."""
        try:
            first, last, digest, size, day = json_bytes.loads(data)
        except (json_bytes.MalformedJson, TypeError, ValueError):
            return None
        numbers = all(type(number) is int and number >= 0 for number in (first, last, size))
        if not numbers or not isinstance(digest, str) or not isinstance(day, str):
            return None
        return cls(first=first, last=last, digest=digest, size=size, day=day)


def digest_of(line: bytes) -> str:
    """Return the digest of a line without its line break."""
    digest = _EMPTY_DIGEST.copy()
    digest.update(line)
    return digest.hexdigest()


def chain_entries(texts: Iterable[bytes], head: LogState) -> tuple[bytearray, LogState]:
    """Build the next lines of a log.

    Args:
        texts: The members of each line, as JSON without braces.
        head: The state of the log before these lines.

    Returns:
        The text of the lines, and the state of the log after these lines.
    """
    # A single buffer is three times as fast as a list of lines.
    number, digest, text = head.last, head.digest.encode(), bytearray()
    for members in texts:
        number += 1
        line = b'{"seq":%d,%b,"prev":"%b"}' % (number, members, digest)
        digest = digest_of(line).encode()
        text += line
        text += b"\n"
    return text, replace(head, last=number, digest=digest.decode(), size=head.size + len(text))


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return the entry in a line; None if the line is not part of an audit log."""
    try:
        row = json_bytes.loads(line)
    except json_bytes.MalformedJson:
        return None
    is_valid = isinstance(row, dict) and type(row.get("seq")) is int and isinstance(row.get("prev"), str)
    return row if is_valid else None


# A write takes milliseconds. If the lock is held for this long, the other process is stopped or the disk hangs.
_LOCK_S: Final = 2.0
_LOCK_POLL_S: Final = 0.005
# The maximum size of a file: about 150,000 entries of calls, which editors can still open. Files are smaller if fewer
# than `_MIN_FILES` such files fit into the log, so that deleting the oldest file does not delete most of the log.
_MAX_FILE_BYTES: Final = 64 * 2**20
_MIN_FILES: Final = 8
# How many bytes at the end of a file are searched for the last line. Lines without arguments or results are shorter.
_TAIL_BYTES: Final = 1024 * 1024
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class NotWritten(OSError):
    """None of the lines was written; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the audit log.

    Attributes:
        days: The age at which files are deleted.
        total_bytes: The total size above which the oldest files are deleted.
    """

    days: int
    total_bytes: int

    @property
    def file_bytes(self) -> int:
        """The size at which a new file is started."""
        return max(1, min(_MAX_FILE_BYTES, self.total_bytes // _MIN_FILES))


# The free space that `check_room` requires: enough for the lines of many concurrent calls. A line without arguments has
# several hundred bytes.
_ROOM_BYTES: Final = 64 * 1024


class LogFile:
    """The files of an audit log. The methods block and have to run in a thread.

    Args:
        path: The current file. Earlier files and the head file are in the same folder.
        clock: Returns seconds since 1970.
    """

    def __init__(self, path: Path, limits: Limits, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.limits = limits
        # The state of the log after the last write of this process.
        self.head: LogState | None = None
        self._clock = clock

    @property
    def head_path(self) -> Path:
        """The path of the head file."""
        return self.path.with_name(self.path.name + ".head")

    def append(self, texts: Iterable[bytes]) -> int:
        """Append all lines or none, and return how many files were deleted because of the total size.

        Args:
            texts: The members of each line, as JSON without braces.

        Raises:
            NotWritten: The lines cannot be written.
        """
        try:
            make_private_folder(self.path.parent)
            with locked(self.head_path, write=True) as head_file:
                head = self._current_head(head_file)
                today = datetime.fromtimestamp(self._clock(), UTC).date()
                head, deleted = self._rotate(head, today)
                text, after = chain_entries(texts, head)
                self._write(text, head.size)
                _write_head(head_file, after)
                self.head = after
                return deleted
        except NotWritten:
            raise
        except OSError as error:
            raise NotWritten(f"{self.path}: {error.strerror or error}") from None

    def check_room(self) -> None:
        """Check that lines can be written, by writing and deleting a temporary file.

        Raises:
            NotWritten: Lines cannot be written at present.
        """
        room = self.path.with_name(self.path.name + ".room")
        try:
            make_private_folder(self.path.parent)
            with locked(self.head_path, write=True):
                # Check the file before opening it, because opening a pipe would wait for a reader.
                with suppress(FileNotFoundError):
                    _owned_size(self.path)
                os.close(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK, 0o600))
                descriptor = os.open(room, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_LINK, 0o600)
                try:
                    if os.write(descriptor, bytes(_ROOM_BYTES)) != _ROOM_BYTES:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                finally:
                    os.close(descriptor)
                    room.unlink(missing_ok=True)
        except NotWritten:
            raise
        except OSError as error:
            raise NotWritten(f"{self.path}: {error.strerror or error}") from None

    def _current_head(self, head_file: int) -> LogState:
        """Return the state of the log, corrected if the head file does not match the current file.

        The two do not match if a process was killed during a write.
        """
        stored = _read_head_bytes(head_file)
        head = LogState.from_bytes(stored) if stored else LogState()
        try:
            size = _owned_size(self.path)
        except FileNotFoundError:
            return replace(head, size=0) if head is not None else LogState()
        if head is not None and size == head.size:
            return head
        return self._recover_state(head or LogState(), size)

    def _recover_state(self, head: LogState, size: int) -> LogState:
        with open(self.path, "rb") as file:
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read()
        complete, newline, torn = tail.rpartition(b"\n")
        row = parsed(line := complete.rpartition(b"\n")[2]) if newline else None
        if torn:
            # Keep the truncated line as evidence, and end it with a line break so that the next line is separate.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | _NO_LINK)
            try:
                size += os.write(descriptor, b"\n")
            finally:
                os.close(descriptor)
        if row is not None and row["seq"] > head.last:
            first = head.first if head.last else row["seq"]
            return replace(head, first=first, last=row["seq"], digest=digest_of(line), size=size)
        # Lines are missing. Continue with the number after the last known line, so that `verify` reports the gap.
        return replace(head, size=size)

    def _rotate(self, head: LogState, today: date) -> tuple[LogState, int]:
        """Start a new file if necessary.

        Returns:
            The state of the log, and the number of files that were deleted because of the total size.
        """
        day = today.isoformat()
        if not head.size:
            return replace(head, day=day), 0
        if head.day == day and head.size < self.limits.file_bytes:
            return head, 0
        first = _first_number(self.path)
        name = f"{self.path.stem}-{head.day or day}-{first:012d}{self.path.suffix}"
        os.replace(self.path, self.path.with_name(name))
        deleted_for_size = self._delete_old(today)
        remaining = earlier_files(self.path)
        oldest = first_number(remaining[0]) if remaining else head.last + 1
        return replace(head, first=max(head.first, oldest), size=0, day=day), deleted_for_size

    def _delete_old(self, today: date) -> int:
        files = earlier_files(self.path)
        oldest = (today - timedelta(days=self.limits.days)).isoformat()
        remaining = []
        for file in files:
            if _day_of(file) < oldest:
                file.unlink(missing_ok=True)
            else:
                remaining.append(file)
        sizes = [file.stat().st_size for file in remaining]
        # Reserve space for the new file, which grows to `file_bytes`.
        excess = sum(sizes) + self.limits.file_bytes - self.limits.total_bytes
        deleted = 0
        for file, size in zip(remaining, sizes, strict=True):
            if excess <= 0:
                break
            file.unlink(missing_ok=True)
            excess -= size
            deleted += 1
        return deleted

    def _write(self, text: bytearray, size: int) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK, 0o600)
        try:
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, 0o600)
            try:
                byte_count = os.write(descriptor, text)
                if byte_count != len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                # Remove the partly written text, which would look like tampering.
                with suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def earlier_files(path: Path) -> list[Path]:
    """Return the rotated files of an audit log, oldest first."""
    start, end = f"{path.stem}-", path.suffix
    files = []
    for file in path.parent.glob(f"{_literal(path.stem)}-*-*{_literal(end)}"):
        day, _, number = file.name[len(start) : len(file.name) - len(end)].rpartition("-")
        if number.isdecimal() and len(day) == len("2027-01-31"):
            files.append(file)
    return sorted(files, key=first_number)


@contextmanager
def locked(path: Path, *, write: bool, within_s: float = _LOCK_S) -> Iterator[int]:
    """Lock the head file of an audit log, and yield the file's descriptor.

    Args:
        path: The head file.
        write: Whether to lock the file exclusively for writing, and to create a missing file.

    Raises:
        NotWritten: Another process has held the lock for too long, or the file belongs to another user.
        FileNotFoundError: The head file does not exist, and `write` is false.
    """
    flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
    descriptor = os.open(path, flags | _NO_LINK, 0o600)
    try:
        _check_ours(os.fstat(descriptor), path)
        end_s = time.monotonic() + within_s
        while not try_lock(descriptor, write=write):
            if time.monotonic() > end_s:
                raise NotWritten(f"{path}: locked by another process for more than {within_s:g} s")
            time.sleep(_LOCK_POLL_S)
        yield descriptor
    finally:
        # Closing the file releases the lock.
        os.close(descriptor)


def read_head(descriptor: int) -> LogState | None:
    """Return the state in a locked head file; None if the file is damaged."""
    stored = _read_head_bytes(descriptor)
    return LogState.from_bytes(stored) if stored else LogState()


def _read_head_bytes(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, HEAD_BYTES)


def _write_head(descriptor: int, head: LogState) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, head.to_bytes())


def _check_ours(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ForeignFile(f"{path} is not a regular file")
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise ForeignFile(f"{path} belongs to another user (id {status.st_uid})")


def _owned_size(path: Path) -> int:
    status = os.lstat(path)
    _check_ours(status, path)
    return status.st_size


def _first_number(path: Path) -> int:
    with open(path, "rb") as file:
        row = parsed(file.readline(_TAIL_BYTES))
    return int(row["seq"]) if row is not None else 0


def first_number(path: Path) -> int:
    """Return the number of the first line of a rotated file, from its name."""
    return int(path.stem.rpartition("-")[2])


def _day_of(path: Path) -> str:
    return path.stem.rpartition("-")[0][-len("2027-01-31") :]


def _literal(text: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)


# The number of lines written at once, which takes half a millisecond, and the pause between writes. Calls wait for the
# interpreter lock during a write. Without pauses, 1 % of the calls would wait until all queued lines are written.
_SLICE: Final = 256
_PAUSE_S: Final = 0.000_1


class WriteResult(NamedTuple):
    """The result of writing a batch.

    Attributes:
        lines: How many lines were written, counted from the first line of the batch.
        deleted: The number of files deleted because of the total size.
        error: Why the remaining lines were not written; None if all lines were written.
    """

    lines: int
    deleted: int
    error: str | None = None


class Batch:
    """Entries that are written together.

    Attributes:
        lost: The number of entries lost before this batch. Unless this is 0, the last entry of the batch reports it.
        written: The result of the write; None until the thread has finished it.
    """

    def __init__(self, lines: deque[Line], lost_count: int) -> None:
        self.lines = lines
        self.lost = lost_count
        self.written: WriteResult | None = None
        # Either the thread that writes the entries or `withdraw` acquires this lock, and never releases the lock.
        self._claimed = Lock()

    def withdraw(self) -> bool:
        """Prevent the batch from being written. Return false if a thread has already started to write the batch."""
        return self._claimed.acquire(blocking=False)

    def write(self, file: LogFile, in_order: Lock) -> None:
        """Append as many entries as possible, with pauses in which calls and other processes can proceed.

        Args:
            in_order: A lock that is held during the write. A thread continues to write after its task is cancelled;
                the lock makes the threads of later batches wait.
        """
        with in_order:
            if self._claimed.acquire(blocking=False):
                try:
                    self.written = self._write(file)
                finally:
                    # After an unexpected error, later batches must not wait for the result of this batch.
                    self.written = self.written or WriteResult(0, 0)

    def unwritten(self) -> deque[Line]:
        """Return the entries that were not written, except the entry about lost entries, which is created again."""
        unwritten = deque(islice(self.lines, self.written.lines if self.written else 0, None))
        if self.lost:
            unwritten.pop()
        return unwritten

    def _write(self, file: LogFile) -> WriteResult:
        lines, written_count, deleted = list(self.lines), 0, 0
        while written_count < len(lines):
            if written_count:
                time.sleep(_PAUSE_S)
            part = lines[written_count : written_count + _SLICE]
            try:
                deleted += file.append([line.text() for line in part])
            except NotWritten as error:
                return WriteResult(written_count, deleted, str(error))
            written_count += len(part)
        return WriteResult(written_count, deleted)
