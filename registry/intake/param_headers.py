"""Parameters that are mirrored in HTTP headers: find, check and remove `x-mcp-header` annotations.

Specification 2026-07-28, basic/transports/streamable-http, "Custom Headers".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from registry.schema.references import SINGLE_SUBSCHEMAS, SUBSCHEMA_LISTS, SUBSCHEMA_MAPS

KEYWORD: Final = "x-mcp-header"
# As it stands in canonical JSON, for a quick test whether a definition has any annotation.
KEYWORD_BYTES: Final = b'"x-mcp-header"'

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# The only types whose values have one unambiguous form as text.
_TYPES: Final = frozenset({"string", "integer", "boolean"})
# Of a path in a message; the names in it are the upstream's.
_MAX_SHOWN_PATH: Final = 120

PropertyPath = tuple[str, ...]


def invalid_header(schema: object) -> str | None:
    """Return why an annotation is invalid, or None if all are valid."""
    seen: set[str] = set()
    for path, node in _schemas_with_paths(schema):
        if KEYWORD not in node:
            continue
        header = node[KEYWORD]
        if not path:
            return f"{KEYWORD} stands where no chain of properties leads"
        where = ".".join(path)[:_MAX_SHOWN_PATH]
        if not isinstance(header, str) or not _TOKEN.fullmatch(header):
            return f"{KEYWORD} of {where} is not a header token"
        kind = node.get("type")
        if not isinstance(kind, str) or kind not in _TYPES:
            return f"{KEYWORD} of {where} needs the type string, integer or boolean"
        if header.lower() in seen:
            return f"{KEYWORD} of {where} is used twice"
        seen.add(header.lower())
    return None


def header_paths(schema: object) -> dict[str, PropertyPath]:
    """Return the path of the property for each annotated header; nothing if any annotation is invalid."""
    if invalid_header(schema) is not None:
        return {}
    return {node[KEYWORD]: path for path, node in _schemas_with_paths(schema) if path and KEYWORD in node}


def without_headers(schema: Any) -> Any:
    """Return the schema without its annotations; it is within bounds, so recursion is shallow."""
    if not isinstance(schema, dict):
        return schema
    stripped: dict[str, Any] = {}
    for key, child in schema.items():
        if key == KEYWORD:
            continue
        if key in SUBSCHEMA_MAPS and isinstance(child, dict):
            child = {name: without_headers(below) for name, below in child.items()}
        elif key in SUBSCHEMA_LISTS and isinstance(child, list):
            child = [without_headers(below) for below in child]
        elif key in SINGLE_SUBSCHEMAS:
            child = without_headers(child)
        stripped[key] = child
    return stripped


def _schemas_with_paths(schema: object) -> Iterator[tuple[PropertyPath | None, dict[str, Any]]]:
    """Yield each schema with its chain of properties, or None if anything but properties leads there."""
    stack: list[tuple[PropertyPath | None, object]] = [((), schema)]
    while stack:
        path, node = stack.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for key, child in node.items():
            if key == "properties" and isinstance(child, dict):
                for name, below in child.items():
                    stack.append((None if path is None else (*path, name), below))
            elif key in SUBSCHEMA_MAPS and isinstance(child, dict):
                stack.extend((None, below) for below in child.values())
            elif key in SUBSCHEMA_LISTS and isinstance(child, list):
                stack.extend((None, below) for below in child)
            elif key in SINGLE_SUBSCHEMAS:
                stack.append((None, child))
