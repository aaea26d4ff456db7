"""Lines that are chained by their digests, and the head, which knows where the chain ends. Pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway import wire

GENESIS: Final = "0" * 64
"""What stands for the digest of the line before, in the first line of all."""
# To look the algorithm up for each line takes as long as the digest of a line.
_NOTHING: Final = hashlib.sha256()
HEAD_BYTES: Final = 256
"""Always as many, so that the head is replaced by a single write in place: two numbers, a digest, a size, a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where the record begins and ends.

    Attributes:
        first: The number of the oldest line that is kept.
        last: The number of the latest line; 0 before the first one.
        digest: Of the latest line.
        size: Of the file that is written to, in bytes.
        day: On which that file was begun, as 2027-01-31.
    """

    first: int = 1
    last: int = 0
    digest: str = GENESIS
    size: int = 0
    day: str = ""

    @property
    def anchor(self) -> str:
        """The latest line and its digest, which depends on all lines before: `1234:5e88...`."""
        return f"{self.last}:{self.digest}"

    def to_bytes(self) -> bytes:
        """The head as it is written."""
        return wire.dumps([self.first, self.last, self.digest, self.size, self.day]).ljust(HEAD_BYTES - 1) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Head | None:
        """The head that was written; None if it is damaged."""
        try:
            first, last, digest, size, day = wire.loads(data)
        except (wire.MalformedJson, TypeError, ValueError):
            return None
        numbers = all(type(number) is int and number >= 0 for number in (first, last, size))
        if not numbers or not isinstance(digest, str) or not isinstance(day, str):
            return None
        return cls(first=first, last=last, digest=digest, size=size, day=day)


def digest_of(line: bytes) -> str:
    """The digest of a line, given without its line break."""
    digest = _NOTHING.copy()
    digest.update(line)
    return digest.hexdigest()


def chained(texts: Iterable[bytes], head: Head) -> tuple[bytearray, Head]:
    """Chain lines to a head.

    Args:
        texts: Their members, as JSON without braces.
        head: Where the record ends.

    Returns:
        Their text, and the head after them, whose size has grown by it.
    """
    # One buffer: to keep every line apart until the end takes three times as long.
    number, digest, text = head.last, head.digest.encode(), bytearray()
    for members in texts:
        number += 1
        line = b'{"seq":%d,%b,"prev":"%b"}' % (number, members, digest)
        digest = digest_of(line).encode()
        text += line
        text += b"\n"
    return text, replace(head, last=number, digest=digest.decode(), size=head.size + len(text))


def parsed(line: bytes) -> dict[str, Any] | None:
    """The row in a line; None where it is none of ours."""
    try:
        row = wire.loads(line)
    except wire.MalformedJson:
        return None
    sound = isinstance(row, dict) and type(row.get("seq")) is int and isinstance(row.get("prev"), str)
    return row if sound else None
