"""The admin token where a gateway keeps it: believed only where nobody else can have written or read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

FILE_NAME: Final = "admin-token"
# A token is some dozens of characters; a file of another size is something else.
_MAX_BYTES: Final = 4096
_ROOT: Final = 0


class UntrustedFile(Exception):
    """The file may be somebody else's work; the text says why, and what to do."""


def kept_token(path: Path) -> str | None:
    """The token in this file; None where there is none.

    Raises:
        UntrustedFile: Another user may have put it there, or can read it.
    """
    try:
        # Not through a link, and not waiting for the writer of a pipe.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = f"{path} cannot be read ({error.strerror}); remove it, or name another state directory"
        raise UntrustedFile(reason) from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UntrustedFile(f"{path} is no regular file; remove it")
        # Of the file that is open, not of the path: that may be another file by now.
        if hasattr(os, "geteuid"):
            if found.st_uid not in (os.geteuid(), _ROOT):
                raise UntrustedFile(
                    f"{path} belongs to another user (id {found.st_uid}), who would administer this gateway; "
                    "remove it, or name another state directory"
                )
            if found.st_mode & 0o077:
                raise UntrustedFile(
                    f"{path} can be read or written by others (mode {stat.S_IMODE(found.st_mode):04o}); remove it "
                    "for a new token, or make it your own with chmod 600"
                )
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES or not content.isascii():
        raise UntrustedFile(f"{path} holds no token; remove it")
    return content.decode("ascii").strip() or None
