"""Example calls are valid, and show what the answered call got wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wrappers import wrapper_of

from registry.arguments.example_call import AS_SENT, example_arguments
from registry.arguments.prepare import prepare
from registry.arguments.problems import explain
from registry.schema import schemas


def objects(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "string", "format": "date"}, "2030-01-31"),
        ({"type": "string", "format": "email"}, "name@example.com"),
        ({"type": "string", "minLength": 12}, "x" * 12),
        ({"type": "string", "maxLength": 2}, "x"),
        ({"type": "string", "pattern": "^[A-Z]{3}$"}, "<string matching ^[A-Z]{3}$>"),
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "integer", "exclusiveMinimum": 3}, 4),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, 4),
        ({"type": "integer", "maximum": 0}, 0),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
        ({"type": "integer", "minimum": 3, "multipleOf": 5}, 5),
        ({"type": "integer", "minimum": 1, "default": 20}, 20),
        ({"type": "string", "examples": ["Europe/Paris"], "default": "UTC"}, "Europe/Paris"),
        ({"type": "integer", "examples": ["no integer"]}, "<integer>"),
        ({"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2}, [1, 1]),
        ({"anyOf": [{"type": "null"}, {"type": "array", "items": TEXT}]}, ["<string>"]),
        ({"allOf": [objects({"a": TEXT}, "a"), objects({"b": TEXT}, "b")]}, {"a": "<string>", "b": "<string>"}),
        ({"type": "object", "minProperties": 1, "maxProperties": 1, "properties": {"id": TEXT, "name": TEXT}},
         {"id": "<string>"}),
        ({"oneOf": [objects({"id": TEXT}, "id"), objects({"name": TEXT}, "name")]}, {"id": "<string>"}),
    ],
)  # fmt: skip
def test_placeholder_is_a_value_the_schema_accepts(schema: Any, shown: Any) -> None:
    assert example_arguments(objects({"v": schema}, "v")) == {"v": shown}


def test_root_alternatives_are_not_combined_in_one_example() -> None:
    properties = {"id": TEXT, "name": TEXT}
    schema = {"type": "object", "properties": properties, "oneOf": [{"required": ["id"]}, {"required": ["name"]}]}
    assert schemas.compile_schema(schema).is_valid(example_arguments(schema))
    assert example_arguments(schema) == {"id": "<string>"}
    kinds = {
        "oneOf": [
            objects({"kind": {"const": "circle"}, "radius": {"type": "number", "minimum": 1}}, "kind", "radius"),
            objects({"kind": {"const": "square"}, "side": {"type": "number", "minimum": 1}}, "kind", "side"),
        ]
    }
    whole = objects({"shape": kinds}, "shape")
    assert example_arguments(whole) == {"shape": {"kind": "circle", "radius": 1}}
    meant = example_arguments(whole, sent={"shape": {"kind": "square"}})
    assert meant == {"shape": {"kind": "square", "side": 1}}
    assert schemas.compile_schema(whole).is_valid(meant)


def answered(schema: Any, sent: Any) -> str:
    tool = wrapper_of("ask", schema)
    text = explain(tool, prepare(tool, sent).problems, sent)
    return text.partition("Call it like: ")[2].partition(" Schema: ")[0]


FILTER: dict[str, Any] = {
    **objects({"where": {"anyOf": [{"$ref": "#/$defs/F"}, {"type": "null"}]}}),
    "$defs": {
        "F": {
            "type": "object",
            "properties": {
                "and": {"type": ["array", "null"], "items": {"$ref": "#/$defs/F"}},
                "not": {"anyOf": [{"$ref": "#/$defs/F"}, {"type": "null"}]},
                "salary": {"anyOf": [{"$ref": "#/$defs/Op"}, {"type": "null"}]},
            },
            "additionalProperties": False,
        },
        "Op": {"type": "object", "properties": {"gt": {"type": "integer"}}, "additionalProperties": False},
    },
}


def test_example_shows_the_wrong_parameter_and_keeps_correct_ones() -> None:
    schema = objects({"to": TEXT, "limit": {"type": "integer"}, "state": TEXT}, "to", additionalProperties=False)
    secret = "hunter2"
    assert (
        answered(schema, {"limit": "x", "state": secret}) == '{"to":"<string>","limit":"<integer>","state":"<as sent>"}'
    )
    assert answered(schema, {"to": secret, "limt": 5}) == '{"to":"<as sent>","limit":"<integer>"}'
    deep = {"where": {"and": [{"not": {"salery": {"gt": 5}}}]}}
    assert answered(FILTER, deep) == '{"where":{"and":[{"not":{"salary":{"gt":"<integer>"}}}]}}'
    assert answered(FILTER, {"where": {"salary": {"gt": []}}}) == '{"where":{"salary":{"gt":"<integer>"}}}'
    assert answered(FILTER, {"where": {"salary": 5}}) == '{"where":{"salary":{"gt":"<integer>"}}}'


def test_correct_values_beside_a_nested_error_are_kept() -> None:
    point = {"type": "object", "properties": {axis: {"type": "integer"} for axis in "xyz"}, "required": ["x"]}
    schema = {
        "type": "object",
        "properties": {"a": {"type": "object", "properties": {"from": point, "to": point, "n": {"type": "string"}}}},
    }
    sent = {"a": {"from": {"x": 1, "y": "no", "other": 1}, "to": {"x": 2}, "n": "name"}}
    example = example_arguments(schema, shown_paths=[("a", "from", "y")], sent=sent)
    assert example == {"a": {"from": {"x": AS_SENT, "y": "<integer>"}, "to": AS_SENT, "n": AS_SENT}}
    rows = {"type": "object", "properties": {"rows": {"type": "array", "items": point}}}
    in_a_row = example_arguments(
        rows, shown_paths=[("rows", 1, "y")], sent={"rows": [{"x": 1, "z": 1}, {"x": 1, "y": "no"}]}
    )
    assert in_a_row == {"rows": [{"x": "<integer>", "y": "<integer>"}]}


def test_object_with_wrong_member_count_lists_the_possible_members() -> None:
    by = {**objects({"id": TEXT, "name": TEXT}), "minProperties": 1, "maxProperties": 1}
    tool = wrapper_of("ask", objects({"by": by}))
    for sent in ({"by": {}}, {"by": {"id": "1", "name": "x"}}):
        text = explain(tool, prepare(tool, sent).problems, sent)
        assert "by takes exactly 1 of: id, name." in text
        assert 'Call it like: {"by":{"id":"<string>"}}' in text


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYWORDS = (
    "type properties required items minItems maxItems minProperties maxProperties minimum maximum exclusiveMinimum "
    "exclusiveMaximum multipleOf minLength maxLength format pattern examples default enum const anyOf oneOf allOf "
    "prefixItems $ref"
)
WORDS = st.sampled_from(KEYWORDS.split())
KINDS = st.sampled_from(["string", "integer", "number", "array", "object", ["null", "integer"], [], ["null"]])
STRANGE = st.dictionaries(WORDS, ODD | KINDS | st.sampled_from(["#", "#/properties/v"]), max_size=6)


@given(STRANGE, STRANGE, ODD)
def test_any_schema_has_an_example(schema: Any, inner: Any, sent: Any) -> None:
    for whole in (objects({"v": schema, "w": inner}, "v"), schema, {**schema, "items": inner, "anyOf": [inner]}):
        example = example_arguments(whole, shown_paths=[("v", 0, "a"), ("w",)], names_as_sent=("w",), sent=sent)
        schemas.compact_json(example)
