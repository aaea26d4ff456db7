"""Lowering a schema changes what is shown, never what is accepted, and says what it left out."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from dialect_rules import as_json_schema, offences, renamed, without_nulls
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry import schemas
from registry.dialects import Lowered, lower, restore
from registry.errors import SchemaRejected
from registry.hosts import DIALECTS

NAMES = st.sampled_from(["a", "b", "kind", "odd key", "日付", "x" * 70])
SCALARS = st.sampled_from([None, True, 0, 5, 1.5, "5", "x", "", "a"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
KINDS = ["string", "integer", "number", "boolean", "null", "array", "object"]
PLAIN = (
    st.booleans()
    | st.sampled_from(KINDS).map(lambda kind: {"type": kind})
    | st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True).map(lambda kinds: {"type": kinds})
    | st.sampled_from(
        [
            {},
            {"enum": ["x", "a", 5]},
            {"enum": ["x", ""], "type": "string"},
            {"enum": ["x", None]},
            {"const": "x"},
            {"const": 5},
            {"type": "integer", "minimum": 3, "exclusiveMaximum": 9},
            {"type": "string", "minLength": 1, "pattern": "^[a-z]+$", "default": "x"},
            {"type": "string", "format": "date-time"},
            {"type": "string", "format": "uri"},
            {"$ref": "#"},
            {"$ref": "#/$defs/node"},
            {"$ref": "#/$defs/leaf", "description": "A leaf."},
            {"$ref": "#/$defs/leaf", "maxLength": 1},
            {"$ref": "#/$defs/other/properties/a"},
            {"$dynamicRef": "#node"},
            {"minItems": 1},
            {"uniqueItems": True, "maxItems": 2},
        ]
    )
)


def _object(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=3)},
        optional={
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "patternProperties": inner.map(lambda below: {"^k": below}),
            "propertyNames": st.just({"pattern": "^[a-z]"}),
            "minProperties": st.integers(0, 2),
        },
    )


def _list_of(keyword: str, inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, min_size=1, max_size=3).map(lambda branches: {keyword: branches})


def _compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    both = st.tuples(inner, inner)
    return (
        _object(inner)
        | inner.map(lambda items: {"type": "array", "items": items})
        | both.map(lambda two: {"type": "array", "prefixItems": [two[0]], "items": two[1]})
        | st.lists(inner, min_size=1, max_size=2).map(lambda items: {"prefixItems": items, "maxItems": len(items)})
        | _list_of("anyOf", inner)
        | _list_of("oneOf", inner)
        | _list_of("allOf", inner)
        | st.tuples(_object(inner), _list_of("anyOf", inner)).map(lambda two: {**two[0], **two[1]})
        | st.tuples(_object(inner), _list_of("oneOf", inner)).map(lambda two: {**two[0], **two[1]})
        | st.tuples(_list_of("anyOf", inner), _list_of("oneOf", inner)).map(lambda two: {**two[0], **two[1]})
        | st.lists(NAMES, min_size=1, max_size=2).map(lambda names: {"required": names})
        | inner.map(lambda wrong: {"not": wrong})
        | both.map(lambda two: {"if": two[0], "then": two[1]})
        | both.map(lambda two: {"contains": two[0], "maxContains": 1})
        | inner.map(lambda needed: {"dependentSchemas": {"a": needed}})
        | _object(inner).map(lambda node: {**node, "unevaluatedProperties": False})
    )


SUBSCHEMAS = st.recursive(PLAIN, _compound, max_leaves=8)
ROOTS = st.tuples(_object(SUBSCHEMAS) | SUBSCHEMAS, SUBSCHEMAS, _object(SUBSCHEMAS)).map(
    lambda three: {
        **(three[0] if isinstance(three[0], dict) else {}),
        "type": "object",
        "$defs": {
            "node": {"$dynamicAnchor": "node", "type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}},
            "leaf": three[1],
            "other": {"type": "object", "properties": {"a": three[2]}},
        },
    }
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)
LAWS = settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def admitted(schema: dict[str, Any]) -> Any:
    """The compiled form, or None for what intake would not admit."""
    try:
        schemas.check_bounds(schema)
        return schemas.compile_schema(schema)
    except SchemaRejected:
        return None


def lowered_to(dialect: str, schema: dict[str, Any], description: str = "Does it.") -> Lowered:
    return lower({"name": "t", "description": description, "inputSchema": schema}, dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
@LAWS
@given(schema=ROOTS, arguments=st.lists(ARGUMENTS, min_size=1, max_size=6))
def test_a_lowered_schema_accepts_what_the_original_does_keeps_the_rules_and_stays_as_it_is(
    dialect: str, schema: dict[str, Any], arguments: list[dict[str, Any]]
) -> None:
    original = admitted(schema)
    if original is None:
        return
    lowered = lowered_to(dialect, schema)
    shown = lowered.definition["inputSchema"]
    assert not [one for one in lowered.weakened if one.keyword == "inputSchema"]
    assert offences(lowered.definition, dialect) == []
    readable = schemas.compile_schema(as_json_schema(shown))
    for sent in arguments:
        there = renamed(sent, lowered.keys, restore(renamed(sent, lowered.keys), lowered)) if lowered.keys else sent
        if original.is_valid(sent):
            assert lowered.narrower or readable.is_valid(there)
            assert json.dumps(restore(there, lowered)) == json.dumps(sent)
    assert (lowered.definition == {"name": "t", "description": "Does it.", "inputSchema": schema}) == (shown is schema)
    again = lower(lowered.definition, dialect)
    assert again.definition is lowered.definition or again.definition == lowered.definition
    if lowered.definition["inputSchema"] is schema:
        assert lowered.definition["description"] == "Does it."


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
def test_a_strict_schema_takes_every_call_with_nulls_for_what_is_left_out_and_they_go_on_the_way_back(
    call: tuple[Any, Any, Any],
) -> None:
    schema, value, written = call
    schema = {**schema, "$defs": {"leaf": {"type": "string", "minLength": 1}}}
    original = schemas.compile_schema(schema)
    assert original.is_valid(value)
    lowered = lowered_to("openai-strict", schema)
    assert not lowered.narrower
    assert schemas.compile_schema(lowered.definition["inputSchema"]).is_valid(written)
    back = restore(written, lowered)
    assert original.is_valid(back)
    assert without_nulls(back) == without_nulls(value)
    if original.is_valid(written):
        assert back is written
    assert restore(back, lowered) is back


def test_nulls_that_the_original_accepts_are_the_callers_own() -> None:
    schema = {
        "type": "object",
        "properties": {"clear": {"type": ["string", "null"]}, "plain": {"type": "string"}, "must": {"type": "integer"}},
        "required": ["must"],
        "additionalProperties": False,
    }
    lowered = lowered_to("openai-strict", schema)
    assert restore({"must": 1, "clear": None, "plain": None}, lowered) == {"must": 1, "clear": None}
    assert restore({"must": 1, "clear": None}, lowered) == {"must": 1, "clear": None}


def test_names_that_an_api_refuses_come_back_wherever_the_schema_speaks_of_them_and_only_there() -> None:
    schema = {
        "type": "object",
        "properties": {
            "order by": {"$ref": "#/$defs/order"},
            "all of them": {"type": "array", "items": {"$ref": "#/$defs/order"}},
            "data": {"type": "object"},
        },
        "$defs": {"order": {"type": "object", "properties": {"$top": {}, "then by": {"$ref": "#/$defs/order"}}}},
    }
    lowered = lowered_to("anthropic", schema)
    name = {original: key for key, original in lowered.keys.items()}
    sent = {
        name["order by"]: {name["$top"]: 1, name["then by"]: {name["$top"]: 2}},
        name["all of them"]: [{name["$top"]: 3}, {"$top": 4}],
        "data": {name["$top"]: "a name like any other"},
    }
    assert restore(sent, lowered) == {
        "order by": {"$top": 1, "then by": {"$top": 2}},
        "all of them": [{"$top": 3}, {"$top": 4}],
        "data": {name["$top"]: "a name like any other"},
    }
    # The name depends on nothing but what it stands for.
    other = lowered_to("anthropic", {"type": "object", "properties": {"$top": {}, "z": {}}})
    assert other.keys == {name["$top"]: "$top"}


def test_words_about_a_schema_leave_the_description_before_any_of_it_is_cut() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    told = "One of: 1) needs a; 2) needs b"
    short = lowered_to("claude-code", schema, "Short.").definition
    assert short["description"] == f"Short.\n\n{told}"
    full = lowered_to("claude-code", schema, "x" * 2_040).definition
    assert full["description"] == "x" * 2_040
    assert full["inputSchema"]["description"] == told
    long = lowered_to("claude-code", schema, "x" * 3_000)
    assert len(long.definition["description"]) == 2_048
    assert long.definition["description"].endswith("x […]")
    assert long.definition["inputSchema"]["description"] == told
    assert [one.how for one in long.weakened if one.keyword == "description"] == ["cut after 2048 characters"]


def test_everything_about_a_tool_but_its_description_and_input_schema_stays() -> None:
    definition = {
        "name": "t",
        "title": "T",
        "description": "Does it.",
        "inputSchema": {"type": "object", "properties": {"a": {"type": "string", "format": "uri"}}},
        "outputSchema": {"type": "object", "anyOf": [{"required": ["a"]}], "format": "uri"},
        "annotations": {"readOnlyHint": True},
        "_meta": {"x": 1},
    }
    for dialect in DIALECTS:
        lowered = lower(definition, dialect).definition
        assert {key: lowered[key] for key in lowered if key != "inputSchema"} == {
            key: definition[key] for key in definition if key != "inputSchema"
        }


def deep(levels: int, keyword: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer", "minimum": 1, "default": 5}
    for _ in range(levels):
        below = {"a": schema} if keyword == "properties" else [schema] if keyword in ("allOf", "oneOf") else schema
        schema = {"type": "array" if keyword == "items" else "object", keyword: below}
    return {"type": "object", "properties": {"a": schema}}


def chain(length: int) -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(length)}
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": {**defs, f"d{length}": {"type": "object"}}}


CROWD = {
    f"d{n}": {"type": "object", "properties": {f"p{m}": {"$ref": f"#/$defs/d{m}"} for m in range(9)}} for n in range(9)
}
HOSTILE: dict[str, dict[str, Any]] = {
    "95 levels of properties": deep(95, "properties"),
    "190 levels of items": deep(190, "items"),
    "190 levels of not": deep(190, "not"),
    "95 levels of allOf": deep(95, "allOf"),
    "95 levels of oneOf": deep(95, "oneOf"),
    "a chain of 3,000 references": chain(3_000),
    "everybody refers to everybody": {"type": "object", "$ref": "#/$defs/d0", "$defs": CROWD},
    "everybody is everybody": {
        "type": "object",
        "anyOf": [{"$ref": f"#/$defs/d{n}"} for n in range(6)],
        "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{m}"} for m in range(6)]} for n in range(6)},
    },
    "a large definition used 500 times": {
        "type": "object",
        "properties": {f"p{n}": {"$ref": "#/$defs/large"} for n in range(500)},
        "$defs": {"large": {"enum": [f"option {n}" for n in range(10_000)]}},
    },
    "doubling, just within bounds": {
        "type": "object",
        "$ref": "#/$defs/d0",
        "$defs": {
            **{
                f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}, "b": {"$ref": f"#/$defs/d{n + 1}"}}}
                for n in range(12)
            },
            "d12": {},
        },
    },
    "999 alternatives": {
        "type": "object",
        "anyOf": [{"properties": {f"b{n}": {"const": n}}, "required": [f"b{n}"]} for n in range(999)],
    },
    "5,000 parts": {"type": "object", "allOf": [{"properties": {f"p{n}": {"minimum": n}}} for n in range(5_000)]},
    "10,000 properties with odd names": {
        "type": "object",
        "properties": {f"odd key {n}": {"type": "string", "format": "uri"} for n in range(10_000)},
        "required": [f"odd key {n}" for n in range(10_000)],
    },
    "huge numbers": {
        "type": "object",
        "properties": {
            "x y": {"maximum": 2**70, "enum": [2**70, 1e300]},
            "n": {"const": 2**80},
        },
        "anyOf": [{"required": ["x y"]}, {"properties": {"x y": {"minimum": 2**70}}}],
    },
    "names that look like renamed ones": {
        "type": "object",
        "properties": {"odd key": {}, "odd_key_ae4cfb85": {}, "odd_key_ae4cfb851d10a4ad": {}},
    },
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_schema_stalls_a_lowering_or_grows_out_of_bounds(dialect: str, name: str) -> None:
    schema = HOSTILE[name]
    assert admitted(schema) is not None
    started = time.perf_counter()
    lowered = lowered_to(dialect, schema)
    assert time.perf_counter() - started < 1.5
    assert len(json.dumps(lowered.definition)) < 400_000 + 5 * len(json.dumps(schema))
    assert not [one for one in lowered.weakened if one.keyword == "inputSchema"]
    assert offences(lowered.definition, dialect) == []
    assert lower(lowered.definition, dialect).definition == lowered.definition
    assert len(set(lowered.keys.values())) == len(lowered.keys)
    assert schema["properties"].keys().isdisjoint(lowered.keys) if "properties" in schema else True
