"""One connection of a caller: requests are read one after the other, each within its bounds, and answered in order.

Written on httptools, and handed to uvicorn by its public setting `http`. A request is whole before it is answered:
its head is judged when it is complete, and a body that nobody wants is not kept.

Sources: RFC 9112 "HTTP/1.1"; RFC 9110, section 7.8 "Upgrade" and section 10.1.1 "Expect".
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import struct
from collections import deque
from contextlib import suppress
from typing import Any, Final, Protocol, cast

import httptools

from gateway.access.quotas import Account
from gateway.downstream.http.connections import Connections
from gateway.downstream.http.request import DISCARDED_BYTES, RequestHead, RequestRefused, over_quota
from gateway.downstream.http.responder import Responder
from gateway.errors import QuotaExceeded

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 64 * 1024
"""Request line and fields. Servers in wide use accept 8 to 64 KiB; tokens and cookies fit."""
MAX_FIELDS: Final = 256
"""Header fields of one request; a browser sends about 20."""
HEAD_S: Final = 15.0
"""How long a head may take to arrive. It fits into a few packets; only an attack is slower."""
BODY_S: Final = 30.0
"""How long a body may take: 4 MiB at 1 Mbit/s."""
KEEP_ALIVE_S: Final = 5.0
"""How long a connection may be idle between requests, as with uvicorn and Node."""
# Nobody sends more requests ahead of the first answer but to see what happens.
_MAX_PIPELINED: Final = 64
_MAX_PIPELINED_BYTES: Final = 1024 * 1024
# A request line without a version is one of HTTP/0.9 to the parser, and what stands in its place part of the target.
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: 20\r\n"
    b"retry-after: 1\r\nconnection: close\r\n\r\nToo many connections"
)
_UPGRADE_FIELDS: Final = frozenset({b"upgrade", b"http2-settings"})


class Admission(Protocol):
    """What a handler knows of a request whose head it has accepted.

    Attributes:
        account: On which the request is held while it arrives; None where its sender is trusted.
    """

    @property
    def account(self) -> Account | None: ...


class Handler(Protocol):
    """What answers the requests of one part of the address space.

    Attributes:
        max_body_bytes: The largest body that is collected for it.
    """

    @property
    def max_body_bytes(self) -> int: ...

    def admit(self, head: RequestHead, peer: str) -> Admission | None:
        """Judge a request by its head, before its body is read; what this returns is handed to `answer`.

        Raises:
            RequestRefused: It ends here.
        """

    def answer(self, head: RequestHead, admitted: Any, body: bytes, responder: Responder, peer: str) -> None:
        """Answer a whole request, at once or in a task of the responder.

        Raises:
            RequestRefused: It ends here.
        """


class Router(Protocol):
    """Chooses who answers."""

    def route(self, head: RequestHead) -> Handler:
        """The handler of a request.

        Raises:
            RequestRefused: Nobody's.
        """


class HttpProtocol(asyncio.Protocol):
    """One connection of a caller.

    Attributes:
        is_cut: We have dropped it; its end is heard a moment later.
        taken_s: When the caller was last seen to take something, or to have nothing to take.
    """

    def __init__(self, connections: Connections, router: Router, *, ending: set[Any] | None = None) -> None:
        """Serve a connection that is about to be made.

        Args:
            connections: Counts it and applies its deadlines.
            router: Knows who answers.
            ending: The set in which a server looks for connections that it has to shut down.
        """
        self._connections = connections
        self._router = router
        self._ending = ending if ending is not None else set()
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._peer = ""
        self._served = True
        # Nothing more is read: the connection closes after what is still to be answered.
        self._closing = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._unread_before_bytes = 0
        self._deadline_s = math.inf
        # The request that is arriving.
        self._in_head = False
        self._head_bytes = self._fed_bytes = 0
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._head: RequestHead | None = None
        self._handler: Handler | None = None
        self._admitted: Admission | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._discarding = False
        self._upgrading = False
        # The request that is being answered, and those that wait for their turn, each with its body or its refusal.
        self._responder: Responder | None = None
        self._waiting: deque[tuple[RequestHead, bytes] | RequestRefused] = deque()
        self._waiting_bytes = 0
        # What of all this is held on whose account; only what did not arrive as a whole ever is.
        self._held_bytes = 0
        self._account: Account | None = None
        self.is_cut = False
        self.taken_s = self._loop.time()
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports derive from none of asyncio's classes.
        self.transport = cast(asyncio.Transport, transport)
        self._ending.add(self)
        peer = transport.get_extra_info("peername")
        # A Unix socket has no name of its peer.
        self._peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) > 1 else ""
        is_read, self._served = self._connections.add(self)
        self._deadline_s = self._loop.time() + HEAD_S
        if not is_read:
            self._closing = True
            self.transport.write(_FULL)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self._ending.discard(self)
        self._closing = True
        self._writable.set()
        self._waiting.clear()
        self._hold(None, 0)
        if self._responder is not None:
            self._responder.disconnect()
            self._responder = None
        # The parser refers to this object, and this object to the parser.
        self._parser = None

    def pause_writing(self) -> None:
        self._writable.clear()
        self._connections.paused(self)

    def resume_writing(self) -> None:
        self._writable.set()
        self._connections.resumed(self)

    async def drain(self) -> None:
        """Return once the caller has read enough of what it was sent, or has left."""
        await self._writable.wait()

    @property
    def unread_bytes(self) -> int:
        """What waits here to be read."""
        return self.transport.get_write_buffer_size()

    def look(self, now_s: float) -> None:
        """Apply the deadline of what is arriving, and note whether the caller takes what it is sent."""
        unread_bytes = self.unread_bytes
        if not unread_bytes or unread_bytes < self._unread_before_bytes:
            self.taken_s = now_s
        self._unread_before_bytes = unread_bytes
        if self._responder is not None:
            self._responder.look(now_s)
        if now_s >= self._deadline_s:
            if unread_bytes and self._responder is None and self._head is None and not self._in_head:
                # Not idle: it still reads its last answer, for which it has the time that `Connections` gives it.
                self._deadline_s = now_s + KEEP_ALIVE_S
                return
            self._deadline_s = math.inf
            self._late()

    def cut(self) -> None:
        """Drop the connection, with all that is unread, the kernel's part too."""
        with suppress(OSError, AttributeError):
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.is_cut = self._closing = True
        self._connections.was_cut()
        self.transport.abort()

    def shutdown(self) -> None:
        """End after what is being answered; uvicorn asks for this when it stops."""
        if self._responder is not None:
            self._responder.keep_alive = False
        elif not self._waiting:
            self.transport.close()

    def _late(self) -> None:
        if self._handler is not None:
            self._refuse(RequestRefused(408, "the body did not arrive in time", close=True))
        else:
            # Idle, in the middle of a head, or sending what nobody wants: there is nobody to explain it to.
            self.transport.abort()

    # what arrives

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        goes_on = self._in_head
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            # What follows a request with `Connection: close` is an error to the parser, and nothing to us.
            if not self._closing:
                self._refuse(RequestRefused(400, "Invalid HTTP request received.", close=True))
        if goes_on and self._in_head:
            # The parser keeps an unfinished field to itself: what it holds is known only by what it was fed.
            self._fed_bytes += len(data)
            if self._fed_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
        unfinished_bytes = self._body_bytes + self._waiting_bytes
        if self._in_head:
            unfinished_bytes += max(self._head_bytes, self._fed_bytes)
        if unfinished_bytes or self._held_bytes:
            admitted = self._admitted
            try:
                self._hold(self._connections.nobody if admitted is None else admitted.account, unfinished_bytes)
            except QuotaExceeded as error:
                if self._handler is None or self._responder is None:
                    self._refuse(over_quota(error, close=True))
                else:
                    # The rest of the body is read and thrown away, so that its sender gets to read the refusal.
                    self._handler = self._admitted = None
                    self._body, self._body_bytes, self._discarding = [], 0, True
                    self._responder.refuse(over_quota(error))

    def _hold(self, account: Account | None, size_bytes: int) -> None:
        """Put what has arrived of unfinished requests on an account."""
        if self._account is not None:
            self._account.release(self._held_bytes)
        self._account, self._held_bytes = None, 0
        if account is not None and size_bytes:
            account.hold(size_bytes)
            self._account, self._held_bytes = account, size_bytes

    def on_message_begin(self) -> None:
        if self._closing:
            return
        self._in_head = True
        self._head_bytes = self._fed_bytes = 0
        self._target = b""
        self._fields = []
        self._deadline_s = self._loop.time() + HEAD_S

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._head_bytes += len(url)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: nothing that comes after the body may change what the head said
        self._fields.append((name.lower(), value))
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES or len(self._fields) > MAX_FIELDS:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._closing:
            return
        parser = self._parser
        method = parser.get_method()
        version = parser.get_http_version()
        if version not in _VERSIONS:
            self._refuse(RequestRefused(505, "only HTTP 1.0 and 1.1 are served", close=True))
            return
        if parser.should_upgrade():
            if method == b"CONNECT":
                self._refuse(RequestRefused(501, "CONNECT is not served", close=True))
            self._upgrading = True
            return
        head = self._head = RequestHead(
            method,
            self._target,
            self._fields,
            version=version,
            keep_alive=parser.should_keep_alive(),
        )
        # The parser takes lists that end in `chunked`, which a proxy before us may read in another way.
        if head.text(b"transfer-encoding", "chunked").lower() != "chunked":
            self._refuse(RequestRefused(501, "the only transfer coding that is taken is chunked", close=True))
            return
        self._body = []
        self._body_bytes = 0
        self._deadline_s = self._loop.time() + BODY_S
        if self._responder is None and not self._waiting:
            self._admit(head)

    def on_body(self, body: bytes) -> None:
        if self._closing or self._discarding:
            return
        self._body.append(body)
        self._body_bytes += len(body)
        if self._handler is not None:
            if self._body_bytes > self._handler.max_body_bytes:
                self._refuse(_too_large(self._handler.max_body_bytes, close=True))
        elif self._waiting_bytes + self._body_bytes > _MAX_PIPELINED_BYTES:
            self.cut()

    def on_message_complete(self) -> None:
        if self._closing or self._upgrading:
            return
        head, self._head = self._head, None
        self._deadline_s = math.inf
        assert head is not None
        if not head.keep_alive:
            self._closing = True
        if self._discarding:
            self._discarding = False
            self._rest()
            return
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        self._body_bytes = 0
        if self._held_bytes:
            self._hold(None, 0)  # from here on whoever answers counts it
        handler, self._handler = self._handler, None
        if handler is not None and self._responder is not None:
            self._answer(handler, head, body, self._responder)
            return
        if len(self._waiting) >= _MAX_PIPELINED:
            self.cut()
            return
        self._waiting.append((head, body))
        self._waiting_bytes += len(body)

    # what is done about it

    def _admit(self, head: RequestHead) -> Responder:
        """Judge a request whose turn it is; where it is refused, its body is read and thrown away."""
        responder = self._responder = Responder(self, head, self._loop)
        try:
            if not self._served:
                raise RequestRefused(503, "Too many connections", [(b"retry-after", b"1")], close=True)
            handler = self._router.route(head)
            admitted = handler.admit(head, self._peer)
            length = head.content_length
            if length is not None and length > handler.max_body_bytes:
                raise _too_large(handler.max_body_bytes, close=length > DISCARDED_BYTES)
            if head.raw(b"expect") is not None:
                self._expected(head)
        except RequestRefused as refused:
            self._discarding = self._head is head
            responder.refuse(refused)
        else:
            self._handler, self._admitted = handler, admitted
        return responder

    def _expected(self, head: RequestHead) -> None:
        if head.text(b"expect").lower() != "100-continue":
            raise RequestRefused(417, "only 100-continue can be expected")
        # Whoever has sent some of the body already waits for nothing.
        if self._head is head and not self._body and head.version == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _answer(self, handler: Handler, head: RequestHead, body: bytes, responder: Responder) -> None:
        admitted, self._admitted = self._admitted, None
        try:
            handler.answer(head, admitted, body, responder, self._peer)
        except RequestRefused as refused:
            responder.refuse(refused)
        except Exception:  # boundary: a fault of ours ends this request only
            log.exception("a request failed unexpectedly")
            responder.fail()

    def response_ended(self) -> None:
        """Go on with the request that has waited for its turn, if there is one."""
        self._responder = None
        if self.transport.is_closing():
            self._closing = True
            return
        if self._waiting:
            # Not from here: a row of requests that are all refused at once would nest this call for each of them.
            self._loop.call_soon(self._take_turn)
        elif self._head is not None and not self._discarding:
            self._admit(self._head)  # its body is still on its way
        else:
            self._rest()

    def _take_turn(self) -> None:
        if self._responder is not None or not self._waiting or self.transport.is_closing():
            return
        turn = self._waiting.popleft()
        if isinstance(turn, RequestRefused):
            self._responder = Responder(self, _UNREADABLE, self._loop)
            self._responder.refuse(turn)
            return
        head, body = turn
        self._waiting_bytes -= len(body)
        responder = self._admit(head)
        handler, self._handler = self._handler, None
        if handler is not None:
            self._answer(handler, head, body, responder)

    def _rest(self) -> None:
        """Wait for the next request."""
        if self._closing:
            if self._responder is None and not self._waiting:
                self.transport.close()
        elif self._responder is None and self._head is None and not self._in_head:
            self._deadline_s = self._loop.time() + KEEP_ALIVE_S

    def _refuse(self, refused: RequestRefused) -> None:
        """Refuse what is arriving and read no further; what is being answered is answered first."""
        self._closing = True
        self._in_head = False
        self._deadline_s = math.inf
        if self._head is not None and self._responder is not None and self._handler is not None:
            # It was admitted, and nothing is answered yet.
            self._handler, self._admitted, self._body = None, None, []
            self._responder.refuse(refused)
            return
        self._waiting.append(refused)
        if self._responder is None:
            self._take_turn()

    def _refuse_head(self) -> None:
        if not self._closing:
            self._refuse(RequestRefused(431, "the head of the request is too large", close=True))

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Read a request that asks for another protocol as if it did not; that is every server's right.

        The parser takes what follows such a head for the other protocol. It is asked again, without that wish, so that
        the body stays the body of this request.
        """
        self._upgrading = False
        if self._closing:
            return
        lines = [b"%b %b HTTP/1.1\r\n" % (self._parser.get_method(), self._target)]
        for name, value in self._fields:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(option for option in options if option.lower() not in _UPGRADE_OPTIONS)
            if name not in _UPGRADE_FIELDS:
                lines.append(b"%b: %b\r\n" % (name, value))
        self._parser = httptools.HttpRequestParser(self)
        self.data_received(b"".join((*lines, b"\r\n", rest)))


_UPGRADE_OPTIONS: Final = frozenset({b"upgrade", b"http2-settings"})
_UNREADABLE: Final = RequestHead(b"GET", b"/", [], version="1.1", keep_alive=False)
"""Stands for a request of which nothing is known."""


def _too_large(limit_bytes: int, *, close: bool) -> RequestRefused:
    return RequestRefused(413, f"a request may have {limit_bytes} bytes", close=close)
