"""What browsers see of sign-ins: where callers show who they are, and where a browser comes back to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from gateway.admin.pages import PAGE_HEADERS, callback_page, key_page, page
from gateway.secrets import SECRETS
from gateway.upstream.credentials import SignInFailed
from gateway.upstream.oauth.addresses import CONNECT_PATH
from gateway.upstream.oauth.clients import CALLBACK_PATH
from gateway.upstream.oauth.sign_ins import SignIns

_COOKIE: Final = "typegate-connect"
# Over https, where no other host can set one of this name for us.
_SECURE_COOKIE: Final = f"__Host-{_COOKIE}"
# Longer than a link is good.
_COOKIE_S: Final = 3_600
# A ticket and a key, with the names of their fields.
_MAX_FORM_BYTES: Final = 8 * 1024


class SignInPages:
    """Pages for whoever signs in; none of them needs the admin token.

    Attributes:
        by_path: What answers, by its path.
    """

    def __init__(self, sign_ins: SignIns) -> None:
        self._sign_ins = sign_ins
        self.by_path: dict[str, Callable[[Request], Awaitable[Response]]] = {
            CALLBACK_PATH: self._callback,
            CONNECT_PATH: self._connect,
        }

    @property
    def _is_secure(self) -> bool:
        return (self._sign_ins.addresses.connect_url() or "").startswith("https:")

    def _mark(self, request: Request) -> str | None:
        return request.cookies.get(_SECURE_COOKIE if self._is_secure else _COOKIE)

    async def _callback(self, request: Request) -> Response:
        if request.method != "GET":
            # What looks at a link without following it must not use it up.
            return Response(headers=PAGE_HEADERS)
        query = request.scope["query_string"].decode("latin-1")
        status, text, location = await callback_page(self._sign_ins, query, mark=self._mark(request))
        if location is not None:
            return RedirectResponse(location, status, headers=PAGE_HEADERS)
        return HTMLResponse(text, status, headers=PAGE_HEADERS)

    async def _connect(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._prove(request)
        if request.method != "GET":
            return Response(headers=PAGE_HEADERS)
        ticket = request.query_params.get("ticket", "")
        try:
            asked = await self._sign_ins.connecting.ask(ticket, self._mark(request))
        except SignInFailed as error:
            return _refused(error)
        if asked.go_to is not None:
            answer: Response = RedirectResponse(asked.go_to, 302, headers=PAGE_HEADERS)
        else:
            text, headers = key_page(asked.server, ticket)
            answer = HTMLResponse(text, headers=headers)
        answer.set_cookie(
            _SECURE_COOKIE if self._is_secure else _COOKIE,
            asked.mark,
            max_age=_COOKIE_S,
            path="/",
            httponly=True,
            # The way back from an issuer is a navigation, with which a lax cookie comes along.
            samesite="lax",
            secure=self._is_secure,
        )
        return answer

    async def _prove(self, request: Request) -> Response:
        form = parse_qs((await _body(request)).decode("latin-1"))
        ticket, key = form.get("ticket", [""])[0], form.get("key", [""])[0].strip()
        mark = self._mark(request)
        try:
            if mark is None:
                raise SignInFailed("this browser keeps no cookies, by which it would be known when it comes back")
            finished = await self._sign_ins.prove(ticket, key, mark)
        except SignInFailed as error:
            return _refused(error)
        return RedirectResponse(finished.go_on_at or "/", 303, headers=PAGE_HEADERS)


async def _body(request: Request) -> bytes:
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_FORM_BYTES:
                return b""
    except ClientDisconnect:
        return b""
    return body


def _refused(error: SignInFailed) -> Response:
    return HTMLResponse(page("Not signed in", SECRETS.scrub(str(error))), 400, headers=PAGE_HEADERS)
