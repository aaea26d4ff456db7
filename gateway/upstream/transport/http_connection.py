"""One socket to an HTTP/1.1 server: it carries one exchange at a time, within its bounds."""

from __future__ import annotations

import asyncio
import select
from typing import Final, cast

import httptools

from gateway.errors import ConnectionLost
from gateway.upstream.transport.bounds import PAUSE_BYTES
from gateway.upstream.transport.known_heads import KNOWN_HEADS, MAX_KNOWN_BYTES, KnownHead
from gateway.upstream.transport.media_type import media_type
from gateway.upstream.transport.proxies import Proxy

# What servers in use accept of requests (8 to 64 KiB), applied to all header blocks of one answer: the informational
# responses before it (1xx), its own headers and its trailers.
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEAD_LINES: Final = 256
# Of all headers that are read only these are lists, which may stand on several lines.
_LISTS: Final = frozenset({"www-authenticate", "content-encoding"})
# Of a status line without its reason, and what stands beside name and value in a header line.
_STATUS_LINE_BYTES: Final = len("HTTP/1.1 200 \r\n")
_SEPARATORS_BYTES: Final = len(": \r\n")
# Chunks of some bytes cost more to be read than to be sent: no more is read before these are taken.
_PAUSE_PIECES: Final = 2_048
_TOO_LARGE: Final = (
    f"the headers of the answer are too large: more than {MAX_HEAD_LINES} lines or {MAX_HEAD_BYTES // 1024} KiB"
)


class HttpConnection(asyncio.Protocol):
    """One socket.

    Attributes:
        origin: Where it leads to, as its owner names it.
        via: The proxy that forwards its requests one by one; None where it leads to the origin itself.
        lost: Why it can carry nothing more; None while it can.
        status: Of the answer; 0 before its head is there.
        head_done: The head of the answer has come.
        complete: The whole answer has come, or nothing was asked yet.
        reusable: The server keeps the connection open after it.
        set_cookies: The Set-Cookie headers of the answer.
        plain: The body of an answer with status 200 that is JSON and is there as a whole, small and in one piece.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, origin: str) -> None:
        self._loop = loop
        self._parser: httptools.HttpResponseParser | None = None
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._poll: select.poll | None = None
        self._latest: KnownHead | None = None
        self.origin = origin
        self.via: Proxy | None = None
        self.lost: str | None = None
        self._idle_since_s = 0.0
        self._begun = b""
        self._body: list[bytes] = []
        # Header lines of the block that is arriving; lines and bytes of all blocks of this answer; and bytes that were
        # fed to the parser in which neither the headers nor the body went on, such as a header that does not end.
        self._fields: list[tuple[bytes, bytes]] = []
        self._head_lines = self._head_bytes = self._fed_bytes = 0
        self._buffered_bytes = self._missing_bytes = 0
        self._pauses_from_bytes = PAUSE_BYTES
        self._paused = self._streams = False
        self.plain: bytes | None = None
        self.headers: dict[str, str] = {}
        self.set_cookies: list[str] = []
        self.status = 0
        self.head_done = self.reusable = False
        self.complete = True

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports derive from none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.complete:
            # Before a request, or after its answer: they would be taken for the answer to the next request.
            self.fail("the peer speaks unasked")
            return
        if not self.head_done:
            if self._parser is None and self._take_known(data):
                return
        elif self._missing_bytes:
            self._take_more(data)
            return
        parser = self._parser
        if parser is None:
            # Made when it is needed: of most answers the head is known.
            self._begun = data[:MAX_KNOWN_BYTES]
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
            # The parser keeps an unfinished header or trailer to itself: its size is known only by what was fed.
            self._fed_bytes += len(data)
            if self._fed_bytes > MAX_HEAD_BYTES and not self.complete:
                self.fail(_TOO_LARGE)
        else:
            self._fed_bytes = 0
        if self._begun:
            self._look_back()
        # Whoever waits for a plain answer waits for all of it, or for so much that it is to be taken away.
        if self.complete or self._streams or self._paused or self.lost is not None:
            self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        # Without a length the end of the connection is the end of the body; with one it is a truncation.
        if self.head_done and not self.complete and error is None and self._until_close():
            self.complete = True
        if self.lost is None:
            self.lost = f"the connection was lost ({error})" if error else "the peer closed the connection"
        self._wake()

    def _take_known(self, data: bytes) -> bool:
        """Take the beginning of an answer, or all of it, with a head that was read before."""
        known = self._latest
        found = known.split(data) if known is not None else None
        if known is None or found is None:
            known = KNOWN_HEADS.find(data)
            found = known.split(data) if known is not None else None
            if known is None or found is None:
                return False
            self._latest = known
        length, body = found
        self.status, self.head_done, self.reusable = 200, True, True
        if known.is_json and length == len(body) > 0:
            # Nearly all of them; how long it is can be seen.
            self.headers, self.complete, self.plain = known.headers, True, body
            self._body.append(body)
            self._buffered_bytes = length
            self._wake()
            return True
        self.headers = {**known.headers, "content-length": str(length)}
        self._missing_bytes = length
        self._take_more(body)
        return True

    def _take_more(self, data: bytes) -> None:
        """Take a part of the body of an answer whose head is known."""
        missing_bytes = self._missing_bytes - len(data)
        if missing_bytes < 0:
            # As where the parser reads it: the answer counts, and its connection is of no more use.
            self.lost = "the peer speaks unasked"
            data, missing_bytes = data[:missing_bytes], 0
        self._missing_bytes = missing_bytes
        if data:
            self.on_body(data)
        if not missing_bytes:
            self.complete = True
            self._look_for_json()
        if self.lost is not None:
            self.abort()
        if self.complete or self._paused:
            self._wake()

    def _look_back(self) -> None:
        """Look at what was read byte by byte, once it is a whole answer."""
        if not self.complete or self.lost is not None:
            return
        begun, self._begun = self._begun, b""
        KNOWN_HEADS.learn(begun, self.headers, is_kept=self.reusable)
        self._look_for_json()

    def _look_for_json(self) -> None:
        """Note a body that is whole and JSON as it stands."""
        headers = self.headers
        if self.status != 200 or len(self._body) != 1 or self._paused or "content-encoding" in headers:
            return
        if media_type(headers.get("content-type", "")) == "application/json":
            self.plain = self._body[0]

    # httptools callbacks

    def on_message_begin(self) -> None:
        # As in `data_received`, in the segment in which the answer ends.
        if self.complete:
            raise ValueError("the peer speaks unasked")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_line(len(name) + len(value) + _SEPARATORS_BYTES)
        # Trailers are counted and left out: what comes after the body may change nothing that the headers said.
        if not self.head_done:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        fields, self._fields = self._fields, []
        # 1xx comes before the answer itself.
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
        """Join the lines of lists, and keep each cookie; of any other header the last line counts."""
        lines: dict[str, list[str]] = {}
        for name, value in fields:
            lines.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        self.set_cookies = lines.get("set-cookie", [])
        for key in _LISTS.intersection(lines):
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
        full = self._buffered_bytes >= self._pauses_from_bytes or len(self._body) >= _PAUSE_PIECES
        if full and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status < 200:
            return
        assert self._parser is not None
        self.complete = True
        self.reusable = self._parser.should_keep_alive()

    # what an exchange uses

    @property
    def pieces(self) -> int:
        """In how many pieces the part of the body came that was not taken yet."""
        return len(self._body)

    def write(self, data: bytes, pauses_from_bytes: int = PAUSE_BYTES) -> None:
        """Send a request.

        Args:
            data: All of it.
            pauses_from_bytes: Once so much of the answer has arrived, who waits is woken, and no more is read before it
                is taken.

        Raises:
            ConnectionLost: The socket is closed already; nothing was sent.
        """
        transport = self._transport
        if transport is None or self.lost is not None or transport.is_closing():
            raise ConnectionLost(self.lost or "the connection is closed", sent=False)
        if self._parser is not None:
            # The answer before was read by it.
            self._parser, self._begun = None, b""
            self._head_lines = self._head_bytes = self._fed_bytes = 0
            self.set_cookies = []
        self._buffered_bytes = self._missing_bytes = 0
        self._pauses_from_bytes = pauses_from_bytes
        self.head_done = self.complete = False
        transport.write(data)

    def take(self) -> bytes:
        """What of the body has arrived and was not taken yet."""
        parts: list[bytes] = []
        self.take_into(parts)
        return b"".join(parts)

    def take_into(self, parts: list[bytes]) -> int:
        """As `take`, into a list; returns how many bytes it was."""
        taken_bytes, self._buffered_bytes = self._buffered_bytes, 0
        if taken_bytes:
            # Chunks of one byte must not become a list of millions.
            parts += self._body if len(self._body) == 1 else [b"".join(self._body)]
            self._body.clear()
            if self._paused and self._transport is not None and not self._transport.is_closing():
                self._paused = False
                self._transport.resume_reading()
        return taken_bytes

    def changed(self) -> asyncio.Future[None]:
        """What is done when something has changed."""
        # One waiter: an exchange has one reader.
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def fail(self, reason: str) -> None:
        """End the connection for a reason of ours."""
        self.lost = self.lost or reason
        self.abort()

    def abort(self) -> None:
        """Close the socket at once, without sending what is buffered."""
        if self._transport is not None:
            self._transport.abort()

    def is_usable(self, longest_idle_s: float) -> bool:
        """Whether it can carry another exchange.

        Args:
            longest_idle_s: How long ago the last exchange may have ended.
        """
        transport = self._transport
        if self.lost is not None or transport is None or transport.is_closing():
            return False
        # Whether something has arrived that was not read yet, or the end: the loop may not have had a turn since.
        poll = self._poll or self._new_poll(transport)
        return self._loop.time() - self._idle_since_s < longest_idle_s and not (poll is not None and poll.poll(0))

    def _new_poll(self, transport: asyncio.Transport) -> select.poll | None:
        # A poll object is the cheapest look there is: half a microsecond, and good for any descriptor.
        sock = transport.get_extra_info("socket")
        if sock is None or not hasattr(select, "poll"):
            return None
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        return self._poll

    def end(self) -> bool:
        """End an exchange; whether another one may use the connection."""
        if not self.complete or not self.reusable or self.lost is not None:
            return False
        if self._paused:
            self.take()
        self._body.clear()
        self.plain = None
        self._idle_since_s = self._loop.time()
        return True

    def _until_close(self) -> bool:
        return "content-length" not in self.headers and "chunked" not in self.headers.get("transfer-encoding", "")

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
