"""Lowering a schema changes only its presentation, and reports what it omitted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.dialect_rules import admitted, lowered_to, violations
from support.pace import limited_work

from registry.dialects.client_profiles import DIALECTS
from registry.dialects.definitions import lower_definition, map_arguments
from registry.errors import NotChecked


def test_null_accepted_by_the_original_is_kept() -> None:
    schema = {
        "type": "object",
        "properties": {"clear": {"type": ["string", "null"]}, "plain": {"type": "string"}, "must": {"type": "integer"}},
        "required": ["must"],
        "additionalProperties": False,
    }
    lowered = lowered_to("openai-strict", schema)
    assert map_arguments({"must": 1, "clear": None, "plain": None}, lowered) == {"must": 1, "clear": None}
    assert map_arguments({"must": 1, "clear": None}, lowered) == {"must": 1, "clear": None}


def test_renamed_property_is_restored_only_where_the_schema_declares_it() -> None:
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
    name = {original: key for key, original in lowered.original_names.items()}
    sent = {
        name["order by"]: {name["$top"]: 1, name["then by"]: {name["$top"]: 2}},
        name["all of them"]: [{name["$top"]: 3}, {"$top": 4}],
        "data": {name["$top"]: "a name like any other"},
    }
    assert map_arguments(sent, lowered) == {
        "order by": {"$top": 1, "then by": {"$top": 2}},
        "all of them": [{"$top": 3}, {"$top": 4}],
        "data": {name["$top"]: "a name like any other"},
    }
    # The name depends on nothing but what it stands for.
    other = lowered_to("anthropic", {"type": "object", "properties": {"$top": {}, "z": {}}})
    assert other.original_names == {name["$top"]: "$top"}


def test_schema_notes_are_dropped_before_the_description_is_truncated() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    note = "One of: 1) needs a; 2) needs b"
    short = lowered_to("claude-code", schema, "Short.").definition
    assert short["description"] == f"Short.\n\n{note}"
    full = lowered_to("claude-code", schema, "x" * 2_040).definition
    assert full["description"] == "x" * 2_040
    assert full["inputSchema"]["description"] == note
    long = lowered_to("claude-code", schema, "x" * 3_000)
    assert len(long.definition["description"]) == 2_048
    assert long.definition["description"].endswith("x […]")
    assert long.definition["inputSchema"]["description"] == note
    assert [one.how for one in long.losses if one.keyword == "description"] == ["cut after 2048 characters"]


def test_lowering_changes_only_description_and_input_schema() -> None:
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
        lowered = lower_definition(definition, dialect).definition
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


# The dialects that rewrite most; the others with `-m heavy`.
STALLING = [
    name if name in ("anthropic", "openai-strict", "gemini") else pytest.param(name, marks=pytest.mark.heavy)
    for name in DIALECTS
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("dialect", STALLING)
def test_lowering_is_bounded_for_hostile_schemas(dialect: str, name: str) -> None:
    schema = HOSTILE[name]
    assert admitted(schema) is not None
    with limited_work(1.5):
        lowered = lowered_to(dialect, schema)
    assert len(json.dumps(lowered.definition)) < 400_000 + 5 * len(json.dumps(schema))
    assert not [one for one in lowered.losses if one.keyword == "inputSchema"]
    assert violations(lowered.definition, dialect) == []
    assert lower_definition(lowered.definition, dialect).definition == lowered.definition
    assert len(set(lowered.original_names.values())) == len(lowered.original_names)
    assert schema["properties"].keys().isdisjoint(lowered.original_names) if "properties" in schema else True


TREE = {
    "type": "object",
    "properties": {"a b": {"type": "string"}, "c": {"$ref": "#"}, "l": {"type": "array", "items": {"$ref": "#"}}},
    "anyOf": [{"properties": {"a b": {"minLength": n}}} for n in range(99)],
    "additionalProperties": False,
}


def nested(levels: int, leaf: Any) -> Any:
    for level in range(levels):
        leaf = {"c": leaf} if level % 2 else {"l": [leaf]}
    return leaf


@pytest.mark.parametrize("dialect", ["anthropic", "openai-strict"])
@pytest.mark.parametrize(
    "arguments",
    [
        nested(10_000, {"c": None}),
        nested(90, {"c": None}),
        {"l": [{"c": None}] * 20_000},
        {f"m{n}": None for n in range(20_000)},
        {"\ud800": None, "c": {"\ud800": None}},
        "text",
        ["list", None],
        None,
        5,
    ],
    ids=["10,000 levels", "90 levels", "many items", "many members", "surrogates", "text", "list", "null", "number"],
)
def test_mapping_arguments_back_is_bounded_and_does_not_raise(dialect: str, arguments: Any) -> None:
    lowered = lowered_to(dialect, TREE)
    with limited_work(1):
        try:
            back = map_arguments(arguments, lowered)
        except NotChecked:
            back = arguments  # whether its nulls are accepted takes longer to find out than there is time for
    if not isinstance(arguments, dict):
        assert back is arguments
