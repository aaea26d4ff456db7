"""Check the prompts, resources and templates of a listing one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import orjson

from registry.errors import SchemaRejected
from registry.intake.content import repair_annotations, repair_icons, repair_meta, repair_size
from registry.intake.issues import IntakeResult, RepairNotes, check_each
from registry.schema import schemas
from registry.schema.display_text import clean, clean_json
from registry.schema.json_values import edited, map_items, without_keys
from registry.schema.references import DATA_KEYWORDS

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_REPAIRED_MEMBERS: Final = ("title", "description", "annotations", "_meta", "icons", "execution")
MAX_TEXT_CHARS: Final = 16 * 1024
"""Length limit of a description or title. The longest texts of real servers have a few thousand characters. Hosts cut
texts after two thousand characters, and every caller gets all texts of a list.
"""
_TEXTS: Final = frozenset({"description", "title"})
_TASK_SUPPORT: Final = ("optional", "required", "forbidden")


def repair_members(item: dict[str, Any], notes: RepairNotes, *, of_tool: bool = True) -> dict[str, Any]:
    """Repair the members of a definition except its name and schemas.

    Args:
        item: The definition.
        notes: Receives the repairs.
        of_tool: Whether the item is a tool. The `annotations` of a tool are hints.
    """
    changes: dict[str, Any] = {}
    dropped: list[str] = []
    for key in _REPAIRED_MEMBERS:
        if key not in item:
            continue
        value = item[key]
        if value is None:
            dropped.append(key)
            if key != "description":  # noted later, when a tool gets a substitute
                notes.append(("null_member", f"{key} was null"))
            continue
        repair = repair_annotations if key == "annotations" and not of_tool else _MEMBER_REPAIRS[key]
        repaired = repair(value, notes)
        if repaired is None:
            dropped.append(key)
            notes.append(("wrong_type", f"{key} was of the wrong type"))
        elif repaired is not value:
            changes[key] = repaired
    return edited(item, changes=changes, dropped=dropped)


def cut_own_texts(item: Any, notes: RepairNotes) -> Any:
    """Cut the description and title of an item if they are too long; return the same object if nothing is too long.

    Call this before the item is measured, so that the item is not rejected only because of a long text.
    """
    if not isinstance(item, dict):
        return item
    changes = {key: _truncate_text(key, item[key], notes) for key in _TEXTS if isinstance(item.get(key), str)}
    changes = {key: text for key, text in changes.items() if text is not item[key]}
    return {**item, **changes} if changes else item


def cut_texts(value: Any, notes: RepairNotes) -> Any:
    """Cut long descriptions and titles in a definition of limited depth; the same object if none is long.

    Values of keywords such as `const` are data and are kept.
    """
    if isinstance(value, list):
        return map_items(value, lambda item: cut_texts(item, notes))
    if not isinstance(value, dict):
        return value
    changes: dict[str, Any] = {}
    for key, child in value.items():
        new = child
        if isinstance(child, str):
            new = _truncate_text(key, child, notes) if key in _TEXTS else child
        elif isinstance(child, dict | list) and key not in DATA_KEYWORDS:
            new = cut_texts(child, notes)
        if new is not child:
            changes[key] = new
    return {**value, **changes} if changes else value


def _truncate_text(key: str, text: str, notes: RepairNotes) -> str:
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
    repaired = value
    if "title" in value:
        title = _text(value["title"], notes)
        if title is None:
            wrong.append("title")
        elif title is not value["title"]:
            repaired = {**value, "title": title}
    if not wrong:
        return repaired
    notes.append(("wrong_type", f"annotations of the wrong type: {', '.join(wrong)}"))
    return without_keys(repaired, wrong)


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


ItemKind = Literal["prompts", "resources", "resourceTemplates", "skills"]
# The member that identifies an item, by kind; kinds are named like their lists in the protocol.
ITEM_KEYS: Final[Mapping[ItemKind, str]] = {
    "prompts": "name",
    "resources": "uri",
    "resourceTemplates": "uriTemplate",
    "skills": "uri",
}
OWN_URI_PREFIX: Final = "typegate://"
"""Prefix of the gateway's URIs: `typegate://ALIAS/URI` identifies a URI that several servers have."""
_OWN_SCHEME: Final = "typegate:"
# HTTP servers usually reject URIs beyond 8 KiB; usable URIs need less than half of that.
MAX_KEY_LENGTH: Final = 4_096
_ARGUMENT_TYPES: Final[dict[str, type]] = {"description": str, "title": str, "required": bool}


def admit_items(items: Iterable[object], kind: ItemKind) -> IntakeResult[dict[str, Any]]:
    """Check every item separately; never raises for any JSON value."""
    seen: set[str] = set()

    def check(item: Any, notes: RepairNotes) -> dict[str, Any]:
        key = item.get(ITEM_KEYS[kind]) if isinstance(item, dict) else None
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH:
            raise SchemaRejected("no_key", f"it has no usable {ITEM_KEYS[kind]}")
        if is_own_uri(key):
            # Such a URI would impersonate another server's resource, and make the other resource unreachable.
            raise SchemaRejected("reserved_uri", "URIs of the scheme typegate belong to this gateway")
        if kind != "prompts" and clean(key) != key:
            # A user could not see which URI is read, and cleaning a URI would change what it means (RFC 3987, 4.1).
            raise SchemaRejected("hidden_text", f"there are hidden characters in its {ITEM_KEYS[kind]}")
        if key in seen:
            raise SchemaRejected("duplicate_name", f"another item with this {ITEM_KEYS[kind]} is listed before it")
        if kind != "skills":
            item = cut_own_texts(item, notes)
        if schemas.measure(item).size > MAX_TEXT_CHARS and kind != "skills":
            item = cut_texts(item, notes)
        # A lone surrogate cannot be encoded, and would make the whole list fail.
        key.encode()
        if kind == "skills":
            # Hosts compare the entry with the files, so nothing in the entry may be repaired.
            definition = _sound_skill(item, key)
        else:
            definition = _in_unicode(_repair_item(item, key, kind, notes), kind, notes)
        seen.add(key)
        return definition

    return check_each(items, check, key=ITEM_KEYS[kind], kind=kind, noun=kind)


# Source: MCP extension io.modelcontextprotocol/skills, "Skill Format" and "Resources".
SKILL_FILE: Final = "/SKILL.md"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def _sound_skill(item: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a skill's entry unchanged, because hosts use it as it is.

    Raises:
        SchemaRejected: Hosts would refuse the skill.
    """
    frontmatter, files = item.get("frontmatter"), item.get("resources")
    texts = [frontmatter.get(name) for name in ("name", "description")] if isinstance(frontmatter, dict) else [None]
    if not all(isinstance(text, str) and text for text in texts):
        raise SchemaRejected("no_frontmatter", "its frontmatter has no name or no description")
    if not key.endswith(f"/{texts[0]}{SKILL_FILE}"):
        raise SchemaRejected("wrong_name", "its URI does not end in its name and /SKILL.md")
    if files != "dynamic":
        root = key.removesuffix(SKILL_FILE) + "/"
        if not isinstance(files, list) or not all(_is_skill_file(file, root) for file in files):
            raise SchemaRejected(
                "no_files", "its resources are neither `dynamic` nor files below it with digest and size"
            )
        uris = [file["uri"] for file in files]
        if key not in uris or len(set(uris)) != len(uris):
            raise SchemaRejected("no_files", "its resources do not name SKILL.md and every other file once")
    try:
        orjson.dumps(item)
    except TypeError as error:
        raise SchemaRejected("not_unicode", f"it cannot be encoded: {error}") from None
    return item


def _is_skill_file(file: Any, root: str) -> bool:
    if not isinstance(file, dict) or not isinstance(file.get("uri"), str) or not isinstance(file.get("digest"), str):
        return False
    uri, size = file["uri"], file.get("size")
    is_size = isinstance(size, int) and not isinstance(size, bool) and size >= 0
    return uri.startswith(root) and len(uri) <= MAX_KEY_LENGTH and is_size and bool(_DIGEST.fullmatch(file["digest"]))


def _in_unicode(item: dict[str, Any], kind: ItemKind, notes: RepairNotes) -> dict[str, Any]:
    """Return an item that can be encoded in UTF-8; Python clients would reject the whole list otherwise."""
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
    """Return whether a URI or template has the gateway's scheme, in any spelling (RFC 3986, section 3.1)."""
    return uri.lstrip()[: len(_OWN_SCHEME)].casefold() == _OWN_SCHEME


def _repair_item(item: dict[str, Any], key: str, kind: ItemKind, notes: RepairNotes) -> dict[str, Any]:
    # `repair_members` does not note this, because tools get a substitute description.
    if item.get("description", "") is None:
        notes.append(("null_member", "description was null"))
    item = repair_members(item, notes, of_tool=False)
    changes: dict[str, Any] = {}
    dropped: list[str] = []
    if not isinstance(item.get("name"), str):
        changes["name"] = key
        notes.append(("no_name", f"there was no name; the {ITEM_KEYS[kind]} is used instead"))
    elif kind != "prompts" and (name := clean(item["name"])) is not item["name"]:
        changes["name"] = name or key
        notes.append(("hidden_text", "hidden characters removed from the name"))
    if isinstance(item.get("mimeType"), str):
        if (cleaned := clean(item["mimeType"])) is not item["mimeType"]:
            changes["mimeType"] = cleaned
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
            notes.append(("arguments", "malformed arguments or hidden characters in them were repaired or removed"))
    return edited(item, changes=changes, dropped=dropped)


def _repaired_arguments(arguments: Any) -> list[dict[str, Any]] | None:
    if isinstance(arguments, dict):
        arguments = _arguments_by_name(arguments)
    if not isinstance(arguments, list):
        return None
    listed = [{"name": argument} if isinstance(argument, str) else argument for argument in arguments]
    named_arguments = [
        argument for argument in listed if isinstance(argument, dict) and isinstance(argument.get("name"), str)
    ]
    if any(clean(argument["name"]) != argument["name"] for argument in named_arguments):
        raise SchemaRejected("hidden_text", "there are hidden characters in the name of an argument")
    return [
        {
            key: clean_json(value)
            for key, value in argument.items()
            if isinstance(value, _ARGUMENT_TYPES.get(key, object))
        }
        for argument in named_arguments
    ]


def _arguments_by_name(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return prompt arguments that a server lists as an object keyed by name, or as a JSON Schema."""
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
