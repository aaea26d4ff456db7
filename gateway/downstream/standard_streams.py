"""Standard input and output as bounded, asynchronous streams of lines."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from io import RawIOBase
from typing import Final, cast

import anyio

from gateway.downstream.http.request import MAX_REQUEST_BYTES
from gateway.lines import LineSplitter
from gateway.signals import open_signals

MAX_WAITING: Final = 1024
"""Lines that wait to be handled, and requests in flight: more than a host has windows and tools at work."""
MAX_INPUT_LINE_BYTES: Final = MAX_REQUEST_BYTES
"""One request is bounded alike over every transport."""
MAX_UNREAD_OUTPUT_BYTES: Final = 32 * 1024 * 1024
"""What may wait for a host to read it before nothing more is taken from it: a few of the largest results."""
# Lines handled in a row before others get their turn, so that responses leave while more requests come in.
_LINES_IN_A_ROW: Final = 16
# Lets the last lines reach a host that still reads; one that does not would hold up the end.
_FLUSH_S: Final = 2.0
_FLUSH_POLL_S: Final = 0.005
# Of a file, in one turn of the loop: what a pipe holds.
_CHUNK_BYTES: Final = 64 * 1024


async def stop_at_signal(scope: anyio.CancelScope) -> None:
    """Cancel at SIGTERM or SIGINT."""
    with open_signals(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()
            return


class _Input(asyncio.Protocol):
    """Lines of standard input in a bounded queue; reading pauses while it is full."""

    def __init__(self) -> None:
        self._splitter = LineSplitter(MAX_INPUT_LINE_BYTES)
        self._transport: asyncio.ReadTransport | None = None
        self.waiting: deque[bytes | None] = deque()
        self.arrived = asyncio.Event()
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports derive from none of asyncio's classes.
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        skipped = self._splitter.skipped
        self.waiting += self._splitter.feed(data)
        self.waiting += [None] * (self._splitter.skipped - skipped)
        if len(self.waiting) > MAX_WAITING and self._transport is not None:
            self._transport.pause_reading()
        self.arrived.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self.arrived.set()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


class _FileReader(asyncio.ReadTransport):
    """Reads what no loop can wait for: a file, or a device such as /dev/null, of which every read returns at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, file: RawIOBase) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._file = file
        self._paused = False
        self._waiting: asyncio.Handle | None = loop.call_soon(self._read)
        protocol.connection_made(self)

    def _read(self) -> None:
        self._waiting = None
        if self._paused or self._file.closed:
            return
        try:
            chunk = self._file.read(_CHUNK_BYTES) or b""
        except OSError:
            chunk = b""
        if chunk:
            self._protocol.data_received(chunk)
            self._waiting = self._loop.call_soon(self._read)
        else:
            self.close()
            # The last line of a file need not end as one.
            self._protocol.data_received(b"\n")
            self._protocol.connection_lost(None)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        if self._waiting is None and not self._file.closed:
            self._waiting = self._loop.call_soon(self._read)

    def is_closing(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        self._file.close()


class _ThreadReader(asyncio.ReadTransport):
    """Reads what the loop of this platform cannot wait for, by a thread that waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, file: RawIOBase) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._file = file
        self._may_read = threading.Event()
        self._may_read.set()
        self._closing = False
        protocol.connection_made(self)
        # A daemon: nothing ends a read of a console.
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        chunk = b"\n"
        while chunk and not self._closing:
            self._may_read.wait()
            try:
                chunk = os.read(self._file.fileno(), _CHUNK_BYTES)
            except (OSError, ValueError):
                chunk = b""
            if not chunk:
                self._file.close()
            with suppress(RuntimeError):  # the loop has been closed
                if chunk:
                    self._loop.call_soon_threadsafe(self._protocol.data_received, chunk)
                else:
                    self._loop.call_soon_threadsafe(self._protocol.connection_lost, None)

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
        self._may_read.set()


class _Output(asyncio.Protocol):
    """Standard output; full while the host does not read what it is sent."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.full = False

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._on_change()

    def connection_lost(self, error: Exception | None) -> None:
        self.resume_writing()


def _can_be_awaited(descriptor: int) -> bool:
    if sys.platform == "win32":
        return False
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


class StandardStreams:
    """The process's own standard streams. While they are held, whatever prints goes to standard error.

    Attributes:
        from_file: Nobody waits at the other end: everything that is asked was written before.
    """

    def __init__(self) -> None:
        self._input = _Input()
        self._host = _Output(self._input.arrived.set)
        self._reader: asyncio.BaseTransport | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._output = -1
        self.from_file = False

    async def __aenter__(self) -> StandardStreams:
        loop = asyncio.get_running_loop()
        output = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        source = os.fdopen(os.dup(0), "rb", buffering=0)
        if sys.platform == "win32":
            self._reader = _ThreadReader(loop, self._input, source)
        elif _can_be_awaited(0):
            self._reader, _ = await loop.connect_read_pipe(lambda: self._input, source)
        else:
            self.from_file = True
            self._reader = _FileReader(loop, self._input, source)
        self._output = output.fileno()
        if _can_be_awaited(self._output):
            self._writer, _ = await loop.connect_write_pipe(lambda: self._host, output)
            self._writer.set_write_buffer_limits(high=MAX_UNREAD_OUTPUT_BYTES)
        self._file = output
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._writer is not None:
            with anyio.move_on_after(_FLUSH_S, shield=True):
                while self._writer.get_write_buffer_size() and not self._writer.is_closing():
                    await anyio.sleep(_FLUSH_POLL_S)
            self._writer.close()
        if self._reader is not None:
            self._reader.close()

    def write(self, line: bytes) -> None:
        """Send one message; what a host does not read waits here, and holds up what it asks next."""
        if self._writer is None:
            data = line + b"\n"
            while data:
                data = data[os.write(self._output, data) :]
        elif not self._writer.is_closing():
            self._writer.write(line + b"\n")

    async def lines(self) -> AsyncIterator[bytes | None]:
        """Lines until standard input ends; None stands for one that was too long."""
        waiting = self._input.waiting
        handled = 0
        while True:
            while waiting and (self._input.ended or not self._host.full):
                yield waiting.popleft()
                handled += 1
                if handled % _LINES_IN_A_ROW == 0:
                    # Responses have to be written before more requests are taken: only then it shows that nobody reads.
                    await asyncio.sleep(0)
            if self._input.ended and not waiting:
                return
            self._input.arrived.clear()
            if len(waiting) <= MAX_WAITING:
                self._input.resume()
            await self._input.arrived.wait()
