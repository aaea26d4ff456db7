"""Heads of answers that were read before: the same bytes mean the same, and are not read byte by byte again.

A server sends one head with every answer, but for its length and the date.
"""

from __future__ import annotations

from typing import Final

# Servers send one or two different heads; one that makes each of them anew gains nothing.
_MOST: Final = 512
# Heads of servers in use have 100 to 600 bytes. With what is read of them all stay below 8 MiB.
_MAX_HEAD_BYTES: Final = 4 * 1024
_BEGIN: Final = b"HTTP/1.1 200 "
_END: Final = b"\r\n\r\n"
# As servers in use write them; of other spellings nothing is gained.
_LENGTH: Final = b"\r\ncontent-length: "
_TITLED_LENGTH: Final = b"\r\nContent-Length: "
_DATE: Final = b"\r\ndate: "
_TITLED_DATE: Final = b"\r\nDate: "
_DATE_CHARS: Final = len("Sun, 22 Nov 2026 08:00:00 GMT")
# More than the largest answer that comes in one piece.
_MAX_DIGITS: Final = 7
# What makes an answer more than a head and so many bytes, or its connection of no more use.
_SPECIAL: Final = frozenset({"transfer-encoding", "content-encoding", "upgrade", "trailer"})

Found = tuple[dict[str, str], bytes]


class KnownHeads:
    """The heads of answers with status 200, a stated length, and a connection that is kept."""

    def __init__(self) -> None:
        self._heads: dict[tuple[bytes, bytes], dict[str, str]] = {}

    def find(self, data: bytes) -> Found | None:
        """The header fields and the body of an answer; None where it is not there as a whole, or not known.

        The date is not among the fields: nobody looks at it.
        """
        found = _split(data)
        if found is None:
            return None
        key, length, body = found
        headers = self._heads.get(key)
        if headers is None or not length.isdigit() or len(length) > _MAX_DIGITS or int(length) != len(body):
            return None
        return {**headers, "content-length": length.decode()}, body

    def learn(self, data: bytes, headers: dict[str, str], *, is_kept: bool) -> None:
        """Know the head of an answer that has arrived in one piece, and was read as these fields."""
        if not is_kept or not _SPECIAL.isdisjoint(headers) or not data.startswith(_BEGIN):
            return
        if headers.get("content-type", "").lstrip().lower().startswith("text/event-stream"):
            return
        lines, _, _ = data.partition(_END)
        found = _split(data)
        if found is None or len(lines) > _MAX_HEAD_BYTES:
            return
        key, length, _ = found
        # The parser has seen the lines that are seen here: none goes on in the next one, ends in another way or
        # stands there twice. An answer before this one, of 1xx, would have been another head.
        if not lines.count(b"\n") == lines.count(b"\r\n") == len(headers):
            return
        if headers.get("content-length", "").encode("latin-1") != length:
            return
        if len(self._heads) >= _MOST:
            self._heads.clear()
        self._heads[key] = {name: value for name, value in headers.items() if name != "date"}


def _split(data: bytes) -> tuple[tuple[bytes, bytes], bytes, bytes] | None:
    """What stands before and after the length, the length, and the body; None where these are not there.

    The date is left out wherever it stands.
    """
    lines, end, body = data.partition(_END)
    before, name, after = lines.partition(_DATE)
    if not name:
        before, name, after = lines.partition(_TITLED_DATE)
    if name:
        # Its length is fixed (RFC 9110, section 5.6.7 "Date/Time Formats"), so that nothing else hides in it.
        date = after[:_DATE_CHARS]
        if not date.endswith(b" GMT") or b"\n" in date:
            return None
        lines = before + after[_DATE_CHARS:]
    before, name, after = lines.partition(_LENGTH)
    if not name:
        before, name, after = lines.partition(_TITLED_LENGTH)
    length, _, after = after.partition(b"\r\n")
    return ((before, after), length, body) if end and name else None


KNOWN_HEADS: Final = KnownHeads()
"""Those of all upstreams: what a head means does not depend on who has sent it."""
