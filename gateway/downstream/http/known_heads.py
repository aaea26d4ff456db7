"""Heads of requests that were read before: the same bytes mean the same, and are not read byte by byte again.

A host sends one head with every call of a tool, but for the length of its body. What the parser made of it the first
time holds for the next time, on whichever connection it comes; who may call is asked anew each time.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gateway.downstream.http.request import RequestHead

# Hosts send one head for each tool and credential; beyond this they differ each time, and nothing is gained.
_MOST: Final = 512
MAX_KNOWN_BYTES: Final = 4 * 1024
"""Heads of MCP hosts have 400 to 1,200 bytes, a token included. With what is read of them all stay below 8 MiB."""
HEAD_END: Final = b"\r\n\r\n"
"""What every head ends with."""
# As clients in use write it; of another spelling nothing is gained.
_LENGTH: Final = b"\r\ncontent-length: "
_TITLED_LENGTH: Final = b"\r\nContent-Length: "
# More than the largest body that comes in one piece.
_MAX_DIGITS: Final = 7


class KnownHead(Struct, frozen=True, eq=False):
    """A head that was read before.

    Attributes:
        head: What was read; its length is that of an earlier body.
    """

    head: RequestHead
    # The lines before and after the length.
    _before: bytes
    _after: bytes

    def body_in(self, data: bytes) -> bytes | None:
        """The body of a request; None where it has another head, or is not there as a whole and alone."""
        # Asked first, so that nothing is copied for it: calls of two tools have two heads.
        if not data.startswith(self._before):
            return None
        lines, end, body = data.partition(HEAD_END)
        # The length as everybody writes it; what writes `007` is read with care.
        return body if end and lines == b"%b%d%b" % (self._before, len(body), self._after) else None

    def is_all_of(self, data: bytes) -> bool:
        """Whether a request has arrived as far as this head, and its body is still to come."""
        before, after = self._before, self._after + HEAD_END
        if not (data.startswith(before) and data.endswith(after)):
            return False
        length = data[len(before) : len(data) - len(after)]
        return length.isdigit() and len(length) <= _MAX_DIGITS and int(length) > 0


class KnownHeads:
    """The heads that one server has read."""

    def __init__(self) -> None:
        # By what stands before and after their length.
        self._heads: dict[tuple[bytes, bytes], KnownHead] = {}

    def find(self, data: bytes) -> tuple[KnownHead, bytes] | None:
        """The head and the body of a request; None where it is not one whole request alone, or its head is not known.

        Args:
            data: What has arrived since the end of the request before.
        """
        known = self._of(data)
        body = None if known is None else known.body_in(data)
        return None if known is None or body is None else (known, body)

    def find_alone(self, data: bytes) -> KnownHead | None:
        """The head of a request whose body is still to come; None where this is anything else, or it is not known."""
        known = self._of(data)
        return known if known is not None and known.is_all_of(data) else None

    def _of(self, data: bytes) -> KnownHead | None:
        lines, _, _ = data.partition(HEAD_END)
        before, name, after = lines.partition(_LENGTH)
        if not name:
            before, name, after = lines.partition(_TITLED_LENGTH)
        _, _, after = after.partition(b"\r\n")
        return self._heads.get((before, after))

    def learn(self, data: bytes, head: RequestHead) -> None:
        """Know the head of a request that was accepted.

        Args:
            data: How it arrived: its first bytes, which hold the whole head, and perhaps more.
            head: As the parser has read this very request.
        """
        # What asks for more than an answer to its body is rare, and left to who reads it with care.
        if head.judged is None or not head.keep_alive or head.version != "1.1" or head.raw(b"expect") is not None:
            return
        if head.method != b"POST" or head.trace:
            return  # of traces no two requests have the same
        lines, end, _ = data.partition(HEAD_END)
        if not end or len(lines) > MAX_KNOWN_BYTES:
            return
        # The parser has seen the lines that are seen here: none goes on in the next one or ends in another way.
        if lines.count(b"\n") != len(head.fields) or lines.count(b"\r\n") != len(head.fields):
            return
        before, name, after = lines.partition(_LENGTH)
        if not name:
            before, name, after = lines.partition(_TITLED_LENGTH)
        length, _, after = after.partition(b"\r\n")
        # It has seen this length, too, and no second one, which it would have joined to this.
        if not name or head.raw(b"content-length") != length:
            return
        if len(self._heads) >= _MOST:
            self._heads.clear()
        begin = len(before) + len(name)
        self._heads[before, after] = KnownHead(head, data[:begin], lines[begin + len(length) :])
