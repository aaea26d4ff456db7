"""`/admin/audit`: the record of calls, refusals and changes."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.documents import JsonDocument, Refusal
from gateway.admin.queries import number_in
from gateway.admin.routes import Merge, route
from gateway.audit.reading import Filter, since
from gateway.audit.record import Audit

# A screenful, and what a page of a browser shows without getting slow.
_LIMIT: Final = 100
_MAX_LIMIT: Final = 1_000
# More lines than any record has.
_MAX_LINES: Final = 10**15
_EXAMPLE: Final = {
    "audit": [
        {"seq": 7, "time": "2027-01-31T08:00:00.000Z", "event": "call", "wrapper": "calendar__list_events",
         "principal": "ci", "ms": 8.1, "prev": "3b0f9f0c"}
    ],
    "next": None, "state": {"on": True, "file": "/var/lib/typegate/audit.jsonl", "lost": 0, "lastError": None},
}  # fmt: skip


class AuditRoutes:
    """Reads the record of this machine, which all processes of the gateway write together."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    @route("GET", "/admin/audit", merge=Merge.SAME, example=_EXAMPLE)
    async def audit(self, request: Request) -> Response:
        """The record of calls, refusals and changes, the latest first.

        Returns:
            `audit`: its lines; `next`: what to give as `cursor` for the next page, or null; `state`: whether it is
            written, to which file, how many lines were lost, and why.

        Query:
            principal: Only lines of this caller.
            tool: Only lines about wrappers, tools or names that match this pattern.
            event: Only lines of this kind, as `call` or `refused`.
            q: Only lines that have this text in one of their texts.
            since: Not before this time, as 2h, 7d or a date.
            limit: Lines in a page; 100 by default, 1000 at most.
            cursor: The `next` of the page before.
            before: Only lines with a smaller number; the same as cursor.

        Errors:
            400: A time or a number is in no form that is known.
            500: The record cannot be read.
        """
        query = request.query_params
        limit = number_in(query, "limit", least=1, most=_MAX_LIMIT)
        ends = [number_in(query, name, least=0, most=_MAX_LINES) for name in ("cursor", "before")]
        try:
            wanted = Filter(
                principal=query.get("principal", ""),
                tool=query.get("tool", ""),
                event=query.get("event", ""),
                text=query.get("q", ""),
                since=since(query["since"]) if query.get("since") else "",
                before=min((end for end in ends if end is not None), default=None),
            )
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        state = {
            "on": self._audit.on,
            "file": None if self._audit.file is None else str(self._audit.file.path),
            "lost": self._audit.lost,
            "lastError": self._audit.last_error,
        }
        try:
            page = await self._audit.page(wanted, limit=_LIMIT if limit is None else limit)
        except OSError as error:
            raise Refusal(500, f"the record cannot be read: {error.strerror or error}") from None
        return JsonDocument({"audit": page.rows, "next": page.next, "state": state})
