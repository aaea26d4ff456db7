"""Files of ours: written whole and swapped in, so that no reader sees half of one, and secrets read with distrust."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

# What group and others may do with a file.
_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class NotOurs(OSError):
    """A file that should hold a secret of ours may be another's, or known to others; the text says why."""


def read_private(path: Path, *, most_bytes: int) -> bytes:
    """Read a file that holds a secret, if nobody else can have written or read it.

    Args:
        path: The file.
        most_bytes: One byte more than this is read at most, so that a longer file can be told.

    Raises:
        FileNotFoundError: There is none.
        NotOurs: It is no regular file, belongs to another user, or is open to others.
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
            if found.st_uid != os.geteuid():
                raise NotOurs(f"{path} belongs to another user (id {found.st_uid})")
            if found.st_mode & _OF_OTHERS:
                raise NotOurs(f"{path} is open to other users (mode {stat.S_IMODE(found.st_mode):04o})")
        return file.read(most_bytes + 1)


def make_private_folder(path: Path) -> None:
    """Create a folder that only this user may enter, with its parents, unless it exists.

    Raises:
        OSError: It cannot be created.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


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
