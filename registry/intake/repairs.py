"""Repair the parts of a definition that make hosts reject a whole list, without changing what the tool accepts."""

from __future__ import annotations

from typing import Any, Final

from registry.intake.annotations import repair_annotations, repair_icons, repair_meta
from registry.intake.issues import RepairNotes
from registry.schema.display_text import clean
from registry.schema.json_values import edited, map_items, without_keys
from registry.schema.references import DATA_KEYWORDS

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_REPAIRED_MEMBERS: Final = ("title", "description", "annotations", "_meta", "icons", "execution")
MAX_TEXT_CHARS: Final = 16 * 1024
"""Length of one description or title. The longest of real servers have some thousand characters; hosts cut them at two
thousand, and every list repeats them to every caller."""
_TEXTS: Final = frozenset({"description", "title"})
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


def cut_own_texts(item: Any, notes: RepairNotes) -> Any:
    """Return an item whose own description and title are not too long; the same object if they are not.

    Before an item is measured: its other members count, and a long text alone does not cost the item.
    """
    if not isinstance(item, dict):
        return item
    changes = {key: _cut(key, item[key], notes) for key in _TEXTS if isinstance(item.get(key), str)}
    changes = {key: text for key, text in changes.items() if text is not item[key]}
    return {**item, **changes} if changes else item


def cut_texts(value: Any, notes: RepairNotes) -> Any:
    """Return a measured definition whose descriptions and titles are not too long, those of its schemas too.

    The same object if none is. What keywords such as `const` hold is data and stays.
    """
    if isinstance(value, list):
        return map_items(value, lambda item: cut_texts(item, notes))
    if not isinstance(value, dict):
        return value
    changes: dict[str, Any] = {}
    for key, child in value.items():
        new = child
        if isinstance(child, str):
            new = _cut(key, child, notes) if key in _TEXTS else child
        elif isinstance(child, dict | list) and key not in DATA_KEYWORDS:
            new = cut_texts(child, notes)
        if new is not child:
            changes[key] = new
    return {**value, **changes} if changes else value


def _cut(key: str, text: str, notes: RepairNotes) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    notes.append(("long_text", f"a {key} was cut: the first {MAX_TEXT_CHARS} of its {len(text)} characters are shown"))
    return text[: MAX_TEXT_CHARS - 1] + "…"


def _text(value: Any, notes: RepairNotes) -> Any:
    if not isinstance(value, str):
        return None
    cleaned = clean(value)
    if cleaned is not value:
        notes.append(("hidden_text", "hidden characters removed from a title or description"))
    return cleaned


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
    "_meta": repair_meta,
    "icons": repair_icons,
    "execution": _execution,
}
