"""Answers MCP requests in both protocol eras, whatever transport carries them."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

import anyio

from gateway import wire
from gateway.audit.record import Audit
from gateway.calls.context import Caller
from gateway.calls.permission import Permission
from gateway.calls.pipeline import CallPipeline
from gateway.calls.profile_views import ProfileViews
from gateway.calls.prompts_and_resources import PromptsAndResources, Reached
from gateway.downstream.capabilities import merged
from gateway.downstream.changes import ChangeAnnouncer
from gateway.downstream.instructions import instructions
from gateway.downstream.lists import LIST_METHODS, SERVER_INFO, ListResults
from gateway.downstream.messages import (
    McpRequest,
    McpResponse,
    error_response,
    response_of,
    response_to,
    serialised,
)
from gateway.downstream.request_caller import caller_of
from gateway.downstream.request_spans import span_of
from gateway.downstream.sessions import Session
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
from gateway.instruments import conventions
from gateway.instruments.current import CURRENT
from gateway.instruments.durations import Durations
from gateway.instruments.tracing import Span, Tracing, UnrecordedSpan, content_of
from gateway.protocol import (
    LOG_LEVELS,
    MODERN_VERSIONS,
    SERVER_INFO_KEY,
    negotiate,
)
from gateway.upstream.private_links import PrivateLinks
from registry.views.view import View

log = logging.getLogger(__name__)

# What we can do changes with the upstreams' capabilities only, hardly ever within an hour.
_DISCOVERY_TTL_MS: Final = 3_600_000
# Of an unknown method that is echoed: longer than any that exists.
_METHOD_LENGTH: Final = 200
# What takes time of its own; a method that a caller has made up would be a series of its own.
_MEASURED: Final = frozenset({
    "initialize", "server/discover", "tools/list", "prompts/list", "prompts/get", "resources/list",
    "resources/templates/list", "resources/read", "completion/complete", "tasks/get", "tasks/update", "tasks/cancel",
})  # fmt: skip
# The codes of the protocol; what an upstream makes up is `error`.
_MEASURED_ERRORS: Final = frozenset(map(str, (INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND)))
_TASK_METHODS: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})


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
        first_listings: Callable[[McpRequest], Awaitable[None]],
        pending: Callable[[], bool],
        private_links: PrivateLinks,
        audit: Audit,
        permission: Permission,
        durations: Durations,
        tracing: Tracing | None,
        instance: str = "",
        new_session_id: Callable[[], str] | None = None,
    ) -> None:
        """Answer with these.

        Args:
            views: What each profile shows.
            pipeline: Calls tools.
            prompts_and_resources: Answers everything else that belongs to an upstream.
            subscriptions: Connects callers with changes.
            announcer: Announces changes of lists.
            shared: No credentials are asked for, so that caches may share answers between callers.
            first_listings: Waits, bounded, until the list that a request asks for has something to show.
            pending: Whether some upstream has not listed anything yet.
            private_links: The connections that belong to one session.
            audit: The record of what is asked for.
            permission: Knows what is there, and not for everybody.
            durations: Where durations are counted.
            tracing: Makes spans; None where nothing is traced.
            instance: The id of this gateway, by which one that leads back to itself is known.
            new_session_id: Makes ids of sessions; by default such that say nothing.
        """
        self._views = views
        self._pipeline = pipeline
        self._prompts_and_resources = prompts_and_resources
        self._subscriptions = subscriptions
        self._first_listings = first_listings
        self._pending = pending
        self._private_links = private_links
        self._audit = audit
        self._permission = permission
        self._durations = durations
        self._tracing = tracing
        self._instance = instance
        self._new_session_id = new_session_id
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

    def answer(self, request: McpRequest) -> Coroutine[Any, Any, McpResponse]:
        """Answer any request; every failure becomes an error object."""
        # Not a coroutine itself: it would be one more on the path of every call.
        if self._tracing is None:
            return self._answer(request)
        span = span_of(request, self._tracing)
        return self._recorded_in(span, request) if isinstance(span, Span) else self._answer(request, span)

    async def _recorded_in(self, span: Span, request: McpRequest) -> McpResponse:
        with span:
            response = await self._answer(request)
            if response.error_code is not None:
                span.failed(str(response.error_code))
            return response

    async def _answer(self, request: McpRequest, unrecorded: UnrecordedSpan | None = None) -> McpResponse:
        account, method = request.account, request.method
        # A call is counted with its tool, where that is known; a stream lasts as long as its caller wants.
        began_s = time.perf_counter() if method in _MEASURED else None
        error_type = ""
        try:
            if not account.begin(method):
                await account.begin_asked(method)
        except QuotaExceeded as error:
            return error_response(request.id, error)
        entered = CURRENT.set(unrecorded) if unrecorded is not None else None
        try:
            # A large view is made aside, before anything below looks at it.
            if request.view is None and method != "ping" and self._current_view(request) is None:
                await self._prepared_view(request)
            if method == "tools/call":
                in_pieces = self._tracing is None or not self._tracing.content
                caller = caller_of(request, request.view or self._view(request), in_pieces=in_pieces)
                return self._called(request, await self._pipeline.call(request.params, caller))
            if method == "initialize" and not request.modern:
                return self._initialize(request)
            return response_of(request.id, await self._result(request))
        except RpcError as error:
            error_type = str(error.code)
            return error_response(request.id, error)
        except wire.MalformedJson:
            error_type = str(INTERNAL_ERROR)
            return error_response(request.id, RpcError(INTERNAL_ERROR, "the result cannot be expressed as JSON"))
        except Exception:  # boundary: no caller sees our internals
            log.exception("a request failed unexpectedly")
            error_type = str(INTERNAL_ERROR)
            return error_response(request.id, RpcError(INTERNAL_ERROR, "Internal error"))
        finally:
            if entered is not None:
                CURRENT.reset(entered)
            account.end(method)
            if began_s is not None:
                error_type = error_type if error_type in _MEASURED_ERRORS or not error_type else "error"
                self._durations.of("server", method, error=error_type).record(time.perf_counter() - began_s)

    def abandoned(self, request: McpRequest) -> McpResponse:
        """The response to a request that the end of the process interrupts."""
        text = "The gateway is shutting down and no answer came in time: the outcome of this request is unknown."
        if request.method != "tools/call":
            return error_response(request.id, RpcError(INTERNAL_ERROR, text))
        result = error_result(text)
        return response_of(request.id, serialised(result, request))

    async def notified(self, session: Session, method: str) -> None:
        """Take a notification of a handshake-era host."""
        if method == "notifications/roots/list_changed":
            await self._private_links.notify(session.id, method)

    async def _result(self, request: McpRequest) -> wire.Pieces:
        method, params = request.method, request.params
        if method in LIST_METHODS:
            return await self._list(request)
        owners = self._prompts_and_resources
        if method == "prompts/get":
            return serialised(await self._recorded(owners.get_prompt, request, "name"), request)
        if method == "resources/read":
            return self._read(await self._recorded(owners.read_resource, request, "uri"), request)
        if method == "completion/complete":
            return serialised(await owners.complete(params, self._caller(request)), request)
        if request.modern:
            if method in _TASK_METHODS:
                return serialised(await owners.task(method, params, self._caller(request)), request)
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

    def _called(self, request: McpRequest, result: dict[str, Any]) -> McpResponse:
        """The response with the result of a call."""
        tracing = self._tracing
        if tracing is not None and (span := CURRENT.get()) is not None and span.recorded:
            if result.get("isError") is True:
                span.failed(conventions.TOOL_ERROR)
            if tracing.content:
                span.set(conventions.RESULT, content_of(result))
        try:
            return response_to(request, result)
        except wire.MalformedJson:
            # Not a JSON-RPC error: hosts would call again what has run already.
            text = "The call ran, but its result is nested too deeply to be passed on."
            return response_to(request, error_result(text))

    async def _recorded(
        self, ask: Callable[[dict[str, Any], Caller, Reached], Awaitable[dict[str, Any]]], request: McpRequest, key: str
    ) -> dict[str, Any]:
        """Have a request answered, and record how it ended."""
        if self._audit.refuses:
            raise RpcError(INTERNAL_ERROR, "Nothing was asked: the record of calls cannot be written at present")
        caller, began_s, code = self._caller(request), time.perf_counter(), None
        name, hidden = request.params.get(key), None
        reached: Reached = []
        try:
            return await ask(request.params, caller, reached)
        except RpcError as error:
            code = error.code
            hidden = self._permission.hidden_item(caller, request.method, name)
            raise
        finally:
            if hidden is not None:
                self._audit.refused(caller, request.method, name, rule=hidden.rule, reason="policy")
            else:
                took_s = time.perf_counter() - began_s
                last = reached[-1] if reached else None
                self._audit.request(caller, request.method, name, took_s, code=code, reached=last)

    async def _list(self, request: McpRequest) -> wire.Pieces:
        if request.params.get("cursor") not in (None, ""):
            raise RpcError(INVALID_PARAMS, "Invalid cursor: the list has one page")
        await self._first_listings(request)
        view = await self._prepared_view(request)
        return await self._lists.prepared(
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
        return serialised(result, request)

    def _view(self, request: McpRequest) -> View:
        if request.view is not None:
            return request.view
        try:
            return self._views.view(request.profile, request.principal)
        except KeyError:
            raise _profile_is_gone(request) from None

    def _current_view(self, request: McpRequest) -> View | None:
        try:
            return self._views.current(request.profile, request.principal)
        except KeyError:
            raise _profile_is_gone(request) from None

    async def _prepared_view(self, request: McpRequest) -> View:
        try:
            return await self._views.prepared(request.profile, request.principal)
        except KeyError:
            raise _profile_is_gone(request) from None

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
            new_id=self._new_session_id,
        )
        session.on_end.append(partial(self._private_links.drop, session.id))
        return response_of(request.id, (wire.dumps(result),), session)

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
        return caller_of(request, self._view(request))

    def _set_level(self, session: Session, params: dict[str, Any]) -> bytes:
        level = params.get("level")
        if level not in LOG_LEVELS:
            raise RpcError(INVALID_PARAMS, f"params.level must be one of {', '.join(LOG_LEVELS)}")
        session.log_level = level
        return b"{}"


def _profile_is_gone(request: McpRequest) -> RpcError:
    return RpcError(INVALID_REQUEST, f"The profile {request.profile} is no longer configured")
