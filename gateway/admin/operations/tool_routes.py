"""`/admin/wrappers`: every tool as it is shown, and which of them administrators disable."""

from __future__ import annotations

import logging
from typing import Final

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import rows
from gateway.admin.changing import change, who
from gateway.admin.documents import JsonDocument, missing
from gateway.admin.routes import Merge, route
from gateway.calls.profile_views import ProfileViews
from gateway.config.overlay import Change, Edit
from gateway.reload import Reloader
from registry.catalog.store import Registry
from registry.views.profile import DEFAULT_PROFILE
from registry.views.view import View

log = logging.getLogger(__name__)

_NAME: Final = "calendar__list_events"
_ROW: Final = {
    "name": _NAME, "server": "calendar", "tool": "list_events", "epoch": 1, "digest": "33d3d3e2c85443f2",
    "status": "ready", "origin": "live", "listed": True, "tokens": 27, "reason": None, "disclosure": "eager",
    "arguments": [],
}  # fmt: skip
_NAMED: Final = {"name": _NAME}


class ToolRoutes:
    """Shows tools, and changes in the overlay whether they are used."""

    def __init__(self, *, views: ProfileViews, registry: Registry, reloader: Reloader) -> None:
        self._views = views
        self._registry = registry
        self._reloader = reloader

    @route(
        "GET", "/admin/wrappers", merge=Merge.SAME, rows="wrappers", filters=("server", "status", "q"),
        example={"wrappers": [_ROW]},
    )  # fmt: skip
    async def wrappers(self, request: Request) -> Response:
        """Every registered wrapper.

        Returns:
            `wrappers`: name, server, tool, epoch, digest, status, origin, listed, tokens, reason, disclosure and
            arguments of each.

        Query:
            server: Only those of this server.
            profile: As this profile shows them.

        Errors:
            404: There is no such profile.
        """
        profile = request.query_params.get("profile", DEFAULT_PROFILE)
        view = await self._view(profile)
        # In a thread, like every list that grows with the tools: what each costs a model is counted, and calls wait.
        shown = await anyio.to_thread.run_sync(rows.wrapper_rows, view)
        return JsonDocument({"wrappers": shown})

    @route(
        "GET", "/admin/wrappers/{name}", merge=Merge.SAME, examples=_NAMED,
        example={**_ROW, "definition": {"name": _NAME, "inputSchema": {"type": "object"}}},
    )  # fmt: skip
    async def wrapper(self, request: Request) -> Response:
        """One wrapper with its definition, as a profile shows it.

        Returns:
            Its row, and `definition`.

        Query:
            profile: As this profile shows it.

        Errors:
            404: There is no such wrapper, or no such profile.
        """
        profile, name = request.query_params.get("profile", DEFAULT_PROFILE), request.path_params["name"]
        view = await self._view(profile)
        entry = view.entry(name)
        if entry is None:
            raise missing(f"wrapper in the profile {profile} with the name", name)
        return JsonDocument({**rows.wrapper_row(entry, view), "definition": entry.definition})

    @route(
        "POST", "/admin/wrappers/{name}/disable", merge=Merge.CHANGE, examples=_NAMED,
        example={"name": _NAME, "disabled": True},
    )  # fmt: skip
    async def disable_tool(self, request: Request) -> Response:
        """Take a tool out of use at once: it is neither listed nor callable, until it is enabled again.

        Returns:
            `name` and `disabled`.

        Errors:
            404: There is no such wrapper.
            409: It cannot be disabled.
        """
        name, disabled = self._named(request)
        if not disabled:
            wrapper = self._registry.catalog.resolve(name)
            added = Change(
                kind="tool_disabled", target=wrapper.name, server=wrapper.server, tool=wrapper.tool, by=who(request)
            )
            await change(self._reloader, Edit(add=(added,)))
            log.warning("tool disabled", extra={"wrapper": name})
        return JsonDocument({"name": name, "disabled": True})

    @route(
        "POST", "/admin/wrappers/{name}/enable", merge=Merge.CHANGE, examples=_NAMED,
        example={"name": _NAME, "disabled": False},
    )  # fmt: skip
    async def enable_tool(self, request: Request) -> Response:
        """Take a tool into use again that an administrator has disabled.

        Returns:
            `name` and `disabled`.

        Errors:
            404: There is no such wrapper.
            409: It cannot be enabled.
        """
        name, disabled = self._named(request)
        if disabled:
            await change(self._reloader, Edit(remove=disabled))
            log.warning("tool enabled", extra={"wrapper": name})
        return JsonDocument({"name": name, "disabled": False})

    async def _view(self, profile: str) -> View:
        """What a profile shows.

        Raises:
            Refusal: There is no such profile.
        """
        try:
            return await self._views.prepared(profile)
        except KeyError:
            raise missing("profile", profile) from None

    def _named(self, request: Request) -> tuple[str, frozenset[str]]:
        """The wrapper of a path, and the changes that disable it.

        Raises:
            Refusal: There is no such wrapper.
        """
        name = request.path_params["name"]
        of_tools = (each for each in self._reloader.overlay.changes if each.kind == "tool_disabled")
        disabled = frozenset(each.id for each in of_tools if each.target == name)
        if not disabled and self._registry.catalog.get(name) is None:
            raise missing("wrapper", name)
        return name, disabled
