"""`/admin/*`, `/healthz`, `/readyz` and `/metrics` on Starlette."""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway import wire
from gateway.access.failed_logins import FailedLogins
from gateway.admin import merging, rows
from gateway.admin.openapi import document
from gateway.admin.routes import AdminRoute, Combined, Merge, route, routes_of
from gateway.calls.call_stats import CallStats
from gateway.calls.profile_views import ProfileViews
from gateway.config.model import NoteRequest
from gateway.config.upstream_types.registration import AnyServerConfig, read_server
from gateway.config.wording import refusal
from gateway.downstream.http.request import RequestHead, RequestRefused
from gateway.embeddings.tool_vectors import ToolVectors
from gateway.errors import ConfigError
from gateway.fleet import Fleet
from gateway.hooks.active import ActiveHooks
from gateway.operator_notes import NoteRefused, OperatorNotes
from gateway.reload import Reloader
from gateway.secrets import SECRETS
from gateway.upstream.private_links import PrivateLinks
from registry.catalog.store import Registry
from registry.schema.display_text import excerpt
from registry.views.profile import DEFAULT_PROFILE

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]
# Of a name that is echoed: longer than any that exists.
_NAME_LENGTH: Final = 200
# Nobody guesses a token of this length: whoever has it need not wait for what others behind its address do.
_UNGUESSABLE_CHARS: Final = 20
_PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_LOCAL: Final = (
    "its {} would start a program or read files of this machine; expected a server on the network, or "
    "gateway.admin.allowCommands: true in the configuration file, or the server in that file"
)
_NO_TOKEN: Final = "the admin token is needed"
_NO_SCRAPER: Final = "an API key for metrics or the admin token is needed (gateway.metrics.public opens this path)"
_CHALLENGE: Final = (b"www-authenticate", b"Bearer")


class JsonDocument(JSONResponse):
    """JSON that holds whatever upstreams listed, names that are not valid Unicode too."""

    def render(self, content: Any) -> bytes:
        """Serialise as everywhere here; texts in it may be those of upstreams, so secrets are removed."""
        text = wire.dumps(content)
        return wire.dumps(SECRETS.scrub_value(content)) if SECRETS.holds_secret(text) else text


class ServerRequest(BaseModel):
    """The body that adds a server."""

    name: str
    config: AnyServerConfig


class AdminApi:
    """Rows out, commands in; every route of `/admin` wants the token.

    Attributes:
        max_body_bytes: The largest body of a request.
    """

    max_body_bytes: Final = 1024 * 1024
    """One server's configuration, or one note: far below the largest configuration file."""

    def __init__(
        self,
        *,
        token: str,
        scrapers: Callable[[str], bool],
        registry: Registry,
        fleet: Fleet,
        views: ProfileViews,
        call_stats: CallStats,
        hooks: ActiveHooks,
        notes: OperatorNotes,
        private_links: PrivateLinks,
        tool_vectors: ToolVectors,
        reloader: Reloader,
        draining: Callable[[], bool],
        allows_commands: Callable[[], bool],
    ) -> None:
        """Answer about these.

        Args:
            token: What `/admin` takes.
            scrapers: Whether an Authorization header without the token may read `/metrics`.
            registry, fleet, views, call_stats, hooks, notes, private_links, tool_vectors: What there is to tell.
            reloader: Knows the configuration file.
            draining: Whether the end has begun.
            allows_commands: Whether servers may be added that start programs or read files of this machine.
        """
        SECRETS.hide([token])
        self._token = token.encode()
        self._may_scrape = scrapers
        self._registry = registry
        self._fleet = fleet
        self._views = views
        self._call_stats = call_stats
        self._hooks = hooks
        self._notes = notes
        self._private_links = private_links
        self._tool_vectors = tool_vectors
        self._reloader = reloader
        self._draining = draining
        self._allows_commands = allows_commands
        self._failed_logins = FailedLogins()
        self.routes = routes_of(self)

    def app(self) -> Starlette:
        """The ASGI application."""
        by_path: dict[str, list[AdminRoute]] = {}
        for each in self.routes:
            by_path.setdefault(each.path, []).append(each)
        return Starlette(
            routes=[
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Route("/metrics", self._metrics),
                *(
                    Route(path, self._guarded(routes), methods=[each.method for each in routes])
                    for path, routes in by_path.items()
                ),
            ]
        )

    def check(self, head: RequestHead, peer: str) -> None:
        """Refuse, before its body is read, a request that the application would refuse whatever its body says.

        Raises:
            RequestRefused: There is nothing at its path, it has not the token, or its address has failed too often.
        """
        path = head.path.decode("latin-1")
        if not path.startswith("/admin/"):
            self.check_probe(head, peer)
            return
        credentials = head.text(b"authorization")
        wait_s = self._failed_logins.wait_s(peer)
        if not credentials:
            raise _unauthorized()
        if wait_s and (len(self._token) < _UNGUESSABLE_CHARS or not self._authorized(credentials)):
            # Not even looked at where it could be a guess: a right one would be told from the wrong ones.
            raise _too_many(wait_s)
        if not self._authorized(credentials):
            self._failed_logins.failed(peer)
            raise _unauthorized()
        self._failed_logins.succeeded(peer)

    def check_probe(self, head: RequestHead, peer: str) -> None:
        """As `check`, where administrators have an address of their own and this is not it.

        Raises:
            RequestRefused: It is none of the paths of orchestrators, or one of those that take credentials.
        """
        if head.path.decode("latin-1") not in _PROBES:
            raise RequestRefused(404, "there is nothing here", body=b'{"error":"there is nothing here"}')
        if head.path == b"/metrics" and not self._reads_metrics(head.text(b"authorization")):
            raise RequestRefused(401, _NO_SCRAPER, [_CHALLENGE], body=wire.dumps({"error": _NO_SCRAPER}))

    def route_of(self, method: str, path: str) -> AdminRoute | None:
        """The route that answers this; None where there is none."""
        parts = path.split("/")
        for each in self.routes:
            pattern = each.path.split("/")
            if each.method == method and len(pattern) == len(parts) and all(map(_fits, pattern, parts)):
                return each
        return None

    def _guarded(self, routes: Sequence[AdminRoute]) -> Endpoint:
        handlers: dict[str, Endpoint] = {each.method: each.handler for each in routes}
        # Starlette answers HEAD wherever GET is, and asks us for it.
        if "GET" in handlers:
            handlers["HEAD"] = handlers["GET"]

        async def guarded(request: Request) -> Response:
            if not self._authorized(request.headers.get("authorization", "")):
                return JsonDocument({"error": _NO_TOKEN}, 401, headers={"www-authenticate": "Bearer"})
            return await handlers[request.method](request)

        return guarded

    def _authorized(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        # In constant time: how long a refusal takes must not tell how much of a guess was right.
        return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token)

    def _reads_metrics(self, authorization: str) -> bool:
        return self._may_scrape(authorization) or self._authorized(authorization)

    # for orchestrators

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        if self._draining():
            return PlainTextResponse("draining\n", 503)
        if not self._fleet.ready:
            return PlainTextResponse("connecting\n", 503)
        return PlainTextResponse("ready\n")

    async def _metrics(self, request: Request) -> Response:
        if not self._reads_metrics(request.headers.get("authorization", "")):
            return JsonDocument({"error": _NO_SCRAPER}, 401, headers={"www-authenticate": "Bearer"})
        # Late: the first answers of a start do not wait for this import.
        from gateway.telemetry.metrics import CONTENT_TYPE, render

        text = render(
            call_stats=self._call_stats,
            hooks=self._hooks,
            fleet=self._fleet,
            registry=self._registry,
            private_links=self._private_links,
        )
        return Response(text, headers={"content-type": CONTENT_TYPE})

    # for operators

    @route("GET", "/admin/wrappers", merge=Merge.SAME)
    async def wrappers(self, request: Request) -> Response:
        """Every registered wrapper.

        Returns:
            `wrappers`: name, server, tool, epoch, digest, status, origin, listed, tokens, reason.

        Query:
            server: Only those of this server.
            profile: As this profile shows them.

        Errors:
            404: There is no such profile.
        """
        profile = request.query_params.get("profile", DEFAULT_PROFILE)
        if profile not in self._views.profiles:
            return JsonDocument({"error": f"there is no profile {excerpt(profile, _NAME_LENGTH)}"}, 404)
        found = rows.wrapper_rows(self._views.view(profile))
        server = request.query_params.get("server")
        return JsonDocument({"wrappers": [row for row in found if server is None or row["server"] == server]})

    @route("GET", "/admin/servers", merge=Combined(merging.all_servers))
    async def servers(self, request: Request) -> Response:
        """Every upstream.

        Returns:
            `servers`: state, epoch, last error, capabilities and counts of each.
        """
        return JsonDocument({"servers": rows.server_rows(self._fleet, self._registry.catalog)})

    @route("POST", "/admin/servers", merge=Merge.CHANGE, status=201, body=ServerRequest)
    async def add_server(self, request: Request) -> Response:
        """Add an upstream.

        Returns:
            Its row.

        Errors:
            400: The name or the configuration is wrong.
            403: It names a program or a file, which `gateway.admin.allowCommands` does not allow.
        """
        body = await _body(request)
        if not isinstance(body, dict) or not isinstance(body.get("name"), str):
            return _wrong('the body must be an object with "name" and the server\'s configuration')
        name = body.pop("name")
        try:
            # Both forms are taken: the entry beside its name, and under a key of its own.
            config = read_server(body.get("config", body))
            if config.local_keys and not self._allows_commands():
                log.warning("a server with a program or a file was not added", extra={"server": name})
                return JsonDocument({"error": _LOCAL.format(" and ".join(config.local_keys))}, 403)
            if config.disabled:
                return _wrong("it is disabled; expected a server to connect to")
            file = self._reloader.path
            self._fleet.add(name, config.with_absolute_paths(file.parent if file is not None else Path()))
        except ValidationError as error:
            return _wrong(str(refusal(error, "request")))
        except ConfigError as error:
            return _wrong(error.message)
        log.info("server added", extra={"server": name})
        return JsonDocument(rows.server_row(self._fleet, self._registry.catalog, name), 201)

    @route("GET", "/admin/servers/{name}", merge=Combined(merging.one_server))
    async def server(self, request: Request) -> Response:
        """One upstream.

        Returns:
            Its row.

        Errors:
            404: There is no such server.
        """
        name = request.path_params["name"]
        if name in self._fleet.left_out and name not in self._fleet.servers:
            return JsonDocument(rows.left_out_row(name, self._fleet.left_out[name]))
        if name not in self._fleet.servers:
            return _no_server(name)
        return JsonDocument(rows.server_row(self._fleet, self._registry.catalog, name))

    @route("DELETE", "/admin/servers/{name}", merge=Merge.CHANGE, status=204)
    async def remove_server(self, request: Request) -> Response:
        """Remove an upstream; its running calls end first.

        Returns:
            Nothing.

        Errors:
            404: There is no such server.
        """
        name = request.path_params["name"]
        if name not in self._fleet.servers:
            return _no_server(name)
        self._fleet.remove(name)
        log.info("server removed", extra={"server": name})
        return Response(status_code=204)

    @route("POST", "/admin/servers/{name}/refresh", merge=Merge.EVERYWHERE, status=202)
    async def refresh(self, request: Request) -> Response:
        """List the tools of an upstream again.

        Returns:
            `refreshing`: its name.

        Errors:
            404: There is no such server.
        """
        name = request.path_params["name"]
        link = self._fleet.links.get(name)
        if link is None:
            return _no_server(name)
        link.refresh()
        return JsonDocument({"refreshing": name}, 202)

    @route("GET", "/admin/quarantine", merge=Merge.SAME)
    async def quarantine(self, request: Request) -> Response:
        """What is not shown, was repaired, or is configured in vain.

        Returns:
            `quarantine`: server, kind, tool, status, code and detail of each.
        """
        return JsonDocument({"quarantine": rows.quarantine_rows(self._registry.catalog)})

    @route("GET", "/admin/config", merge=Merge.SAME)
    async def config(self, request: Request) -> Response:
        """The state of the configuration file.

        Returns:
            `file`, `loadedAt`, `reloads`, `error`, `warnings` and `search`.
        """
        return JsonDocument({**self._reloader.row(), "search": self._tool_vectors.row()})

    @route("GET", "/admin/profiles", merge=Merge.SAME)
    async def profiles(self, request: Request) -> Response:
        """Every profile with its warnings.

        Returns:
            `profiles`: what each shows.
        """
        return JsonDocument({"profiles": rows.profile_rows(self._views)})

    @route("GET", "/admin/budget", merge=Merge.SAME)
    async def budget(self, request: Request) -> Response:
        """What each profile's list costs, and why each wrapper is in it or not.

        Returns:
            `profiles`: tools, bytes and tokens of each.
        """
        return JsonDocument({"profiles": rows.budget_rows(self._views)})

    @route("GET", "/admin/failures", merge=Combined(merging.all_failures), flushes=True)
    async def failures(self, request: Request) -> Response:
        """Failures that come again and again, and repaired calls.

        Returns:
            `failures` by class, and `repaired` by wrapper.
        """
        return JsonDocument({"failures": self._call_stats.failure_rows(), "repaired": self._call_stats.repair_rows()})

    @route("GET", "/admin/hooks", merge=Combined(merging.all_hooks))
    async def hooks(self, request: Request) -> Response:
        """What runs on which wrapper, in order.

        Returns:
            `wrappers` with their hooks, and `hooks`.
        """
        return JsonDocument({"wrappers": self._hooks.wrapper_rows(), "hooks": self._hooks.rows()})

    @route("GET", "/admin/notes", merge=Merge.SAME)
    async def notes(self, request: Request) -> Response:
        """The operators' notes about tools.

        Returns:
            `notes`.
        """
        return JsonDocument({"notes": self._notes.rows()})

    @route("POST", "/admin/notes", merge=Merge.CHANGE, status=201, body=NoteRequest)
    async def add_note(self, request: Request) -> Response:
        """Attach a note to a tool as it is now.

        Returns:
            `id`.

        Errors:
            400: The note is wrong.
            404: There is no such wrapper.
        """
        try:
            wanted = NoteRequest.model_validate(await _body(request))
        except ValidationError as error:
            return _wrong(str(refusal(error, "request")))
        wrapper = self._registry.catalog.get(wanted.wrapper)
        if wrapper is None:
            return JsonDocument({"error": f"there is no wrapper {excerpt(wanted.wrapper, _NAME_LENGTH)}"}, 404)
        try:
            note_id = self._notes.add(wrapper, wanted.text, of_failure=wanted.failure, lasts_s=wanted.seconds)
        except NoteRefused as error:
            return _wrong(str(error))
        return JsonDocument({"id": note_id}, 201)

    @route("DELETE", "/admin/notes/{id}", merge=Merge.CHANGE)
    async def remove_note(self, request: Request) -> Response:
        """Take a note away.

        Returns:
            `removed`: its id.

        Errors:
            404: There is no such note.
        """
        note_id = request.path_params["id"]
        if not self._notes.remove(note_id):
            return JsonDocument({"error": f"there is no note {excerpt(note_id, _NAME_LENGTH)}"}, 404)
        return JsonDocument({"removed": note_id})

    @route("GET", "/admin/openapi.json", merge=Merge.SAME)
    async def openapi(self, request: Request) -> Response:
        """This description.

        Returns:
            An OpenAPI 3.1 document.
        """
        return JsonDocument(document(self.routes))


def _fits(pattern: str, part: str) -> bool:
    return pattern == part or (pattern.startswith("{") and bool(part))


async def _body(request: Request) -> Any:
    try:
        return wire.loads(await request.body())
    except wire.MalformedJson:
        return None


def _unauthorized() -> RequestRefused:
    return RequestRefused(401, _NO_TOKEN, [_CHALLENGE], body=wire.dumps({"error": _NO_TOKEN}))


def _too_many(wait_s: float) -> RequestRefused:
    text = f"too many failed log-ins from this address; try again in {math.ceil(wait_s)} s"
    fields = [(b"retry-after", str(math.ceil(wait_s)).encode())]
    return RequestRefused(429, text, fields, body=wire.dumps({"error": text}))


def _no_server(name: str) -> Response:
    return JsonDocument({"error": f"there is no server {name!r}"}, 404)


def _wrong(message: str) -> Response:
    return JsonDocument({"error": message}, 400)
