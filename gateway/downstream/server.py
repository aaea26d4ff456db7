"""Answers MCP requests in both protocol eras, whatever transport carries them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import anyio

from gateway import wire
from gateway.access.principal import Principal
from gateway.access.quotas import Account
from gateway.calls.context import Caller
from gateway.calls.pipeline import CallPipeline
from gateway.calls.profile_views import ProfileViews
from gateway.calls.prompts_and_resources import PromptsAndResources
from gateway.downstream.capabilities import merged
from gateway.downstream.changes import ChangeAnnouncer
from gateway.downstream.instructions import instructions
from gateway.downstream.lists import LIST_METHODS, SERVER_INFO, ListResults
from gateway.downstream.sessions import Emit, Session
from gateway.downstream.subscriptions import Subscriptions
from gateway.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    QuotaExceeded,
    RpcError,
    error_result,
)
from gateway.jsonrpc import RequestId
from gateway.protocol import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    HANDSHAKE_VERSIONS,
    LOG_LEVEL_KEY,
    LOG_LEVELS,
    MODERN_VERSIONS,
    SERVER_INFO_KEY,
    VERSION_KEY,
    negotiate,
)
from gateway.upstream.private_links import PrivateLinks
from registry.views.profile import DEFAULT_PROFILE
from registry.views.view import View

log = logging.getLogger(__name__)

# What we can do changes with the upstreams' capabilities only, hardly ever within an hour.
_DISCOVERY_TTL_MS: Final = 3_600_000
# Of an unknown method that is echoed: longer than any that exists.
_METHOD_LENGTH: Final = 200
_TASK_METHODS: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})


@dataclass(frozen=True, slots=True, kw_only=True)
class McpRequest:
    """One request of a caller, whatever transport carried it.

    Attributes:
        id: The JSON-RPC id, echoed as it came.
        modern: It carries the `_meta` envelope of 2026-07-28.
        session: Of the handshake era; None in the modern one, and for `initialize`.
        emit: Sends a message to the caller before the response.
        pause: Has the caller come back for the response after some milliseconds; None where it cannot.
        trace: The caller's trace context, as HTTP headers.
        peer: The address of the caller.
        profile: The profile that it addresses.
        account: What its caller uses at present.
    """

    id: RequestId
    method: str
    params: dict[str, Any]
    modern: bool
    principal: Principal
    account: Account
    emit: Emit
    pause: Callable[[int], None] | None = None
    session: Session | None = None
    trace: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""
    profile: str = DEFAULT_PROFILE


@dataclass(frozen=True, slots=True, kw_only=True)
class McpResponse:
    """The response as JSON, its error code if it is an error, and the session that `initialize` has opened.

    Attributes:
        refused: Nothing was run, since a quota would be exceeded.
    """

    pieces: wire.Pieces
    error_code: int | None = None
    session: Session | None = None
    refused: QuotaExceeded | None = None

    @property
    def body(self) -> bytes:
        """The response in one piece."""
        return b"".join(self.pieces)


class McpServer:
    """The gateway as an MCP server."""

    def __init__(
        self,
        *,
        views: ProfileViews,
        pipeline: CallPipeline,
        prompts_and_resources: PromptsAndResources,
        subscriptions: Subscriptions,
        announcer: ChangeAnnouncer,
        shared: bool,
        first_listings: Callable[[], Awaitable[None]],
        pending: Callable[[], bool],
        private_links: PrivateLinks,
        instance: str = "",
        session_prefix: str = "",
    ) -> None:
        """Answer with these.

        Args:
            views: What each profile shows.
            pipeline: Calls tools.
            prompts_and_resources: Answers everything else that belongs to an upstream.
            subscriptions: Connects callers with changes.
            announcer: Announces changes of lists.
            shared: No credentials are asked for, so that caches may share answers between callers.
            first_listings: Waits, bounded, until a first list has something to show.
            pending: Whether some upstream has not listed anything yet.
            private_links: The connections that belong to one session.
            instance: The id of this gateway, by which one that leads back to itself is known.
            session_prefix: What the ids of sessions begin with.
        """
        self._views = views
        self._pipeline = pipeline
        self._prompts_and_resources = prompts_and_resources
        self._subscriptions = subscriptions
        self._first_listings = first_listings
        self._pending = pending
        self._private_links = private_links
        self._instance = instance
        self._session_prefix = session_prefix
        self._lists = ListResults()
        self.announcer = announcer
        self.shared = shared

    def close_streams(self) -> None:
        """End every `subscriptions/listen` request with its proper result."""
        self._subscriptions.closing.set()

    @property
    def closing(self) -> anyio.Event:
        """Set once long-lived streams have to end."""
        return self._subscriptions.closing

    async def answer(self, request: McpRequest) -> McpResponse:
        """Answer any request; every failure becomes an error object."""
        account, method = request.account, request.method
        try:
            account.begin(method)
        except QuotaExceeded as error:
            return error_response(request.id, error)
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
        finally:
            account.end(method)

    def abandoned(self, request: McpRequest) -> McpResponse:
        """The response to a request that the end of the process interrupts."""
        text = "The gateway is shutting down and no answer came in time: the outcome of this request is unknown."
        if request.method != "tools/call":
            return error_response(request.id, RpcError(INTERNAL_ERROR, text))
        result = error_result(text)
        return _response(request.id, _serialised(result, request))

    async def notified(self, session: Session, method: str) -> None:
        """Take a notification of a handshake-era host."""
        if method == "notifications/roots/list_changed":
            await self._private_links.notify(session.id, method)

    async def _result(self, request: McpRequest) -> wire.Pieces:
        method, params = request.method, request.params
        if method == "tools/call":
            return await self._call(request)
        if method in LIST_METHODS:
            return (await self._list(request),)
        owners = self._prompts_and_resources
        if method == "prompts/get":
            return _serialised(await owners.get_prompt(params, self._caller(request)), request)
        if method == "resources/read":
            return self._read(await owners.read_resource(params, self._caller(request)), request)
        if method == "completion/complete":
            return _serialised(await owners.complete(params, self._caller(request)), request)
        if request.modern:
            if method in _TASK_METHODS:
                return _serialised(await owners.task(method, params, self._caller(request)), request)
            if method == "server/discover":
                return (self._discover(request),)
            if method == "subscriptions/listen":
                ended = await self._subscriptions.listen(
                    request.id, params, request.principal, request.profile, request.emit
                )
                return (ended,)
        elif method == "ping":
            return (b"{}",)
        elif request.session is not None:
            if method == "logging/setLevel":
                return (self._set_level(request.session, params),)
            if method == "resources/subscribe":
                return (await self._subscriptions.subscribe(request.session, params),)
            if method == "resources/unsubscribe":
                return (self._subscriptions.unsubscribe(request.session, params),)
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method[:_METHOD_LENGTH]}")

    async def _call(self, request: McpRequest) -> wire.Pieces:
        result = await self._pipeline.call(request.params, self._caller(request))
        try:
            return _serialised(result, request)
        except wire.MalformedJson:
            # Not a JSON-RPC error: hosts would call again what has run already.
            text = "The call ran, but its result is nested too deeply to be passed on."
            return _serialised(error_result(text), request)

    async def _list(self, request: McpRequest) -> bytes:
        if request.params.get("cursor") is not None:
            raise RpcError(INVALID_PARAMS, "Invalid cursor: the list has one page")
        await self._first_listings()
        view = self._view(request)
        return self._lists.result(
            view,
            LIST_METHODS[request.method],
            modern=request.modern,
            shared=self.shared,
            found=request.session.found.listed(view) if request.session is not None else (),
        )

    def _read(self, result: dict[str, Any], request: McpRequest) -> wire.Pieces:
        if request.modern and result.get("resultType") == "complete":
            result.setdefault("ttlMs", 0)
            if not self.shared or result.get("cacheScope") != "public":
                result["cacheScope"] = "private"
        return _serialised(result, request)

    def _view(self, request: McpRequest) -> View:
        try:
            return self._views.view(request.profile)
        except KeyError:
            raise RpcError(INVALID_REQUEST, f"The profile {request.profile} is no longer configured") from None

    def _initialize(self, request: McpRequest) -> McpResponse:
        params = request.params
        if not isinstance(params.get("protocolVersion"), str):
            raise RpcError(INVALID_PARAMS, "params.protocolVersion must be a string")
        version = negotiate(params["protocolVersion"])
        result = {
            "protocolVersion": version,
            "capabilities": self._capabilities(request, modern=False),
            "serverInfo": SERVER_INFO,
            "instructions": instructions(self._view(request)),
        }
        session = Session(
            request.principal,
            version=version,
            params=params,
            account=request.account,
            profile=request.profile,
            prefix=self._session_prefix,
        )
        session.on_end.append(partial(self._private_links.drop, session.id))
        return _response(request.id, (wire.dumps(result),), session)

    def _discover(self, request: McpRequest) -> bytes:
        pending = self._pending()
        result = {
            "resultType": "complete",
            "supportedVersions": [*MODERN_VERSIONS],
            "capabilities": self._capabilities(request, modern=True),
            "instructions": instructions(self._view(request)),
            "ttlMs": 0 if pending else _DISCOVERY_TTL_MS,
            "cacheScope": "public" if self.shared else "private",
            "_meta": {SERVER_INFO_KEY: SERVER_INFO},
        }
        return wire.dumps(result)

    def _capabilities(self, request: McpRequest, *, modern: bool) -> dict[str, Any]:
        catalog = self._view(request).catalog
        return merged(catalog, instance=self._instance, modern=modern, pending=self._pending())

    def _caller(self, request: McpRequest) -> Caller:
        """The caller of this request, with every way to reach it."""
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
                account=request.account,
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
                on_pause=request.pause,
                ask=partial(session.ask, request.emit),
                found=partial(_extend_list, session, request.emit, view),
                trace=request.trace,
                peer=request.peer,
            )
        capabilities, level = meta.get(CAPABILITIES_KEY), meta.get(LOG_LEVEL_KEY)
        return Caller(
            principal=request.principal,
            account=request.account,
            view=view,
            version=meta[VERSION_KEY] if request.modern else HANDSHAKE_VERSIONS[-1],
            request_id=request.id,
            capabilities=capabilities if isinstance(capabilities, dict) else {},
            answers="inputResponses" in request.params or "requestState" in request.params,
            log_level=level if level in LOG_LEVELS else None,
            on_progress=on_progress,
            on_log=on_log,
            trace=request.trace,
            peer=request.peer,
            client_info=meta.get(CLIENT_INFO_KEY),
        )

    def _set_level(self, session: Session, params: dict[str, Any]) -> bytes:
        level = params.get("level")
        if level not in LOG_LEVELS:
            raise RpcError(INVALID_PARAMS, f"params.level must be one of {', '.join(LOG_LEVELS)}")
        session.log_level = level
        return b"{}"


def _extend_list(session: Session, emit: Emit, view: View, names: list[str]) -> None:
    """Add to the list of a session what it searched for; it is notified before the result."""
    if session.found.add(names, view):
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
    refused = error if isinstance(error, QuotaExceeded) else None
    return McpResponse(pieces=(head, body, b"}"), error_code=error.code, refused=refused)


def _response(request_id: RequestId, result: wire.Pieces, session: Session | None = None) -> McpResponse:
    head = b'{"jsonrpc":"2.0","id":' + wire.dumps(request_id) + b',"result":'
    return McpResponse(pieces=(head, *result, b"}"), session=session)


def _serialised(result: dict[str, Any], request: McpRequest) -> wire.Pieces:
    """A result as its caller gets it: in the modern era with its type and our `serverInfo`."""
    if request.modern:
        result.setdefault("resultType", "complete")
        meta = result.get("_meta")
        result["_meta"] = {**(meta if isinstance(meta, dict) else {}), SERVER_INFO_KEY: SERVER_INFO}
    return wire.pieces(result)
