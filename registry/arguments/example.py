"""Example arguments for a schema: every required one with a typed placeholder."""

from __future__ import annotations

from typing import Any, Final

from registry.schema.json_paths import declared_properties, resolve_reference

# An example is cut after 900 characters; these keep it from being that long, and its making cheap.
_MAX_EXAMPLE_DEPTH: Final = 4
_MAX_MEMBERS: Final = 24
_MAX_TEXT: Final = 60
# Optional members that are shown if none is required, and options of an enumeration.
_MAX_OPTIONAL: Final = 3
_MAX_SHOWN_OPTIONS: Final = 6


def example_arguments(schema: Any) -> dict[str, Any]:
    """Return an argument object with its required members, or its first ones if none is required."""
    example = _object(resolve_reference(schema, schema), schema, 0)
    return example if isinstance(example, dict) else {}


def _object(schema: Any, root: Any, depth: int) -> Any:
    properties = declared_properties(schema, root)
    required = schema.get("required") if isinstance(schema, dict) else None
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    if not names and depth == 0:
        names = list(properties)[:_MAX_OPTIONAL]
    return {name: _value(properties.get(name, {}), root, depth + 1) for name in names[:_MAX_MEMBERS]}


def _value(schema: Any, root: Any, depth: int) -> Any:
    schema = resolve_reference(schema, root)
    if not isinstance(schema, dict):
        return "<any>"
    # Real options where they are short, so that the example says which values are accepted.
    if "const" in schema and _is_short(schema["const"]):
        return schema["const"]
    options = schema.get("enum")
    if isinstance(options, list) and options:
        texts = [option for option in options if isinstance(option, str)]
        joined = "|".join(texts[:_MAX_SHOWN_OPTIONS])
        return f"<{joined}>" if texts and len(joined) <= _MAX_TEXT else _short(options[0])
    for keyword in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(keyword)
        if isinstance(branches, list) and branches and "type" not in schema and depth < _MAX_EXAMPLE_DEPTH:
            # Any alternative makes a valid example, and the first one is usually the main one.
            return _value(branches[0], root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        # Null is what an optional argument may be; the other type is what it is for.
        kind = next((declared for declared in kind if declared != "null"), "null")
    if kind == "object" or (kind is None and "properties" in schema):
        return _object(schema, root, depth) if depth < _MAX_EXAMPLE_DEPTH else {}
    if kind == "array":
        return [_value(schema.get("items"), root, depth + 1)] if depth < _MAX_EXAMPLE_DEPTH else []
    if kind == "null":
        return None
    return f"<{kind}>" if isinstance(kind, str) and len(kind) <= _MAX_TEXT else "<any>"


def _is_short(value: Any) -> bool:
    return (
        value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _MAX_TEXT)
    )


def _short(value: Any) -> Any:
    return value if _is_short(value) else "<any>"
