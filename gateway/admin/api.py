"""`/admin/*` on Starlette: who is let in, which route answers, and what the record has of it."""

from __future__ import annotations

import hmac
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain
from typing import Final

import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway import __version__, wire
from gateway.access.administrators import Administrator, Administrators
from gateway.access.failed_logins import FailedLogins
from gateway.admin.changing import etag_of, who
from gateway.admin.documents import JsonDocument, Refusal, body_of
from gateway.admin.openapi import document
from gateway.admin.operations.session_routes import SESSION_PATH
from gateway.admin.probes import NO_SCRAPER, Probes
from gateway.admin.queries import check_query, chosen_rows
from gateway.admin.routes import ADMINISTRATOR, JSON, REPEATED, WHOLE, AdminRoute, Merge, route, routes_of
from gateway.audit.record import Audit
from gateway.downstream.http.request import RequestHead, RequestRefused
from gateway.upstream.oauth.addresses import CONNECT_PATH
from gateway.worker_thread import run_in_thread

Endpoint = Callable[[Request], Awaitable[Response]]
# Nobody guesses a token of this length: whoever has it need not wait for what others behind its address do.
_UNGUESSABLE_CHARS: Final = 20
_NO_TOKEN: Final = "the admin token is needed"
_READS: Final = frozenset({"GET", "HEAD"})
# To choose rows of a larger document, and to write it and search it for secrets again, takes milliseconds and more.
_ASIDE_BYTES: Final = 256 * 1024
SAFETY: Final = {
    # What upstreams say ends up on the page: nothing but the page's own files runs there, and nobody frames it.
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; object-src 'none'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer below `/admin`."""
# Members of bodies by which the record says what a change was about.
_NAMING: Final = ("name", "wrapper", "decision")
_CHALLENGE: Final = (b"www-authenticate", b"Bearer")


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
        administrators: Administrators,
        probes: Probes,
        audit: Audit,
        operations: Sequence[object],
        share: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Answer with these.

        Args:
            administrators: Whom `/admin` lets in.
            probes: What orchestrators, scrapers and browsers of sign-ins ask.
            audit: The record, into which every change goes.
            operations: Objects with routes.
            share: Makes what was changed last, and known to other replicas as far as they can be reached.
        """
        self._administrators = administrators
        self._probes = probes
        self._audit = audit
        self._share = share
        self._failed_logins = FailedLogins()
        self._description: tuple[bytes, str] | None = None
        self.routes = tuple(chain.from_iterable(map(routes_of, (self, *operations))))

    def app(self) -> Starlette:
        """The ASGI application."""
        by_path: dict[str, list[AdminRoute]] = {}
        for each in self.routes:
            by_path.setdefault(each.path, []).append(each)
        return Starlette(
            routes=[
                *(
                    # Where callers show who they are a form is posted.
                    Route(path, answer, methods=["GET", "POST"] if path == CONNECT_PATH else ["GET"])
                    for path, answer in self._probes.by_path.items()
                ),
                *(
                    Route(path, self._guarded(routes), methods=[each.method for each in routes])
                    for path, routes in by_path.items()
                ),
            ]
        )

    def check(self, head: RequestHead, peer: str) -> None:
        """Refuse, before its body is read, a request that the application would refuse whatever its body says.

        Raises:
            RequestRefused: There is nothing at its path, it proves nothing, or its address has failed too often.
        """
        path, method = head.path.decode("latin-1"), head.method.decode("latin-1")
        if not path.startswith("/admin/") and path != "/admin":
            self.check_probe(head, peer)
            return
        found = self.route_of("GET" if method == "HEAD" else method, path)
        if found is not None and found.public:
            return
        credentials = head.text(b"authorization")
        if not credentials:
            self._check_session(head, reads=method in _READS)
            return
        wait_s = self._failed_logins.wait_s(peer)
        known = self._by_authorization(credentials, found) is not None
        if wait_s and (self._administrators.guessable_chars < _UNGUESSABLE_CHARS or not known):
            # Not even looked at where it could be a guess: a right one would be told from the wrong ones.
            raise _too_many(wait_s)
        if not known:
            self._failed_logins.failed(peer)
            self._audit.credentials_refused(path, peer, "no admin token")
            raise _unauthorized()
        self._failed_logins.succeeded(peer)

    def _check_session(self, head: RequestHead, *, reads: bool) -> None:
        """Judge a request by its cookie, which browsers send with requests of other sites' making, too."""
        administrator = self._administrators.by_cookie(head.text(b"cookie"))
        if administrator is None:
            raise _unauthorized()
        if reads:
            return
        authority = head.text(b"origin").lower().partition("://")[2]
        if not authority or authority != head.text(b"host").lower():
            raise _forbidden("a change in a browser's session needs the Origin of this page")
        sent = head.text(b"x-csrf-token").encode("latin-1")
        if not hmac.compare_digest(sent, self._administrators.csrf_token(administrator).encode()):
            raise _forbidden("a change in a browser's session needs its X-CSRF-Token, as GET /admin/session tells it")

    def _by_authorization(self, authorization: str, found: AdminRoute | None) -> Administrator | None:
        administrator = self._administrators.by_token(authorization)
        if administrator is None and found is not None and (found.method, found.path) == ("POST", SESSION_PATH):
            # The one thing that a link is good for.
            return self._administrators.by_code(authorization, take=False)
        return administrator

    def check_probe(self, head: RequestHead, peer: str) -> None:
        """As `check`, where administrators have an address of their own and this is not it.

        Raises:
            RequestRefused: It is none of the paths of orchestrators, or one of those that take credentials.
        """
        if head.path.decode("latin-1") not in self._probes.by_path:
            raise RequestRefused(404, "there is nothing here", body=b'{"error":"there is nothing here"}')
        if head.path == b"/metrics" and not self._probes.reads_metrics(head.text(b"authorization")):
            raise RequestRefused(401, NO_SCRAPER, [_CHALLENGE], body=wire.dumps({"error": NO_SCRAPER}))

    def route_of(self, method: str, path: str) -> AdminRoute | None:
        """The route that answers this; None where there is none."""
        parts = path.split("/")
        for each in self.routes:
            pattern = each.path.split("/")
            if each.method == method and len(pattern) == len(parts) and all(map(_fits, pattern, parts)):
                return each
        return None

    def _guarded(self, routes: Sequence[AdminRoute]) -> Endpoint:
        by_method = {each.method: each for each in routes}

        async def guarded(request: Request) -> Response:
            # Starlette answers HEAD wherever GET is, and asks us for it.
            found = by_method["GET" if request.method == "HEAD" else request.method]  # type: ignore[index] # routes have one of their methods
            response = await self._answer(found, request)
            for name, value in SAFETY.items():
                response.headers.setdefault(name, value)
            return response

        return guarded

    async def _answer(self, found: AdminRoute, request: Request) -> Response:
        try:
            if not found.public:
                request.scope[ADMINISTRATOR] = self._administrator(found, request)
            check_query(found, request.query_params)
        except Refusal as error:
            return error.response()
        try:
            response = await found.handler(request)
        except Refusal as error:
            response = error.response()
        if self._share is not None and request.method not in _READS and found.recorded:
            # Whoever is told that a key is revoked may rely on it, even if this replica crashes now.
            await self._share()
        if found.rows is not None and WHOLE not in request.scope and isinstance(response, JsonDocument):
            choose = partial(response.with_document, partial(chosen_rows, found, request.query_params))
            response = choose() if len(response.body) <= _ASIDE_BYTES else await run_in_thread(choose)
        if request.method not in _READS and found.recorded and not request.scope.get(REPEATED):
            await self._record(request, response.status_code)
        return response

    def _administrator(self, found: AdminRoute, request: Request) -> Administrator:
        """Who asks.

        Raises:
            Refusal: Nobody who may.
        """
        authorization = request.headers.get("authorization", "")
        administrator = (
            self._by_authorization(authorization, found)
            if authorization
            else self._administrators.by_cookie(request.headers.get("cookie", ""))
        )
        if administrator is None:
            raise Refusal(401, _NO_TOKEN, headers={"www-authenticate": "Bearer"})
        if not administrator.may(found.role):
            raise Refusal(403, f"this needs the role {found.role}, and {administrator.name} has {administrator.role}")
        return administrator

    async def _record(self, request: Request, status: int) -> None:
        body = await body_of(request)
        named = [body.get(key) for key in _NAMING] if isinstance(body, dict) else []
        target = next((name for name in named if isinstance(name, str)), None)
        peer = ":".join(map(str, request.client)) if request.client is not None else ""
        self._audit.changed(
            f"{request.method} {request.url.path}", target, status=status, peer=peer, by=who(request) or None
        )

    @route(
        "GET", "/admin/openapi.json", merge=Merge.SAME,
        example={"openapi": "3.1.0", "info": {"title": "typegate administration", "version": __version__}, "paths": {}},
    )  # fmt: skip
    async def openapi(self, request: Request) -> Response:
        """This description.

        Returns:
            An OpenAPI 3.1 document.
        """
        if self._description is None:
            # Once, and in a thread: every type of upstream is described for it, which takes a while.
            content = await anyio.to_thread.run_sync(lambda: wire.dumps(document(self.routes)))
            self._description = content, etag_of(content.decode())
        content, tag = self._description
        # It differs only after an upgrade.
        headers = {"etag": tag, "cache-control": "no-cache", "content-type": JSON}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)


def _fits(pattern: str, part: str) -> bool:
    return pattern == part or (pattern.startswith("{") and bool(part))


def _unauthorized() -> RequestRefused:
    return RequestRefused(401, _NO_TOKEN, [_CHALLENGE], body=wire.dumps({"error": _NO_TOKEN}))


def _forbidden(text: str) -> RequestRefused:
    return RequestRefused(403, text, body=wire.dumps({"error": text}))


def _too_many(wait_s: float) -> RequestRefused:
    text = f"too many failed log-ins from this address; try again in {math.ceil(wait_s)} s"
    fields = [(b"retry-after", str(math.ceil(wait_s)).encode())]
    return RequestRefused(429, text, fields, body=wire.dumps({"error": text}))
