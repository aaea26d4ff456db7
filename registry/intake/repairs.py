"""Repair the parts of a definition that make hosts reject a whole list, without changing what the tool accepts."""

from __future__ import annotations

from typing import Any, Final

from registry.intake.issues import RepairNotes
from registry.intake.param_headers import KEYWORD
from registry.schema.display_text import clean, clean_json, excerpt
from registry.schema.json_values import edited, map_items, without_keys
from registry.schema.references import DATA_KEYWORDS, REFERENCE_KEYWORDS, SUBSCHEMA_MAPS

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_REPAIRED_MEMBERS: Final = ("title", "description", "annotations", "_meta", "icons", "execution")
# Texts that say what a schema accepts or refers to; all others are for readers, whatever they are called.
_NO_PROSE: Final = REFERENCE_KEYWORDS | DATA_KEYWORDS | {
    "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema", "pattern", "format", "contentEncoding",
    "contentMediaType", KEYWORD,
}  # fmt: skip
# Values that are shown, and change nothing of what is accepted.
_SHOWN_DATA: Final = frozenset({"default", "examples", "example"})
_DIALECTS_WITH_TUPLES: Final = ("draft-04", "draft-06", "draft-07", "2019-09")
_DIALECT_WITH_SWITCHES: Final = "draft-04"
_BOUNDS: Final = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
_TASK_SUPPORT: Final = ("optional", "required", "forbidden")


def repair_root(schema: dict[str, Any], notes: RepairNotes) -> dict[str, Any]:
    """Return an input schema with the root `type: object`, which arguments always have."""
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


def repair_schema(schema: Any, notes: RepairNotes) -> Any:
    """Repair a schema within bounds and all of its subschemas; the same object if nothing was wrong."""
    declared = schema.get("$schema") if isinstance(schema, dict) else None
    # The dialects before 2020-12 have lists in `items`. Everything else is checked as 2020-12.
    earlier = isinstance(declared, str) and any(name in declared for name in _DIALECTS_WITH_TUPLES)
    oldest = isinstance(declared, str) and _DIALECT_WITH_SWITCHES in declared
    return _SchemaRepair(notes, converts_tuples=not earlier, converts_bounds=not oldest).repaired(schema)


class _SchemaRepair:
    __slots__ = ("_converts_bounds", "_converts_tuples", "_notes")

    def __init__(self, notes: RepairNotes, *, converts_tuples: bool, converts_bounds: bool) -> None:
        self._notes = notes
        self._converts_tuples = converts_tuples
        self._converts_bounds = converts_bounds

    def repaired(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        changes: dict[str, Any] = {}
        dropped: list[str] = []
        for key, child in schema.items():
            if key == "properties" and (child is None or isinstance(child, list)):
                dropped.append(key)
                self._notes.append(("properties", "properties was not an object"))
            elif key == "required" and (child is None or isinstance(child, bool)):
                dropped.append(key)
                if child is None:
                    self._notes.append(("required", "required was null"))
                else:  # what it says is taken over by the object around it
                    self._notes.append(("required", "required was a boolean inside a property"))
            elif key == "$schema" and not isinstance(child, str):
                dropped.append(key)
                self._notes.append(("dialect", "$schema was not a text"))
            elif key in ("title", "description") and child is None:
                dropped.append(key)
                self._notes.append(("null_member", f"{key} of a schema was null"))
            elif key in _SHOWN_DATA or (isinstance(child, str) and key not in _NO_PROSE):
                if (cleaned := clean_json(child)) is not child:
                    changes[key] = cleaned
                    what = f"hidden characters removed from the {excerpt(key, 40)} of a schema"
                    self._notes.append(("hidden_text", what))
            elif isinstance(child, dict):
                repaired: Any = child
                if key in SUBSCHEMA_MAPS:
                    repaired = self._map(child, key)
                elif key not in DATA_KEYWORDS:
                    repaired = self.repaired(child)
                if repaired is not child:
                    changes[key] = repaired
            elif isinstance(child, list) and key not in DATA_KEYWORDS:
                items = map_items(child, self.repaired)
                if items is not child:
                    changes[key] = items
        changed = edited(schema, changes=changes, dropped=dropped)
        changed = _with_required(changed, schema)
        return self._with_bounds(self._without_tuple(changed))

    def _map(self, children: dict[str, Any], keyword: str) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for name, child in children.items():
            if isinstance(child, bool) and keyword == "properties":
                changes[name] = {} if child else {"not": {}}
                # Valid JSON Schema, but several model APIs and clients expect an object for each property.
                self._notes.append(("boolean_property", "a property's schema was a boolean"))
            elif isinstance(child, dict):
                repaired = self.repaired(child)
                if repaired is not child:
                    changes[name] = repaired
        return edited(children, changes=changes)

    def _without_tuple(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema whose list in `items` stands in `prefixItems`, where 2020-12 has it."""
        tuples = schema.get("items")
        if not self._converts_tuples or not isinstance(tuples, list) or "prefixItems" in schema:
            return schema
        self._notes.append(("tuple", "the schemas of single items stood in `items`, as in earlier dialects"))
        changes: dict[str, Any] = {"prefixItems": tuples} if tuples else {}
        if "additionalItems" in schema:
            changes["items"] = schema["additionalItems"]
        return {**without_keys(schema, ("items", "additionalItems")), **changes}

    def _with_bounds(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema whose `exclusiveMinimum: true` beside a `minimum` is a bound of its own, as since draft 6."""
        for exclusive, plain in _BOUNDS if self._converts_bounds else ():
            switch = schema.get(exclusive)
            if not isinstance(switch, bool):
                continue
            self._notes.append(("bound", f"{exclusive} was a boolean, as in draft 4"))
            bound = schema.get(plain)
            schema = without_keys(schema, (exclusive, plain) if switch else (exclusive,))
            if switch and bound is not None:
                schema[exclusive] = bound
        return schema


def _with_required(schema: dict[str, Any], original: dict[str, Any]) -> dict[str, Any]:
    """Return an object's schema that requires the properties which said `required: true` themselves, as in draft 3."""
    properties = original.get("properties")
    if not isinstance(properties, dict):
        return schema
    said = [name for name, below in properties.items() if isinstance(below, dict) and below.get("required") is True]
    if not said:
        return schema
    required = schema.get("required")
    named = required if isinstance(required, list) else []
    return {**schema, "required": list(dict.fromkeys([*named, *said]))}


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
