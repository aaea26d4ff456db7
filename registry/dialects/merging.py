"""Merge combined or alternative schemas into a single schema that accepts at least the same values.

Subschemas are never copied, so that they can still be recognized by identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from registry.schema.schemas import canonical_json

# Keywords that describe a value without constraining it.
ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples", "example", "$comment", "deprecated"})
# Keywords of object alternatives that can be merged; any other keyword of an alternative is lost.
MERGEABLE: Final = frozenset({"type", "properties", "required", "additionalProperties"})
# If two bounds are merged, the greater lower bound or the smaller upper bound applies.
_LOWER: Final = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_UPPER: Final = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_MAPS: Final = frozenset({"properties", "patternProperties"})
# Keywords that depend on each other: they stay together or are not merged.
_GROUPS: Final = (
    frozenset({"if", "then", "else"}),
    frozenset({"contains", "minContains", "maxContains"}),
)
_TUPLE: Final = frozenset({"prefixItems", "items", "additionalItems"})
# In draft 4 a boolean makes the bound next to it exclusive.
_BOUNDS: Final = (frozenset({"minimum", "exclusiveMinimum"}), frozenset({"maximum", "exclusiveMaximum"}))
# Maximum number of alternatives for one property. Reading more would cost a model thousands of tokens for little
# information.
_MAX_DISTINCT: Final = 64


def merge_all(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one schema for values that match all given schemas; keywords that cannot be merged go into its `allOf`."""
    if len(parts) == 1:
        return parts[0]  # the same object, so that callers see that nothing changed
    merged: dict[str, Any] = dict(parts[0])
    unmerged: list[Any] = list(merged.pop("allOf", ()))
    for part in parts[1:]:
        part = dict(part)
        unmerged.extend(part.pop("allOf", ()))
        for group in _GROUPS:
            _keep_group_apart(merged, part, group, unmerged)
        if (
            "prefixItems" in part
            or "prefixItems" in merged
            or isinstance(part.get("items"), list)
            or isinstance(merged.get("items"), list)
        ):
            _keep_group_apart(merged, part, _TUPLE, unmerged)
        for bounds in _BOUNDS:
            if any(isinstance(schema.get(keyword), bool) for schema in (merged, part) for keyword in bounds):
                _keep_group_apart(merged, part, bounds, unmerged)
        for keyword, value in part.items():
            if keyword not in merged:
                merged[keyword] = value
            elif not equal_json(merged[keyword], value):
                _merge_keyword(merged, keyword, value, unmerged)
    if unmerged:
        merged["allOf"] = unmerged
    return merged


def _keep_group_apart(merged: dict[str, Any], part: dict[str, Any], group: frozenset[str], unmerged: list[Any]) -> None:
    if merged.keys() & group and part.keys() & group:
        unmerged.append({keyword: part.pop(keyword) for keyword in list(part) if keyword in group})


def _merge_keyword(merged: dict[str, Any], keyword: str, value: Any, unmerged: list[Any]) -> None:
    current = merged[keyword]
    if keyword in ANNOTATIONS or keyword.startswith(("$", "x-", "unevaluated")):
        return  # `unevaluated…` depends on its neighbours, and would mean something else in a separate schema
    if keyword in _MAPS and isinstance(current, dict) and isinstance(value, dict):
        merged[keyword] = {
            **current,
            **{
                name: _both_subschemas(current[name], below) if name in current else below
                for name, below in value.items()
            },
        }
    elif keyword == "required" and isinstance(current, list) and isinstance(value, list):
        merged[keyword] = list(dict.fromkeys([*current, *value]))
    elif keyword == "additionalProperties" or keyword == "items":
        merged[keyword] = _both_subschemas(current, value)
    elif keyword == "type":
        merged[keyword] = _common_types(current, value)
    elif keyword == "enum":
        # Without a common option nothing matches; keep the first list, so that the schema stays readable.
        allowed = {canonical_json(option) for option in value}
        merged[keyword] = [option for option in current if canonical_json(option) in allowed] or current
    elif keyword in _LOWER and _is_number(current) and _is_number(value):
        merged[keyword] = max(current, value)
    elif keyword in _UPPER and _is_number(current) and _is_number(value):
        merged[keyword] = min(current, value)
    elif keyword == "uniqueItems":
        merged[keyword] = True
    else:
        unmerged.append({keyword: value})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _both_subschemas(first: Any, second: Any) -> Any:
    if first is second or first is False or second is True or second == {}:
        return first
    if second is False or first is True or first == {}:
        return second
    return first if equal_json(first, second) else {"allOf": [first, second]}


def _common_types(first: Any, second: Any) -> Any:
    """Return the types that both allow; if there are none, return `first`, as an empty list would reject any value."""
    ours, theirs = ([types] if isinstance(types, str) else types for types in (first, second))
    shared = [name for name in ours if name in theirs or (name == "integer" and "number" in theirs)]
    if "integer" in theirs and "number" in ours and "integer" not in ours:
        shared.append("integer")
    return first if not shared else shared[0] if len(shared) == 1 else list(dict.fromkeys(shared))


def equal_json(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal; unlike with `==`, 1 differs from true and from 1.0."""
    return first is second or canonical_json(first) == canonical_json(second)


@dataclass(frozen=True, slots=True)
class MergedAlternatives:
    """One schema for the objects that match at least one of several schemas.

    Attributes:
        schema: The merged schema, which accepts every object that an alternative accepts, unless `narrower` is true.
        lost: Keywords of the alternatives that the merged schema lacks.
        narrower: True if the merged schema may reject an object because of a property that the object's alternative
            does not declare.
    """

    schema: dict[str, Any]
    lost: frozenset[str]
    narrower: bool


def merge_any(branches: Sequence[Any]) -> MergedAlternatives:
    """Return one schema for objects that match at least one of several schemas; ignore schemas that match no object."""
    usable = [branch for branch in branches if isinstance(branch, dict) and _may_be_object(branch)]
    if not usable or any(branch is True for branch in branches):
        return MergedAlternatives({}, frozenset(), False)
    if len(usable) == 1:
        return MergedAlternatives(
            {key: value for key, value in usable[0].items() if key not in ANNOTATIONS}, frozenset(), False
        )
    declared: dict[str, list[Any]] = {}
    dropped: set[str] = set()
    for branch in usable:
        for name, below in _properties(branch).items():
            declared.setdefault(name, []).append(below)
        dropped |= branch.keys() - MERGEABLE - ANNOTATIONS
        if isinstance(branch.get("additionalProperties"), dict):
            dropped.add("additionalProperties")
    schema: dict[str, Any] = {}
    if declared:
        schema["properties"] = {name: any_of(schemas) for name, schemas in declared.items()}
    demanded = [branch["required"] for branch in usable if isinstance(branch.get("required"), list)]
    if len(demanded) == len(usable):
        further_names = [set(names) for names in demanded[1:]]
        required = [name for name in demanded[0] if all(name in names for names in further_names)]
        if required:
            schema["required"] = required
    closed = [_is_closed(branch) for branch in usable]
    if all(closed):
        schema["additionalProperties"] = False
    narrower = any(
        not shut and len(_properties(branch)) < len(declared) for branch, shut in zip(usable, closed, strict=True)
    )
    return MergedAlternatives(schema, frozenset(dropped), narrower)


def any_of(schemas: Sequence[Any]) -> Any:
    """Return a schema for values that match at least one of several schemas; enumerations are combined."""
    # Compare schemas in canonical form, because equal schemas often have their members in a different order.
    distinct = list({canonical_json(schema): schema for schema in schemas}.values())
    if len(distinct) == 1:
        return distinct[0]
    if any(schema is True or schema == {} for schema in distinct) or len(distinct) > _MAX_DISTINCT:
        return {}
    return _merge_enums(distinct) or {"anyOf": distinct}


def _merge_enums(schemas: Sequence[Any]) -> dict[str, Any] | None:
    options: dict[bytes, Any] = {}
    types: set[str] = set()
    for schema in schemas:
        if not isinstance(schema, dict) or not schema.keys() <= {"const", "enum", "type", *ANNOTATIONS}:
            return None
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        kind = schema.get("type")
        if not isinstance(values, list) or ("const" in schema and "enum" in schema):
            return None
        if not isinstance(kind, str | None):
            return None
        types.add(kind or "")
        options |= {canonical_json(value): value for value in values}
    if len(types) != 1:
        return None
    [kind] = types
    return {**({"type": kind} if kind else {}), "enum": list(options.values())}


def _properties(branch: dict[str, Any]) -> dict[str, Any]:
    properties = branch.get("properties")
    return properties if isinstance(properties, dict) else {}


def _is_closed(branch: dict[str, Any]) -> bool:
    return branch.get("additionalProperties") is False and not branch.get("patternProperties")


def _may_be_object(branch: dict[str, Any]) -> bool:
    kind = branch.get("type", "object")
    return branch.get("not") != {} and (kind == "object" or (isinstance(kind, list) and "object" in kind))
