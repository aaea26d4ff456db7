"""`/admin/notes`: what operators append to the descriptions of tools."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.documents import JsonDocument, Refusal, missing, read_body
from gateway.admin.routes import Merge, route
from gateway.config.model import NoteRequest
from gateway.operator_notes import NoteRefused, OperatorNotes
from registry.catalog.store import Registry

_ID: Final = "88b4893238fd0f71"
_NOTE: Final = {
    "id": _ID, "server": "calendar", "tool": "list_events", "text": "Events of before 2020 are missing.",
    "failure": False, "until": None,
}  # fmt: skip


class NoteRoutes:
    """Shows notes, and changes them."""

    def __init__(self, notes: OperatorNotes, registry: Registry) -> None:
        self._notes = notes
        self._registry = registry

    @route(
        "GET", "/admin/notes", merge=Merge.SAME, rows="notes", filters=("server", "q"), example={"notes": [_NOTE]}
    )  # fmt: skip
    async def notes(self, request: Request) -> Response:
        """The operators' notes about tools.

        Returns:
            `notes`.
        """
        return JsonDocument({"notes": self._notes.rows()})

    @route("POST", "/admin/notes", merge=Merge.CHANGE, status=201, body=NoteRequest, example={"id": _ID})
    async def add_note(self, request: Request) -> Response:
        """Attach a note to a tool as it is now.

        Returns:
            `id`.

        Errors:
            400: The note is wrong.
            404: There is no such wrapper.
        """
        wanted = await read_body(request, NoteRequest)
        wrapper = self._registry.catalog.get(wanted.wrapper)
        if wrapper is None:
            raise missing("wrapper", wanted.wrapper)
        try:
            note_id = self._notes.add(wrapper, wanted.text, of_failure=wanted.failure, lasts_s=wanted.seconds)
        except NoteRefused as error:
            raise Refusal(400, str(error)) from None
        return JsonDocument({"id": note_id}, 201)

    @route("DELETE", "/admin/notes/{id}", merge=Merge.CHANGE, examples={"id": _ID}, example={"removed": _ID})
    async def remove_note(self, request: Request) -> Response:
        """Take a note away.

        Returns:
            `removed`: its id.

        Errors:
            404: There is no such note.
        """
        note_id = request.path_params["id"]
        if not self._notes.remove(note_id):
            raise missing("note", note_id)
        return JsonDocument({"removed": note_id})
