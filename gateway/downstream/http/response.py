"""One HTTP response to an MCP request: JSON, until something must be streamed first; then SSE.

Source: MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP", "Sending Messages".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from gateway import wire

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Headers = list[tuple[bytes, bytes]]

MAX_UNSENT_BYTES: Final = 8 * 1024 * 1024
PING_S: Final = 15.0
_JSON: Final = (b"content-type", b"application/json")
_EVENT_STREAM: Final[Headers] = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


async def send_json(send: Send, status: int, body: bytes, headers: Headers | None = None) -> None:
    """Send one complete response."""
    head = [_JSON, (b"content-length", str(len(body)).encode()), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def send_empty(send: Send, status: int, headers: Headers | None = None) -> None:
    """Send a response without a body."""
    head = [(b"content-length", b"0"), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": b""})


class Exchange:
    """The answer to one request, and whatever belongs before it."""

    def __init__(self, send: Send, group: TaskGroup, headers: Headers | None = None) -> None:
        self._send = send
        self._group = group
        self._headers = headers if headers is not None else []
        self._frames: list[bytes] = []
        self._unsent_bytes = 0
        self._started = False
        self._pumping: anyio.Event | None = None
        self._finished = False

    @property
    def streaming(self) -> bool:
        """Whether the response has become an event stream."""
        return self._started or self._pumping is not None

    def emit(self, message: dict[str, Any], number: int | None = None) -> None:
        """Stream a message, with its number as the event's id; a reader that lets too much wait is cut off."""
        event_id = b"" if number is None else b"id: %d\n" % number
        self._put(b"event: message\n" + event_id + b"data: " + wire.dumps(message) + b"\n\n")

    def ping(self) -> None:
        """Show a silent connection's middle men that it lives."""
        self._put(b": ping\n\n")

    async def finish(self, status: int, body: bytes) -> None:
        """Send the answer, as JSON or as the stream's last event."""
        self._finished = True
        if not self.streaming:
            await send_json(self._send, status, body, self._headers)
            return
        await self.end(b"event: message\ndata: " + body + b"\n\n")

    async def end(self, last: bytes = b"") -> None:
        """End the stream once everything has been sent."""
        self._finished = True
        if self._pumping is not None:
            await self._pumping.wait()
        await self._start()
        await self._send({"type": "http.response.body", "body": b"".join(self._frames) + last})
        self._frames.clear()

    def _put(self, frame: bytes) -> None:
        if self._finished:
            return
        self._frames.append(frame)
        self._unsent_bytes += len(frame)
        if self._unsent_bytes > MAX_UNSENT_BYTES:
            self._group.cancel_scope.cancel()
        elif self._pumping is None:
            self._pumping = anyio.Event()
            self._group.start_soon(self._pump)

    async def _pump(self) -> None:
        assert self._pumping is not None
        try:
            await self._start()
            while self._frames:
                chunk = b"".join(self._frames)
                self._frames.clear()
                self._unsent_bytes = 0
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            self._pumping.set()
            self._pumping = None

    async def _start(self) -> None:
        if not self._started:
            self._started = True
            head = [*_EVENT_STREAM, *self._headers]
            await self._send({"type": "http.response.start", "status": 200, "headers": head})


async def watch_disconnect(receive: Receive, group: TaskGroup, exchange: Exchange, left: anyio.Event) -> None:
    """Set `left` and cancel the group when the caller leaves; ping while it waits."""
    while True:
        message: MutableMapping[str, Any] | None = None
        with anyio.move_on_after(PING_S):
            message = await receive()
        if message is None:
            exchange.ping()
        elif message["type"] == "http.disconnect":
            left.set()
            group.cancel_scope.cancel()
            return
