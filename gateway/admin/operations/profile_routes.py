"""`/admin/profiles` and `/admin/budget`: what each profile shows, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import rows
from gateway.admin.documents import JsonDocument
from gateway.admin.routes import Merge, route
from gateway.calls.profile_views import ProfileViews

_PROFILE: Final[dict[str, Any]] = {
    "name": "default", "path": "/mcp", "url": None, "disclosure": "auto", "dialect": "mcp", "servers": ["calendar"],
    "tools": 4, "listed": 4, "warnings": [], "misfits": {}, "weakened": [],
}  # fmt: skip
_BUDGET: Final = {
    "profile": "default", "maxTools": 100, "maxTokens": 20000, "tools": 7, "bytes": 4310, "tokens": 1061,
    "wrappers": [
        {"name": "calendar__list_events", "listed": True, "reason": "eager", "tokens": 282, "bytes": 1104},
    ],
}  # fmt: skip


class ProfileRoutes:
    """Shows profiles."""

    def __init__(self, views: ProfileViews, mcp_url: Callable[[], str | None]) -> None:
        """Answer about these.

        Args:
            views: The profiles.
            mcp_url: Where callers reach `/mcp`, where that is not beside `/admin`.
        """
        self._views = views
        self._mcp_url = mcp_url

    @route("GET", "/admin/profiles", merge=Merge.SAME, example={"profiles": [_PROFILE]})
    async def profiles(self, request: Request) -> Response:
        """Every profile with its warnings.

        Returns:
            `profiles`: what each shows; `url` of each, where it is served at another address than `/admin`.
        """
        url = self._mcp_url()
        shown = [
            {**row, "url": None if url is None else url.removesuffix("/mcp") + row["path"]}
            for row in rows.profile_rows(self._views)
        ]
        return JsonDocument({"profiles": shown})

    @route("GET", "/admin/budget", merge=Merge.SAME, example={"profiles": [_BUDGET]})
    async def budget(self, request: Request) -> Response:
        """What each profile's list costs, and why each wrapper is in it or not.

        Returns:
            `profiles`: tools, bytes and tokens of each.
        """
        views = []
        for name in [*self._views.profiles]:
            # One of them may be gone by the time that another is made.
            with suppress(KeyError):
                views.append(await self._views.prepared(name))
        return JsonDocument({"profiles": await anyio.to_thread.run_sync(rows.budget_rows, views)})
