"""One client connection: answer its requests in order.

uvicorn uses `HttpProtocol` through its public setting `http`. Once the header block of a request is complete, a handler
admits or rejects the request. Once the body is complete, the handler answers; the body of a rejected request is
discarded. A client may send further requests before the first one is answered (pipelining).

Sources: RFC 9112 "HTTP/1.1"; RFC 9110, section 10.1.1 "Expect".
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import struct
from collections import deque
from contextlib import suppress
from typing import Any, Final, cast

from gateway.access.quotas import Account
from gateway.http.http_request import DISCARDED_BYTES, RequestHead, RequestRefused, over_quota
from gateway.http.request_reader import RequestReader
from gateway.http.responder import Responder
from gateway.http.server_connections import Admission, Connections, Handler, Router
from gateway.http.server_header_cache import ConnectionHeaderCache
from gateway.protocol.gateway_errors import QuotaExceeded

log = logging.getLogger(__name__)

HEAD_S: Final = 15.0
"""How long a header block may take to arrive. It fits into a few packets, so only an attacker needs longer."""
BODY_S: Final = 30.0
"""How long a body may take to arrive: 4 MiB at 1 Mbit/s."""
KEEP_ALIVE_S: Final = 20.0
"""How long a connection may be idle between requests: longer than in httpx (5 s), Node (4 s) and aiohttp (15 s).

If the gateway closed the connection first, a request that is just being sent would be lost, and clients do not repeat a
POST.
"""
# The limits of pipelined requests on one connection, far above what regular clients send.
_MAX_PIPELINED: Final = 64
_MAX_PIPELINED_BYTES: Final = 1024 * 1024
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: 20\r\n"
    b"retry-after: 1\r\nconnection: close\r\n\r\nToo many connections"
)


class HttpProtocol(asyncio.Protocol):
    """One connection of a client.

    Attributes:
        closing: True if further input is ignored, and the connection closes after the remaining responses.
        is_cut: True once the connection was aborted; `connection_lost` follows a moment later.
        taken_s: When the client last read something, or last had nothing to read.
        address: The IP address of the client; empty for a Unix socket.
        deadline_s: When the connection is dropped unless the expected input arrives before.
    """

    def __init__(self, connections: Connections, router: Router, *, ending: set[Any] | None = None) -> None:
        """Create the protocol of a connection that is about to be made.

        Args:
            ending: The set of connections for which uvicorn calls `shutdown` when it stops.
        """
        self._connections = connections
        self._router = router
        self._ending = ending if ending is not None else set()
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(self)
        self._peer = self.address = ""
        self._is_served = True
        self.closing = False
        self._closes_after_body = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._unread_before_bytes = 0
        # The total size and the largest size of the large writes since the client last had nothing left to read.
        self._written_bytes = self._largest_bytes = 0
        self.deadline_s = math.inf
        # The handler of the request that is arriving, set once all earlier requests are answered.
        self._handler: Handler | None = None
        self._admission: Admission | None = None
        self._heads = ConnectionHeaderCache(connections.heads)
        # The responder of the current request, and the pipelined requests, each with its body or its rejection.
        self._responder: Responder | None = None
        self._waiting: deque[tuple[RequestHead, bytes] | RequestRefused] = deque()
        self._waiting_bytes = 0
        # The number of bytes of unfinished requests that are charged to an account, and this account.
        self._held_bytes = 0
        self._account: Account | None = None
        self.is_cut = False
        self.taken_s = self._loop.time()
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)

    # Connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's classes.
        self.transport = cast(asyncio.Transport, transport)
        self._ending.add(self)
        peer = transport.get_extra_info("peername")
        # A Unix socket has no peer name.
        if isinstance(peer, tuple):
            self._peer, self.address = f"{peer[0]}:{peer[1]}", str(peer[0])
        is_read, self._is_served = self._connections.add(self)
        self.deadline_s = self._loop.time() + self._connections.silent_s
        if not is_read:
            self.closing = True
            self.transport.write(_FULL)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self._ending.discard(self)
        self.closing = True
        self._writable.set()
        self._waiting.clear()
        self._heads.ahead = b""
        self._release_charge()
        if self._responder is not None:
            self._responder.disconnect()
            self._responder = None
        self._reader.close()

    def pause_writing(self) -> None:
        self._writable.clear()
        self._connections.paused(self)

    def resume_writing(self) -> None:
        self._writable.set()
        if not self.held_bytes:
            self._connections.resumed(self)

    @property
    def is_waiting(self) -> bool:
        """Return whether the client has sent no request yet, is idle, or has sent only a part of a header block."""
        # The connection is not waiting either while the client still has to read a response.
        busy = self._responder is not None or self._waiting or self._heads.ahead or self._reader.head is not None
        return not busy and not self.unread_bytes

    @property
    def is_drained(self) -> bool:
        """Return whether the client has read enough of the data written so far, or has disconnected."""
        return self._writable.is_set()

    async def drain(self) -> None:
        """Wait until `is_drained`."""
        await self._writable.wait()

    @property
    def unread_bytes(self) -> int:
        """Return how many bytes the client still has to read."""
        return self.transport.get_write_buffer_size()

    @property
    def held_bytes(self) -> int:
        """Return how many bytes are in memory for the client; a large write counts until its last byte is read."""
        unread_bytes = self.unread_bytes
        if not unread_bytes:
            self._written_bytes = self._largest_bytes = 0
        # At most one write is partly read: all of it is still in memory. Earlier writes have been freed.
        return max(unread_bytes, min(self._written_bytes, unread_bytes + self._largest_bytes))

    def record_write(self, size_bytes: int) -> None:
        """Record a large write, whose data stays in memory until its last byte is read."""
        if self.unread_bytes:
            self._written_bytes += size_bytes
            self._largest_bytes = max(self._largest_bytes, size_bytes)
            # Called here, too: if little is unread, the transport does not call `pause_writing`.
            self._connections.paused(self)

    def check_deadlines(self, now_s: float) -> None:
        """Apply the deadline of the request that is arriving, and record whether the client reads its responses."""
        unread_bytes = self.unread_bytes
        if not unread_bytes or unread_bytes < self._unread_before_bytes:
            self.taken_s = now_s
        self._unread_before_bytes = unread_bytes
        if not self.held_bytes:
            self._connections.resumed(self)
        if self._responder is not None:
            self._responder.ping_if_silent(now_s)
        if now_s >= self.deadline_s:
            reader = self._reader
            has_begun = reader.in_head or reader.head is not None or bool(self._heads.ahead)
            if unread_bytes and self._responder is None and not has_begun:
                # Not idle: the client is still reading its last response. `Connections` limits the time for that.
                self.deadline_s = now_s + KEEP_ALIVE_S
                return
            self.deadline_s = math.inf
            self._handle_timeout()

    def cut(self) -> None:
        """Abort the connection and discard unread data, including the data in the kernel's buffer."""
        with suppress(OSError, AttributeError):
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.is_cut = self.closing = True
        self._connections.record_abort()
        self.transport.abort()

    def shutdown(self) -> None:
        """Close the connection after the current response; uvicorn calls this when it stops."""
        if self._heads.ahead:
            self._read_ahead()
        if self._responder is not None:
            self._responder.close_after()
        elif self._waiting:
            self.closing = True  # closed once the pipelined requests are answered
        else:
            self.transport.close()

    def _handle_timeout(self) -> None:
        if self._heads.ahead:
            self._read_ahead()
            if self._handler is None:
                return  # the request was rejected by its header block
        if self._handler is not None:
            self.refuse(RequestRefused(408, "the body did not arrive in time", close=True))
        else:
            # No response is due: the client is idle, in the middle of a header block, or sending a discarded body.
            self.transport.abort()

    # Input

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        reader = self._reader
        # True if a request begins here, and no other request is being read or answered.
        is_first = not reader.in_head and reader.head is None and self._responder is None and not self._waiting
        if is_first:
            heads = self._heads
            if heads.ahead:
                data, heads.ahead = heads.ahead + data, b""
            elif heads.store_ahead(data):
                self.deadline_s = self._loop.time() + BODY_S
                return
            cached = heads.find(data)
            if cached is not None:
                self._answer_cached(*cached)
                return
            heads.start_request(data)
        reader.feed(data)
        unfinished_bytes = reader.held_bytes + self._waiting_bytes
        if unfinished_bytes or self._held_bytes:
            admission = self._admission
            try:
                self._charge(self._connections.anonymous if admission is None else admission.account, unfinished_bytes)
            except QuotaExceeded as error:
                if self._handler is None or self._responder is None:
                    self.refuse(over_quota(error, close=True))
                else:
                    # Discard the rest of the body, so that its sender can read the response.
                    self._handler = self._admission = None
                    reader.discard()
                    self._responder.refuse(over_quota(error))

    def _read_ahead(self) -> None:
        """Parse the header block that was stored because its body had not arrived."""
        heads = self._heads
        data, heads.ahead = heads.ahead, b""
        heads.start_request(data)
        self._reader.feed(data)

    def _release_charge(self) -> None:
        """Charge no account any more."""
        if self._account is not None:
            self._account.release(self._held_bytes)
        self._account, self._held_bytes = None, 0

    def _charge(self, account: Account | None, size_bytes: int) -> None:
        """Charge an account for the parts of unfinished requests in memory."""
        self._release_charge()
        if account is not None and size_bytes:
            account.hold(size_bytes)
            self._account, self._held_bytes = account, size_bytes

    # Events of the reader

    def head_begins(self) -> None:
        self.deadline_s = self._loop.time() + HEAD_S

    def head_arrived(self, head: RequestHead) -> None:
        self._heads.head_arrived(head)
        self.deadline_s = self._loop.time() + BODY_S
        if self._responder is None and not self._waiting:
            self._admit(head)

    def body_grew(self, size_bytes: int) -> None:
        if self._handler is not None:
            if size_bytes > self._handler.max_body_bytes:
                self.refuse(_too_large(self._handler.max_body_bytes, close=True))
        elif self._waiting_bytes + size_bytes > _MAX_PIPELINED_BYTES:
            self.cut()

    def arrived(self, head: RequestHead, body: bytes | None) -> None:
        self.deadline_s = math.inf
        if self._closes_after_body or not head.keep_alive:
            self.closing = True
        if body is None:
            self._heads.arrived(head, accepted=False)
            if self._responder is None and not self._waiting:
                self._become_idle()
            return
        if self._held_bytes:
            self._release_charge()  # from here on, the handler charges the account
        handler, self._handler = self._handler, None
        self._heads.arrived(head, accepted=handler is not None)
        admission, self._admission = self._admission, None
        if handler is not None and self._responder is not None:
            self._answer(handler, head, admission, body, self._responder)
            return
        if len(self._waiting) >= _MAX_PIPELINED:
            self.cut()
            return
        self._waiting.append((head, body))
        self._waiting_bytes += len(body)

    # Answering

    def _admit(self, head: RequestHead) -> bool:
        """Admit a request once all earlier ones were answered. If it is rejected, discard its body and return false.

        Rejecting a request may start the next request at once, so nothing is stored about this request afterwards.
        """
        responder = self._responder = Responder.for_request(head, self, self._loop)
        if self._connections.leaving:
            responder.close_after()
        try:
            handler, admission = self._find_handler(head, head.content_length, responder)
            if head.raw(b"expect") is not None:
                self._check_expect(head)
        except RequestRefused as refused:
            if self._reader.head is head and not refused.close:
                self._reader.discard()
            responder.refuse(refused)
            return False
        self._handler, self._admission = handler, admission
        return True

    def _find_handler(
        self, head: RequestHead, length: int | None, responder: Responder
    ) -> tuple[Handler, Admission | None]:
        """Return the handler of a request, and what the handler's `admit` has returned.

        Raises:
            RequestRefused: No handler accepts the request.
        """
        handler = self._router.route(head)
        responder.cross_origin = head.cross_origin
        if not self._is_served:
            raise RequestRefused(503, "Too many connections", [(b"retry-after", b"1")], close=True)
        admission = handler.admit(head, self._peer)
        if length is not None and length > handler.max_body_bytes:
            raise _too_large(handler.max_body_bytes, close=length > DISCARDED_BYTES)
        return handler, admission

    def _check_expect(self, head: RequestHead) -> None:
        if head.text(b"expect").lower() != "100-continue":
            raise RequestRefused(417, "only Expect: 100-continue is supported")
        # A client that has already sent a part of the body does not wait for this line.
        if self._reader.head is head and not self._reader.has_body and head.version == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _answer(
        self, handler: Handler, head: RequestHead, admission: Admission | None, body: bytes, responder: Responder
    ) -> None:
        try:
            handler.answer(head, admission, body, responder, self._peer)
        except RequestRefused as refused:
            responder.refuse(refused)
        except Exception:  # boundary: an internal error ends this request only
            log.exception("request failed")
            responder.fail()

    def close_after_response(self) -> None:
        """Close the connection at once, or after the rest of a body that is being discarded.

        Closing a socket with unread input resets the connection, in which case the client may lose the response.
        """
        if not self._reader.discarding:
            self.transport.close()
            return
        self._closes_after_body = True
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def response_ended(self) -> None:
        """Continue with the next pipelined request, if there is one."""
        self._responder = None
        reader = self._reader
        if self.transport.is_closing():
            self.closing = True
        elif self._waiting:
            # Scheduled instead of called, because a series of rejected requests would nest one call for each request.
            self._loop.call_soon(self._answer_next)
        elif reader.head is not None and not reader.discarding:
            self._admit(reader.head)  # its body is still arriving
        else:
            self._become_idle()

    def _answer_next(self) -> None:
        if self._responder is not None or not self._waiting or self.transport.is_closing():
            return
        turn = self._waiting.popleft()
        if isinstance(turn, RequestRefused):
            self._responder = Responder.for_request(_UNREADABLE, self, self._loop)
            self._responder.refuse(turn)
            return
        head, body = turn
        self._waiting_bytes -= len(body)
        self._answer_complete(head, body)

    def _answer_complete(self, head: RequestHead, body: bytes) -> None:
        """Admit and answer a complete request."""
        if self._admit(head):
            handler, self._handler = self._handler, None
            admission, self._admission = self._admission, None
            assert handler is not None
            assert self._responder is not None
            self._answer(handler, head, admission, body, self._responder)

    def _answer_cached(self, head: RequestHead, body: bytes) -> None:
        """Admit and answer a complete request whose header block is cached."""
        self.deadline_s = math.inf
        responder = self._responder = Responder(self, self._loop, keep_alive=not self._connections.leaving)
        try:
            handler, admission = self._find_handler(head, len(body), responder)
        except RequestRefused as refused:
            responder.refuse(refused)
            return
        self._answer(handler, head, admission, body, responder)

    def _become_idle(self) -> None:
        """Close the connection if `closing` is true; otherwise wait for the next request."""
        reader = self._reader
        if self.closing:
            self.transport.close()
        elif reader.head is None and not reader.in_head:
            self.deadline_s = self._loop.time() + KEEP_ALIVE_S

    def refuse(self, refused: RequestRefused) -> None:
        """Reject the request that is arriving, and ignore further input. Earlier requests are still answered."""
        self.closing = True
        self.deadline_s = math.inf
        self._reader.stop()
        if self._reader.head is not None and self._responder is not None and self._handler is not None:
            # The request was admitted, and its response has not begun.
            self._handler, self._admission = None, None
            self._responder.refuse(refused)
            return
        self._waiting.append(refused)
        if self._responder is None:
            self._answer_next()


_UNREADABLE: Final = RequestHead(b"GET", b"/", [], version="1.1", keep_alive=False)
"""Used in place of a request that could not be parsed."""


def _too_large(limit_bytes: int, *, close: bool) -> RequestRefused:
    return RequestRefused(413, f"a request may have at most {limit_bytes} bytes", close=close)
