"""Check the items of one listing one by one, and report an issue for each that was not accepted unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from registry.errors import SchemaRejected
from registry.schema.display_text import excerpt

# Room for one sentence; details quote patterns and names that may be of any length.
_MAX_DETAIL: Final = 300
# The longest tool name that model APIs take, so that every name that a model could call is shown whole.
_MAX_SHOWN_NAME: Final = 128

UNCHECKED_CODES: Final = frozenset({"broken_ref", "remote_ref", "schema_unchecked"})
"""Codes of repairs of a tool after which less of its arguments is checked than its definition says."""

# What was repaired in one item: pairs of a stable code and one sentence.
RepairNotes = list[tuple[str, str]]
# A definition, as it stays in memory.
Item = TypeVar("Item", bound=Mapping[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemIssue:
    """Why one item of a listing was quarantined or repaired, or what configuration says about it to no effect.

    Attributes:
        tool: The item's name as far as it can be shown; for anything but a tool, what identifies it.
        code: A stable word for tables and tests.
        detail: One sentence for a person.
        kind: The kind of item, as its list is called on the wire.
    """

    tool: str
    code: str
    detail: str
    kind: str = "tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeResult(Generic[Item]):
    """The outcome for one listing; items that needed no repair are the very objects that came in."""

    items: tuple[Item, ...]
    quarantined: tuple[ItemIssue, ...]
    repaired: tuple[ItemIssue, ...]


def check_each(
    items: Iterable[object],
    check: Callable[[Any, RepairNotes], Item | None],
    *,
    key: str,
    kind: str,
    noun: str,
) -> IntakeResult[Item]:
    """Check every item of a list on its own, so that one bad definition does not affect another; never raises.

    Args:
        items: Any JSON values.
        check: Returns the definition to admit, or None for one to leave out without quarantine, and notes repairs. It
            raises SchemaRejected for one to quarantine.
        key: The member that identifies an item.
        kind: The kind of items, as their list is called on the wire.
        noun: What to call an item that cannot be identified.
    """
    admitted: list[Item] = []
    quarantined: list[ItemIssue] = []
    repaired: list[ItemIssue] = []
    for index, item in enumerate(items):
        name = item.get(key) if isinstance(item, dict) else None
        label = excerpt(name, _MAX_SHOWN_NAME) if isinstance(name, str) else ""
        label = label or f"({noun} {index + 1})"
        notes: RepairNotes = []
        try:
            definition = check(item, notes)
        except SchemaRejected as rejected:
            quarantined.append(_issue(label, rejected.code, rejected.detail, kind))
            continue
        except (RecursionError, ValueError, TypeError, OverflowError) as error:
            # Boundary: whatever a hostile definition provokes must not affect any other.
            quarantined.append(_issue(label, "unreadable", f"{type(error).__name__}: {error}", kind))
            continue
        if definition is not None:
            admitted.append(definition)
        repaired += [_issue(label, code, detail, kind) for code, detail in dict.fromkeys(notes)]
    return IntakeResult(items=tuple(admitted), quarantined=tuple(quarantined), repaired=tuple(repaired))


def _issue(item: str, code: str, detail: str, kind: str) -> ItemIssue:
    return ItemIssue(tool=item, code=code, detail=excerpt(detail, _MAX_DETAIL), kind=kind)
