"""Parameters that travel as HTTP headers: find, check and strip `x-mcp-header` annotations.

Specification 2026-07-28, basic/transports/streamable-http, "Custom Headers".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

KEYWORD: Final = "x-mcp-header"
KEYWORD_BYTES: Final = b'"x-mcp-header"'

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TYPES: Final = frozenset({"string", "integer", "boolean"})
_ONE: Final = frozenset(
    {
        "items",
        "contains",
        "unevaluatedItems",
        "additionalItems",
        "additionalProperties",
        "propertyNames",
        "unevaluatedProperties",
        "not",
        "if",
        "then",
        "else",
        "contentSchema",
    }
)
_LIST: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_MAP: Final = frozenset({"patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})

Path = tuple[str, ...]


def invalid_header(schema: object) -> str | None:
    """Return why an annotation may not be used, or None when all of them may."""
    seen: set[str] = set()
    for path, node in _positions(schema):
        if KEYWORD not in node:
            continue
        header = node[KEYWORD]
        if not path:
            return f"{KEYWORD} stands where no chain of properties leads"
        where = ".".join(path)[:120]
        if not isinstance(header, str) or not _TOKEN.fullmatch(header):
            return f"{KEYWORD} of {where} is not a header token"
        kind = node.get("type")
        if not isinstance(kind, str) or kind not in _TYPES:
            return f"{KEYWORD} of {where} needs the type string, integer or boolean"
        if header.lower() in seen:
            return f"{KEYWORD} of {where} is used twice"
        seen.add(header.lower())
    return None


def header_paths(schema: object) -> dict[str, Path]:
    """Map each annotated header to the path of its property; none when any annotation is invalid."""
    if invalid_header(schema) is not None:
        return {}
    return {node[KEYWORD]: path for path, node in _positions(schema) if path and KEYWORD in node}


def without_headers(schema: Any) -> Any:
    """Return the schema without its annotations; the schema is within bounds, so this may recurse."""
    if not isinstance(schema, dict):
        return schema
    stripped: dict[str, Any] = {}
    for key, child in schema.items():
        if key == KEYWORD:
            continue
        if (key == "properties" or key in _MAP) and isinstance(child, dict):
            child = {name: without_headers(below) for name, below in child.items()}
        elif key in _LIST and isinstance(child, list):
            child = [without_headers(below) for below in child]
        elif key in _ONE:
            child = without_headers(child)
        stripped[key] = child
    return stripped


def _positions(schema: object) -> Iterator[tuple[Path | None, dict[str, Any]]]:
    """Yield each schema with its chain of properties; None once anything else was crossed."""
    stack: list[tuple[Path | None, object]] = [((), schema)]
    while stack:
        path, node = stack.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for key, child in node.items():
            if key == "properties" and isinstance(child, dict):
                for name, below in child.items():
                    stack.append((None if path is None else (*path, name), below))
            elif key in _MAP and isinstance(child, dict):
                stack.extend((None, below) for below in child.values())
            elif key in _LIST and isinstance(child, list):
                stack.extend((None, below) for below in child)
            elif key in _ONE:
                stack.append((None, child))
