"""Properties of lowering for any schema and call: valid calls stay valid and round-trip."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.dialect_rules import admitted, as_json_schema, lowered_to, remove_null_alternatives, renamed, violations
from support.dialect_schemas import CALLED, DRAFT_7

from registry.arguments.prepare import prepare
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import build_catalog
from registry.catalog.shape import Shape
from registry.dialects.client_profiles import DIALECTS, Dialect
from registry.dialects.definitions import lower_definition, map_arguments
from registry.schema import schemas

# A separate test checks that nothing stalls, so that a busy machine does not fail these.
LAWS = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def name_of(dialect: str | Dialect) -> str:
    return dialect if isinstance(dialect, str) else dialect.name


@pytest.mark.parametrize("dialect", DIALECTS)
@LAWS
@given(called=CALLED)
def test_lowered_schema_accepts_what_the_original_accepts(
    dialect: str, called: tuple[dict[str, Any], list[dict[str, Any]]]
) -> None:
    follows_the_law(dialect, *called)


def follows_the_law(dialect: str | Dialect, schema: dict[str, Any], arguments: list[dict[str, Any]]) -> None:
    original = admitted(schema)
    if original is None:
        return
    lowered = lowered_to(dialect, schema)
    shown = lowered.definition["inputSchema"]
    assert not [one for one in lowered.losses if one.keyword == "inputSchema"]
    assert violations(lowered.definition, "mcp" if dialect is NO_PATTERNS else name_of(dialect)) == []
    readable = schemas.compile_schema(as_json_schema(shown))
    for sent in arguments:
        there = (
            renamed(sent, lowered.original_names, map_arguments(renamed(sent, lowered.original_names), lowered))
            if lowered.original_names
            else sent
        )
        if original.is_valid(sent):
            assert lowered.narrower or readable.is_valid(there)
            assert json.dumps(map_arguments(there, lowered)) == json.dumps(sent)
    assert (lowered.definition == {"name": "t", "description": "Does it.", "inputSchema": schema}) == (shown is schema)
    again = lower_definition(lowered.definition, dialect)
    assert again.definition is lowered.definition or again.definition == lowered.definition
    if lowered.definition["inputSchema"] is schema:
        assert lowered.definition["description"] == "Does it."


@pytest.mark.parametrize("dialect", DIALECTS)
@LAWS
@given(called=CALLED)
def test_call_valid_for_both_schemas_is_passed_unchanged(
    dialect: str, called: tuple[dict[str, Any], list[dict[str, Any]]]
) -> None:
    schema, arguments = called
    original = admitted(schema)
    if original is None:
        return
    server, definition = ServerName("s"), {"name": "t", "description": "Does it.", "inputSchema": schema}
    listing = ServerListing(server=server, epoch=1, tools=(definition,))
    wrapper = build_catalog({server: listing}, Shape(), version=1).resolve("s__t")
    lowered = lower_definition(wrapper.definition, dialect)
    readable = schemas.compile_schema(as_json_schema(lowered.definition["inputSchema"]))
    for sent in arguments:
        if original.is_valid(sent) and readable.is_valid(sent) and not (lowered.original_names.keys() & names_in(sent)):
            prepared = prepare(wrapper, sent, lowered=lowered)
            assert prepared.arguments is sent
            assert prepared.repairs == prepared.problems == ()


def names_in(value: Any) -> set[str]:
    """Every name of a member in a value."""
    if isinstance(value, dict):
        return set(value).union(*map(names_in, value.values()))
    return set().union(*map(names_in, value)) if isinstance(value, list) else set()


INNER = {"properties": {"odd key": {}}, "propertyNames": {"pattern": "^[a-z ]+$"}}
SUBTLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "names that stand beside a renamed property": (
        {"properties": {"日付": True}, "anyOf": [{"not": {"propertyNames": {"pattern": "^[a-z]"}}}]},
        {"日付": None},
    ),
    "patterns that stand beside a renamed property": (
        {"properties": {"日付": {}}, "allOf": [{"patternProperties": {"^[a-z]": {"type": "string"}}}]},
        {"日付": 1},
    ),
    "a whole value that stands beside a renamed property": (
        {"properties": {"日付": {}}, "allOf": [{"enum": [{"日付": 1}, {}]}]},
        {"日付": 1},
    ),
    "the negation of a definition that goes": (
        {
            "not": {"anyOf": [{"$ref": "#/$defs/leaf", "description": "A leaf."}]},
            "$defs": {"leaf": {"not": {"required": ["日付"]}}},
        },
        {"日付": 1},
    ),
    "the only one of two definitions that become alike": (
        {
            "properties": {"a": {"oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}]}},
            "$defs": {
                "x": {"type": "string", "pattern": "^x", "format": "x"},
                "y": {"$ref": "#/$defs/z"},
                "z": {"type": "string", "pattern": "^y", "format": "y"},
            },
        },
        {"a": "xx"},
    ),
    "a condition that is a definition": (
        {
            "properties": {"a": {"type": "string"}},
            "if": {"$ref": "#/$defs/x"},
            "then": {"required": ["b"]},
            "$defs": {"x": {"properties": {"a": {"pattern": "^x"}, "日付": {"type": "string"}}, "required": ["a"]}},
        },
        {"a": "yy"},
    ),
    "what a definition evaluates": (
        {
            "allOf": [{"$ref": "#/$defs/x"}],
            "unevaluatedProperties": False,
            "$defs": {"x": {"properties": {"日付": {}}, "patternProperties": {"^k": {"type": "string"}}}},
        },
        {"kind": "x"},
    ),
    "what is evaluated by what goes": (
        {
            "properties": {"a": {"type": "string"}},
            "if": {"properties": {"a": {"const": "x"}}},
            "then": {"properties": {"b": {}}},
            "unevaluatedProperties": False,
        },
        {"a": "x", "b": 1},
    ),
    "an alternative that does not speak of a property": (
        {
            "anyOf": [
                {"properties": {"a": {"type": "string"}}, "required": ["a"]},
                {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
            ]
        },
        {"a": 5, "b": 1},
    ),
    "a pattern that another name matches": (
        {
            "properties": {"odd key": {"type": "integer"}},
            "patternProperties": {"^odd_": {"type": "string"}, "^k": {}},
            "additionalProperties": False,
        },
        {"odd key": 1, "k": 2},
    ),
    "not, with a name": ({"properties": {"a": {"not": INNER}}}, {"a": {"ODD": 1}}),
    "if, with a name": ({"properties": {"a": {"if": INNER, "then": {"required": ["z"]}}}}, {"a": {"ODD": 1}}),
    "an enumeration of objects": (
        {"properties": {"odd key": {}}, "required": ["odd key"], "enum": [{"odd key": 1}]},
        {"odd key": 1},
    ),
    "a name on which others depend": (
        {"properties": {"odd key": {}, "a": {}}, "dependentRequired": {"a": ["odd key"], "odd key": ["a"]}},
        {"odd key": 1, "a": 2},
    ),
    "a bound on how many match": (
        {"properties": {"a": {"contains": {"type": "string", "pattern": "^a"}, "maxContains": 1}}},
        {"a": ["a", "b"]},
    ),
    "exactly one": (
        {"properties": {"a": {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]}}},
        {"a": "a"},
    ),
    "not, with a pattern": ({"properties": {"a": {"not": {"pattern": "^a"}}}}, {"a": "b"}),
    "an open tuple": ({"properties": {"a": {"type": "array", "prefixItems": [{"type": "integer"}]}}}, {"a": [1, "x"]}),
    "a closed part": (
        {"allOf": [{"properties": {"a": {}}, "additionalProperties": False}], "properties": {"b": {}}},
        {"a": 1},
    ),
    "parts that each evaluate their own": (
        {
            "allOf": [
                {"properties": {"a": {}}, "unevaluatedProperties": False},
                {"properties": {"a": {}, "b": {}}, "unevaluatedProperties": False},
            ]
        },
        {"a": 1},
    ),
    "bounds of draft 4": (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "allOf": [
                {"properties": {"n": {"type": "integer", "minimum": 5, "exclusiveMinimum": True}}},
                {"properties": {"n": {"minimum": 7}}},
            ],
        },
        {"n": 7},
    ),
    "conditions in parts": (
        {
            "allOf": [
                {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
                {"if": {"required": ["c"]}, "then": {"required": ["d"]}},
            ]
        },
        {"a": 1, "b": 2},
    ),
    "what stands beside a reference in draft 7": (
        {
            "$schema": DRAFT_7,
            "properties": {"a": {"$ref": "#/definitions/x", "type": "integer", "maximum": 3}},
            "definitions": {"x": {"type": "string"}},
        },
        {"a": "text"},
    ),
    "types that differ in parts": (
        {"properties": {"a": {"allOf": [{"type": ["integer", "string"]}, {"type": "number"}]}}},
        {"a": 5},
    ),
}
NO_PATTERNS = replace(DIALECTS["mcp"], name="no patterns", edits=True, unknown=frozenset({"patternProperties"}))


@pytest.mark.parametrize("name", SUBTLE)
@pytest.mark.parametrize("dialect", [*DIALECTS.values(), NO_PATTERNS], ids=lambda dialect: dialect.name)
def test_lowering_inside_negations_does_not_reject_valid_calls(dialect: Dialect, name: str) -> None:
    schema, arguments = SUBTLE[name]
    schema = {"type": "object", **schema}
    assert admitted(schema).is_valid(arguments)
    follows_the_law(dialect, schema, [arguments])


KEYS = st.sampled_from(["a", "b", "c", "d"])
LEAVES: list[tuple[Any, Any]] = [
    ({"type": "string"}, "x"),
    ({"type": "integer", "minimum": 2}, 5),
    ({"enum": ["x", 5]}, 5),
    ({"const": True}, True),
    ({"type": ["string", "null"]}, None),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 7),
    ({"$ref": "#/$defs/leaf"}, "leaf"),
    ({"$ref": "#/$defs/leaf", "description": "A leaf."}, "leaf"),
    ({"allOf": [{"$ref": "#/$defs/leaf"}]}, "leaf"),
]


@st.composite
def closed(draw: st.DrawFn, depth: int = 0) -> tuple[Any, Any, Any]:
    """A closed schema, a value that fits, and the same as a model writes it that has to give everything."""
    kind = draw(st.sampled_from(["leaf", "leaf", "list", "object"])) if 0 < depth < 3 else "object" * (depth < 3)
    if kind == "object":
        parts = {name: draw(closed(depth + 1)) for name in draw(st.lists(KEYS, unique=True, max_size=3))}
        given_names = [name for name in parts if draw(st.booleans())]
        required = [name for name in given_names if draw(st.booleans())]
        schema = {
            "type": "object",
            "properties": {name: part[0] for name, part in parts.items()},
            "required": required,
            "additionalProperties": False,
        }
        if draw(st.booleans()):
            schema = {"anyOf": [schema, {"type": "integer"}]} if depth else schema
        written = {name: part[2] if name in given_names else None for name, part in parts.items()}
        return schema, {name: parts[name][1] for name in given_names}, written
    if kind == "list":
        schema, value, written = draw(closed(depth + 1))
        return {"type": "array", "items": schema}, [value], [written]
    schema, value = draw(st.sampled_from(LEAVES))
    return schema, value, value


@LAWS
@given(closed())
def test_strict_schema_accepts_every_call_with_nulls_for_omitted_arguments(
    call: tuple[Any, Any, Any],
) -> None:
    schema, value, written = call
    schema = {**schema, "$defs": {"leaf": {"type": "string", "minLength": 1}}}
    original = schemas.compile_schema(schema)
    assert original.is_valid(value)
    lowered = lowered_to("openai-strict", schema)
    assert not lowered.narrower
    assert schemas.compile_schema(lowered.definition["inputSchema"]).is_valid(written)
    back = map_arguments(written, lowered)
    assert original.is_valid(back)
    assert remove_null_alternatives(back) == remove_null_alternatives(value)
    if original.is_valid(written):
        assert back is written
    assert map_arguments(back, lowered) is back
