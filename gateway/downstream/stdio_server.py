"""Serve one host over standard input and output.

If the host begins with `initialize`, as versions up to 2025-11-25 require (the handshake era), the connection is a
single MCP session. Messages are JSON texts, one per line.

Source: MCP 2026-07-28, "Transports", "stdio".
"""

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
from typing import Any, Final, cast

import anyio
from anyio.abc import TaskGroup

from gateway.access.principal import LOCAL, Principal
from gateway.access.quotas import Account
from gateway.downstream.mcp_server import McpServer
from gateway.downstream.messages import STDIO_PEER, McpRequest, error_response
from gateway.downstream.sessions import Session
from gateway.http.http_request import MAX_REQUEST_BYTES
from gateway.process.files import LineSplitter
from gateway.process.tasks import open_signals
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import INVALID_REQUEST, PARSE_ERROR, RpcError
from gateway.protocol.jsonrpc import (
    InvalidMessage,
    RequestId,
    RpcNotification,
    RpcRequest,
    RpcResponse,
    find_by_id,
    read,
)
from gateway.protocol.versions import check_envelope, is_modern
from registry.views.profile import DEFAULT_PROFILE

MAX_WAITING: Final = 1024
"""The limit of queued lines, and of requests in flight. All windows of a host together have fewer concurrent tool
calls."""
MAX_INPUT_LINE_BYTES: Final = MAX_REQUEST_BYTES
"""The same limit as for a request over HTTP."""
MAX_UNREAD_OUTPUT_BYTES: Final = 32 * 1024 * 1024
"""If the host leaves this much output unread, handling of input pauses. A few of the largest results fit into it."""
# The number of lines handled before other tasks may run, so that responses are sent while more requests arrive.
_LINES_IN_A_ROW: Final = 16
# The time limit for flushing output at exit, so that a host that does not read cannot delay the exit for longer.
_FLUSH_S: Final = 2.0
_FLUSH_POLL_S: Final = 0.005
# The number of bytes read at once, equal to the capacity of a pipe.
_CHUNK_BYTES: Final = 64 * 1024


async def stop_at_signal(scope: anyio.CancelScope) -> None:
    """Cancel the scope at SIGTERM or SIGINT."""
    with open_signals(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()
            return


class _Input(asyncio.Protocol):
    """A bounded queue of the lines of standard input; reading pauses while the queue is full.

    Attributes:
        waiting: The lines to be handled, with None for each line that was too long.
        arrived: Set when there may be more lines to handle.
        ended: True once standard input has ended.
    """

    def __init__(self) -> None:
        self._splitter = LineSplitter(MAX_INPUT_LINE_BYTES)
        self._transport: asyncio.ReadTransport | None = None
        self.waiting: deque[bytes | None] = deque()
        self.arrived = asyncio.Event()
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's classes.
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
    """Reads a file, or a device such as /dev/null. An event loop cannot wait for such input, but reads never block."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, file: RawIOBase) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._file = file
        self._paused = False
        self._waiting: asyncio.Handle | None = loop.call_soon(self._read_input)
        protocol.connection_made(self)

    def _read_input(self) -> None:
        self._waiting = None
        if self._paused or self._file.closed:
            return
        try:
            chunk = self._file.read(_CHUNK_BYTES) or b""
        except OSError:
            chunk = b""
        if chunk:
            self._protocol.data_received(chunk)
            self._waiting = self._loop.call_soon(self._read_input)
        else:
            self.close()
            # The last line of a file may lack its line break.
            self._protocol.data_received(b"\n")
            self._protocol.connection_lost(None)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        if self._waiting is None and not self._file.closed:
            self._waiting = self._loop.call_soon(self._read_input)

    def is_closing(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        self._file.close()


class _ThreadReader(asyncio.ReadTransport):
    """Reads in a thread, on platforms whose event loop cannot wait for standard input."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, file: RawIOBase) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._file = file
        self._may_read = threading.Event()
        self._may_read.set()
        self._closing = False
        protocol.connection_made(self)
        # A daemon thread, so that it does not delay the exit: a blocking read of a console cannot be interrupted.
        threading.Thread(target=self._read_input, daemon=True).start()

    def _read_input(self) -> None:
        chunk = b"\n"
        while chunk and not self._closing:
            self._may_read.wait()
            try:
                chunk = os.read(self._file.fileno(), _CHUNK_BYTES)
            except (OSError, ValueError):
                chunk = b""
            if not chunk:
                self._file.close()
            with suppress(RuntimeError):  # raised if the event loop is closed
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
    """Flow control of standard output.

    Attributes:
        full: True while the host leaves too much output unread.
    """

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


def _is_pollable(descriptor: int) -> bool:
    if sys.platform == "win32":
        return False
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


class StandardStreams:
    """The standard streams of the process. While they are open here, `print` writes to standard error.

    Attributes:
        from_file: True if standard input is a file or device, which unlike a host does not wait for responses.
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
        elif _is_pollable(0):
            self._reader, _ = await loop.connect_read_pipe(lambda: self._input, source)
        else:
            self.from_file = True
            self._reader = _FileReader(loop, self._input, source)
        self._output = output.fileno()
        if _is_pollable(self._output):
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
        """Send a message. Messages that the host does not read are buffered; at a limit, handling of input pauses."""
        if self._writer is None:
            data = line + b"\n"
            while data:
                data = data[os.write(self._output, data) :]
        elif not self._writer.is_closing():
            self._writer.write(line + b"\n")

    async def lines(self) -> AsyncIterator[bytes | None]:
        """Yield lines until standard input ends; yield None for a line that was too long."""
        waiting = self._input.waiting
        handled = 0
        while True:
            while waiting and (self._input.ended or not self._host.full):
                yield waiting.popleft()
                handled += 1
                if handled % _LINES_IN_A_ROW == 0:
                    # Let other tasks send responses; otherwise, this loop would not notice that their output is unread.
                    await asyncio.sleep(0)
            if self._input.ended and not waiting:
                return
            self._input.arrived.clear()
            if len(waiting) <= MAX_WAITING:
                self._input.resume()
            await self._input.arrived.wait()


# How long running requests may continue after standard input ends. A host that has closed it reads responses only for
# a moment.
_END_S: Final = 5.0
# How long running requests may continue if the input is a file, because all of them have to be answered: a little
# longer than the default timeouts of a call and of the connection to its upstream.
_FILE_END_S: Final = 75.0
# The interval between checks whether requests are still running.
_POLL_S: Final = 0.02


class StdioServer:
    """The connection over standard input and output.

    Attributes:
        principal: The caller that further requests are attributed to.
    """

    def __init__(
        self, server: McpServer, account: Account, profile: str = DEFAULT_PROFILE, *, principal: Principal = LOCAL
    ) -> None:
        self._server = server
        self._account = account
        self.principal = principal
        self._profile = profile
        self._running: dict[Any, anyio.CancelScope] = {}
        self._session: Session | None = None
        self._write: Callable[[bytes], None] = lambda line: None

    def identify(self, principal: Principal) -> None:
        """Attribute further requests to this caller, which may be another one or have other permissions than before."""
        self.principal = principal

    async def run(self) -> None:
        """Serve until standard input ends."""
        async with StandardStreams() as pipes:
            self._write = pipes.write
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(stop_at_signal, group.cancel_scope)
                    async for line in pipes.lines():
                        if (opening := self._handle_line(line, group)) is not None:
                            # Answer `initialize` first: later lines belong to the new session, and a file does not wait
                            # for the response.
                            await self._answer(opening)
                    with anyio.move_on_after(_FILE_END_S if pipes.from_file else _END_S):
                        while self._running:
                            await anyio.sleep(_POLL_S)
                    group.cancel_scope.cancel()
            finally:
                if self._session is not None:
                    self._session.end()

    def _emit(self, message: dict[str, Any], number: int | None = None) -> None:
        self._write(json_bytes.dumps(message))

    def _open_session(self, session: Session) -> None:
        if self._session is not None:
            self._session.end()
        self._session = session
        session.on_end.append(
            self._server.announcer.subscribe(session.announce, session.profile, lambda: self.principal)
        )
        session.open_stream(self._emit, lambda: None)

    def _handle_line(self, line: bytes | None, group: TaskGroup) -> McpRequest | None:
        """Handle a message. Return the request if it has to be answered before the next message is handled."""
        if line is None:
            self._write(error_response(None, RpcError(INVALID_REQUEST, "The message is too large")).body)
            return None
        if not line.strip():
            return None
        try:
            message = read(line)
            if isinstance(message, RpcRequest):
                self._check_room(message.id)
        except json_bytes.MalformedJson as error:
            self._write(error_response(None, RpcError(PARSE_ERROR, f"Parse error: {error}")).body)
            return None
        except InvalidMessage as error:
            self._write(error_response(error.request_id, error).body)
            return None
        if isinstance(message, RpcResponse):
            if self._session is not None:
                self._session.handle_response(message.message)
            return None
        if isinstance(message, RpcNotification):
            self._handle_notification(message.method, message.params, group)
            return None
        request_id, method, params = message.id, message.method, message.params
        modern = is_modern(params) or method == "server/discover"
        request = McpRequest(
            id=request_id,
            method=method,
            params=params,
            modern=modern,
            principal=self.principal,
            account=self._account,
            emit=self._emit,
            session=None if modern else self._session,
            peer=STDIO_PEER,
            profile=self._profile,
        )
        self._running[request_id] = anyio.CancelScope()
        if method == "initialize" and not modern:
            return request
        group.start_soon(self._answer, request)
        return None

    def _check_room(self, request_id: RequestId) -> None:
        if len(self._running) >= MAX_WAITING:
            raise InvalidMessage(INVALID_REQUEST, "Too many requests are in flight", request_id)
        if request_id in self._running:
            raise InvalidMessage(INVALID_REQUEST, "A request with this id is already in flight", request_id)

    async def _answer(self, request: McpRequest) -> None:
        try:
            with self._running[request.id]:
                try:
                    if request.modern:
                        check_envelope(request.params)
                    answer = await self._server.answer(request)
                except RpcError as error:
                    answer = error_response(request.id, error)
                self._write(answer.body)
                if answer.session is not None:
                    self._open_session(answer.session)
        finally:
            self._running.pop(request.id, None)

    def _handle_notification(self, method: str, params: object, group: TaskGroup) -> None:
        if method == "notifications/cancelled" and isinstance(params, dict):
            scope = find_by_id(self._running, params.get("requestId"))
            if scope is not None:
                scope.cancel()
        elif self._session is not None:
            group.start_soon(self._server.handle_notification, self._session, method)
