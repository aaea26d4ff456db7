"""The way back: arguments as a caller wrote them for a lowered schema, as the original has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.dialects.merging import ANNOTATIONS
from registry.errors import SchemaRejected
from registry.schema import schemas
from registry.schema.references import REFERENCE_KEYWORDS, Document

_MAX_DEPTH: Final = 200
_MAX_SCHEMAS: Final = 64
"""Schemas of one value looked at, its references, `allOf` and alternatives included."""
_BRANCHES: Final = ("allOf", "anyOf", "oneOf")


def restored(
    arguments: dict[str, Any], original: dict[str, Any], document: Document, keys: Mapping[str, str], *, nulls: bool
) -> dict[str, Any]:
    """Return the arguments with original names, and without nulls that stand for what was left out.

    What the original accepts keeps its nulls; the same object comes back where nothing had to change.

    Args:
        arguments: What was sent.
        original: The input schema of the tool.
        document: Where its references lead.
        keys: Lowered names of properties, each with its original.
        nulls: Whether the lowered schema asks for nulls that the original may refuse.
    """
    nulls = nulls and _has_null(arguments)
    if not keys and not nulls:
        return arguments
    way = _Way(document, keys)
    if keys:
        arguments = way.walk(arguments, [original], 0, drop=False)
    if not nulls:
        return arguments
    try:
        if schemas.validator(original, schemas.digest(original)).is_valid(arguments):
            return arguments
    except SchemaRejected:
        pass
    result: dict[str, Any] = way.walk(arguments, [original], 0, drop=True)
    return result


class _Way:
    """One walk over arguments beside the schema that describes them."""

    __slots__ = ("_document", "_keys", "_known")

    def __init__(self, document: Document, keys: Mapping[str, str]) -> None:
        self._document = document
        self._keys = keys
        # Items of one array are described by the same schemas, which live as long as the document.
        self._known: dict[tuple[int, ...], list[dict[str, Any]]] = {}

    def walk(self, value: Any, about: list[Any], depth: int, *, drop: bool) -> Any:
        if depth > _MAX_DEPTH or not isinstance(value, dict | list):
            return value
        described = self._described(about)
        if not described:
            return value
        if isinstance(value, list):
            items = []
            for place, one in enumerate(value):
                items.append(self.walk(one, _items(described, place), depth + 1, drop=drop))
            return value if all(a is b for a, b in zip(items, value, strict=True)) else items
        members: dict[str, Any] = {}
        changed = False
        for key, one in value.items():
            name = key if drop else self._name(key, value, described)
            below = _members(described, name)
            if drop and one is None and below and not self._takes_null(below):
                changed = True
                continue
            members[name] = self.walk(one, below, depth + 1, drop=drop)
            changed = changed or name != key or members[name] is not one
        return members if changed else value

    def _name(self, key: str, value: dict[str, Any], described: list[dict[str, Any]]) -> str:
        original = self._keys.get(key)
        if original is None or original in value:
            return key
        speaks = any(original in (node.get(word) or ()) for node in described for word in ("properties", "required"))
        return original if speaks else key

    def _described(self, about: list[Any]) -> list[dict[str, Any]]:
        """Return every schema that describes the same value: references, `allOf`, alternatives."""
        place = tuple(map(id, about))
        if place in self._known:
            return self._known[place]
        pending, seen = list(about), set()
        found: list[dict[str, Any]] = []
        while pending and len(found) < _MAX_SCHEMAS:
            node = pending.pop(0)
            if not isinstance(node, dict) or id(node) in seen:
                continue
            seen.add(id(node))
            found.append(node)
            for keyword in _BRANCHES:
                pending += node[keyword] if isinstance(node.get(keyword), list) else []
            pending += [node[keyword] for keyword in ("then", "else") if keyword in node]
            for keyword in ("dependentSchemas", "dependencies"):
                dependent = node.get(keyword)
                pending += dependent.values() if isinstance(dependent, dict) else []
            pending += self._document.targets(node)
        self._known[place] = found
        return found

    def _takes_null(self, about: list[Any]) -> bool:
        """Tell whether null may be meant: some schema of those that say anything accepts it."""
        telling = [one for one in about if not isinstance(one, dict) or one.keys() - ANNOTATIONS]
        return not telling or any(self._null_fits(one, 0) for one in telling)

    def _null_fits(self, schema: Any, depth: int) -> bool:
        if not isinstance(schema, dict) or depth > 16:
            return schema is not False
        kind = schema.get("type")
        if kind is not None and kind != "null" and not (isinstance(kind, list) and "null" in kind):
            return False
        if ("const" in schema and schema["const"] is not None) or None not in schema.get("enum", (None,)):
            return False
        if schema.get("not") == {}:
            return False
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword, [True])[:_MAX_SCHEMAS]
            if not any(self._null_fits(one, depth + 1) for one in branches):
                return False
        demands = [*schema.get("allOf", ())[:_MAX_SCHEMAS]]
        if not REFERENCE_KEYWORDS.isdisjoint(schema):
            demands += self._document.targets(schema)
        return all(self._null_fits(one, depth + 1) for one in demands)


def _members(described: list[dict[str, Any]], name: str) -> list[Any]:
    """Return what the schemas of an object say of one member: its own words first, or those for others."""
    found: list[Any] = []
    for node in described:
        properties = node.get("properties")
        if isinstance(properties, dict) and name in properties:
            found.append(properties[name])
            continue
        patterns = node.get("patternProperties")
        found += patterns.values() if isinstance(patterns, dict) else []
        if isinstance(others := node.get("additionalProperties"), dict):
            found.append(others)
    return found


def _items(described: list[dict[str, Any]], place: int) -> list[Any]:
    found: list[Any] = []
    for node in described:
        for keyword in ("prefixItems", "items"):
            places = node.get(keyword)
            if isinstance(places, list):
                found += places[place : place + 1]
            elif isinstance(places, dict):
                found.append(places)
        found += [node[keyword] for keyword in ("additionalItems", "contains") if isinstance(node.get(keyword), dict)]
    return found


def _has_null(value: Any) -> bool:
    pending = [value]
    while pending:
        node = pending.pop()
        for child in node.values() if isinstance(node, dict) else node:
            if child is None:
                return True
            if isinstance(child, dict | list):
                pending.append(child)
    return False
