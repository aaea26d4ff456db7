"""`/admin/*`, `/healthz` and `/readyz` on Starlette."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway import wire
from gateway.admin import rows
from gateway.config.load import refusal
from gateway.config.model import NoteRequest
from gateway.config.upstream_types.registration import read_server
from gateway.errors import ConfigError
from gateway.operator_notes import NoteRefused
from registry.views.profile import DEFAULT

if TYPE_CHECKING:
    from gateway.app import Gateway

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]
_MAX_BODY_BYTES = 1024 * 1024


class JsonAnswer(JSONResponse):
    """JSON that holds whatever upstreams said, in names that are no Unicode too."""

    def render(self, content: Any) -> bytes:
        """Serialise as everywhere here."""
        return wire.dumps(content)


class AdminApi:
    """Rows out, commands in; every route of `/admin` wants the token."""

    def __init__(self, gateway: Gateway, token: str, draining: Callable[[], bool]) -> None:
        self._gateway = gateway
        self._token = token.encode()
        self._draining = draining

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Route("/metrics", self._metrics),
                Route("/admin/wrappers", self._guarded(self._wrappers)),
                Route("/admin/servers", self._guarded(self._servers), methods=["GET", "POST"]),
                Route("/admin/servers/{name}", self._guarded(self._one_server), methods=["GET", "DELETE"]),
                Route("/admin/servers/{name}/refresh", self._guarded(self._refresh), methods=["POST"]),
                Route("/admin/quarantine", self._guarded(self._quarantine)),
                Route("/admin/config", self._guarded(self._config)),
                Route("/admin/profiles", self._guarded(self._profiles)),
                Route("/admin/budget", self._guarded(self._budget)),
                Route("/admin/failures", self._guarded(self._failures)),
                Route("/admin/hooks", self._guarded(self._hooks)),
                Route("/admin/notes", self._guarded(self._notes), methods=["GET", "POST"]),
                Route("/admin/notes/{id}", self._guarded(self._one_note), methods=["DELETE"]),
            ]
        )

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token):
                return JsonAnswer({"error": "the admin token is needed"}, 401, headers={"www-authenticate": "Bearer"})
            return await handler(request)

        return guarded

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        if self._draining():
            return PlainTextResponse("draining\n", 503)
        if not self._gateway.fleet.tried:
            return PlainTextResponse("connecting\n", 503)
        return PlainTextResponse("ready\n")

    async def _metrics(self, request: Request) -> Response:
        from gateway.telemetry.metrics import CONTENT_TYPE, render

        return Response(render(self._gateway), headers={"content-type": CONTENT_TYPE})

    async def _wrappers(self, request: Request) -> Response:
        profile = request.query_params.get("profile", DEFAULT)
        if profile not in self._gateway.views.profiles:
            return JsonAnswer({"error": f"there is no profile {profile[:200]}"}, 404)
        found = rows.wrapper_rows(self._gateway.views.view(profile))
        server = request.query_params.get("server")
        return JsonAnswer({"wrappers": [row for row in found if server is None or row["server"] == server]})

    async def _config(self, request: Request) -> Response:
        reloader = self._gateway.reloader
        row = reloader.row() if reloader is not None else {"file": None}
        return JsonAnswer({**row, "search": self._gateway.meanings.row()})

    async def _profiles(self, request: Request) -> Response:
        return JsonAnswer({"profiles": rows.profile_rows(self._gateway)})

    async def _budget(self, request: Request) -> Response:
        return JsonAnswer({"profiles": rows.budget_rows(self._gateway)})

    async def _quarantine(self, request: Request) -> Response:
        return JsonAnswer({"quarantine": rows.quarantine_rows(self._gateway)})

    async def _failures(self, request: Request) -> Response:
        outcomes = self._gateway.outcomes
        return JsonAnswer({"failures": outcomes.failure_rows(), "repaired": outcomes.repair_rows()})

    async def _hooks(self, request: Request) -> Response:
        hooks = self._gateway.hooks
        return JsonAnswer({"wrappers": hooks.wrapper_rows(), "hooks": hooks.rows()})

    async def _notes(self, request: Request) -> Response:
        notebook = self._gateway.notebook
        if request.method == "GET":
            return JsonAnswer({"notes": notebook.rows()})
        body = await _body(request)
        try:
            wanted = NoteRequest.model_validate(body)
        except ValidationError as error:
            return _wrong(str(refusal(error, "request")))
        wrapper = self._gateway.registry.catalog.get(wanted.wrapper)
        if wrapper is None:
            return JsonAnswer({"error": f"there is no wrapper {wanted.wrapper[:200]}"}, 404)
        try:
            note_id = notebook.add(wrapper, wanted.text, of_failure=wanted.failure, lasts_s=wanted.seconds)
        except NoteRefused as error:
            return _wrong(str(error))
        return JsonAnswer({"id": note_id}, 201)

    async def _one_note(self, request: Request) -> Response:
        note_id = request.path_params["id"]
        if not self._gateway.notebook.remove(note_id):
            return JsonAnswer({"error": f"there is no note {note_id[:200]}"}, 404)
        return JsonAnswer({"removed": note_id})

    async def _servers(self, request: Request) -> Response:
        if request.method == "GET":
            return JsonAnswer({"servers": rows.server_rows(self._gateway)})
        body = await _body(request)
        if not isinstance(body, dict) or not isinstance(body.get("name"), str):
            return _wrong('the body must be an object with "name" and the server\'s configuration')
        name = body.pop("name")
        try:
            config = read_server(body.get("config", body))
            file = self._gateway.config.path
            self._gateway.fleet.add(name, config.beside(file.parent if file is not None else Path()))
        except ValidationError as error:
            return _wrong(str(refusal(error, "request")))
        except ConfigError as error:
            return _wrong(error.message)
        log.info("server added", extra={"server": name})
        return JsonAnswer(rows.server_row(self._gateway, name), 201)

    async def _one_server(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._gateway.fleet.servers:
            return JsonAnswer({"error": f"there is no server {name!r}"}, 404)
        if request.method == "DELETE":
            self._gateway.fleet.remove(name)
            log.info("server removed", extra={"server": name})
            return Response(status_code=204)
        return JsonAnswer(rows.server_row(self._gateway, name))

    async def _refresh(self, request: Request) -> Response:
        name = request.path_params["name"]
        link = self._gateway.fleet.links.get(name)
        if link is None:
            return JsonAnswer({"error": f"there is no server {name!r}"}, 404)
        link.refresh()
        return JsonAnswer({"refreshing": name}, 202)


async def _body(request: Request) -> Any:
    size, parts = 0, []
    async for part in request.stream():
        size += len(part)
        if size > _MAX_BODY_BYTES:
            return None
        parts.append(part)
    try:
        return wire.loads(b"".join(parts))
    except wire.MalformedJson:
        return None


def _wrong(message: str) -> Response:
    return JsonAnswer({"error": message}, 400)
