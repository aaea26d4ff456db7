"""`/admin/approvals`: calls that wait for a person, and what was allowed for longer than once."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.documents import JsonDocument, Refusal, read_body
from gateway.admin.routes import Merge, route
from gateway.calls.approval_book import ApprovalBook, Lasts
from gateway.config.section import Section
from registry.schema.display_text import excerpt

_ID_CHARS = 40
_ROW = {
    "id": "3f2a9c01b4d7", "state": "waiting", "principal": "ci", "wrapper": "bank__wire", "server": "bank",
    "rule": "transfers ask", "arguments": "amount: 5", "by": "administrator", "for": None,
    "asked": "2027-01-31T08:00:00.000Z", "expires": "2027-01-31T08:05:00.000Z",
}  # fmt: skip


class DecisionRequest(Section):
    """The body of `POST /admin/approvals/{id}`."""

    decision: Literal["allow", "deny"] = Field(examples=["allow"])
    """Whether the call may be made; to deny what was allowed takes it back."""
    lasts: Lasts = Field(default="once", alias="for", examples=["once"])
    """For what: this call, the session of its caller, or the tool for this caller from now on."""


class ApprovalRoutes:
    """Shows and decides; where several processes serve, the first one is asked for all."""

    def __init__(self, book: ApprovalBook) -> None:
        self._book = book

    @route(
        "GET", "/admin/approvals", merge=Merge.SAME, rows="approvals", filters=("server", "status", "q"),
        example={"approvals": [_ROW]},
    )  # fmt: skip
    async def approvals(self, request: Request) -> Response:
        """Calls that wait for a person, and what was allowed for a session or a tool.

        Returns:
            `approvals`: id, state (waiting or allowed), principal, wrapper, server, rule, arguments, by (who
            is to decide: host or administrator), for, asked and expires of each.
        """
        return JsonDocument({"approvals": self._book.rows()})

    @route(
        "POST", "/admin/approvals/{id}", merge=Merge.SAME, body=DecisionRequest, examples={"id": "3f2a9c01b4d7"},
        example={"id": "3f2a9c01b4d7", "decision": "allow", "for": "once"},
    )  # fmt: skip
    async def decide(self, request: Request) -> Response:
        """Allow a call or deny it, or take back what was allowed.

        Returns:
            `id`, `decision` and `for`.

        Errors:
            400: The decision is wrong.
            404: No call with this id waits any more.
        """
        wanted = await read_body(request, DecisionRequest)
        question_id = request.path_params["id"]
        allow = wanted.decision == "allow"
        if not await self._book.decide(question_id, allow=allow, lasts=wanted.lasts, by="administrator"):
            raise Refusal(404, f"no call with the id {excerpt(question_id, _ID_CHARS)} waits")
        return JsonDocument({"id": question_id, "decision": wanted.decision, "for": wanted.lasts})
