"""A repair is made only if it is the single reading of a call; ambiguous calls are unchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from registry.arguments.coercion import ToolAddress, report_repairs
from registry.arguments.repair import Repaired, RepairTarget, repair
from registry.catalog.shape import RepairLevel
from registry.schema import schemas

ADDRESS = ToolAddress(server="calendar-mcp", tool="send_email", name="calendar-mcp__send_email")
EMAIL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "to": {"type": "array", "items": {"type": "string"}},
        "subject": {"type": "string"},
        "body": {"type": "string"},
        "accountId": {"type": "string"},
        "copies": {"type": "integer"},
        "urgent": {"type": "boolean"},
        "at": {"type": ["integer", "null"]},
        "attachments": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        "priority": {"enum": ["low", "high"]},
    },
    "required": ["to", "subject", "body"],
    "additionalProperties": False,
}
MAIL = {"to": ["a@b"], "subject": "s", "body": "b"}


def repaired(arguments: Any, schema: Any = EMAIL, level: RepairLevel = "safe", **options: Any) -> Repaired:
    target = RepairTarget(schema=schema, validator=schemas.compile_schema(schema), address=ADDRESS, **options)
    return repair(target, arguments, level)


def names(outcome: Repaired) -> list[tuple[str, str]]:
    return [(one["repair"], one["path"]) for one in (repair.to_json() for repair in outcome.repairs)]


@pytest.mark.parametrize(("const", "sent"), [(1, "1"), (True, "true"), (None, "null"), (1.5, "1.5"), ("On", "on")])
def test_const_is_read_from_its_text(const: Any, sent: str) -> None:
    schema = {"type": "object", "properties": {"v": {"const": const}}}
    outcome = repaired({"v": sent}, schema)
    assert outcome.arguments == {"v": const}
    assert type(outcome.arguments["v"]) is type(const)
    assert repaired({"v": "2"}, schema).arguments == {"v": "2"}
    assert repaired({"v": sent}, schema, level="off").arguments == {"v": sent}


@pytest.mark.parametrize("sent", ["1e999", "-1e999", "Infinity", "NaN", "1e-999", "0.1234567890123456789"])
def test_number_that_would_lose_precision_stays_a_string(sent: str) -> None:
    schema = {"type": "object", "properties": {"v": {"type": "number"}}}
    assert repaired({"v": sent}, schema).arguments == {"v": sent}
    assert repaired({"v": [sent]}, schema, level="full").arguments == {"v": [sent]}


@pytest.mark.parametrize(
    ("sent", "meant", "named"),
    [
        (json.dumps(MAIL), MAIL, [("json_text", "arguments")]),
        (json.dumps(json.dumps(MAIL)), MAIL, [("json_text", "arguments")]),
        ({"arguments": MAIL}, MAIL, [("unwrapped", "arguments")]),
        ({"arguments": {"arguments": MAIL}}, MAIL, [("unwrapped", "arguments")] * 2),
        ({"params": json.dumps(MAIL)}, MAIL, [("unwrapped", "arguments"), ("json_text", "arguments")]),
        ({"tool": "send_email", "input": MAIL}, MAIL, [("unwrapped", "arguments")]),
        ({**MAIL, "to": "a@b"}, MAIL, [("listed", "to")]),
        ({**MAIL, "to": '["a@b"]'}, MAIL, [("json_text", "to")]),
        ({**MAIL, "accountID": "x"}, {**MAIL, "accountId": "x"}, [("renamed", "accountId")]),
        ({**MAIL, "account_id": "x"}, {**MAIL, "accountId": "x"}, [("renamed", "accountId")]),
        ({**MAIL, "copies": "5"}, {**MAIL, "copies": 5}, [("converted", "copies")]),
        ({**MAIL, "urgent": "true"}, {**MAIL, "urgent": True}, [("converted", "urgent")]),
        ({**MAIL, "at": "null"}, {**MAIL, "at": None}, [("converted", "at")]),
        ({**MAIL, "priority": "High"}, {**MAIL, "priority": "high"}, [("letter_case", "priority")]),
    ],
)
def test_each_repair_is_applied_and_named(sent: Any, meant: Any, named: list[tuple[str, str]]) -> None:
    outcome = repaired(sent)
    assert (outcome.arguments, names(outcome), outcome.valid) == (meant, named, True)
    untouched = repaired(sent, level="off")
    assert (untouched.arguments, untouched.repairs, untouched.valid) == (sent, (), False)


@pytest.mark.parametrize(
    "sent",
    [
        {**MAIL, "attachments": "a@b"},
        {**MAIL, "attachments": {"name": "x"}},
        {**MAIL, "copies": "5.0"},
        {**MAIL, "copies": "five"},
        {**MAIL, "urgent": "yes"},
        {**MAIL, "urgent": 1},
        {**MAIL, "to": "a@b, c@d"},
        {**MAIL, "to": "[a@b"},
        {**MAIL, "accountID": "x", "account_id": "y"},
        {**MAIL, "accountId": "x", "account_id": "y"},
        {**MAIL, "subject": 5},
        {**MAIL, "accountId": None},
        {"arguments": MAIL, "subject": "other"},
        {"arguments": MAIL, "params": MAIL},
        {"tool": "another", "arguments": MAIL},
        {},
        None,
        [],
        [MAIL],
        5,
        "mail it",
        '{"to": [',
    ],
)
def test_ambiguous_arguments_are_not_changed(sent: Any) -> None:
    before = json.dumps(sent)
    outcome = repaired(sent)
    assert (outcome.arguments, outcome.repairs, outcome.valid) == (sent, (), False)
    assert json.dumps(sent) == before


def test_repair_reports_the_name_that_was_sent() -> None:
    assert repaired({**MAIL, "account_id": "x"}).repairs[0].to_json() == {
        "repair": "renamed",
        "path": "accountId",
        "was": "account_id",
    }


def test_report_lists_some_repairs_and_counts_all() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    outcome = repaired({f"k{n}" * 100: "5" for n in range(300)}, schema)
    report = report_repairs(outcome.repairs)
    assert (report["count"], len(report["repairs"])) == (300, 20)
    assert len(json.dumps(report)) < 4_000


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({**MAIL, "accountId": None}, MAIL),
        ({**MAIL, "subject": 5}, {**MAIL, "subject": "5"}),
        ({**MAIL, "subject": ["s"]}, MAIL),
        ({**MAIL, "copies": "5.0"}, {**MAIL, "copies": 5}),
        ({**MAIL, "attachments": {"name": "x"}}, {**MAIL, "attachments": [{"name": "x"}]}),
    ],
)
def test_conventional_readings_need_the_full_level(sent: Any, meant: Any) -> None:
    assert not repaired(sent).valid
    assert repaired(sent, level="full").arguments == meant


@pytest.mark.parametrize(
    "sent", [{**MAIL, "subject": None}, {**MAIL, "subject": None, "Subject": "s"}, {**MAIL, "attachments": {"x": 1}}]
)
def test_full_level_does_not_invent_values(sent: Any) -> None:
    assert not repaired(sent, level="full").valid


def test_wrapping_in_an_open_schema_is_removed_if_all_members_are_declared() -> None:
    schema = {"type": "object", "properties": {"limit": {"type": "integer"}, "state": {"type": "string"}}}
    for sent in (
        {"arguments": {"limit": 5}},
        {"params": '{"limit": 5}'},
        {"arguments": {"limit": "5"}},
        {"tool": "send_email", "arguments": {"limit": 5}},
        {"arguments": {"arguments": {"limit": 5}}},
    ):
        outcome = repaired(sent, schema)
        assert outcome.arguments == {"limit": 5}, sent
        assert names(outcome)[0] == ("unwrapped", "arguments")
        assert repaired(outcome.arguments, schema).arguments is outcome.arguments
    for empty in ({"arguments": {}}, {"tool": "send_email", "arguments": {}}, {"arguments": {"arguments": {}}}):
        outcome = repaired(empty, schema)
        assert (outcome.arguments, names(outcome)[0]) == ({}, ("unwrapped", "arguments")), empty
    for other in ({"arguments": {"size": 5}}, {"input": ""}, {"arguments": {"limit": 5}, "state": "open"}):
        assert repaired(other, schema).arguments is other
    wrapped = {"arguments": {"limit": 5}}
    assert repaired(wrapped, schema, "off").arguments is wrapped
    named = {**schema["properties"], "arguments": {"type": "object"}}
    for open_schema in (
        {"type": "object"},
        {**schema, "properties": named},
        {**schema, "additionalProperties": {"type": "object"}},
        {**schema, "patternProperties": {"^a": {}}},
    ):
        assert repaired(wrapped, open_schema).arguments is wrapped


def test_wrapped_call_with_a_wrong_argument_is_refused() -> None:
    schema = {"type": "object", "properties": {"limit": {"type": "integer"}}}
    outcome = repaired({"arguments": {"limit": "many"}}, schema)
    assert not outcome.valid
    assert outcome.unwrapped == {"limit": "many"}


TABLE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "rows": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        "numbers": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "cc": {"type": "array", "items": {"type": "string"}},
        "bcc": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        "tags": {"type": ["array", "null"], "items": {"type": "string"}},
        "colors": {"type": "array", "items": {"type": "string", "enum": ["none", "red"]}},
        "options": {"type": "object"},
    },
}


@pytest.mark.parametrize("level", ["safe", "full"])
@pytest.mark.parametrize(
    "sent",
    [
        {"rows": ["Name", "Age"]},
        {"numbers": [1, 2]},
        {"rows": '["Name", "Age"]'},
        {"cc": "null"},
        {"cc": "None"},
        {"cc": "undefined"},
        {"options": '{"a": 1, "a": 2}'},
        {"options": '{"a": {"b": 1, "b": 1}}'},
        '{"cc": ["a"], "cc": ["b"]}',
    ],
)
def test_list_items_and_words_for_nothing_do_not_become_lists(sent: Any, level: Any) -> None:
    outcome = repaired(sent, TABLE, level)
    assert (outcome.arguments, outcome.repairs, outcome.valid) == (sent, (), False)


@pytest.mark.parametrize("word", ["null", "None"])
@pytest.mark.parametrize("name", ["bcc", "tags"])
def test_word_for_null_becomes_null_where_null_is_allowed(name: str, word: str) -> None:
    assert repaired({name: word}, TABLE).arguments == {name: None}


def test_enum_option_that_looks_like_a_word_for_nothing_becomes_a_list_item() -> None:
    assert repaired({"colors": "none"}, TABLE).arguments == {"colors": ["none"]}


def test_declared_parameter_is_not_unwrapped() -> None:
    schema = {"type": "object", "properties": {"input": {"type": "object"}, "a": {}}, "required": ["a"]}
    assert not repaired({"input": {"a": 1}}, schema).valid
    assert repaired({"arguments": {"input": {"a": 1}, "a": 2}}, schema).arguments == {"input": {"a": 1}, "a": 2}


def test_names_are_corrected_only_as_their_own_object_declares_them() -> None:
    name = {"type": "string"}
    schema = {
        "type": "object",
        "properties": {
            "userId": name,
            "name": name,
            "inner": {"type": "object", "properties": {"name": {"$ref": "#/properties/name"}}, "required": ["name"]},
        },
        "required": ["name"],
    }
    sent = {"Name": "n", "inner": {"name": "m", "user_id": "x"}}
    assert repaired(sent, schema).arguments == {"name": "n", "inner": {"name": "m", "user_id": "x"}}
    assert not repaired({"name": "n", "inner": {"name": 5, "user_id": "x"}}, schema).valid


@pytest.mark.parametrize(
    "free", [{"additionalProperties": {"type": "string"}}, {"patternProperties": {"^[A-Z]": {"type": "string"}}}]
)
def test_keys_of_a_map_are_not_corrected(free: dict[str, Any]) -> None:
    labels = {"type": "object", "properties": {"default": {"type": "string"}, "size": {"type": "integer"}}, **free}
    schema = {"type": "object", "properties": {"labels": labels, "n": {"type": "integer"}}, "required": ["n"]}
    sent = {"labels": {"Default": "x", "size": "5"}, "N": 1}
    assert repaired(sent, schema).arguments == {"labels": {"Default": "x", "size": 5}, "n": 1}
    assert not repaired({"Default": "x"}, {**labels, "required": ["default"]}).valid


def test_declared_parameter_is_not_renamed_to_another() -> None:
    schema = {"type": "object", "properties": {"Path": {}, "path": {}}, "required": ["path"]}
    assert not repaired({"Path": "x"}, schema).valid
    branches = {
        "type": "object",
        "properties": {"B": {}, "a": {}},
        "anyOf": [{"required": ["b"]}, {"required": ["c"]}],
    }
    assert not repaired({"B": 1}, branches).valid


def test_value_is_unchanged_if_two_alternatives_fit() -> None:
    either = {"type": "object", "properties": {"a": {"anyOf": [{"const": "X"}, {"const": "x"}, {"type": "null"}]}}}
    schema = {**either, "properties": {"a": {"anyOf": [{"enum": ["on"]}, {"enum": ["ON"]}]}}}
    assert not repaired({"a": "On"}, schema).valid
    assert repaired({"a": "null"}, either).arguments == {"a": None}
    numbers = {"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "number"}]}}}
    assert repaired({"a": "5"}, numbers).arguments == {"a": 5}


def test_each_array_item_is_repaired_for_its_own_alternative() -> None:
    line = {"type": "object", "properties": {"line": {"type": "integer"}}, "required": ["line"]}
    file = {"type": "object", "properties": {"file": {"type": "boolean"}}, "required": ["file"]}
    group = {"type": "object", "properties": {"of": {"oneOf": [line, file]}}, "required": ["of"]}
    for choice in (line, file, group):
        choice["additionalProperties"] = False
    schema = {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "notes": {"type": "array", "items": {"anyOf": [line, file, group]}},
        },
        "required": ["title", "notes"],
    }
    sent = {
        "notes": [{"line": "5"}, {"File": "true"}, {"of": {"Line": "7"}}, {"of": '{"file": false}'}] * 5,
        "title": "t",
    }
    meant = [{"line": 5}, {"file": True}, {"of": {"line": 7}}, {"of": {"file": False}}] * 5
    outcome = repaired(sent, schema)
    assert outcome.arguments == {"notes": meant, "title": "t"}
    assert ("converted", "notes[16].line") in names(outcome)
    assert not repaired({"notes": [*sent["notes"], {"line": "x"}], "title": "t"}, schema).valid
    assert not repaired({"notes": sent["notes"]}, schema).valid


def test_tuple_item_is_repaired_for_the_schema_of_its_position() -> None:
    pair = {"prefixItems": [{"type": "string"}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}]}
    schema = {"type": "object", "properties": {"pair": {"type": "array", **pair}}}
    assert repaired({"pair": ["5", "5"]}, schema).arguments == {"pair": ["5", 5]}
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    schema = {**draft, "properties": {"pair": {"type": "array", "items": pair["prefixItems"]}}}
    assert repaired({"pair": ["5", "5"]}, schema).arguments == {"pair": ["5", 5]}


def test_defaults_count_when_a_repair_is_validated() -> None:
    def fill(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"subject": "none", **arguments}

    outcome = repaired({"To": "a@b", "body": "b"}, fill=fill)
    assert (outcome.arguments, outcome.valid) == ({"to": ["a@b"], "body": "b"}, True)
    assert repaired({"to": ["a@b"], "Subject": "s", "body": "b"}, fill=fill).arguments == MAIL
    assert not repaired({"to": ["a@b"], "Subject": 5, "body": "b"}, fill=fill).valid


DIALECTS = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_json_schema_draft_is_repaired_alike(dialect: str) -> None:
    word = "definitions" if "draft-0" in dialect else "$defs"
    schema = {
        "$schema": dialect,
        "type": "object",
        word: {
            "node": {"type": "object", "properties": {"next": {"$ref": f"#/{word}/node"}, "n": {"type": "integer"}}}
        },
        "properties": {"node": {"$ref": f"#/{word}/node"}},
    }
    sent = {"node": '{"next": {"next": {"n": "5"}}}'}
    assert repaired(sent, schema).arguments == {"node": {"next": {"next": {"n": 5}}}}


def test_dynamic_reference_is_resolved_as_by_the_validator() -> None:
    schema = {
        "type": "object",
        "properties": {"tree": {"$dynamicRef": "#node"}},
        "$defs": {
            "node": {
                "$dynamicAnchor": "node",
                "type": "object",
                "properties": {
                    "size": {"type": "integer"},
                    "kids": {"type": "array", "items": {"$dynamicRef": "#node"}},
                },
                "additionalProperties": False,
            }
        },
    }
    sent = {"tree": {"Size": "1", "kids": '[{"size": "2"}]'}}
    assert repaired(sent, schema).arguments == {"tree": {"size": 1, "kids": [{"size": 2}]}}
