"""Heads of requests that were read before: the same bytes mean the same, and are not read byte by byte again.

A host sends one head with every call of a tool, but for the length of its body. What the parser made of it the first
time holds for the next time, on whichever connection it comes; who may call is asked anew each time.
"""

from __future__ import annotations

from typing import Final

from gateway.downstream.http.request import RequestHead

# Hosts send one head for each tool and credential; beyond this they differ each time, and nothing is gained.
_MOST: Final = 512
# Heads of MCP hosts have 400 to 1,200 bytes, a token included. With what is read of them all stay below 8 MiB.
_MAX_HEAD_BYTES: Final = 4 * 1024
_END: Final = b"\r\n\r\n"
# As clients in use write it; of another spelling nothing is gained.
_LENGTH: Final = b"\r\ncontent-length: "
_TITLED_LENGTH: Final = b"\r\nContent-Length: "
# More than the largest body that comes in one piece.
_MAX_DIGITS: Final = 7


class KnownHeads:
    """The heads that one server has read."""

    def __init__(self) -> None:
        # By what stands before and after their length.
        self._heads: dict[tuple[bytes, bytes], RequestHead] = {}

    def find(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """The head and the body of a request.

        Args:
            data: What has arrived since the end of the request before.

        Returns:
            The head with the length of an earlier body; None where it is not one whole request and nothing else, or its
            head is not known.
        """
        lines, end, body = data.partition(_END)
        before, name, after = lines.partition(_LENGTH)
        if not name:
            before, name, after = lines.partition(_TITLED_LENGTH)
        length, _, after = after.partition(b"\r\n")
        # Most are found, so that all else is looked at afterwards.
        head = self._heads.get((before, after))
        if head is None or not end:
            return None
        if not length.isdigit() or len(length) > _MAX_DIGITS or int(length) != len(body):
            return None
        return head, body

    def learn(self, data: bytes, head: RequestHead) -> None:
        """Know the head of a request that has arrived in one piece, and was accepted as `head`."""
        # What asks for more than an answer to its body is rare, and left to who reads it with care.
        if head.judged is None or not head.keep_alive or head.version != "1.1" or head.raw(b"expect") is not None:
            return
        if head.method != b"POST" or head.trace:
            return  # of traces no two requests have the same
        lines, end, _ = data.partition(_END)
        if not end or len(lines) > _MAX_HEAD_BYTES:
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
        self._heads[before, after] = head
