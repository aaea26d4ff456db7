"""Changes as administrators see them: one row for each, with its difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from registry.catalog.names import NAME_SEPARATOR
from registry.intake.injection import suspicion_of, texts_of
from registry.lock.changes import Change
from registry.lock.difference import difference
from registry.lock.review import Decided
from registry.schema.display_text import visible_json

_STATES: Final = {"hold": "held", "warn": "warned", "accept": "accepted"}


def item_name(alias: str, change: Change) -> str:
    """How a changed item is named on the command line."""
    return f"{alias}{NAME_SEPARATOR}{change.name}" if change.name else f"{alias} ({change.kind})"


def change_row(
    alias: str, decided: Decided, *, since_s: float | None = None, advice: str | None = None
) -> dict[str, Any]:
    """One change as a row.

    Args:
        alias: Its server.
        decided: The change, and what is done about it.
        since_s: When it was first seen.
        advice: What to do about an item that differs at each start.
    """
    change = decided.change
    # A change may be of characters that nobody sees.
    shown = replace(change, before=visible_json(change.before), after=visible_json(change.after))
    # What is held is in no list, and so flagged nowhere else.
    texts = texts_of(change.after if isinstance(change.after, Mapping) else {change.kind: change.after})
    suspicion = suspicion_of(texts)
    return {
        "server": alias,
        "kind": change.kind,
        "name": change.name,
        "was": change.was,
        "wrapper": item_name(alias, change),
        "classes": list(change.classes),
        "state": _STATES[decided.decision],
        "heldFor": list(decided.held_for),
        "difference": list(difference(shown)),
        "before": shown.before,
        "after": shown.after,
        "digest": change.key,
        "since": round(since_s, 3) if since_s is not None else None,
        "suspicion": suspicion.score,
        "flapping": advice is not None,
        "advice": advice,
    }
