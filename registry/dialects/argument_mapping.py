"""Map arguments that were written for a lowered schema to the original one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.dialects.merging import ANNOTATIONS
from registry.errors import SchemaRejected
from registry.schema import schemas
from registry.schema.instance_size import MAX_INSTANCE_DEPTH
from registry.schema.json_values import containers, unless_same
from registry.schema.references import REFERENCE_KEYWORDS, SchemaDocument

# Schemas of one value that are looked at, its references, `allOf` and alternatives included.
_MAX_SCHEMAS: Final = 64
# Alternatives inside alternatives that are searched for null; beyond them it is taken to be accepted, and kept.
_MAX_NULL_DEPTH: Final = 16
_BRANCHES: Final = ("allOf", "anyOf", "oneOf")


def original_arguments(
    arguments: dict[str, Any],
    original: dict[str, Any],
    document: SchemaDocument,
    keys: Mapping[str, str],
    *,
    nulls: bool,
) -> dict[str, Any]:
    """Return the arguments with original names, and without nulls that stand for omitted ones.

    Arguments that the original accepts keep their nulls. The same object is returned if nothing had to change.

    Args:
        arguments: What was sent.
        original: The input schema of the tool.
        document: The same with its references.
        keys: Properties that were renamed, each with its original name.
        nulls: Whether the lowered schema requires nulls that the original may reject.
    """
    nulls = nulls and _has_null(arguments)
    if not keys and not nulls:
        return arguments
    mapper = _ArgumentMapper(document, keys)
    if keys:
        arguments = mapper.map(arguments, [original], 0, drop=False)
    if not nulls:
        return arguments
    try:
        if schemas.validator(original, schemas.digest(original)).is_valid(arguments):
            return arguments
    except SchemaRejected:
        pass  # it cannot be told what the original accepts
    result: dict[str, Any] = mapper.map(arguments, [original], 0, drop=True)
    return result


class _ArgumentMapper:
    """Walks over arguments together with the schemas that describe them."""

    __slots__ = ("_document", "_keys", "_known")

    def __init__(self, document: SchemaDocument, keys: Mapping[str, str]) -> None:
        self._document = document
        self._keys = keys
        # By identity: items of one array are described by the same schemas, which live as long as the document.
        self._known: dict[tuple[int, ...], list[dict[str, Any]]] = {}

    def map(self, value: Any, about: list[Any], depth: int, *, drop: bool) -> Any:
        if depth > MAX_INSTANCE_DEPTH or not isinstance(value, dict | list):
            return value
        described = self._described(about)
        if not described:
            return value
        if isinstance(value, list):
            items: list[Any] = []
            # A plain loop: with a comprehension or a callback, 200 levels would not fit into Python's stack.
            for index, item in enumerate(value):
                items.append(self.map(item, _item_schemas(described, index), depth + 1, drop=drop))
            return unless_same(value, items)
        members: dict[str, Any] = {}
        changed = False
        for key, child in value.items():
            name = key if drop else self._original_name(key, value, described)
            below = _member_schemas(described, name)
            if drop and child is None and below and not self._accepts_null(below):
                changed = True
                continue
            members[name] = self.map(child, below, depth + 1, drop=drop)
            changed = changed or name != key or members[name] is not child
        return members if changed else value

    def _original_name(self, key: str, value: dict[str, Any], described: list[dict[str, Any]]) -> str:
        original = self._keys.get(key)
        if original is None or original in value:
            return key
        # Elsewhere, the new name of one object's property may be an ordinary name of another.
        is_known = any(original in (node.get(word) or ()) for node in described for word in ("properties", "required"))
        return original if is_known else key

    def _described(self, about: list[Any]) -> list[dict[str, Any]]:
        """Return every schema that describes the same value: references, `allOf`, alternatives."""
        identity = tuple(map(id, about))
        if identity in self._known:
            return self._known[identity]
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
        self._known[identity] = found
        return found

    def _accepts_null(self, about: list[Any]) -> bool:
        """Return whether null may be meant: a schema accepts it, of those that say anything about the value."""
        constraints = [schema for schema in about if not isinstance(schema, dict) or schema.keys() - ANNOTATIONS]
        return not constraints or any(self._may_be_null(schema, 0) for schema in constraints)

    def _may_be_null(self, schema: Any, depth: int) -> bool:
        if not isinstance(schema, dict) or depth > _MAX_NULL_DEPTH:
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
            if not any(self._may_be_null(branch, depth + 1) for branch in branches):
                return False
        demands = [*schema.get("allOf", ())[:_MAX_SCHEMAS]]
        if not REFERENCE_KEYWORDS.isdisjoint(schema):
            demands += self._document.targets(schema)
        return all(self._may_be_null(demand, depth + 1) for demand in demands)


def _member_schemas(described: list[dict[str, Any]], name: str) -> list[Any]:
    """Return what the schemas of an object say about one member, by name or as one of the others."""
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


def _item_schemas(described: list[dict[str, Any]], index: int) -> list[Any]:
    found: list[Any] = []
    for node in described:
        for keyword in ("prefixItems", "items"):
            items = node.get(keyword)
            if isinstance(items, list):
                found += items[index : index + 1]
            elif isinstance(items, dict):
                found.append(items)
        found += [node[keyword] for keyword in ("additionalItems", "contains") if isinstance(node.get(keyword), dict)]
    return found


def _has_null(value: Any) -> bool:
    return any(None in (node.values() if isinstance(node, dict) else node) for node in containers(value))
