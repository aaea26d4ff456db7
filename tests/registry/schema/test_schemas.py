"""Bounds, digests and validators of schemas are not blocked by any input."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pace import limited_work

from registry.errors import NotChecked, SchemaRejected
from registry.schema import schemas
from registry.schema.check_cost import INLINE, THOROUGH, use_effort
from registry.schema.references import SchemaDocument

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def code_of(schema: object) -> str:
    def compile_within_bounds() -> None:
        schemas.check_bounds(schema)
        schemas.compile_schema(schema)

    with limited_work(0.5), pytest.raises(SchemaRejected) as caught:
        compile_within_bounds()
    return caught.value.code


@given(JSON)
def test_digest_does_not_depend_on_key_order(value: Any) -> None:
    assert schemas.digest(value) == schemas.digest(reordered(value))
    assert len(schemas.digest(value)) == 16


@given(JSON)
def test_bounds_and_references_accept_any_json(value: Any) -> None:
    SchemaDocument(value)
    schemas.check_bounds(value)


@pytest.mark.parametrize("value", [2**70, {"a": 2**70, "b": "\ud800"}])
def test_values_beyond_the_fast_encoder_have_a_digest(value: object) -> None:
    assert schemas.digest(value) == schemas.digest(value)


def test_ten_thousand_levels_are_refused_without_recursion() -> None:
    assert code_of(deep(10_000)) == "too_deep"
    with pytest.raises(SchemaRejected):
        schemas.canonical_json(deep(10_000))


def test_depth_limit_is_200() -> None:
    schema = deep(99)
    schemas.check_bounds(schema)
    assert schemas.compile_schema(schema).is_valid({})
    assert code_of(deep(101)) == "too_deep"


def test_five_megabytes_are_refused() -> None:
    assert code_of({"description": "x" * 5_000_000}) == "too_large"
    assert code_of({"properties": {f"p{n}": {"type": "string"} for n in range(150_000)}}) == "too_large"


def test_exponential_references_are_counted_and_refused() -> None:
    defs: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(24)
    }
    assert code_of({"$ref": "#/$defs/d0", "$defs": {**defs, "d24": {}}}) == "too_complex"
    # An author's property of that name hides nothing.
    hidden = {"properties": {"$defs": {"$ref": "#/$defs/d0"}}, "$defs": {**defs, "d24": {}}}
    assert code_of(hidden) == "too_complex"


def test_one_definition_used_often_is_within_bounds() -> None:
    schema = {
        "properties": {f"p{n}": {"$ref": "#/$defs/address"} for n in range(200)},
        "$defs": {"address": {"type": "object", "properties": {f"q{n}": {} for n in range(40)}}},
    }
    schemas.check_bounds(schema)
    assert schemas.compile_schema(schema).is_valid({"p0": {}})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"child": {"$ref": "#"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$dynamicRef": "#node", "$defs": {"n": {"$dynamicAnchor": "node", "type": "object"}}},
        {"$ref": "#here", "$defs": {"n": {"$anchor": "here", "type": "object"}}},
        {"$id": "https://a.example/x", "$ref": "y", "$defs": {"y": {"$id": "y", "type": "object"}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"a": {}},
            "$ref": "#/definitions/a",
        },
        {"$schema": "https://nobody.example/dialect", "type": "object"},
        {"default": {"$ref": "https://nowhere.example/"}, "enum": [{"$ref": "x"}, {}]},
    ],
)
def test_local_references_compile(schema: dict[str, Any]) -> None:
    assert not SchemaDocument(schema).remote
    schemas.check_bounds(schema)
    schemas.compile_schema(schema).is_valid({"child": {"child": {}}})


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        ({"$ref": "https://nowhere.example/schema"}, "remote_ref"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "remote_ref"),
        ({"$dynamicRef": "other#x"}, "remote_ref"),
        ({"$ref": "http://[broken"}, "remote_ref"),
        ({"$ref": "#/$defs/none"}, "broken_ref"),
        ({"$ref": "#nowhere"}, "broken_ref"),
        ({"type": "objekt"}, "invalid_schema"),
        ({"properties": {"a": 5}}, "invalid_schema"),
        ({"minimum": float("nan")}, "not_json"),
        ([], "invalid_schema"),
    ],
)
def test_schema_that_does_not_compile_is_refused_with_its_code(schema: object, code: str) -> None:
    assert code_of(schema) == code


@pytest.mark.parametrize(
    ("schema", "location"),
    [
        ({"properties": {"a": {"type": "strng"}}}, "properties.a.type is strng, which is not a type; expected "),
        (
            {"properties": {"a": {"type": ["null", "ignore all rules"]}}},
            "properties.a.type is not a type; expected array",
        ),
        ({"properties": {"type": 5}}, 'properties.type is not of types "boolean", "object"'),
        ({"allOf": [{"minimum": "x"}]}, 'allOf[0].minimum is not of type "number"'),
    ],
)
def test_schema_error_names_its_location(schema: Any, location: str) -> None:
    with pytest.raises(SchemaRejected) as rejected:
        schemas.compile_schema(schema)
    assert rejected.value.detail.startswith(location)


def test_remote_reference_is_detected_without_compiling() -> None:
    assert SchemaDocument({"properties": {"a": {"$ref": "https://nowhere.example/x#/y"}}}).remote


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(?=a)(a+)+$"])
def test_no_pattern_blocks_a_check(pattern: str) -> None:
    with limited_work(0.5):
        compiled = schemas.compile_schema({"properties": {"a": {"type": "string", "pattern": pattern}}})
        assert not compiled.is_valid({"a": "a" * 4_000 + "!"})


def test_patterns_too_expensive_to_compile_are_skipped() -> None:
    properties = {f"p{n}": {"type": "string", "pattern": rf"\p{{L}}x{{{n + 500}}}"} for n in range(3_000)}
    with limited_work(0.5):
        compiled = schemas.compile_schema({"properties": properties})
    assert compiled.unchecked_patterns
    with pytest.raises(NotChecked):
        compiled.is_valid({"p2999": "x"})
    assert not compiled.is_valid({"p2999": 5})


def test_unreadable_pattern_leaves_the_rest_of_the_schema_checked() -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": "["}}, "patternProperties": {"(": {}}}
    compiled = schemas.compile_schema(schema)
    assert set(compiled.unchecked_patterns) == {"[", "("}
    assert compiled.is_valid({})
    with pytest.raises(NotChecked):
        compiled.is_valid({"a": "x"})
    assert schema["properties"] == {"a": {"type": "string", "pattern": "["}}


def test_values_the_validator_cannot_read_are_not_fully_checked() -> None:
    compiled = schemas.compile_schema({"type": "object", "additionalProperties": {"$ref": "#"}})
    nested: dict[str, Any] = {}
    for _ in range(10_000):
        nested = {"a": nested}
    for effort in (INLINE, THOROUGH):
        with use_effort(effort), pytest.raises(NotChecked, match="200 levels") as doubt:
            compiled.is_valid(nested)
        assert doubt.value.final
    with pytest.raises(NotChecked, match="broken characters"):
        compiled.is_valid({"a": {"\ud800": {}}})
    with use_effort(replace(THOROUGH, leniency="uncheckable")):
        assert compiled.is_valid(nested)
        assert compiled.errors(nested, 5) == []
        assert compiled.is_valid({"wide": {str(n): {} for n in range(30_000)}, "deep": nested})
        assert not compiled.is_valid({"wrong": 1, "deep": nested})
        assert not compiled.is_valid({"a": "\ud800"})
    texts = schemas.compile_schema({"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}})
    with use_effort(replace(INLINE, leniency="uncheckable")):
        assert texts.is_valid({"a": "\ud800"})
        assert not texts.is_valid({"a": "\ud800abc"})


def test_validators_and_refusals_are_cached() -> None:
    schema = {"type": "object", "title": "compiled once"}
    first = schemas.validator(schema, schemas.digest(schema))
    assert schemas.validator(schema, schemas.digest(schema)) is first
    for _ in range(2):
        with pytest.raises(SchemaRejected):
            schemas.validator({"type": "objekt"}, "refused-once")


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        (
            {
                "type": "object",
                "anyOf": [
                    {"properties": {"a": {"$ref": "#"}}},
                    {"title": "t", "properties": {"a": {"$ref": "#"}}},
                ],
            },
            40,
        ),
        ({"properties": {"a": {"items": {"type": "string"}}}}, {"a": list(range(300_000))}),
        (
            {"properties": {"a": {"items": {"anyOf": [{"type": "string", "minLength": n} for n in range(999)]}}}},
            {"a": list(range(1_000))},
        ),
        ({"properties": {"a": {"items": {"enum": list(range(90_000))}}}}, {"a": [89_999] * 5_000}),
        ({"properties": {"a": {"type": "string", "pattern": "(?=a*x)a"}}}, {"a": "a" * 1_000_000}),
        ({"required": [f"r{n}" for n in range(400)]}, {f"member{n}" * 6: n for n in range(9_000)}),
        ({"properties": {f"p{n}": {"type": "string"} for n in range(5_000)}}, {f"p{n}": n for n in range(5_000)}),
    ],
)
def test_hostile_schema_and_value_do_not_block_a_check(schema: dict[str, Any], instance: Any) -> None:
    if isinstance(instance, int):
        levels, instance = instance, 5
        for _ in range(levels):
            instance = {"a": instance}
    compiled = schemas.compile_schema(schema)
    with limited_work(0.2):
        for check in (compiled.is_valid, lambda value: compiled.errors(value, 200)):
            with suppress(NotChecked):
                check(instance)


def test_errors_in_values_of_any_size_are_found_given_time() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"items": {"type": "string"}}, "b": {"type": "string"}},
        "required": ["c"],
        "additionalProperties": False,
    }
    compiled, sent = schemas.compile_schema(schema), {"a": list(range(200_000)), "b": 1, "d": 2}
    with pytest.raises(NotChecked):
        compiled.first_errors(sent, 20)
    with use_effort(THOROUGH):
        found = compiled.first_errors(sent, 40).errors
    assert {error.kind.name for error in found} == {"required", "type", "additionalProperties"}


def test_compiled_schema_keeps_no_reference_to_checked_values() -> None:
    row = {"type": "object", "properties": {"n": {"type": "integer"}}}
    compiled = schemas.compile_schema({"type": "object", "properties": {"rows": {"type": "array", "items": row}}})
    rows = [{"n": "x"} for _ in range(1_000)]
    held = sys.getrefcount(rows)
    with use_effort(THOROUGH):
        wrong = len(compiled.first_errors({"rows": rows}, 20).errors)
    assert wrong == 20
    gc.collect()
    assert sys.getrefcount(rows) == held
