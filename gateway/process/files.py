"""Write files atomically and privately, and split byte streams into lines."""

from __future__ import annotations

import logging
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

# Bytes to keep from each end of a skipped line: enough for the members of a JSON-RPC envelope, which are at one end.
ENDS_BYTES: Final = 512


class LineSplitter:
    """Splits chunks into lines in linear time. A line over the limit is skipped to its end.

    Args:
        limit_bytes: Maximum length of a line.
        on_skipped: Receives the two ends of each skipped line once it has ended.
    """

    def __init__(self, limit_bytes: int, on_skipped: Callable[[bytes], None] = lambda ends: None) -> None:
        self._limit_bytes = limit_bytes
        self._on_skipped = on_skipped
        self._head = b""
        self._tail = b""
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False
        self.skipped = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end within this chunk, without their line breaks."""
        if b"\n" not in chunk:
            self._hold(chunk)
            return []
        first, *following = chunk.split(b"\n")
        tail = following.pop()
        self._hold(first)
        # Only the first part may continue an earlier line; the others are complete.
        lines = [] if self._skipping else [b"".join(self._parts)]
        if self._skipping:
            self._on_skipped(self._head + b"\n" + self._tail)
        self._parts, self._size, self._skipping = [], 0, False
        lines += following
        self._hold(tail)
        return lines

    @property
    def held_bytes(self) -> int:
        """Number of bytes received of the unfinished line."""
        return self._size

    @property
    def held(self) -> bytes:
        """Bytes received of the unfinished line; empty if that line is being skipped."""
        return b"".join(self._parts)

    def _hold(self, part: bytes) -> None:
        if self._skipping:
            # The end of the line is only known once the line is over, so keep the most recent bytes.
            self._tail = (self._tail + part[-ENDS_BYTES:])[-ENDS_BYTES:]
            return
        if not part:
            return
        self._size += len(part)
        if self._size > self._limit_bytes:
            line = b"".join((*self._parts, part))
            self._head, self._tail = line[:ENDS_BYTES], line[-ENDS_BYTES:]
            self._parts, self._size, self._skipping = [], 0, True
            self.skipped += 1
        else:
            self._parts.append(part)


# Windows makes a locked range unreadable, so lock a byte beyond the end of any file that is locked here.
_LOCKED_BYTE: Final = 2**30


class ForeignFile(OSError):
    """A private file may have been written or read by another user; the text gives the reason."""


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return the path with `~` expanded, or unchanged if the user of this process has no home directory.

    An arbitrary user id in a container lacks both HOME and a user database entry; `Path.expanduser` would raise.
    """
    return Path(os.path.expanduser(path))


def home_folder() -> Path:
    """Return the user's home directory; without one, the root directory, to which container runtimes set HOME."""
    folder = expand_home("~")
    return folder if folder.is_absolute() else Path(folder.anchor or os.sep)


def read_private(path: Path, *, most_bytes: int) -> bytes:
    """Read a file that contains a secret, unless other users may have written or read it.

    Group permissions alone are removed instead of refused: for a Kubernetes volume with an `fsGroup`, the kubelet
    assigns every file to that group and adds read and write permission each time it mounts the volume. A file that root
    owns and the group can only read, as in the volume of a Secret, is accepted unchanged.

    Args:
        most_bytes: At most one byte more than this is read, so that the caller can detect a longer file.

    Raises:
        FileNotFoundError: The file does not exist.
        ForeignFile: The path is not a regular file, or the file belongs to another user or is open to all users.
        OSError: The file cannot be read.
    """
    # O_NONBLOCK, because opening a pipe would wait for a writer. fstat checks the opened file rather than the path.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_symlink():
            raise ForeignFile(f"{path} is a link") from None
        raise error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ForeignFile(f"{path} is not a regular file")
        # Windows lacks owner ids and modes; the user's folder keeps other users out.
        if hasattr(os, "geteuid"):
            is_own = status.st_uid == os.geteuid()
            if not is_own and status.st_uid != 0:
                raise ForeignFile(f"{path} belongs to another user (id {status.st_uid})")
            if status.st_mode & stat.S_IRWXO or (status.st_mode & stat.S_IWGRP and not is_own):
                raise ForeignFile(f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):04o})")
            if is_own and status.st_mode & stat.S_IRWXG:
                # On a read-only volume the mode cannot be changed, but other users cannot change the file either.
                with suppress(OSError):
                    os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~stat.S_IRWXG)
                    log.info("group permissions removed from private file", extra={"path": str(path)})
        return file.read(most_bytes + 1)


def prepare_state_dir(path: Path) -> None:
    """Create a state directory for this user alone, or remove other users' permissions from an existing one.

    Directories with other uses stay unchanged: the home or working directory, and shared ones such as /tmp. Errors are
    ignored, because the first write to the directory reports them.
    """
    with suppress(OSError):
        make_private_folder(path)
        if not hasattr(os, "geteuid") or _is_in_common_use(path):
            return
        for folder in (path, *(Path(each) for each in os.scandir(path) if each.is_dir(follow_symlinks=False))):
            status = folder.stat()
            if status.st_uid == os.geteuid() and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                folder.chmod(stat.S_IMODE(status.st_mode) & ~(stat.S_IRWXG | stat.S_IRWXO))


def _is_in_common_use(path: Path) -> bool:
    folder = path.resolve()
    used_folders = [Path.cwd()]
    used_folders.append(home_folder().resolve())
    return bool(folder.stat().st_mode & stat.S_ISVTX) or any(each.is_relative_to(folder) for each in used_folders)


def make_private_folder(path: Path) -> None:
    """Create a folder that only this user may enter, and its missing parents.

    Raises:
        OSError: The folder cannot be created.
    """
    if not path.is_dir():
        # `mkdir(parents=True)` would apply the mode only to the last folder.
        make_private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file atomically: a reader sees either the old or the new content.

    Raises:
        OSError: The file cannot be written; the old file is unchanged.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def try_lock(descriptor: int, *, write: bool) -> bool:
    """Try to lock an open file until it is closed, and return whether that succeeded."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, (fcntl.LOCK_EX if write else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
