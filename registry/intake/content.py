"""Repair content items and annotations that clients would reject.

The official SDKs validate a result as a whole: one member of the wrong type invalidates the whole result. Only such
members are changed: a member is repaired if its meaning is clear, and otherwise removed. Unknown members, unknown item
types and all texts are kept.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from registry.intake.issues import RepairNotes
from registry.schema.display_text import clean
from registry.schema.json_values import edited, map_items, without_keys

_ROLES: Final = ("user", "assistant")
# The format of Zod's `iso.datetime({offset: true})`. The TypeScript SDK rejects a list if any date has another format.
_DATE_TIME: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})T(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
)
# No valid date is longer. The limit protects the date parsers, which take longer for longer texts.
_MAX_DATE_CHARS: Final = 64
# Numbers from this value on are read as milliseconds since 1970. As seconds, the value would be in the year 5138; as
# milliseconds, it is in 1973.
_LEAST_MILLISECONDS: Final = 100_000_000_000
# Pydantic does not accept a float beyond 64 bits as an integer.
_MAX_SIZE: Final = 2**63
_WHOLE_NUMBER: Final = re.compile(r"\d{1,18}")


OWN_META: Final = "typegate/"
"""Prefix of `_meta` members that only the gateway may write, so that upstreams cannot forge them."""


def is_own_meta(name: str) -> bool:
    """Return whether the name of a `_meta` member is reserved for the gateway; ignore case and hidden characters."""
    return clean(name).strip().casefold().startswith(OWN_META)


def repair_meta(value: Any, notes: RepairNotes) -> Any:
    """Return a `_meta` object without reserved members; None if it is not an object."""
    if not isinstance(value, dict):
        return None
    ours = [name for name in value if is_own_meta(name)]
    if not ours:
        return value
    notes.append(("own_meta", "members of _meta that are reserved for this gateway were removed"))
    return without_keys(value, ours)


def repair_annotations(value: Any, notes: RepairNotes) -> Any:
    """Return annotations that conform to the protocol's schema, with unknown members kept; None for a non-object."""
    if not isinstance(value, dict):
        return None
    changes: dict[str, Any] = {}
    dropped: list[str] = []
    for member, repair in _MEMBERS.items():
        if member not in value:
            continue
        repaired = repair(value[member])
        if repaired is None:
            dropped.append(member)
        elif repaired is not value[member]:
            changes[member] = repaired
    for member in (*changes, *dropped):
        done = "removed" if member in dropped else "repaired"
        notes.append(("annotations", f"annotations.{member} did not conform to the protocol, and was {done}"))
    return edited(value, changes, dropped)


def repair_size(value: Any) -> int | None:
    """Return a size in bytes, or None if the value is not a size."""
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float):
        if not abs(value) < _MAX_SIZE:
            return None
        return math.ceil(value)  # clients that expect an integer also reject `12.0`
    return value


def repair_icons(value: Any, notes: RepairNotes) -> Any:
    """Return a list of icons, without icons that have no source; None for a value that is not a list."""
    if not isinstance(value, list):
        return None
    repaired = map_items(value, _icon)
    if repaired is value and None not in value:  # a null icon is returned unchanged
        return value
    notes.append(("icons", "icons of the wrong shape were repaired or dropped"))
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


def _audience(value: Any) -> list[str] | None:
    roles: Any = [value] if isinstance(value, str) else value
    if not isinstance(roles, list):
        return None
    if value is roles and all(role in _ROLES for role in roles):
        return value
    spelled = dict.fromkeys(role.strip().casefold() for role in roles if isinstance(role, str))
    return [role for role in spelled if role in _ROLES] or None


def _priority(value: Any) -> float | int | None:
    if isinstance(value, str) and len(value) <= _MAX_DATE_CHARS:
        try:
            value = float(value)
        except ValueError:
            return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= 1 else None


def _last_modified(value: Any) -> str | None:
    if isinstance(value, str):
        match = _DATE_TIME.fullmatch(value)
        if match is not None and _is_date(match[1]):
            return value
    try:
        moment = _parse_time(value)
        utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, TypeError, OverflowError, OSError):
        return None
    return utc.isoformat().replace("+00:00", "Z")


def _parse_time(value: Any) -> datetime:
    """Return the point in time that a text or number denotes.

    Raises:
        ValueError, TypeError, OverflowError, OSError: The value does not denote a point in time.
    """
    if isinstance(value, str) and len(value) <= _MAX_DATE_CHARS:
        try:
            return datetime.fromisoformat(value.strip())
        except ValueError:
            return parsedate_to_datetime(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value / 1000 if value >= _LEAST_MILLISECONDS else value, UTC)
    raise ValueError("it is not a point in time")


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


_MEMBERS: Final = {"audience": _audience, "priority": _priority, "lastModified": _last_modified}


_ASSISTANTS: Final = frozenset({"assistant", "ai", "bot", "model"})
# The first characters of base64 data in common formats, used if the server does not name the type of its data.
_SIGNATURES: Final = (
    ("iVBORw0KGgo", "image/png"),
    ("/9j/", "image/jpeg"),
    ("R0lGOD", "image/gif"),
    ("Qk", "image/bmp"),
    ("SUQz", "audio/mpeg"),
    ("//uQ", "audio/mpeg"),
    ("T2dnU", "audio/ogg"),
)
_UNKNOWN_TYPE: Final = "application/octet-stream"
# The limit of `completion.values` in the protocol's schema.
_MAX_COMPLETIONS: Final = 100
_NAMELESS_URI: Final = "resource:content"


def repair_content(content: list[Any], notes: RepairNotes) -> list[Any]:
    """Return content items that no client rejects; the same list if all items are valid."""
    repaired = map_items(content, lambda item: repair_item(item, notes))
    if None not in repaired:
        return repaired
    notes.append(("content", "an item that was null was left out"))
    return [item for item in repaired if item is not None]


def repair_item(item: Any, notes: RepairNotes) -> Any:
    """Return a content item that no client rejects; the same object if it is valid, None for null."""
    if item is None:
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
        return item  # from an extension, or from a later version of the protocol
    repaired = _repair_members(item, checks, notes)
    completed = _COMPLETIONS[kind](repaired)
    if completed is None:
        notes.append(("content", f"an item of the type {kind} lacked required members, and is shown as text"))
        return _as_text(item)
    if completed is not repaired:
        notes.append(("content", f"an item of the type {kind} was completed"))
    return completed


def repair_messages(messages: Any, notes: RepairNotes) -> Any:
    """Return prompt messages that no client rejects, with one item and a known role each; the same object if valid."""
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
    """Return resource contents that no client rejects; the same object if they are valid.

    Args:
        contents: The contents as sent by the server.
        uri: The requested URI, for contents that do not have a URI.
        notes: Receives the repairs.
    """
    if isinstance(contents, str | dict):
        notes.append(("content", "the contents were not a list"))
        contents = [contents]
    if not isinstance(contents, list):
        return contents

    def repaired(item: Any) -> Any:
        if isinstance(item, str):
            item = {"text": item}
        if isinstance(item, dict) and not isinstance(item.get("uri"), str):
            item = {**item, "uri": uri}
        return _resource(item, notes) if isinstance(item, dict) else None

    items = map_items(contents, repaired)
    return items if items is contents and None not in items else [item for item in items if item is not None]


def repair_completion(completion: Any, notes: RepairNotes) -> Any:
    """Return completion values that no client rejects, at most 100 texts; the same object if they are valid."""
    if not isinstance(completion, dict):
        return completion
    checks: Mapping[str, _Repair] = {
        "values": _values,
        "total": lambda value, _: value if type(value) is int else None,
        "hasMore": lambda value, _: value if isinstance(value, bool) else None,
    }
    repaired = _repair_members(completion, checks, notes)
    all_values, kept_values = completion.get("values"), repaired.get("values", [])
    if isinstance(all_values, list) and len(all_values) > len(kept_values) == _MAX_COMPLETIONS:
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
    """Return the probable type of an item that does not name its type."""
    if isinstance(item.get("resource"), dict):
        return "resource"
    if isinstance(item.get("data"), str):
        return "audio" if str(item.get("mimeType")).startswith("audio/") else "image"
    return "resource_link" if isinstance(item.get("uri"), str) and "text" not in item else "text"


def _as_text(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": _to_text(value)}


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _only_text(value: Any, notes: RepairNotes) -> Any:
    return value if isinstance(value, str) else None


def _any_text(value: Any, notes: RepairNotes) -> Any:
    return "" if value is None else value if isinstance(value, str) else _to_text(value)


def _base64(value: Any, notes: RepairNotes) -> Any:
    """Return base64 data in the standard alphabet, which browsers decode, without the prefix of a `data:` URL."""
    if not isinstance(value, str):
        return None
    if value.startswith("data:"):
        head, separator, data = value.partition(";base64,")
        return data if separator and "," not in head else value
    # Convert base64url, recognized by its two special characters; data in other encodings is kept.
    return value.replace("-", "+").replace("_", "/") if _is_base64url(value) else value


def _is_base64url(value: str) -> bool:
    if "-" not in value and "_" not in value:
        return False
    letters = value.rstrip("=").replace("-", "").replace("_", "")
    return letters.isascii() and (letters.isalnum() or not letters)


def _resource(value: Any, notes: RepairNotes) -> Any:
    """Return the repaired contents of a resource; None if they have neither text nor data."""
    if not isinstance(value, dict):
        return None
    item = _repair_members(value, {"mimeType": _only_text, "_meta": repair_meta, "blob": _base64}, notes)
    if not isinstance(item.get("text"), str) and not isinstance(item.get("blob"), str):
        if item.get("text") is None:
            return None
        item = {**item, "text": _to_text(item["text"])}
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
    texts = map_items(values, lambda value: value if isinstance(value, str) else _to_text(value))
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
        "uri": _only_text,
        "name": _only_text,
        "title": _only_text,
        "description": _only_text,
        "mimeType": _only_text,
        "size": lambda value, _: repair_size(value),
        "icons": repair_icons,
    },
}


def _complete_text(item: dict[str, Any]) -> dict[str, Any] | None:
    return item if "text" in item else None


def _complete_data(item: dict[str, Any]) -> dict[str, Any] | None:
    if "data" not in item or "mimeType" in item:
        return item if "data" in item else None
    data = item["data"]
    if data.startswith("UklGR"):
        media_type = "audio/wav" if item["type"] == "audio" else "image/webp"
    else:
        media_type = next((kind for start, kind in _SIGNATURES if data.startswith(start)), _UNKNOWN_TYPE)
    return {**item, "mimeType": media_type}


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
