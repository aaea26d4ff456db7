"""Whether a condition on an argument can hold for a schema, and the reason if it cannot."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from registry.policy.rules import ArgumentCondition
from registry.policy.unmatched_rules import missing_reason


def reason(schema: Any, path: str = "a", *, permits: bool = False, **tests: Any) -> str | None:
    return missing_reason(ArgumentCondition(path=path, **tests), [schema], permits=permits)


def object_with(a: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": a}, **more}


UNFIT = "no value that the argument may have fits"
ABSENT = "no tool that the rule covers has this argument"


@pytest.mark.parametrize(
    ("declared", "tests", "permitted"),
    [
        ({"enum": ["x", "y"]}, {"equals": ("z",)}, 'one of "x", "y"'),
        ({"const": "x"}, {"equals": ("z",)}, 'one of "x"'),
        ({"type": "string", "enum": ["blue"]}, {"equals": ("bleu",)}, 'one of "blue"; did you mean blue?'),
        ({"type": ["boolean", "null"]}, {"above": 1}, "boolean or null"),
        ({"type": "boolean", "nullable": True}, {"equals": ("x",)}, "boolean or null"),
        ({"type": "boolean", "nullable": False}, {"equals": ("x",)}, "boolean"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, {"equals": ("x",)}, "null, boolean"),
        ({"type": "integer", "minimum": 1, "maximum": 5}, {"above": 5}, "integer"),
        ({"type": "integer", "exclusiveMaximum": 5}, {"above": 4}, "integer"),
        ({"type": "number", "exclusiveMinimum": 5}, {"below": 5}, "number"),
        ({"type": "integer"}, {"above": 1, "below": 2}, "integer"),
        ({"type": "integer"}, {"equals": (4.5,)}, "integer"),
        ({"type": "boolean"}, {"below": 1}, "boolean"),
        ({"type": "object", "properties": {}}, {"equals": ("x",)}, "object"),
        ({"enum": [1, "x"]}, {"pattern": "^1"}, 'one of 1, "x"'),
        ({"enum": ["x"]}, {"excludes": ("x",)}, 'one of "x"'),
        ({"enum": list(range(9))}, {"equals": (9,)}, "one of 0, 1, 2, 3, 4, 5, 6, 7"),
    ],
)
def test_condition_that_no_permitted_value_fulfils_is_explained(
    declared: dict[str, Any], tests: dict[str, Any], permitted: str
) -> None:
    assert reason(object_with(declared), **tests) == f"{UNFIT} ({permitted})"


@pytest.mark.parametrize(
    ("declared", "tests"),
    [
        ({"enum": ["x", "y"]}, {"equals": ("y",)}),
        ({"const": 5}, {"above": 4}),
        ({"type": ["string", "null"]}, {"equals": ("x",)}),
        ({"type": "string"}, {"pattern": "^x"}),
        ({"type": "string"}, {"above": 3}),
        ({"type": "boolean", "nullable": True}, {"equals": (None,)}),
        # Without a type, nothing is known.
        ({}, {"equals": ("x",)}),
        ({"nullable": True}, {"equals": ("x",)}),
        (True, {"equals": ("x",)}),
        ({"anyOf": [{"type": "boolean"}, {"type": "string"}]}, {"equals": ("x",)}),
        ({"$ref": "#/$defs/n"}, {"above": 7}),
        ({"type": "integer", "minimum": 1, "maximum": 5}, {"above": 4}),
        ({"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 6}, {"equals": (5,)}),
        ({"type": "number"}, {"above": 1, "below": 2}),
        ({"type": "number", "minimum": True}, {"below": 0}),
        ({"type": "array", "items": {"type": "string"}}, {"equals": ("x",)}),
        ({"type": "array"}, {"equals": ("x",)}),
        ({"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "integer"}]}, {"above": 3}),
        ({"type": "object"}, {"equals": ({"b": 1},)}),
        ({"type": "object"}, {"excludes": ({"b": 1},)}),
        ({"type": "string"}, {"equals": (5,)}),
        ({"type": "string"}, {"excludes": ("x",)}),
        ({"type": "string"}, {"above": 1, "below": 2}),
        ({"enum": "x"}, {"equals": ("y",)}),
        ({"anyOf": [{"type": "string"}, {"enum": [1]}]}, {"equals": ("x",)}),
        ({"type": "boolean"}, {"equals": (True,)}),
        ({"type": "boolean"}, {"equals": (False,)}),
        ({"type": "integer"}, {"equals": (42,)}),
        ({"type": "integer"}, {"equals": ("x", "1e999", 42)}),
        ({"type": "integer"}, {"excludes": (0,)}),
        ({"type": "integer"}, {"above": -inf}),
        ({"type": "integer", "minimum": 4}, {"below": 4.5}),
        ({"type": "number"}, {"equals": (4.5,)}),
        ({"type": "number"}, {"above": 1, "below": 1.0005}),
        ({"type": "number", "minimum": "x"}, {"below": 0}),
        ({"type": "number", "minimum": 1, "maximum": 1}, {"equals": ("1",)}),
    ],
)
def test_condition_that_a_permitted_value_may_fulfil_is_not_reported(declared: Any, tests: dict[str, Any]) -> None:
    assert reason(object_with(declared, **{"$defs": {"n": {"type": "integer"}}}), **tests) is None


def test_allowing_condition_needs_a_value_that_certainly_fits() -> None:
    # A text for a number may be read as one, so it restricts; it does not certainly match.
    schema = object_with({"enum": ["x", "y"]})
    assert reason(schema, permits=True, equals=(5,)) == f'{UNFIT} (one of "x", "y")'
    assert reason(object_with({"type": "integer"}), permits=True, equals=(5,)) is None


@pytest.mark.parametrize(
    ("schema", "path", "expected"),
    [
        (object_with({"type": "string"}), "b", ABSENT),
        ({"type": "object", "properties": {"amount": {}}}, "amuont", f"{ABSENT}; did you mean amount?"),
        (object_with(object_with({"type": "string"})), "a.b", f"{ABSENT}; did you mean a.a?"),
        (object_with({"type": "string"}), "a.b", ABSENT),
        (False, "a", ABSENT),
        ({"type": "object", "properties": {"x": {}}, "additionalProperties": False}, "a", ABSENT),
        ({"type": "object", "additionalProperties": False}, "a", ABSENT),
        ({"type": "string"}, "a", ABSENT),
        (object_with(False), "a", ABSENT),
        # Names that a schema does not declare may still be sent.
        ({"type": "object"}, "a", None),
        ({"type": "object", "additionalProperties": True}, "a", None),
        ({"type": ["object", "null"]}, "a", None),
        ({}, "a.b", None),
        (True, "a", None),
        ({"type": "object", "properties": {"x": {}}, "patternProperties": {"^a": {}}}, "a", None),
        ({"type": "object", "properties": {"x": {}}, "additionalProperties": {"type": "string"}}, "a", None),
        (object_with(object_with({"type": "string"})), "a.a", None),
        ({"type": "object", "properties": {"a.b": {"type": "string"}}}, "a.b", None),
        ({"type": "object", "properties": {"x.y": object_with({"type": "string"})}}, "x.y.a", None),
        (object_with({"type": "array", "items": object_with({"type": "string"})}), "a.a", None),
        ({"type": "object", "properties": {"x": {}}, "allOf": [object_with({"type": "string"})]}, "a", None),
    ],
)
def test_argument_that_no_schema_declares_is_reported(schema: Any, path: str, expected: str | None) -> None:
    assert reason(schema, path, equals=("x",)) == expected


def test_absence_of_a_required_argument_cannot_hold() -> None:
    always = "the argument is always sent, because the tool requires it"
    assert reason(object_with({"type": "string"}, required=["a"]), present=False) == always
    assert reason(object_with({"type": "string"}, required=["b"]), present=False) is None
    assert reason(object_with({"type": "string"}, required="a"), present=False) is None
    assert reason(object_with({"type": "string"}), present=False) is None


def test_one_schema_that_fits_is_enough() -> None:
    condition = ArgumentCondition(path="a", equals=("x",))
    schemas = [object_with({"type": "boolean"}), object_with({"type": "null"})]
    assert missing_reason(condition, schemas, permits=False) == f"{UNFIT} (boolean; null)"
    assert missing_reason(condition, [*schemas, object_with({"type": "string"})], permits=False) is None
    assert missing_reason(condition, [{"type": "object", "properties": {"b": {}}}, *schemas], permits=False) == (
        f"{UNFIT} (boolean; null)"
    )


def within_properties(schema: Any) -> Any:
    return object_with(schema)


def within_other_properties(schema: Any) -> Any:
    return {"type": "object", "properties": {"x": {}}, "additionalProperties": schema}


def within_items(schema: Any) -> Any:
    return {"type": "array", "items": schema}


def within_first_items(schema: Any) -> Any:
    return {"type": "array", "items": {"type": "null"}, "prefixItems": [schema]}


@pytest.mark.parametrize("step", [within_properties, within_other_properties, within_items, within_first_items])
def test_argument_is_found_at_any_depth(step: Callable[[Any], Any]) -> None:
    schema: Any = {"type": "string"}
    for _ in range(50):
        schema = step(schema)
    path = ".".join("a" * 51) if step in (within_properties, within_other_properties) else "a"
    assert reason(object_with(schema), path, equals=("x",)) is None


@pytest.mark.parametrize("step", [within_items, within_first_items])
def test_circular_items_end(step: Callable[[Any], Any]) -> None:
    unfit = reason(object_with(step({"$ref": "#/properties/a"})), equals=("x",))
    assert unfit is not None
    assert unfit.startswith(UNFIT)


def test_many_references_to_one_schema_do_not_multiply() -> None:
    again = {"$ref": "#/properties/a"}
    schema = object_with({"type": "array", "items": {"anyOf": [again, again]}, "prefixItems": [again] * 50})
    assert reason(schema, equals=("x",)) == f"{UNFIT} (array)"
    schema = object_with({"type": "object", "properties": {"a": again}, "additionalProperties": again})
    assert reason(schema, ".".join("a" * 100), equals=("x",)) == f"{UNFIT} (object)"
    # A reference to an earlier schema does not hide a later schema.
    for items in ({"items": {"anyOf": [again, {"type": "string"}]}}, {"prefixItems": [again, {"type": "string"}]}):
        assert reason(object_with({"type": "array", "items": {"type": "null"}, **items}), equals=("x",)) is None


def test_circular_reference_ends() -> None:
    schema = {"type": "object", "properties": {"x": {"$ref": "#"}}}
    assert reason(schema, "x.x.x.a", equals=("y",)) == f"{ABSENT}; did you mean x.x?"
    assert reason(schema, "x.x.x", equals=("y",)) == f"{UNFIT} (object)"
