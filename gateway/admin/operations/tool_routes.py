"""`/admin/wrappers`, `/admin/quarantine`, `/admin/failures` and `/admin/try`.

The overlay stores the changes that administrators make on top of the configuration file. A trial is a request that an
administrator sends with `POST /admin/try`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

from msgspec import structs
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from gateway import __version__
from gateway.access.oauth.claims import Rejected
from gateway.access.principal import LOCAL, Principal
from gateway.access.quotas import Quotas
from gateway.admin import routes, rows
from gateway.admin.operations.config_routes import administrator_name, apply_edit
from gateway.admin.policy_explained import Question, principal_in
from gateway.admin.routes import (
    Combined,
    JsonDocument,
    Merge,
    Refusal,
    ReportStream,
    accepts_stream,
    check_length,
    is_small,
    missing,
    read_body,
    route,
)
from gateway.calls.call_stats import CallStats
from gateway.calls.profile_views import ProfileViews
from gateway.calls.tool_call import prepare_shown
from gateway.config.auth_config import AuthConfig
from gateway.config.overlay import MAX_CHANGES, Change, Edit
from gateway.config.section import Section
from gateway.downstream.mcp_server import McpServer
from gateway.downstream.messages import McpRequest, McpResponse
from gateway.downstream.sessions import Emit, Session
from gateway.fleet.reload import Reloader
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes
from gateway.protocol.versions import HANDSHAKE_VERSIONS, LOG_LEVEL_KEY, envelope
from registry.catalog.catalog import Catalog
from registry.catalog.registry import Registry
from registry.errors import NotChecked
from registry.schema.json_paths import rename_path
from registry.views.profile import DEFAULT_PROFILE
from registry.views.view import View

log = logging.getLogger(__name__)

_NAME: Final = "calendar__list_events"
_ROW: Final = {
    "name": _NAME,
    "server": "calendar",
    "tool": "list_events",
    "description": "Lists events.",
    "hints": {"readOnlyHint": True},
    "epoch": 1,
    "digest": "33d3d3e2c85443f2",
    "status": "ready",
    "origin": "live",
    "listed": True,
    "tokens": 27,
    "reason": None,
    "disclosure": "eager",
    "arguments": [],
}
_NAMED: Final = {"name": _NAME}


class ToolsRequest(Section):
    """The body of `POST /admin/wrappers`."""

    names: list[str] = Field(min_length=1, max_length=MAX_CHANGES, examples=[[_NAME]])
    """The names of the wrappers."""
    disabled: bool = Field(examples=[True])
    """True to disable the wrappers, false to enable them."""


class ToolRoutes:
    """Shows tools, and enables and disables them in the overlay."""

    def __init__(self, *, views: ProfileViews, registry: Registry, reloader: Reloader) -> None:
        self._views = views
        self._registry = registry
        self._reloader = reloader

    @route(
        "GET",
        "/admin/wrappers",
        merge=Merge.SAME,
        rows="wrappers",
        filters=("server", "status", "q"),
        example={"wrappers": [_ROW]},
    )
    async def wrappers(self, request: Request) -> Response:
        """Return every wrapper of a profile.

        Returns:
            `wrappers`: name, server, tool, description (at most 2000 characters), hints, epoch, digest, status, origin,
            listed, tokens, reason, disclosure and arguments of each.

        Query:
            server: Only wrappers of this server.
            profile: The name of the profile.

        Errors:
            404: The profile does not exist.
        """
        profile = request.query_params.get("profile", DEFAULT_PROFILE)
        view = await self._view(profile)
        # Use a thread: estimating the tokens of every definition takes long enough to delay calls.
        wrappers = await run_in_thread(partial(rows.wrapper_rows, view))
        return JsonDocument({"wrappers": wrappers})

    @route(
        "GET",
        "/admin/wrappers/{name}",
        merge=Merge.SAME,
        examples=_NAMED,
        example={**_ROW, "definition": {"name": _NAME, "inputSchema": {"type": "object"}}},
    )
    async def wrapper(self, request: Request) -> Response:
        """Return a wrapper with its definition in a profile.

        Returns:
            The row of the wrapper, and `definition`.

        Query:
            profile: The name of the profile.

        Errors:
            404: The wrapper or the profile does not exist.
        """
        profile, name = request.query_params.get("profile", DEFAULT_PROFILE), request.path_params["name"]
        view = await self._view(profile)
        entry = view.entry(name)
        if entry is None:
            raise missing(f"wrapper in the profile {profile} with the name", name)
        return JsonDocument({**rows.wrapper_row(entry, view), "definition": entry.definition})

    @route(
        "POST",
        "/admin/wrappers/{name}/disable",
        merge=Merge.CHANGE,
        examples=_NAMED,
        example={"name": _NAME, "disabled": True},
    )
    async def disable_tool(self, request: Request) -> Response:
        """Disable a tool at once: hosts cannot list or call the tool until an administrator enables it again.

        Returns:
            `name` and `disabled`.

        Errors:
            404: The wrapper does not exist.
            409: The tool cannot be disabled.
        """
        name = request.path_params["name"]
        await self._disable([name], administrator_name(request))
        return JsonDocument({"name": name, "disabled": True})

    @route(
        "POST",
        "/admin/wrappers/{name}/enable",
        merge=Merge.CHANGE,
        examples=_NAMED,
        example={"name": _NAME, "disabled": False},
    )
    async def enable_tool(self, request: Request) -> Response:
        """Enable a tool that an administrator has disabled.

        Returns:
            `name` and `disabled`.

        Errors:
            404: The wrapper does not exist.
            409: The tool cannot be enabled.
        """
        name = request.path_params["name"]
        await self._enable([name])
        return JsonDocument({"name": name, "disabled": False})

    @route(
        "POST",
        "/admin/wrappers",
        merge=Merge.CHANGE,
        body=ToolsRequest,
        example={"names": [_NAME], "disabled": True},
    )
    async def disable_tools(self, request: Request) -> Response:
        """Disable or enable several tools. If one of the tools cannot be changed, no tool is changed.

        Returns:
            `names` and `disabled`.

        Errors:
            400: The body is invalid.
            404: A wrapper does not exist.
            409: The tools cannot be disabled or enabled.
        """
        requested = await read_body(request, ToolsRequest)
        if requested.disabled:
            await self._disable(requested.names, administrator_name(request))
        else:
            await self._enable(requested.names)
        return JsonDocument({"names": requested.names, "disabled": requested.disabled})

    async def _disable(self, names: list[str], administrator: str) -> None:
        change_ids = self._find_disabling_changes(names)
        wrappers = [self._registry.catalog.resolve(name) for name in dict.fromkeys(names) if not change_ids[name]]
        added = [
            Change(kind="tool_disabled", target=each.name, server=each.server, tool=each.tool, by=administrator)
            for each in wrappers
        ]
        if added:
            await apply_edit(self._reloader, Edit(add=tuple(added)))
        for each in wrappers:
            log.warning("tool disabled", extra={"wrapper": each.name})

    async def _enable(self, names: list[str]) -> None:
        change_ids = self._find_disabling_changes(names)
        if removed := frozenset().union(*change_ids.values()):
            await apply_edit(self._reloader, Edit(remove=removed))
        for name in (name for name, ids in change_ids.items() if ids):
            log.warning("tool enabled", extra={"wrapper": name})

    async def _view(self, profile: str) -> View:
        """Return the view of a profile.

        Raises:
            Refusal: The profile does not exist.
        """
        try:
            return await self._views.prepared(profile)
        except KeyError:
            raise missing("profile", profile) from None

    def _find_disabling_changes(self, names: list[str]) -> dict[str, frozenset[str]]:
        """Return the ids of the changes that disable each wrapper.

        Raises:
            Refusal: A wrapper does not exist.
        """
        change_ids: dict[str, set[str]] = {name: set() for name in names}
        for each in self._reloader.overlay.changes:
            if each.kind == "tool_disabled" and each.target in change_ids:
                change_ids[each.target].add(each.id)
        for name, ids in change_ids.items():
            check_length("a name", name)
            if not ids and self._registry.catalog.by_name.get(name) is None:
                raise missing("wrapper", name)
        return {name: frozenset(ids) for name, ids in change_ids.items()}


_QUARANTINED: Final = {
    "server": "calendar",
    "kind": "tools",
    "tool": "move_event",
    "status": "quarantined",
    "code": "schema_not_an_object",
    "detail": "the input schema is not an object",
}
_FAILURES: Final = {
    "failures": [
        {
            "wrapper": "calendar__list_events",
            "server": "calendar",
            "tool": "list_events",
            "kind": "tool_error",
            "detail": "quota",
            "recent": 4,
            "sessions": 2,
            "total": 9,
            "lastSecondsAgo": 3.5,
            "flagged": True,
        }
    ],
    "repaired": [{"wrapper": "calendar__list_events", "calls": 3, "repairs": {"number_from_text": 3}}],
}


class FaultRoutes:
    """Shows quarantined items and failures of calls."""

    def __init__(self, registry: Registry, call_stats: CallStats) -> None:
        self._registry = registry
        self._call_stats = call_stats
        self._flagged: tuple[Catalog, list[dict[str, Any]]] | None = None

    @route(
        "GET",
        "/admin/quarantine",
        merge=Combined(routes.all_quarantine),
        flushes=True,
        rows="quarantine",
        filters=("server", "status", "q"),
        example={"quarantine": [_QUARANTINED]},
    )
    async def quarantine(self, request: Request) -> Response:
        """Return each item with a problem. The status is quarantined, repaired, warning, unchecked or flagged.

        A quarantined item is not exposed, because its definition would break a host. An item is flagged if its texts
        seem to instruct a model, and unchecked if calls have sent arguments to the server without a check.

        Returns:
            `quarantine`: server, kind, tool, status, code and detail of each; for a flagged item also `score`, from 0
            to 1, and `served`: whether hosts can see the item.
        """
        catalog = self._registry.catalog
        if self._flagged is None or self._flagged[0] is not catalog:
            # Compute the rows in a thread and only once per catalog: `flagged_rows` scans every text of every server.
            self._flagged = catalog, await run_in_thread(partial(rows.flagged_rows, catalog))
        flagged, unchecked = self._flagged[1], rows.unchecked_rows(self._call_stats.failure_rows())
        quarantined = await run_in_thread(partial(rows.quarantine_rows, catalog))
        return JsonDocument({"quarantine": [*quarantined, *flagged, *unchecked]})

    @route("GET", "/admin/failures", merge=Combined(routes.all_failures), flushes=True, example=_FAILURES)
    async def failures(self, request: Request) -> Response:
        """Return recurring failures, and calls with repaired arguments.

        Returns:
            `failures`: a row for each class of failures; `repaired`: a row for each wrapper with repaired arguments.
        """
        return JsonDocument({"failures": self._call_stats.failure_rows(), "repaired": self._call_stats.repair_rows()})


# Larger messages are parsed in a thread, because parsing them takes milliseconds.
_MAX_INLINE_BYTES: Final = 64 * 1024
# Maximum number of progress and log messages shown before the result; a person does not read more.
_MAX_MESSAGES: Final = 100
_EXAMPLE: Final = {
    "request": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "calendar__list_events"}},
    "response": {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "none"}]}},
    "messages": [],
    "problems": [],
    "ms": 12.5,
    "bytes": 96,
}


TryMethod = Literal[
    "tools/call",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "completion/complete",
]


class TryRequest(Section):
    """The body of `POST /admin/try`."""

    method: TryMethod = Field(default="tools/call", examples=["tools/call"])
    """The MCP method of the request."""
    wrapper: str | None = Field(default=None, min_length=1, examples=["calendar__list_events"])
    """For tools/call: the name of a wrapper, or of one of the gateway's own tools."""
    arguments: Any = Field(default_factory=dict, examples=[{"limit": 3}])
    """For tools/call: the arguments, as a model would send them."""
    params: dict[str, Any] = Field(default_factory=dict, examples=[{}])
    """For the other methods: the params, such as the `name` of a prompt or the `uri` of a resource."""
    asks: bool = Field(default=False, examples=[False])
    """Whether a server may request input from a user or a model, in the `inputRequests` of the result."""
    answers: dict[str, Any] | None = Field(default=None)
    """The answers to the `inputRequests` of the previous result; with answers, this request continues the call."""
    state: str | None = Field(default=None)
    """The `requestState` of the previous result."""
    profile: str = Field(default=DEFAULT_PROFILE, examples=["default"])
    """The profile through which the tool is called."""
    principal: str = Field(default=LOCAL.name, min_length=1, examples=["local"])
    """The caller whose permissions apply: the name of a key, SUBJECT@ISSUER, or local."""


class AnswerRequest(Section):
    """The body of `POST /admin/try/{id}/answer`: the response to a server's request during a trial."""

    question: int = Field(examples=[1])
    """The `id` of the server's request among the messages of the trial."""
    result: dict[str, Any] = Field(default_factory=dict, examples=[{"action": "decline"}])
    """The result, as a host would send it in its response."""


def _any_answered(documents: Sequence[routes.Document]) -> routes.Document:
    return {"answered": any(document["answered"] for document in documents)}


# The client capabilities of the admin page: it shows forms and URLs for a user, and prompts for a model.
_PAGE_CAPABILITIES: Final[dict[str, Any]] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


class TryRoutes:
    """Sends requests for administrators. The gateway handles them in the same way as the requests of hosts."""

    def __init__(
        self,
        *,
        server: McpServer,
        views: ProfileViews,
        registry: Registry,
        quotas: Quotas,
        auth: Callable[[], AuthConfig],
        has_sessions: Callable[[str], bool],
    ) -> None:
        """Create the routes.

        Args:
            has_sessions: Returns whether a server may send elicitation or sampling requests, which need a session.
        """
        self._has_sessions = has_sessions
        # Sessions of running trials in which a server may send requests, by session id.
        self._sessions: dict[str, Session] = {}
        self._server = server
        self._views = views
        self._registry = registry
        self._quotas = quotas
        self._auth = auth

    @route("POST", "/admin/try", merge=Merge.HERE, body=TryRequest, example=_EXAMPLE)
    async def try_tool(self, request: Request) -> Response:
        """Call a tool, or send another request, with the same checks, rules, hooks and error messages as for a host.

        The call is cancelled if the client disconnects. A client that accepts `text/event-stream` receives server-sent
        events: each notification at once, as `{"message": …}`, and then the document. With `asks`, a server with
        `elicitation: true` may also send requests during the call: a message `typegate/trial` announces the `id` of the
        trial, and `POST /admin/try/{id}/answer` sends a response to the server.

        Returns:
            `request` and `response`: the exchanged JSON-RPC messages; `messages`: the notifications before the
            response; `problems`: path, kind and text of each argument problem that prevented the call; `ms`: the
            duration; `bytes`: the size of the response.

        Errors:
            400: The body is invalid.
            404: The profile does not exist, or the principal may not use the profile.
        """
        requested = await read_body(request, TryRequest)
        if (requested.method == "tools/call") is (requested.wrapper is None):
            raise Refusal(400, "wrapper: expected the name of a tool for tools/call, and no value for other methods")
        try:
            principal = principal_in(
                Question(principal=requested.principal, name=requested.wrapper or ""), self._auth()
            )
        except Rejected as error:
            raise Refusal(400, f"principal: {error.refusal.description}") from None
        if requested.profile not in self._views.profiles or not principal.may_enter(requested.profile):
            raise missing(f"profile for {principal.name} with the name", requested.profile)
        streams = accepts_stream(request)
        answer = partial(self._answer, requested, principal, f"admin:{administrator_name(request)}", reports=streams)
        if streams:
            return ReportStream(answer, most=_MAX_MESSAGES)
        messages: list[dict[str, Any]] = []
        document = await answer(messages.append)
        return JsonDocument({**document, "messages": messages[:_MAX_MESSAGES]})

    async def _answer(
        self, requested: TryRequest, principal: Principal, peer: str, emit: Emit, *, reports: bool
    ) -> dict[str, Any]:
        """Send the request and return the document. If `reports` is true, also request progress and log messages."""
        meta = envelope(
            {"name": "typegate-admin", "version": __version__}, _PAGE_CAPABILITIES if requested.asks else None
        )
        if reports:
            meta |= {"progressToken": "try", LOG_LEVEL_KEY: "info"}
        params = (
            {"name": requested.wrapper, "arguments": requested.arguments}
            if requested.wrapper
            else dict(requested.params)
        )
        answers = {"inputResponses": requested.answers, "requestState": requested.state}
        params |= {name: value for name, value in answers.items() if value is not None}
        params["_meta"] = meta
        wrapper = self._registry.catalog.by_name.get(requested.wrapper or "")
        in_session = reports and requested.asks and wrapper is not None and self._has_sessions(wrapper.server)
        if in_session:
            params["_meta"] = {"progressToken": "try"}
        message = {"jsonrpc": "2.0", "id": 1, "method": requested.method, "params": params}
        # Copy the message before the call, because the call may modify the arguments.
        sent = await _copy_message(message)
        request = McpRequest(
            id=1,
            method=requested.method,
            params=params,
            modern=not in_session,
            principal=principal,
            account=self._quotas.account(principal),
            emit=emit,
            peer=peer,
            profile=requested.profile,
        )
        began_s = time.perf_counter()
        response = await (self._answer_in_session(request) if in_session else self._server.answer(request))
        took_s, body = time.perf_counter() - began_s, response.body
        parsed = await _parse_body(body)
        is_refused = requested.wrapper is not None and parsed.get("result", {}).get("isError") is True
        arguments = sent["params"].get("arguments")
        return {
            "request": sent,
            "response": parsed,
            "messages": [],
            "problems": await self._problems(requested.profile, requested.wrapper, arguments) if is_refused else [],
            "ms": round(took_s * 1000, 2),
            "bytes": len(body),
        }

    async def _answer_in_session(self, request: McpRequest) -> McpResponse:
        """Send the request in a new session, so that the server can send requests to the client."""
        client = {"name": "typegate-admin", "version": __version__}
        initialize_params = {
            "protocolVersion": HANDSHAKE_VERSIONS[-1],
            "capabilities": _PAGE_CAPABILITIES,
            "clientInfo": client,
        }
        opened = await self._server.answer(structs.replace(request, method="initialize", params=initialize_params))
        session = opened.session
        if session is None:
            return opened
        self._sessions[session.id] = session
        try:
            request.emit({"jsonrpc": "2.0", "method": "typegate/trial", "params": {"id": session.id}})
            return await self._server.answer(structs.replace(request, session=session))
        finally:
            del self._sessions[session.id]
            session.end()

    @route(
        "POST",
        "/admin/try/{id}/answer",
        merge=Combined(_any_answered),
        body=AnswerRequest,
        examples={"id": "0-5f0c3a9b12d47e60"},
        example={"answered": True},
    )
    async def answer_question(self, request: Request) -> Response:
        """Send the response to a request that a server has sent during a trial.

        Returns:
            `answered`: false if the trial has ended, or does not wait for an answer.

        Errors:
            400: The body is invalid.
        """
        answer = await read_body(request, AnswerRequest)
        session = self._sessions.get(request.path_params["id"])
        response = {"jsonrpc": "2.0", "id": answer.question, "result": answer.result}
        return JsonDocument({"answered": session is not None and session.handle_response(response)})

    async def _problems(self, profile: str, name: str | None, arguments: Any) -> list[dict[str, Any]]:
        """Return the problems of arguments. The paths use the property names of the schema that callers receive."""
        try:
            view = await self._views.prepared(profile)
        except KeyError:
            return []  # the profile was removed during the call
        wrapper = view.catalog.by_name.get(name or "")
        if wrapper is None:
            return []
        try:
            problems = (await run_in_thread(partial(prepare_shown, self._registry, view, wrapper, arguments))).problems
        except NotChecked:
            # Another process has checked the arguments. The text of the call's result describes the problems.
            return []
        names = view.lowered(wrapper).shown_names
        paths = [rename_path(problem.path, names) for problem in problems]
        return [
            {"path": list(path), "kind": problem.kind, "text": problem.message}
            for path, problem in zip(paths, problems, strict=True)
        ]


async def _copy_message(message: dict[str, Any]) -> Any:
    if is_small(message):
        return json_bytes.loads(json_bytes.dumps(message))
    return await run_in_thread(lambda: json_bytes.loads(json_bytes.dumps(message)))


async def _parse_body(body: bytes) -> Any:
    return (
        json_bytes.loads(body)
        if len(body) <= _MAX_INLINE_BYTES
        else await run_in_thread(lambda: json_bytes.loads(body))
    )
