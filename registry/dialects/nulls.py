"""Schemas for reading in which null is not told of: a shorter list, the same calls.

Where an API takes null for everything that is optional, telling it of each argument doubles the types that a
model reads and says nothing that it needs. What is left out here is still accepted: calls are checked against
the original.
"""

from __future__ import annotations

from typing import Any, Final

from registry.schema.references import DATA_KEYWORDS, SCHEMA_MAPS

_NULL: Final = {"type": "null"}
MAX_DEPTH: Final = 200


def without_nulls(definition: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's definition whose input schema offers null nowhere beside something else.

    The same object comes back where it does not anyway.
    """
    schema = definition.get("inputSchema")
    plain = _plain(schema, 0)
    return definition if plain is schema else {**definition, "inputSchema": plain}


def _plain(node: Any, depth: int) -> Any:
    if not isinstance(node, dict) or depth > MAX_DEPTH:
        return node
    changed = {key: _below(key, child, depth) for key, child in node.items()}
    kinds, options, branches = changed.get("type"), changed.get("enum"), changed.get("anyOf")
    if isinstance(kinds, list) and "null" in kinds and len(kinds) > 1:
        others = [kind for kind in kinds if kind != "null"]
        changed["type"] = others[0] if len(others) == 1 else others
        if isinstance(options, list) and None in options and len(options) > 1:
            changed["enum"] = [option for option in options if option is not None]
        if "default" in changed and changed["default"] is None:
            del changed["default"]
    if isinstance(branches, list) and _NULL in branches and len(branches) > 1:
        rest = [branch for branch in branches if branch != _NULL]
        own = {key: child for key, child in changed.items() if key != "anyOf"}
        if len(rest) > 1:
            changed["anyOf"] = rest
        elif isinstance(rest[0], dict) and not rest[0].keys() & own.keys() - {"description"}:
            # What is said of the place goes before what is said of the type.
            changed = {**rest[0], **own}
        if "default" in changed and changed["default"] is None:
            del changed["default"]
    same = changed.keys() == node.keys() and all(child is node[key] for key, child in changed.items())
    return node if same else changed


def _below(key: str, child: Any, depth: int) -> Any:
    if key in SCHEMA_MAPS and isinstance(child, dict):
        plain = {name: _plain(one, depth + 1) for name, one in child.items()}
        return child if all(one is child[name] for name, one in plain.items()) else plain
    if key in DATA_KEYWORDS:
        return child
    if isinstance(child, list):
        items = [_plain(one, depth + 1) for one in child]
        return child if all(a is b for a, b in zip(items, child, strict=True)) else items
    return _plain(child, depth + 1)
