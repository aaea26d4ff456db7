"""Files of ours: written whole and swapped in, so that no reader sees half of one, and secrets read with distrust."""

from __future__ import annotations

import logging
import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

# On Windows a locked part of a file cannot be read: this is beyond what any file with a lock holds.
_LOCKED_BYTE: Final = 2**30

log = logging.getLogger(__name__)


class NotOurs(OSError):
    """A file that should hold a secret of ours may be another's, or known to others; the text says why."""


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` replaced, which stays where the user of this process has no home.

    An arbitrary user of a container has neither HOME nor an entry in the user database; `Path.expanduser` raises then.
    """
    return Path(os.path.expanduser(path))


def home_folder() -> Path:
    """Return the home of this user; the root folder for a user who has none, as container runtimes set HOME."""
    found = expand_home("~")
    return found if found.is_absolute() else Path(found.anchor or os.sep)


def read_private(path: Path, *, most_bytes: int) -> bytes:
    """Read a file that holds a secret, unless other users can have written or read it.

    Rights of the group alone are taken away first: where a Kubernetes volume has an `fsGroup`, the kubelet gives every
    file to that group and adds the rights to read and write, each time the volume is mounted. A file that belongs to
    root and that the group may only read, as in a volume of a Secret, is read as it is.

    Args:
        path: The file.
        most_bytes: One byte more than this is read at most, so that a longer file can be told.

    Raises:
        FileNotFoundError: There is none.
        NotOurs: It is not a regular file, belongs to another user, or is open to all users.
        OSError: It cannot be read.
    """
    # Not blocking, for a pipe would wait for a writer; what was opened is looked at, not what is at the path by then.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_symlink():
            raise NotOurs(f"{path} is a link") from None
        raise error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotOurs(f"{path} is no regular file")
        # Windows has neither: there the folder of the user keeps others out.
        if hasattr(os, "geteuid"):
            is_own = found.st_uid == os.geteuid()
            if not is_own and found.st_uid != 0:
                raise NotOurs(f"{path} belongs to another user (id {found.st_uid})")
            if found.st_mode & stat.S_IRWXO or (found.st_mode & stat.S_IWGRP and not is_own):
                raise NotOurs(f"{path} is open to other users (mode {stat.S_IMODE(found.st_mode):04o})")
            if is_own and found.st_mode & stat.S_IRWXG:
                # A volume that is mounted read-only cannot be changed by others either.
                with suppress(OSError):
                    os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~stat.S_IRWXG)
                    log.info("%s was open to its group and is not any more", path)
        return file.read(most_bytes + 1)


def prepare_state_dir(path: Path) -> None:
    """Create a state directory for this user alone; from one that exists the rights of all others are taken.

    A directory that is more than that is left as it is: a home or working directory, or one that many write to. So is
    what cannot be changed, and one that cannot be created: whatever is to be written there reports that.
    """
    with suppress(OSError):
        make_private_folder(path)
        if not hasattr(os, "geteuid") or _is_in_common_use(path):
            return
        for folder in (path, *(Path(each) for each in os.scandir(path) if each.is_dir(follow_symlinks=False))):
            found = folder.stat()
            if found.st_uid == os.geteuid() and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                folder.chmod(stat.S_IMODE(found.st_mode) & ~(stat.S_IRWXG | stat.S_IRWXO))


def _is_in_common_use(path: Path) -> bool:
    found = path.resolve()
    others = [Path.cwd()]
    others.append(home_folder().resolve())
    return bool(found.stat().st_mode & stat.S_ISVTX) or any(each.is_relative_to(found) for each in others)


def make_private_folder(path: Path) -> None:
    """Create a folder that only this user may enter, with each parent that is missing.

    Raises:
        OSError: It cannot be created.
    """
    if not path.is_dir():
        # `mkdir(parents=True)` would give its mode to the last one alone.
        make_private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file; whoever opens it sees the old one or the new one.

    Raises:
        OSError: It cannot be written; the old one stays.
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
    """Lock an open file until it is closed; returns whether that was possible at once."""
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
