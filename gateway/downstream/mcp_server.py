"""Answer MCP requests in both protocol eras.

The modern era is MCP 2026-07-28. The handshake era is every earlier version, in which a session begins with
`initialize`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio

from gateway.access.credentials import Credentials
from gateway.audit.recording import Audit
from gateway.calls.call_stats import Durations
from gateway.calls.caller import Caller
from gateway.calls.item_requests import PromptsAndResources, Reached
from gateway.calls.pipeline import CallPipeline
from gateway.calls.profile_views import ProfileViews
from gateway.downstream.declarations import FirstLists, instructions, merge_capabilities
from gateway.downstream.messages import (
    LIST_METHODS,
    SERVER_INFO,
    ListResults,
    McpRequest,
    McpResponse,
    call_response,
    caller_of,
    error_response,
    result_response,
    serialize_result,
    span_of,
)
from gateway.downstream.sessions import Session
from gateway.downstream.subscriptions import Subscriptions
from gateway.protocol import json_bytes
from gateway.protocol.extensions import Extension
from gateway.protocol.gateway_errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    QuotaExceeded,
    RpcError,
    error_result,
)
from gateway.protocol.versions import LOG_LEVELS, MODERN_VERSIONS, SERVER_INFO_KEY, negotiate
from gateway.telemetry import trace_context
from gateway.telemetry.trace_context import CURRENT
from gateway.telemetry.tracing import Span, Tracing, UnrecordedSpan, content_of
from gateway.upstream.caller_links import PrivateLinks
from registry.views.view import View

log = logging.getLogger(__name__)

# How long callers may cache `server/discover`. The result depends on the upstreams' capabilities, which hardly ever
# change within an hour.
_DISCOVERY_TTL_MS: Final = 3_600_000
# Unknown method names are truncated to this length in error messages. No existing name is longer.
_METHOD_LENGTH: Final = 200
# The lists of the protocol itself, as opposed to those of extensions.
_LISTS: Final = LIST_METHODS.keys() - {"skills/list"}
# The methods whose duration is measured here. Other methods are excluded, because each unknown method name would create
# a time series.
_MEASURED: Final = frozenset(
    {
        "initialize",
        "server/discover",
        "tools/list",
        "prompts/list",
        "prompts/get",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "completion/complete",
        "tasks/get",
        "tasks/update",
        "tasks/cancel",
    }
)
# The error codes that durations are labelled with. Other codes, which upstreams may choose, are labelled `error`.
_MEASURED_ERRORS: Final = frozenset(map(str, (INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """Properties of the gateway process, and where it records requests.

    Attributes:
        instance: The id of this gateway, for detecting an upstream that connects back to the gateway.
        new_session_id: Returns a new session id; None for random ids.
        tracing: Creates spans; None if tracing is disabled.
    """

    instance: str
    new_session_id: Callable[[], str] | None
    audit: Audit
    durations: Durations
    tracing: Tracing | None


class McpServer:
    """The gateway as an MCP server."""

    def __init__(
        self,
        process: ServerProcess,
        *,
        views: ProfileViews,
        pipeline: CallPipeline,
        prompts_and_resources: PromptsAndResources,
        subscriptions: Subscriptions,
        authenticator: Credentials,
        first_lists: FirstLists,
        private_links: PrivateLinks,
    ) -> None:
        """Initialize the server.

        Args:
            authenticator: Knows whether callers need credentials. If not, caches may share responses between callers.
            first_lists: Delays list requests, within a limit, while upstreams are still connecting.
            private_links: The upstream connections that each belong to a single session.
        """
        self._views = views
        self._pipeline = pipeline
        self._prompts_and_resources = prompts_and_resources
        self._subscriptions = subscriptions
        self._first_lists = first_lists
        self._private_links = private_links
        self._permission = pipeline.permission
        self._audit, self._durations, self._tracing = process.audit, process.durations, process.tracing
        self._instance, self._new_session_id = process.instance, process.new_session_id
        self._lists = ListResults()
        self.announcer = subscriptions.announcer
        self._authenticator = authenticator

    def close_streams(self) -> None:
        """End every `subscriptions/listen` request with its regular result."""
        self._subscriptions.closing.set()

    @property
    def closing(self) -> anyio.Event:
        """The event that ends long-lived streams once it is set."""
        return self._subscriptions.closing

    def answer(self, request: McpRequest) -> Coroutine[Any, Any, McpResponse]:
        """Answer a request; every error becomes an error response."""
        # Not a coroutine function, to avoid one more frame in every call.
        if self._tracing is None:
            return self._answer(request)
        span = span_of(request, self._tracing)
        return self._answer_in_span(span, request) if isinstance(span, Span) else self._answer(request, span)

    async def _answer_in_span(self, span: Span, request: McpRequest) -> McpResponse:
        with span:
            response = await self._answer(request)
            if response.error_code is not None:
                span.mark_failed(str(response.error_code))
            return response

    async def _answer(self, request: McpRequest, unrecorded: UnrecordedSpan | None = None) -> McpResponse:
        account, method = request.account, request.method
        # `CallPipeline` measures tool calls. Subscriptions are not measured: callers decide how long they last.
        began_s = time.perf_counter() if method in _MEASURED else None
        error_type = ""
        try:
            if not account.start_request(method):
                await account.start_asked_request(method)
        except QuotaExceeded as error:
            return error_response(request.id, error)
        entered = CURRENT.set(unrecorded) if unrecorded is not None else None
        try:
            # Prepare a large view in a thread before the code below uses it.
            if request.view is None and method != "ping" and self._current_view(request) is None:
                await self._prepared_view(request)
            if method == "tools/call":
                caller = caller_of(request, request.view or self._view(request))
                return self._call_response(request, await self._pipeline.call(request.params, caller))
            if method == "initialize" and not request.modern:
                return self._initialize(request)
            return result_response(request.id, await self._result(request))
        except RpcError as error:
            error_type = str(error.code)
            return error_response(request.id, error)
        except json_bytes.MalformedJson:
            error_type = str(INTERNAL_ERROR)
            return error_response(request.id, RpcError(INTERNAL_ERROR, "the result cannot be expressed as JSON"))
        except Exception:  # boundary: internal errors are not exposed to callers
            log.exception("request failed")
            error_type = str(INTERNAL_ERROR)
            return error_response(request.id, RpcError(INTERNAL_ERROR, "Internal error"))
        finally:
            if entered is not None:
                CURRENT.reset(entered)
            account.end_request(method)
            if began_s is not None:
                error_type = error_type if error_type in _MEASURED_ERRORS or not error_type else "error"
                self._durations.histogram("server", method, error=error_type).record(time.perf_counter() - began_s)

    def shutdown_response(self, request: McpRequest) -> McpResponse:
        """Return the response to a request that is interrupted because the process is stopping."""
        text = "The gateway is shutting down and no answer came in time: the outcome of this request is unknown."
        if request.method != "tools/call":
            return error_response(request.id, RpcError(INTERNAL_ERROR, text))
        result = error_result(text)
        return result_response(request.id, serialize_result(result, request))

    async def handle_notification(self, session: Session, method: str) -> None:
        """Handle a notification from a host with a session."""
        if method == "notifications/roots/list_changed":
            session.host.roots.forget()
            await self._private_links.notify(session.id, method)

    async def _result(self, request: McpRequest) -> json_bytes.Pieces:
        method, params = request.method, request.params
        owners = self._prompts_and_resources
        extension = None if method in _LISTS else owners.extensions.method(method, modern=request.modern)
        if method in LIST_METHODS and (extension is None or self._declares(extension[0], request)):
            return await self._list_items(request)
        if method == "prompts/get":
            return serialize_result(await self._answer_audited(owners.get_prompt, request, "name"), request)
        if method == "resources/read":
            return self._read_result(await self._answer_audited(owners.read_resource, request, "uri"), request)
        if method == "completion/complete":
            return serialize_result(await owners.complete(params, self._caller(request)), request)
        if request.modern:
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
        if extension is not None and extension[1].owner == "task":
            # Not audited, because hosts poll a task every few seconds; the call that created the task was audited.
            return serialize_result(await owners.task(method, params, self._caller(request)), request)
        if extension is not None and extension[1].owner != "listed":
            send, rule = partial(owners.call_extension, method), extension[1]
            result = await self._answer_audited(send, request, rule.member)
            return self._read_result(result, request) if rule.is_cacheable else serialize_result(result, request)
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method[:_METHOD_LENGTH]}")

    def _call_response(self, request: McpRequest, result: dict[str, Any]) -> McpResponse:
        """Return the response to a tool call, and record the result in the current span."""
        tracing = self._tracing
        if tracing is not None and (span := CURRENT.get()) is not None and span.recorded:
            if result.get("isError") is True:
                span.mark_failed(trace_context.TOOL_ERROR)
            if tracing.content:
                span.set_attribute(trace_context.RESULT, content_of(result))
        try:
            return call_response(request, result)
        except json_bytes.MalformedJson:
            # Not a JSON-RPC error, because hosts would repeat a call that has already run.
            text = "The call ran, but its result is nested too deeply to be passed on."
            return call_response(request, error_result(text))

    async def _answer_audited(
        self,
        send_request: Callable[[dict[str, Any], Caller, Reached], Awaitable[dict[str, Any]]],
        request: McpRequest,
        key: str,
    ) -> dict[str, Any]:
        """Answer a request and write its outcome to the audit log."""
        if self._audit.refuses:
            raise RpcError(INTERNAL_ERROR, "The request was not sent: the audit log cannot be written at present")
        caller, began_s, code = self._caller(request), time.perf_counter(), None
        name, hidden = request.params.get(key), None
        reached: Reached = []
        try:
            return await send_request(request.params, caller, reached)
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

    async def _list_items(self, request: McpRequest) -> json_bytes.Pieces:
        if request.params.get("cursor") not in (None, ""):
            raise RpcError(INVALID_PARAMS, "Invalid cursor: the list has one page")
        await self._first_lists.wait(request)
        view = await self._prepared_view(request)
        return await self._lists.render_result(
            view,
            LIST_METHODS[request.method],
            modern=request.modern,
            shared=not self._authenticator.required,
            found_names=request.session.found.listed(view) if request.session is not None else (),
        )

    def _read_result(self, result: dict[str, Any], request: McpRequest) -> json_bytes.Pieces:
        if request.modern and result.get("resultType") == "complete":
            result.setdefault("ttlMs", 0)
            if self._authenticator.required or result.get("cacheScope") != "public":
                result["cacheScope"] = "private"
        return serialize_result(result, request)

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
        return result_response(request.id, (json_bytes.dumps(result),), session)

    def _discover(self, request: McpRequest) -> bytes:
        pending = self._first_lists.pending
        result = {
            "resultType": "complete",
            "supportedVersions": [*MODERN_VERSIONS],
            "capabilities": self._capabilities(request, modern=True),
            "instructions": instructions(self._view(request)),
            "ttlMs": 0 if pending else _DISCOVERY_TTL_MS,
            "cacheScope": "private" if self._authenticator.required else "public",
            "_meta": {SERVER_INFO_KEY: SERVER_INFO},
        }
        return json_bytes.dumps(result)

    def _capabilities(self, request: McpRequest, *, modern: bool) -> dict[str, Any]:
        view = self._view(request)
        extensions, pending = self._prompts_and_resources.extensions, self._first_lists.pending
        merged = merge_capabilities(view.catalog, extensions, instance=self._instance, modern=modern, pending=pending)
        if any(rules.makes_links for rules in view.result_rules.values()):
            # The gateway puts resource links into results, and hosts read links only if resources are declared.
            merged.setdefault("resources", {"listChanged": True, "subscribe": False})
        return merged

    def _declares(self, extension: Extension, request: McpRequest) -> bool:
        return extension.identifier in self._capabilities(request, modern=request.modern).get("extensions", {})

    def _caller(self, request: McpRequest) -> Caller:
        return caller_of(request, self._view(request))

    def _set_level(self, session: Session, params: dict[str, Any]) -> bytes:
        level = params.get("level")
        if level not in LOG_LEVELS:
            raise RpcError(INVALID_PARAMS, f"params.level must be one of {', '.join(LOG_LEVELS)}")
        session.set_log_level(level)
        return b"{}"


def _profile_is_gone(request: McpRequest) -> RpcError:
    return RpcError(INVALID_REQUEST, f"The profile {request.profile} is no longer configured")
