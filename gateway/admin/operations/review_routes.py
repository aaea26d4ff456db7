"""`/admin/changes` and `/admin/decisions`: review definitions that differ from those in the lock file."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import anyio
from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.operations.config_routes import administrator_name
from gateway.admin.routes import JsonDocument, Merge, Refusal, missing, read_body, route
from gateway.config.section import Section, fault
from gateway.fleet.fleet import Fleet
from gateway.fleet.listing_lock import MIN_DIGEST_CHARS, ChangedAgain, NotApproved
from gateway.process.tasks import run_in_thread
from registry.catalog.names import NAME_SEPARATOR
from registry.lock.review import ChangeClass, ChangedKind
from registry.schema.display_text import clean

_CHANGES: Final = {
    "file": "/etc/typegate/typegate.lock",
    "changes": [
        {
            "server": "files",
            "kind": "tool",
            "name": "read_file",
            "was": None,
            "wrapper": "files__read_file",
            "classes": ["text"],
            "state": "held",
            "heldFor": ["text"],
            "difference": ["description"],
            "before": {"name": "read_file", "description": "Reads a file."},
            "after": {"name": "read_file", "description": "Reads any file."},
            "digest": "5f0c" * 16,
            "since": 1801382400.5,
            "suspicion": 0.1,
            "flagged": False,
            "flags": [],
            "rejected": None,
            "flapping": False,
            "advice": None,
        }
    ],
}


class ApproveRequest(Section):
    """The body of `POST /admin/changes`: the changes to approve."""

    server: str | None = Field(default=None, min_length=1, examples=["calendar"])
    """The server. Without a name, a kind or classes, all changes of the server are approved."""
    name: str | None = Field(default=None, min_length=1)
    """A tool, prompt or template: its upstream name if `server` is given, otherwise SERVER__NAME."""
    kind: ChangedKind | None = None
    """Only items of this kind. The description that a server gives of itself has a kind, but no name."""
    classes: list[ChangeClass] | None = None
    """Only changes all of whose classes are listed here."""
    digests: list[Annotated[str, Field(min_length=MIN_DIGEST_CHARS, max_length=64)]] | None = None
    """Digests of the reviewed changes, or at least their first 16 characters. Nothing is approved if the server's
    definitions have changed since the review. Without digests, the server's current definitions are approved."""
    all: bool = False
    """Approve everything of every server, rewriting the lock file."""

    @model_validator(mode="after")
    def _has_target(self) -> ApproveRequest:
        if self.all == (self.server is not None or self.name is not None):
            raise fault("does not say what to approve", "a server, a name as SERVER__TOOL, or all")
        for key in ("kind", "classes", "digests"):
            if self.all and getattr(self, key) is not None:
                raise fault("cannot be combined with all", "one of the two", key=key)
        return self


class RejectRequest(Section):
    """The body of `POST /admin/changes/reject`."""

    server: str = Field(min_length=1, examples=["files"])
    """The server whose changes are rejected."""
    digests: list[Annotated[str, Field(min_length=MIN_DIGEST_CHARS, max_length=64)]] = Field(
        min_length=1, examples=[["5f0c" * 16]]
    )
    """Digests of the reviewed changes, or at least their first 16 characters."""


_DECISIONS: Final = {
    "decisions": [
        {
            "id": "5f0c3a9b12d47e60",
            "at": 1801382400.5,
            "by": "ann",
            "action": "rejected",
            "server": "files",
            "items": [{"kind": "tools", "name": "read_file", "was": None, "classes": ["text"], "digest": "5f0c" * 16}],
            "undone": None,
            "canUndo": True,
        }
    ]
}


class ChangeRoutes:
    """Shows changed definitions, and approves or rejects the changes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        # Decisions run in threads, one at a time: each starts from the lock file that the previous decision wrote.
        self._deciding = anyio.Lock()

    @route(
        "GET", "/admin/changes", merge=Merge.SAME, rows="changes", filters=("server", "status", "q"), example=_CHANGES
    )
    async def changes(self, request: Request) -> Response:
        """Return definitions that differ from the approved definitions or, without a lock file, from earlier listings.

        Returns:
            `file` (the lock file, or null) and `changes`: server, kind, name, was, wrapper, classes, state (held,
            rejected, warned or accepted), heldFor, difference, before, after, digest (for `digests` of an approval),
            since, suspicion (from 0 to 1: how strongly the texts seem to instruct a model), flagged (whether the
            suspicion is high), flags (`code`, `where` and the `quoted` text), rejected (at, by, and the id of the
            decision), flapping and advice of each.

        Query:
            server: Only changes of this server.
        """
        lock = self._fleet.lock
        file = str(lock.path) if lock.lockfile is not None else None
        # Use a thread, because comparing megabytes of definitions takes seconds.
        return JsonDocument({"file": file, "changes": await run_in_thread(lock.rows)})

    @route(
        "POST",
        "/admin/changes",
        merge=Merge.CHANGE,
        body=ApproveRequest,
        example={"file": "/etc/typegate/typegate.lock", "approved": ["read_file"], "left": []},
    )
    async def approve(self, request: Request) -> Response:
        """Approve what a server lists now: write the lock file, and release held definitions.

        Returns:
            `file`; `approved`: the names of approved items; `left`: the names of items whose changes also belong to
            other classes.

        Errors:
            400: The body is invalid.
            409: The change does not exist, there is no lock file, or the lock file cannot be written.
            412: The server's definitions have changed since the review, and no longer match `digests`.
        """
        requested = await read_body(request, ApproveRequest)
        async with self._deciding:
            return await self._approve(requested, administrator_name(request))

    async def _approve(self, requested: ApproveRequest, by: str) -> Response:
        fleet, remaining = self._fleet, list[str]()
        try:
            if requested.all:
                everything = [*fleet.servers, *fleet.left_out]
                approve_all = partial(fleet.lock.approve_all, everything, by=by)
                approved = await run_in_thread(approve_all)
            else:
                server, item = target_of(requested.server, requested.name)
                item = await run_in_thread(partial(self._listed_name, server, item))
                approve = partial(
                    fleet.lock.approve,
                    server,
                    item=item,
                    kind=requested.kind,
                    classes=requested.classes,
                    digests=requested.digests,
                    by=by,
                )
                approved, remaining = await run_in_thread(approve)
        except ChangedAgain as error:
            raise Refusal(412, str(error)) from None
        except NotApproved as error:
            raise Refusal(409, str(error)) from None
        await fleet.relock(fleet.lock.lockfile)
        return JsonDocument({"file": str(fleet.lock.path), "approved": approved, "left": remaining})

    @route("POST", "/admin/changes/reject", merge=Merge.CHANGE, body=RejectRequest, example={"rejected": ["read_file"]})
    async def reject(self, request: Request) -> Response:
        """Reject held changes: the changes stay held, and no longer wait for a decision.

        Returns:
            `rejected`: the names of the items.

        Errors:
            400: The body is invalid.
            409: A change is not held, or the server's definitions have changed since the review.
        """
        requested = await read_body(request, RejectRequest)
        reject = partial(self._fleet.lock.reject, requested.server, requested.digests, by=administrator_name(request))
        async with self._deciding:
            try:
                rejected = await run_in_thread(reject)
            except NotApproved as error:
                raise Refusal(409, str(error)) from None
        return JsonDocument({"rejected": rejected})

    @route("GET", "/admin/decisions", merge=Merge.SAME, rows="decisions", filters=("server", "q"), example=_DECISIONS)
    async def decisions(self, request: Request) -> Response:
        """Return the latest decisions about changed definitions, latest first.

        Returns:
            `decisions`: id, at (seconds since 1970), by, action (approved or rejected), server, items (kind, name, was,
            classes and digest), undone (at and by, or null) and canUndo of each.
        """
        decisions = self._fleet.lock.decisions
        async with self._deciding:
            await run_in_thread(decisions.read_added)
        return JsonDocument({"decisions": [each.row() for each in reversed(decisions.latest)]})

    @route(
        "DELETE",
        "/admin/decisions/{id}",
        merge=Merge.CHANGE,
        examples={"id": "5f0c3a9b12d47e60"},
        example={"undone": ["read_file"]},
    )
    async def undo(self, request: Request) -> Response:
        """Undo a decision: an approved definition is held again, and a rejected change waits for a decision again.

        Returns:
            `undone`: the names of the items.

        Errors:
            404: The decision does not exist.
            409: The decision was undone before, or other definitions of the server were approved since.
        """
        lock, decision_id = self._fleet.lock, request.path_params["id"]
        async with self._deciding:
            if lock.decisions.find(decision_id) is None:
                raise missing("decision", decision_id)
            try:
                undone = await run_in_thread(partial(lock.undo, decision_id, by=administrator_name(request)))
            except NotApproved as error:
                raise Refusal(409, str(error)) from None
            await self._fleet.relock(lock.lockfile)
        return JsonDocument({"undone": undone})

    def _listed_name(self, server: str, name: str | None) -> str | None:
        """Return the upstream's name of a changed item, which unlike `name` may contain hidden characters."""
        if name is None:
            return None
        names = [row["name"] for row in self._fleet.lock.rows() if row["server"] == server]
        return name if name in names else next((listed for listed in names if clean(listed) == name), name)


def target_of(server: str | None, name: str | None) -> tuple[str, str | None]:
    """Return the server and the upstream name of an item. The argument `name` may also have the form SERVER__NAME."""
    if server is None and name is not None:
        server, _, name = name.partition(NAME_SEPARATOR)
    if server is not None and name is not None:
        name = name.removeprefix(server + NAME_SEPARATOR)
    return server or "", name or None
