"""`/admin/config` and `/admin/hooks`: the configuration as it is in use."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import merging
from gateway.admin.documents import JsonDocument
from gateway.admin.routes import Combined, Merge, route
from gateway.embeddings.tool_vectors import ToolVectors
from gateway.hooks.active import ActiveHooks
from gateway.reload import Reloader

_CONFIG: Final = {
    "file": "/etc/typegate/typegate.yaml", "loadedAt": 1801382400.5, "reloads": 1, "error": None, "warnings": [],
    "overlay": {"file": "/var/lib/typegate/overlays/0123456789abcdef.json", "changes": 0, "lasts": True, "error": None},
    "search": {"embeddings": "off", "error": None},
}  # fmt: skip
_HOOK: Final = {
    "name": "size", "mode": "transform", "phases": ["afterCall"], "priority": 100, "onError": "fail",
    "breaker": "closed", "lastError": None, "seconds": 0.5, "counts": {"runs": 7, "changed": 1, "failed": 0},
}  # fmt: skip
_HOOKS: Final = {
    "wrappers": [{"kind": "tool", "name": "calendar__list_events", "server": "calendar", "before": [],
                  "after": ["size"]}],
    "hooks": [_HOOK],
}  # fmt: skip


class ConfigRoutes:
    """Shows the state of the file, and what runs around calls."""

    def __init__(self, reloader: Reloader, tool_vectors: ToolVectors, hooks: ActiveHooks) -> None:
        self._reloader = reloader
        self._tool_vectors = tool_vectors
        self._hooks = hooks

    @route("GET", "/admin/config", merge=Merge.SAME, example=_CONFIG)
    async def config(self, request: Request) -> Response:
        """The state of the configuration file.

        Returns:
            `file`, `loadedAt` (seconds since 1970), `reloads`, `error`, `warnings`, `overlay` and `search`.
        """
        return JsonDocument({**self._reloader.row(), "search": self._tool_vectors.row()})

    @route("GET", "/admin/hooks", merge=Combined(merging.all_hooks), example=_HOOKS)
    async def hooks(self, request: Request) -> Response:
        """What runs on which wrapper, in order.

        Returns:
            `wrappers` with their hooks, and `hooks`; `warnings` where conditions match nothing.
        """
        hooks = self._hooks
        warnings = hooks.warnings()
        told = {"warnings": warnings} if warnings else {}
        return JsonDocument({"wrappers": hooks.wrapper_rows(), "hooks": hooks.rows(), **told})
