"""The `/mcp` endpoint: Streamable HTTP for both eras, as one ASGI callable.

Source: MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import anyio

from gateway import wire
from gateway.access.api_keys import ApiKeys
from gateway.access.principal import Principal
from gateway.calls.views import Views
from gateway.downstream.server import Answer, McpServer, Request, error_answer, parse_request
from gateway.downstream.sessions import Session, SessionTable
from gateway.downstream.streams import Exchange, Receive, Send, send_empty, send_json, watch_disconnect
from gateway.eras import HANDSHAKE_VERSIONS, NAMED_BY, VERSION_KEY, check_envelope, is_modern
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
from registry.profile import DEFAULT

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
BODY_S: Final = 30.0
_FORGOTTEN_BYTES: Final = 64 * 1024 * 1024
_CANCELLED: Final = -32800
_ROUTING: Final = frozenset({"mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id"})
_TRACE: Final[tuple[str, ...]] = ("traceparent", "tracestate", "baggage")
_STATUS: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CLIENT_CAPABILITY: 400,
    UNSUPPORTED_PROTOCOL_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}

Scope = MutableMapping[str, Any]


class _Refused(Exception):
    """The request ends with this status before anything runs."""

    def __init__(self, status: int, message: str = "", headers: list[tuple[bytes, bytes]] | None = None) -> None:
        self.status = status
        self.message = message
        self.headers = headers
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrival:
    """One HTTP request whose caller is known, and the way back."""

    headers: dict[str, str]
    principal: Principal
    profile: str
    peer: str
    receive: Receive
    send: Send

    @property
    def trace(self) -> dict[str, str]:
        """The caller's trace context."""
        return {name: self.headers[name] for name in _TRACE if name in self.headers}


class McpEndpoint:
    """Serves `/mcp`. Host and Origin were checked before."""

    def __init__(self, server: McpServer, views: Views, keys: ApiKeys) -> None:
        self._server = server
        self._views = views
        self.keys = keys
        self.sessions = SessionTable(server.announcer)
        self._running: set[anyio.CancelScope] = set()
        self.draining = False

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answer; subscriptions are none of them."""
        return len(self._running)

    def give_up(self) -> None:
        """Cut off what is still in flight; each caller is told."""
        for scope in list(self._running):
            scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        try:
            headers = _headers(scope)
            profile = scope["path"].removeprefix("/mcp").removeprefix("/") or DEFAULT
            if profile not in self._views.profiles:
                raise _Refused(404, "there is no such profile")
            principal = self.keys.principal(headers.get("authorization"))
            if principal is None:
                raise _Refused(401, "a valid API key is needed", [(b"www-authenticate", b"Bearer")])
            if self.draining:
                raise _Refused(503, "the gateway is shutting down", [(b"retry-after", b"1")])
            client = scope.get("client")
            arrival = _Arrival(
                headers=headers,
                principal=principal,
                profile=profile,
                peer=f"{client[0]}:{client[1]}" if client else "",
                receive=receive,
                send=send,
            )
            method = scope["method"]
            modern = headers.get("mcp-protocol-version") not in (None, *HANDSHAKE_VERSIONS)
            if method == "POST":
                await self._post(arrival, modern=modern)
            elif modern:
                raise _Refused(405, "this version has POST only", [(b"allow", b"POST")])
            elif method == "GET":
                await self._get(arrival)
            elif method == "DELETE":
                self.sessions.close(self._session(arrival))
                await send_empty(send, 204)
            else:
                raise _Refused(405, "", [(b"allow", b"GET, POST, DELETE")])
        except _Refused as refused:
            code = INVALID_REQUEST
            body = error_answer(None, RpcError(code, refused.message or "refused")).body
            await send_json(send, refused.status, body, refused.headers)

    async def _post(self, arrival: _Arrival, *, modern: bool) -> None:
        headers, send = arrival.headers, arrival.send
        _check_post(headers)
        body = await _read(arrival.receive)
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
                self._check_modern(arrival, method, params)
            except RpcError as error:
                await _send_error(send, request_id, error)
                return
            modern = True
        elif method != "initialize":
            session = self._session(arrival)
        await self._exchange(arrival, request_id, method, params, session, modern=modern)

    async def _exchange(
        self,
        arrival: _Arrival,
        request_id: str | int | float,
        method: str,
        params: dict[str, Any],
        session: Session | None,
        *,
        modern: bool,
    ) -> None:
        send = arrival.send
        left = anyio.Event()
        try:
            async with anyio.create_task_group() as group:
                headers: list[tuple[bytes, bytes]] = []
                exchange = Exchange(send, group, headers)
                group.start_soon(watch_disconnect, arrival.receive, group, exchange, left)
                if method != "subscriptions/listen":
                    self._running.add(group.cancel_scope)
                if session is not None:
                    session.running[request_id] = group.cancel_scope
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
                answer = await self._server.answer(request)
                if answer.session is not None:
                    self.sessions.put(answer.session)
                    headers.append((b"mcp-session-id", answer.session.id.encode()))
                status = _STATUS.get(answer.error_code or 0, 200) if modern or answer.error_code == PARSE_ERROR else 200
                await exchange.finish(status, answer.body)
                # From the loop and not from this task: a scope writes down which task cancelled it, and to describe
                # one costs more than to check its arguments.
                asyncio.get_running_loop().call_soon(group.cancel_scope.cancel)
                return
        finally:
            self._running.discard(group.cancel_scope)
            if session is not None:
                session.running.pop(request_id, None)
        if left.is_set():
            return
        if self.draining:
            await exchange.finish(200, self._server.given_up(request).body)
        else:
            # Cancelled by a notification: the POST still wants its end.
            body = error_answer(request_id, RpcError(_CANCELLED, "Request cancelled")).body
            if exchange.streaming:
                await exchange.end()
            else:
                await send_json(send, 200, body)

    async def _get(self, arrival: _Arrival) -> None:
        headers, send = arrival.headers, arrival.send
        if "text/event-stream" not in headers.get("accept", "") and "*/*" not in headers.get("accept", ""):
            raise _Refused(406, "Accept must contain text/event-stream")
        session = self._session(arrival)
        last = headers.get("last-event-id", "")
        if session.streaming and not last:
            raise _Refused(409, "this session already has a stream")
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
                await self._server.closing.wait()
                group.cancel_scope.cancel()
        finally:
            session.close_stream(emit)
        if not left.is_set():
            await exchange.end()

    def _session(self, arrival: _Arrival) -> Session:
        session_id = arrival.headers.get("mcp-session-id")
        if session_id is None:
            raise _Refused(400, "Mcp-Session-Id is missing: initialize first")
        session = self.sessions.get(session_id, arrival.principal, arrival.profile)
        if session is None:
            raise _Refused(404, "Session not found")
        return session

    async def _notified(self, session: Session, message: dict[str, Any]) -> None:
        params = message.get("params")
        if message["method"] == "notifications/cancelled" and isinstance(params, dict):
            session.cancel(params.get("requestId"))
        else:
            await self._server.notified(session, message["method"])

    def _check_modern(self, arrival: _Arrival, method: str, params: dict[str, Any]) -> None:
        """Headers against body (MCP 2026-07-28, Streamable HTTP, "Server Validation").

        Raises:
            RpcError: They disagree, or the envelope is unsound.
        """
        headers = arrival.headers
        meta = params.get("_meta")
        claimed = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
        if isinstance(claimed, str) and headers.get("mcp-protocol-version") != claimed:
            raise _mismatch("MCP-Protocol-Version does not match the request's protocol version")
        if headers.get("mcp-method") != method and is_modern(params):
            raise _mismatch("Mcp-Method does not match the request's method")
        key = NAMED_BY.get(method)
        named = params.get(key) if key is not None and is_modern(params) else None
        if named is not None and _decoded(headers.get("mcp-name")) != named:
            raise _mismatch(f"Mcp-Name does not match params.{key}")
        check_envelope(params)
        if method == "tools/call":
            self._check_param_headers(arrival, params)

    def _check_param_headers(self, arrival: _Arrival, params: dict[str, Any]) -> None:
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


def _headers(scope: Scope) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1")
        if name in headers and (name in _ROUTING or name.startswith("mcp-param-")):
            raise _Refused(400, f"the header {name} appears more than once")
        # Source: RFC 9110, section 5.5 "Field Values": white space around a value is not part of it.
        headers[name] = raw_value.decode("latin-1").strip(" \t")
    return headers


def _check_post(headers: dict[str, str]) -> None:
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise _Refused(415, "Content-Type must be application/json")
    accept = headers.get("accept", "*/*")
    if "*/*" not in accept:
        wanted = ("application/json" in accept or "application/*" in accept) and "text/event-stream" in accept
        if not wanted:
            raise _Refused(406, "Accept must contain application/json and text/event-stream")
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        # Within reason its rest is read and forgotten: who is cut while writing sees a reset, not this answer.
        close = [(b"connection", b"close")] if int(length) > _FORGOTTEN_BYTES else None
        raise _Refused(413, f"a request may have {MAX_BODY_BYTES} bytes", close)


async def _read(receive: Receive) -> bytes:
    deadline = anyio.current_time() + BODY_S
    message = await _receive(receive)
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    parts, size = [body], len(body)
    while message.get("more_body"):
        message = await _receive(receive, deadline - anyio.current_time())
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise _Refused(413, f"a request may have {MAX_BODY_BYTES} bytes", [(b"connection", b"close")])
    return b"".join(parts)


async def _receive(receive: Receive, within_s: float = BODY_S) -> MutableMapping[str, Any]:
    with anyio.move_on_after(within_s):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Refused(400, "the caller left")
        return message
    raise _Refused(408, "the body did not arrive in time", [(b"connection", b"close")])


async def _send_error(send: Send, request_id: str | int | float | None, error: RpcError) -> None:
    answer: Answer = error_answer(request_id, error)
    await send_json(send, _STATUS.get(error.code, 200), answer.body)


def _id_of(message: object) -> str | int | float | None:
    value = message.get("id") if isinstance(message, dict) else None
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def _decoded(value: str | None) -> str | None:
    if value is None or not value.startswith("=?base64?"):
        return value
    from mcp.shared.inbound import decode_header_value

    return decode_header_value(value)


def _mismatch(message: str) -> RpcError:
    return RpcError(HEADER_MISMATCH, message)
