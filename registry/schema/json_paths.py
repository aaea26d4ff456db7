"""Places inside a value and inside its schema: show, read, replace; declared names, references followed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from registry.schema.text import excerpt

Path = tuple[str | int, ...]

MISSING: Final = object()
"""What is at a place that is not there; never a JSON value."""

MAX_SHOWN_KEY: Final = 64
NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})
"""Everything is called what it is called."""
_MAX_SHOWN_STEPS: Final = 20
_MAX_REFERENCES: Final = 16
_MAX_COMPOSED: Final = 64
"""Schemas looked at for the names that one object declares, its `allOf` and the like included."""


def show_path(path: Sequence[str | int], names: Mapping[str, str] = NO_NAMES) -> str:
    """Write a path as a model reads it: `to[0].address`; the whole argument object is `arguments`.

    Args:
        path: The steps.
        names: Other names for some of them, as the reader knows them.
    """
    if not path:
        return "arguments"
    text = ""
    for step in path[:_MAX_SHOWN_STEPS]:
        text += f"[{step}]" if isinstance(step, int) else f".{excerpt(names.get(step, step), MAX_SHOWN_KEY)}"
    return text.removeprefix(".")


def renamed_path(path: Path, names: Mapping[str, str]) -> Path:
    """Return a path with other names for some of its steps."""
    return tuple(step if isinstance(step, int) else names.get(step, step) for step in path)


def at(value: Any, path: Sequence[str | int]) -> Any:
    """Return what is at a path, or MISSING."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step, MISSING) if isinstance(step, str) else MISSING
        elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
            value = value[step]
        else:
            return MISSING
    return value


def copied(value: Any) -> Any:
    """Return a copy of a JSON value that is not nested too deeply."""
    if isinstance(value, dict):
        return {key: copied(child) if isinstance(child, dict | list) else child for key, child in value.items()}
    if isinstance(value, list):
        return [copied(child) if isinstance(child, dict | list) else child for child in value]
    return value


def schema_at(schema: Any, path: Sequence[str | int]) -> Any:
    """Return the schema at a path of keywords as validation errors give it, or MISSING."""
    for step in path:
        if isinstance(schema, dict):
            schema = schema.get(step, MISSING)
        elif isinstance(schema, list) and isinstance(step, int) and 0 <= step < len(schema):
            schema = schema[step]
        else:
            return MISSING
    return schema


def resolved(schema: Any, root: Any) -> Any:
    """Follow references within the document, a few steps; anything else is left as it is."""
    for _step in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return schema
        target: Any = root
        for token in reference[2:].split("/")[:20] if len(reference) > 1 else ():
            key = token.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, dict) else None
        if target is None:
            return schema
        schema = target
    return schema


def composition(schema: Any, root: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all that describe the same value with it: references, `allOf`, alternatives."""
    pending: list[Any] = [schema]
    seen: set[int] = set()
    while pending and len(seen) < _MAX_COMPOSED:
        node = resolved(pending.pop(), root)
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        for keyword in ("allOf", "anyOf", "oneOf"):
            branches = node.get(keyword)
            pending.extend(branches[:_MAX_COMPOSED] if isinstance(branches, list) else ())
        pending.extend(node[keyword] for keyword in ("then", "else") if keyword in node)


def declared(schema: Any, root: Any) -> dict[str, Any]:
    """Return the properties that a schema of an object declares, in its own words or composed ones."""
    plain = schema.get("properties") if isinstance(schema, dict) else None
    if isinstance(plain, dict) and not schema.keys() & {"$ref", "allOf", "anyOf", "oneOf", "then", "else"}:
        return plain
    found: dict[str, Any] = {}
    for node in composition(schema, root):
        properties = node.get("properties")
        if isinstance(properties, dict):
            for name, below in properties.items():
                found.setdefault(name, below)
    return found
