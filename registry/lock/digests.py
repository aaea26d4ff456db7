"""Digests of what a server lists, equal exactly where the values are equal as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

# Keywords whose value is read by people and models, and by no validator.
PROSE: Final = frozenset({"title", "description", "$comment", "examples", "default", "deprecated"})
# Keywords that hold a schema, a list of schemas, or schemas by name; in other places a member called `title` is a name.
SCHEMA_KEYWORDS: Final = frozenset(
    {"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
     "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"}
)  # fmt: skip
SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
SCHEMA_MAPS: Final = frozenset(
    {"$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties", "properties"}
)


def canonical(value: Any) -> str:
    """Return one text for all ways to write a JSON value: in any order of keys, with 1 written as 1.0 or 1e0."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value, as 64 hexadecimal digits."""
    # Not the short digests of the catalog: these are compared with what somebody may have chosen to collide.
    return sha256(canonical(value).encode()).hexdigest()


def without_prose(schema: Any) -> Any:
    """Return a schema without what only people and models read."""
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in PROSE:
            continue
        if keyword in SCHEMA_MAPS and isinstance(value, dict):
            kept[keyword] = {name: without_prose(each) for name, each in value.items()}
        elif keyword in SCHEMA_LISTS and isinstance(value, list):
            kept[keyword] = [without_prose(each) for each in value]
        elif keyword in SCHEMA_KEYWORDS:
            kept[keyword] = without_prose(value)
        else:
            kept[keyword] = value
    return kept


def prose_of(schema: Any) -> Any:
    """Return what people and models read in a schema, each text with its place; None where there is nothing."""
    if not isinstance(schema, dict):
        return None
    found: dict[str, Any] = {}
    for keyword, value in schema.items():
        part: Any = None
        if keyword in PROSE:
            part = [value]  # in a list, so that a text that is null is told from none
        elif keyword in SCHEMA_MAPS and isinstance(value, dict):
            part = {name: text for name, each in value.items() if (text := prose_of(each)) is not None} or None
        elif keyword in SCHEMA_LISTS and isinstance(value, list):
            texts = [prose_of(each) for each in value]
            part = texts if any(text is not None for text in texts) else None
        elif keyword in SCHEMA_KEYWORDS:
            part = prose_of(value)
        if part is not None:
            found[keyword] = part
    return found or None


# What a definition of a tool says beside its name and the members that have a digest of their own.
_OTHERS: Final = frozenset({"name", "title", "description", "inputSchema", "outputSchema", "annotations"})


def tool_digests(definition: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of a tool: `text`, `input`, `output` and `hints`. Its name is in none of them."""
    annotations = definition.get("annotations")
    hints = dict(annotations) if isinstance(annotations, dict) else {}
    title = hints.pop("title", None)
    return {
        "text": digest_of(
            [
                definition.get("title"),
                definition.get("description"),
                title,
                prose_of(definition.get("inputSchema")),
                prose_of(definition.get("outputSchema")),
            ]
        ),
        "input": digest_of(without_prose(definition.get("inputSchema"))),
        "output": digest_of(without_prose(definition.get("outputSchema"))),
        "hints": digest_of([hints, {key: value for key, value in definition.items() if key not in _OTHERS}]),
    }


def plain(value: Any) -> Any:
    """Return a JSON value with whole numbers as integers, however they were written."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
