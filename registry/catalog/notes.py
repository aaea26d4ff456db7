"""Notes that an operator attaches to a tool, shown to models for as long as they are true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from registry.schema.schemas import digest

MAX_NOTE_LENGTH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One note.

    Attributes:
        digest: Of the upstream's definition when the note was written: about another one it says nothing.
        of_failure: It tells of a failure, and is wrong after the next success.
        until_s: When its time is over, in seconds since 1970; None for never.
    """

    id: str
    text: str
    digest: str
    of_failure: bool = False
    until_s: float | None = None


def notes_about(upstream: Mapping[str, Any], notes: tuple[Note, ...]) -> tuple[Note, ...]:
    """Return the notes that are about this very definition."""
    if not notes:
        return ()
    today = digest(upstream)
    return tuple(note for note in notes if note.digest == today)
