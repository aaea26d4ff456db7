"""`/admin/` and `/admin/session`: the admin page and its browser sessions."""

from __future__ import annotations

import time
from functools import cache
from importlib.resources import files
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.access.administrators import CODE_S, SESSION_S, Administrator, Administrators
from gateway.admin.operations.config_routes import etag_of
from gateway.admin.routes import ADMINISTRATOR, JsonDocument, Merge, Refusal, missing, route
from gateway.audit.audit_entries import format_time

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_INDEX: Final = "index.html"


class PageRoutes:
    """Serves the files of the admin page."""

    @route("GET", "/admin", merge=Merge.HERE, status=307, public=True, content="")
    async def page_without_slash(self, request: Request) -> Response:
        """Redirect to the admin page.

        Returns:
            A redirect without a body.
        """
        # The path is relative, so that the redirect also works behind a proxy that adds a path prefix.
        return RedirectResponse("admin/", 307)

    @route("GET", "/admin/", merge=Merge.HERE, public=True, content="text/html", example="<!doctype html>…")
    async def page(self, request: Request) -> Response:
        """Return the admin page.

        Returns:
            The page in HTML.
        """
        return page_response(request, _INDEX)

    @route(
        "GET",
        "/admin/page/{file}",
        merge=Merge.HERE,
        public=True,
        content="*/*",
        examples={"file": "style.css"},
        example=":root { … }",
    )
    async def page_file(self, request: Request) -> Response:
        """Return a file of the admin page.

        Returns:
            A script, a style sheet or an image.

        Errors:
            404: The file does not exist.
        """
        name = request.path_params["file"]
        if name not in _page():
            raise missing("file of the page", name)
        return page_response(request, name)


def page_response(request: Request, name: str) -> Response:
    """Return a file of the page; a 304 response without content if the browser has the current file."""
    content, tag = _page()[name]
    # Browsers revalidate each time; the content changes only with an upgrade.
    headers = {"etag": tag, "cache-control": "no-cache", "content-type": _TYPES[name.rpartition(".")[2]]}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)


@cache
def _page() -> dict[str, tuple[bytes, str]]:
    folder = files("gateway.admin") / "page"
    contents = {each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in _TYPES}
    return {name: (content, etag_of(content.decode())) for name, content in contents.items()}


SESSION_PATH: Final = "/admin/session"


class SessionRoutes:
    """Starts and ends browser sessions."""

    def __init__(self, administrators: Administrators) -> None:
        self._administrators = administrators

    @route(
        "GET",
        SESSION_PATH,
        merge=Merge.SAME,
        example={"name": "admin", "role": "admin", "csrf": "0123456789abcdef", "expires": "2027-01-31T16:00:00.000Z"},
    )
    async def show_session(self, request: Request) -> Response:
        """Return the administrator who sent the request, and the CSRF token of a browser session.

        Returns:
            `name` and `role`; in a browser session also `csrf`, to be sent as `X-CSRF-Token` with every change, and
            `expires`.
        """
        return JsonDocument(self._row(request.scope[ADMINISTRATOR]))

    @route(
        "POST",
        SESSION_PATH,
        merge=Merge.SAME,
        role="viewer",
        example={"name": "admin", "role": "admin", "csrf": "0123456789abcdef", "expires": "2027-01-31T16:00:00.000Z"},
    )
    async def begin_session(self, request: Request) -> Response:
        """Start a browser session, with the admin token or the code of a `typegate admin` link as bearer token.

        Returns:
            The same as GET, with a cookie that identifies the session for eight hours and that scripts cannot read.
        """
        administrator: Administrator | None = request.scope[ADMINISTRATOR]
        authorization = request.headers.get("authorization", "")
        if self._administrators.by_token(authorization) is None:
            # `AdminApi` has only checked the code. Invalidate the code here, so that the link works only once.
            administrator = self._administrators.by_code(authorization, take=True)
        if administrator is None:
            raise Refusal(401, "this link has already been used or has expired")
        session, value = self._administrators.new_session(administrator)
        response = JsonDocument(self._row(session))
        response.set_cookie(
            self._administrators.cookie,
            value,
            max_age=int(SESSION_S),
            path="/",
            httponly=True,
            samesite="strict",
            # The scheme comes from the Origin, because a proxy may terminate TLS.
            secure=request.headers.get("origin", "").startswith("https://"),
        )
        return response

    @route("DELETE", SESSION_PATH, merge=Merge.SAME, role="viewer", status=204)
    async def end_session(self, request: Request) -> Response:
        """End the browser session.

        Returns:
            Nothing.
        """
        self._administrators.end_session(request.scope[ADMINISTRATOR])
        response = Response(status_code=204)
        response.delete_cookie(self._administrators.cookie, path="/", httponly=True, samesite="strict")
        return response

    @route(
        "POST",
        f"{SESSION_PATH}/links",
        merge=Merge.SAME,
        role="viewer",
        status=201,
        example={"code": "once_…", "path": "/admin/#code=once_…", "expires": "2027-01-31T08:01:00.000Z"},
    )
    async def make_link(self, request: Request) -> Response:
        """Create a link that signs in one browser, once, within a minute.

        Returns:
            `code`; `path`, relative to the address of the gateway; `expires`.
        """
        code = self._administrators.new_code(request.scope[ADMINISTRATOR])
        # The code is in the fragment, which browsers do not send, so that the code does not appear in logs.
        row = {"code": code, "path": f"/admin/#code={code}", "expires": format_time(time.time() + CODE_S)}
        return JsonDocument(row, 201)

    def _row(self, administrator: Administrator) -> dict[str, Any]:
        return {
            "name": administrator.name,
            "role": administrator.role,
            "csrf": self._administrators.csrf_token(administrator) or None,
            "expires": format_time(administrator.until_s) if administrator.until_s else None,
        }
