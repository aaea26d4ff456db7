"""Errors that are found part by part are real, and every invalid value has at least one."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.pace import limited_work

from registry.errors import NotChecked, SchemaRejected
from registry.schema import schemas
from registry.schema.check_cost import THOROUGH, use_effort

SCALARS = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer"},
        {"type": ["number", "null"]},
        {"enum": ["a", 1, None]},
        {"const": True},
        {"type": "integer", "minimum": 3},
        {"type": "string", "maxLength": 1},
        {"$ref": "#/$defs/node"},
        {"$ref": "#/$defs/node", "required": ["b"]},
        {"anyOf": [{"const": "a"}, {"const": 2}]},
        {"not": {"type": "string"}},
        True,
        {},
    ]
)
NODE = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "below": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    "required": ["a"],
}


@st.composite
def composed(draw: Any, below: Any) -> dict[str, Any]:
    node: dict[str, Any] = {"properties": draw(st.dictionaries(st.sampled_from(["a", "b", "kind"]), below, max_size=3))}
    node["required"] = draw(st.lists(st.sampled_from(["a", "b", "kind"]), unique=True, max_size=2))
    more = {
        "type": st.just("object"),
        "additionalProperties": st.one_of(st.just(False), below),
        "patternProperties": st.builds(lambda one: {"^a": one}, below),
        "unevaluatedProperties": st.just(False),
        "propertyNames": st.just({"maxLength": 1}),
        "minProperties": st.just(2),
        "dependentRequired": st.just({"a": ["b"]}),
        "anyOf": st.lists(below, min_size=1, max_size=3),
        "oneOf": st.lists(below, min_size=2, max_size=3),
        "allOf": st.lists(below, min_size=1, max_size=2),
        "if": st.just({"required": ["a"]}),
        "then": below,
    }
    for word in draw(st.lists(st.sampled_from(sorted(more)), unique=True, max_size=3)):
        node[word] = draw(more[word])
    return node


LISTS = st.fixed_dictionaries(
    {"type": st.just("array")},
    optional={
        "items": SCALARS,
        "prefixItems": st.lists(SCALARS, min_size=1, max_size=2),
        "contains": st.just({"const": "a"}),
        "uniqueItems": st.just(True),
        "maxItems": st.just(2),
        "unevaluatedItems": st.just(False),
    },
)
SCHEMAS = st.recursive(
    st.one_of(SCALARS, LISTS), lambda below: st.one_of(composed(below), composed(below), LISTS), max_leaves=8
)
VALUES = st.recursive(
    st.sampled_from([None, True, 1, 2, 3.0, 0.5, "a", "bb"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "kind", "zz", "below"]), inner, max_size=4),
    ),
    max_leaves=10,
)


def everywhere(errors: Any) -> list[Any]:
    """Return errors, with those of all alternatives."""
    found: list[Any] = []
    pending = list(errors)
    while pending:
        error = pending.pop()
        found.append(error)
        for branch in getattr(error.kind, "context", None) or []:
            pending += branch
    return found


_LATER = {"prefixItems", "unevaluatedItems", "unevaluatedProperties", "dependentSchemas", "dependentRequired"}
_AFTER_DRAFT_4 = _LATER | {"const", "contains", "propertyNames", "if"}
# So many references that parts of a schema with them are compiled one by one.
MANY = {f"more{number}": {"$ref": "#/$defs/node"} for number in range(200)}
DIALECTS = [
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
]


@pytest.mark.heavy
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("repairs", [False, True])
@pytest.mark.parametrize("laborious", [False, True])
@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)
@given(composed(SCHEMAS), st.dictionaries(st.sampled_from(["a", "b", "kind", "zz"]), VALUES, max_size=4))
def test_invalid_value_always_has_a_real_error(
    laborious: bool, repairs: bool, dialect: str, schema: dict[str, Any], value: Any
) -> None:
    # Known limit: explanations follow keywords of later drafts, which the check of a schema in an older one ignores.
    unknown = set() if "2020-12" in dialect else _AFTER_DRAFT_4 if "draft-04" in dialect else _LATER
    assume(not unknown & set(re.findall(r"\w+", json.dumps(schema))))
    schema = {**schema, "$schema": dialect, "$defs": {"node": NODE, **(MANY if laborious else {})}}
    try:
        compiled = schemas.compile_schema(schema)
    except SchemaRejected:
        return  # not a schema in this dialect
    with use_effort(THOROUGH):
        if compiled.is_valid(value):
            return
        all_errors = everywhere(compiled.errors(value, 10_000))
        parts = compiled._failing_parts()
        found = parts.errors(value, 200, for_repair=20_000 if repairs else 0).errors
    assert parts.is_laborious == laborious
    assert found
    wrong = {(tuple(error.instance_path), error.kind.name) for error in all_errors}
    places = {path for path, _ in wrong}
    missing = {(*error.instance_path, error.kind.property) for error in all_errors if error.kind.name == "required"}
    for error in found:
        path, kind = tuple(error.instance_path), error.kind.name
        match kind:
            case "required":
                absent = (*path, error.kind.property)
                assert absent in missing or path in places  # the member by which the alternatives differ
            case "type" | "options" | "alternatives" | "whole":
                assert any(place == path[: len(place)] for place in places)
            case "additionalProperties" | "unevaluatedProperties" | "unevaluatedItems":
                assert path in places
            case _:
                assert (path, kind) in wrong


def paths_of(error: jsonschema.ValidationError) -> set[tuple[str | int, ...]]:
    """Return the place of an error, and those of the errors of alternatives."""
    return {tuple(error.absolute_path)}.union(*map(paths_of, error.context or ()))


@pytest.mark.heavy
@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=300)
@given(composed(SCHEMAS), st.dictionaries(st.sampled_from(["a", "b", "kind", "zz"]), VALUES, max_size=4))
def test_error_locations_agree_with_jsonschema(schema: dict[str, Any], value: Any) -> None:
    schema = {**schema, "$schema": DIALECTS[3], "$defs": {"node": NODE}}
    try:
        compiled = schemas.compile_schema(schema)
    except SchemaRejected:
        return
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(value))
    assert compiled.is_valid(value) == (not errors)
    if not errors:
        return
    places = set[tuple[str | int, ...]]().union(*map(paths_of, errors))
    for error in [*compiled.errors(value, 200), *compiled._failing_parts().errors(value, 200).errors]:
        path = tuple(error.instance_path)
        if error.kind.name == "options":  # the place of a constant in the alternatives
            assert any(place == path[: len(place)] for place in places)
        else:
            assert path in places


@pytest.mark.parametrize(
    ("closed", "value", "kinds"),
    [
        ({"additionalProperties": {"type": "string"}, "unevaluatedProperties": False}, {"a": None}, {"type"}),
        ({"prefixItems": [{"type": "string"}], "unevaluatedItems": False}, [1], {"type"}),
        ({"prefixItems": [{"type": "string"}], "unevaluatedItems": False}, [1, 2], {"type", "unevaluatedItems"}),
        ({"items": {"type": "string"}, "unevaluatedItems": False}, ["a", 1], {"type"}),
        ({"items": {"type": "string"}, "uniqueItems": True, "unevaluatedItems": False}, ["a", "a"], {"uniqueItems"}),
        ({"contains": {"const": 2}, "unevaluatedItems": False}, ["x", 2], {"unevaluatedItems"}),
    ],
)
def test_declared_property_of_wrong_type_is_not_reported_as_undeclared(
    closed: dict[str, Any], value: Any, kinds: set[str]
) -> None:
    compiled = schemas.compile_schema({"$schema": DIALECTS[3], "properties": {"p": closed}})
    found = compiled._failing_parts().errors({"p": value}, 20).errors
    assert {error.kind.name for error in found} == kinds


@pytest.mark.parametrize(("dialect", "places"), [(DIALECTS[1], [("l",)]), (DIALECTS[3], [("l", 0)])])
def test_array_items_are_checked_where_the_draft_defines_them(dialect: str, places: list[Any]) -> None:
    listed = {"type": "array", "prefixItems": [{"type": "string"}], "contains": {"minimum": 0}}
    compiled = schemas.compile_schema({"$schema": dialect, "type": "object", "properties": {"l": listed}})
    value = {"l": [-1] if places == [("l",)] else [5]}
    assert not compiled.is_valid(value)
    assert [tuple(error.instance_path) for error in compiled._failing_parts().errors(value, 20).errors] == places


def test_only_types_a_value_uses_are_compiled() -> None:
    texts = {f"p{n}": {"type": "string"} for n in range(20)}
    types = {
        f"t{n}": {"type": "object", "properties": {
            **texts, **{f"r{m}": {"$ref": f"#/$defs/t{(n * 7 + m * 13 + 1) % 100}"} for m in range(2)}}}
        for n in range(100)
    }  # fmt: skip
    rows = {"type": "array", "items": {"$ref": "#/$defs/t0"}}
    compiled = schemas.compile_schema({"type": "object", "properties": {"rows": rows}, "$defs": types})
    value = {"rows": [{"p0": "x", "r1": {"r0": {"p1": 5}}} for _ in range(300)]}
    with pytest.raises(NotChecked):
        compiled.first_errors(value, 20)  # not on the loop
    # All of them take 3 s and half a gigabyte.
    with use_effort(THOROUGH), limited_work(1):
        [error, *_] = compiled.first_errors(value, 20).errors
    assert tuple(error.instance_path) == ("rows", 0, "r1", "r0", "p1")
    assert list(error.schema_path) == ["$defs", "t99", "properties", "p1", "type"]


def test_circular_references_and_unusual_names_are_followed() -> None:
    name = "a b%/~#?\u00e9"
    circle = {"one": {"$ref": "#/$defs/two"}, "two": {"$ref": "#/$defs/one"}, "node": {}, **MANY}
    schema = {"type": "object", "properties": {name: {"type": "array", "items": {"type": "integer"}},
              "c": {"anyOf": [{"$ref": "#/$defs/one"}, {"type": "null"}]}}, "$defs": circle}  # fmt: skip
    compiled = schemas.compile_schema(schema)
    with use_effort(THOROUGH):
        parts = compiled._failing_parts()
        errors = parts.errors({name: [1, "x"]}, 20).errors
    assert parts.is_laborious, "its parts are compiled one by one"
    assert [tuple(error.instance_path) for error in errors] == [(name, 1)]
