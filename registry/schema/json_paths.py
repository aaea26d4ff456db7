"""Paths inside a value and inside its schema: format, read, and find declared names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from registry.schema.display_text import excerpt

JsonPath = tuple[str | int, ...]

# Returned by `value_at` if the path does not exist. None cannot be used, because it stands for the JSON value null.
MISSING: Final = object()

# Model APIs limit property names to 64 characters, so a name is never cut where it could become ambiguous.
MAX_SHOWN_KEY: Final = 64
# For callers that were shown the schema itself, without renamed properties.
NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})

# Real arguments have fewer than ten levels; only hostile values have paths longer than this. The middle of such a path
# is left out, because the beginning and the end identify a path best.
_MAX_SHOWN_STEPS: Final = 20
_LAST_STEPS: Final = 5
# Generators chain two or three references; the bound ends cycles.
_MAX_REFERENCE_HOPS: Final = 16
# Maximum number of steps followed in one reference; `#/$defs/Name` has two.
_MAX_REFERENCE_STEPS: Final = 20
# Maximum number of schemas read to collect the names that one object declares. This runs for calls that failed their
# check, and 64 alternatives take well under a millisecond.
_MAX_COMPOSED_SCHEMAS: Final = 64


def format_path(path: Sequence[str | int], names: Mapping[str, str] = NO_NAMES) -> str:
    """Format a path as models write it: `to[0].address`; the whole argument object is `arguments`.

    Args:
        path: The steps.
        names: For each renamed property, the name that the caller was shown.
    """
    if not path:
        return "arguments"
    if len(path) > _MAX_SHOWN_STEPS:
        return f"{format_path(path[: _MAX_SHOWN_STEPS - _LAST_STEPS], names)}…{_steps(path[-_LAST_STEPS:], names)}"
    return _steps(path, names).removeprefix(".")


def _steps(path: Sequence[str | int], names: Mapping[str, str]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{excerpt(names.get(step, step), MAX_SHOWN_KEY)}"
    return text


def rename_path(path: JsonPath, names: Mapping[str, str]) -> JsonPath:
    """Return a path with property names replaced."""
    return tuple(step if isinstance(step, int) else names.get(step, step) for step in path)


def value_at(value: Any, path: Sequence[str | int]) -> Any:
    """Return the value at a path, or `MISSING`. This also resolves the keyword path of an error inside a schema."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step, MISSING)
        elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
            value = value[step]
        else:
            return MISSING
    return value


def resolve_reference(schema: Any, root: Any) -> Any:
    """Follow `$ref` chains within the document; return the schema itself if it has no local reference."""
    # Anchors and `$id` are not resolved: the result is only used for suggestions, and no check depends on it.
    for _hop in range(_MAX_REFERENCE_HOPS):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return schema
        target: Any = root
        for token in reference[2:].split("/")[:_MAX_REFERENCE_STEPS] if len(reference) > 1 else ():
            key = token.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, dict) else None
        if target is None:
            return schema
        schema = target
    return schema


def composed_schemas(schema: Any, root: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and the schemas that it applies to the same value, through references or composition."""
    pending: list[Any] = [schema]
    seen: set[int] = set()
    while pending and len(seen) < _MAX_COMPOSED_SCHEMAS:
        node = resolve_reference(pending.pop(), root)
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        for keyword in ("allOf", "anyOf", "oneOf"):
            branches = node.get(keyword)
            pending.extend(branches[:_MAX_COMPOSED_SCHEMAS] if isinstance(branches, list) else ())
        pending.extend(node[keyword] for keyword in ("then", "else") if keyword in node)


def declared_properties(schema: Any, root: Any) -> dict[str, Any]:
    """Return the properties that an object schema declares, directly or through composition."""
    direct_properties = schema.get("properties") if isinstance(schema, dict) else None
    # Fast path: nearly every schema declares its properties directly.
    if isinstance(direct_properties, dict) and not schema.keys() & {"$ref", "allOf", "anyOf", "oneOf", "then", "else"}:
        return direct_properties
    properties_by_name: dict[str, Any] = {}
    for node in composed_schemas(schema, root):
        properties = node.get("properties")
        if isinstance(properties, dict):
            for name, property_schema in properties.items():
                properties_by_name.setdefault(name, property_schema)
    return properties_by_name
