"""The connections of callers: uvicorn's protocol, with the deadlines and bounds that it lacks.

A caller may be slow, but not for ever: with the head of a request, with its body, with reading
what it asked for. What waits to be read is bounded for all callers together, too.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, cast

import anyio
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.downstream.http.fast_path import MAX_BODY_BYTES as MAX_HELD_BYTES
from gateway.downstream.http.fast_path import FastPath
from gateway.downstream.http.responder import DirectCycle
from gateway.memory import give_back

log = logging.getLogger(__name__)

HEADER_S: Final = 15.0
# The endpoint answers a slow body with words before; this is for whoever is not heard any more.
BODY_S: Final = 35.0
HELD_S: Final = 1.0
STALLED_S: Final = 30.0
MAX_UNREAD_BYTES: Final = 128 * 1024 * 1024
# Nobody has asked for more before reading the first answer but to see what happens.
MAX_PIPELINED: Final = 64
MAX_AHEAD_BYTES: Final = 1024 * 1024
_SWEEP_S: Final = 1.0
_IDLE_AT_END_S: Final = 1.0
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: 20\r\n"
    b"retry-after: 1\r\nconnection: close\r\n\r\nToo many connections"
)


class Connections:
    """All connections of one server.

    Args:
        most: How many are served at once. Some more are heard and told so, others told so unheard.
        fast: Answers the usual requests; None to give every request to the application.
        stalled_s: How long a caller may take nothing of what it is sent.
    """

    def __init__(self, *, most: int, fast: FastPath | None = None, stalled_s: float = STALLED_S) -> None:
        self.fast = fast
        self._most = most
        self._most_heard = most + most // 20
        self._stalled_s = stalled_s
        self._open: set[CallerProtocol] = set()
        self._paused: set[CallerProtocol] = set()
        self._cut_since = False

    def protocol(self, **options: Any) -> CallerProtocol:
        """A protocol for one more connection, as uvicorn asks for it."""
        return CallerProtocol(self, **options)

    async def watch(self) -> None:
        """Cut off whoever stopped reading, until cancelled."""
        while True:
            await anyio.sleep(_SWEEP_S)
            if self._cut_since:
                # What they held is free by now.
                self._cut_since = False
                give_back()
            self._sweep(asyncio.get_running_loop().time())

    async def read_out(self) -> None:
        """Return once callers have read all that they were sent, or for a second none of them has."""
        least_bytes, since_s = math.inf, anyio.current_time()
        while unread_bytes := sum(one.unread_bytes for one in self._open):
            if unread_bytes < least_bytes:
                least_bytes, since_s = unread_bytes, anyio.current_time()
            elif anyio.current_time() - since_s > _IDLE_AT_END_S:
                return
            await anyio.sleep(0.02)

    def admit(self, connection: CallerProtocol) -> bool:
        """Count a new connection; False where there is not even room to hear what it wants."""
        self._open.add(connection)
        # Of its own kind, each: who came in time is served, however many come later.
        connection.limit_concurrency = None if len(self._open) <= self._most else 0
        return len(self._open) <= self._most_heard

    def was_cut(self) -> None:
        """Hear that a connection was dropped, with all that waited on it."""
        self._cut_since = True

    def leave(self, connection: CallerProtocol) -> None:
        """Forget a connection that has ended."""
        self._open.discard(connection)
        self._paused.discard(connection)

    def pause(self, connection: CallerProtocol) -> None:
        """Hear that much waits on a connection: answers may come faster than anybody sweeps."""
        self._paused.add(connection)
        self._cut_down(self._paused)

    def resume(self, connection: CallerProtocol) -> None:
        """Hear that little waits there now."""
        self._paused.discard(connection)

    def _sweep(self, now_s: float) -> None:
        stalled = []
        for one in self._open:
            one.look(now_s)
            if now_s - one.taken_s >= self._stalled_s and not one.is_cut:
                stalled.append(one)
        for one in stalled:
            one.cut()
        if stalled:
            log.warning("%d callers did not read what they were sent and were cut off", len(stalled))
        self._cut_down(self._open)

    def _cut_down(self, connections: Iterable[CallerProtocol]) -> None:
        """Cut those that took nothing for longest, until the rest is within the bound."""
        # What was cut a moment ago still shows what it held.
        held = [one for one in connections if not one.is_cut]
        total = sum(one.unread_bytes for one in held)
        if total <= MAX_UNREAD_BYTES:
            return
        log.warning("callers leave more than %d bytes unread: the slowest are cut off", MAX_UNREAD_BYTES)
        for one in sorted(held, key=lambda one: (one.taken_s, -one.unread_bytes)):
            if total <= MAX_UNREAD_BYTES:
                return
            total -= one.unread_bytes
            one.cut()


class CallerProtocol(HttpToolsProtocol):
    """One connection. It ends where a head, a body or a reader keeps it waiting for too long.

    Attributes:
        is_cut: Whether we have dropped it; its end is heard a moment later.
        taken_s: When the caller was last seen to take something, or to have nothing to take.
    """

    def __init__(self, all_of_them: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = all_of_them
        self._deadline: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | DirectCycle | None = None
        self._body_is_coming = False
        self._unread_before_bytes = 0
        self._head_is_coming = False
        self._held: list[bytes] | None = None
        self._peer = ""
        self.is_cut = False
        self.taken_s = self.loop.time()

    @property
    def unread_bytes(self) -> int:
        """What waits here to be read."""
        return self.transport.get_write_buffer_size()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._peer = f"{self.client[0]}:{self.client[1]}" if self.client else ""
        if self._all.admit(self):
            self._expect(HEADER_S)
        else:
            transport.write(_FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.leave(self)
        self._came()
        super().connection_lost(exc)
        # uvicorn tells the request that came last, which need not be the one that is being answered.
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._deadline is not None:
            return
        if self._body_is_coming:
            self._expect(BODY_S if self._held is None else HELD_S)
        elif self._head_is_coming:
            self._expect(HEADER_S)
        elif self.timeout_keep_alive_task is None and (self.cycle is None or self.cycle.response_complete):
            # Bytes that begin no request end uvicorn's own wait for one: ours goes on.
            self._expect(HEADER_S)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_is_coming = True

    def on_headers_complete(self) -> None:
        self._came()
        self._head_is_coming = False
        if len(self.pipeline) >= MAX_PIPELINED:
            self.cut()
        if self.transport.is_closing():
            # What cannot be answered any more is not run either.
            return
        self._body_is_coming = True
        if self._all.fast is not None and self._is_plain():
            self._held = []
            return
        self._begin()

    def _begin(self) -> None:
        """Give the request to the application."""
        super().on_headers_complete()
        if self.pipeline:
            # uvicorn stops reading here, and would not see that the caller has left.
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        if self._held is not None:
            self._held.append(body)
            return
        super().on_body(body)
        if self.pipeline and len(self.cycle.body) > MAX_AHEAD_BYTES:
            self.cut()

    def on_message_complete(self) -> None:
        self._came()
        self._body_is_coming = False
        if self._held is not None and self._answered_directly():
            return
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._all.pause(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._all.resume(self)

    def look(self, now_s: float) -> None:
        """Note whether anything was taken since the last look."""
        unread_bytes = self.unread_bytes
        if not unread_bytes or unread_bytes < self._unread_before_bytes:
            self.taken_s = now_s
        self._unread_before_bytes = unread_bytes
        if isinstance(self._answering, DirectCycle):
            self._answering.look(now_s)

    def cut(self) -> None:
        """Drop the connection, with all that is unread, the kernel's part too."""
        with suppress(OSError, AttributeError):
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.is_cut = True
        self._all.was_cut()
        self.transport.abort()

    def _is_plain(self) -> bool:
        """Whether this may be a request that is answered without ASGI, as far as its head tells."""
        if self.parser.get_method() != b"POST" or not self.url.startswith(b"/mcp") or self.expect_100_continue:
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        if self.limit_concurrency is not None or self.parser.get_http_version() != "1.1":
            return False
        if not self.parser.should_keep_alive() or self.parser.should_upgrade():
            return False
        path = self.url[4:]
        if path and (path[:1] != b"/" or b"?" in path or b"%" in path or b"#" in path):
            return False
        length = None
        for name, value in self.headers:
            if name == b"content-length":
                length = value
            elif name == b"transfer-encoding":
                return False
        return length is not None and length.isdigit() and len(length) < 9 and int(length) <= MAX_HELD_BYTES

    def _answered_directly(self) -> bool:
        """Answer the request that was held back; where that cannot be done it is given to the application."""
        held, self._held = self._held, None
        assert held is not None
        assert self._all.fast is not None
        body = held[0] if len(held) == 1 else b"".join(held)
        cycle = DirectCycle(self._all.fast, self.transport, self.loop, self.on_response_complete)
        request = self._all.fast.take(self.url, self.headers, body, peer=self._peer, emit=cycle.emit)
        if request is None:
            self._let_go([body])
            return False
        self.cycle = self._answering = cast(Any, cycle)
        task = cycle.start(request)
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        return True

    def _let_go(self, held: list[bytes]) -> None:
        """Give a request that was held back to the application after all."""
        self._held = None
        self._begin()
        for body in held:
            super().on_body(body)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _expect(self, within_s: float) -> None:
        self._deadline = self.loop.call_later(within_s, self._late)

    def _came(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self._held is not None:
            # Its body is slow: the application knows how to wait for one.
            self._let_go(self._held)
            self._expect(BODY_S)
        elif self.flow.read_paused:
            # It is we who do not read on: a request before this one is not answered yet.
            self._expect(HEADER_S)
        else:
            self.transport.abort()
