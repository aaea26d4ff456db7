"""Repair content items of results, messages of prompts and contents of resources that clients refuse as a whole.

The official SDKs check a result as one value: one member of the wrong type costs all of it. Only such members are
changed, as far as their meaning is clear; unknown members, unknown types of items and all texts stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from registry.intake.annotations import repair_annotations, repair_icons, repair_meta, repair_size
from registry.intake.issues import RepairNotes
from registry.schema.json_values import edited, map_items

_ASSISTANTS: Final = frozenset({"assistant", "ai", "bot", "model"})
_ROLES: Final = ("user", "assistant")
# First characters of well-known formats in base64, for data whose type its server does not name.
_SIGNATURES: Final = (
    ("iVBORw0KGgo", "image/png"), ("/9j/", "image/jpeg"), ("R0lGOD", "image/gif"), ("Qk", "image/bmp"),
    ("SUQz", "audio/mpeg"), ("//uQ", "audio/mpeg"), ("T2dnU", "audio/ogg"),
)  # fmt: skip
_UNKNOWN_TYPE: Final = "application/octet-stream"
# `completion.values` of the protocol's schema.
_MAX_COMPLETIONS: Final = 100
_NAMELESS_URI: Final = "resource:content"


def is_sound_text(item: Any) -> bool:
    """Return whether an item is plain text, as most are; anything else needs a closer look."""
    return type(item) is dict and len(item) == 2 and item.get("type") == "text" and type(item.get("text")) is str


def repair_content(content: list[Any], notes: RepairNotes) -> list[Any]:
    """Return content items that no client refuses; the same list if it already is one."""
    repaired = map_items(content, lambda item: repair_item(item, notes))
    if None not in repaired:
        return repaired
    notes.append(("content", "an item that was null was left out"))
    return [item for item in repaired if item is not None]


def repair_item(item: Any, notes: RepairNotes) -> Any:
    """Return a content item, the very object if a client accepts it; None for null."""
    if is_sound_text(item) or item is None:
        return item
    if not isinstance(item, dict):
        notes.append(("content", "an item was not an object, and is shown as text"))
        return _as_text(item)
    kind = item.get("type")
    if not isinstance(kind, str):
        kind = _kind_of(item)
        notes.append(("content", f"an item had no type, and is read as {kind}"))
        item = {**item, "type": kind}
    checks = _CHECKS.get(kind)
    if checks is None:
        return item  # of an extension, or of a later version of the protocol
    repaired = _repair_members(item, checks, notes)
    completed = _COMPLETIONS[kind](repaired)
    if completed is None:
        notes.append(("content", f"an item of the type {kind} lacked what the type needs, and is shown as text"))
        return _as_text(item)
    if completed is not repaired:
        notes.append(("content", f"an item of the type {kind} was completed"))
    return completed


def repair_messages(messages: Any, notes: RepairNotes) -> Any:
    """Return the messages of a prompt, the same object if no client refuses them: one item each, of a known role."""
    if isinstance(messages, str | dict):
        messages = [messages]
    if not isinstance(messages, list):
        return messages
    repaired: list[Any] = []
    for message in messages:
        repaired += _repair_message(message, notes)
    same = len(repaired) == len(messages) and all(new is old for new, old in zip(repaired, messages, strict=True))
    return messages if same else repaired


def repair_contents(contents: Any, uri: str, notes: RepairNotes) -> Any:
    """Return what was read of a resource, the same object if no client refuses it.

    Args:
        contents: As the server sent it.
        uri: What was asked for, for contents that name no URI.
        notes: Takes what was repaired.
    """
    if isinstance(contents, str | dict):
        notes.append(("content", "the contents were not a list"))
        contents = [contents]
    if not isinstance(contents, list):
        return contents

    def repaired(one: Any) -> Any:
        if isinstance(one, str):
            one = {"text": one}
        if isinstance(one, dict) and not isinstance(one.get("uri"), str):
            one = {**one, "uri": uri}
        return _resource(one, notes) if isinstance(one, dict) else None

    found = map_items(contents, repaired)
    return found if found is contents and None not in found else [one for one in found if one is not None]


def repair_completion(completion: Any, notes: RepairNotes) -> Any:
    """Return the values of a completion, at most a hundred texts; the same object if no client refuses them."""
    if not isinstance(completion, dict):
        return completion
    checks: Mapping[str, _Repair] = {
        "values": _values,
        "total": lambda value, _: value if type(value) is int else None,
        "hasMore": lambda value, _: value if isinstance(value, bool) else None,
    }
    repaired = _repair_members(completion, checks, notes)
    given, kept = completion.get("values"), repaired.get("values", [])
    if isinstance(given, list) and len(given) > len(kept) == _MAX_COMPLETIONS:
        return {**repaired, "hasMore": True}
    return repaired if "values" in repaired else {**repaired, "values": []}


_Repair = Callable[[Any, RepairNotes], Any]


def _repair_members(item: dict[str, Any], checks: Mapping[str, _Repair], notes: RepairNotes) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    dropped: list[str] = []
    for member, check in checks.items():
        if member not in item:
            continue
        repaired = check(item[member], notes)
        if repaired is None:
            dropped.append(member)
            notes.append(("wrong_type", f"{member} was of the wrong type, and was removed"))
        elif repaired is not item[member]:
            changes[member] = repaired
            notes.append(("wrong_type", f"{member} was repaired"))
    return edited(item, changes, dropped)


def _kind_of(item: dict[str, Any]) -> str:
    """Return the type of an item that does not name it."""
    if isinstance(item.get("resource"), dict):
        return "resource"
    if isinstance(item.get("data"), str):
        return "audio" if str(item.get("mimeType")).startswith("audio/") else "image"
    return "resource_link" if isinstance(item.get("uri"), str) and "text" not in item else "text"


def _as_text(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": _written(value)}


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _only_text(value: Any, notes: RepairNotes) -> Any:
    return value if isinstance(value, str) else None


def _any_text(value: Any, notes: RepairNotes) -> Any:
    return "" if value is None else value if isinstance(value, str) else _written(value)


def _base64(value: Any, notes: RepairNotes) -> Any:
    """Return data without the beginning of a `data:` URL, and in the alphabet that browsers decode."""
    if not isinstance(value, str):
        return None
    if value.startswith("data:"):
        head, found, data = value.partition(";base64,")
        return data if found and "," not in head else value
    # The two letters of base64url, which base64 does not have; other letters may be of any encoding.
    return value.replace("-", "+").replace("_", "/") if _is_base64url(value) else value


def _is_base64url(value: str) -> bool:
    if "-" not in value and "_" not in value:
        return False
    letters = value.rstrip("=").replace("-", "").replace("_", "")
    return letters.isascii() and (letters.isalnum() or not letters)


def _resource(value: Any, notes: RepairNotes) -> Any:
    """Return the contents of a resource; None for what has neither text nor data."""
    if not isinstance(value, dict):
        return None
    item = _repair_members(value, {"mimeType": _only_text, "_meta": repair_meta, "blob": _base64}, notes)
    if not isinstance(item.get("text"), str) and not isinstance(item.get("blob"), str):
        if item.get("text") is None:
            return None
        item = {**item, "text": _written(item["text"])}
        notes.append(("wrong_type", "the text of a resource was not text"))
    if not isinstance(item.get("uri"), str):
        item = {**item, "uri": _NAMELESS_URI}
        notes.append(("content", "a resource had no URI"))
    return item


def _repair_message(message: Any, notes: RepairNotes) -> list[Any]:
    if not isinstance(message, dict):
        if message is None:
            return []
        notes.append(("messages", "a message was not an object, and is shown as text"))
        return [{"role": "user", "content": _as_text(message)}]
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        notes.append(("messages", "the role of a message was neither user nor assistant"))
        role = "assistant" if isinstance(role, str) and role.strip().casefold() in _ASSISTANTS else "user"
    if isinstance(content, list):
        notes.append(("messages", "a message with several items became several messages"))
    items = repair_content(content if isinstance(content, list) else [content], notes)
    if len(items) == 1 and items[0] is content and role == message["role"]:
        return [message]
    return [{**message, "role": role, "content": item} for item in items]


def _values(values: Any, notes: RepairNotes) -> Any:
    if not isinstance(values, list):
        return None
    texts = map_items(values, lambda value: value if isinstance(value, str) else _written(value))
    return texts if len(texts) <= _MAX_COMPLETIONS else texts[:_MAX_COMPLETIONS]


_COMMON: Final[Mapping[str, _Repair]] = {"annotations": repair_annotations, "_meta": repair_meta}
_OF_DATA: Final[Mapping[str, _Repair]] = {**_COMMON, "mimeType": _only_text, "data": _base64}
_CHECKS: Final[Mapping[str, Mapping[str, _Repair]]] = {
    "text": {**_COMMON, "text": _any_text},
    "image": _OF_DATA,
    "audio": _OF_DATA,
    "resource": {**_COMMON, "resource": _resource},
    "resource_link": {
        **_COMMON,
        "uri": _only_text, "name": _only_text, "title": _only_text, "description": _only_text, "mimeType": _only_text,
        "size": lambda value, _: repair_size(value), "icons": repair_icons,
    },
}  # fmt: skip


def _complete_text(item: dict[str, Any]) -> dict[str, Any] | None:
    return item if "text" in item else None


def _complete_data(item: dict[str, Any]) -> dict[str, Any] | None:
    if "data" not in item or "mimeType" in item:
        return item if "data" in item else None
    data = item["data"]
    if data.startswith("UklGR"):
        found = "audio/wav" if item["type"] == "audio" else "image/webp"
    else:
        found = next((kind for start, kind in _SIGNATURES if data.startswith(start)), _UNKNOWN_TYPE)
    return {**item, "mimeType": found}


def _complete_resource(item: dict[str, Any]) -> dict[str, Any] | None:
    return item if "resource" in item else None


def _complete_link(item: dict[str, Any]) -> dict[str, Any] | None:
    if "uri" not in item:
        return None
    return item if "name" in item else {**item, "name": item.get("title") or item["uri"]}


_COMPLETIONS: Final[Mapping[str, Callable[[dict[str, Any]], dict[str, Any] | None]]] = {
    "text": _complete_text,
    "image": _complete_data,
    "audio": _complete_data,
    "resource": _complete_resource,
    "resource_link": _complete_link,
}
