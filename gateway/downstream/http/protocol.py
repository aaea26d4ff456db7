"""One connection of a caller: requests are answered in the order in which they came, each within its deadlines.

Handed to uvicorn by its public setting `http`. A request is whole before it is answered: its head is judged when it is
complete, and a body that nobody wants is not kept.

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
from gateway.downstream.http.connections import Connections
from gateway.downstream.http.handler import Admission, Handler, Router
from gateway.downstream.http.large_writes import LargeWrites
from gateway.downstream.http.repeated_heads import RepeatedHeads
from gateway.downstream.http.request import DISCARDED_BYTES, RequestHead, RequestRefused, over_quota
from gateway.downstream.http.request_reader import RequestReader
from gateway.downstream.http.responder import Responder
from gateway.errors import QuotaExceeded

log = logging.getLogger(__name__)

SILENT_S: Final = 10.0
"""How long a new connection may say nothing. Clients connect when they have a request; browsers connect ahead, and
again when they need to."""
HEAD_S: Final = 15.0
"""How long a head may take to arrive. It fits into a few packets; only an attack is slower."""
BODY_S: Final = 30.0
"""How long a body may take: 4 MiB at 1 Mbit/s."""
KEEP_ALIVE_S: Final = 20.0
"""How long a connection may be idle between requests: longer than httpx (5 s), Node (4 s) and aiohttp (15 s) keep it.

Where both sides give up at the same time, a request is lost that is just being sent, and no client repeats a POST.
"""
# Nobody sends more requests ahead of the first answer but to see what happens.
_MAX_PIPELINED: Final = 64
_MAX_PIPELINED_BYTES: Final = 1024 * 1024
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: 20\r\n"
    b"retry-after: 1\r\nconnection: close\r\n\r\nToo many connections"
)


class HttpProtocol(asyncio.Protocol):
    """One connection of a caller.

    Attributes:
        closing: Nothing more is read: the connection closes after what is still to be answered.
        is_cut: We have dropped it; its end is heard a moment later.
        taken_s: When the caller was last seen to take something, or to have nothing to take.
        address: The address of the caller, without the port; empty where it has none.
        deadline_s: When the connection is dropped unless something arrives.
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
        self._reader = RequestReader(self)
        self._peer = self.address = ""
        self._served = True
        self.closing = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._unread_before_bytes = 0
        self._large = LargeWrites()
        self.deadline_s = math.inf
        # Who answers the request that is arriving, once it is its turn.
        self._handler: Handler | None = None
        self._admitted: Admission | None = None
        self._heads = RepeatedHeads(connections.heads)
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
        if isinstance(peer, tuple) and len(peer) > 1:
            self._peer, self.address = f"{peer[0]}:{peer[1]}", str(peer[0])
        is_read, self._served = self._connections.add(self)
        self.deadline_s = self._loop.time() + SILENT_S
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
        self._hold(None, 0)
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
        """Whether no request is there: nothing was said, or a part of a header block, or the connection is idle."""
        # What was answered has been read, too.
        busy = self._responder is not None or self._waiting or self._heads.ahead or self._reader.head is not None
        return not busy and not self.unread_bytes

    @property
    def is_drained(self) -> bool:
        """Whether the caller has read enough of what it was sent, or has left."""
        return self._writable.is_set()

    async def drain(self) -> None:
        """Return once it has."""
        await self._writable.wait()

    @property
    def unread_bytes(self) -> int:
        """What waits here to be read."""
        return self.transport.get_write_buffer_size()

    @property
    def held_bytes(self) -> int:
        """What stays in memory for the caller."""
        return self._large.held_bytes(self.unread_bytes)

    def wrote(self, size_bytes: int) -> None:
        """Note a large write."""
        if self.unread_bytes:
            self._large.add(size_bytes)
            # Also where so little is unread that the transport does not ask for a pause.
            self._connections.paused(self)

    def look(self, now_s: float) -> None:
        """Apply the deadline of what is arriving, and note whether the caller takes what it is sent."""
        unread_bytes = self.unread_bytes
        if not unread_bytes or unread_bytes < self._unread_before_bytes:
            self.taken_s = now_s
        self._unread_before_bytes = unread_bytes
        if not self.held_bytes:
            self._connections.resumed(self)
        if self._responder is not None:
            self._responder.look(now_s)
        if now_s >= self.deadline_s:
            reader = self._reader
            begun = reader.in_head or reader.head is not None or bool(self._heads.ahead)
            if unread_bytes and self._responder is None and not begun:
                # Not idle: it still reads its last answer, for which it has the time that `Connections` gives it.
                self.deadline_s = now_s + KEEP_ALIVE_S
                return
            self.deadline_s = math.inf
            self._late()

    def cut(self) -> None:
        """Drop the connection, with all that is unread, the kernel's part too."""
        with suppress(OSError, AttributeError):
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.is_cut = self.closing = True
        self._connections.was_cut()
        self.transport.abort()

    def shutdown(self) -> None:
        """End after what is being answered; uvicorn asks for this when it stops."""
        if self._heads.ahead:
            self._read_ahead()
        if self._responder is not None:
            self._responder.keep_alive = False
        elif not self._waiting:
            self.transport.close()

    def _late(self) -> None:
        if self._heads.ahead:
            self._read_ahead()
            if self._handler is None:
                return  # it was refused by its head alone
        if self._handler is not None:
            self.refuse(RequestRefused(408, "the body did not arrive in time", close=True))
        else:
            # Idle, in the middle of a head, or sending what nobody wants: there is nobody to explain it to.
            self.transport.abort()

    # what arrives

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        reader = self._reader
        # Whether a request begins here, and nothing else is being read or answered.
        begins = not reader.in_head and reader.head is None and self._responder is None and not self._waiting
        if begins:
            heads = self._heads
            if heads.ahead:
                data, heads.ahead = heads.ahead + data, b""
            elif heads.keep(data):
                self.deadline_s = self._loop.time() + BODY_S
                return
            found = heads.find(data)
            if found is not None:
                self._take_known(*found)
                return
            heads.begin(data)
        reader.feed(data)
        unfinished_bytes = reader.held_bytes + self._waiting_bytes
        if unfinished_bytes or self._held_bytes:
            admitted = self._admitted
            try:
                self._hold(self._connections.nobody if admitted is None else admitted.account, unfinished_bytes)
            except QuotaExceeded as error:
                if self._handler is None or self._responder is None:
                    self.refuse(over_quota(error, close=True))
                else:
                    # The rest of the body is read and thrown away, so that its sender gets to read the refusal.
                    self._handler = self._admitted = None
                    reader.discard()
                    self._responder.refuse(over_quota(error))

    def _read_ahead(self) -> None:
        """Have the head read whose body has not come."""
        heads = self._heads
        data, heads.ahead = heads.ahead, b""
        heads.begin(data)
        self._reader.feed(data)

    def _hold(self, account: Account | None, size_bytes: int) -> None:
        """Put what has arrived of unfinished requests on an account."""
        if self._account is not None:
            self._account.release(self._held_bytes)
        self._account, self._held_bytes = None, 0
        if account is not None and size_bytes:
            account.hold(size_bytes)
            self._account, self._held_bytes = account, size_bytes

    # what the reader finds

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
        if not head.keep_alive:
            self.closing = True
        if body is None:
            self._heads.arrived(head, accepted=False)
            if self._responder is None and not self._waiting:
                self._rest()
            return
        if self._held_bytes:
            self._hold(None, 0)  # from here on whoever answers counts it
        handler, self._handler = self._handler, None
        self._heads.arrived(head, accepted=handler is not None)
        admitted, self._admitted = self._admitted, None
        if handler is not None and self._responder is not None:
            self._answer(handler, head, admitted, body, self._responder)
            return
        if len(self._waiting) >= _MAX_PIPELINED:
            self.cut()
            return
        self._waiting.append((head, body))
        self._waiting_bytes += len(body)

    # what is done about it

    def _admit(self, head: RequestHead) -> bool:
        """Judge a request whose turn it is; where it is refused, its body is read and thrown away.

        Once a request is refused it is the turn of the next one, so that nothing here is about this one any more.
        """
        responder = self._responder = Responder.of(head, self, self._loop)
        if self._connections.leaving:
            responder.keep_alive = False
        try:
            handler, admitted = self._judge(head, head.content_length, responder)
            if head.raw(b"expect") is not None:
                self._expected(head)
        except RequestRefused as refused:
            if self._reader.head is head:
                self._reader.discard()
            responder.refuse(refused)
            return False
        self._handler, self._admitted = handler, admitted
        return True

    def _judge(self, head: RequestHead, length: int | None, responder: Responder) -> tuple[Handler, Admission | None]:
        """Who answers a request whose body has this length, and what is known of its sender.

        Raises:
            RequestRefused: Nobody does.
        """
        handler = self._router.route(head)
        responder.cross_origin = head.cross_origin
        if not self._served:
            raise RequestRefused(503, "Too many connections", [(b"retry-after", b"1")], close=True)
        admitted = handler.admit(head, self._peer)
        if length is not None and length > handler.max_body_bytes:
            raise _too_large(handler.max_body_bytes, close=length > DISCARDED_BYTES)
        return handler, admitted

    def _expected(self, head: RequestHead) -> None:
        if head.text(b"expect").lower() != "100-continue":
            raise RequestRefused(417, "only 100-continue can be expected")
        # Whoever has sent some of the body already waits for nothing.
        if self._reader.head is head and not self._reader.has_body and head.version == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _answer(
        self, handler: Handler, head: RequestHead, admitted: Admission | None, body: bytes, responder: Responder
    ) -> None:
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
        reader = self._reader
        if self.transport.is_closing():
            self.closing = True
        elif self._waiting:
            # Not from here: a row of requests that are all refused at once would nest this call for each of them.
            self._loop.call_soon(self._take_turn)
        elif reader.head is not None and not reader.discarding:
            self._admit(reader.head)  # its body is still on its way
        else:
            self._rest()

    def _take_turn(self) -> None:
        if self._responder is not None or not self._waiting or self.transport.is_closing():
            return
        turn = self._waiting.popleft()
        if isinstance(turn, RequestRefused):
            self._responder = Responder.of(_UNREADABLE, self, self._loop)
            self._responder.refuse(turn)
            return
        head, body = turn
        self._waiting_bytes -= len(body)
        self._take(head, body)

    def _take(self, head: RequestHead, body: bytes) -> None:
        """Judge and answer a request that is there as a whole."""
        if self._admit(head):
            handler, self._handler = self._handler, None
            admitted, self._admitted = self._admitted, None
            assert handler is not None
            assert self._responder is not None
            self._answer(handler, head, admitted, body, self._responder)

    def _take_known(self, head: RequestHead, body: bytes) -> None:
        """Judge and answer a request that is there as a whole, and whose head is that of an earlier one."""
        self.deadline_s = math.inf
        responder = self._responder = Responder(self, self._loop, keep_alive=not self._connections.leaving)
        try:
            handler, admitted = self._judge(head, len(body), responder)
        except RequestRefused as refused:
            responder.refuse(refused)
            return
        self._answer(handler, head, admitted, body, responder)

    def _rest(self) -> None:
        """Wait for the next request, while nothing is answered and nothing waits for it."""
        reader = self._reader
        if self.closing:
            self.transport.close()
        elif reader.head is None and not reader.in_head:
            self.deadline_s = self._loop.time() + KEEP_ALIVE_S

    def refuse(self, refused: RequestRefused) -> None:
        """Refuse what is arriving and read no further; what is being answered is answered first."""
        self.closing = True
        self.deadline_s = math.inf
        self._reader.stop()
        if self._reader.head is not None and self._responder is not None and self._handler is not None:
            # It was admitted, and nothing is answered yet.
            self._handler, self._admitted = None, None
            self._responder.refuse(refused)
            return
        self._waiting.append(refused)
        if self._responder is None:
            self._take_turn()


_UNREADABLE: Final = RequestHead(b"GET", b"/", [], version="1.1", keep_alive=False)
"""Stands for a request of which nothing is known."""


def _too_large(limit_bytes: int, *, close: bool) -> RequestRefused:
    return RequestRefused(413, f"a request may have {limit_bytes} bytes", close=close)
