"""Cache of parsed request header blocks, keyed by their bytes.

A host sends the same header block with every call of a tool, except for Content-Length. All connections share the
parsed header block, but the caller is authenticated for each request.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gateway.http.http_request import RequestHead

# The maximum number of cached header blocks. Hosts send one header block per tool and credential. If there are more,
# header blocks vary with every request and are not worth caching.
_MAX_CACHED: Final = 512
MAX_KNOWN_BYTES: Final = 4 * 1024
"""The maximum size of a cached header block; MCP hosts send 400 to 1,200 bytes, including a token. The whole cache
takes less than 8 MiB, including the parsed forms."""
HEAD_END: Final = b"\r\n\r\n"
"""The end of every header block."""
# The spellings that common clients use. Requests with other spellings are parsed every time.
_LENGTH: Final = b"\r\ncontent-length: "
_TITLED_LENGTH: Final = b"\r\nContent-Length: "
# The maximum number of digits in Content-Length. Longer bodies exceed `MAX_REQUEST_BYTES`.
_MAX_DIGITS: Final = 7


class RequestHeaderBlock(Struct, frozen=True, eq=False):
    """A header block that was parsed before.

    Attributes:
        head: The parsed header block, with the Content-Length of an earlier request.
    """

    head: RequestHead
    # The bytes before and after the value of Content-Length.
    _before: bytes
    _after: bytes

    def body_in(self, data: bytes) -> bytes | None:
        """Return the body if `data` is exactly one request with this header block; otherwise None."""
        # Fast path without copying: calls of other tools have other header blocks.
        if not data.startswith(self._before):
            return None
        lines, end, body = data.partition(HEAD_END)
        # A length in an unusual form, such as `007`, is left to the parser.
        return body if end and lines == b"%b%d%b" % (self._before, len(body), self._after) else None

    def is_all_of(self, data: bytes) -> bool:
        """Return whether `data` is exactly this header block, with a body still to come."""
        before, after = self._before, self._after + HEAD_END
        if not (data.startswith(before) and data.endswith(after)):
            return False
        length = data[len(before) : len(data) - len(after)]
        return length.isdigit() and len(length) <= _MAX_DIGITS and int(length) > 0


class RequestHeaderCache:
    """The header blocks cached for all connections of one server."""

    def __init__(self) -> None:
        # Keyed by the bytes before Content-Length and after its value.
        self._heads: dict[tuple[bytes, bytes], RequestHeaderBlock] = {}

    def find(self, data: bytes) -> tuple[RequestHeaderBlock, bytes] | None:
        """Return the cached header block and the body if `data` is exactly one request with a cached block, or None.

        Args:
            data: The input since the end of the previous request.
        """
        block = self._look_up(data)
        body = None if block is None else block.body_in(data)
        return None if block is None or body is None else (block, body)

    def find_alone(self, data: bytes) -> RequestHeaderBlock | None:
        """Return the cached header block if `data` is exactly that block and its body is still to come."""
        block = self._look_up(data)
        return block if block is not None and block.is_all_of(data) else None

    def _look_up(self, data: bytes) -> RequestHeaderBlock | None:
        lines, _, _ = data.partition(HEAD_END)
        before, name, after = lines.partition(_LENGTH)
        if not name:
            before, name, after = lines.partition(_TITLED_LENGTH)
        _, _, after = after.partition(b"\r\n")
        return self._heads.get((before, after))

    def learn(self, data: bytes, head: RequestHead) -> None:
        """Cache the header block of an accepted request.

        Args:
            data: The first bytes of the request, which contain the whole header block.
            head: The header block as the parser read it.
        """
        # Cache only plain requests. The parser has to handle requests that end the connection or use `Expect`.
        if head.judged is None or not head.keep_alive or head.version != "1.1" or head.raw(b"expect") is not None:
            return
        if head.method != b"POST" or head.trace:
            return  # a trace context differs in every request
        lines, end, _ = data.partition(HEAD_END)
        if not end or len(lines) > MAX_KNOWN_BYTES:
            return
        # Require one CRLF line per parsed header, so that no header is folded or ends in a bare LF.
        if lines.count(b"\n") != len(head.fields) or lines.count(b"\r\n") != len(head.fields):
            return
        before, name, after = lines.partition(_LENGTH)
        if not name:
            before, name, after = lines.partition(_TITLED_LENGTH)
        length, _, after = after.partition(b"\r\n")
        # Require that the parser read the same length. A second Content-Length would have been joined to the first one.
        if not name or head.raw(b"content-length") != length:
            return
        if len(self._heads) >= _MAX_CACHED:
            self._heads.clear()
        begin = len(before) + len(name)
        self._heads[before, after] = RequestHeaderBlock(head, data[:begin], lines[begin + len(length) :])


class ConnectionHeaderCache:
    """The header blocks that repeat on one connection.

    Attributes:
        ahead: The bytes of a cached header block whose body has not begun to arrive; otherwise empty. Many clients
            write header block and body separately, and the cache lookup needs both.
    """

    __slots__ = ("_first_bytes", "_latest", "_new", "_shared_cache", "ahead")

    def __init__(self, shared_cache: RequestHeaderCache) -> None:
        self._shared_cache = shared_cache
        # The last header block that was found. The next request often has the same header block.
        self._latest: RequestHeaderBlock | None = None
        # The first bytes of the request that is being parsed, and the request's parsed header block.
        self._first_bytes = b""
        self._new: RequestHead | None = None
        self.ahead = b""

    def store_ahead(self, data: bytes) -> bool:
        """Store `data` as `ahead` if it is exactly a cached header block; return whether it was stored."""
        if not data.endswith(HEAD_END):
            return False
        latest = self._latest
        if latest is None or not latest.is_all_of(data):
            latest = self._shared_cache.find_alone(data)
            if latest is None:
                return False
            self._latest = latest
        self.ahead = data
        return True

    def find(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """Return the header block and the body, if `data` is exactly one request whose block is cached.

        Args:
            data: The input since the end of the previous request.
        """
        latest = self._latest
        if latest is not None and (body := latest.body_in(data)) is not None:
            return latest.head, body
        cached = self._shared_cache.find(data)
        if cached is None:
            return None
        self._latest, body = cached
        return self._latest.head, body

    def start_request(self, data: bytes) -> None:
        """Record the first bytes of a request that is about to be parsed."""
        self._first_bytes, self._new = data[:MAX_KNOWN_BYTES], None

    def head_arrived(self, head: RequestHead) -> None:
        """Record the parsed header block."""
        # Only the first request in the packet begins with the recorded bytes.
        if self._first_bytes and self._new is None:
            self._new = head

    def arrived(self, head: RequestHead, *, accepted: bool) -> None:
        """Cache the header block of a complete request, if its first bytes were recorded and it was accepted."""
        if accepted and self._first_bytes and head is self._new:
            self._shared_cache.learn(self._first_bytes, head)
        self._first_bytes = b""
