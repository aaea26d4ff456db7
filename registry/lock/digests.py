"""Digests of what a server lists, equal exactly where the values are equal as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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


# The names of JSON types say nothing beyond what a type does.
_TYPE_NAMES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
# Keywords of JSON Schema, of any draft, that are no text themselves. All others are a vendor's, or a model's to read.
_KEYWORDS: Final = frozenset(
    {*PROSE, *SCHEMA_KEYWORDS, *SCHEMA_LISTS, *SCHEMA_MAPS, "$anchor", "$dynamicAnchor", "$dynamicRef", "$id",
     "$recursiveAnchor", "$recursiveRef", "$ref", "$schema", "$vocabulary", "const", "contentEncoding",
     "contentMediaType", "dependentRequired", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "id",
     "maxContains", "maximum", "maxItems", "maxLength", "maxProperties", "minContains", "minimum", "minItems",
     "minLength", "minProperties", "multipleOf", "nullable", "pattern", "readOnly", "required", "type", "uniqueItems",
     "writeOnly"}
)  # fmt: skip
# Members of objects are named by each of these, so that a name moved from one to another is still the same text.
_NAMING: Final = frozenset({"dependencies", "dependentRequired", "dependentSchemas", "properties", "required"})
# Schemas under these keywords are about the very value that the schema around them is about.
_IN_PLACE: Final = frozenset(
    {"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"}
)  # fmt: skip
Text = tuple[tuple[str, ...], str]
"""A text with its place: the part of the values that it is about, and the sort of text."""


def strings_of(value: Any, place: tuple[str, ...] = ()) -> Iterator[Text]:
    """Yield every text in a JSON value, names of members included, with its place; positions in lists are none."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield (*place, "{}"), name
            yield from strings_of(each, (*place, name))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from strings_of(each, place)


def strings_of_schema(schema: Any, place: tuple[str, ...] = ()) -> Iterator[Text]:
    """Yield every text in a schema that a model reads: all but keywords and the names of types.

    What may have been approved in another form counts as one text: a value of `enum` and of `const`, and a name in
    `properties` and in `required`.
    """
    if not isinstance(schema, Mapping):
        yield from strings_of(schema, place)
        return
    for keyword, value in schema.items():
        if keyword not in _KEYWORDS:
            yield (*place, "keyword"), keyword
        yield from _strings_of_keyword(keyword, value, place)


def _strings_of_keyword(keyword: str, value: Any, place: tuple[str, ...]) -> Iterator[Text]:
    inner = place if keyword in _IN_PLACE else (*place, keyword)
    if keyword == "type":
        yield from (text for text in strings_of(value, inner) if text[1] not in _TYPE_NAMES)
    elif keyword in ("enum", "const"):
        yield from strings_of(value, (*place, "value"))
    elif keyword in SCHEMA_MAPS and isinstance(value, Mapping):
        for name, each in value.items():
            yield (*place, "name" if keyword in _NAMING else keyword), name
            if isinstance(each, list):
                yield from strings_of(each, (*place, "name"))
            else:
                yield from strings_of_schema(each, inner if keyword in _IN_PLACE else (*inner, name))
    elif keyword in ("required", "dependentRequired"):
        names = [*value, *value.values()] if isinstance(value, Mapping) else value
        yield from strings_of(names, (*place, "name"))
    elif keyword in SCHEMA_LISTS and isinstance(value, list):
        for each in value:
            yield from strings_of_schema(each, inner)
    elif keyword in SCHEMA_KEYWORDS:
        yield from strings_of_schema(value, inner)
    else:
        yield from strings_of(value, inner)


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
