"""`/admin/session`: how a browser signs in, and what it may do."""

from __future__ import annotations

import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.access.administrators import CODE_S, SESSION_S, Administrator, Administrators
from gateway.admin.documents import JsonDocument, Refusal
from gateway.admin.routes import ADMINISTRATOR, Merge, route
from gateway.audit.reading import as_time

SESSION_PATH: Final = "/admin/session"


class SessionRoutes:
    """Begins and ends sessions of browsers."""

    def __init__(self, administrators: Administrators) -> None:
        self._administrators = administrators

    @route(
        "GET",
        SESSION_PATH,
        merge=Merge.SAME,
        example={"name": "admin", "role": "admin", "csrf": "0123456789abcdef", "expires": "2027-01-31T16:00:00.000Z"},
    )
    async def show_session(self, request: Request) -> Response:
        """Who asks, and what the browser's session needs for changes.

        Returns:
            `name` and `role`; in a browser's session also `csrf`, to be sent as `X-CSRF-Token` with every change, and
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
        """Sign a browser in: the Authorization header has the token, or what a link of `typegate admin` holds.

        Returns:
            As with GET; the session itself is in a cookie that no script can read, for eight hours.
        """
        administrator: Administrator | None = request.scope[ADMINISTRATOR]
        authorization = request.headers.get("authorization", "")
        if self._administrators.by_token(authorization) is None:
            # Only here, where the session begins, is a link used up.
            administrator = self._administrators.by_code(authorization, take=True)
        if administrator is None:
            raise Refusal(401, "this link was used already, or is too old")
        session, value = self._administrators.new_session(administrator)
        response = JsonDocument(self._row(session))
        response.set_cookie(
            self._administrators.cookie,
            value,
            max_age=int(SESSION_S),
            path="/",
            httponly=True,
            samesite="strict",
            # Our own connection is plain where a proxy ends TLS; the browser tells how it came.
            secure=request.headers.get("origin", "").startswith("https://"),
        )
        return response

    @route("DELETE", SESSION_PATH, merge=Merge.SAME, role="viewer", status=204)
    async def end_session(self, request: Request) -> Response:
        """End the session of this browser.

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
        """Make a link that signs one browser in, once, within a minute.

        Returns:
            `code`; `path`, to be opened at the address of the gateway; `expires`.
        """
        code = self._administrators.new_code(request.scope[ADMINISTRATOR])
        # After the number sign: browsers send nothing of it, and no log has it.
        row = {"code": code, "path": f"/admin/#code={code}", "expires": as_time(time.time() + CODE_S)}
        return JsonDocument(row, 201)

    def _row(self, administrator: Administrator) -> dict[str, Any]:
        return {
            "name": administrator.name,
            "role": administrator.role,
            "csrf": self._administrators.csrf_token(administrator) or None,
            "expires": as_time(administrator.until_s) if administrator.until_s else None,
        }
