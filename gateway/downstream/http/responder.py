"""One request that is answered without ASGI: a task, one write, and an event stream only where one is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from gateway import wire
from gateway.downstream.http.fast_path import FastPath
from gateway.downstream.http.response import MAX_UNSENT_BYTES, PING_S
from gateway.downstream.server import Request
from gateway.wire import Pieces

STATUS_LINES: Final = {
    200: b"HTTP/1.1 200 OK\r\n",
    400: b"HTTP/1.1 400 Bad Request\r\n",
    404: b"HTTP/1.1 404 Not Found\r\n",
}
_JSON: Final = b"content-type: application/json\r\n"
_STREAM: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\n"
    b"x-accel-buffering: no\r\ntransfer-encoding: chunked\r\n"
)
_CLOSE: Final = b"connection: close\r\n"
# Larger answers are not copied to stand in one piece.
_ONE_WRITE_BYTES: Final = 64 * 1024


class DirectCycle:
    """One request and its answer; to uvicorn's protocol it is a cycle like its own.

    Attributes:
        response_complete: The answer is written.
        disconnected: The caller has left.
        keep_alive: The connection stays open after the answer.
    """

    __slots__ = (
        "_done",
        "_fast",
        "_loop",
        "_silent_since_s",
        "_streaming",
        "_task",
        "_transport",
        "disconnected",
        "keep_alive",
        "response_complete",
    )

    def __init__(
        self, fast: FastPath, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, done: Callable[[], None]
    ) -> None:
        self._fast = fast
        self._transport = transport
        self._loop = loop
        self._done = done
        self._task: asyncio.Task[None] | None = None
        self._streaming = False
        self._silent_since_s = loop.time()
        self.response_complete = False
        self.disconnected = False
        self.keep_alive = True

    def start(self, request: Request) -> asyncio.Task[None]:
        """Begin to answer."""
        self._task = self._loop.create_task(self._run(request))
        return self._task

    @property
    def message_event(self) -> DirectCycle:
        """What uvicorn's protocol sets when the caller has left."""
        return self

    def set(self) -> None:
        """Hear that something has changed: stop where nobody waits for the answer any more."""
        if self.disconnected and not self.response_complete:
            self.cancel()

    def cancel(self) -> None:
        """Stop the request; a caller who is still there is told."""
        if self._task is not None:
            self._task.cancel()

    def emit(self, message: dict[str, Any]) -> None:
        """Stream a message before the answer; a reader that lets too much wait is cut off."""
        self._stream(b"event: message\ndata: " + wire.dumps(message) + b"\n\n")

    def look(self, now_s: float) -> None:
        """Show a silent connection's middle men, every so often, that it lives."""
        if now_s - self._silent_since_s >= PING_S and not self.response_complete:
            self._stream(b": ping\n\n")

    async def _run(self, request: Request) -> None:
        try:
            status, pieces = await self._fast.answer(request, self)
        except asyncio.CancelledError:
            if self.disconnected:
                self._leave()
                return
            status, pieces = 200, (self._fast.cut_off(request, streaming=self._streaming),)
        self._finish(status, pieces)

    def _stream(self, frame: bytes) -> None:
        if self.response_complete or self.disconnected:
            return
        head = b""
        if not self._streaming:
            self._streaming = True
            head = _STREAM + (b"\r\n" if self.keep_alive else _CLOSE + b"\r\n")
        self._silent_since_s = self._loop.time()
        self._transport.write(b"%b%x\r\n%b\r\n" % (head, len(frame), frame))
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.cancel()

    def _finish(self, status: int, pieces: Pieces) -> None:
        done = self._leave()
        if self.disconnected:
            return
        if self._streaming:
            body = b"".join(pieces)
            frame = b"event: message\ndata: " + body + b"\n\n" if body else b""
            last = b"%x\r\n%b\r\n" % (len(frame), frame) if frame else b""
            self._transport.write(last + b"0\r\n\r\n")
        else:
            line = STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
            close = b"" if self.keep_alive else _CLOSE
            size_bytes = sum(map(len, pieces))
            head = b"%b%bcontent-length: %d\r\n%b\r\n" % (line, _JSON, size_bytes, close)
            if size_bytes <= _ONE_WRITE_BYTES:
                self._transport.write(b"".join((head, *pieces)))
            else:
                self._transport.writelines((head, *pieces))
        self.response_complete = True
        if not self.keep_alive:
            self._transport.close()
        done()

    def _leave(self) -> Callable[[], None]:
        """Let go of the connection, so that what waits on it to be read is gone when it is."""
        done, self._done, self._task = self._done, _nothing, None
        return done


def _nothing() -> None:
    """What is left to do for a request that is answered."""
