"""`/admin/try`: one call of a tool, made as a host would make it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from gateway import __version__, wire
from gateway.access.oauth.claims import Rejected
from gateway.access.principal import LOCAL
from gateway.access.quotas import Quotas
from gateway.admin.changing import who
from gateway.admin.documents import JsonDocument, Refusal, missing, read_body
from gateway.admin.policy_explained import Question, principal_in
from gateway.admin.routes import Merge, route
from gateway.calls.profile_views import ProfileViews
from gateway.config.auth import AuthConfig
from gateway.config.section import Section
from gateway.downstream.messages import McpRequest
from gateway.downstream.server import McpServer
from gateway.protocol import envelope
from registry.views.profile import DEFAULT_PROFILE

# Of progress and log messages that come before the result; a person reads no more of them.
_MAX_MESSAGES: Final = 100
_EXAMPLE: Final = {
    "request": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "calendar__list_events"}},
    "response": {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "none"}]}},
    "messages": [], "ms": 12.5, "bytes": 96,
}  # fmt: skip


class TryRequest(Section):
    """The body of `POST /admin/try`."""

    wrapper: str = Field(min_length=1, examples=["calendar__list_events"])
    """The tool, by its wrapper name; or one of the gateway's own tools."""
    arguments: Any = Field(default_factory=dict, examples=[{"limit": 3}])
    """Its arguments, as a model would send them."""
    profile: str = Field(default=DEFAULT_PROFILE, examples=["default"])
    """The profile through which it is called."""
    principal: str = Field(default=LOCAL.name, min_length=1, examples=["local"])
    """Whose rights the call has: the name of a key, SUBJECT@ISSUER, or local."""


class TryRoutes:
    """Calls tools for administrators, by the same way as for everybody."""

    def __init__(
        self, *, server: McpServer, views: ProfileViews, quotas: Quotas, auth: Callable[[], AuthConfig]
    ) -> None:
        """Call with these.

        Args:
            server: Answers requests of callers.
            views: The profiles.
            quotas: What each caller uses.
            auth: The keys, which say who is in which groups.
        """
        self._server = server
        self._views = views
        self._quotas = quotas
        self._auth = auth

    @route("POST", "/admin/try", merge=Merge.HERE, body=TryRequest, example=_EXAMPLE)
    async def try_tool(self, request: Request) -> Response:
        """Call a tool, with the same checks, rules, hooks and words as for a host's call.

        Returns:
            `request` and `response`: the JSON-RPC messages as they were exchanged; `messages` that came before the
            response; `ms` and `bytes` of the response.

        Errors:
            400: The body is wrong.
            404: There is no such profile, or it is not open to the principal.
        """
        wanted = await read_body(request, TryRequest)
        try:
            principal = principal_in(Question(principal=wanted.principal, name=wanted.wrapper), self._auth())
        except Rejected as error:
            raise Refusal(400, f"principal: {error.refusal.description}") from None
        if wanted.profile not in self._views.profiles or not principal.may_enter(wanted.profile):
            raise missing(f"profile for {principal.name} with the name", wanted.profile)
        meta = envelope({"name": "typegate-admin", "version": __version__})
        params = {"name": wanted.wrapper, "arguments": wanted.arguments, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        messages: list[dict[str, Any]] = []

        def emit(sent: dict[str, Any]) -> None:
            if len(messages) < _MAX_MESSAGES:
                messages.append(sent)

        # What is called must not change what is shown of it.
        shown = wire.loads(wire.dumps(message))
        began_s = time.perf_counter()
        response = await self._server.answer(
            McpRequest(
                id=1,
                method="tools/call",
                params=params,
                modern=True,
                principal=principal,
                account=self._quotas.account(principal),
                emit=emit,
                peer=f"admin:{who(request)}",
                profile=wanted.profile,
            )
        )
        took_s, body = time.perf_counter() - began_s, response.body
        return JsonDocument(
            {
                "request": shown,
                "response": wire.loads(body),
                "messages": messages,
                "ms": round(took_s * 1000, 2),
                "bytes": len(body),
            }
        )
