"""Whether a condition on an argument can hold for a schema, and the reason if it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from registry.policy.conditions import ArgumentCondition
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
        ({"type": "object", "properties": {}}, {"equals": ("x",)}, "object"),
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
        (object_with(False), "a", ABSENT),
        # Names that a schema does not declare may still be sent.
        ({"type": "object"}, "a", None),
        ({}, "a.b", None),
        (True, "a", None),
        ({"type": "object", "properties": {"x": {}}, "patternProperties": {"^a": {}}}, "a", None),
        ({"type": "object", "properties": {"x": {}}, "additionalProperties": {"type": "string"}}, "a", None),
        (object_with(object_with({"type": "string"})), "a.a", None),
        ({"type": "object", "properties": {"a.b": {"type": "string"}}}, "a.b", None),
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


def test_circular_reference_ends() -> None:
    schema = {"type": "object", "properties": {"x": {"$ref": "#"}}}
    assert reason(schema, "x.x.x.a", equals=("y",)) == f"{ABSENT}; did you mean x.x?"
    assert reason(schema, "x.x.x", equals=("y",)) == f"{UNFIT} (object)"
