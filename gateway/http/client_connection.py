"""One connection to an HTTP/1.1 server. It handles one exchange, which is a request and its response, at a time.

A server sends nearly the same header block with every response: only Content-Length and Date differ.
`ResponseHeaderCache` caches the parsed form of such header blocks, so that the parser is not needed for most responses.
"""

from __future__ import annotations

import asyncio
import re
import select
from typing import Final, cast

import httptools
from msgspec import Struct

from gateway.http.event_stream import PAUSE_BYTES, media_type
from gateway.http.proxies import Proxy
from gateway.protocol.gateway_errors import ConnectionLost

# The maximum number of cached header blocks. Most servers send one or two different header blocks. The cache has no
# effect for servers whose header block differs every time.
_MAX_CACHED: Final = 512
MAX_KNOWN_BYTES: Final = 1_536
"""The maximum size of a cached header block; common servers send 100 to 600 bytes. A compiled pattern takes ten times
the size of its header block, so this limit keeps the whole cache below 8 MiB."""
_STATUS_LINE: Final = b"HTTP/1.1 200 "
_HEADERS_END: Final = b"\r\n\r\n"
# The spellings that common servers use. Responses with other spellings are parsed every time.
_LENGTH: Final = b"\r\ncontent-length: "
_TITLED_LENGTH: Final = b"\r\nContent-Length: "
_DATE: Final = b"\r\ndate: "
_TITLED_DATE: Final = b"\r\nDate: "
_DATE_CHARS: Final = len("Sun, 22 Nov 2026 08:00:00 GMT")
# The maximum number of digits in Content-Length. Longer bodies arrive in many reads, so the cache would save little.
_MAX_DIGITS: Final = 7
# Header blocks with these headers are not cached, because the headers change the framing of the body, end the
# connection, or contain cookies, which have to be stored every time.
_SPECIAL: Final = frozenset({"transfer-encoding", "content-encoding", "upgrade", "trailer", "set-cookie"})


class ResponseHeaderBlock(Struct, eq=False):
    """The parsed header block of an earlier response.

    Attributes:
        headers: The headers without Content-Length and Date. A complete response does not need these two.
        is_json: Whether the body is JSON.
    """

    headers: dict[str, str]
    is_json: bool
    # The latest header block without the final empty line, split into the bytes before and after the value of
    # Content-Length.
    _before: bytes
    _after: bytes
    _pattern: re.Pattern[bytes] | None = None

    def split(self, data: bytes) -> tuple[int, bytes] | None:
        """Return the length of the body, and the part of the body in `data`.

        Returns None if `data` begins with another header block, or continues after the end of the body.
        """
        lines, end, body = data.partition(_HEADERS_END)
        if not end:
            return None
        if lines == b"%b%d%b" % (self._before, len(body), self._after):
            # Fast path: `data` contains the whole body, and only the length differs from the latest header block.
            return len(body), body
        if self._pattern is None:
            # Compiled on first use, because compiling takes half a millisecond. The time would be wasted if the server
            # never sends this header block again.
            self._pattern = _pattern_of(self._before, self._after)
        match = self._pattern.fullmatch(lines)
        if match is None:
            return None
        self._before, self._after = lines[: match.start(1)], lines[match.end(1) :]
        length = int(match[1])
        return (length, body) if len(body) <= length else None


class ResponseHeaderCache:
    """Cache of the header blocks of responses with status 200, a declared length, and a reusable connection."""

    def __init__(self) -> None:
        self._heads: dict[tuple[bytes, bytes], ResponseHeaderBlock] = {}

    def find(self, data: bytes) -> ResponseHeaderBlock | None:
        """Return the cached header block that `data` begins with; None if it is incomplete or not cached."""
        parts = _split(data)
        return self._heads.get(parts[0]) if parts is not None else None

    def learn(self, data: bytes, headers: dict[str, str], *, is_kept: bool) -> None:
        """Cache the header block of a response.

        Args:
            data: The first bytes of the response, which contain the whole header block.
            headers: The headers as the parser read them.
            is_kept: Whether the connection can be used again.
        """
        if not is_kept or not _SPECIAL.isdisjoint(headers) or not data.startswith(_STATUS_LINE):
            return
        if headers.get("content-type", "").lstrip().lower().startswith("text/event-stream"):
            return
        lines, _, _ = data.partition(_HEADERS_END)
        parts = _split(data)
        if parts is None or len(lines) > MAX_KNOWN_BYTES:
            return
        key, length = parts
        # Require one CRLF line per parsed header, so that no header is folded, repeated or ends in a bare LF, and no
        # informational response (1xx) precedes this one.
        if not lines.count(b"\n") == lines.count(b"\r\n") == len(headers):
            return
        if headers.get("content-length", "").encode("latin-1") != length:
            return
        if len(self._heads) >= _MAX_CACHED:
            self._heads.clear()
        cached_headers = {name: value for name, value in headers.items() if name not in ("date", "content-length")}
        is_json = media_type(headers.get("content-type", "")) == "application/json"
        begin = lines.index(name := _LENGTH if _LENGTH in lines else _TITLED_LENGTH) + len(name)
        self._heads[key] = ResponseHeaderBlock(cached_headers, is_json, lines[:begin], lines[begin + len(length) :])


def _pattern_of(before: bytes, after: bytes) -> re.Pattern[bytes]:
    """Return a pattern that matches these lines with any date and any length. The length is the only group."""
    return re.compile(rb"%b(\d{1,%d})%b" % (_with_any_date(before), _MAX_DIGITS, _with_any_date(after)))


def _with_any_date(lines: bytes) -> bytes:
    name = _DATE if _DATE in lines else _TITLED_DATE
    before, name, after = lines.partition(name)
    if not name:
        return re.escape(lines)
    date = rb"[A-Za-z0-9 ,:]{%d} GMT" % (_DATE_CHARS - len(" GMT"))
    return re.escape(before + name) + date + re.escape(after[_DATE_CHARS:])


def _split(data: bytes) -> tuple[tuple[bytes, bytes], bytes] | None:
    """Split a header block into the bytes before and after the value of Content-Length, and the value itself.

    The date is removed. Returns None if the header block is incomplete or has no Content-Length.
    """
    lines, end, _ = data.partition(_HEADERS_END)
    before, name, after = lines.partition(_DATE)
    if not name:
        before, name, after = lines.partition(_TITLED_DATE)
    if name:
        # A date has a fixed length (RFC 9110, section 5.6.7 "Date/Time Formats"), so this removes nothing else.
        date = after[:_DATE_CHARS]
        if not date.endswith(b" GMT") or b"\n" in date:
            return None
        lines = before + after[_DATE_CHARS:]
    before, name, after = lines.partition(_LENGTH)
    if not name:
        before, name, after = lines.partition(_TITLED_LENGTH)
    length, _, after = after.partition(b"\r\n")
    return ((before, after), length) if end and name else None


RESPONSE_HEADERS: Final = ResponseHeaderCache()
"""The cache that all upstreams share, because the meaning of a header block does not depend on its sender."""


# The limits apply to all header blocks of one response together: informational responses (1xx), headers and trailers.
# Common servers limit the header block of a request to 8 to 64 KiB.
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEAD_LINES: Final = 256
# The headers used here whose value is a list. Such a list may be split over several header lines.
_LIST_HEADERS: Final = frozenset({"www-authenticate", "content-encoding"})
# The size of a status line without its reason phrase, and of the separators in a header line.
_STATUS_LINE_BYTES: Final = len("HTTP/1.1 200 \r\n")
_SEPARATORS_BYTES: Final = len(": \r\n")
# Reading pauses while this many chunks wait to be consumed: a tiny chunk costs the reader more than the sender.
_PAUSE_PIECES: Final = 2_048
_TOO_LARGE: Final = (
    f"the headers of the answer are too large: more than {MAX_HEAD_LINES} lines or {MAX_HEAD_BYTES // 1024} KiB"
)


class HttpConnection(asyncio.Protocol):
    """One connection.

    Attributes:
        origin: Scheme, host and port as text: the key under which `HttpClient` pools this connection.
        via: The proxy to which requests are sent in absolute form; None for direct and tunneled connections.
        lost: Why the connection can no longer be used; None while the connection is usable.
        status: The status of the response; valid once `head_done` is true.
        head_done: True once the header block of the response has arrived.
        complete: True if the whole response has arrived, or no request was sent yet.
        reusable: True if the server keeps the connection open after this response.
        set_cookies: The Set-Cookie headers of the response.
        plain: The body, if the response is complete, has status 200 and is JSON that arrived in one piece; otherwise
            None.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, origin: str) -> None:
        self._loop = loop
        self._parser: httptools.HttpResponseParser | None = None
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._poll: select.poll | None = None
        self._latest: ResponseHeaderBlock | None = None
        self.origin = origin
        self.via: Proxy | None = None
        self.lost: str | None = None
        self._idle_since_s = 0.0
        self._first_bytes = b""
        self._body: list[bytes] = []
        # `_fields` are the headers of the block that is arriving. `_head_lines` and `_head_bytes` count all header
        # blocks of the response. `_fed_bytes` counts input for which the parser has reported nothing, such as an
        # endless header.
        self._fields: list[tuple[bytes, bytes]] = []
        self._head_lines = self._head_bytes = self._fed_bytes = 0
        self._buffered_bytes = self._missing_bytes = 0
        self._paused = self._streams = False
        self.plain: bytes | None = None
        self.headers: dict[str, str] = {}
        self.set_cookies: list[str] = []
        self.status = 0
        self.head_done = self.reusable = False
        self.complete = True

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.complete:
            # The data is unexpected. It would be mistaken for the response to the next request.
            self.fail("the peer sent data without a request")
            return
        if not self.head_done:
            if self._parser is None and self._handle_cached(data):
                return
        elif self._missing_bytes:
            self._handle_body(data)
            return
        parser = self._parser
        if parser is None:
            # Created lazily, because the header block of most responses is cached.
            self._first_bytes = data[:MAX_KNOWN_BYTES]
            self.headers = {}
            parser = self._parser = httptools.HttpResponseParser(self)
        buffered_bytes = self._buffered_bytes
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail("the peer switched protocols")
        except httptools.HttpParserError as error:
            self.fail(f"the answer is not HTTP ({error})")
        if not self.head_done or self._buffered_bytes == buffered_bytes:
            # The parser buffers an unfinished header or trailer. Limit its size by counting the input.
            self._fed_bytes += len(data)
            if self._fed_bytes > MAX_HEAD_BYTES and not self.complete:
                self.fail(_TOO_LARGE)
        else:
            self._fed_bytes = 0
        if self._first_bytes:
            self._cache_header_block()
        # Wake the reader of an event stream for each part. Other readers are woken when the response is complete, or
        # when so much is buffered that reading has paused.
        if self.complete or self._streams or self._paused or self.lost is not None:
            self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        # The end of the connection completes a body without a declared length. Any other incomplete body is truncated.
        if self.head_done and not self.complete and error is None and self._ends_at_close():
            self.complete = True
        if self.lost is None:
            self.lost = f"the connection was lost ({error})" if error else "the peer closed the connection"
        self._wake()

    def _handle_cached(self, data: bytes) -> bool:
        """Handle the first data of a response if its header block is cached; return whether it is."""
        header_block = self._latest
        parts = header_block.split(data) if header_block is not None else None
        if header_block is None or parts is None:
            header_block = RESPONSE_HEADERS.find(data)
            parts = header_block.split(data) if header_block is not None else None
            if header_block is None or parts is None:
                return False
            self._latest = header_block
        length, body = parts
        self.status, self.head_done, self.reusable = 200, True, True
        if header_block.is_json and length == len(body) > 0:
            # Fast path for most responses. `Response.length` derives Content-Length from the body.
            self.headers, self.complete, self.plain = header_block.headers, True, body
            self._body.append(body)
            self._buffered_bytes = length
            self._wake()
            return True
        self.headers = {**header_block.headers, "content-length": str(length)}
        self._missing_bytes = length
        self._handle_body(body)
        return True

    def _handle_body(self, data: bytes) -> None:
        """Handle a part of the body of a response whose header block is cached."""
        missing_bytes = self._missing_bytes - len(data)
        if missing_bytes < 0:
            # The response is complete and valid, but the connection must not be reused.
            self.lost = "the peer sent data without a request"
            data, missing_bytes = data[:missing_bytes], 0
        self._missing_bytes = missing_bytes
        if data:
            self.on_body(data)
        if not missing_bytes:
            self.complete = True
            self._set_plain()
        if self.lost is not None:
            self.abort()
        if self.complete or self._paused:
            self._wake()

    def _cache_header_block(self) -> None:
        """Cache the header block of a completely parsed response."""
        if not self.complete or self.lost is not None:
            return
        first_bytes, self._first_bytes = self._first_bytes, b""
        RESPONSE_HEADERS.learn(first_bytes, self.headers, is_kept=self.reusable)
        self._set_plain()

    def _set_plain(self) -> None:
        """Set `plain` if the body is complete, in one piece, and unencoded JSON."""
        headers = self.headers
        if self.status != 200 or len(self._body) != 1 or self._paused or "content-encoding" in headers:
            return
        if media_type(headers.get("content-type", "")) == "application/json":
            self.plain = self._body[0]

    # httptools callbacks

    def on_message_begin(self) -> None:
        # Unexpected data has arrived in the same segment as the end of the response; see `data_received`.
        if self.complete:
            raise ValueError("the peer sent data without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_line(len(name) + len(value) + _SEPARATORS_BYTES)
        # Trailers count towards the limits but are ignored: they must not change what the headers said.
        if not self.head_done:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        fields, self._fields = self._fields, []
        # An informational response (1xx) precedes the final one.
        if self.status < 200:
            self._count_line(_STATUS_LINE_BYTES)
            return
        self.head_done = True
        self.headers = headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in fields}
        if len(headers) != len(fields):
            self._read_repeated(fields)
        elif "set-cookie" in headers:
            self.set_cookies = [headers["set-cookie"]]
        self._streams = headers.get("content-type", "").lstrip().lower().startswith("text/event-stream")

    def _read_repeated(self, fields: list[tuple[bytes, bytes]]) -> None:
        """Join the lines of list headers, and store every cookie. For other repeated headers, the last line counts."""
        lines: dict[str, list[str]] = {}
        for name, value in fields:
            lines.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        self.set_cookies = lines.get("set-cookie", [])
        for key in _LIST_HEADERS.intersection(lines):
            self.headers[key] = ", ".join(lines[key])

    def _count_line(self, size_bytes: int) -> None:
        self._head_lines += 1
        self._head_bytes += size_bytes
        if self._head_lines > MAX_HEAD_LINES or self._head_bytes > MAX_HEAD_BYTES:
            self.lost = self.lost or _TOO_LARGE
            raise ValueError(_TOO_LARGE)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._buffered_bytes += len(body)
        full = self._buffered_bytes >= PAUSE_BYTES or len(self._body) >= _PAUSE_PIECES
        if full and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status < 200:
            return
        assert self._parser is not None
        self.complete = True
        self.reusable = self._parser.should_keep_alive()

    # Called during an exchange

    @property
    def pieces(self) -> int:
        """Return the number of body chunks that have not been consumed yet."""
        return len(self._body)

    def write(self, data: bytes) -> None:
        """Send a complete request.

        Raises:
            ConnectionLost: The connection is already closed; nothing was sent.
        """
        transport = self._transport
        if transport is None or self.lost is not None or transport.is_closing():
            raise ConnectionLost(self.lost or "the connection is closed", sent=False)
        if self._parser is not None:
            # The parser was used for the previous response.
            self._parser, self._first_bytes = None, b""
            self._head_lines = self._head_bytes = self._fed_bytes = 0
            self.set_cookies = []
        self._buffered_bytes = self._missing_bytes = 0
        self.head_done = self.complete = False
        transport.write(data)

    def read_body(self) -> bytes:
        """Return the part of the body that has arrived since the last call."""
        parts: list[bytes] = []
        self.read_body_into(parts)
        return b"".join(parts)

    def read_body_into(self, parts: list[bytes]) -> int:
        """Append the part of the body that has arrived to `parts`; return its size in bytes."""
        taken_bytes, self._buffered_bytes = self._buffered_bytes, 0
        if taken_bytes:
            # Join the chunks, so that a body in chunks of one byte does not become a list of millions of items.
            parts += self._body if len(self._body) == 1 else [b"".join(self._body)]
            self._body.clear()
            if self._paused and self._transport is not None and not self._transport.is_closing():
                self._paused = False
                self._transport.resume_reading()
        return taken_bytes

    def wait_change(self) -> asyncio.Future[None]:
        """Return a future that completes when the state of the connection changes."""
        # A single waiter is enough, because an exchange has one reader.
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def fail(self, reason: str) -> None:
        """Close the connection and record the reason."""
        self.lost = self.lost or reason
        self.abort()

    def abort(self) -> None:
        """Close the socket without flushing its write buffer."""
        if self._transport is not None:
            self._transport.abort()

    def is_usable(self, longest_idle_s: float) -> bool:
        """Return whether the connection can be used for another exchange.

        Args:
            longest_idle_s: The longest permitted time since the last exchange, in seconds.
        """
        transport = self._transport
        if self.lost is not None or transport is None or transport.is_closing():
            return False
        # Check the socket for unread data or EOF: the event loop may not have reported them yet.
        poll = self._poll or self._new_poll(transport)
        return self._loop.time() - self._idle_since_s < longest_idle_s and not (poll is not None and poll.poll(0))

    def _new_poll(self, transport: asyncio.Transport) -> select.poll | None:
        # A poll object is the cheapest check: it takes half a microsecond, and works for any descriptor.
        sock = transport.get_extra_info("socket")
        if sock is None or not hasattr(select, "poll"):
            return None
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        return self._poll

    def end(self) -> bool:
        """End an exchange; return whether the connection can be reused."""
        if not self.complete or not self.reusable or self.lost is not None:
            return False
        if self._paused:
            self.read_body()
        self._body.clear()
        self.plain = None
        self._idle_since_s = self._loop.time()
        return True

    def _ends_at_close(self) -> bool:
        return "content-length" not in self.headers and "chunked" not in self.headers.get("transfer-encoding", "")

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
