"""`/admin/*`: authentication, routing and auditing of admin requests, and their OpenAPI description.

Source of the description's form: OpenAPI Specification 3.1.0.
"""

from __future__ import annotations

import hmac
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway import __version__
from gateway.access.administrators import Administrator, Administrators, FailedLogins
from gateway.admin.operations.config_routes import administrator_name, etag_of
from gateway.admin.operations.page_routes import SESSION_PATH
from gateway.admin.pages import SAFETY
from gateway.admin.public_routes import MAX_BODY_BYTES, METHODS, NO_SCRAPER, Probes
from gateway.admin.routes import (
    ADMINISTRATOR,
    JSON,
    MAX_ROWS,
    REPEATED,
    WHOLE,
    AdminRoute,
    JsonDocument,
    Merge,
    Refusal,
    body_of,
    check_length,
    check_query,
    chosen_rows,
    is_small,
    route,
    routes_of,
)
from gateway.audit.recording import Audit
from gateway.config.section import add_descriptions
from gateway.http.http_request import DISCARDED_BYTES, RequestHead, RequestRefused
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes

_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_ABOUT: Final = """\
Changes by administrators survive a restart: added and removed servers and keys, and disabled servers and tools, are
stored in an overlay over the configuration (`/admin/overlay`) and can be reverted. Notes, and approvals for longer than
one call, have files of their own or end with the process, as their routes say.
Every change in a browser session (`POST /admin/session`) needs the `Origin` of the page and an `X-CSRF-Token`.
Lists accept `limit` and `cursor`; unknown query parameters are refused.
"""
_NUMBERS: Final = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_ROWS, "examples": [100]},
    "cursor": {"type": "string", "pattern": "^[0-9]{1,9}$", "examples": ["0"]},
}
_USUAL: Final = (
    ("400", "A parameter is unknown, or the request cannot be read."),
    ("401", "The admin token is missing or wrong, or the session has ended."),
    ("403", "The role does not allow this, or a change in a browser session lacks its Origin or X-CSRF-Token."),
    ("429", "Too many log-ins from this address have failed."),
)
_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string"}
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "examples": ["there is no server 'calender'"]}},
}


def document(routes: Iterable[AdminRoute]) -> dict[str, Any]:
    """Return the OpenAPI description of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": _ERROR}
    for declared in routes:
        paths.setdefault(declared.path, {})[declared.method.lower()] = _operation(declared, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "typegate administration", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"adminToken": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "adminToken": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "typegate_…"},
            },
        },
    }


def _operation(route: AdminRoute, schemas: dict[str, Any]) -> dict[str, Any]:
    sections = route.sections
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string"},
            "example": route.examples.get(name, "x"),
        }
        for name in _PARAMETER.findall(route.path)
    ]
    for name, meaning in _entries(sections.get("Query", [])):
        schema = _NUMBERS.get(name, {"type": "string"}) if route.rows is not None else {"type": "string"}
        parameters.append({"name": name, "in": "query", "description": meaning, "schema": schema})
    answer: dict[str, Any] = {"description": " ".join(sections["Returns"])}
    if route.example is not None:
        answer["content"] = {route.content: {"schema": _schema_of(route.example), "example": route.example}}
    responses = {str(route.status): answer}
    errors = dict(() if route.public else _USUAL)
    errors |= dict(_entries(sections.get("Errors", [])))
    errors.setdefault("400", _USUAL[0][1])
    for status, reason in sorted(errors.items()):
        example = {"error": reason[0].lower() + reason[1:].rstrip(".")}
        responses[status] = {
            "description": reason,
            "content": {JSON: {"schema": _reference("Error"), "example": example}},
        }
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "tags": [route.path.split("/")[2] or "page"] if route.path.count("/") > 1 else ["page"],
        "summary": sections["Summary"][0],
        "description": " ".join(sections["Summary"]),
        "x-role": route.role,
        "responses": responses,
    }
    if route.public:
        operation["security"] = []
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        schema = route.body.model_json_schema(ref_template="#/components/schemas/{model}")
        add_descriptions(schema)
        schemas.update(schema.pop("$defs", {}))
        schemas[route.body.__name__] = schema
        media = {"schema": _reference(route.body.__name__)}
        if example := _example_of(schema):
            media["example"] = example
        operation["requestBody"] = {"required": True, "content": {JSON: media}}
    return operation


def _schema_of(example: Any) -> dict[str, Any]:
    """Derive a schema from an example response; every member is optional and nullable."""
    match example:
        case dict():
            return {"type": "object", "properties": {name: _nullable(value) for name, value in example.items()}}
        case list():
            return {"type": "array", "items": _schema_of(example[0]) if example else {}}
        case _:
            return {"type": _TYPES[type(example)]} if example is not None else {}


def _nullable(example: Any) -> dict[str, Any]:
    schema = _schema_of(example)
    return {**schema, "type": [schema["type"], "null"]} if "type" in schema else schema


def _example_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an example body, composed of the examples of the schema's members."""
    return {
        name: member["examples"][0] for name, member in schema.get("properties", {}).items() if member.get("examples")
    }


def _entries(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, colon, meaning = line.partition(": ")
        if colon:
            yield name, meaning


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


Endpoint = Callable[[Request], Awaitable[Response]]
# A token of this length cannot be guessed, so its owner is not slowed down by failed log-ins from a shared address.
_UNGUESSABLE_CHARS: Final = 20
_NO_TOKEN: Final = "the admin token is needed"
_READS: Final = frozenset({"GET", "HEAD"})
# Members of a body from which the audit log takes the target of a change.
_NAMING: Final = ("name", "wrapper", "decision")
_CHALLENGE: Final = (b"www-authenticate", b"Bearer")


class AdminApi:
    """The admin API: authenticates, routes and audits the requests below `/admin`."""

    max_body_bytes: Final = 1024 * 1024
    """Enough for the configuration of one server, but far less than the largest configuration file."""

    def __init__(
        self,
        *,
        administrators: Administrators,
        probes: Probes,
        audit: Audit,
        operations: Sequence[object],
        share: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Collect the routes of all operations.

        Args:
            administrators: Verifies the credentials of requests to `/admin`.
            probes: The handlers of paths outside `/admin`, for orchestrators, scrapers and sign-ins.
            audit: The audit log, to which every change is written.
            operations: Objects with methods declared by `route`.
            share: Stores changes and sends them to all reachable replicas; None without other replicas.
        """
        self._administrators = administrators
        self._probes = probes
        self._audit = audit
        self._share = share
        self._failed_logins = FailedLogins()
        self._description: tuple[bytes, str] | None = None
        self.routes = tuple(chain.from_iterable(map(routes_of, (self, *operations))))

    def app(self) -> Starlette:
        """Return the ASGI application."""
        by_path: dict[str, list[AdminRoute]] = {}
        for each in self.routes:
            by_path.setdefault(each.path, []).append(each)
        return Starlette(
            routes=[
                *(
                    Route(path, answer, methods=[*METHODS.get(path, ("GET",))])
                    for path, answer in self._probes.by_path.items()
                ),
                *(
                    Route(path, self._guard_routes(routes), methods=[each.method for each in routes])
                    for path, routes in by_path.items()
                ),
            ]
        )

    def check(self, head: RequestHead, peer: str) -> None:
        """Check the path and the credentials of a request before its body is buffered.

        Raises:
            RequestRefused: The path does not exist, the credentials are missing or wrong, or too many log-ins from
                this address have failed.
        """
        path, method = head.path.decode("latin-1"), head.method.decode("latin-1")
        if not path.startswith("/admin/") and path != "/admin":
            self.check_probe(head, peer)
            return
        admin_route = self.route_of("GET" if method == "HEAD" else method, path)
        if admin_route is not None and admin_route.public:
            return
        credentials = head.text(b"authorization")
        if not credentials:
            self._check_session(head, reads=method in _READS)
            return
        wait_s = self._failed_logins.wait_s(peer)
        is_known = self._by_authorization(credentials, admin_route) is not None
        if wait_s and (self._administrators.guessable_chars < _UNGUESSABLE_CHARS or not is_known):
            # Refuse a guessable token even if it is correct; otherwise the response would reveal a successful guess.
            raise _too_many(wait_s)
        if not is_known:
            self._failed_logins.failed(peer)
            self._audit.credentials_refused(path, peer, "no admin token")
            raise _unauthorized_error()
        self._failed_logins.succeeded(peer)

    def _check_session(self, head: RequestHead, *, reads: bool) -> None:
        """Check the session cookie and, unless the request only reads, the Origin and the CSRF token.

        A browser also sends the cookie with requests that other sites make. Those sites do not have the CSRF token.
        """
        administrator = self._administrators.by_cookie(head.text(b"cookie"))
        if administrator is None:
            raise _unauthorized_error()
        if reads:
            return
        authority = head.text(b"origin").lower().partition("://")[2]
        if not authority or authority != head.text(b"host").lower():
            raise _forbidden_error("a change in a browser session needs the Origin of this page")
        sent = head.text(b"x-csrf-token").encode("latin-1")
        if not hmac.compare_digest(sent, self._administrators.csrf_token(administrator).encode()):
            raise _forbidden_error(
                "a change in a browser session needs the X-CSRF-Token that GET /admin/session returns"
            )

    def _by_authorization(self, authorization: str, admin_route: AdminRoute | None) -> Administrator | None:
        administrator = self._administrators.by_token(authorization)
        if (
            administrator is None
            and admin_route is not None
            and (admin_route.method, admin_route.path) == ("POST", SESSION_PATH)
        ):
            # The code of a sign-in link is accepted only for starting a session.
            return self._administrators.by_code(authorization, take=False)
        return administrator

    def check_probe(self, head: RequestHead, peer: str) -> None:
        """Check a request outside `/admin`, which may arrive at an address that does not serve the admin API.

        Raises:
            RequestRefused: The path does not exist, the body is too large or of unknown size, or `/metrics` is
                requested without valid credentials.
        """
        if head.path.decode("latin-1") not in self._probes.by_path:
            raise RequestRefused(
                404, "there is nothing at this path", body=b'{"error":"there is nothing at this path"}'
            )
        if head.path == b"/metrics" and not self._probes.reads_metrics(head.text(b"authorization")):
            raise RequestRefused(401, NO_SCRAPER, [_CHALLENGE], body=json_bytes.dumps({"error": NO_SCRAPER}))
        _check_size(head)

    def route_of(self, method: str, path: str) -> AdminRoute | None:
        """Return the route for a method and a path, or None."""
        parts = path.split("/")
        for each in self.routes:
            pattern = each.path.split("/")
            if each.method == method and len(pattern) == len(parts) and all(map(_matches, pattern, parts)):
                return each
        return None

    def _guard_routes(self, routes: Sequence[AdminRoute]) -> Endpoint:
        by_method = {each.method: each for each in routes}

        async def guarded(request: Request) -> Response:
            # Starlette rejects methods without a route before this point, and passes HEAD requests to GET handlers.
            admin_route = by_method["GET" if request.method == "HEAD" else request.method]  # type: ignore[index]
            response = await self._answer(admin_route, request)
            for name, value in SAFETY.items():
                response.headers.setdefault(name, value)
            return response

        return guarded

    async def _answer(self, admin_route: AdminRoute, request: Request) -> Response:
        try:
            if not admin_route.public:
                request.scope[ADMINISTRATOR] = self._administrator(admin_route, request)
            for name, value in request.path_params.items():
                check_length(f"the {name} in the path", value)
            check_query(admin_route, request.query_params)
        except Refusal as error:
            return await _write(error.response())
        try:
            response = await admin_route.handler(request)
        except Refusal as error:
            response = error.response()
        if self._share is not None and request.method not in _READS and admin_route.recorded:
            # Share the change before responding: a confirmed revocation has to last even if this replica crashes now.
            await self._share()
        if admin_route.rows is not None and WHOLE not in request.scope and isinstance(response, JsonDocument):
            choose = partial(chosen_rows, admin_route, request.query_params, response.document)
            response.reduce_to(choose() if is_small(response.document) else await run_in_thread(choose))
        await _write(response)
        if request.method not in _READS and admin_route.recorded and not request.scope.get(REPEATED):
            await self._record(request, response.status_code)
        return response

    def _administrator(self, admin_route: AdminRoute, request: Request) -> Administrator:
        """Return the administrator who sent the request.

        Raises:
            Refusal: The credentials are missing or wrong, or the role does not allow the request.
        """
        authorization = request.headers.get("authorization", "")
        administrator = (
            self._by_authorization(authorization, admin_route)
            if authorization
            else self._administrators.by_cookie(request.headers.get("cookie", ""))
        )
        if administrator is None:
            raise Refusal(401, _NO_TOKEN, headers={"www-authenticate": "Bearer"})
        if not administrator.may(admin_route.role):
            raise Refusal(
                403, f"this needs the role {admin_route.role}, and {administrator.name} has {administrator.role}"
            )
        return administrator

    async def _record(self, request: Request, status: int) -> None:
        try:
            body = await body_of(request)
        except Refusal:
            body = None
        candidates = [body.get(key) for key in _NAMING] if isinstance(body, dict) else []
        target = next((name for name in candidates if isinstance(name, str)), None)
        peer = ":".join(map(str, request.client)) if request.client is not None else ""
        self._audit.changed(
            f"{request.method} {request.url.path}",
            target,
            status=status,
            peer=peer,
            by=administrator_name(request) or None,
        )

    @route(
        "GET",
        "/admin/openapi.json",
        merge=Merge.SAME,
        example={"openapi": "3.1.0", "info": {"title": "typegate administration", "version": __version__}, "paths": {}},
    )
    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI description of the admin API.

        Returns:
            An OpenAPI 3.1 document.
        """
        if self._description is None:
            # Build the description once, in a thread, because it includes the schema of every type of server entry.
            content = await anyio.to_thread.run_sync(lambda: json_bytes.dumps(document(self.routes)))
            self._description = content, etag_of(content.decode())
        content, tag = self._description
        # The description changes only with an upgrade.
        headers = {"etag": tag, "cache-control": "no-cache", "content-type": JSON}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)


async def _write(response: Response) -> Response:
    if isinstance(response, JsonDocument):
        await response.write()
    return response


def _matches(pattern: str, part: str) -> bool:
    return pattern == part or (pattern.startswith("{") and bool(part))


def _check_size(head: RequestHead) -> None:
    """Check the size of a body that will be read before its sender is authenticated.

    Raises:
        RequestRefused: The body is too large, or its size is unknown. Browsers always send the size.
    """
    length = head.content_length
    if head.text(b"transfer-encoding"):
        text = "this path needs a Content-Length"
        raise RequestRefused(411, text, body=json_bytes.dumps({"error": text}))
    if length is not None and length > MAX_BODY_BYTES:
        text = f"a request to this path may have at most {MAX_BODY_BYTES} bytes"
        raise RequestRefused(413, text, body=json_bytes.dumps({"error": text}), close=length > DISCARDED_BYTES)


def _unauthorized_error() -> RequestRefused:
    return RequestRefused(401, _NO_TOKEN, [_CHALLENGE], body=json_bytes.dumps({"error": _NO_TOKEN}))


def _forbidden_error(text: str) -> RequestRefused:
    return RequestRefused(403, text, body=json_bytes.dumps({"error": text}))


def _too_many(wait_s: float) -> RequestRefused:
    text = f"too many failed log-ins from this address; try again in {math.ceil(wait_s)} s"
    fields = [(b"retry-after", str(math.ceil(wait_s)).encode())]
    return RequestRefused(429, text, fields, body=json_bytes.dumps({"error": text}))
