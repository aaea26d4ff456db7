"""Operators' notes about tools, stored on disk until they expire.

A note is appended to the description of its tool. A failure note says that the tool fails at present.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import anyio

from gateway.process.files import make_private_folder, write_whole
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import GatewayError
from registry.catalog.catalog import CatalogChange, ToolWrapper
from registry.catalog.names import ServerName
from registry.catalog.overrides import MAX_NOTE_LENGTH, Note
from registry.catalog.registry import Registry
from registry.catalog.shape import Shape
from registry.schema.display_text import clean
from registry.schema.schemas import digest

log = logging.getLogger(__name__)

FILE_NAME: Final = "notes.json"
# The maximum number of notes, which are written by hand. Each change rewrites the file, which has 300 kB at this limit.
MAX_NOTES: Final = 1_000
# Check for expired notes at least hourly: notes expire by the wall clock, which may be adjusted.
_MAX_WAIT_S: Final = 3_600.0
# The minimum wait, which prevents a busy loop if a note expires now and the clock stands still.
_MIN_WAIT_S: Final = 0.05
# The size of a note's id, which is written as 16 characters. The id is unguessable, and short enough for a URL.
_ID_BYTES: Final = 8


class NoteRefused(GatewayError):
    """A note cannot be added; the message says why."""


class OperatorNotes:
    """All notes. Changes are applied to the registry, which appends the notes to tool descriptions.

    Args:
        state_dir: The directory of the file; None to store the notes only in memory.
        writes: Whether this process writes the file. If there are several processes, only one of them does.
        on_cleared: Called with the server and the tool after a successful call has removed the tool's failure notes.

    Attributes:
        with_failure_notes: The tools (server and tool) that have notes about failures; always the same set.
    """

    def __init__(
        self,
        registry: Registry,
        state_dir: Path | None,
        *,
        writes: bool = True,
        on_cleared: Callable[[str, str], None] = lambda server, tool: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._registry = registry
        self._writes = writes
        self._on_cleared = on_cleared
        self._path = state_dir / FILE_NAME if state_dir is not None else None
        self._clock = clock
        self._notes: dict[tuple[str, str], tuple[Note, ...]] = self._read_notes()
        self.with_failure_notes: set[tuple[str, str]] = set()
        self._find_failure_notes()
        self._changed = anyio.Event()
        registry.subscribe(self._on_catalog_change)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each note, for `/admin/notes`."""
        return [
            {
                "id": note.id,
                "server": server,
                "tool": tool,
                "text": note.text,
                "failure": note.of_failure,
                "until": note.until_s,
            }
            for (server, tool), notes in sorted(self._notes.items())
            for note in notes
        ]

    def add(self, wrapper: ToolWrapper, text: str, *, of_failure: bool, lasts_s: float | None) -> str:
        """Attach a note to the current definition of a tool; return the note's id.

        Args:
            of_failure: Whether a successful call removes the note.
            lasts_s: The seconds until the note expires; None for no expiry.

        Raises:
            NoteRefused: The text is empty or too long, there are too many notes, or the tool no longer exists.
        """
        text = clean(text).strip()
        if not 0 < len(text) <= MAX_NOTE_LENGTH:
            raise NoteRefused(f"a note has 1 to {MAX_NOTE_LENGTH} characters")
        if sum(map(len, self._notes.values())) >= MAX_NOTES:
            raise NoteRefused(f"there are already {MAX_NOTES} notes")
        definition = self._definition(wrapper.server, wrapper.tool)
        if definition is None:
            raise NoteRefused("its server no longer has the tool")
        until_s = None if lasts_s is None else self._clock() + lasts_s
        note_id, valid_for = secrets.token_hex(_ID_BYTES), digest(definition)
        note = Note(id=note_id, text=text, digest=valid_for, of_failure=of_failure, until_s=until_s)
        key = (wrapper.server, wrapper.tool)
        self._replace({**self._notes, key: (*self._notes.get(key, ()), note)})
        return note.id

    def remove(self, note_id: str) -> bool:
        """Remove a note; return whether it existed."""
        return self._filter(lambda server, tool, note: note.id != note_id)

    def succeeded(self, wrapper: ToolWrapper) -> None:
        """Remove the failure notes of a tool after a successful call."""
        if self.clear(wrapper.server, wrapper.tool):
            self._on_cleared(wrapper.server, wrapper.tool)

    def clear(self, server: str, tool: str) -> bool:
        """Remove the failure notes of a tool; return whether there were any."""
        key = (server, tool)
        if not any(note.of_failure for note in self._notes.get(key, ())):
            return False
        return self._filter(lambda owner, name, note: (owner, name) != key or not note.of_failure)

    def entries(self) -> list[dict[str, Any]]:
        """Return all notes in the form in which the file stores them."""
        return [
            {"server": server, "tool": tool, **asdict(note)}
            for (server, tool), notes in self._notes.items()
            for note in notes
        ]

    def replace_all(self, entries: list[dict[str, Any]]) -> None:
        """Replace all notes with these entries, which have the stored form."""
        notes = _notes_of(entries)
        if notes != self._notes:
            self._replace(notes)

    def for_server(self, server: str) -> dict[str, tuple[Note, ...]]:
        """Return the notes about the tools of a server."""
        return {tool: notes for (owner, tool), notes in self._notes.items() if owner == server}

    async def run(self) -> None:
        """Until cancelled, remove notes that have expired or whose tool has changed."""
        while True:
            self._changed = anyio.Event()  # reset before the check, so that a change during the check is noticed
            self._filter(self._is_valid)
            ends_s = [n.until_s for notes in self._notes.values() for n in notes if n.until_s is not None]
            wait_s = min([_MAX_WAIT_S, *(end - self._clock() for end in ends_s)])
            with anyio.move_on_after(max(_MIN_WAIT_S, wait_s)):
                await self._changed.wait()

    def _is_valid(self, server: str, tool: str, note: Note) -> bool:
        if note.until_s is not None and note.until_s <= self._clock():
            return False
        definition = self._definition(server, tool)
        # Keep the note if the tool is missing: the server may be disconnected now and list the same tool again later.
        return definition is None or digest(definition) == note.digest

    def _definition(self, server: str, tool: str) -> Mapping[str, Any] | None:
        listing = self._registry.catalog.servers.get(ServerName(server))
        definitions = listing.tools if listing is not None else ()
        return next((definition for definition in definitions if definition.get("name") == tool), None)

    def _on_catalog_change(self, change: CatalogChange) -> None:
        if self._notes:
            self._changed.set()

    def _filter(self, is_kept: Callable[[str, str, Note], bool]) -> bool:
        filtered = {
            key: remaining
            for key, notes in self._notes.items()
            if (remaining := tuple(n for n in notes if is_kept(*key, n)))
        }
        if filtered == self._notes:
            return False
        self._replace(filtered)
        return True

    def _replace(self, notes: dict[tuple[str, str], tuple[Note, ...]]) -> None:
        # Change only these servers' settings in the registry, so that cached values for other servers remain valid.
        touched = {ServerName(server) for server, _ in {*notes, *self._notes}}
        self._notes = notes
        self._find_failure_notes()
        self._changed.set()
        self._write()
        shape = self._registry.shape
        servers = dict(shape.servers)
        for alias in touched & servers.keys():
            servers[alias] = replace(servers[alias], notes=self.for_server(alias))
        self._registry.reshape(Shape(max_length=shape.max_length, servers=servers))

    def _find_failure_notes(self) -> None:
        self.with_failure_notes.clear()
        self.with_failure_notes.update(
            tool for tool, notes in self._notes.items() if any(note.of_failure for note in notes)
        )

    def _read_notes(self) -> dict[tuple[str, str], tuple[Note, ...]]:
        try:
            document = json_bytes.loads(self._path.read_bytes()) if self._path is not None else []
            return _notes_of(document)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("notes ignored: %s", error or type(error).__name__)
            return {}

    def _write(self) -> None:
        if self._path is None or not self._writes:
            return
        try:
            make_private_folder(self._path.parent)
            write_whole(self._path, json_bytes.dumps(self.entries()))
        except OSError as error:
            log.warning("notes not written: %s", error)


def _notes_of(entries: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[Note, ...]]:
    notes: dict[tuple[str, str], tuple[Note, ...]] = {}
    for entry in entries[:MAX_NOTES]:
        fields = dict(entry)
        key = (str(fields.pop("server")), str(fields.pop("tool")))
        note = Note(**fields)
        if not isinstance(note.text, str) or not isinstance(note.until_s, float | int | None):
            raise ValueError("a note is malformed")
        notes[key] = (*notes.get(key, ()), note)
    return notes
