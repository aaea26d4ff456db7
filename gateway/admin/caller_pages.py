"""`/me`: the page on which callers see their tools, their calls and their sign-ins, and how to connect a host."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.access.principal import Authenticator, Principal, Refusal
from gateway.admin import routes
from gateway.admin.call_history import CallHistory
from gateway.admin.operations.page_routes import page_response
from gateway.admin.pages import CALLERS_PATH, SAFETY
from gateway.admin.routes import JsonDocument, check_length, read_body
from gateway.admin.rows import DESCRIPTION_CHARS
from gateway.audit.log_reader import Filter
from gateway.audit.recording import Audit
from gateway.calls.profile_views import ProfileViews
from gateway.config.section import Section
from gateway.config.upstream_types.http_config import CredentialsConfig
from gateway.fleet.fleet import Fleet
from gateway.process.tasks import run_in_thread
from gateway.upstream.oauth.account_linking import user_of
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.oauth.token_store import KeyedLocks
from gateway.upstream.upstream_credentials import SignInFailed
from registry.catalog.overrides import hints_of
from registry.schema.display_text import excerpt
from registry.views.profile import DEFAULT_PROFILE
from registry.views.view import View

log = logging.getLogger(__name__)

PATH: Final = CALLERS_PATH
STATE_PATH: Final = "/me/state"
SIGN_IN_PATH: Final = "/me/sign-in"
# The files of the folder `page` that `/me` needs. The other files of this folder are for administrators.
_FILES: Final = (
    *("me.js", "dom.js", "hosts.js", "parts.js", "result.js", "theme.js"),
    *("style.css", "icon.svg"),
)
# Maximum number of waiting audit log searches per caller: people with the same key may load the page concurrently.
_MAX_SEARCHES: Final = 16
# The number of shown calls: about one screen.
_MAX_CALLS: Final = 50
# The members of an audit entry that a caller sees: what was called and how the call ended, without network addresses
# and names of other callers.
_SHOWN: Final = ("time", "event", "wrapper", "name", "server", "method", "ms", "outcome", "reason", "rule", "hook")
_RANGE: Final = "24h"
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class SignInRequest(Section):
    """The body of `POST /me/sign-in`."""

    server: str = Field(min_length=1, examples=["calendar"])
    """The server to which the caller signs in."""


class CallerPages:
    """The page at `/me` and its data. Each request for data is authenticated with the caller's own key or token.

    Attributes:
        by_path: The handlers by path.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        views: ProfileViews,
        fleet: Fleet,
        sign_ins: SignIns,
        audit: Audit,
        history: CallHistory,
    ) -> None:
        self._authenticator = authenticator
        self._views = views
        self._fleet = fleet
        self._sign_ins = sign_ins
        self._audit = audit
        self._history = history
        self._searches = KeyedLocks()
        files = {f"{PATH}/page/{name}": partial(_file, name=name) for name in _FILES}
        self.by_path: dict[str, Handler] = {
            PATH: partial(_file, name="me.html"),
            **files,
            STATE_PATH: guarded(self._for_caller(self._state)),
            SIGN_IN_PATH: guarded(self._for_caller(self._sign_in)),
        }

    def _for_caller(self, handler: Callable[[Request, Principal], Awaitable[Response]]) -> Handler:
        async def for_caller(request: Request) -> Response:
            return await handler(request, await self._caller(request))

        return for_caller

    async def _caller(self, request: Request) -> Principal:
        """Return the caller who sent a request; raise `Refusal` without a valid key or token."""
        result = self._authenticator.principal(request.headers.get("authorization"))
        if not isinstance(result, Principal | Refusal):
            result = await result.verify()
        if isinstance(result, Principal):
            return result
        peer = ":".join(map(str, request.client)) if request.client is not None else ""
        if result.status == routes.UNAVAILABLE:
            raise routes.Refusal(result.status, result.description or "the token cannot be verified at present")
        if request.headers.get("authorization"):
            self._audit.credentials_refused(request.url.path, peer, result.error or "not valid")
        text = result.description or "enter the API key or the access token that your host uses"
        raise routes.Refusal(result.status, text, headers={"www-authenticate": "Bearer"})

    async def _state(self, request: Request, caller: Principal) -> Response:
        profile = request.query_params.get("profile", DEFAULT_PROFILE)
        names = [name for name in self._views.profiles if caller.may_enter(name)]
        if profile not in names:
            if request.query_params.get("profile") or not names:
                raise routes.missing("profile", profile)
            profile = names[0]
        view = await self._views.prepared(profile, caller)
        await self._sign_ins.load_users(self._fleet.servers)
        calls = await self._latest_calls(caller)
        figures = await self._history.document(_RANGE, only=("caller", caller.name))
        return JsonDocument(
            {
                "name": caller.name,
                "groups": sorted(caller.groups),
                "scopes": sorted(caller.scopes),
                "needsKey": self._authenticator.required,
                "profile": profile,
                "profiles": [
                    {"name": name, "path": "/mcp" if name == DEFAULT_PROFILE else f"/mcp/{name}"} for name in names
                ],
                "tools": await run_in_thread(partial(_tool_rows, view)),
                "servers": self._server_rows(caller, view),
                "calls": calls,
                "isRecorded": self._audit.on,
                "lastDay": figures["total"],
            }
        )

    async def _latest_calls(self, caller: Principal) -> list[dict[str, Any]] | None:
        """Return the latest calls; None if the audit log cannot be read. Raise `Refusal` if too many searches wait."""
        # Run one search at a time for each caller, because a search of a large log takes up to a second.
        searching = self._searches.get_lock(caller.name)
        if searching.statistics().tasks_waiting >= _MAX_SEARCHES:
            raise routes.Refusal(429, "too many pages are loading; try again in a moment", headers={"retry-after": "5"})
        async with searching:
            try:
                page = await self._audit.page(Filter(principal=caller.name, event="call"), limit=_MAX_CALLS)
            except OSError as error:
                log.warning("calls of a caller not read: %s", error.strerror or type(error).__name__)
                return None
        return [{name: row[name] for name in _SHOWN if name in row} for row in page.rows]

    def _server_rows(self, caller: Principal, view: View) -> list[dict[str, Any]]:
        """Return a row for each server that the caller may use and to which each caller signs in separately."""
        rows = []
        for alias, config in self._fleet.servers.items():
            if alias not in view.servers or self._own_sign_in(alias, caller) is None:
                continue
            users = {row["principal"]: row for row in self._sign_ins.user_rows(alias, config)}
            row = users.get(user_of(caller))
            rows.append(
                {
                    "name": alias,
                    "displayName": config.display_name or alias,
                    "signedIn": row is not None,
                    "since": row["since"] if row is not None else None,
                }
            )
        return rows

    def _own_sign_in(self, alias: str, caller: Principal) -> SignIn | None:
        config = self._fleet.servers.get(alias)
        if not isinstance(config, CredentialsConfig) or config.sign_in is None:
            return None
        if not (config.sign_in.per_user and config.sign_in.interactive):
            return None
        return self._sign_ins.get(alias, config, user=user_of(caller))

    async def _sign_in(self, request: Request, caller: Principal) -> Response:
        """Handle POST: return a link with which the caller signs in to a server. Handle DELETE: sign the caller out."""
        if request.method not in ("POST", "DELETE"):
            raise routes.Refusal(405, "expected POST or DELETE", headers={"allow": "POST, DELETE"})
        is_post = request.method == "POST"
        name = (await read_body(request, SignInRequest)).server if is_post else request.query_params.get("server", "")
        check_length("server", name)
        names = [name for name in self._views.profiles if caller.may_enter(name)]
        is_shown = any([name in (await self._views.prepared(each, caller)).servers for each in names])
        sign_in = self._own_sign_in(name, caller) if is_shown else None
        if sign_in is None:
            raise routes.missing("server to sign in to with the name", name)
        try:
            if not is_post:
                return JsonDocument({"signedOut": await self._sign_ins.sign_out(sign_in)})
            link = await sign_in.create_link_for_caller()
        except SignInFailed as error:
            raise routes.Refusal(409, str(error)) from None
        # Do not use `JsonDocument`: it could mistake the ticket in the URL for a secret, and remove the ticket.
        return JSONResponse({"url": link.url})


def guarded(handler: Handler) -> Handler:
    """Return a handler that accepts requests only from the page at `/me`, and adds this page's security headers."""

    async def guarded_handler(request: Request) -> Response:
        try:
            _check_origin(request)
            response = await handler(request)
        except routes.Refusal as error:
            response = error.response()
        if isinstance(response, JsonDocument):
            await response.write()
        response.headers.update(SAFETY)
        return response

    return guarded_handler


def _check_origin(request: Request) -> None:
    """Check that the page at `/me` sent a request, and not the page of another site.

    Raises:
        routes.Refusal: Another site sent the request.
    """
    # If no credentials are configured, every request is from the local caller, even if another site has made the
    # browser send it.
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin", "").lower().partition("://")[2]
    if site not in ("same-origin", "none") or (origin and origin != request.headers.get("host", "").lower()):
        raise routes.Refusal(403, "this request has to come from the page of callers at the same address")


async def _file(request: Request, name: str) -> Response:
    response = page_response(request, name)
    for header, value in SAFETY.items():
        response.headers.setdefault(header, value)
    return response


def _tool_rows(view: View) -> list[dict[str, Any]]:
    return [
        {
            "name": entry.name,
            "server": entry.wrapper.server,
            "description": excerpt(str(entry.definition.get("description") or ""), DESCRIPTION_CHARS),
            "hints": dict(hints_of(entry.definition.get("annotations"))),
            "listed": entry.listed,
            "decision": "allow" if (rules := view.call_rules.get(entry.name)) is None else rules.usual_effect,
        }
        for entry in view.for_models
    ]
