"""The audit log, stored results, events, activity, history, and processes of servers, under `/admin`."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.access.administrators import Administrators
from gateway.admin import rows
from gateway.admin.activity import MAX_WATCHERS, EventFeed, TooManyWatchers, all_activity
from gateway.admin.call_history import RANGES, Kind
from gateway.admin.operations.server_routes import ServerRequest
from gateway.admin.routes import (
    Combined,
    Document,
    JsonDocument,
    Merge,
    Refusal,
    ReportStream,
    accepts_stream,
    missing,
    number_in,
    route,
    written,
)
from gateway.audit.log_reader import OUTCOMES, Filter, parse_since
from gateway.audit.recording import Audit
from gateway.calls.result_store import ResultStore
from gateway.config.server import ServerConfig
from gateway.fleet.fleet import Fleet
from gateway.http import responder
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import GatewayError
from gateway.upstream.caller_links import PrivateLinks
from gateway.upstream.link import UpstreamLink
from gateway.upstream.link_states import Ready, Starting
from gateway.upstream.session import RawListing
from gateway.upstream.transport.process_start import ProcessStart

log = logging.getLogger(__name__)

# Entries per page. The default fills one screen. A browser can show the maximum without becoming slow.
_LIMIT: Final = 100
_MAX_LIMIT: Final = 1_000
# The maximum of `cursor` and `before`. No audit log has this many entries.
_MAX_LINES: Final = 10**15
_EXAMPLE: Final = {
    "audit": [
        {
            "seq": 7,
            "time": "2027-01-31T08:00:00.000Z",
            "event": "call",
            "wrapper": "calendar__list_events",
            "principal": "ci",
            "ms": 8.1,
            "prev": "3b0f9f0c",
        }
    ],
    "next": None,
    "state": {"on": True, "file": "/var/lib/typegate/audit.jsonl", "lost": 0, "lastError": None},
}


class AuditRoutes:
    """Reads the audit log of this machine, which all processes of the gateway share."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    @route("GET", "/admin/audit", merge=Merge.SAME, example=_EXAMPLE)
    async def audit(self, request: Request) -> Response:
        """Return the audit log of calls, refusals and changes, latest entry first.

        Returns:
            `audit`: the entries; `next`: the `cursor` of the next page, or null; `state`: whether the audit log is on,
            its file, the number of lost entries, and the last error.

        Query:
            principal: Only entries of this caller.
            tool: Only entries about wrappers, tools or names that match this pattern.
            event: Only entries of this kind, such as `call` or `refused`.
            q: Only entries that contain this text.
            outcome: Only entries with this outcome: ok, failed or refused.
            server: Only entries about tools of this server.
            session: Only entries of this session. The value is a hash, as in the `session` of entries.
            client: Only entries of hosts with this name.
            since: Only entries from this time on: 2h, 7d or a date.
            until: Only entries before this time.
            limit: Entries per page; 100 by default, at most 1000.
            cursor: The `next` of the previous page.
            before: Only entries with a smaller number than this; the same as cursor.

        Errors:
            400: A time or a number has an unknown format.
            500: The audit log cannot be read.
        """
        query = request.query_params
        limit = number_in(query, "limit", least=1, most=_MAX_LIMIT)
        ends = [number_in(query, name, least=0, most=_MAX_LINES) for name in ("cursor", "before")]
        if query.get("outcome", "") not in ("", *OUTCOMES):
            raise Refusal(400, f"outcome: expected {', '.join(OUTCOMES)}")
        try:
            log_filter = Filter(
                principal=query.get("principal", ""),
                tool=query.get("tool", ""),
                event=query.get("event", ""),
                text=query.get("q", ""),
                **{name: query.get(name, "") for name in ("outcome", "server", "session", "client")},
                since=parse_since(query["since"]) if query.get("since") else "",
                until=parse_since(query["until"]) if query.get("until") else "",
                before=min((end for end in ends if end is not None), default=None),
            )
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        state = {
            "on": self._audit.on,
            "file": None if self._audit.file is None else str(self._audit.file.path),
            "lost": self._audit.lost,
            "lastError": self._audit.last_error,
        }
        try:
            page = await self._audit.page(log_filter, limit=_LIMIT if limit is None else limit)
        except OSError as error:
            raise Refusal(500, f"the audit log cannot be read: {error.strerror or error}") from None
        return JsonDocument({"audit": page.rows, "next": page.next, "state": state})


_RESULTS: Final = {
    "results": [
        {
            "caller": "ci",
            "profile": "default",
            "wrapper": "files__read_file",
            "results": 3,
            "bytes": 940_112,
            "until": 1_801_382_400.5,
        }
    ]
}


def all_results(documents: Sequence[Document]) -> Document:
    """Merge the `/admin/results` documents of all processes, each of which stores its own results."""
    totals: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in (row for document in documents for row in document["results"]):
        total = totals.setdefault((row["caller"], row["profile"], row["wrapper"]), {**row, "results": 0, "bytes": 0})
        total["results"] += row["results"]
        total["bytes"] += row["bytes"]
        total["until"] = max(total["until"], row["until"])
    return {"results": sorted(totals.values(), key=lambda row: -row["bytes"])}


class ResultRoutes:
    """Shows which callers have stored results."""

    def __init__(self, store: ResultStore) -> None:
        self._store = store

    @route(
        "GET",
        "/admin/results",
        merge=Combined(all_results),
        rows="results",
        filters=("caller", "wrapper"),
        example=_RESULTS,
    )
    async def results(self, request: Request) -> Response:
        """Return which callers have stored results of which tools, and how much memory the results need.

        Returns:
            `results`: caller, profile, wrapper, number of results, bytes, and the time at which the last result is
            deleted, in seconds since 1970. The rows with the most bytes come first.

        Query:
            caller: Only results of this caller.
            wrapper: Only results of this wrapper.
        """
        return JsonDocument(all_results([{"results": self._store.rows()}]))


# The delay after which a browser reconnects to a lost stream.
_RETRY_MS: Final = 2_000
_FULL: Final = f"{MAX_WATCHERS} streams are open already"
_STREAM: Final = (
    'data: [{"event":"call","time":"2027-01-31T08:00:00.000Z","wrapper":"calendar__list_events","ms":8.1}]\n\n'
)
_SUMMARY: Final = {
    "calls": 3,
    "errors": 1,
    "denied": 0,
    "totalMs": 30.1,
    "maxMs": 20.2,
    "p50Ms": 8.0,
    "p95Ms": 20.2,
}
_FIGURES: Final = {**_SUMMARY, "histogram": [[28, 1], [33, 2]]}
_KINDS: Final[tuple[Kind, ...]] = ("server", "tool", "caller")


class EventRoutes:
    """Streams events, and returns statistics of calls."""

    def __init__(
        self,
        feed: EventFeed,
        *,
        suggest: Callable[[str], str | None],
        ending: Callable[[], bool],
        administrators: Administrators,
    ) -> None:
        """Create the handlers.

        Args:
            feed: The events to stream.
            suggest: Returns the tool that an unknown name probably means.
            ending: Returns whether the process is shutting down, which ends the streams.
            administrators: Checks the credentials of open streams again.
        """
        self._feed = feed
        self._suggest = suggest
        self._ending = ending
        self._administrators = administrators

    @route("GET", "/admin/events", merge=Merge.HERE, content="text/event-stream", example=_STREAM)
    async def events(self, request: Request) -> Response:
        """Stream events from now on, as server-sent events.

        Returns:
            Server-sent events whose data is a list of objects with `event`: `call`, `request`, `refused`, `changed`,
            `approval`, `sign_in` and others as in the audit log; `state` with the changed servers; `catalog` after a
            change of tools; `missed` with the number of entries that were dropped.

        Errors:
            503: Too many streams are open.
        """
        stream = self._frames(request)
        # Run the first step of the stream now: it checks the limit of watchers, and the response can still be an error.
        try:
            first = await anext(stream)
        except TooManyWatchers:
            raise Refusal(503, _FULL, headers={"retry-after": "5"}) from None

        async def body() -> AsyncGenerator[bytes, None]:
            yield first
            async with aclosing(stream):
                async for frame in stream:
                    yield frame

        headers = {"content-type": "text/event-stream", "x-accel-buffering": "no"}
        return StreamingResponse(body(), headers=headers)

    @route(
        "GET",
        "/admin/activity",
        merge=Combined(all_activity),
        example={
            "bucketSeconds": 10,
            "boundsMs": [0.05, 0.06],
            "buckets": [{"at": 1801382400, **_FIGURES}],
            "tools": [{"name": "calendar__list_events", **_FIGURES}],
            "callers": [{"name": "ci", **_FIGURES}],
            "unknownTools": [
                {"name": "list_events", "calls": 2, "at": 1801382400, "suggestion": "calendar__list_events"}
            ],
        },
    )
    async def activity(self, request: Request) -> Response:
        """Return statistics of the calls of the last hour, if the audit log is on.

        Returns:
            `buckets` of `bucketSeconds`: at (seconds since 1970), calls, errors, denied (including requests that were
            refused before they became calls), and durations in milliseconds; the same for `tools` and `callers` by
            name. `histogram` has a pair for each range of durations with calls: the index of the range's upper bound in
            `boundsMs`, and the number of calls. `unknownTools`: the names that callers have used but no tool has.
        """
        document = self._feed.activity.document()
        names = [row["name"] for row in document["unknownTools"]]
        # Use a thread, because each name is compared with the names of all tools.
        near = await run_in_thread(lambda: [self._suggest(name) for name in names])
        unknown = [
            {**row, "suggestion": suggestion} for row, suggestion in zip(document["unknownTools"], near, strict=True)
        ]
        return JsonDocument({**document, "unknownTools": unknown})

    @route(
        "GET",
        "/admin/history",
        merge=Merge.SAME,
        flushes=True,
        example={
            "range": "1h",
            "stepSeconds": 60,
            "from": 1801378860,
            "to": 1801382460,
            "points": [{"at": 1801382400, **_SUMMARY}],
            "total": _SUMMARY,
            "series": [{"name": "calendar", **_SUMMARY}],
            "lastError": None,
        },
    )
    async def history(self, request: Request) -> Response:
        """Return calls, failures and durations over time, up to seven days, of all processes on this machine.

        Returns:
            `points`: at, calls, errors, denied, and durations in milliseconds of each period of `stepSeconds` between
            `from` and `to` (seconds since 1970), except periods without calls; `total`: the same for the whole range;
            `series`: the same for each name of the kind `by`; `lastError`: why the history cannot be used, or null.

        Query:
            range: 15m, 1h (the default), 24h or 7d.
            by: Also return `series` for each `server`, `tool` or `caller`.
            server: Only calls of this server.
            tool: Only calls of this wrapper.
            caller: Only calls of this caller.

        Errors:
            400: The range or the kind is unknown, or several of server, tool and caller are given.
        """
        query = request.query_params
        name, by = query.get("range") or "1h", query.get("by") or None
        only: list[tuple[Kind, str]] = [(kind, query[kind]) for kind in _KINDS if query.get(kind)]
        if name not in RANGES:
            raise Refusal(400, f"range: expected {', '.join(RANGES)}")
        if by is not None and by not in _KINDS:
            raise Refusal(400, f"by: expected {', '.join(_KINDS)}")
        if len(only) > 1:
            raise Refusal(400, f"expected at most one of {', '.join(_KINDS)}")
        kind = next((each for each in _KINDS if each == by), None)
        return JsonDocument(await self._feed.history.document(name, by=kind, only=next(iter(only), ("all", ""))))

    async def _frames(self, request: Request) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._feed.watch(self._ending)) as watching:
            has_begun = False
            async for events in watching:
                if not has_begun:
                    has_begun = True
                    yield responder.event(b"[]", retry_ms=_RETRY_MS)
                    continue
                if not self._is_still_authorized(request):
                    return
                yield responder.event(await written(events)) if events else responder.PING

    def _is_still_authorized(self, request: Request) -> bool:
        """Return whether the credentials of an open stream are still valid."""
        if authorization := request.headers.get("authorization"):
            return self._administrators.by_token(authorization) is not None
        return self._administrators.by_cookie(request.headers.get("cookie", "")) is not None


_SERVER: Final = {"name": "calendar"}


def all_processes(documents: Sequence[Document]) -> Document:
    """Merge the `/admin/servers/{name}/log` documents of all processes of the gateway."""
    return {**documents[0], "processes": [row for document in documents for row in document["processes"]]}


# The maximum number of printed lines that a trial sends to the client, and the interval at which it sends new lines.
_MAX_PRINTED: Final = 1_000
_PRINTED_S: Final = 0.25


class ProcessRoutes:
    """Shows what the processes of servers print, restarts servers, and starts new servers on trial."""

    def __init__(
        self,
        fleet: Fleet,
        private: PrivateLinks,
        requested_config: Callable[[Request], Awaitable[tuple[str, ServerConfig]]],
    ) -> None:
        """Create the handlers.

        Args:
            private: Connections that each belong to a single session. Servers that send requests need such connections.
            requested_config: Returns the name and the configuration of the new server in a request's body, or raises
                `Refusal`.
        """
        self._fleet = fleet
        self._private = private
        self._requested_config = requested_config

    @route(
        "POST",
        "/admin/trials",
        merge=Merge.HERE,
        role="admin",
        body=ServerRequest,
        example={
            "tools": [{"name": "list_events", "description": "List events."}],
            "prompts": 0,
            "resources": 0,
            "refused": [],
            "error": None,
            "seconds": 2.1,
        },
    )
    async def try_server(self, request: Request) -> Response:
        """Start a server once without adding it, list its tools, prompts and resources, and stop the server.

        The server is also stopped if the client disconnects. A client that accepts `text/event-stream` receives
        server-sent events: each line that the process prints, as `{"message": {"line": …}}`, and then the document.

        Returns:
            `tools`: name and description of each; the numbers of `prompts` and `resources`; `refused`: tools that could
            not be exposed, with the reason; `error`: why the server could not be started or listed, or null; `seconds`.

        Errors:
            400: The name or the configuration is wrong.
            403: The configuration names a program or a file, which `gateway.admin.allowCommands` does not allow.
        """
        name, config = await self._requested_config(request)
        trial = partial(self._trial, name, config)
        if accepts_stream(request):
            return ReportStream(trial, most=_MAX_PRINTED)
        return JsonDocument(await trial(lambda message: None))

    async def _trial(self, name: str, config: ServerConfig, emit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        starts: list[ProcessStart] = []
        reported = 0

        def report() -> None:
            nonlocal reported
            for line in starts[-1].printed()[reported:] if starts else ():
                reported += 1
                emit({"line": line.text})

        async def follow() -> None:
            while True:
                await anyio.sleep(_PRINTED_S)
                report()

        began_s = anyio.current_time()
        tools: list[dict[str, Any]] = []
        document: dict[str, Any] = {"prompts": 0, "resources": 0, "refused": [], "error": None}
        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            try:
                listing = await self._fleet.try_server(name, config, starts.append)
            except GatewayError as error:
                document["error"] = str(error)
            else:
                tools = await run_in_thread(partial(_tools_of, listing))
                items = listing.prompts_and_resources
                document |= {kind: len(items.get(kind, ())) for kind in ("prompts", "resources")}
                document["refused"] = [f"{issue.tool}: {issue.detail}" for issue in listing.refused]
            report()
            group.cancel_scope.cancel()
        log.info("server tried", extra={"server": name, "tools": len(tools)})
        return {"tools": tools, **document, "seconds": round(anyio.current_time() - began_s, 1)}

    @route(
        "POST",
        "/admin/servers/{name}/restart",
        merge=Merge.EVERYWHERE,
        status=202,
        examples=_SERVER,
        example={"restarting": "calendar"},
    )
    async def restart(self, request: Request) -> Response:
        """End the process or the connection of an upstream, and connect again. Running calls fail.

        Returns:
            `restarting`: the name of the server.

        Errors:
            404: The server does not exist, or is disabled.
        """
        name = self._server_name_in(request)
        for each in [*rows.links_of(self._fleet, name), *self._private.links_to(name)]:
            _restart(each)
        log.warning("server restarted", extra={"server": name})
        return JsonDocument({"restarting": name}, 202)

    @route(
        "GET",
        "/admin/servers/{name}/log",
        merge=Combined(all_processes),
        examples=_SERVER,
        example={"processes": [{"pid": 4711, "caller": None, "lines": [{"at": 1801382400.5, "text": "listening"}]}]},
    )
    async def stderr(self, request: Request) -> Response:
        """Return the last 200 lines that each process of an upstream has written to standard error.

        Returns:
            `processes`: pid, caller (if each caller has a process), and `lines` with `at`, in seconds since 1970, and
            `text`; an empty list for a server on the network.

        Errors:
            404: The server does not exist, or is disabled.
        """
        name = self._server_name_in(request)
        return JsonDocument(
            {
                "processes": [
                    {
                        "pid": link.start.pid,
                        "caller": link.owner or None,
                        "lines": [line._asdict() for line in link.start.printed()],
                    }
                    for link in [*rows.links_of(self._fleet, name), *self._private.links_to(name)]
                    if link.start is not None
                ]
            }
        )

    def _server_name_in(self, request: Request) -> str:
        """Return the name of the server in the path.

        Raises:
            Refusal: The server does not exist, or is disabled.
        """
        name: str = request.path_params["name"]
        if name not in self._fleet.links:
            raise missing("server", name)
        return name


def _tools_of(listing: RawListing) -> list[dict[str, Any]]:
    """Return the names and descriptions of the listed tools, except tools whose name is not a string."""
    tools: list[dict[str, Any]] = []
    for item in listing.tools or ():
        tool = json_bytes.loads(item.text) if isinstance(item, json_bytes.UnparsedJson) else item
        if isinstance(tool, dict) and isinstance(tool.get("name"), str):
            tools.append({"name": tool["name"], "description": str(tool.get("description") or "")})
    return tools


def _restart(link: UpstreamLink) -> None:
    state = link.state
    if isinstance(state, Ready):
        # Mark the connection as used by a call, so that the link connects again without a pause.
        state.note_served()
        state.scope.cancel()
    elif isinstance(state, Starting):
        state.start.stop()
    link.refresh()
