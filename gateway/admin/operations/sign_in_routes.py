"""Routes of the admin API about sign-ins to upstreams."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.admin.documents import JsonDocument, Refusal, missing
from gateway.admin.routes import Merge, route
from gateway.fleet import Fleet
from gateway.upstream.credentials import SignInFailed
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.sign_ins import SignIns

_NAMED = {"name": "calendar"}
# Longer than subject and issuer of any token that is accepted.
_USER_LENGTH: Final = 1_024


class SignInRoutes:
    """Begin a sign-in, and end one."""

    def __init__(self, fleet: Fleet, sign_ins: SignIns) -> None:
        self._fleet = fleet
        self._sign_ins = sign_ins

    @route(
        "POST", "/admin/servers/{name}/sign-in", merge=Merge.SAME, examples=_NAMED,
        example={"url": "https://issuer.example.test/authorize?client_id=…", "expires": "2027-01-31T08:10:00Z"},
    )  # fmt: skip
    async def sign_in(self, request: Request) -> Response:
        """Begin to sign in to an upstream.

        Returns:
            `url`, to be opened in a browser, and `expires`, until when.

        Query:
            principal: For whom, where each caller signs in for itself: the name of a key, or SUBJECT@ISSUER. Whoever
                opens the link is believed to be that caller.

        Errors:
            404: There is no such server.
            409: Nobody signs in to it, or there is nowhere to sign in; the reason is in `error`.
        """
        try:
            link = await self._wanted(request).begin()
        except SignInFailed as error:
            raise Refusal(409, str(error)) from None
        expires = datetime.fromtimestamp(link.expires_at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        # As it is: the id of a client in it may look like a secret.
        return JSONResponse({"url": link.url, "expires": expires}, headers={"cache-control": "no-store"})

    @route(
        "DELETE", "/admin/servers/{name}/sign-in", merge=Merge.SAME, examples=_NAMED, example={"signedOut": True}
    )  # fmt: skip
    async def sign_out(self, request: Request) -> Response:
        """Revoke the sign-in to an upstream, and forget it.

        Returns:
            `signedOut`: whether anybody was signed in.

        Query:
            principal: Whose sign-in, where each caller signs in for itself.

        Errors:
            404: There is no such server.
            409: Nobody signs in to it, or another process does not let go of it.
        """
        try:
            return JsonDocument({"signedOut": await self._sign_ins.sign_out(self._wanted(request))})
        except SignInFailed as error:
            raise Refusal(409, str(error)) from None

    def _wanted(self, request: Request) -> SignIn:
        """The sign-in to the server of a path.

        Raises:
            Refusal: There is none.
        """
        name = request.path_params["name"]
        config = self._fleet.servers.get(name)
        if config is None:
            raise missing("server", name)
        user = request.query_params.get("principal", "")
        per_user = self._fleet.links[name].per_user
        if per_user and not user:
            raise Refusal(409, f"each caller signs in to {name!r} for itself: say ?principal=NAME")
        if user and not per_user:
            raise Refusal(409, f"all callers share the sign-in to {name!r}: leave principal out")
        if len(user) > _USER_LENGTH or not user.isprintable():
            raise Refusal(409, "principal is no name of a caller")
        sign_in = self._sign_ins.of(name, config, user=user)
        if sign_in is None:
            raise Refusal(409, f"nobody signs in to server {name!r}: it has credentials of its own")
        return sign_in
