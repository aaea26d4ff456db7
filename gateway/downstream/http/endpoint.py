"""The `/mcp` endpoint: Streamable HTTP for both eras, as one ASGI callable.

Source: MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

import anyio

from gateway import wire
from gateway.access.api_keys import ApiKeys
from gateway.access.principal import Principal
from gateway.calls.profile_views import ProfileViews
from gateway.downstream.http.request import (
    Arrival,
    Refused,
    Scope,
    check_agreement,
    check_post,
    headers_of,
    read_body,
)
from gateway.downstream.http.response import Exchange, Receive, Send, send_empty, send_json, watch_disconnect
from gateway.downstream.server import Answer, McpServer, Request, error_answer, parse_request
from gateway.downstream.sessions import Running, Session, SessionTable
from gateway.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    RpcError,
)
from gateway.protocol import HANDSHAKE_VERSIONS, is_modern
from registry.views.profile import DEFAULT

log = logging.getLogger(__name__)

_CANCELLED: Final = -32800
_STATUS: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CLIENT_CAPABILITY: 400,
    UNSUPPORTED_PROTOCOL_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}


class Carrier(Protocol):
    """Hands requests to the process that has their session."""

    def owner(self, session_id: str | None) -> int | None:
        """Which other process has the session; None where it is this one's, or nobody's."""

    async def carry(self, owner: int, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Have the request answered there, and pass the answer on as it comes."""


class McpEndpoint:
    """Serves `/mcp`. Host and Origin were checked before.

    Attributes:
        keys: Who may call.
        carrier: Where sessions of other processes are; None where there is no other process.
        draining: Nothing new is begun.
    """

    def __init__(self, server: McpServer, views: ProfileViews, keys: ApiKeys) -> None:
        self.server = server
        self._views = views
        self.keys = keys
        self.sessions = SessionTable(server.announcer)
        self._running: set[Running] = set()
        self._carried = 0
        self.carrier: Carrier | None = None
        self.draining = False

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answer; subscriptions are none of them."""
        return len(self._running) + self._carried

    def give_up(self) -> None:
        """Cut off what is still in flight; each caller is told."""
        for running in list(self._running):
            running.cancel()

    def principal(self, profile: str, authorization: str | None) -> Principal | None:
        """Who calls, where there is such a profile and the credentials are right."""
        return self.keys.principal(authorization) if profile in self._views.profiles else None

    def mirrors(self, profile: str, name: str) -> bool:
        """Whether arguments of this wrapper are repeated in headers."""
        entry = self._views.view(profile).entry(name)
        return entry is not None and bool(entry.wrapper.headers)

    def begin(self, request: Request, running: Running) -> None:
        """Count a request as running, and let its session cancel it."""
        if request.method != "subscriptions/listen":
            self._running.add(running)
        if request.session is not None:
            request.session.running[request.id] = running

    def end(self, request: Request, running: Running) -> None:
        """Forget a request that runs no more."""
        self._running.discard(running)
        if request.session is not None:
            request.session.running.pop(request.id, None)

    def cut_off(self, request: Request) -> bytes:
        """What answers a request that was cancelled, by its caller or by the end of the process."""
        if self.draining:
            return self.server.given_up(request).body
        # Cancelled by a notification: the POST still wants its end.
        return error_answer(request.id, RpcError(_CANCELLED, "Request cancelled")).body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        try:
            headers = headers_of(scope)
            profile = scope["path"].removeprefix("/mcp").removeprefix("/") or DEFAULT
            if profile not in self._views.profiles:
                raise Refused(404, "there is no such profile")
            principal = self.keys.principal(headers.get("authorization"))
            if principal is None:
                raise Refused(401, "a valid API key is needed", [(b"www-authenticate", b"Bearer")])
            if self.draining:
                raise Refused(503, "the gateway is shutting down", [(b"retry-after", b"1")])
            client = scope.get("client")
            arrival = Arrival(
                headers=headers,
                principal=principal,
                profile=profile,
                peer=f"{client[0]}:{client[1]}" if client else "",
                receive=receive,
                send=send,
            )
            method = scope["method"]
            modern = headers.get("mcp-protocol-version") not in (None, *HANDSHAKE_VERSIONS)
            owner = None
            # An answer to HEAD has a length and no body, and every other method is refused anywhere.
            if self.carrier is not None and not modern and method in ("POST", "GET", "DELETE"):
                owner = self.carrier.owner(headers.get("mcp-session-id"))
            if self.carrier is not None and owner is not None:
                await self._carry(self.carrier, owner, arrival, scope)
            elif method == "POST":
                await self._post(arrival, modern=modern)
            elif modern:
                raise Refused(405, "this version has POST only", [(b"allow", b"POST")])
            elif method == "GET":
                await self._get(arrival)
            elif method == "DELETE":
                self.sessions.close(self._session(arrival))
                await send_empty(send, 204)
            else:
                raise Refused(405, "", [(b"allow", b"GET, POST, DELETE")])
        except Refused as refused:
            code = INVALID_REQUEST
            body = error_answer(None, RpcError(code, refused.message or "refused")).body
            await send_json(send, refused.status, body, refused.headers)

    async def _carry(self, carrier: Carrier, owner: int, arrival: Arrival, scope: Scope) -> None:
        if scope["method"] != "POST":
            await carrier.carry(owner, scope, b"", arrival.receive, arrival.send)
            return
        check_post(arrival.headers)
        body = await read_body(arrival.receive)
        self._carried += 1
        try:
            await carrier.carry(owner, scope, body, arrival.receive, arrival.send)
        finally:
            self._carried -= 1

    async def _post(self, arrival: Arrival, *, modern: bool) -> None:
        headers, send = arrival.headers, arrival.send
        check_post(headers)
        body = await read_body(arrival.receive)
        try:
            message = wire.loads(body)
        except wire.MalformedJson as error:
            await _send_error(send, None, RpcError(PARSE_ERROR, f"Parse error: {error}"))
            return
        if isinstance(message, dict) and "method" not in message and ("result" in message or "error" in message):
            if modern:
                await _send_error(send, None, RpcError(INVALID_REQUEST, "No request of ours is waiting"))
            else:
                self._session(arrival).answered(message)
                await send_empty(send, 202)
            return
        if isinstance(message, dict) and "id" not in message and isinstance(message.get("method"), str):
            if not modern:
                await self._notified(self._session(arrival), message)
            await send_empty(send, 202)
            return
        try:
            request_id, method, params = parse_request(message)
        except RpcError as error:
            await _send_error(send, _id_of(message), error)
            return
        session: Session | None = None
        if modern or is_modern(params):
            try:
                check_agreement(headers, method, params)
                if method == "tools/call":
                    self._check_param_headers(arrival, params)
            except RpcError as error:
                await _send_error(send, request_id, error)
                return
            modern = True
        elif method != "initialize":
            session = self._session(arrival)
        await self._exchange(arrival, request_id, method, params, session, modern=modern)

    async def _exchange(
        self,
        arrival: Arrival,
        request_id: str | int | float,
        method: str,
        params: dict[str, Any],
        session: Session | None,
        *,
        modern: bool,
    ) -> None:
        left = anyio.Event()
        group = anyio.create_task_group()
        headers: list[tuple[bytes, bytes]] = []
        exchange = Exchange(arrival.send, group, headers)
        request = Request(
            id=request_id,
            method=method,
            params=params,
            modern=modern,
            principal=arrival.principal,
            emit=exchange.emit,
            session=session,
            trace=arrival.trace,
            peer=arrival.peer,
            profile=arrival.profile,
        )
        try:
            async with group:
                group.start_soon(watch_disconnect, arrival.receive, group, exchange, left)
                self.begin(request, group.cancel_scope)
                answer = await self.server.answer(request)
                if answer.session is not None:
                    self.sessions.put(answer.session)
                    headers.append((b"mcp-session-id", answer.session.id.encode()))
                await exchange.finish(status_of(request, answer), answer.body)
                # From the loop and not from this task: a scope writes down which task cancelled it, and to describe
                # one costs more than to check its arguments.
                asyncio.get_running_loop().call_soon(group.cancel_scope.cancel)
                return
        finally:
            self.end(request, group.cancel_scope)
        if left.is_set():
            return
        if exchange.streaming and not self.draining:
            await exchange.end()
        else:
            await exchange.finish(200, self.cut_off(request))

    async def _get(self, arrival: Arrival) -> None:
        headers, send = arrival.headers, arrival.send
        if "text/event-stream" not in headers.get("accept", "") and "*/*" not in headers.get("accept", ""):
            raise Refused(406, "Accept must contain text/event-stream")
        session = self._session(arrival)
        last = headers.get("last-event-id", "")
        if session.streaming and not last:
            raise Refused(409, "this session already has a stream")
        left = anyio.Event()
        try:
            async with anyio.create_task_group() as group:
                exchange = Exchange(send, group)
                emit = exchange.emit
                group.start_soon(watch_disconnect, arrival.receive, group, exchange, left)
                exchange.ping()
                session.open_stream(
                    emit, group.cancel_scope.cancel, int(last) if last.isdecimal() and len(last) < 16 else None
                )
                await self.server.closing.wait()
                group.cancel_scope.cancel()
        finally:
            session.close_stream(emit)
        if not left.is_set():
            await exchange.end()

    def _session(self, arrival: Arrival) -> Session:
        session_id = arrival.headers.get("mcp-session-id")
        if session_id is None:
            raise Refused(400, "Mcp-Session-Id is missing: initialize first")
        session = self.sessions.get(session_id, arrival.principal, arrival.profile)
        if session is None:
            raise Refused(404, "Session not found")
        return session

    async def _notified(self, session: Session, message: dict[str, Any]) -> None:
        params = message.get("params")
        if message["method"] == "notifications/cancelled" and isinstance(params, dict):
            session.cancel(params.get("requestId"))
        else:
            await self.server.notified(session, message["method"])

    def _check_param_headers(self, arrival: Arrival, params: dict[str, Any]) -> None:
        name, arguments = params.get("name"), params.get("arguments")
        entry = self._views.view(arrival.profile).entry(name) if isinstance(name, str) else None
        if entry is None or not entry.wrapper.headers:
            return
        from mcp.shared.inbound import validate_mcp_param_headers

        # What a caller is shown decides which headers it has to send: a dialect may leave the annotation out.
        arguments = arguments if isinstance(arguments, dict) else {}
        rejection = validate_mcp_param_headers(entry.shown["inputSchema"], arguments, arrival.headers)
        if rejection is not None:
            raise RpcError(rejection.code, rejection.message, rejection.data)


def status_of(request: Request, answer: Answer) -> int:
    """The HTTP status of an answer: only the modern era has any but 200 for errors."""
    return _STATUS.get(answer.error_code or 0, 200) if request.modern or answer.error_code == PARSE_ERROR else 200


async def _send_error(send: Send, request_id: str | int | float | None, error: RpcError) -> None:
    answer: Answer = error_answer(request_id, error)
    await send_json(send, _STATUS.get(error.code, 200), answer.body)


def _id_of(message: object) -> str | int | float | None:
    value = message.get("id") if isinstance(message, dict) else None
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else None
