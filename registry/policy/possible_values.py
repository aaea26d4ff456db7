"""Whether a condition on an argument can hold for any arguments that a schema permits."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from registry.catalog.unmatched import near_miss
from registry.policy.conditions import ArgumentCondition
from registry.schema.json_paths import composed_schemas, declared_properties

# Deeper than arguments nest; it ends a cycle of references.
_MAX_DEPTH: Final = 20
_OPEN: Final[Mapping[str, Any]] = {}
_NUMERIC: Final = (int, float, str)
_COMPOSING: Final = ("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "then", "else")
_LIMITS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
# Values that no configuration names.
_OTHER_TEXT: Final = "\x00another text"
_OTHER_NUMBER: Final = 7_919_113


def missing_reason(condition: ArgumentCondition, schemas: Sequence[Any], *, permits: bool) -> str | None:
    """Return why a condition can never hold; None if it can for one of these schemas.

    Args:
        condition: The condition.
        schemas: Of the arguments of each tool that its rule covers.
        permits: Whether the rule allows something, and so applies only to what is sure.
    """
    found = False
    described: list[str] = []
    for schema in schemas:
        for place in _at(schema, schema, condition.path, _MAX_DEPTH):
            found = True
            if place is _OPEN or _can_hold(condition, place, schema, permits):
                return None
            described.append(_described(place, schema, condition))
    if not found:
        names = {name for schema in schemas for name in _paths(schema)}
        return f"no tool that the rule covers has this argument{near_miss(condition.path, names)}"
    if condition.present is False:
        return "the argument is always sent, since the tool requires it"
    return f"no value that the argument may have fits ({'; '.join(dict.fromkeys(described))})"


def _at(schema: Any, root: Any, path: str, depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of the values at a path, as conditions find them; `_OPEN` where anything may stand."""
    if not isinstance(schema, dict):
        if schema is not False:
            yield _OPEN
        return
    nodes = list(composed_schemas(schema, root))
    if not path:
        yield schema
    for node in nodes if depth else ():
        items = node.get("items")
        if isinstance(items, dict):
            yield from _at(items, root, path, depth - 1)
        for item in node["prefixItems"] if isinstance(node.get("prefixItems"), list) else ():
            yield from _at(item, root, path, depth - 1)
    if not path or not depth:
        return
    properties = declared_properties(schema, root)
    for name, rest in _splits(path):
        if name in properties:
            yield from _at(properties[name], root, rest, depth - 1)
        for node in nodes:
            more = node.get("additionalProperties")
            if isinstance(more, dict):
                yield from _at(more, root, rest, depth - 1)
    kinds = {kind for node in nodes for kind in _kinds(node)}
    if any("patternProperties" in node for node in nodes) or (
        not properties
        and (not kinds or "object" in kinds)
        and not any(node.get("additionalProperties") is False for node in nodes)
    ):
        yield _OPEN


def _splits(path: str) -> Iterator[tuple[str, str]]:
    yield path, ""
    for at, character in enumerate(path):
        if character == ".":
            yield path[:at], path[at + 1 :]


def _can_hold(condition: ArgumentCondition, place: Mapping[str, Any], root: Any, permits: bool) -> bool:
    if condition.present is False:
        required = root.get("required") if isinstance(root, dict) else None
        return not (isinstance(required, list) and condition.path in required)
    candidates = _candidates(condition, place, root)
    if candidates is None:
        return True
    # A value of another kind than the condition is in doubt, and so never what its author has meant.
    if condition.pattern is not None:
        candidates = [value for value in candidates if isinstance(value, str)]
    elif condition.above is not None or condition.below is not None:
        candidates = [value for value in candidates if not isinstance(value, bool) and isinstance(value, _NUMERIC)]
    holds = condition.permits if permits else condition.restricts
    return any(holds({condition.path: value}) for value in candidates)


def _candidates(condition: ArgumentCondition, place: Mapping[str, Any], root: Any) -> list[Any] | None:
    """Return values of which one fits if any permitted value does; None where that cannot be told."""
    named = [*(condition.equals or ()), *(condition.excludes or ())]
    bounds = [bound for bound in (condition.above, condition.below) if bound is not None]
    found: list[Any] = []
    for node in composed_schemas(dict(place), root):
        if (listed := _listed(node)) is not None:
            found += listed
            continue
        kinds = _kinds(node)
        if not kinds:
            if any(key in node for key in _COMPOSING):
                continue
            return None
        for kind in kinds:
            match kind:
                case "integer" | "number":
                    found += _numbers(named, bounds, node, whole=kind == "integer")
                case "string":
                    if condition.pattern is not None:
                        return None
                    found += [one if isinstance(one, str) else json.dumps(one) for one in named]
                    found += [str(number) for number in _numbers([], bounds, {}, whole=False)] + [_OTHER_TEXT]
                case "boolean":
                    found += [True, False]
                case "null":
                    found.append(None)
                case "object":
                    found += [one for one in named if isinstance(one, dict)] + [{_OTHER_TEXT: 0}]
                case "array" if not isinstance(node.get("items"), dict):
                    return None
    return found


def _numbers(named: Sequence[Any], bounds: Sequence[float], node: Mapping[str, Any], *, whole: bool) -> list[float]:
    """Return numbers that a schema permits: those that a condition names, and those around its bounds."""
    numbers: list[float] = [_OTHER_NUMBER, 0]
    for one in named:
        with suppress(TypeError, ValueError, OverflowError):
            numbers.append(float(one) if not whole else int(float(one)))
    limits = {key: limit for key in _LIMITS if (limit := _limit(node, key)) is not None}
    middle = [sum(bounds) / 2] if len(bounds) == 2 else []
    for bound in (*bounds, *middle, *limits.values()):
        if math.isfinite(bound):
            steps = (-1, 0, 1) if whole else (-1, -0.001, 0, 0.001, 1)
            numbers += [math.floor(bound) + step if whole else bound + step for step in steps]
    return [number for number in numbers if all(_LIMITS[key](number, limit) for key, limit in limits.items())]


def _limit(node: Mapping[str, Any], key: str) -> float | None:
    limit = node.get(key)
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _listed(node: Mapping[str, Any]) -> list[Any] | None:
    if "const" in node:
        return [node["const"]]
    listed = node.get("enum")
    return listed if isinstance(listed, list) else None


def _kinds(node: Mapping[str, Any]) -> list[str]:
    written = node.get("type")
    kinds = [written] if isinstance(written, str) else written if isinstance(written, list) else []
    return [*kinds, "null"] if kinds and node.get("nullable") is True else [kind for kind in kinds if kind]


def _described(place: Mapping[str, Any], root: Any, condition: ArgumentCondition) -> str:
    """Return what a schema permits, and which of its values is meant."""
    texts: list[str] = []
    for node in composed_schemas(dict(place), root):
        if (listed := _listed(node)) is not None:
            meant = [one for one in condition.equals or () if isinstance(one, str)]
            near = near_miss(meant[0], [one for one in listed if isinstance(one, str)]) if meant else ""
            texts.append(f"one of {', '.join(json.dumps(one) for one in listed[:8])}{near}")
        elif kinds := _kinds(node):
            texts.append(" or ".join(kinds))
    return ", ".join(texts)


def _paths(schema: Any) -> set[str]:
    """Return the names of arguments, and of the members of those that are objects."""
    properties = declared_properties(schema, schema)
    inner = {f"{name}.{member}" for name, below in properties.items() for member in declared_properties(below, schema)}
    return {*properties, *inner}
