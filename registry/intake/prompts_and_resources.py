"""Check each prompt, resource and resource template of a listing on its own, as is done with tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import orjson

from registry.errors import SchemaRejected
from registry.intake.annotations import repair_size
from registry.intake.issues import IntakeResult, RepairNotes, check_each
from registry.intake.repairs import MAX_TEXT_CHARS, cut_own_texts, cut_texts, repair_members
from registry.schema import schemas
from registry.schema.display_text import clean, clean_json
from registry.schema.json_values import edited

ItemKind = Literal["prompts", "resources", "resourceTemplates"]
# For each kind, under the name of its list on the wire, the member that identifies an item.
ITEM_KEYS: Final[Mapping[ItemKind, str]] = {
    "prompts": "name",
    "resources": "uri",
    "resourceTemplates": "uriTemplate",
}
OWN_URI_PREFIX: Final = "typegate://"
"""What our own URIs begin with: `typegate://ALIAS/URI` names a URI that several servers have."""
_OWN_SCHEME: Final = "typegate:"
# HTTP servers usually refuse URIs beyond 8 KiB; nothing that is meant to be read needs half of that.
MAX_KEY_LENGTH: Final = 4_096
_ARGUMENT_TYPES: Final[dict[str, type]] = {"description": str, "title": str, "required": bool}


def admit_items(items: Iterable[object], kind: ItemKind) -> IntakeResult[dict[str, Any]]:
    """Check every item on its own; never raises for any JSON value."""
    seen: set[str] = set()

    def check(item: Any, notes: RepairNotes) -> dict[str, Any]:
        key = item.get(ITEM_KEYS[kind]) if isinstance(item, dict) else None
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH:
            raise SchemaRejected("no_key", f"it has no usable {ITEM_KEYS[kind]}")
        if is_own_uri(key):
            # It would answer for another server, whose own resource could not be reached any more.
            raise SchemaRejected("reserved_uri", "URIs of the scheme typegate belong to this gateway")
        if kind != "prompts" and clean(key) != key:
            # Nobody could see what is read; and unlike a name, a URI is not ours to change (RFC 3987, section 4.1).
            raise SchemaRejected("hidden_text", f"there are hidden characters in its {ITEM_KEYS[kind]}")
        if key in seen:
            raise SchemaRejected("duplicate_name", f"another one of this {ITEM_KEYS[kind]} came first")
        item = cut_own_texts(item, notes)
        if schemas.measure(item).size > MAX_TEXT_CHARS:
            item = cut_texts(item, notes)
        # Half of a surrogate pair cannot be sent: it would make the whole list fail.
        key.encode()
        definition = _in_unicode(_repaired(item, key, kind, notes), kind, notes)
        seen.add(key)
        return definition

    return check_each(items, check, key=ITEM_KEYS[kind], kind=kind, noun=kind)


def _in_unicode(item: dict[str, Any], kind: ItemKind, notes: RepairNotes) -> dict[str, Any]:
    """Return an item that can be written in UTF-8: half of a surrogate pair anywhere costs Python clients the list."""
    try:
        orjson.dumps(item)
        return item
    except TypeError:
        pass
    if b"\\ud" not in json.dumps(item).encode():
        return item  # an integer beyond 64 bits
    notes.append(("not_unicode", "broken characters were removed"))
    cleaned: dict[str, Any] = clean_json(item)
    return {**cleaned, ITEM_KEYS[kind]: item[ITEM_KEYS[kind]]}


def is_own_uri(uri: str) -> bool:
    """Return whether a URI or a template is in our scheme, however it is written (RFC 3986, section 3.1)."""
    return uri.lstrip()[: len(_OWN_SCHEME)].casefold() == _OWN_SCHEME


def _repaired(item: dict[str, Any], key: str, kind: ItemKind, notes: RepairNotes) -> dict[str, Any]:
    # For tools, `repair_members` leaves this unsaid: they get another description anyway.
    if item.get("description", "") is None:
        notes.append(("null_member", "description was null"))
    item = repair_members(item, notes, of_tool=False)
    changes: dict[str, Any] = {}
    dropped: list[str] = []
    if not isinstance(item.get("name"), str):
        changes["name"] = key
        notes.append(("no_name", f"there was no name; the {ITEM_KEYS[kind]} stands for it"))
    elif kind != "prompts" and (name := clean(item["name"])) is not item["name"]:
        changes["name"] = name or key
        notes.append(("hidden_text", "hidden characters removed from the name"))
    if isinstance(item.get("mimeType"), str):
        if (shown := clean(item["mimeType"])) is not item["mimeType"]:
            changes["mimeType"] = shown
            notes.append(("hidden_text", "hidden characters removed from the mimeType"))
    elif "mimeType" in item:
        dropped.append("mimeType")
        notes.append(("wrong_type", "mimeType was of the wrong type"))
    if "size" in item:
        size = repair_size(item["size"])
        if size is None:
            dropped.append("size")
            notes.append(("wrong_type", "size was not a number"))
        elif size is not item["size"]:
            changes["size"] = size
            notes.append(("wrong_type", "size was not a whole number"))
    if "arguments" in item and kind == "prompts":
        arguments = _repaired_arguments(item["arguments"])
        if arguments is None:
            dropped.append("arguments")
        elif arguments != item["arguments"]:
            changes["arguments"] = arguments
        if "arguments" in changes or "arguments" in dropped:
            notes.append(("arguments", "arguments of a wrong shape or with hidden characters were repaired or removed"))
    return edited(item, changes=changes, dropped=dropped)


def _repaired_arguments(arguments: Any) -> list[dict[str, Any]] | None:
    if isinstance(arguments, dict):
        arguments = _arguments_by_name(arguments)
    if not isinstance(arguments, list):
        return None
    listed = [{"name": argument} if isinstance(argument, str) else argument for argument in arguments]
    named = [argument for argument in listed if isinstance(argument, dict) and isinstance(argument.get("name"), str)]
    if any(clean(argument["name"]) != argument["name"] for argument in named):
        raise SchemaRejected("hidden_text", "there are hidden characters in the name of an argument")
    return [
        {
            key: clean_json(value)
            for key, value in argument.items()
            if isinstance(value, _ARGUMENT_TYPES.get(key, object))
        }
        for argument in named
    ]


def _arguments_by_name(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments of a server that lists them as an object by name, or as a JSON Schema."""
    properties, required = arguments.get("properties"), arguments.get("required")
    if arguments.get("type") == "object" and isinstance(properties, dict):
        needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        described = {name: schema if isinstance(schema, dict) else {} for name, schema in properties.items()}
        return [
            {"name": name, **{key: schema[key] for key in ("title", "description") if key in schema}}
            | ({"required": True} if name in needed else {})
            for name, schema in described.items()
        ]
    return [
        {**value, "name": name} if isinstance(value, dict) else {"name": name, "description": value}
        for name, value in arguments.items()
    ]
