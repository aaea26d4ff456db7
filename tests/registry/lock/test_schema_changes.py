"""Effects of schema changes, compared with the validator on generated values."""

from __future__ import annotations

from math import inf
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.lock.lockfile import canonical, digest_of, prose_of, without_prose
from registry.lock.schema_changes import schema_effects

BOTH = {"narrowing", "widening"}
NAMES = ("a", "b", "c")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 6) | st.sampled_from([0.5, 2.0]) | st.text("abx", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=5,
)
SMALL = st.integers(0, 4)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    by_name = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    several = st.lists(inner, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["integer", "number", "string", "array", "object", ["string", "null"]]),
            "enum": st.lists(st.sampled_from([1, 2, "a", None]), min_size=1, max_size=3, unique_by=repr),
            "const": st.sampled_from([1, "a"]),
            "minimum": SMALL, "maximum": SMALL, "exclusiveMinimum": SMALL, "multipleOf": st.integers(1, 4),
            "minLength": SMALL, "maxLength": SMALL, "pattern": st.sampled_from(["^a", "b", "x$"]),
            "minItems": SMALL, "maxItems": SMALL, "uniqueItems": st.booleans(),
            "minProperties": SMALL, "maxProperties": SMALL,
            "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
            "properties": by_name, "additionalProperties": inner | st.booleans(),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b|c"]), inner, max_size=2),
            "propertyNames": st.just({"maxLength": 1}) | st.just({"enum": ["a", "b"]}),
            "dependentRequired": st.dictionaries(
                st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), unique=True), max_size=2
            ),
            "dependentSchemas": by_name,
            "items": inner | st.booleans(), "prefixItems": several, "contains": inner, "minContains": st.integers(0, 2),
            "allOf": several, "anyOf": several, "oneOf": several, "not": inner, "if": inner, "then": inner,
            "title": st.sampled_from(["one", "two"]), "format": st.sampled_from(["date", "email"]),
        },
    )  # fmt: skip


SCHEMAS: st.SearchStrategy[Any] = st.recursive(st.just({}) | st.booleans(), _schemas, max_leaves=6)


@st.composite
def changed(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two schemas of which the second is often the first with one keyword more, fewer or of another value."""
    before = draw(_schemas(SCHEMAS))
    if draw(st.booleans()):
        return before, draw(SCHEMAS)
    after = dict(before)
    other = draw(_schemas(SCHEMAS))
    for keyword in draw(st.lists(st.sampled_from(sorted({*before, *other}) or ["title"]), min_size=1, max_size=2)):
        if keyword in other:
            after[keyword] = other[keyword]
        else:
            after.pop(keyword, None)
    return before, after


@settings(max_examples=60)
@given(pair=changed(), values=st.lists(VALUES, min_size=1, max_size=12))
@pytest.mark.heavy
def test_schema_effects_agree_with_the_validator(pair: tuple[Any, Any], values: list[Any]) -> None:
    before, after = pair
    effects = schema_effects(before, after)
    old, new = jsonschema_rs.Draft202012Validator(before), jsonschema_rs.Draft202012Validator(after)
    for value in values:
        was, now = old.is_valid(value), new.is_valid(value)
        assert not (was and not now) or "narrowing" in effects, (value, effects)
        assert not (now and not was) or "widening" in effects, (value, effects)


@pytest.mark.parametrize(
    ("before", "after", "effects"),
    [
        ({"type": "string"}, {"type": "string"}, set()),
        ({"maximum": 1}, {"maximum": 1.0}, set()),
        ({"description": "a"}, {"description": "b"}, {"text"}),
        ({"properties": {"a": {"title": "x"}}}, {"properties": {"a": {}}}, {"text"}),
        ({"type": "integer"}, {"type": "number"}, {"widening"}),
        ({"type": ["string", "null"]}, {"type": "string"}, {"narrowing"}),
        ({"enum": [1, 2]}, {"enum": [2, 3]}, {"narrowing", "widening"}),
        ({"enum": [1, 2]}, {"enum": [2, 1]}, {"text"}),
        ({"maxLength": 5}, {"maxLength": 6}, {"widening"}),
        ({"minimum": 5}, {"minimum": 6}, {"narrowing"}),
        ({"multipleOf": 2}, {"multipleOf": 4}, {"narrowing"}),
        ({"required": ["a"]}, {"required": []}, {"widening"}),
        ({"properties": {}, "additionalProperties": False},
         {"properties": {"a": {}}, "additionalProperties": False}, {"widening"}),
        ({"properties": {}}, {"properties": {"a": {"type": "string"}}}, {"narrowing", "widening"}),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"additionalProperties": False}, {"narrowing"}),
        ({"anyOf": [{"const": 1}]}, {"anyOf": [{"const": 1}, {"const": 2}]}, {"widening"}),
        ({"allOf": [{"minimum": 1}]}, {"allOf": [{"minimum": 2}]}, {"narrowing"}),
        ({"not": {"minimum": 1}}, {"not": {"minimum": 2}}, {"widening"}),
        ({"additionalProperties": True}, {"additionalProperties": False}, {"narrowing"}),
        ({"x-vendor": 1}, {"x-vendor": 2}, {"text"}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"maximum": 1}}}, {"$ref": "#/$defs/a", "$defs": {"a": {"maximum": 2}}},
         {"widening"}),
        (True, False, {"narrowing"}),
        (False, {}, {"widening"}),
        (None, {}, set()),
        ({"maximum": 2**70}, {"maximum": 2**70 + 1}, {"widening"}),
        ({"maximum": inf}, {}, set()),
        ({"exclusiveMinimum": True}, {"exclusiveMinimum": 5}, BOTH),
        ({"minLength": 5}, {"minLength": "5"}, BOTH),
        ({}, {"type": "string"}, {"narrowing"}),
        ({"type": "string"}, {"type": "number"}, BOTH),
        ({"type": ["string", 1]}, {"type": "string"}, BOTH),
        ({"type": "string"}, {"type": ["string", 1]}, BOTH),
        ({}, {"enum": [1]}, {"narrowing"}),
        ({"enum": [1]}, {}, {"widening"}),
        ({"enum": ["a"]}, {"enum": "a"}, BOTH),
        ({"enum": "a"}, {"enum": ["a"]}, BOTH),
        ({}, {"const": 1}, {"narrowing"}),
        ({"const": 1}, {}, {"widening"}),
        ({"const": 1}, {"const": 2}, BOTH),
        ({}, {"multipleOf": 2}, {"narrowing"}),
        ({"multipleOf": 2}, {}, {"widening"}),
        ({"multipleOf": 4}, {"multipleOf": 2}, {"widening"}),
        ({"multipleOf": 1}, {"multipleOf": 2}, {"narrowing"}),
        ({"multipleOf": 2}, {"multipleOf": 1}, {"widening"}),
        ({"multipleOf": 2}, {"multipleOf": 3}, BOTH),
        ({"multipleOf": 0}, {"multipleOf": 2}, BOTH),
        ({"multipleOf": 2}, {"multipleOf": 0}, BOTH),
        ({"multipleOf": 0.5}, {"multipleOf": 1}, BOTH),
        ({"multipleOf": 1}, {"multipleOf": 0.5}, BOTH),
        ({}, {"pattern": "a"}, {"narrowing"}),
        ({"pattern": "a"}, {}, {"widening"}),
        ({"pattern": "a"}, {"pattern": "b"}, BOTH),
        ({}, {"uniqueItems": True}, {"narrowing"}),
        ({"uniqueItems": True}, {"uniqueItems": False}, {"widening"}),
        ({"uniqueItems": False}, {}, set()),
        ({}, {"required": ["a"]}, {"narrowing"}),
        ({"required": ["a"]}, {"required": ["b"]}, BOTH),
        ({"required": ["a"]}, {"required": True}, BOTH),
        ({"required": True}, {"required": ["a"]}, BOTH),
        ({}, {"dependentRequired": {"a": ["b"]}}, {"narrowing"}),
        ({"dependentRequired": {"a": ["b"]}}, {}, {"widening"}),
        ({"dependentRequired": {"a": []}}, {"dependentRequired": []}, BOTH),
        ({"dependentRequired": []}, {"dependentRequired": {"a": []}}, BOTH),
        ({}, {"dependentSchemas": {"a": {"maximum": 1}}}, {"narrowing"}),
        ({"dependentSchemas": {"a": {"maximum": 1}}}, {}, {"widening"}),
        ({"dependentSchemas": {"a": {}}}, {"dependentSchemas": []}, BOTH),
        ({"dependentSchemas": []}, {"dependentSchemas": {"a": {}}}, BOTH),
        ({}, {"propertyNames": {"maxLength": 1}}, {"narrowing"}),
        ({"propertyNames": {"maxLength": 1}}, {"propertyNames": True}, {"widening"}),
        ({}, {"not": {"minimum": 1}}, {"narrowing"}),
        ({"not": {"minimum": 1}}, {}, {"widening"}),
        ({}, {"allOf": [{"minimum": 1}]}, {"narrowing"}),
        ({"allOf": [{"minimum": 1}, {"maximum": 5}]}, {"allOf": [{"minimum": 2}, {"maximum": 6}]}, BOTH),
        ({"allOf": [{"minimum": 1}, {"maximum": 5}]}, {"allOf": [{"maximum": 5}, {"minimum": 1}]}, {"text"}),
        ({"allOf": [{}]}, {"allOf": [True]}, {"text"}),
        ({"allOf": [{}]}, {"allOf": {}}, BOTH),
        ({"allOf": {}}, {"allOf": [{}]}, BOTH),
        ({}, {"anyOf": [{"const": 1}]}, {"narrowing"}),
        ({"anyOf": [{"const": 1}]}, {}, {"widening"}),
        ({"items": {"maximum": 2}}, {"items": {"maximum": 1}}, {"narrowing"}),
        ({"prefixItems": [True], "items": {"maximum": 2}}, {"prefixItems": [True], "items": {"maximum": 1}}, BOTH),
        ({"items": [{}], "additionalItems": True}, {"items": [{}], "additionalItems": False}, BOTH),
        ({"items": [{}]}, {"items": False}, BOTH),
        ({"items": False}, {"items": [{}]}, BOTH),
        ({"properties": []}, {"properties": {"a": {}}}, BOTH),
        ({"patternProperties": []}, {"patternProperties": {"a": {}}}, BOTH),
        ({"patternProperties": {"^a": {}}}, {"patternProperties": {"^a": {"maximum": 1}}}, {"narrowing"}),
        ({"patternProperties": {"^a": {"maximum": 2}, "^b": {}}},
         {"patternProperties": {"^a": {"maximum": 2}}, "properties": {}}, BOTH),
        ({"additionalProperties": False}, {"properties": {"a": {}}}, {"widening"}),
        ({"properties": {"a": {}}}, {"additionalProperties": False}, {"narrowing"}),
        ({"patternProperties": {"^a": {}}, "additionalProperties": False},
         {"patternProperties": {"^a": {}}, "additionalProperties": False, "properties": {"a": {}}}, BOTH),
        ({"patternProperties": {"^a": {}}, "additionalProperties": False, "properties": {"a": {}}},
         {"patternProperties": {"^a": {}}, "additionalProperties": False}, BOTH),
        ({"properties": {"a": {"maximum": 1}}, "title": "x"}, {"properties": {"a": {"maximum": 2}}},
         {"text", "widening"}),
        ("no schema", {}, BOTH),
        ({}, "no schema", BOTH),
        (False, "no schema", {"widening"}),
        ({"format": "date"}, {}, BOTH),
    ],
)  # fmt: skip
def test_schema_effects_of_each_keyword(before: Any, after: Any, effects: set[str]) -> None:
    assert schema_effects(before, after) == effects


@pytest.mark.parametrize(
    ("used_by", "before", "after", "effects"),
    [
        ({}, {}, {"a": {}}, {"text"}),
        ({}, {"a": {}}, ..., {"text"}),
        ({}, {"a": {"maximum": 2}}, {"a": {"maximum": 1}}, {"narrowing"}),
        ({}, {"a": {"title": "x"}, "b": {}}, {"a": {"title": "y"}, "c": {}}, {"text"}),
        ({}, [], {"a": {}}, BOTH),
        ({}, {"a": {}}, [], BOTH),
        # The reference had no target before, or has none now.
        ({"$ref": "#/$defs/a"}, ..., {"a": {}}, BOTH),
        ({"allOf": [{"$ref": "#/$defs/a"}]}, {"a": {}}, {}, BOTH),
        ({"$ref": "#/$defs/a"}, {"a": {"title": "x"}}, {"a": {"title": "y"}}, {"text"}),
        # A reference below `not` reverses the effect.
        ({"not": {"$ref": "#/$defs/a"}}, {"a": {"maximum": 2}}, {"a": {"maximum": 1}}, BOTH),
        ({"not": {"$ref": "#/$defs/a"}}, {"a": {"title": "x"}}, {"a": {"title": "y"}}, {"text"}),
    ],
)  # fmt: skip
def test_schema_effects_of_definitions(used_by: dict[str, Any], before: Any, after: Any, effects: set[str]) -> None:
    old, new = ({**used_by, **({} if each is ... else {"$defs": each})} for each in (before, after))
    assert schema_effects(old, new) == effects


def test_new_reference_to_a_new_definition_has_the_effect_of_its_keyword() -> None:
    after = {"$defs": {"a": {}}, "allOf": [{"$ref": "#/$defs/a"}]}
    assert schema_effects({}, after) == {"text", "narrowing"}
    assert schema_effects(after, {}) == {"text", "widening"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def equal(first: Any, second: Any) -> bool:
    """Equality as in JSON, where true is not 1 and the order of keys is nothing."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(equal, first, second))
    return isinstance(first, bool) == isinstance(second, bool) and bool(first == second)


@given(first=JSON, second=JSON | st.sampled_from([1, 1.0, True, 2**70, float(2**70), "1"]))
def test_digests_are_equal_if_and_only_if_values_are(first: Any, second: Any) -> None:
    assert (digest_of(first) == digest_of(second)) == equal(first, second)
    assert digest_of(2**70) == digest_of(float(2**70)) != digest_of(2**70 + 1)


@pytest.mark.heavy
@given(schema=_schemas(SCHEMAS))
def test_schema_splits_into_prose_and_the_rest(schema: Any) -> None:
    plain = without_prose(schema)
    assert prose_of(plain) is None
    assert without_prose(plain) == plain
    assert (canonical(plain) == canonical(schema)) == (prose_of(schema) is None)


def test_parameter_named_title_is_not_prose() -> None:
    schema = {"properties": {"title": {"type": "string"}, "description": {"type": "string", "title": "x"}}}
    assert without_prose(schema)["properties"] == {"title": {"type": "string"}, "description": {"type": "string"}}
    assert prose_of(schema) == {"properties": {"description": {"title": ["x"]}}}
