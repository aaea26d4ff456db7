"""`/admin/changes`: what servers list otherwise than it was approved."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.documents import JsonDocument, Refusal, read_body
from gateway.admin.routes import Merge, route
from gateway.config.section import Section, fault
from gateway.fleet import Fleet
from gateway.lock.listing_lock import MIN_DIGEST_CHARS, ChangedAgain, NotApproved
from gateway.worker_thread import run_in_thread
from registry.catalog.names import NAME_SEPARATOR
from registry.lock.changes import ChangeClass, ChangedKind
from registry.schema.display_text import clean

_CHANGES: Final = {
    "file": "/etc/typegate/typegate.lock",
    "changes": [
        {
            "server": "files", "kind": "tool", "name": "read_file", "was": None, "wrapper": "files__read_file",
            "classes": ["text"], "state": "held", "heldFor": ["text"], "difference": ["description"],
            "before": {"name": "read_file", "description": "Reads a file."},
            "after": {"name": "read_file", "description": "Reads any file."}, "digest": "5f0c" * 16,
            "since": 1801382400.5, "suspicion": 0.1, "flapping": False, "advice": None,
        }
    ],
}  # fmt: skip


class ApproveRequest(Section):
    """The body of `POST /admin/changes`: what is approved as it is listed now."""

    server: str | None = Field(default=None, min_length=1, examples=["calendar"])
    """The server; everything of it, unless a name or classes say less."""
    name: str | None = Field(default=None, min_length=1)
    """A tool, prompt or template, as its server calls it, or as SERVER__NAME without `server`."""
    kind: ChangedKind | None = None
    """Only items of this kind; what a server says of itself as a whole has a kind, and no name."""
    classes: list[ChangeClass] | None = None
    """Only changes of no other classes than these."""
    digests: list[Annotated[str, Field(min_length=MIN_DIGEST_CHARS, max_length=64)]] | None = None
    """Those of the changes that were shown, or their first 16 characters or more: where a server lists something else
    by now, nothing is approved. Without them whatever it lists now is."""
    all: bool = False
    """Everything of every server: the lock file is written anew."""

    @model_validator(mode="after")
    def _says_what(self) -> ApproveRequest:
        if self.all == (self.server is not None or self.name is not None):
            raise fault("says not what to approve", "a server, a name as SERVER__TOOL, or all")
        for key in ("kind", "classes", "digests"):
            if self.all and getattr(self, key) is not None:
                raise fault("stands beside all", "one of the two", key=key)
        return self


class ChangeRoutes:
    """Shows what has changed, and takes it into the lock file."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    @route(
        "GET", "/admin/changes", merge=Merge.SAME, rows="changes", filters=("server", "status", "q"), example=_CHANGES
    )  # fmt: skip
    async def changes(self, request: Request) -> Response:
        """What servers list otherwise than it was approved or, without a lock file, than they did before.

        Returns:
            `file` (the lock file, or null) and `changes`: server, kind, name, was, wrapper, classes, state (held,
            warned or accepted), heldFor, difference, before, after, digest (of the change: `digests` of an approval),
            since, suspicion (from 0 to 1: does it seem to instruct a model?), flapping and advice of each.

        Query:
            server: Only those of this server.
        """
        lock = self._fleet.lock
        file = str(lock.path) if lock.lockfile is not None else None
        # To compare and search megabytes of definitions takes seconds, in which the event loop has to serve others.
        return await run_in_thread(lambda: JsonDocument({"file": file, "changes": lock.rows()}))

    @route(
        "POST", "/admin/changes", merge=Merge.CHANGE, body=ApproveRequest,
        example={"file": "/etc/typegate/typegate.lock", "approved": ["read_file"], "left": []},
    )  # fmt: skip
    async def approve(self, request: Request) -> Response:
        """Approve what a server lists now: the lock file is written, and what was held can be used.

        Returns:
            `file`, `approved` and `left`: names; the latter are of other classes too.

        Errors:
            400: The body is wrong.
            409: There is nothing like that to approve, no lock file, or it cannot be written.
            412: A server lists something else by now than what `digests` stand for.
        """
        wanted = await read_body(request, ApproveRequest)
        fleet, left = self._fleet, list[str]()
        try:
            if wanted.all:
                approved = await run_in_thread(partial(fleet.lock.approve_all, [*fleet.servers, *fleet.left_out]))
            else:
                server, item = target_of(wanted.server, wanted.name)
                item = await run_in_thread(partial(self._listed_name, server, item))
                approve = partial(
                    fleet.lock.approve,
                    server,
                    item=item,
                    kind=wanted.kind,
                    classes=wanted.classes,
                    digests=wanted.digests,
                )
                approved, left = await run_in_thread(approve)
        except ChangedAgain as error:
            raise Refusal(412, str(error)) from None
        except NotApproved as error:
            raise Refusal(409, str(error)) from None
        await fleet.relock()
        return JsonDocument({"file": str(fleet.lock.path), "approved": approved, "left": left})

    def _listed_name(self, server: str, name: str | None) -> str | None:
        """The name of a changed item as its server writes it: hidden characters in it are not shown."""
        if name is None:
            return None
        names = [row["name"] for row in self._fleet.lock.rows() if row["server"] == server]
        return name if name in names else next((one for one in names if clean(one) == name), name)


def target_of(server: str | None, name: str | None) -> tuple[str, str | None]:
    """The server and the item that are meant by either, or by SERVER__NAME."""
    if server is None and name is not None:
        server, _, name = name.partition(NAME_SEPARATOR)
    if server is not None and name is not None:
        name = name.removeprefix(server + NAME_SEPARATOR)
    return server or "", name or None
