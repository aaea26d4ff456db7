"""Repair the parts of a definition that make hosts reject a whole list, without changing what the tool accepts."""

from __future__ import annotations

from typing import Any, Final

from registry.intake.issues import RepairNotes
from registry.schema.display_text import clean
from registry.schema.json_values import edited, map_items, without_keys

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_REPAIRED_MEMBERS: Final = ("title", "description", "annotations", "_meta", "icons", "execution")
_TASK_SUPPORT: Final = ("optional", "required", "forbidden")


def repair_members(tool: dict[str, Any], notes: RepairNotes) -> dict[str, Any]:
    """Repair all members of a definition but its name and its schemas."""
    changes: dict[str, Any] = {}
    dropped: list[str] = []
    for key in _REPAIRED_MEMBERS:
        if key not in tool:
            continue
        value = tool[key]
        if value is None:
            dropped.append(key)
            if key != "description":  # the tool gets another one, which is noted then
                notes.append(("null_member", f"{key} was null"))
            continue
        kept = _MEMBER_REPAIRS[key](value, notes)
        if kept is None:
            dropped.append(key)
            notes.append(("wrong_type", f"{key} was of the wrong type"))
        elif kept is not value:
            changes[key] = kept
    return edited(tool, changes=changes, dropped=dropped)


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


def _icons(value: Any, notes: RepairNotes) -> Any:
    if not isinstance(value, list):
        return None
    repaired = map_items(value, _icon)
    if repaired is value and None not in value:  # null is no icon, but `_icon` returns it as it came
        return value
    notes.append(("icons", "icons of the wrong shape were mended or dropped"))
    return [icon for icon in repaired if icon is not None]


def _icon(icon: Any) -> Any:
    if not isinstance(icon, dict) or not isinstance(icon.get("src"), str):
        return None
    changes: dict[str, Any] = {}
    dropped: list[str] = []
    sizes = icon.get("sizes", [])
    if isinstance(sizes, str):
        changes["sizes"] = sizes.split()
    elif not isinstance(sizes, list) or not all(isinstance(size, str) for size in sizes):
        dropped.append("sizes")
    if "mimeType" in icon and not isinstance(icon["mimeType"], str):
        dropped.append("mimeType")
    if "theme" in icon and icon["theme"] not in ("light", "dark"):
        dropped.append("theme")
    return edited(icon, changes=changes, dropped=dropped)


_MEMBER_REPAIRS: Final = {
    "title": _text,
    "description": _text,
    "annotations": _annotations,
    "_meta": _object,
    "icons": _icons,
    "execution": _execution,
}
