"""Repair the parts of a definition that make hosts reject a whole list, without changing what the tool accepts."""

from __future__ import annotations

from typing import Any, Final

from registry.intake.annotations import repair_annotations, repair_icons
from registry.intake.issues import RepairNotes
from registry.schema.display_text import clean
from registry.schema.json_values import edited, without_keys

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_REPAIRED_MEMBERS: Final = ("title", "description", "annotations", "_meta", "icons", "execution")
_TASK_SUPPORT: Final = ("optional", "required", "forbidden")


def repair_members(item: dict[str, Any], notes: RepairNotes, *, of_tool: bool = True) -> dict[str, Any]:
    """Repair all members of a definition but its name and its schemas; the annotations of a tool are hints."""
    changes: dict[str, Any] = {}
    dropped: list[str] = []
    for key in _REPAIRED_MEMBERS:
        if key not in item:
            continue
        value = item[key]
        if value is None:
            dropped.append(key)
            if key != "description":  # the tool gets another one, which is noted then
                notes.append(("null_member", f"{key} was null"))
            continue
        repair = repair_annotations if key == "annotations" and not of_tool else _MEMBER_REPAIRS[key]
        kept = repair(value, notes)
        if kept is None:
            dropped.append(key)
            notes.append(("wrong_type", f"{key} was of the wrong type"))
        elif kept is not value:
            changes[key] = kept
    return edited(item, changes=changes, dropped=dropped)


def _text(value: Any, notes: RepairNotes) -> Any:
    if not isinstance(value, str):
        return None
    cleaned = clean(value)
    if cleaned is not value:
        notes.append(("hidden_text", "hidden characters removed from a title or description"))
    return cleaned


def _object(value: Any, notes: RepairNotes) -> Any:
    return value if isinstance(value, dict) else None


def _annotations(value: Any, notes: RepairNotes) -> Any:
    if not isinstance(value, dict):
        return None
    wrong = [hint for hint in _HINTS if hint in value and not isinstance(value[hint], bool)]
    kept = value
    if "title" in value:
        title = _text(value["title"], notes)
        if title is None:
            wrong.append("title")
        elif title is not value["title"]:
            kept = {**value, "title": title}
    if not wrong:
        return kept
    notes.append(("wrong_type", f"annotations of the wrong type: {', '.join(wrong)}"))
    return without_keys(kept, wrong)


def _execution(value: Any, notes: RepairNotes) -> Any:
    if not isinstance(value, dict):
        return None
    if "taskSupport" not in value or value["taskSupport"] in _TASK_SUPPORT:
        return value
    notes.append(("wrong_type", "execution.taskSupport was of the wrong type"))
    return without_keys(value, {"taskSupport"})


_MEMBER_REPAIRS: Final = {
    "title": _text,
    "description": _text,
    "annotations": _annotations,
    "_meta": _object,
    "icons": repair_icons,
    "execution": _execution,
}
