"""The gateway over standard input and output: one JSON-RPC message a line, both eras.

Source: MCP 2026-07-28, "Transports", "stdio".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from gateway import wire
from gateway.access.principal import LOCAL, Principal
from gateway.access.quotas import Account
from gateway.downstream.messages import STDIO_PEER, McpRequest, error_response
from gateway.downstream.server import McpServer
from gateway.downstream.sessions import Session
from gateway.downstream.standard_streams import MAX_WAITING, StandardStreams, stop_at_signal
from gateway.errors import INVALID_REQUEST, PARSE_ERROR, RpcError
from gateway.jsonrpc import InvalidMessage, RequestId, RpcNotification, RpcRequest, RpcResponse, find_by_id, read
from gateway.protocol import check_envelope, is_modern
from registry.views.profile import DEFAULT_PROFILE

# A host that closes its end still reads for a moment; what takes longer it does not wait for.
_END_S: Final = 5.0
# Whoever asks by a file wants all answers: as long as a call may take by default, and as a connection before it.
_FILE_END_S: Final = 75.0
# Calls end at their own pace; nothing wakes anybody when the last one has.
_POLL_S: Final = 0.02


class StdioServer:
    """One connection over standard input and output; in the handshake era it is one session.

    Attributes:
        principal: Who its requests come from, from now on.
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

    async def run(self) -> None:
        """Serve until standard input ends."""
        async with StandardStreams() as pipes:
            self._write = pipes.write
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(stop_at_signal, group.cancel_scope)
                    async for line in pipes.lines():
                        if (opening := self._receive(line, group)) is not None:
                            # What follows belongs to its session; a file does not wait for the answer.
                            await self._answer(opening)
                    with anyio.move_on_after(_FILE_END_S if pipes.from_file else _END_S):
                        while self._running:
                            await anyio.sleep(_POLL_S)
                    group.cancel_scope.cancel()
            finally:
                if self._session is not None:
                    self._session.end()

    def _emit(self, message: dict[str, Any], number: int | None = None) -> None:
        self._write(wire.dumps(message))

    def _open(self, session: Session) -> None:
        if self._session is not None:
            self._session.end()
        self._session = session
        session.on_end.append(
            self._server.announcer.subscribe(session.announce, session.profile, lambda: self.principal)
        )
        session.open_stream(self._emit, lambda: None)

    def _receive(self, line: bytes | None, group: TaskGroup) -> McpRequest | None:
        """Take one message; returns a request that has to be answered before the next one is taken."""
        if line is None:
            self._write(error_response(None, RpcError(INVALID_REQUEST, "The message is too large")).body)
            return None
        if not line.strip():
            return None
        try:
            message = read(line)
            if isinstance(message, RpcRequest):
                self._check_room(message.id)
        except wire.MalformedJson as error:
            self._write(error_response(None, RpcError(PARSE_ERROR, f"Parse error: {error}")).body)
            return None
        except InvalidMessage as error:
            self._write(error_response(error.request_id, error).body)
            return None
        if isinstance(message, RpcResponse):
            if self._session is not None:
                self._session.answered(message.message)
            return None
        if isinstance(message, RpcNotification):
            self._notified(message.method, message.params, group)
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
            raise InvalidMessage(INVALID_REQUEST, "This id is in flight already", request_id)

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
                    self._open(answer.session)
        finally:
            self._running.pop(request.id, None)

    def _notified(self, method: str, params: object, group: TaskGroup) -> None:
        if method == "notifications/cancelled" and isinstance(params, dict):
            scope = find_by_id(self._running, params.get("requestId"))
            if scope is not None:
                scope.cancel()
        elif self._session is not None:
            group.start_soon(self._server.notified, self._session, method)
