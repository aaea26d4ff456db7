"""Whether a schema takes less than another one, or more: a decision for each keyword of JSON Schema.

A change *narrows* where some value that was valid may not be any more, and *widens* where some value that was not may
be valid now. Both may hold, and do wherever it is not certain that one of them does not.

Source: JSON Schema 2020-12, "Core" and "Validation"; keywords of earlier drafts where they differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from registry.lock.digests import PROSE, canonical

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
# Annotations that validators may heed or not, and keywords that decide what others mean.
_UNCERTAIN: Final = frozenset(
    {"$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef", "$ref", "$schema",
     "$vocabulary", "contains", "contentEncoding", "contentMediaType", "contentSchema", "dependencies", "format", "id",
     "maxContains", "minContains", "oneOf", "else", "if", "then", "unevaluatedItems", "unevaluatedProperties"}
)  # fmt: skip
# Inside these a schema that takes more may make the whole take less.
_NOT_MONOTONOUS: Final = frozenset({"not", "oneOf", "if", "contains", "dependencies", "unevaluatedItems",
                                    "unevaluatedProperties", "$dynamicRef", "$recursiveRef"})  # fmt: skip
_DEFINITIONS: Final = ("$defs", "definitions")
_ABSENT: Final = object()


def schema_effects(before: Any, after: Any) -> frozenset[Effect]:
    """Return what a change from one schema to another does; nothing where the two are equal.

    Args:
        before, after: Schemas that are nested shallowly enough to recurse; None counts as `true`.
    """
    old, new = _normal(before), _normal(after)
    if canonical(old) == canonical(new):
        return _NONE
    if old is False or new is False:
        return _NARROWS if new is False else _WIDENS
    return _Comparison(old, new).effects()


def _normal(schema: Any) -> Any:
    # `true` and the empty schema take everything; what is no schema is left to the rule for doubt.
    if schema is None or schema is True:
        return {}
    return schema


class _Comparison:
    """Two schemas that differ, keyword by keyword."""

    def __init__(self, old: Any, new: Any) -> None:
        self._sound = isinstance(old, dict) and isinstance(new, dict)
        self._old: dict[str, Any] = old if isinstance(old, dict) else {}
        self._new: dict[str, Any] = new if isinstance(new, dict) else {}

    def effects(self) -> frozenset[Effect]:
        """What the change does."""
        if not self._sound:
            return _BOTH
        found = _NONE
        for keyword in sorted({*self._old, *self._new}):
            found |= self._effect(keyword)
        return found

    def _effect(self, keyword: str) -> frozenset[Effect]:
        before, after = self._old.get(keyword, _ABSENT), self._new.get(keyword, _ABSENT)
        if _equal(before, after):
            return _NONE
        if keyword in PROSE:
            return _TEXT
        if keyword in _DEFINITIONS:
            return self._definitions(before, after)
        rule = _RULES.get(keyword)
        if rule is not None:
            return rule(before, after)
        if keyword in ("properties", "additionalProperties", "patternProperties"):
            # Looked at together, once: what one of them leaves out another one takes.
            return self._members() if keyword == self._first_of_members() else _NONE
        if keyword in ("items", "prefixItems", "additionalItems"):
            return _list_items(before, after) if keyword == "items" and self._plain_items() else _BOTH
        # A keyword that no validator knows changes nothing but what is read.
        return _BOTH if keyword in _UNCERTAIN else _TEXT

    def _plain_items(self) -> bool:
        """Whether `items` is about every item."""
        return not any(key in schema for schema in (self._old, self._new) for key in ("prefixItems", "additionalItems"))

    def _first_of_members(self) -> str:
        keys = ("additionalProperties", "patternProperties", "properties")
        return next(
            key for key in keys if not _equal(self._old.get(key, _ABSENT), self._new.get(key, _ABSENT))
        )  # fmt: skip

    def _members(self) -> frozenset[Effect]:
        old, new = self._old, self._new
        patterns = [schema.get("patternProperties", {}) for schema in (old, new)]
        known = [schema.get("properties", {}) for schema in (old, new)]
        if not all(isinstance(each, dict) for each in (*patterns, *known)):
            return _BOTH
        found = _NONE
        if any(patterns):
            if patterns[0].keys() != patterns[1].keys():
                found |= _BOTH
            for pattern in patterns[0].keys() & patterns[1].keys():
                found |= schema_effects(patterns[0][pattern], patterns[1][pattern])
        rest = [schema.get("additionalProperties", True) for schema in (old, new)]
        found |= schema_effects(*rest)
        for name in known[0].keys() & known[1].keys():
            found |= schema_effects(known[0][name], known[1][name])
        # A member that had no schema of its own had that of the others, and one that loses its own gets theirs. That
        # there is another input at all is more than before, whatever the others had to be.
        if known[1].keys() - known[0].keys():
            found |= _WIDENS if rest[0] is False and not patterns[0] else _BOTH
        if known[0].keys() - known[1].keys():
            found |= _NARROWS if rest[1] is False and not patterns[1] else _BOTH
        return found

    def _definitions(self, before: Any, after: Any) -> frozenset[Effect]:
        old, new = ({} if each is _ABSENT else each for each in (before, after))
        if not isinstance(old, dict) or not isinstance(new, dict):
            return _BOTH
        found = _NONE
        for name in old.keys() & new.keys():
            found |= schema_effects(old[name], new[name])
        # A definition that comes or goes is of no effect but where it is referred to, which changes as well. That it
        # is the text of a reference that leads nowhere is nothing to rely on.
        if old.keys() != new.keys() and _mentions(self._old, {"$ref"}) and _mentions(self._new, {"$ref"}):
            found |= _BOTH
        if found - _TEXT and any(_mentions(schema, _NOT_MONOTONOUS) for schema in (self._old, self._new)):
            found |= _BOTH
        # Texts may be all that has changed in definitions that nobody refers to.
        return found or _TEXT


def _equal(before: object, after: object) -> bool:
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
    # In another order it takes the same; a model reads it in that order.
    return (_NARROWS if old - new else _NONE) | (_WIDENS if new - old else _NONE) or _TEXT


def _const(before: object, after: object) -> frozenset[Effect]:
    return _presence(before, after, _BOTH)


def _presence(before: object, after: object, changed: frozenset[Effect]) -> frozenset[Effect]:
    """A keyword whose presence is a condition more."""
    return _NARROWS if before is _ABSENT else _WIDENS if after is _ABSENT else changed


def _number(value: object) -> float | int | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _at_least(before: object, after: object) -> frozenset[Effect]:
    return _bound(before, after, -math.inf, _NARROWS, _WIDENS)


def _at_most(before: object, after: object) -> frozenset[Effect]:
    return _bound(before, after, math.inf, _WIDENS, _NARROWS)


def _bound(
    before: object, after: object, none: float, greater: frozenset[Effect], less: frozenset[Effect]
) -> frozenset[Effect]:
    old, new = (none if each is _ABSENT else _number(each) for each in (before, after))
    # Booleans stood for `exclusive…` in the fourth draft.
    if old is None or new is None:
        return _BOTH
    return _NONE if new == old else greater if new > old else less


def _multiple_of(before: object, after: object) -> frozenset[Effect]:
    if before is _ABSENT or after is _ABSENT:
        return _presence(before, after, _BOTH)
    old, new = _number(before), _number(after)
    # Of fractions a remainder says nothing.
    if not isinstance(old, int) or not isinstance(new, int) or old <= 0 or new <= 0:
        return _BOTH
    return _NARROWS if new % old == 0 else _WIDENS if old % new == 0 else _BOTH


def _pattern(before: object, after: object) -> frozenset[Effect]:
    return _presence(before, after, _BOTH)


def _unique(before: object, after: object) -> frozenset[Effect]:
    old, new = before is True, after is True
    return _NONE if old == new else _NARROWS if new else _WIDENS


def _required(before: object, after: object) -> frozenset[Effect]:
    old, new = ([] if each is _ABSENT else each for each in (before, after))
    if not isinstance(old, list) or not isinstance(new, list):
        return _BOTH  # `required: true` of the third draft
    was, now = set(map(canonical, old)), set(map(canonical, new))
    return (_NARROWS if now - was else _NONE) | (_WIDENS if was - now else _NONE)


def _dependent_required(before: object, after: object) -> frozenset[Effect]:
    old, new = ({} if each is _ABSENT else each for each in (before, after))
    if not isinstance(old, dict) or not isinstance(new, dict):
        return _BOTH
    found = _NONE
    for name in old.keys() | new.keys():
        found |= _required(old.get(name, []), new.get(name, []))
    return found


def _dependent_schemas(before: object, after: object) -> frozenset[Effect]:
    old, new = ({} if each is _ABSENT else each for each in (before, after))
    if not isinstance(old, dict) or not isinstance(new, dict):
        return _BOTH
    found = _NONE
    for name in old.keys() | new.keys():
        found |= schema_effects(old.get(name, True), new.get(name, True))
    return found


def _subschema(before: object, after: object) -> frozenset[Effect]:
    return schema_effects(*(True if each is _ABSENT else each for each in (before, after)))


def _list_items(before: object, after: object) -> frozenset[Effect]:
    # A list of schemas is what earlier drafts had for `prefixItems`.
    return _BOTH if isinstance(before, list) or isinstance(after, list) else _subschema(before, after)


def _not(before: object, after: object) -> frozenset[Effect]:
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
    """A list of schemas in which each has the same part; those that are in both lists are of no effect."""
    old, new = ([] if each is _ABSENT else each for each in (before, after))
    if not isinstance(old, list) or not isinstance(new, list):
        return _BOTH
    gone, come = _without(old, new), _without(new, old)
    if len(gone) == len(come) == 1:
        return schema_effects(gone[0], come[0])
    return (more if come else _NONE) | (fewer if gone else _NONE) or _TEXT


def _without(schemas: list[Any], others: list[Any]) -> list[Any]:
    known = {canonical(_normal(each)) for each in others}
    return [each for each in schemas if canonical(_normal(each)) not in known]


_RULES: Final[Mapping[str, Callable[[object, object], frozenset[Effect]]]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    **dict.fromkeys(_AT_LEAST, _at_least),
    **dict.fromkeys(_AT_MOST, _at_most),
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "uniqueItems": _unique,
    "required": _required,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "propertyNames": _subschema,
    "not": _not,
    "allOf": _all_of,
    "anyOf": _any_of,
}
