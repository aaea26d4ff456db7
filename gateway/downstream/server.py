"""Answer MCP requests in both eras; what carries them is somebody else's business."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import anyio

from gateway import wire
from gateway.access.principal import Principal
from gateway.calls.context import Caller
from gateway.calls.pipeline import CallPipeline
from gateway.calls.profile_views import ProfileViews
from gateway.calls.prompts_and_resources import PromptsAndResources
from gateway.downstream.capabilities import merged
from gateway.downstream.changes import Announcer
from gateway.downstream.instructions import instructions
from gateway.downstream.lists import LIST_METHODS, SERVER_INFO, ListViews
from gateway.downstream.sessions import Emit, Session
from gateway.downstream.subscriptions import Listening
from gateway.errors import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RpcError, error_result
from gateway.jsonrpc import RequestId
from gateway.protocol import (
    CAPABILITIES_KEY,
    HANDSHAKE_VERSIONS,
    LOG_LEVEL_KEY,
    LOG_LEVELS,
    MODERN_VERSIONS,
    SERVER_INFO_KEY,
    VERSION_KEY,
    negotiate,
)
from gateway.upstream.private_links import PrivateLinks
from registry.views.profile import DEFAULT
from registry.views.view import View

log = logging.getLogger(__name__)

_DISCOVERY_TTL_MS: Final = 3_600_000
_TASK_METHODS: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})


@dataclass(frozen=True, slots=True, kw_only=True)
class McpRequest:
    """One request from a caller, whatever carried it.

    Attributes:
        id: The JSON-RPC id, echoed as it came.
        modern: It carries the envelope of 2026-07-28.
        session: Of the handshake era; None in the modern one, and for `initialize`.
        emit: Sends a message that belongs to this request.
        trace: The caller's trace context, as HTTP headers.
        peer: The other end of its connection.
        profile: The one whose path it came by.
    """

    id: RequestId
    method: str
    params: dict[str, Any]
    modern: bool
    principal: Principal
    emit: Emit
    session: Session | None = None
    trace: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""
    profile: str = DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class McpResponse:
    """The response, the code if it is an error, and the session that `initialize` has opened."""

    pieces: wire.Pieces
    error_code: int | None = None
    session: Session | None = None

    @property
    def body(self) -> bytes:
        """The response in one."""
        return b"".join(self.pieces)


class McpServer:
    """The gateway as an MCP server."""

    def __init__(
        self,
        views: ProfileViews,
        pipeline: CallPipeline,
        offerings: PromptsAndResources,
        listening: Listening,
        announcer: Announcer,
        *,
        shared: bool,
        settle: Callable[[], Awaitable[None]],
        pending: Callable[[], bool],
        private: PrivateLinks,
        session_prefix: str = "",
    ) -> None:
        self._calling = views
        self._pipeline = pipeline
        self._offerings = offerings
        self._listening = listening
        self._announcer = announcer
        self.shared = shared
        self._settle = settle
        self._pending = pending
        self._private = private
        self.session_prefix = session_prefix
        self._views = ListViews()

    @property
    def announcer(self) -> Announcer:
        """Tells of changes."""
        return self._announcer

    def close_streams(self) -> None:
        """End every listen stream with its proper result."""
        self._listening.closing.set()

    @property
    def closing(self) -> anyio.Event:
        """Set once long-lived streams have to end."""
        return self._listening.closing

    async def answer(self, request: McpRequest) -> McpResponse:
        """Answer any request; every failure becomes an error object."""
        try:
            if request.method == "initialize" and not request.modern:
                return self._initialize(request)
            return _response(request.id, await self._result(request))
        except RpcError as error:
            return error_response(request.id, error)
        except wire.MalformedJson:
            return error_response(request.id, RpcError(INTERNAL_ERROR, "the result cannot be expressed as JSON"))
        except Exception:  # boundary: no caller sees our internals
            log.exception("a request failed unexpectedly")
            return error_response(request.id, RpcError(INTERNAL_ERROR, "Internal error"))

    def given_up(self, request: McpRequest) -> McpResponse:
        """Answer a request that the end of the process cuts off."""
        text = "The gateway is shutting down and no answer came in time: the outcome of this request is unknown."
        if request.method != "tools/call":
            return error_response(request.id, RpcError(INTERNAL_ERROR, text))
        result = error_result(text)
        return _response(request.id, _finished(result, request))

    async def notified(self, session: Session, method: str) -> None:
        """Hear a notification of a handshake-era host."""
        if method == "notifications/roots/list_changed":
            await self._private.notify(session.id, method)

    async def _result(self, request: McpRequest) -> wire.Pieces:
        method = request.method
        if method == "tools/call":
            result = await self._pipeline.call(request.params, self._caller(request))
            try:
                return _finished(result, request)
            except wire.MalformedJson:
                # Not a JSON-RPC error: hosts would call again what has run already.
                text = "The call ran, but its result is nested too deeply to be passed on."
                return _finished(error_result(text), request)
        if method in LIST_METHODS:
            return (await self._list(request),)
        if method == "prompts/get":
            return _finished(await self._offerings.get_prompt(request.params, self._caller(request)), request)
        if method == "resources/read":
            return self._read(await self._offerings.read_resource(request.params, self._caller(request)), request)
        if method == "completion/complete":
            return _finished(await self._offerings.complete(request.params, self._caller(request)), request)
        if request.modern:
            if method == "server/discover":
                return (self._discover(request),)
            if method == "subscriptions/listen":
                listened = await self._listening.listen(
                    request.id, request.params, request.principal, request.profile, request.emit
                )
                return (listened,)
            if method in _TASK_METHODS:
                return _finished(await self._offerings.task(method, request.params, self._caller(request)), request)
        elif method == "ping":
            return (b"{}",)
        elif request.session is not None:
            if method == "logging/setLevel":
                return (self._set_level(request.session, request.params),)
            if method == "resources/subscribe":
                return (await self._listening.subscribe(request.session, request.params),)
            if method == "resources/unsubscribe":
                return (self._listening.unsubscribe(request.session, request.params),)
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method[:200]}")

    async def _list(self, request: McpRequest) -> bytes:
        if request.params.get("cursor") is not None:
            raise RpcError(INVALID_PARAMS, "Invalid cursor: the list has one page")
        await self._settle()
        found = request.session.found if request.session is not None else frozenset()
        return self._views.result(
            self._view(request),
            LIST_METHODS[request.method],
            modern=request.modern,
            shared=self.shared,
            found=found,
        )

    def _read(self, result: dict[str, Any], request: McpRequest) -> wire.Pieces:
        if request.modern and result.get("resultType") == "complete":
            result.setdefault("ttlMs", 0)
            if not self.shared or result.get("cacheScope") != "public":
                result["cacheScope"] = "private"
        return _finished(result, request)

    def _view(self, request: McpRequest) -> View:
        try:
            return self._calling.view(request.profile)
        except KeyError:
            raise RpcError(INVALID_REQUEST, f"The profile {request.profile} is no longer configured") from None

    def _initialize(self, request: McpRequest) -> McpResponse:
        params = request.params
        if not isinstance(params.get("protocolVersion"), str):
            raise RpcError(INVALID_PARAMS, "params.protocolVersion must be a string")
        version = negotiate(params["protocolVersion"])
        result = {
            "protocolVersion": version,
            "capabilities": merged(self._view(request).catalog, modern=False, pending=self._pending()),
            "serverInfo": SERVER_INFO,
            "instructions": instructions(self._view(request)),
        }
        session = Session(
            request.principal, version=version, params=params, profile=request.profile, prefix=self.session_prefix
        )
        session.endings.append(partial(self._private.drop, session.id))
        return _response(request.id, (wire.dumps(result),), session)

    def _discover(self, request: McpRequest) -> bytes:
        pending = self._pending()
        result = {
            "resultType": "complete",
            "supportedVersions": [*MODERN_VERSIONS],
            "capabilities": merged(self._view(request).catalog, modern=True, pending=pending),
            "instructions": instructions(self._view(request)),
            "ttlMs": 0 if pending else _DISCOVERY_TTL_MS,
            "cacheScope": "public" if self.shared else "private",
            "_meta": {SERVER_INFO_KEY: SERVER_INFO},
        }
        return wire.dumps(result)

    def _caller(self, request: McpRequest) -> Caller:
        """Who makes this request, and every way back to it."""
        meta = request.params.get("_meta")
        meta = meta if isinstance(meta, dict) else {}
        token = meta.get("progressToken")
        on_progress = None
        if isinstance(token, str | int) and not isinstance(token, bool):

            def on_progress(params: dict[str, Any]) -> None:
                request.emit(_notification("progress", {**params, "progressToken": token}))

        def on_log(params: dict[str, Any]) -> None:
            request.emit(_notification("message", params))

        view = self._view(request)
        session = request.session
        if session is not None:
            return Caller(
                principal=request.principal,
                view=view,
                version=session.version,
                request_id=request.id,
                owner=session,
                session_id=session.id,
                host=session.host,
                capabilities=session.capabilities,
                log_level=session.log_level,
                on_progress=on_progress,
                on_log=on_log,
                ask=partial(session.ask, request.emit),
                found=partial(_grow, session, request.emit),
                trace=request.trace,
                peer=request.peer,
            )
        capabilities, level = meta.get(CAPABILITIES_KEY), meta.get(LOG_LEVEL_KEY)
        return Caller(
            principal=request.principal,
            view=view,
            version=meta[VERSION_KEY] if request.modern else HANDSHAKE_VERSIONS[-1],
            request_id=request.id,
            capabilities=capabilities if isinstance(capabilities, dict) else {},
            log_level=level if level in LOG_LEVELS else None,
            on_progress=on_progress,
            on_log=on_log,
            trace=request.trace,
            peer=request.peer,
        )

    def _set_level(self, session: Session, params: dict[str, Any]) -> bytes:
        level = params.get("level")
        if level not in LOG_LEVELS:
            raise RpcError(INVALID_PARAMS, f"params.level must be one of {', '.join(LOG_LEVELS)}")
        session.log_level = level
        return b"{}"


def _grow(session: Session, emit: Emit, names: list[str]) -> None:
    """Let the list of a session have what it searched for; it is told before the result."""
    if not session.found.issuperset(names):
        session.found = session.found.union(names)
        emit({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


def _notification(name: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": f"notifications/{name}", "params": params}


def error_response(request_id: RequestId | None, error: RpcError) -> McpResponse:
    """An error response."""
    try:
        body = wire.dumps(error.to_object())
    except wire.MalformedJson:
        body = wire.dumps({"code": error.code, "message": error.message})
    head = b'{"jsonrpc":"2.0","id":' + wire.dumps(request_id) + b',"error":'
    return McpResponse(pieces=(head, body, b"}"), error_code=error.code)


def _response(request_id: RequestId, result: wire.Pieces, session: Session | None = None) -> McpResponse:
    head = b'{"jsonrpc":"2.0","id":' + wire.dumps(request_id) + b',"result":'
    return McpResponse(pieces=(head, *result, b"}"), session=session)


def _finished(result: dict[str, Any], request: McpRequest) -> wire.Pieces:
    """A result as its caller gets it: in the modern era with its type and our stamp."""
    if request.modern:
        result.setdefault("resultType", "complete")
        meta = result.get("_meta")
        result["_meta"] = {**(meta if isinstance(meta, dict) else {}), SERVER_INFO_KEY: SERVER_INFO}
    return wire.pieces(result)
