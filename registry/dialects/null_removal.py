"""Show optional arguments without null as an alternative: a shorter list, the same calls.

Where an API accepts null for everything that is optional, declaring it for each argument doubles the types that a model
reads and tells it nothing useful. Null is still accepted: calls are checked against the original schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.schema.json_values import map_items, map_members, without_keys
from registry.schema.packed_definition import members_of
from registry.schema.references import DATA_KEYWORDS, SUBSCHEMA_MAPS
from registry.schema.schemas import MAX_SCHEMA_DEPTH

_NULL: Final = {"type": "null"}


def without_nulls(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool's definition whose input schema nowhere offers null as an alternative.

    The same object is returned if it does not do so anyway.
    """
    given = members_of(definition)
    schema = given.get("inputSchema")
    plain = _without_null(schema, 0)
    return definition if plain is schema else {**given, "inputSchema": plain}


def _without_null(node: Any, depth: int) -> Any:
    # Only a snapshot that was edited can be deeper than what intake admits.
    if not isinstance(node, dict) or depth > MAX_SCHEMA_DEPTH:
        return node
    changed = {key: _in_keyword(key, child, depth) for key, child in node.items()}
    types, options, branches = changed.get("type"), changed.get("enum"), changed.get("anyOf")
    if others := _others(types, "null", str):
        changed["type"] = others[0] if len(others) == 1 else others
        if rest := _others(options, None):
            changed["enum"] = rest
        _drop_null_default(changed)
    if rest := _others(branches, _NULL):
        own = without_keys(changed, {"anyOf"})
        if len(rest) > 1:
            changed["anyOf"] = rest
        elif isinstance(rest[0], dict) and not rest[0].keys() & own.keys() - {"description"}:
            # What describes this argument has precedence over what describes its type.
            changed = {**rest[0], **own}
        _drop_null_default(changed)
    same = changed.keys() == node.keys() and all(child is node[key] for key, child in changed.items())
    return node if same else changed


def _others(alternatives: Any, null: Any, kind: type = object) -> list[Any]:
    """Everything beside null; nothing where null is not among them or all there is, or something is of another kind."""
    if not isinstance(alternatives, list) or null not in alternatives:
        return []
    found = [one for one in alternatives if one != null]
    return found if all(isinstance(one, kind) for one in found) else []


def _drop_null_default(schema: dict[str, Any]) -> None:
    if schema.get("default", ...) is None:
        del schema["default"]


def _in_keyword(key: str, child: Any, depth: int) -> Any:
    if key in SUBSCHEMA_MAPS and isinstance(child, dict):
        return map_members(child, lambda below: _without_null(below, depth + 1))
    if key in DATA_KEYWORDS:
        return child
    if isinstance(child, list):
        return map_items(child, lambda below: _without_null(below, depth + 1))
    return _without_null(child, depth + 1)
