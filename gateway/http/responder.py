"""The response to one request: a JSON text, an event stream, or an ASGI application.

Sources: WHATWG HTML, "Server-sent events", "Parsing an event stream"; MCP 2026-07-28 and 2025-11-25, "Transports",
"Streamable HTTP", "Sending Messages"; ASGI, "HTTP & WebSocket ASGI Message Format", version 2.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import unquote

from msgspec import Struct

from gateway.http.http_request import Fields, RequestHead, RequestRefused
from gateway.protocol import json_bytes

log = logging.getLogger(__name__)

PING: Final = b": ping\n\n"
"""A comment, which readers ignore. It shows proxies that the connection is alive."""
HEADERS: Final = (
    b"content-type: text/event-stream\r\n"
    # Without these headers, some proxies buffer or compress a stream until it ends.
    b"cache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\n"
)
_MESSAGE: Final = b"event: message\n"
# Characters and their JSON escapes. Readers that use Python's `splitlines` treat the characters as line breaks,
# although they are not line breaks in an event stream. A JSON string may contain either form.
_LINE_BREAKS: Final = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def event(
    data: bytes | Iterable[bytes | memoryview], event_id: int | str | None = None, *, retry_ms: int | None = None
) -> bytes:
    """Return an encoded event whose data is a JSON text without line breaks.

    Args:
        data: The text, in one or several pieces.
        event_id: The id of the event, for `Last-Event-ID`.
        retry_ms: How long the reader has to wait before it reconnects.
    """
    head = _MESSAGE
    if event_id is not None:
        head += b"id: %b\n" % str(event_id).encode()
    if retry_ms is not None:
        head += b"retry: %d\n" % retry_ms
    head += b"data: "
    return b"".join((head, on_one_line(data if isinstance(data, bytes) else b"".join(data)), b"\n\n"))


def on_one_line(text: bytes) -> bytes:
    """Escape the characters of `_LINE_BREAKS` in a JSON text, so that every reader sees a single line."""
    if not text.isascii():
        for character, escape in _LINE_BREAKS:
            text = text.replace(character, escape)
    return text


MAX_UNSENT_BYTES: Final = 8 * 1024 * 1024
"""If a caller leaves more than this unread, the request of the event stream is cancelled."""
RESUMABLE_S: Final = 2.0
"""A resumable response becomes an event stream after this time without output, so that its caller gets an id for
resuming."""
PING_S: Final = 15.0
"""A comment is sent after this time without output, because common proxies close silent connections after 30 or 60
s."""
# Larger bodies are written in pieces: copying the pieces into one string would cost more than a second system call.
_ONE_WRITE_BYTES: Final = 64 * 1024
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("latin-1") for status in HTTPStatus
}
_JSON: Final = b"content-type: application/json\r\n"
_USUAL: Final = b"%b%bcontent-length: %%d\r\n\r\n%%b" % (_STATUS_LINES[200], _JSON)
_CLOSE: Final = b"connection: close\r\n"


class Connection(Protocol):
    """The part of a connection that a responder uses."""

    @property
    def transport(self) -> asyncio.Transport:
        """Return the transport to write to."""

    def response_ended(self) -> None:
        """Continue with the next request."""

    def close_after_response(self) -> None:
        """Close the connection. If the rest of a request body is being discarded, wait until all of it has arrived."""

    def record_write(self, size_bytes: int) -> None:
        """Record a large write: all its data stays in memory until the client has read the last byte."""

    @property
    def is_drained(self) -> bool:
        """Return whether the caller has read enough of the data written so far."""

    async def drain(self) -> None:
        """Wait until `is_drained`."""


class Responder(Struct, eq=False):
    """The response to one request. After the caller has disconnected, every method returns without effect.

    Attributes:
        keep_alive: True if the connection stays open after the response.
        ended: True once the whole response was written.
        disconnected: True once the caller has disconnected.
        on_disconnect: Called if the caller disconnects before the end of the response; None to cancel the task.
        on_stream: Called when the response becomes an event stream, before the first event.
        pings: True if a response without output becomes an event stream with keep-alive comments.
        can_stream: True if the caller accepts an event stream. If false, nothing is sent before the final response.
        wants_stream: True if the caller accepts only an event stream. HTTP errors are sent as JSON even then.
        cross_origin: Header lines to add if the request comes from a page of another origin; otherwise empty.
    """

    _connection: Connection
    _loop: asyncio.AbstractEventLoop
    keep_alive: bool = True
    _head_only: bool = False
    # True for HTTP/1.0, which has no chunked coding: the end of the connection ends a stream.
    _bare: bool = False
    ended: bool = False
    disconnected: bool = False
    # By default None instead of `self.cancel`, because a bound method would make each request a reference cycle.
    on_disconnect: Callable[[], object] | None = None
    on_stream: Callable[[], None] | None = None
    pings: bool = True
    can_stream: bool = True
    wants_stream: bool = False
    cross_origin: bytes = b""
    _task: asyncio.Task[None] | None = None
    _started: bool = False
    _streaming: bool = False
    _chunked: bool = False
    _silent_since_s: float = 0.0

    @classmethod
    def for_request(cls, head: RequestHead, connection: Connection, loop: asyncio.AbstractEventLoop) -> Responder:
        """Create the responder of the request with this header block."""
        bare = head.version == "1.0"
        return cls(connection, loop, head.keep_alive and not bare, head.method == b"HEAD", bare)

    # Called by the handler of the request before the response begins

    def accept(self, *, can_stream: bool, wants_stream: bool) -> None:
        """Set `can_stream` and `wants_stream`, which say what forms of the response the caller accepts."""
        self.can_stream, self.wants_stream = can_stream, wants_stream

    def report_to(self, *, on_disconnect: Callable[[], object], on_stream: Callable[[], None] | None = None) -> None:
        """Set the callbacks `on_disconnect` and `on_stream`."""
        self.on_disconnect, self.on_stream = on_disconnect, on_stream

    def omit_pings(self) -> None:
        """Send no keep-alive comments while the response is silent."""
        self.pings = False

    def close_after(self) -> None:
        """Close the connection after the response."""
        self.keep_alive = False

    @property
    def task(self) -> asyncio.Task[None] | None:
        """Return the task that produces the response, until the response has ended."""
        return self._task

    def run(self, answering: Coroutine[Any, Any, None]) -> None:
        """Produce the response in a task that is cancelled when the caller disconnects."""
        # A bare task, because a task group per request would cost more than all checks of a call.
        self._task = self._loop.create_task(answering)

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback` once the task has ended, or immediately if no task runs."""
        if self._task is None:
            callback()
        else:
            self._task.add_done_callback(lambda task: callback())

    def cancel(self) -> None:
        """Cancel the task, which decides what to send to a caller that is still connected."""
        if self._task is not None:
            self._task.cancel()

    def disconnect(self) -> None:
        """Record that the caller has disconnected, and call `on_disconnect` or cancel the task."""
        self.disconnected = True
        if self.ended:
            return
        on_disconnect, self.on_disconnect, self.on_stream = self.on_disconnect, None, None
        if on_disconnect is None:
            self.cancel()
        else:
            on_disconnect()

    # Complete responses

    def respond(self, status: int, pieces: json_bytes.Pieces = (), fields: Fields | None = None) -> None:
        """Send a complete response, unless a response has already started.

        Args:
            pieces: The parts of a JSON body; empty for a response without a body.
            fields: Additional headers.
        """
        if (
            # Fast path for nearly all responses.
            status == 200
            and len(pieces) == 1
            and not (fields or self.cross_origin)
            and self.keep_alive
            and not (self._head_only or self.disconnected or self._started)
            and len(body := pieces[0]) <= _ONE_WRITE_BYTES
        ):
            self._started = self.ended = True
            self._connection.transport.write(_USUAL % (len(body), body))
            self._task = self.on_stream = self.on_disconnect = None
            self._connection.response_ended()
            return
        size_bytes = sum(map(len, pieces))
        kind = _JSON if pieces else b""
        more = _header_lines(fields) if fields else b""
        close = b"" if self.keep_alive else _CLOSE
        # A response with status 204 must not have a length (RFC 9110, section 8.6 "Content-Length").
        length = b"" if status == 204 else b"content-length: %d\r\n" % size_bytes
        head = b"%b%b%b%b%b%b\r\n" % (_STATUS_LINES[status], kind, length, more, self.cross_origin, close)
        if self.disconnected or self._started:
            return
        self._started = True
        transport = self._connection.transport
        if self._head_only or not pieces:
            transport.write(head)
        elif size_bytes <= _ONE_WRITE_BYTES:
            transport.write(b"".join((head, *pieces)))
        else:
            transport.writelines((head, *pieces))
            self._connection.record_write(size_bytes)
        self._end()

    def refuse(self, refused: RequestRefused) -> None:
        """Send an error response; if a response has already started, end it instead."""
        if self._started:
            self.end()
            return
        self.keep_alive = self.keep_alive and not refused.close
        self.respond(refused.status, (refused.body,), refused.fields)

    # Event streams

    @property
    def streaming(self) -> bool:
        """Return whether the response has become an event stream."""
        return self._streaming

    def emit(self, message: dict[str, Any], number: int | None = None) -> None:
        """Send a message as an event, with its number as the event id.

        If the caller leaves too much unread, the task is cancelled: waiting for the caller would block the upstream and
        other callers.
        """
        self.stream(event(json_bytes.dumps(message), number))

    def ping(self) -> None:
        """Send a keep-alive comment; start the event stream if necessary."""
        self.stream(PING)

    def ping_if_silent(self, now_s: float) -> None:
        """Send a keep-alive comment after a long silence."""
        if not self.pings or self._task is None:
            return
        if self._silent_since_s == 0.0:
            self._silent_since_s = now_s  # set here, because reading the clock in each request would cost more
        elif now_s - self._silent_since_s >= (PING_S if self._streaming or self.on_stream is None else RESUMABLE_S):
            self.ping()

    def finish(self, status: int, pieces: json_bytes.Pieces, fields: Fields | None = None) -> None:
        """Send the final response: as the last event if the response is an event stream, otherwise as JSON.

        Args:
            pieces: The parts of the JSON text. If there are none, an event stream ends without a final event.
        """
        if not self._streaming and self.wants_stream and status == 200 and pieces:
            self._streaming = True
            self._write_head(200, HEADERS + _header_lines(fields or []))
        if not self._streaming:
            self.respond(status, pieces, fields)
            return
        if pieces:
            self.write(event(pieces))
        self.end()

    @property
    def started(self) -> bool:
        """Return whether anything was sent."""
        return self._started

    def begin_stream(self) -> None:
        """Turn the response into an event stream, unless it already is one."""
        if self._streaming or self.ended or self.disconnected or not self.can_stream:
            return
        self._streaming = True
        self._write_head(200, HEADERS)
        if self.on_stream is not None:
            self.on_stream()

    def stream(self, frame: bytes) -> None:
        """Send an encoded event or comment."""
        if self.ended or self.disconnected or not self.can_stream:
            return
        if not self._streaming:
            self.begin_stream()
        self._silent_since_s = self._loop.time()
        self.write(frame)
        if self._connection.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.cancel()

    # Responses with any content

    def start(self, status: int, fields: Fields) -> None:
        """Send the headers of a response whose body follows, in chunks unless `fields` has a Content-Length."""
        self._write_head(
            status, _header_lines(fields), sized=any(name.lower() == b"content-length" for name, _ in fields)
        )

    def write(self, data: bytes) -> None:
        """Send a part of the body."""
        if data and not (self._head_only or self.disconnected or self.ended):
            self._connection.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            if len(data) > _ONE_WRITE_BYTES:
                self._connection.record_write(len(data))

    def end(self) -> None:
        """End the body and the response."""
        if self._chunked and not (self._head_only or self.disconnected or self.ended):
            self._connection.transport.write(b"0\r\n\r\n")
        self._end()

    async def drain(self) -> None:
        """Wait until the caller has read enough of the data written so far."""
        await self._connection.drain()

    def fail(self) -> None:
        """End the response after an unexpected error: send status 500, or close the connection if it has started."""
        if not self._started:
            self.respond(500, (b'{"error":"internal error"}',))
        elif not self.ended:
            # Close the connection before the declared length or the last chunk, so that readers notice the truncation.
            self.keep_alive = False
            self._end()

    def _write_head(self, status: int, lines: bytes, *, sized: bool = False) -> None:
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
        # Release the objects of the request, because a result can be large and the connection stays open.
        self._task = self.on_stream = self.on_disconnect = None
        if not self.keep_alive:
            self._connection.close_after_response()
        self._connection.response_ended()


def _header_lines(fields: Fields) -> bytes:
    lines = b"".join(b"%b: %b\r\n" % field for field in fields)
    if lines.count(b"\n") != len(fields) or lines.count(b"\r") != len(fields):
        raise ValueError("a response header contains a line break")
    return lines


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON_FIELD: Final = (b"content-type", b"application/json")


class AsgiHandler:
    """Runs an ASGI application for each complete request.

    Args:
        max_body_bytes: The largest accepted request body.
        check: Raises `RequestRefused` to reject a request before its body is read.
    """

    def __init__(
        self, app: AsgiApp, *, max_body_bytes: int, check: Callable[[RequestHead, str], None] = lambda head, peer: None
    ) -> None:
        self._app = app
        self._check = check
        self.max_body_bytes = max_body_bytes

    def admit(self, head: RequestHead, peer: str) -> None:
        """Reject a request by its header block, before its body is read."""
        self._check(head, peer)

    def answer(self, head: RequestHead, admission: object, body: bytes, responder: Responder, peer: str) -> None:
        """Run the application. A disconnect does not interrupt it, so that no change is left half done."""
        disconnected = asyncio.Event()
        responder.report_to(on_disconnect=disconnected.set)
        responder.omit_pings()
        responder.run(self._run(_scope(head, peer), body, responder, disconnected))

    async def _run(self, scope: Scope, body: bytes, responder: Responder, disconnected: asyncio.Event) -> None:
        unread: bytes | None = body

        async def receive() -> MutableMapping[str, Any]:
            nonlocal unread
            if unread is None:
                await disconnected.wait()
                return {"type": "http.disconnect"}
            message = {"type": "http.request", "body": unread, "more_body": False}
            unread = None
            return message

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                responder.start(message["status"], list(message.get("headers", ())))
                return
            responder.write(message.get("body", b""))
            if message.get("more_body", False):
                await responder.drain()
            else:
                responder.end()
                disconnected.set()

        try:
            await self._app(scope, receive, send)
        except Exception:  # boundary: an error in the application ends its own request only
            log.exception("application failed")
        if not responder.ended:
            responder.fail()


async def send_json(send: Send, status: int, body: bytes, fields: Fields | None = None) -> None:
    """Send a complete JSON response."""
    head = [_JSON_FIELD, (b"content-length", str(len(body)).encode()), *(fields or [])]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def _scope(head: RequestHead, peer: str) -> Scope:
    host, _, port = peer.rpartition(":")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.version,
        "method": head.method.decode("latin-1"),
        "scheme": "http",
        "path": unquote(head.path.decode("latin-1")),
        "raw_path": head.path,
        "query_string": head.query,
        "root_path": "",
        "headers": list(head.fields),
        "client": (host, int(port)) if port.isdigit() else None,
        "server": None,
        "state": {},
    }
