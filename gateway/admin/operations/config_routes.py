"""`/admin/config`, `/admin/hooks`, `/admin/overlay` and `/admin/notes`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.access.administrators import Administrator
from gateway.admin import routes
from gateway.admin.routes import ADMINISTRATOR, Combined, JsonDocument, Merge, Refusal, missing, read_body, route
from gateway.audit.audit_entries import format_time
from gateway.config.model import Config, NoteRequest
from gateway.config.overlay import MAX_CHANGES, Change, Edit
from gateway.embeddings.tool_vectors import ToolVectors
from gateway.fleet.operator_notes import NoteRefused, OperatorNotes
from gateway.fleet.reload import Reloader
from gateway.hooks.hook_loading import ActiveHooks
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import ConfigError
from registry.catalog.registry import Registry

log = logging.getLogger(__name__)

Check = Callable[[Config], None]


def administrator_name(request: Request) -> str:
    """Return the name of the administrator who sent the request."""
    administrator: Administrator | None = request.scope.get(ADMINISTRATOR)
    return administrator.name if administrator is not None else ""


def etag_of(document: Any) -> str:
    """Return the entity tag of a document (RFC 9110, section 8.8.3 "ETag")."""
    return f'"{hashlib.sha256(json_bytes.dumps(document)).hexdigest()[:32]}"'


def check_state(request: Request, tag: str) -> None:
    """Check the `If-Match` header of a change against the current state (RFC 9110, section 13.1.1 "If-Match").

    Args:
        tag: The entity tag of the current state.

    Raises:
        Refusal: The change is based on another state.
    """
    expected = request.headers.get("if-match")
    if expected is None or expected.strip() == "*" or tag in {each.strip() for each in expected.split(",")}:
        return
    text = "the state has changed since it was read; read it again, and repeat the change if it is still wanted"
    raise Refusal(412, text, headers={"etag": tag})


async def apply_edit(reloader: Reloader, edit: Edit, check: Check = lambda config: None, *, status: int = 409) -> None:
    """Apply an edit to the overlay: the changes that administrators have made on top of the configuration file.

    Args:
        reloader: Applies the resulting configuration.
        edit: The changes to add and to remove.
        check: Raises `ConfigError` for a configuration that cannot be used.
        status: The HTTP status if the configuration cannot be used: 400 for a wrong request, 409 for a conflict.

    Raises:
        Refusal: The resulting configuration cannot be used, or was applied but cannot be saved.
    """
    if len(edit.apply_to(reloader.overlay.changes)) > MAX_CHANGES:
        text = f"there are {MAX_CHANGES} changes already; move permanent ones to the configuration file"
        raise Refusal(status, text)
    try:
        await reloader.change(edit, check)
    except ConfigError as error:
        raise Refusal(status, error.message) from None
    if reloader.overlay.unsaved:
        what = "the change is applied, but will be lost when the gateway ends"
        raise Refusal(500, f"{what}: {reloader.overlay.error}; make the directory writable, and repeat the change")


_CONFIG: Final = {
    "file": "/etc/typegate/typegate.yaml",
    "loadedAt": 1801382400.5,
    "reloads": 1,
    "error": None,
    "warnings": [],
    "traceUrl": "https://tracing.example.test/trace/{traceId}",
    "overlay": {"file": "/var/lib/typegate/overlays/0123456789abcdef.json", "changes": 0, "lasts": True, "error": None},
    "search": {"embeddings": "off", "error": None},
}
_HOOK: Final = {
    "name": "size",
    "mode": "transform",
    "phases": ["afterCall"],
    "priority": 100,
    "onError": "fail",
    "breaker": "closed",
    "lastError": None,
    "seconds": 0.5,
    "counts": {"runs": 7, "changed": 1, "failed": 0},
}
_HOOKS: Final = {
    "wrappers": [
        {"kind": "tool", "name": "calendar__list_events", "server": "calendar", "before": [], "after": ["size"]}
    ],
    "hooks": [_HOOK],
}


class ConfigRoutes:
    """Shows the state of the configuration and the hooks."""

    def __init__(self, reloader: Reloader, tool_vectors: ToolVectors, hooks: ActiveHooks) -> None:
        self._reloader = reloader
        self._tool_vectors = tool_vectors
        self._hooks = hooks

    @route("GET", "/admin/config", merge=Merge.SAME, example=_CONFIG)
    async def config(self, request: Request) -> Response:
        """Return the state of the configuration file.

        Returns:
            `file`, `loadedAt` (seconds since 1970), `reloads`, `error`, `warnings`, `traceUrl`, `overlay` and `search`.
        """
        return JsonDocument({**self._reloader.row(), "search": self._tool_vectors.row()})

    @route("GET", "/admin/hooks", merge=Combined(routes.all_hooks), example=_HOOKS)
    async def hooks(self, request: Request) -> Response:
        """Return all hooks, and the order in which hooks run for each tool, prompt and resource.

        Returns:
            `wrappers`: the tools, prompts and resources with hooks, and the names of their hooks; `hooks`: the state of
            each hook; `warnings`: the conditions of hooks that match nothing.
        """
        hooks = self._hooks
        warnings = hooks.warnings()
        optional = {"warnings": warnings} if warnings else {}
        return JsonDocument({"wrappers": hooks.wrapper_rows(), "hooks": hooks.rows(), **optional})


NOT_SHOWN: Final = "(not shown)"
"""The placeholder for a value that is not shown."""
SECRET_PARTS: Final = ("headers", "env")
"""The keys of a server's entry whose values are not shown, because the values are usually credentials."""
_EXAMPLE: Final = {
    "changes": [
        {
            "id": "3f2a9c01b4d7",
            "kind": "server_disabled",
            "target": "calendar",
            "by": "admin",
            "at": "2027-01-31T08:00:00.000Z",
            "before": {"state": "in use"},
            "after": {"state": "disabled"},
        }
    ],
    "file": "/var/lib/typegate/overlays/0123456789abcdef.json",
    "lasts": True,
    "error": None,
}


class OverlayRoutes:
    """Shows changes of administrators as differences from the configuration, and reverts them."""

    def __init__(self, reloader: Reloader) -> None:
        self._reloader = reloader

    @route("GET", "/admin/overlay", merge=Merge.SAME, rows="changes", filters=("q",), example=_EXAMPLE)
    async def overlay(self, request: Request) -> Response:
        """Return the changes that administrators have made on top of the configuration file.

        Returns:
            `changes`: id, kind, target, by, at, `before` and `after` of each; `file`: where the changes are stored;
            `lasts`: whether the changes survive a restart; `error`: why the changes do not survive, or null. The values
            of headers and environment variables are not shown.
        """
        overlay = self._reloader.overlay
        rows = [_change_row(each, self._reloader.base) for each in overlay.changes]
        return JsonDocument(
            {
                "changes": rows,
                "file": str(overlay.path) if overlay.path is not None else None,
                "lasts": overlay.lasts,
                "error": overlay.error,
            },
            headers={"etag": self._tag()},
        )

    @route("DELETE", "/admin/overlay", merge=Merge.CHANGE, role="admin", example={"reverted": ["3f2a9c01b4d7"]})
    async def revert_all(self, request: Request) -> Response:
        """Revert all changes, so that the configuration file alone applies.

        Returns:
            `reverted`: the ids of the changes.

        Errors:
            409: Without the changes the configuration cannot be used.
            412: The changes no longer match the entity tag in `If-Match`.
        """
        return await self._revert(request, self._reloader.overlay.changes)

    @route(
        "DELETE",
        "/admin/overlay/{id}",
        merge=Merge.CHANGE,
        role="admin",
        examples={"id": "3f2a9c01b4d7"},
        example={"reverted": ["3f2a9c01b4d7"]},
    )
    async def revert(self, request: Request) -> Response:
        """Revert one change.

        Returns:
            `reverted`: the ids of the change and of later changes to a server that the change has added.

        Errors:
            404: The change does not exist.
            409: Without the change the configuration cannot be used.
            412: The changes no longer match the entity tag in `If-Match`.
        """
        change_id = request.path_params["id"]
        chosen = [each for each in self._reloader.overlay.changes if each.id == change_id]
        if not chosen:
            raise missing("change", change_id)
        if chosen[0].kind == "server_added":
            server = chosen[0].target
            chosen = [
                each
                for each in self._reloader.overlay.changes
                if each is chosen[0]
                or (
                    each.kind in ("server_disabled", "tool_disabled", "tool_set")
                    and (each.server or each.target) == server
                    and server not in self._reloader.base.servers
                )
            ]
        return await self._revert(request, chosen)

    async def _revert(self, request: Request, chosen: Sequence[Change]) -> Response:
        check_state(request, self._tag())
        reverted = {each.id for each in chosen}
        await apply_edit(self._reloader, Edit(remove=frozenset(reverted)))
        for each in chosen:
            log.warning("change reverted: %s %s", each.kind, each.target)
        return JsonDocument({"reverted": sorted(reverted)})

    def _tag(self) -> str:
        return etag_of([each.id for each in self._reloader.overlay.changes])


def _change_row(change: Change, base: Config) -> dict[str, Any]:
    alias = change.server or change.target
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    configured = base.servers.get(alias)
    match change.kind:
        case "server_added" | "server_removed":
            if configured is not None:
                before = redact_entry(configured.model_dump(mode="json", by_alias=True, exclude_unset=True))
            after = redact_entry(change.entry) if change.kind == "server_added" else None
        case "server_disabled" | "tool_disabled":
            before, after = {"state": "in use"}, {"state": "disabled"}
        case "tool_set":
            tool = configured.tools.get(change.tool) if configured is not None else None
            before = {name: getattr(tool, name, None) for name in change.entry}
            after = change.entry
        case "key_added":
            after = {name: value for name, value in change.entry.items() if name != "keyHash"}
        case "key_revoked":
            before, after = {"state": "good"}, {"state": "expired"}
    return {
        "id": change.id,
        "kind": change.kind,
        "target": change.target,
        "by": change.by,
        "at": format_time(change.at_s),
        "before": before,
        "after": after,
    }


def redact_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a server's entry without the values of parts that may contain secrets, such as headers and variables."""
    return {
        name: dict.fromkeys(value, NOT_SHOWN) if name in SECRET_PARTS and isinstance(value, dict) else value
        for name, value in entry.items()
    }


_ID: Final = "88b4893238fd0f71"
_NOTE: Final = {
    "id": _ID,
    "server": "calendar",
    "tool": "list_events",
    "text": "Events before 2020 are missing.",
    "failure": False,
    "until": None,
}


class NoteRoutes:
    """Shows, adds and removes notes about tools."""

    def __init__(self, notes: OperatorNotes, registry: Registry) -> None:
        self._notes = notes
        self._registry = registry

    @route("GET", "/admin/notes", merge=Merge.SAME, rows="notes", filters=("server", "q"), example={"notes": [_NOTE]})
    async def notes(self, request: Request) -> Response:
        """Return the operators' notes about tools.

        Returns:
            `notes`: id, server, tool, text, failure and until of each.
        """
        return JsonDocument({"notes": self._notes.rows()})

    @route("POST", "/admin/notes", merge=Merge.CHANGE, status=201, body=NoteRequest, example={"id": _ID})
    async def add_note(self, request: Request) -> Response:
        """Attach a note to the current definition of a tool.

        Returns:
            `id`: the id of the note.

        Errors:
            400: The note is invalid.
            404: The wrapper does not exist.
        """
        requested = await read_body(request, NoteRequest)
        wrapper = self._registry.catalog.by_name.get(requested.wrapper)
        if wrapper is None:
            raise missing("wrapper", requested.wrapper)
        try:
            note_id = self._notes.add(wrapper, requested.text, of_failure=requested.failure, lasts_s=requested.seconds)
        except NoteRefused as error:
            raise Refusal(400, str(error)) from None
        return JsonDocument({"id": note_id}, 201)

    @route("DELETE", "/admin/notes/{id}", merge=Merge.CHANGE, examples={"id": _ID}, example={"removed": _ID})
    async def remove_note(self, request: Request) -> Response:
        """Remove a note.

        Returns:
            `removed`: the id of the note.

        Errors:
            404: The note does not exist.
        """
        note_id = request.path_params["id"]
        if not self._notes.remove(note_id):
            raise missing("note", note_id)
        return JsonDocument({"removed": note_id})
