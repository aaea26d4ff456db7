"""Mend the parts of a definition that make hosts lose a list, never what the tool accepts."""

from __future__ import annotations

from typing import Any, Final

from registry.schema.references import DATA_KEYWORDS, SCHEMA_MAPS
from registry.schema.text import clean

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_NULL_IS_ABSENT: Final = ("title", "description", "annotations", "_meta", "icons", "execution")
_TASK_SUPPORT: Final = ("optional", "required", "forbidden")

Notes = list[tuple[str, str]]
"""What was mended: pairs of a stable code and one sentence."""


def mend_root(schema: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Give an input schema the root `type: object` that arguments have anyway."""
    kind = schema.get("type")
    if kind == "object":
        return schema
    if kind is None:
        notes.append(("root_type", "the input schema had no root type"))
    elif isinstance(kind, list) and "object" in kind:
        notes.append(("root_type", "the input schema allowed more than an object"))
    else:
        return schema
    return {**schema, "type": "object"}


def mend_schema(schema: Any, notes: Notes) -> Any:
    """Mend every schema inside one that is within bounds; the same object when nothing was wrong."""
    if not isinstance(schema, dict):
        return schema
    changes: dict[str, Any] = {}
    dropped: list[str] = []
    for key, child in schema.items():
        if key == "properties" and (child is None or isinstance(child, list)):
            dropped.append(key)
            notes.append(("properties", "properties was not an object"))
        elif key == "required" and child is None:
            dropped.append(key)
            notes.append(("required", "required was null"))
        elif key == "$schema" and not isinstance(child, str):
            dropped.append(key)
            notes.append(("dialect", "$schema was not a text"))
        elif key in ("title", "description"):
            if child is None:
                dropped.append(key)
                notes.append(("null_member", f"{key} of a schema was null"))
            elif isinstance(child, str) and (cleaned := clean(child)) is not child:
                changes[key] = cleaned
                notes.append(("hidden_text", f"hidden characters removed from the {key} of a schema"))
        elif isinstance(child, dict):
            mended: Any = child
            if key in SCHEMA_MAPS:
                mended = _mend_map(child, key, notes)
            elif key not in DATA_KEYWORDS:
                mended = mend_schema(child, notes)
            if mended is not child:
                changes[key] = mended
        elif isinstance(child, list) and key not in DATA_KEYWORDS:
            items = [mend_schema(item, notes) for item in child]
            if any(a is not b for a, b in zip(items, child, strict=True)):
                changes[key] = items
    if not changes and not dropped:
        return schema
    return {key: changes.get(key, child) for key, child in schema.items() if key not in dropped}


def _mend_map(children: dict[str, Any], keyword: str, notes: Notes) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, child in children.items():
        if isinstance(child, bool) and keyword == "properties":
            changes[name] = {} if child else {"not": {}}
            notes.append(("boolean_property", "a property's schema was a boolean"))
        elif isinstance(child, dict):
            mended = mend_schema(child, notes)
            if mended is not child:
                changes[name] = mended
    return {**children, **changes} if changes else children


def mend_members(tool: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Mend everything of a definition but its name, description and schemas."""
    changes: dict[str, Any] = {}
    dropped: list[str] = []
    for key in _NULL_IS_ABSENT:
        if key not in tool:
            continue
        value = tool[key]
        if value is None:
            dropped.append(key)
            if key != "description":
                notes.append(("null_member", f"{key} was null"))
            continue
        kept = _MENDERS[key](value, notes)
        if kept is None:
            dropped.append(key)
            notes.append(("wrong_type", f"{key} was of the wrong type"))
        elif kept is not value:
            changes[key] = kept
    if not changes and not dropped:
        return tool
    return {key: changes.get(key, value) for key, value in tool.items() if key not in dropped}


def _text(value: Any, notes: Notes) -> Any:
    if not isinstance(value, str):
        return None
    cleaned = clean(value)
    if cleaned is not value:
        notes.append(("hidden_text", "hidden characters removed from a title or description"))
    return cleaned


def _object(value: Any, notes: Notes) -> Any:
    return value if isinstance(value, dict) else None


def _annotations(value: Any, notes: Notes) -> Any:
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
    return {key: member for key, member in kept.items() if key not in wrong}


def _execution(value: Any, notes: Notes) -> Any:
    if not isinstance(value, dict):
        return None
    if "taskSupport" not in value or value["taskSupport"] in _TASK_SUPPORT:
        return value
    notes.append(("wrong_type", "execution.taskSupport was of the wrong type"))
    return {key: member for key, member in value.items() if key != "taskSupport"}


def _icons(value: Any, notes: Notes) -> Any:
    if not isinstance(value, list):
        return None
    icons = [icon for icon in (_icon(one) for one in value) if icon is not None]
    if len(icons) == len(value) and all(a is b for a, b in zip(icons, value, strict=True)):
        return value
    notes.append(("icons", "icons of the wrong shape were mended or dropped"))
    return icons


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
    if not changes and not dropped:
        return icon
    return {key: changes.get(key, member) for key, member in icon.items() if key not in dropped}


_MENDERS: Final = {
    "title": _text,
    "description": _text,
    "annotations": _annotations,
    "_meta": _object,
    "icons": _icons,
    "execution": _execution,
}
