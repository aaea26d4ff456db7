"""Notes that an operator attaches to a tool, shown to models for as long as they are true."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from registry.schemas import digest

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


def with_notes(upstream: Mapping[str, Any], shown: dict[str, Any], notes: Iterable[Note]) -> dict[str, Any]:
    """Append to a description what was noted about this very definition, each text once.

    Args:
        upstream: The definition as the upstream gave it.
        shown: The same under its overlay; it comes back as it is where nothing is noted.
        notes: Notes about the tool.
    """
    today = digest(upstream)
    texts = list(dict.fromkeys(note.text for note in notes if note.digest == today))
    if not texts:
        return shown
    described = shown.get("description")
    parts = [described] if isinstance(described, str) and described else []
    return {**shown, "description": "\n\n".join([*parts, *texts])}
