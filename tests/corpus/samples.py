"""Calls made up from schemas: right ones, and what careless callers make of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from registry.schema.json_paths import declared_properties, resolve_reference


def sample(schema: Any, root: Any, everything: bool, depth: int = 0) -> Any:
    """Return a value that fits most schemas: of the right type, of ordinary size."""
    schema = resolve_reference(schema, root)
    if not isinstance(schema, dict):
        return "some text"
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword) and "type" not in schema:
            return sample(schema[keyword][0], root, everything, depth + 1)
    kinds = schema.get("type")
    match kinds[0] if isinstance(kinds, list) else kinds:
        case "object":
            names = declared_properties(schema, root)
            wanted = list(names) if everything and depth < 4 else schema.get("required", [])
            return {name: sample(names.get(name, {}), root, everything, depth + 1) for name in wanted}
        case "array":
            return [sample(schema.get("items", {}), root, everything, depth + 1)]
        case "integer" | "number":
            return schema.get("minimum", 7)
        case "boolean":
            return True
        case "null":
            return None
    return "https://example.test/a/path/of/ordinary/length"  # a usual length for a text


def camel(name: str) -> str:
    """Return a name in camel case."""
    head, *rest = name.replace("-", "_").split("_")
    return head + "".join(part.capitalize() for part in rest)


def snake(name: str) -> str:
    """Return a name in snake case."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def distortions(call: dict[str, Any], fits: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yield what careless callers make of a right call, each with its kind.

    Args:
        call: A right call.
        fits: Returns whether a call is valid. Members are left unchanged if their text would be valid, too.
    """
    texts = {name: json.dumps(value) for name, value in call.items() if not isinstance(value, str)}
    wrong = {**call, **{name: text for name, text in texts.items() if not fits({**call, name: text})}}
    single = {
        name: value[0] if isinstance(value, list) and isinstance(value[0], str) else value
        for name, value in call.items()
    }
    yield "as text", json.dumps(call)
    yield "as text of text", json.dumps(json.dumps(call))
    yield "inside arguments", {"arguments": call}
    yield "inside params, as text", {"params": json.dumps(call)}
    yield "inside arguments, inside args", {"args": {"arguments": call}}
    yield "names in capitals", {name.upper(): value for name, value in call.items()}
    yield "names in camel case", {camel(name): value for name, value in call.items()}
    yield "names in snake case", {snake(name): value for name, value in call.items()}
    yield "names with dashes", {snake(name).replace("_", "-"): value for name, value in call.items()}
    yield "members as text", wrong
    yield "items without their lists", single
    yield "all of it", json.dumps({"input": {name.upper(): value for name, value in wrong.items()}})
