"""Heads of answers that were read before: the same bytes mean the same, and are not read byte by byte again.

A server sends one head with every answer, but for its length and the date.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from gateway.upstream.transport.media_type import media_type

# Servers send one or two different heads; one that makes each of them anew gains nothing.
_MOST: Final = 512
MAX_KNOWN_BYTES: Final = 1_536
"""Heads of servers in use have 100 to 600 bytes. With their patterns, of ten times their size, all stay below 8 MiB."""
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
# What makes an answer more than a head and so many bytes, or its connection of no more use. Cookies have to be kept.
_SPECIAL: Final = frozenset({"transfer-encoding", "content-encoding", "upgrade", "trailer", "set-cookie"})


class KnownHead(Struct, eq=False):
    """A head that was read before.

    Attributes:
        headers: What stands in it, but for length and date: nobody looks at these of an answer that is there.
        is_json: What follows it is JSON.
    """

    headers: dict[str, str]
    is_json: bool
    # The latest one, without its end: before its length, and after it.
    _before: bytes
    _after: bytes
    _pattern: re.Pattern[bytes] | None = None

    def split(self, data: bytes) -> tuple[int, bytes] | None:
        """The length of the body and what has come of it; None where an answer has another head, or more follows it."""
        lines, end, body = data.partition(_END)
        if not end:
            return None
        if lines == b"%b%d%b" % (self._before, len(body), self._after):
            # Nearly all of them: of the same second as the latest one, with the whole body.
            return len(body), body
        if self._pattern is None:
            # Not before it is needed, since it takes half a millisecond: some servers make each head anew.
            self._pattern = _pattern_of(self._before, self._after)
        found = self._pattern.fullmatch(lines)
        if found is None:
            return None
        self._before, self._after = lines[: found.start(1)], lines[found.end(1) :]
        length = int(found[1])
        return (length, body) if len(body) <= length else None


class KnownHeads:
    """The heads of answers with status 200, a stated length, and a connection that is kept."""

    def __init__(self) -> None:
        self._heads: dict[tuple[bytes, bytes], KnownHead] = {}

    def find(self, data: bytes) -> KnownHead | None:
        """The head of an answer that begins so; None where that is not known, or not all of the head."""
        found = _split(data)
        return self._heads.get(found[0]) if found is not None else None

    def learn(self, data: bytes, headers: dict[str, str], *, is_kept: bool) -> None:
        """Know the head of an answer.

        Args:
            data: How it began: its first bytes, which hold the whole head.
            headers: The fields as which they were read.
            is_kept: Its connection can be used again.
        """
        if not is_kept or not _SPECIAL.isdisjoint(headers) or not data.startswith(_BEGIN):
            return
        if headers.get("content-type", "").lstrip().lower().startswith("text/event-stream"):
            return
        lines, _, _ = data.partition(_END)
        found = _split(data)
        if found is None or len(lines) > MAX_KNOWN_BYTES:
            return
        key, length = found
        # The parser has seen the lines that are seen here: none goes on in the next one, ends in another way or
        # stands there twice. An answer before this one, of 1xx, would have been another head.
        if not lines.count(b"\n") == lines.count(b"\r\n") == len(headers):
            return
        if headers.get("content-length", "").encode("latin-1") != length:
            return
        if len(self._heads) >= _MOST:
            self._heads.clear()
        kept = {name: value for name, value in headers.items() if name not in ("date", "content-length")}
        is_json = media_type(headers.get("content-type", "")) == "application/json"
        begin = lines.index(name := _LENGTH if _LENGTH in lines else _TITLED_LENGTH) + len(name)
        self._heads[key] = KnownHead(kept, is_json, lines[:begin], lines[begin + len(length) :])


def _pattern_of(before: bytes, after: bytes) -> re.Pattern[bytes]:
    """What matches the lines of a head with another date and another length, which is the only group."""
    return re.compile(rb"%b(\d{1,%d})%b" % (_with_any_date(before), _MAX_DIGITS, _with_any_date(after)))


def _with_any_date(lines: bytes) -> bytes:
    name = _DATE if _DATE in lines else _TITLED_DATE
    before, name, after = lines.partition(name)
    if not name:
        return re.escape(lines)
    date = rb"[A-Za-z0-9 ,:]{%d} GMT" % (_DATE_CHARS - len(" GMT"))
    return re.escape(before + name) + date + re.escape(after[_DATE_CHARS:])


def _split(data: bytes) -> tuple[tuple[bytes, bytes], bytes] | None:
    """What stands before and after the length, and the length; None where these are not there.

    The date is left out wherever it stands.
    """
    lines, end, _ = data.partition(_END)
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
    return ((before, after), length) if end and name else None


KNOWN_HEADS: Final = KnownHeads()
"""Those of all upstreams: what a head means does not depend on who has sent it."""
