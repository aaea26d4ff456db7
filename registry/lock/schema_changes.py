"""Decide whether a change of a schema narrows or widens the schema.

A change *narrows* a schema if a valid value may become invalid, and *widens* it if an invalid value may become valid.
In case of doubt, the change has both effects. The effect `text` means that only texts for people and models changed.

Source: JSON Schema 2020-12, "Core" and "Validation", and earlier drafts for keywords that differ there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from registry.lock.lockfile import PROSE, canonical

Effect = Literal["text", "narrowing", "widening"]
_NONE: Final[frozenset[Effect]] = frozenset()
_TEXT: Final[frozenset[Effect]] = frozenset({"text"})
_NARROWS: Final[frozenset[Effect]] = frozenset({"narrowing"})
_WIDENS: Final[frozenset[Effect]] = frozenset({"widening"})
_BOTH: Final[frozenset[Effect]] = frozenset({"narrowing", "widening"})
_FLIPPED: Final[Mapping[Effect, Effect]] = {"narrowing": "widening", "widening": "narrowing", "text": "text"}

_TYPES: Final = frozenset({"array", "boolean", "null", "number", "object", "string", "integer"})
_AT_LEAST: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_AT_MOST: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
# Keywords whose change may have any effect, because validators may ignore the keyword or because it affects others.
_UNCERTAIN: Final = frozenset(
    {
        "$anchor",
        "$dynamicAnchor",
        "$dynamicRef",
        "$id",
        "$recursiveAnchor",
        "$recursiveRef",
        "$ref",
        "$schema",
        "$vocabulary",
        "contains",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "dependencies",
        "format",
        "id",
        "maxContains",
        "minContains",
        "oneOf",
        "else",
        "if",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
# Keywords for which a wider subschema may narrow the whole schema.
_NOT_MONOTONOUS: Final = frozenset(
    {
        "not",
        "oneOf",
        "if",
        "contains",
        "dependencies",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$recursiveRef",
    }
)
_DEFINITIONS: Final = ("$defs", "definitions")
_ABSENT: Final = object()


def schema_effects(before: Any, after: Any) -> frozenset[Effect]:
    """Return the effects of a change from one schema to another; empty if they are equal.

    Args:
        before, after: Schemas of limited depth, because the comparison is recursive; None counts as `true`.
    """
    old, new = _normalize_schema(before), _normalize_schema(after)
    if canonical(old) == canonical(new):
        return _NONE
    if old is False or new is False:
        return _NARROWS if new is False else _WIDENS
    return _Comparison(old, new).effects()


def _normalize_schema(schema: Any) -> Any:
    # `true` and the empty schema both accept everything. A schema that is not valid stays unchanged, and its changes
    # have both effects.
    if schema is None or schema is True:
        return {}
    return schema


class _Comparison:
    """Compares two different schemas keyword by keyword."""

    def __init__(self, old: Any, new: Any) -> None:
        self._sound = isinstance(old, dict) and isinstance(new, dict)
        self._old: dict[str, Any] = old if isinstance(old, dict) else {}
        self._new: dict[str, Any] = new if isinstance(new, dict) else {}

    def effects(self) -> frozenset[Effect]:
        """Return the effects of the change."""
        if not self._sound:
            return _BOTH
        effects = _NONE
        for keyword in sorted({*self._old, *self._new}):
            effects |= self._effect(keyword)
        return effects

    def _effect(self, keyword: str) -> frozenset[Effect]:
        before, after = self._old.get(keyword, _ABSENT), self._new.get(keyword, _ABSENT)
        if _are_equal(before, after):
            return _NONE
        if keyword in PROSE:
            return _TEXT
        if keyword in _DEFINITIONS:
            return self._definitions(before, after)
        rule = _RULES.get(keyword)
        if rule is not None:
            return rule(before, after)
        if keyword in ("properties", "additionalProperties", "patternProperties"):
            # Compare the three keywords together and only once, because only together they determine a member's schema.
            return self._members() if keyword == self._first_of_members() else _NONE
        if keyword in ("items", "prefixItems", "additionalItems"):
            return _list_items(before, after) if keyword == "items" and self._has_plain_items() else _BOTH
        # An unknown keyword does not affect validation, but models may read it.
        return _BOTH if keyword in _UNCERTAIN else _TEXT

    def _has_plain_items(self) -> bool:
        """Return whether `items` applies to every item in both schemas."""
        return not any(key in schema for schema in (self._old, self._new) for key in ("prefixItems", "additionalItems"))

    def _first_of_members(self) -> str:
        keys = ("additionalProperties", "patternProperties", "properties")
        return next(key for key in keys if not _are_equal(self._old.get(key, _ABSENT), self._new.get(key, _ABSENT)))

    def _members(self) -> frozenset[Effect]:
        old, new = self._old, self._new
        patterns = [schema.get("patternProperties", {}) for schema in (old, new)]
        declared = [schema.get("properties", {}) for schema in (old, new)]
        if not all(isinstance(each, dict) for each in (*patterns, *declared)):
            return _BOTH
        effects = _NONE
        has_patterns = any(patterns)
        if has_patterns:
            if patterns[0].keys() != patterns[1].keys():
                effects |= _BOTH
            for pattern in patterns[0].keys() & patterns[1].keys():
                effects |= schema_effects(patterns[0][pattern], patterns[1][pattern])
        undeclared = [schema.get("additionalProperties", True) for schema in (old, new)]
        effects |= schema_effects(*undeclared)
        for name in declared[0].keys() & declared[1].keys():
            effects |= schema_effects(declared[0][name], declared[1][name])
        # `additionalProperties` covered a new property before, and covers a removed property now. A new property also
        # counts as widening, because it is an additional input.
        if declared[1].keys() - declared[0].keys():
            effects |= _WIDENS if undeclared[0] is False and not has_patterns else _BOTH
        if declared[0].keys() - declared[1].keys():
            effects |= _NARROWS if undeclared[1] is False and not has_patterns else _BOTH
        return effects

    def _definitions(self, before: Any, after: Any) -> frozenset[Effect]:
        old, new = ({} if each is _ABSENT else each for each in (before, after))
        if not isinstance(old, dict) or not isinstance(new, dict):
            return _BOTH
        effects = _NONE
        for name in old.keys() & new.keys():
            effects |= schema_effects(old[name], new[name])
        # A new or removed definition matters only if a `$ref` names it. Usually that `$ref` is new or removed as well.
        # Otherwise, the `$ref` had no target before, or has no target now.
        if old.keys() != new.keys() and _mentions(self._old, {"$ref"}) and _mentions(self._new, {"$ref"}):
            effects |= _BOTH
        if effects - _TEXT and any(_mentions(schema, _NOT_MONOTONOUS) for schema in (self._old, self._new)):
            effects |= _BOTH
        # Without another effect, only texts have changed, perhaps in unused definitions.
        return effects or _TEXT


def _are_equal(before: object, after: object) -> bool:
    if before is _ABSENT or after is _ABSENT:
        return before is after
    return canonical(before) == canonical(after)


def _mentions(schema: Any, keywords: frozenset[str] | set[str]) -> bool:
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if not keywords.isdisjoint(node):
                return True
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    return False


def _types(value: object) -> frozenset[str] | None:
    if value is _ABSENT:
        return _TYPES
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in listed):
        return None
    # Every integer is a number.
    return frozenset(listed) | ({"integer"} if "number" in listed else frozenset())


def _type(before: object, after: object) -> frozenset[Effect]:
    old, new = _types(before), _types(after)
    if old is None or new is None:
        return _BOTH
    return (_NARROWS if old - new else _NONE) | (_WIDENS if new - old else _NONE)


def _enum(before: object, after: object) -> frozenset[Effect]:
    if before is _ABSENT:
        return _NARROWS
    if after is _ABSENT:
        return _WIDENS
    if not isinstance(before, list) or not isinstance(after, list):
        return _BOTH
    old, new = ({canonical(each) for each in values} for values in (before, after))
    # If only the order of options has changed, the same values are valid, but models read another text.
    return (_NARROWS if old - new else _NONE) | (_WIDENS if new - old else _NONE) or _TEXT


def _const(before: object, after: object) -> frozenset[Effect]:
    return _presence(before, after, _BOTH)


def _presence(before: object, after: object, changed: frozenset[Effect]) -> frozenset[Effect]:
    """Return the effect of adding or removing a keyword that adds a condition, or else `changed`."""
    return _NARROWS if before is _ABSENT else _WIDENS if after is _ABSENT else changed


def _as_number(value: object) -> float | int | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _at_least(before: object, after: object) -> frozenset[Effect]:
    return _bound(before, after, -math.inf, _NARROWS, _WIDENS)


def _at_most(before: object, after: object) -> frozenset[Effect]:
    return _bound(before, after, math.inf, _WIDENS, _NARROWS)


def _bound(
    before: object, after: object, none: float, greater: frozenset[Effect], less: frozenset[Effect]
) -> frozenset[Effect]:
    old, new = (none if each is _ABSENT else _as_number(each) for each in (before, after))
    # The value is not a number if it is a boolean `exclusive…` of draft 4.
    if old is None or new is None:
        return _BOTH
    return _NONE if new == old else greater if new > old else less


def _multiple_of(before: object, after: object) -> frozenset[Effect]:
    if before is _ABSENT or after is _ABSENT:
        return _presence(before, after, _BOTH)
    old, new = _as_number(before), _as_number(after)
    # Remainders of fractions are not reliable, because of rounding.
    if not isinstance(old, int) or not isinstance(new, int) or old <= 0 or new <= 0:
        return _BOTH
    return _NARROWS if new % old == 0 else _WIDENS if old % new == 0 else _BOTH


def _pattern(before: object, after: object) -> frozenset[Effect]:
    return _presence(before, after, _BOTH)


def _unique(before: object, after: object) -> frozenset[Effect]:
    old, new = before is True, after is True
    return _NONE if old == new else _NARROWS if new else _WIDENS


def _effects_of_required(before: object, after: object) -> frozenset[Effect]:
    old, new = ([] if each is _ABSENT else each for each in (before, after))
    if not isinstance(old, list) or not isinstance(new, list):
        return _BOTH  # draft 3 has `required: true`
    was, now = set(map(canonical, old)), set(map(canonical, new))
    return (_NARROWS if now - was else _NONE) | (_WIDENS if was - now else _NONE)


def _dependent_required(before: object, after: object) -> frozenset[Effect]:
    old, new = ({} if each is _ABSENT else each for each in (before, after))
    if not isinstance(old, dict) or not isinstance(new, dict):
        return _BOTH
    effects = _NONE
    for name in old.keys() | new.keys():
        effects |= _effects_of_required(old.get(name, []), new.get(name, []))
    return effects


def _dependent_schemas(before: object, after: object) -> frozenset[Effect]:
    old, new = ({} if each is _ABSENT else each for each in (before, after))
    if not isinstance(old, dict) or not isinstance(new, dict):
        return _BOTH
    effects = _NONE
    for name in old.keys() | new.keys():
        effects |= schema_effects(old.get(name, True), new.get(name, True))
    return effects


def _subschema(before: object, after: object) -> frozenset[Effect]:
    return schema_effects(*(True if each is _ABSENT else each for each in (before, after)))


def _list_items(before: object, after: object) -> frozenset[Effect]:
    # In earlier drafts, `items` with a list of schemas is what `prefixItems` is now.
    return _BOTH if isinstance(before, list) or isinstance(after, list) else _subschema(before, after)


def _compare_not(before: object, after: object) -> frozenset[Effect]:
    if before is _ABSENT or after is _ABSENT:
        return _presence(before, after, _BOTH)
    return frozenset(_FLIPPED[effect] for effect in schema_effects(before, after))


def _all_of(before: object, after: object) -> frozenset[Effect]:
    return _alternatives(before, after, more=_NARROWS, fewer=_WIDENS)


def _any_of(before: object, after: object) -> frozenset[Effect]:
    if before is _ABSENT or after is _ABSENT:
        return _presence(before, after, _BOTH)
    return _alternatives(before, after, more=_WIDENS, fewer=_NARROWS)


def _alternatives(
    before: object, after: object, *, more: frozenset[Effect], fewer: frozenset[Effect]
) -> frozenset[Effect]:
    """Return the effects of a change of `allOf` or `anyOf`, ignoring schemas that are in both lists.

    Args:
        more: The effect of an additional schema.
        fewer: The effect of a removed schema.
    """
    old, new = ([] if each is _ABSENT else each for each in (before, after))
    if not isinstance(old, list) or not isinstance(new, list):
        return _BOTH
    removed, added = _difference(old, new), _difference(new, old)
    if len(removed) == len(added) == 1:
        return schema_effects(removed[0], added[0])
    return (more if added else _NONE) | (fewer if removed else _NONE) or _TEXT


def _difference(schemas: list[Any], others: list[Any]) -> list[Any]:
    other_forms = {canonical(_normalize_schema(each)) for each in others}
    return [each for each in schemas if canonical(_normalize_schema(each)) not in other_forms]


_RULES: Final[Mapping[str, Callable[[object, object], frozenset[Effect]]]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    **dict.fromkeys(_AT_LEAST, _at_least),
    **dict.fromkeys(_AT_MOST, _at_most),
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "uniqueItems": _unique,
    "required": _effects_of_required,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "propertyNames": _subschema,
    "not": _compare_not,
    "allOf": _all_of,
    "anyOf": _any_of,
}
