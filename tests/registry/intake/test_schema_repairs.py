"""Schemas are repaired for clients without rejecting anything they accepted."""

from __future__ import annotations

from typing import Any

import pytest

from registry.intake.issues import RepairNotes
from registry.intake.schema_repairs import repair_schema
from registry.schema import schemas

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def repaired(schema: Any, *, of_results: bool = False) -> Any:
    notes: RepairNotes = []
    found = repair_schema(schema, notes, of_results=of_results)
    assert bool(notes) is (found is not schema)
    again: RepairNotes = []
    assert repair_schema(found, again, of_results=of_results) is found, again
    schemas.compile_schema(found)
    return found


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"required": ["a", "a", 1]}, {"required": ["a"]}),
        ({"required": "a"}, {"required": ["a"]}),
        ({"allOf": [{"if": {"required": ["a", "a"]}, "then": {"required": ["b", "b"]}}]},
         {"allOf": [{"if": {"required": ["a"]}, "then": {"required": ["b"]}}]}),
        ({"enum": ["b", "a", "b", 1, True]}, {"enum": ["b", "a", 1, True]}),
        ({"enum": []}, {}),
        ({"enum": "a"}, {}),
        ({"enum": None, "minimum": None, "pattern": None, "items": None, "format": None, "anyOf": None}, {}),
        ({"type": "any"}, {}),
        ({"type": "int"}, {"type": "integer"}),
        ({"type": "STRING"}, {"type": "string"}),
        ({"type": "string|null"}, {"type": ["string", "null"]}),
        ({"type": "string[]"}, {"type": "array"}),
        ({"type": ["string", "string"]}, {"type": ["string"]}),
        ({"type": ["string", None]}, {"type": ["string", "null"]}),
        ({"type": ["string", "any"]}, {}),
        ({"type": "date"}, {}),
        ({"type": []}, {}),
        ({"properties": {"a": "string", "b": "what", "c": None}},
         {"properties": {"a": {"type": "string"}, "b": {}, "c": {}}}),
        ({"items": "string"}, {"items": {"type": "string"}}),
        ({"additionalProperties": "false"}, {"additionalProperties": False}),
        ({"additionalProperties": []}, {"additionalProperties": {}}),
        ({"minLength": "3", "maxLength": -1}, {"minLength": 3}),
        ({"minItems": 1.5, "maximum": "10"}, {"maximum": 10}),
        ({"multipleOf": 0}, {}),
        ({"uniqueItems": "true", "deprecated": "yes"}, {"uniqueItems": True}),
        ({"description": ["one", "two"], "title": 7}, {"description": "one\ntwo"}),
        ({"examples": "one"}, {"examples": ["one"]}),
        ({"anyOf": {"type": "string"}}, {"anyOf": [{"type": "string"}]}),
        ({"anyOf": [], "oneOf": [], "allOf": []}, {}),
        ({"oneOf": [{"type": "string"}, None]}, {}),
        ({"allOf": [{"type": "string"}, None]}, {"allOf": [{"type": "string"}]}),
        ({"not": {"type": "any"}}, {}),
        ({"if": None, "then": {"required": ["a"]}}, {"then": {"required": ["a"]}}),
        ({"dependencies": {"a": "b"}}, {"dependencies": {"a": ["b"]}}),
        ({"nullable": "true", "type": "string"}, {"nullable": True, "type": "string"}),
        ({"$schema": "https://json-schema.org/draft-07/schema#"}, {"$schema": DRAFT_7}),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 0, "exclusiveMinimum": True},
         {"$schema": DRAFT_7, "exclusiveMinimum": 0}),
        ({"exclusiveMinimum": False, "minimum": 0}, {"minimum": 0}),
        ({"$schema": 7}, {}),
        ({"id": "http://x.example/a", "$id": "http://x.example/b"}, {}),
    ],
)  # fmt: skip
def test_schema_mistakes_are_corrected_or_removed(given: Any, wanted: Any) -> None:
    assert repaired({"type": "object", **given} if "type" not in given else given) == (
        {"type": "object", **wanted} if "type" not in given else wanted
    )


@pytest.mark.parametrize(
    ("reference", "name", "wanted"),
    [
        ("#/$defs/Page<Item>", "Page<Item>", "#/$defs/Page%3CItem%3E"),
        ("#/$defs/List[int]", "List[int]", "#/$defs/List%5Bint%5D"),
        ("#/$defs/My Type", "My Type", "#/$defs/My%20Type"),
        ("#/$defs/A|B", "A|B", "#/$defs/A%7CB"),
        ("#/$defs/Größe", "Größe", "#/$defs/Gr%C3%B6%C3%9Fe"),
        ('#/$defs/"q"', '"q"', "#/$defs/%22q%22"),
        ("#/$defs/100%", "100%", "#/$defs/100%25"),
        ("#/$defs/a^b", "a^b", "#/$defs/a%5Eb"),
        ("#/$defs/a{b}", "a{b}", "#/$defs/a%7Bb%7D"),
        ("#/$defs/C#", "C#", "#/$defs/C%23"),
        ("#/$defs/a\\b", "a\\b", "#/$defs/a%5Cb"),
        ("#/$defs/Page%3CItem%3E", "Page<Item>", "#/$defs/Page%3CItem%3E"),
        ("#/$defs/a~1b~0c", "a/b~c", "#/$defs/a~1b~0c"),
        ("#/$defs/a+b(c)", "a+b(c)", "#/$defs/a+b(c)"),
    ],
)
def test_references_with_raw_characters_are_encoded_and_still_resolve(reference: str, name: str, wanted: str) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": reference}}, "$defs": {name: {"type": "string"}}}
    found = repaired(schema)
    assert found["properties"]["a"] == {"$ref": wanted}
    compiled = schemas.compile_schema(found)
    assert compiled.is_valid({"a": "x"})
    assert not compiled.is_valid({"a": 1})


def test_identifiers_are_removed_and_references_to_them_become_pointers() -> None:
    schema = {
        "$id": "https://x.example/root.json",
        "type": "object",
        "properties": {
            "a": {"$ref": "item.json"},
            "b": {"$ref": "https://x.example/root.json#/$defs/text"},
            "c": {"$ref": "item.json#name"},
            "d": {"$ref": "#/$defs/text"},
        },
        "$defs": {
            "item": {
                "$id": "item.json",
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "properties": {"n": {"$anchor": "name", "type": "integer"}, "t": {"$ref": "#/$defs/own"}},
                "$defs": {"own": {"type": "boolean"}},
            },
            "text": {"type": "string"},
        },
    }
    found = repaired(schema)
    assert found["properties"] == {
        "a": {"$ref": "#/$defs/item"},
        "b": {"$ref": "#/$defs/text"},
        "c": {"$ref": "#/$defs/item/properties/n"},
        "d": {"$ref": "#/$defs/text"},
    }
    assert found["$defs"]["item"] == {
        "properties": {"n": {"type": "integer"}, "t": {"$ref": "#/$defs/item/$defs/own"}},
        "$defs": {"own": {"type": "boolean"}},
    }
    assert "$id" not in found
    before, after = (schemas.compile_schema(one) for one in (schema, found))
    for value in ({"a": {"n": 1, "t": True}}, {"a": {"n": "1"}}, {"a": {"t": 1}}, {"b": 1}, {"c": "x"}, {"d": "x"}):
        assert before.is_valid(value) is after.is_valid(value)


def test_anchor_without_identifiers_and_property_named_id_are_kept() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string"}, "$id": {"type": "string"}, "a": {"$ref": "#here"}},
        "$defs": {"x": {"$anchor": "here", "type": "integer"}},
        "required": ["id"],
    }
    assert repaired(schema) is schema


def test_unresolvable_reference_below_a_negation_does_not_narrow() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"not": {"$ref": "https://x.example/remote"}},
            "b": {"oneOf": [{"$ref": "#/$defs/lost"}, {"type": "string"}]},
            "c": {"if": {"$ref": "#/$defs/lost"}, "then": {"type": "string"}},
        },
        "$defs": {"lost": {"$ref": "#/nowhere"}},
        "unevaluatedProperties": False,
    }
    found = repaired(schema)
    compiled = schemas.compile_schema(found)
    assert compiled.is_valid({"a": 1, "b": "x", "c": 1, "d": 1})
    assert found["properties"] == {"a": {}, "b": {"anyOf": [{"$ref": "#/$defs/lost"}, {"type": "string"}]}, "c": {}}


def test_siblings_of_an_unresolvable_draft_7_reference_stay_ignored() -> None:
    schema = {
        "$schema": DRAFT_7,
        "type": "object",
        "properties": {"a": {"$ref": "https://x.example/remote", "type": "string", "title": "A"}},
    }
    assert repaired(schema)["properties"]["a"] == {"title": "A"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"nullable": True}, {}),
        ({"type": "string", "nullable": False}, {"type": "string"}),
        ({"enum": ["a"], "nullable": True}, {"enum": ["a", None]}),
        ({"anyOf": [{"type": "string"}], "nullable": True}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"pattern": "^(?P<year>[0-9]{4})$"}, {"pattern": "^([0-9]{4})$"}),
        ({"pattern": r"^\p{L}+$"}, {}),
        ({"pattern": "["}, {}),
        (
            {"patternProperties": {r"^\p{L}$": {"type": "string"}}, "additionalProperties": False},
            {"patternProperties": {}},
        ),
        ({"patternProperties": {r"^x\-": {"type": "string"}}}, {"patternProperties": {"^x-": {"type": "string"}}}),
        ({"format": "unknown-to-all", "x-note": [1]}, {"format": "unknown-to-all", "x-note": [1]}),
        ({"$async": True}, {}),
    ],
)
def test_output_schemas_are_rewritten_for_all_clients(given: Any, wanted: Any) -> None:
    notes: RepairNotes = []
    found = repair_schema({"type": "object", "properties": {"a": given}}, notes, of_results=True)
    assert found == {"type": "object", "properties": {"a": wanted}}


def test_tuple_in_an_output_schema_declares_its_draft() -> None:
    pair = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False}
    schema = {"type": "object", "properties": {"at": pair}}
    assert repaired(schema, of_results=True) == {**schema, "$schema": DRAFT_7}
