"""Notes that operators attach to a tool, shown to models while they apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from registry.schema.schemas import digest

# A note is appended to a description, of which hosts show 2,048 characters: half of that at most.
MAX_NOTE_LENGTH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One note on one tool.

    Attributes:
        digest: Of the upstream's definition when the note was written; the note applies to no other.
        of_failure: The note is about a failure, and ends with the next success.
        until_s: When the note ends, in seconds since 1970; None for never.
    """

    id: str
    text: str
    digest: str
    of_failure: bool = False
    until_s: float | None = None


def notes_about(upstream: Mapping[str, Any], notes: tuple[Note, ...]) -> tuple[Note, ...]:
    """Return the notes that were written about this very definition."""
    if not notes:  # spares nearly every tool the digest
        return ()
    current = digest(upstream)
    return tuple(note for note in notes if note.digest == current)
