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

# Bytes to report from each end of a skipped line. The members `id` and `method` of a JSON-RPC message are usually near
# one of the ends.
ENDS_BYTES: Final = 512


class LineSplitter:
    """Splits a stream of chunks into lines, in linear time. Lines that are too long are skipped.

    Args:
        limit_bytes: Maximum length of a line.
        on_skipped: Called with the beginning and the end of each skipped line, once the line has ended.

    Attributes:
        skipped: The number of lines that were skipped.
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
        # Only the first part may continue an earlier line; the following parts are complete lines.
        lines = [] if self._skipping else [b"".join(self._parts)]
        if self._skipping:
            self._on_skipped(self._head + b"\n" + self._tail)
        self._parts, self._size, self._skipping = [], 0, False
        lines += following
        self._hold(tail)
        return lines

    @property
    def held_bytes(self) -> int:
        """Size of the received part of the unfinished line."""
        return self._size

    @property
    def held(self) -> bytes:
        """The received part of the unfinished line; empty if that line is being skipped."""
        return b"".join(self._parts)

    def _hold(self, part: bytes) -> None:
        if self._skipping:
            # Always keep the last bytes received so far, because the next chunk may end the line.
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


# Offset of the byte to lock on Windows. Windows makes locked bytes unreadable, so the offset is beyond the end of any
# file that the gateway locks.
_LOCKED_BYTE: Final = 2**30


class ForeignFile(OSError):
    """Another user may have written or read a private file; the text gives the reason."""


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return the path with `~` expanded, or unchanged if the user of this process has no home directory.

    `Path.expanduser` would raise in that case, which occurs in containers that run with an arbitrary user id.
    """
    return Path(os.path.expanduser(path))


def home_folder() -> Path:
    """Return the user's home directory, or else the root directory, which container runtimes then use as HOME."""
    folder = expand_home("~")
    return folder if folder.is_absolute() else Path(folder.anchor or os.sep)


def read_private(path: Path, *, most_bytes: int) -> bytes:
    """Read a file that contains a secret, unless other users may have written or read it.

    If a file of this user is accessible to its group, but not to others, the group's permissions are removed and the
    file is read. This is needed for Kubernetes volumes with an `fsGroup`, because the kubelet adds group permissions at
    each mount. A file that root owns and the group can only read, as in a volume with a Secret, is read unchanged.

    Args:
        most_bytes: The expected maximum size. One more byte is read, so that the caller can detect a longer file.

    Raises:
        FileNotFoundError: The file does not exist.
        ForeignFile: The path is not a regular file, the file belongs to another user, or other users may access it.
        OSError: The file cannot be read.
    """
    # Use O_NONBLOCK, because opening a pipe would otherwise wait for a writer.
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
        # Windows lacks owner ids and modes. There, the permissions of the user's folder exclude other users.
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
    """Make a state directory and its subdirectories accessible to this user only, and create the directory if missing.

    The permissions of directories with other uses stay unchanged: the home or working directory, their parents, and
    shared directories such as /tmp. Errors are ignored, because the first write to the directory reports them.
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
    """Create a folder and its missing parents with permissions for this user only; existing folders stay unchanged.

    Raises:
        OSError: The folder cannot be created.
    """
    if not path.is_dir():
        # `mkdir(parents=True)` would apply the mode only to the last folder.
        make_private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace the content of a file atomically: a reader sees either the old or the new content.

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
    """Try to lock an open file until it is closed, and return whether the lock was obtained.

    Args:
        write: Whether to request an exclusive lock instead of a shared lock.
    """
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
