"""The response to one request: one JSON text, an event stream, or whatever an application sends.

Source: MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP", "Sending Messages".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final, Protocol

from msgspec import Struct

from gateway import wire
from gateway.downstream.http import sse
from gateway.downstream.http.request import Fields, RequestHead, RequestRefused

MAX_UNSENT_BYTES: Final = 8 * 1024 * 1024
"""What one event stream may leave unread before its request is cancelled: two of the largest results."""
RESUMABLE_S: Final = 2.0
"""After this silence a response that can be resumed becomes a stream: its caller gets an id to come back with."""
PING_S: Final = 15.0
"""After this silence a stream shows that it lives; common proxies give up after 30 or 60 s."""
# Larger bodies are handed over in pieces: to copy them into one string costs more than a second system call.
_ONE_WRITE_BYTES: Final = 64 * 1024
# Messages that wait while a large one is written in pieces, some seconds: what a server logs in that time.
_MAX_AFTER: Final = 256
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("latin-1") for status in HTTPStatus
}
_JSON: Final = b"content-type: application/json\r\n"
_USUAL: Final = b"%b%bcontent-length: %%d\r\n\r\n%%b" % (_STATUS_LINES[200], _JSON)
_CLOSE: Final = b"connection: close\r\n"


class Connection(Protocol):
    """What a responder needs of the connection that its request came by."""

    @property
    def transport(self) -> asyncio.Transport:
        """Where bytes go."""

    def response_ended(self) -> None:
        """Go on with the next request."""

    def wrote(self, size_bytes: int) -> None:
        """Note that so much was written at once, and stays in memory as a whole until the last of it is read."""

    @property
    def is_drained(self) -> bool:
        """Whether the caller has read enough of what it was sent."""

    async def drain(self) -> None:
        """Return once it has."""


class Responder(Struct, eq=False):
    """Answers one request. Every method may be called when the caller has left already, and then does nothing.

    Attributes:
        keep_alive: The connection stays open after the response.
        ended: The whole response is written.
        disconnected: The caller has left.
        on_disconnect: Called when the caller leaves before the end; None cancels the task.
        on_stream: Called when the response becomes an event stream, before its first event.
        pings: A response that stays silent becomes a stream and is kept alive.
        can_stream: The caller accepts an event stream. Without one, it gets nothing before the response.
        cross_origin: Header lines for a page of another origin; empty for any other caller.
    """

    _connection: Connection
    _loop: asyncio.AbstractEventLoop
    keep_alive: bool = True
    _head_only: bool = False
    # HTTP/1.0 knows no chunks: its stream ends with the connection.
    _bare: bool = False
    ended: bool = False
    disconnected: bool = False
    # None and not `self.cancel`: a bound method would make each request a reference cycle.
    on_disconnect: Callable[[], object] | None = None
    on_stream: Callable[[], None] | None = None
    pings: bool = True
    can_stream: bool = True
    cross_origin: bytes = b""
    _task: asyncio.Task[None] | None = None
    _started: bool = False
    _streaming: bool = False
    _chunked: bool = False
    # While a message is written in pieces: what is to be sent after it, in a stream.
    _after: list[bytes] | None = None
    _silent_since_s: float = 0.0

    @classmethod
    def of(cls, head: RequestHead, connection: Connection, loop: asyncio.AbstractEventLoop) -> Responder:
        """Answer the request that has this head."""
        bare = head.version == "1.0"
        return cls(connection, loop, head.keep_alive and not bare, head.method == b"HEAD", bare)

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that answers, until the response has ended."""
        return self._task

    def run(self, answering: Coroutine[Any, Any, None]) -> None:
        """Answer in a task of its own, which is cancelled when the caller leaves."""
        # A bare task, owned by this responder: a task group for each request costs more than all checks of a call.
        self._task = self._loop.create_task(answering)

    def when_done(self, callback: Callable[[], object]) -> None:
        """Have this called once the task that answers has ended; at once where there is none."""
        if self._task is None:
            callback()
        else:
            self._task.add_done_callback(lambda task: callback())

    def cancel(self) -> None:
        """Cancel the task that answers; it decides what a caller who is still there reads."""
        if self._task is not None:
            self._task.cancel()

    def disconnect(self) -> None:
        """Hear that the caller has left."""
        self.disconnected = True
        if self.ended:
            return
        on_disconnect, self.on_disconnect, self.on_stream = self.on_disconnect, None, None
        if on_disconnect is None:
            self.cancel()
        else:
            on_disconnect()

    # a whole response

    def respond(self, status: int, pieces: wire.Pieces = (), fields: Fields | None = None) -> None:
        """Send a response: JSON, or nothing but its head where there are no pieces."""
        if (
            # Nearly all of them.
            status == 200
            and len(pieces) == 1
            and not (fields or self.cross_origin)
            and self.keep_alive
            and not (self._head_only or self.disconnected or self.ended)
            and 0 < len(body := pieces[0]) <= _ONE_WRITE_BYTES
        ):
            self._started = self.ended = True
            self._connection.transport.write(_USUAL % (len(body), body))
            self._task = self.on_stream = self.on_disconnect = None
            self._connection.response_ended()
            return
        size_bytes = sum(map(len, pieces))
        kind = _JSON if pieces else b""
        more = _lines(fields) if fields else b""
        close = b"" if self.keep_alive else _CLOSE
        # A 204 has no body, and so no length either (RFC 9110, section 8.6 "Content-Length").
        length = b"" if status == 204 else b"content-length: %d\r\n" % size_bytes
        head = b"%b%b%b%b%b%b\r\n" % (_STATUS_LINES[status], kind, length, more, self.cross_origin, close)
        if self.disconnected:
            return
        self._started = True
        transport = self._connection.transport
        if self._head_only or not pieces:
            transport.write(head)
        elif size_bytes <= _ONE_WRITE_BYTES:
            transport.write(b"".join((head, *pieces)))
        else:
            transport.writelines((head, *pieces))
            self._connection.wrote(size_bytes)
        self._end()

    def refuse(self, refused: RequestRefused) -> None:
        """Send a refusal."""
        if self._started:
            self.end()
            return
        self.keep_alive = self.keep_alive and not refused.close
        self.respond(refused.status, (refused.body,), refused.fields)

    # an event stream

    @property
    def streaming(self) -> bool:
        """Whether the response has become an event stream."""
        return self._streaming

    def emit(self, message: dict[str, Any], number: int | None = None) -> None:
        """Stream a message before the response, with its number as the event's id.

        Who leaves too much unread is cut off: to wait would hold up the upstream, and with it others.
        """
        self.stream(sse.event(wire.dumps(message), number))

    def ping(self) -> None:
        """Begin the stream, or show that it lives."""
        self.stream(sse.PING)

    def look(self, now_s: float) -> None:
        """Ping if nothing was sent for long."""
        if not self.pings or self._task is None or self._after is not None:
            return
        if self._silent_since_s == 0.0:
            self._silent_since_s = now_s  # the first look: to ask the clock for each request would cost more
        elif now_s - self._silent_since_s >= (PING_S if self._streaming or self.on_stream is None else RESUMABLE_S):
            self.ping()

    def begin_message(self, text: bytes) -> bool:
        """Send the beginning of the message that answers, which `finish` ends; false where that cannot be done."""
        if self._bare or self._head_only or self.disconnected or self.ended or self._after is not None:
            return False
        self._after = []
        if self._streaming:
            self.write(sse.beginning(text))
        else:
            self._begin(200, _JSON)
            self.write(text)
        return True

    def go_on(self, text: bytes) -> Awaitable[None] | None:
        """Send more of the message; where the caller does not keep up, what to await before more."""
        self.write(sse.on_one_line(text) if self._streaming else text)
        return None if self._connection.is_drained else self._connection.drain()

    def finish(self, status: int, pieces: wire.Pieces, fields: Fields | None = None) -> None:
        """Send what answers the request: as JSON, or as the last event of its stream; no pieces just end a stream.

        Where the message was begun the pieces are the rest of it.
        """
        if self._after is not None:
            text = b"".join(pieces)
            self.write(b"".join((sse.on_one_line(text), sse.END, *self._after)) if self._streaming else text)
            self.end()
            return
        if not self._streaming:
            self.respond(status, pieces, fields)
            return
        if pieces:
            self.write(sse.event(pieces))
        self.end()

    @property
    def started(self) -> bool:
        """Whether anything was sent."""
        return self._started

    def begin_stream(self) -> None:
        """Become an event stream, unless it is one already."""
        if self._streaming or self.ended or self.disconnected or self._after is not None or not self.can_stream:
            return
        self._streaming = True
        self._begin(200, sse.HEADERS)
        if self.on_stream is not None:
            self.on_stream()

    def stream(self, frame: bytes) -> None:
        """Send an event as it goes on the wire."""
        if self.ended or self.disconnected or not self.can_stream:
            return
        if self._after is not None:
            # Beside a response that is no stream there is no place for it.
            if self._streaming and len(self._after) < _MAX_AFTER:
                self._after.append(frame)
            return
        if not self._streaming:
            self.begin_stream()
        self._silent_since_s = self._loop.time()
        self.write(frame)
        if self._connection.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.cancel()

    # whatever an application sends

    def start(self, status: int, fields: Fields) -> None:
        """Send the head of a response whose body follows; without a content-length among the fields, in chunks."""
        self._begin(status, _lines(fields), sized=any(name.lower() == b"content-length" for name, _ in fields))

    def write(self, data: bytes) -> None:
        """Send a part of the body."""
        if data and not (self._head_only or self.disconnected or self.ended):
            self._connection.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            if len(data) > _ONE_WRITE_BYTES:
                self._connection.wrote(len(data))

    def end(self) -> None:
        """End the response after what was written."""
        if self._chunked and not (self._head_only or self.disconnected or self.ended):
            self._connection.transport.write(b"0\r\n\r\n")
        self._end()

    async def drain(self) -> None:
        """Return once the caller has read enough for more to be written."""
        await self._connection.drain()

    def fail(self) -> None:
        """End a response whose making failed unexpectedly, in the way that is still open."""
        if not self._started:
            self.respond(500, (b'{"error":"internal error"}',))
        elif not self.ended:
            # The length or the last chunk is missing: no reader takes this for a whole response.
            self.keep_alive = False
            self._end()

    def _begin(self, status: int, lines: bytes, *, sized: bool = False) -> None:
        if self._started or self.disconnected:
            return
        self._started = True
        bodiless = self._head_only or status in (204, 304)
        self._chunked = not (sized or bodiless or self._bare)
        framing = b"transfer-encoding: chunked\r\n" if self._chunked else b""
        close = b"" if self.keep_alive else _CLOSE
        status_line = _STATUS_LINES.get(status, b"HTTP/1.1 %d \r\n" % status)
        head = b"%b%b%b%b%b\r\n" % (status_line, lines, self.cross_origin, framing, close)
        self._connection.transport.write(head)

    def _end(self) -> None:
        if self.ended or self.disconnected:
            return
        self.ended = True
        # Nothing of the request may outlive its response: a result can be large, and the connection stays.
        self._task = self.on_stream = self.on_disconnect = None
        if not self.keep_alive:
            self._connection.transport.close()
        self._connection.response_ended()


def _lines(fields: Fields) -> bytes:
    lines = b"".join(b"%b: %b\r\n" % field for field in fields)
    if lines.count(b"\n") != len(fields) or lines.count(b"\r") != len(fields):
        raise ValueError("a response header holds a line break")
    return lines
