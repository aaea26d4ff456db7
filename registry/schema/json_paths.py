"""Paths inside a value and inside its schema: format, read, and find declared names with references followed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from registry.schema.display_text import excerpt

JsonPath = tuple[str | int, ...]

# What `value_at` returns for a path that leads nowhere. None would not do: it is a JSON value.
MISSING: Final = object()

# Model APIs allow 64 characters in the name of a property, so that much always identifies one.
MAX_SHOWN_KEY: Final = 64
# For readers who were shown the schema itself: no property has another name.
NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})

# Real arguments nest less than ten levels; longer paths only come from hostile values and would fill the message. What
# is in the middle is left out: a path is recognised by where it begins and what it ends with.
_MAX_SHOWN_STEPS: Final = 20
_LAST_STEPS: Final = 5
# Generators chain two or three references; the bound ends a cycle of references.
_MAX_REFERENCE_HOPS: Final = 16
# Steps of one reference that are followed; `#/$defs/Name` has two.
_MAX_REFERENCE_STEPS: Final = 20
# Schemas looked at for the names that one object declares. This runs for calls that failed their check, and 64
# alternatives still take well under a millisecond.
_MAX_COMPOSED_SCHEMAS: Final = 64


def format_path(path: Sequence[str | int], names: Mapping[str, str] = NO_NAMES) -> str:
    """Write a path the way a model reads it: `to[0].address`; the whole argument object is `arguments`.

    Args:
        path: The steps.
        names: Names that the reader knows some properties by, if different.
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
    """Return a path with some of its property names replaced."""
    return tuple(step if isinstance(step, int) else names.get(step, step) for step in path)


def value_at(value: Any, path: Sequence[str | int]) -> Any:
    """Return the value at a path, or MISSING. A schema is a value, too, with the path of keywords of an error."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step, MISSING)
        elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
            value = value[step]
        else:
            return MISSING
    return value


def resolve_reference(schema: Any, root: Any) -> Any:
    """Follow references within the document; return the schema itself where it has none or one that is not local."""
    # Anchors and identifiers are left alone here: this only looks for names to suggest, and checks never rely on it.
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
    """Yield a schema and all that describe the same value with it: references, `allOf`, alternatives."""
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
    """Return the properties that the schema of an object declares, itself or through composition."""
    plain = schema.get("properties") if isinstance(schema, dict) else None
    # Nearly every schema declares its properties directly, and then nothing has to be collected.
    if isinstance(plain, dict) and not schema.keys() & {"$ref", "allOf", "anyOf", "oneOf", "then", "else"}:
        return plain
    found: dict[str, Any] = {}
    for node in composed_schemas(schema, root):
        properties = node.get("properties")
        if isinstance(properties, dict):
            for name, below in properties.items():
                found.setdefault(name, below)
    return found
