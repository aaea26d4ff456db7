"""Which schemas of a document apply to which parts of a value, all alternatives included, within a bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from registry.schema.json_paths import JsonPath
from registry.schema.references import SchemaDocument

_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
_OF_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_OF_ITEMS = ("additionalItems", "contains", "unevaluatedItems")


class Application(NamedTuple):
    """One schema and one value that it may be applied to."""

    path: JsonPath
    schema: dict[str, Any]
    value: Any


class TooManyApplications(Exception):
    """The bound was reached."""


def applications(document: SchemaDocument, schema: Any, value: Any, limit: int) -> Iterator[Application]:
    """Yield what a validator may look at, in no particular order: what it need not look at in the end, too.

    The number of pairs is what checking costs: a schema that alternatives apply twice is yielded twice.

    Raises:
        TooManyApplications: There are more than the limit.
    """
    # With the references that led to a schema at this very value: one that leads back to itself says nothing more.
    pending: list[tuple[JsonPath, Any, Any, tuple[int, ...]]] = [((), schema, value, ())]
    count = 0
    while pending:
        path, node, value, followed = pending.pop()
        if not isinstance(node, dict):
            continue
        count += 1
        if count > limit:
            raise TooManyApplications
        yield Application(path, node, value)
        for target in document.targets(node):
            if id(target) not in followed:
                pending.append((path, target, value, (*followed, id(target))))
        for word in _IN_PLACE_LISTS:
            if isinstance(branches := node.get(word), list):
                pending += [(path, branch, value, followed) for branch in branches]
        for word in _IN_PLACE:
            if word in node:
                pending.append((path, node[word], value, followed))
        for word in _IN_PLACE_MAPS:
            if isinstance(branches := node.get(word), dict):
                pending += [(path, branch, value, followed) for branch in branches.values()]
        if isinstance(value, dict):
            for below in _members(node, value):
                pending.append(((*path, below[0]), below[1], below[2], ()))
        elif isinstance(value, list):
            for position, inner, item in _items(node, value):
                pending.append(((*path, position), inner, item, ()))
        # What is pending is bounded as well: one schema may have many alternatives, and one value many parts.
        if len(pending) > limit:
            raise TooManyApplications


def _members(node: dict[str, Any], value: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    properties = node.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    fewer, more = (properties, value) if len(properties) < len(value) else (value, properties)
    for name in fewer:
        if name in more:
            yield name, properties[name], value[name]
    if isinstance(names := node.get("propertyNames"), dict):
        for name in value:
            yield name, names, name
    if isinstance(patterns := node.get("patternProperties"), dict):
        for below in patterns.values():
            for name, child in value.items():
                yield name, below, child
    for word in _OF_MEMBERS:
        if isinstance(below := node.get(word), dict):
            for name, child in value.items():
                if name not in properties:
                    yield name, below, child


def _items(node: dict[str, Any], value: list[Any]) -> Iterator[tuple[int, Any, Any]]:
    for word in ("items", "prefixItems"):
        below = node.get(word)
        if isinstance(below, list):
            for position, (inner, item) in enumerate(zip(below, value, strict=False)):
                yield position, inner, item
        elif isinstance(below, dict):
            for position, item in enumerate(value):
                yield position, below, item
    for word in _OF_ITEMS:
        if isinstance(below := node.get(word), dict):
            for position, item in enumerate(value):
                yield position, below, item
