"""Appends to the record: several processes to one chain, in files of a day that are deleted when they are old.

All processes that share a state directory write to one file, whichever of them serve together. A lock on the file of
the head has them take turns; whoever holds it goes on where the head says that the last one stopped.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from gateway.audit.chain import HEAD_BYTES, Head, chained, digest_of, parsed
from gateway.files import NotOurs, make_private_folder, try_lock

# One that holds the lock writes for some milliseconds; after this long it is stopped, or the disk hangs.
_LOCK_S: Final = 2.0
_LOCK_POLL_S: Final = 0.005
# A file that editors still open, about 150,000 calls; all files together are at least eight, so that deleting the
# oldest does not delete most of the record.
_MAX_FILE_BYTES: Final = 64 * 2**20
_MIN_FILES: Final = 8
# Of the end of a file, where its last line is looked for: longer than any line without arguments.
_TAIL_BYTES: Final = 1024 * 1024
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class NotWritten(OSError):
    """Nothing of what was to be written is in the record; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of the record is kept.

    Attributes:
        days: Older files are deleted.
        total_bytes: Beyond these the oldest file is deleted.
    """

    days: int
    total_bytes: int

    @property
    def file_bytes(self) -> int:
        """The size at which another file is begun."""
        return max(1, min(_MAX_FILE_BYTES, self.total_bytes // _MIN_FILES))


# The line of a call without its arguments has some hundred bytes; of many calls at the same time each has one.
_ROOM_BYTES: Final = 64 * 1024


class RecordFile:
    """The files of one record. Its methods block, and belong into a thread.

    Args:
        path: The file that is written to; the earlier ones and the head stand beside it.
        limits: How much is kept.
        clock: Seconds since 1970.
    """

    def __init__(self, path: Path, limits: Limits, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.limits = limits
        # Where the entries ended after the latest ones of this process; None before.
        self.head: Head | None = None
        self._clock = clock

    @property
    def head_path(self) -> Path:
        """Where the head is."""
        return self.path.with_name(self.path.name + ".head")

    def append(self, texts: Iterable[bytes]) -> int:
        """Append these lines, all of them or none; returns how many files were deleted for their size.

        Args:
            texts: The members of each, as JSON without braces.

        Raises:
            NotWritten: They cannot be written.
        """
        try:
            make_private_folder(self.path.parent)
            with locked(self.head_path, write=True) as head_file:
                head = self._current(head_file)
                today = datetime.fromtimestamp(self._clock(), UTC).date()
                head, deleted = self._begun(head, today)
                text, after = chained(texts, head)
                self._write(text, head.size)
                _put(head_file, after)
                self.head = after
                return deleted
        except NotWritten:
            raise
        except OSError as error:
            raise NotWritten(f"{self.path}: {error.strerror or error}") from None

    def check_room(self) -> None:
        """Write as much as a line may need beside the file, and take it away again.

        Raises:
            NotWritten: A line could not be written now.
        """
        room = self.path.with_name(self.path.name + ".room")
        try:
            make_private_folder(self.path.parent)
            with locked(self.head_path, write=True):
                os.close(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK, 0o600))
                _owned_size(self.path)
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

    def _current(self, head_file: int) -> Head:
        """The head, after what a process may have left that ended in the middle."""
        written = _get(head_file)
        head = Head.from_bytes(written) if written else Head()
        try:
            size = _owned_size(self.path)
        except FileNotFoundError:
            return replace(head, size=0) if head is not None else Head()
        if head is not None and size == head.size:
            return head
        return self._recovered(head or Head(), size)

    def _recovered(self, head: Head, size: int) -> Head:
        with open(self.path, "rb") as file:
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read()
        whole, newline, torn = tail.rpartition(b"\n")
        row = parsed(line := whole.rpartition(b"\n")[2]) if newline else None
        if torn:
            # It stays, as evidence; what follows must not become a part of it.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | _NO_LINK)
            try:
                size += os.write(descriptor, b"\n")
            finally:
                os.close(descriptor)
        if row is not None and row["seq"] > head.last:
            first = head.first if head.last else row["seq"]
            return replace(head, first=first, last=row["seq"], digest=digest_of(line), size=size)
        # Lines are missing: the record goes on after the last one that there was, so that the gap shows.
        return replace(head, size=size)

    def _begun(self, head: Head, today: date) -> tuple[Head, int]:
        """The head after another file was begun, where it is time for it."""
        day = today.isoformat()
        if not head.size:
            return replace(head, day=day), 0
        if head.day == day and head.size < self.limits.file_bytes:
            return head, 0
        first = _first_number(self.path)
        name = f"{self.path.stem}-{head.day or day}-{first:012d}{self.path.suffix}"
        os.replace(self.path, self.path.with_name(name))
        deleted_for_size = self._delete_old(today)
        kept = earlier_files(self.path)
        oldest = first_number(kept[0]) if kept else head.last + 1
        return replace(head, first=max(head.first, oldest), size=0, day=day), deleted_for_size

    def _delete_old(self, today: date) -> int:
        files = earlier_files(self.path)
        oldest = (today - timedelta(days=self.limits.days)).isoformat()
        kept = []
        for file in files:
            if _day_of(file) < oldest:
                file.unlink(missing_ok=True)
            else:
                kept.append(file)
        sizes = [file.stat().st_size for file in kept]
        # Room for the file that is begun now.
        excess = sum(sizes) + self.limits.file_bytes - self.limits.total_bytes
        deleted = 0
        while excess > 0 and deleted < len(kept):
            kept[deleted].unlink(missing_ok=True)
            excess -= sizes[deleted]
            deleted += 1
        return deleted

    def _write(self, text: bytearray, size: int) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK, 0o600)
        try:
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, 0o600)
            try:
                written = os.write(descriptor, text)
                if written != len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                # A part of a line would look as if somebody had cut it.
                with suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def earlier_files(path: Path) -> list[Path]:
    """The files of a record before the one that is written to, the oldest first."""
    start, end = f"{path.stem}-", path.suffix
    found = []
    for one in path.parent.glob(f"{_literal(path.stem)}-*-*{_literal(end)}"):
        day, _, number = one.name[len(start) : len(one.name) - len(end)].rpartition("-")
        if number.isdecimal() and len(day) == len("2027-01-31"):
            found.append(one)
    return sorted(found, key=first_number)


@contextmanager
def locked(path: Path, *, write: bool) -> Iterator[int]:
    """Hold the lock of a record, for as long as the file of its head is open.

    Raises:
        NotWritten: Somebody else has had it for too long, or the file is not ours.
        FileNotFoundError: There is none, and it is only to be read.
    """
    flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
    descriptor = os.open(path, flags | _NO_LINK, 0o600)
    try:
        _check_ours(os.fstat(descriptor), path)
        end_s = time.monotonic() + _LOCK_S
        while not try_lock(descriptor, write=write):
            if time.monotonic() > end_s:
                raise NotWritten(f"{path}: another process has kept it locked for {_LOCK_S:.0f} s")
            time.sleep(_LOCK_POLL_S)
        yield descriptor
    finally:
        # Which unlocks it.
        os.close(descriptor)


def read_head(descriptor: int) -> Head | None:
    """The head in a file that is locked; None if it is damaged."""
    written = _get(descriptor)
    return Head.from_bytes(written) if written else Head()


def _get(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, HEAD_BYTES)


def _put(descriptor: int, head: Head) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, head.to_bytes())


def _check_ours(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotOurs(f"{path} is no regular file")
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise NotOurs(f"{path} belongs to another user (id {found.st_uid})")


def _owned_size(path: Path) -> int:
    found = os.lstat(path)
    _check_ours(found, path)
    return found.st_size


def _first_number(path: Path) -> int:
    with open(path, "rb") as file:
        row = parsed(file.readline(_TAIL_BYTES))
    return int(row["seq"]) if row is not None else 0


def first_number(path: Path) -> int:
    """The number of the first line of an earlier file, as its name has it."""
    return int(path.stem.rpartition("-")[2])


def _day_of(path: Path) -> str:
    return path.stem.rpartition("-")[0][-len("2027-01-31") :]


def _literal(text: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)
