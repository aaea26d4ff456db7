"""Repairs arguments of our own search tools: other words for their parameters, and what is repaired for any tool."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from gateway.calls.builtin_tools import GET_SERVER_DETAILS, SEARCH_TOOLS
from registry.arguments.coercion import normalized_parameter
from registry.arguments.repair import repair
from registry.arguments.repair_report import Repair
from registry.arguments.unwrapping import unwrap
from registry.schema import schemas
from registry.schema.validators import Validator

# What models call these parameters, in the form of `normalized_parameter`. They are ours, so that their meaning is
# known; of an upstream's tool this would be a guess.
_OTHER_NAMES: Final[Mapping[str, str]] = {
    "q": "query", "search": "query", "searchquery": "query", "text": "query", "term": "query", "keywords": "query",
    "description": "query", "task": "query", "n": "limit", "k": "limit", "topk": "limit", "count": "limit",
    "max": "limit", "maxresults": "limit", "size": "limit", "queries": "query", "name": "server", "alias": "server",
    "servername": "server", "servers": "server", "servernames": "server", "serverid": "server", "id": "server",
}  # fmt: skip
_SCHEMAS: Final[Mapping[str, dict[str, Any]]] = {
    tool["name"]: tool["inputSchema"] for tool in (*SEARCH_TOOLS, GET_SERVER_DETAILS)
}
# A call that names more than this is none of these tools'.
_MAX_MEMBERS: Final = 16


@cache
def _validator(name: str) -> Validator:
    return schemas.compile_schema(_SCHEMAS[name])


def repair_builtin(name: str, arguments: object) -> tuple[object, tuple[Repair, ...]]:
    """Return the arguments of one of the search tools as they were meant, and what was repaired.

    Args:
        name: The tool.
        arguments: What was sent: any JSON value.
    """
    schema = _SCHEMAS[name]
    declared = schema["properties"]
    inner, unwrapped = unwrap(arguments, declared, None, until=lambda value: not declared.keys().isdisjoint(value))
    if not isinstance(inner, dict) or len(inner) > _MAX_MEMBERS:
        return arguments, ()
    repairs = [*unwrapped]
    meant: dict[str, Any] = {}
    for key, value in inner.items():
        other = _OTHER_NAMES.get(normalized_parameter(key), key)
        # Two words for one parameter would be a guess.
        if key not in declared and other in declared and other not in inner and other not in meant:
            repairs.append(Repair(name="renamed", path=(other,), was=key))
            meant[other] = value
        else:
            meant[key] = value
    done = repair(schema, _validator(name), meant, "full")
    return (done.arguments, (*repairs, *done.repairs)) if done.valid else (meant, tuple(repairs))
