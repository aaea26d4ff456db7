"""`/admin/quarantine` and `/admin/failures`: what is wrong with what servers list, and with calls."""

from __future__ import annotations

from typing import Any, Final

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import merging, rows
from gateway.admin.documents import JsonDocument
from gateway.admin.routes import Combined, route
from gateway.calls.call_stats import CallStats
from registry.catalog.catalog import Catalog
from registry.catalog.store import Registry

_QUARANTINED: Final = {
    "server": "calendar", "kind": "tools", "tool": "move_event", "status": "quarantined",
    "code": "schema_not_an_object", "detail": "the input schema is not an object",
}  # fmt: skip
_FAILURES: Final = {
    "failures": [
        {"wrapper": "calendar__list_events", "server": "calendar", "tool": "list_events", "kind": "tool_error",
         "detail": "quota", "recent": 4, "sessions": 2, "total": 9, "lastSecondsAgo": 3.5, "flagged": True}
    ],
    "repaired": [{"wrapper": "calendar__list_events", "calls": 3, "repairs": {"number_from_text": 3}}],
}  # fmt: skip


class FaultRoutes:
    """Shows faults."""

    def __init__(self, registry: Registry, call_stats: CallStats) -> None:
        self._registry = registry
        self._call_stats = call_stats
        self._flagged: tuple[Catalog, list[dict[str, Any]]] | None = None

    @route(
        "GET", "/admin/quarantine", merge=Combined(merging.all_quarantine), flushes=True, rows="quarantine",
        filters=("server", "status", "q"), example={"quarantine": [_QUARANTINED]},
    )  # fmt: skip
    async def quarantine(self, request: Request) -> Response:
        """What is not shown, was repaired, is configured in vain, was sent unchecked, or seems to instruct a model.

        Returns:
            `quarantine`: server, kind, tool, status, code and detail of each; score too, from 0 to 1, of what is
            flagged for its texts.
        """
        catalog = self._registry.catalog
        if self._flagged is None or self._flagged[0] is not catalog:
            # In a thread, and once for each catalog: every text of every server is read for it.
            self._flagged = catalog, await anyio.to_thread.run_sync(rows.flagged_rows, catalog)
        unchecked = rows.unchecked_rows(self._call_stats.failure_rows())
        return JsonDocument({"quarantine": [*rows.quarantine_rows(catalog), *self._flagged[1], *unchecked]})

    @route("GET", "/admin/failures", merge=Combined(merging.all_failures), flushes=True, example=_FAILURES)
    async def failures(self, request: Request) -> Response:
        """Failures that come again and again, and repaired calls.

        Returns:
            `failures` by class, and `repaired` by wrapper.
        """
        return JsonDocument({"failures": self._call_stats.failure_rows(), "repaired": self._call_stats.repair_rows()})
