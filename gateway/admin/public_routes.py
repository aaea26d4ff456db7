"""Paths that need no admin token: probes, metrics, and sign-in pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qs

from pydantic import Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response

from gateway.access.administrators import source_address
from gateway.admin.caller_pages import SIGN_IN_PATH, CallerPages, guarded
from gateway.admin.pages import PAGE_HEADERS, SignInCookie, callback_page, key_page, page
from gateway.admin.routes import JsonDocument, Refusal, read_body
from gateway.config.section import Section
from gateway.process.secrets import SECRETS
from gateway.upstream.oauth.authorization import CALLBACK_PATH, CONNECT_PATH, DOCUMENT_PATH
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.upstream_credentials import SignInFailed

MAX_BODY_BYTES: Final = 8 * 1024
"""The maximum size of a body from a sender without credentials: enough for a ticket and a key in a form."""


class SignInPages:
    """The pages of sign-ins to upstreams.

    Attributes:
        by_path: The handlers by path.
    """

    def __init__(self, sign_ins: SignIns) -> None:
        self._sign_ins = sign_ins
        self._cookie = SignInCookie(sign_ins)
        self.by_path: dict[str, Callable[[Request], Awaitable[Response]]] = {
            CALLBACK_PATH: self._callback,
            CONNECT_PATH: self._connect,
        }

    async def _callback(self, request: Request) -> Response:
        if request.method != "GET":
            # A link preview with HEAD must not use up the code.
            return Response(headers=PAGE_HEADERS)
        query = request.scope["query_string"].decode("latin-1")
        status, text, location = await callback_page(self._sign_ins, query, cookie=self._cookie.value(request))
        if location is not None:
            return RedirectResponse(location, status, headers=PAGE_HEADERS)
        return HTMLResponse(text, status, headers=PAGE_HEADERS)

    async def _connect(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._check_key(request)
        if request.method != "GET":
            return Response(headers=PAGE_HEADERS)
        ticket = request.query_params.get("ticket", "")
        try:
            step = await self._sign_ins.linking.follow_link(ticket, self._cookie.value(request))
        except SignInFailed as error:
            return _refusal_page(error)
        if step.redirect_url is not None:
            answer: Response = RedirectResponse(step.redirect_url, 302, headers=PAGE_HEADERS)
        else:
            text, headers = key_page(step.server, ticket)
            answer = HTMLResponse(text, headers=headers)
        self._cookie.put(answer, step.cookie)
        return answer

    async def _check_key(self, request: Request) -> Response:
        form = parse_qs((await _body(request)).decode("latin-1"))
        ticket, key = form.get("ticket", [""])[0], form.get("key", [""])[0].strip()
        cookie = self._cookie.value(request)
        try:
            if cookie is None:
                raise SignInFailed("this browser does not accept cookies, which are needed to finish the sign-in")
            finished = await self._sign_ins.start_with_key(ticket, key, cookie)
        except SignInFailed as error:
            return _refusal_page(error)
        return RedirectResponse(finished.redirect_url or "/", 303, headers=PAGE_HEADERS)


async def _body(request: Request) -> bytes:
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                return b""
    except ClientDisconnect:
        return b""
    return body


def _refusal_page(error: SignInFailed) -> Response:
    return HTMLResponse(page("Not signed in", SECRETS.scrub(str(error))), 400, headers=PAGE_HEADERS)


_PROVIDER_PATH: Final = "/me/provider"
_TOKEN_PATH: Final = "/me/provider/token"


class ProviderRequest(Section):
    """The body of `POST /me/provider`."""

    issuer: str = Field(min_length=1, max_length=2_048, examples=["https://id.example.test"])
    """The issuer at which the caller signs in."""


class TicketRequest(Section):
    """The body of `POST /me/provider/token`."""

    ticket: str = Field(min_length=1, max_length=128)
    """The ticket in the URL to which the browser was redirected after the sign-in."""


class ProviderPages:
    """Signs callers in to the gateway itself, for the page at `/me`.

    Attributes:
        by_path: The handlers by path.
    """

    def __init__(self, sign_ins: SignIns) -> None:
        self._linking = sign_ins.linking
        self._cookie = SignInCookie(sign_ins)
        self.by_path: dict[str, Callable[[Request], Awaitable[Response]]] = {
            _PROVIDER_PATH: guarded(self._provider),
            _TOKEN_PATH: guarded(self._token),
        }

    async def _provider(self, request: Request) -> Response:
        """Return the issuers at which callers can sign in, or start a sign-in at one of them."""
        if request.method != "POST":
            return JsonDocument(
                {"providers": [{"issuer": one.issuer, "name": one.name} for one in self._linking.issuers]}
            )
        issuer = (await read_body(request, ProviderRequest)).issuer
        try:
            address = source_address(":".join(map(str, request.client or ())))
            url, cookie = await self._linking.start_access(issuer, self._cookie.value(request), address)
        except SignInFailed as error:
            raise Refusal(409, str(error)) from None
        # Do not use `JsonDocument`: it could mistake the state in the URL for a secret, and remove the state.
        response = JSONResponse({"url": url})
        self._cookie.put(response, cookie)
        return response

    async def _token(self, request: Request) -> Response:
        """Return the access token of a caller who has signed in with this browser. Each ticket works only once."""
        ticket = (await read_body(request, TicketRequest)).ticket
        try:
            token = await self._linking.redeem_access(ticket, self._cookie.value(request))
        except SignInFailed as error:
            raise Refusal(409, str(error)) from None
        return JSONResponse({"token": token})


NO_SCRAPER: Final = "an API key for metrics or the admin token is needed (gateway.metrics.public opens this path)"


METHODS: Final = {
    CONNECT_PATH: ("GET", "POST"),
    SIGN_IN_PATH: ("GET", "POST", "DELETE"),
    _PROVIDER_PATH: ("GET", "POST"),
    _TOKEN_PATH: ("POST",),
}
"""The methods of the paths that accept POST or DELETE. Callers submit their key with a form, or sign in and out."""


class Probes:
    """The probes, the metrics and the sign-in pages.

    Attributes:
        by_path: The handlers by path.
    """

    def __init__(
        self,
        *,
        scrapers: Callable[[str], bool],
        metrics: Callable[[], tuple[bytes, str]],
        unready: Callable[[], str | None],
        sign_ins: SignIns,
        caller_pages: CallerPages,
    ) -> None:
        """Create the handlers.

        Args:
            scrapers: Returns whether an Authorization header grants access to `/metrics`.
            metrics: Returns the metrics and their media type.
            unready: Returns why the gateway is not ready for calls; None if the gateway is ready.
            sign_ins: The sign-ins to upstreams.
            caller_pages: The handlers of the page at `/me`.
        """
        self.reads_metrics = scrapers
        self._text_of_metrics = metrics
        self._unready = unready
        self._sign_ins = sign_ins
        self.by_path: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
            DOCUMENT_PATH: self._client_document,
            **SignInPages(sign_ins).by_path,
            **ProviderPages(sign_ins).by_path,
            **caller_pages.by_path,
        }

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        why = self._unready()
        return PlainTextResponse("ready\n") if why is None else PlainTextResponse(f"{why}\n", 503)

    async def _metrics(self, request: Request) -> Response:
        if not self.reads_metrics(request.headers.get("authorization", "")):
            return Refusal(401, NO_SCRAPER, headers={"www-authenticate": "Bearer"}).response()
        text, media_type = self._text_of_metrics()
        return Response(text, headers={"content-type": media_type})

    async def _client_document(self, request: Request) -> Response:
        document = self._sign_ins.client_document()
        if document is None:
            return Refusal(404, "there is nothing at this path").response()
        return JSONResponse(document, headers={"cache-control": "max-age=300"})
