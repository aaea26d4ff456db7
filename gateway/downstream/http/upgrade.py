"""Heads of requests that ask for another protocol, written as if they did not.

Source: RFC 9110, section 7.8 "Upgrade".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_FIELDS: Final = frozenset({b"upgrade", b"http2-settings"})
_OPTIONS: Final = frozenset({b"upgrade", b"http2-settings"})


def head_without_upgrade(
    method: bytes, target: bytes, fields: Iterable[tuple[bytes, bytes]], version: str = "1.1"
) -> bytes:
    """Return the head of such a request without its wish, up to and with the empty line."""
    lines = [b"%b %b HTTP/%b\r\n" % (method, target, version.encode())]
    for name, value in fields:
        if name == b"connection":
            options = [option.strip() for option in value.split(b",")]
            value = b", ".join(option for option in options if option.lower() not in _OPTIONS)
        if name not in _FIELDS:
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join((*lines, b"\r\n"))
