"""`/admin/overlay`: what administrators have changed over the configuration, and how it is taken back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.changing import change, check_state, etag_of
from gateway.admin.documents import JsonDocument, missing
from gateway.admin.routes import Merge, route
from gateway.audit.reading import as_time
from gateway.config.model import Config
from gateway.config.overlay import Change, Edit
from gateway.reload import Reloader

log = logging.getLogger(__name__)

_HIDDEN: Final = "(not shown)"
# Their values are credentials more often than not.
_SECRET_PARTS: Final = ("headers", "env")
_EXAMPLE: Final = {
    "changes": [
        {
            "id": "3f2a9c01b4d7", "kind": "server_disabled", "target": "calendar", "by": "admin",
            "at": "2027-01-31T08:00:00.000Z", "before": {"state": "in use"}, "after": {"state": "disabled"},
        }
    ],
    "file": "/var/lib/typegate/overlays/0123456789abcdef.json", "lasts": True, "error": None,
}  # fmt: skip


class OverlayRoutes:
    """Shows every change as a difference from the configuration, and takes it back."""

    def __init__(self, reloader: Reloader) -> None:
        self._reloader = reloader

    @route("GET", "/admin/overlay", merge=Merge.SAME, rows="changes", filters=("q",), example=_EXAMPLE)
    async def overlay(self, request: Request) -> Response:
        """What administrators have changed, and the configuration file does not say.

        Returns:
            `changes`: id, kind, target, by, at, and `before` and `after` of each; `file`: where they are kept; `lasts`:
            whether they are there after a restart, and `error` if not. Values of headers and variables are not shown.
        """
        overlay = self._reloader.overlay
        shown = [_row(each, self._reloader.base) for each in overlay.changes]
        return JsonDocument(
            {
                "changes": shown,
                "file": str(overlay.path) if overlay.path is not None else None,
                "lasts": overlay.lasts,
                "error": overlay.error,
            },
            headers={"etag": self._tag()},
        )

    @route("DELETE", "/admin/overlay", merge=Merge.CHANGE, role="admin", example={"reverted": ["3f2a9c01b4d7"]})
    async def revert_all(self, request: Request) -> Response:
        """Take everything back: what the configuration file says is in use.

        Returns:
            `reverted`: the ids of the changes.

        Errors:
            409: Without them the configuration cannot be used.
            412: They are not those that `If-Match` says.
        """
        return await self._revert(request, self._reloader.overlay.changes)

    @route(
        "DELETE", "/admin/overlay/{id}", merge=Merge.CHANGE, role="admin", examples={"id": "3f2a9c01b4d7"},
        example={"reverted": ["3f2a9c01b4d7"]},
    )  # fmt: skip
    async def revert(self, request: Request) -> Response:
        """Take one change back.

        Returns:
            `reverted`: its id, and those of changes to what it has added.

        Errors:
            404: There is no such change.
            409: Without it the configuration cannot be used.
            412: The changes are not those that `If-Match` says.
        """
        wanted = request.path_params["id"]
        chosen = [each for each in self._reloader.overlay.changes if each.id == wanted]
        if not chosen:
            raise missing("change", wanted)
        if chosen[0].kind == "server_added":
            named = chosen[0].target
            chosen = [
                each for each in self._reloader.overlay.changes
                if each is chosen[0] or (each.kind in ("server_disabled", "tool_disabled")
                                         and (each.server or each.target) == named
                                         and named not in self._reloader.base.servers)
            ]  # fmt: skip
        return await self._revert(request, chosen)

    async def _revert(self, request: Request, chosen: Sequence[Change]) -> Response:
        check_state(request, self._tag())
        gone = {each.id for each in chosen}
        await change(self._reloader, Edit(remove=frozenset(gone)))
        for each in chosen:
            log.warning("a change of an administrator is taken back: %s %s", each.kind, each.target)
        return JsonDocument({"reverted": sorted(gone)})

    def _tag(self) -> str:
        return etag_of([each.id for each in self._reloader.overlay.changes])


def _row(change: Change, base: Config) -> dict[str, Any]:
    alias = change.server or change.target
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    configured = base.servers.get(alias)
    match change.kind:
        case "server_added" | "server_removed":
            if configured is not None:
                before = _shown(configured.model_dump(mode="json", by_alias=True, exclude_unset=True))
            after = _shown(change.entry) if change.kind == "server_added" else None
        case "server_disabled" | "tool_disabled":
            before, after = {"state": "in use"}, {"state": "disabled"}
        case "key_added":
            after = {name: value for name, value in change.entry.items() if name != "keyHash"}
        case "key_revoked":
            before, after = {"state": "good"}, {"state": "expired"}
    return {
        "id": change.id, "kind": change.kind, "target": change.target, "by": change.by, "at": as_time(change.at_s),
        "before": before, "after": after,
    }  # fmt: skip


def _shown(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        name: dict.fromkeys(value, _HIDDEN) if name in _SECRET_PARTS and isinstance(value, dict) else value
        for name, value in entry.items()
    }
