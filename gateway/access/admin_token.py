"""The admin token where a gateway keeps it: believed only where nobody else can have written or read it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gateway.files import NotOurs, read_private

FILE_NAME: Final = "admin-token"
# A token is some dozens of characters; a file of another size is something else.
_MAX_BYTES: Final = 4096


class UntrustedFile(Exception):
    """The file may be somebody else's work; the text says why, and what to do."""


def kept_token(path: Path) -> str | None:
    """The token in this file; None where there is none.

    Raises:
        UntrustedFile: Another user may have put it there, or can read it.
    """
    try:
        content = read_private(path, most_bytes=_MAX_BYTES)
    except FileNotFoundError:
        return None
    except NotOurs as error:
        # Whoever put it there, or has read it, would administer this gateway.
        raise UntrustedFile(
            f"{error}; remove it for a new token, make it your own with chmod 600, or name another state directory"
        ) from None
    except OSError as error:
        reason = f"{path} cannot be read ({error.strerror}); remove it, or name another state directory"
        raise UntrustedFile(reason) from None
    if len(content) > _MAX_BYTES or not content.isascii():
        raise UntrustedFile(f"{path} holds no token; remove it")
    return content.decode("ascii").strip() or None
