"""Clients list and call every tool behind the gateway, whatever the schemas of any server are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.clients import installed
from support.gateways import running_gateway, text_of
from support.upstreams.running import scripted_stdio_server, tool

TEXT = {"type": "string"}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "https://json-schema.org/draft-07/schema"
DAY = "2026-x"
# Output schemas, each with the members of an object that its server returns. Most are refused by one of the clients.
RESULTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "python_group": ({"properties": {"a": {**TEXT, "pattern": "^(?P<year>[0-9]{4})-x$"}}}, {"a": DAY}),
    "named_group": ({"properties": {"a": {**TEXT, "pattern": "^(?<year>[0-9]{4})-x$"}}}, {"a": DAY}),
    "unicode_class": ({"properties": {"a": {**TEXT, "pattern": r"^\p{N}+-x$"}}}, {"a": DAY}),
    "inline_flag": ({"properties": {"a": {**TEXT, "pattern": "(?i)^2026-X$"}}}, {"a": DAY}),
    "verbose_flag": ({"properties": {"a": {**TEXT, "pattern": "(?x) ^ 2026 -x $"}}}, {"a": DAY}),
    "anchors": ({"properties": {"a": {**TEXT, "pattern": r"\A\d{4}\-x\Z"}}}, {"a": DAY}),
    "possessive": ({"properties": {"a": {**TEXT, "pattern": "^[0-9]++-x$"}}}, {"a": DAY}),
    "lookbehind": ({"properties": {"a": {**TEXT, "pattern": "(?<!y{1,2})x$"}}}, {"a": DAY}),
    "broken_pattern": ({"properties": {"a": {**TEXT, "pattern": "["}}}, {"a": DAY}),
    "member_pattern": ({"patternProperties": {"^(?P<x>a)$": TEXT}, "additionalProperties": False}, {"a": DAY}),
    "nullable": ({"properties": {"a": {"nullable": True}}}, {"a": None}),
    "nullable_text": ({"properties": {"a": {**TEXT, "nullable": True}}}, {"a": None}),
    "nullable_reference": (
        {"properties": {"a": {"$ref": "#/$defs/t", "nullable": True}}, "$defs": {"t": TEXT}},
        {"a": None},
    ),
    "nullable_word": ({"properties": {"a": {"nullable": "yes", **TEXT}}}, {"a": DAY}),
    "draft_4": (
        {"$schema": DRAFT_4, "id": "x", "properties": {"a": {"minimum": 1, "exclusiveMinimum": True}}},
        {"a": 2},
    ),
    "https_draft": ({"$schema": DRAFT_7, "properties": {"a": {"type": "array", "items": [TEXT]}}}, {"a": ["x"]}),
    "unknown_dialect": ({"$schema": "https://example.test/dialect", "properties": {"a": TEXT}}, {"a": DAY}),
    "tuple": ({"properties": {"a": {"items": [TEXT], "additionalItems": False}}}, {"a": ["x"]}),
    "type_any": ({"properties": {"a": {"type": "any"}}}, {"a": 1}),
    "type_int": ({"properties": {"a": {"type": "int"}}}, {"a": 1}),
    "no_options": ({"properties": {"a": {"enum": []}}}, {"a": 1}),
    "null_keywords": ({"properties": {"a": {"enum": None, "items": None, "minimum": None}}}, {"a": 1}),
    "required_twice": ({"properties": {"a": TEXT}, "required": ["a", "a"]}, {"a": DAY}),
    "remote": ({"properties": {"a": {"$ref": "https://example.test/schema.json"}}}, {"a": 1}),
    "nowhere": ({"properties": {"a": {"$ref": "#/components/schemas/X"}}}, {"a": 1}),
    "raw_reference": ({"properties": {"a": {"$ref": "#/$defs/L<A [T]>"}}, "$defs": {"L<A [T]>": TEXT}}, {"a": DAY}),
    "percent": ({"properties": {"a": {"$ref": "#/$defs/100%"}}, "$defs": {"100%": TEXT}}, {"a": DAY}),
    "unknown_format": ({"properties": {"a": {**TEXT, "format": "uint99"}}}, {"a": DAY}),
    "format_number": ({"properties": {"a": {**TEXT, "format": {}}}}, {"a": DAY}),
    "async": ({"$async": True, "properties": {"a": TEXT}}, {"a": DAY}),
    "lost_root": ({"properties": {"a": TEXT, "b": {"$ref": "other.json#/x"}}}, {"a": DAY}),
}  # fmt: skip


def server(tmp_path: Path, name: str, own: str) -> dict[str, Any]:
    """Return a server whose tools answer with their arguments; `own` is required in the shared schemas."""
    shared = {"$id": "https://example.test/result.json", "required": [own], "properties": {own: TEXT}}
    inner: dict[str, Any] = {"properties": {"v": {"$ref": "https://example.test/v"}}, "required": ["v"]}
    inner["$defs"] = {"v": {"$id": "https://example.test/v", "type": "object", "required": [own]}}
    outputs = {"shared": {**shared, "additionalProperties": False}, "inner": inner}
    if name == "odd":
        outputs |= {word: schema for word, (schema, _) in RESULTS.items()}
    tools = [{**tool(word), "outputSchema": {"type": "object", **schema}} for word, schema in outputs.items()]
    return scripted_stdio_server(tmp_path, name, tools=tools)[0]


@pytest.mark.parametrize("client", ["typescript", "sdk1", "sdk2-auto"])
async def test_no_output_schema_costs_a_client_its_list_or_a_result(tmp_path: Path, client: str) -> None:
    servers = {"odd": server(tmp_path, "odd", "city"), "good": server(tmp_path, "good", "person")}
    eager = {"profiles": {"default": {"disclosure": "eager"}}}
    calls: list[dict[str, Any]] = [{"name": f"odd__{word}", "arguments": value} for word, (_, value) in RESULTS.items()]
    for name, own in (("odd", "city"), ("good", "person")):
        calls.append({"name": f"{name}__shared", "arguments": {own: "x"}})
        calls.append({"name": f"{name}__inner", "arguments": {"v": {own: "x"}}})
    async with running_gateway(tmp_path, servers, gateway=eager) as gateway:
        await gateway.until_listed("odd__shared", "good__shared")
        seen = await installed.report(client, gateway.url, calls)
    assert {call["name"] for call in calls} <= {one["name"] for one in seen["tools"]}
    wrong = {
        call["name"]: answer
        for call, answer in zip(calls, seen["calls"], strict=True)
        if "result" not in answer or answer["result"].get("structuredContent") != call["arguments"]
    }
    assert wrong == {}


HEX = "[0-9a-fA-F]"
NUMBER = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
# Input schemas, each with arguments that its server accepts.
ARGUMENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "guid": ({"properties": {"a": {**TEXT, "pattern": f"^({HEX}{{8}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{12}})$"}}},
             {"a": "123e4567-e89b-12d3-a456-426614174000"}),
    "ipv4": ({"properties": {"a": {**TEXT, "pattern": f"^(?:{NUMBER}\\.){{3}}{NUMBER}$"}}}, {"a": "10.0.0.1"}),
    "letters": ({"properties": {"a": {**TEXT, "pattern": r"^\p{L}{1,64}-\p{L}{1,64}$"}}}, {"a": "é-é"}),
    "inline_flag": ({"properties": {"a": {**TEXT, "pattern": "(?i)^abc$"}}}, {"a": "ABC"}),
    "conditional": ({"properties": {"a": {**TEXT, "pattern": "^(x)?(?(1)y|z)$"}}}, {"a": "xy"}),
    "recursive": ({"properties": {"a": {**TEXT, "pattern": r"^(\((?1)*\))$"}}}, {"a": "(())"}),
    "reversed": ({"properties": {"a": {"not": {"pattern": "(?(1)a|b)"}}}}, {"a": "x"}),
    "reversed_by_reference": (
        {"properties": {"a": {"not": {"$ref": "#/$defs/p"}}}, "$defs": {"p": {"pattern": "(?(1)a|b)"}}}, {"a": "x"}),
    "either_format": ({"properties": {"a": {"oneOf": [{**TEXT, "format": "date"}, {**TEXT, "format": "time"}]}}},
                      {"a": "2026-01-01"}),
    "nullable_allof": (
        {"properties": {"a": {"allOf": [{"$ref": "#/$defs/t"}], "nullable": True}}, "$defs": {"t": TEXT}}, {"a": None}),
    "nullable_oneof": ({"properties": {"a": {"oneOf": [TEXT, {"type": "integer"}], "nullable": True}}}, {"a": None}),
    "nullable_const": ({"properties": {"a": {"const": "x", "nullable": True}}}, {"a": None}),
    "nullable_draft_7": ({"$schema": DRAFT_7, "properties": {"a": {"$ref": "#/definitions/t", "nullable": True}},
                          "definitions": {"t": TEXT}}, {"a": None}),
    "null_in_items": ({"properties": {"a": {"items": {**TEXT, "nullable": True}}}}, {"a": [None, "x"]}),
    "null_option": ({"properties": {"a": {**TEXT, "enum": ["x", None]}}}, {"a": None}),
    "null_default_deep": ({"properties": {"a": {"properties": {"b": {**TEXT, "default": None}}}}}, {"a": {"b": None}}),
    "x_nullable": ({"properties": {"a": {**TEXT, "x-nullable": True}}}, {"a": None}),
    "base64_text": ({"$schema": DRAFT_4, "properties": {"a": {**TEXT, "contentEncoding": "base64"}}}, {"a": "not"}),
    "not_base64": ({"$schema": DRAFT_7, "properties": {"a": {"not": {"contentEncoding": "base64"}}}}, {"a": "aGk="}),
    "format": ({"properties": {"a": {**TEXT, "format": "email"}}}, {"a": "{{address}}"}),
    "hash_draft": ({"$schema": "https://json-schema.org/draft/2020-12/schema#", "properties": {"a": TEXT}}, {"a": "x"}),
    "array_root": ({"type": "array", "items": TEXT}, {"a": "x"}),
    "upper_case_types": ({"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}, {"a": "x"}),
    "union_text": ({"properties": {"a": {"type": "string | integer"}}}, {"a": 1}),
    "remote": ({"properties": {"a": {"$ref": "http://127.0.0.1:9/never.json"}}}, {"a": 1}),
    "openapi_reference": ({"properties": {"a": {"$ref": "#/components/schemas/A"}}}, {"a": 1}),
    "recursive_reference": (
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "properties": {"a": {"$recursiveRef": "#"}}},
        {"a": {"a": {}}}),
    "dynamic_reference": (
        {"properties": {"a": {"$dynamicRef": "#n"}}, "$defs": {"n": {"$dynamicAnchor": "n", "type": "integer"}}},
        {"a": 1}),
    "root_without_type": ({"properties": {"a": {"$ref": "#"}}}, {"a": "not an object"}),
    "php": ({"properties": {"a": {"type": "object", "properties": [], "required": []}}}, {"a": {"x": 1}}),
    "required_word": ({"properties": {"a": {**TEXT, "required": "true"}}}, {"a": "x"}),
}  # fmt: skip


async def test_no_input_schema_costs_a_tool_its_place_or_a_call(tmp_path: Path) -> None:
    tools = [{**tool(word), "inputSchema": {"type": "object", **schema}} for word, (schema, _) in ARGUMENTS.items()]
    del tools[list(ARGUMENTS).index("root_without_type")]["inputSchema"]["type"]
    config, record = scripted_stdio_server(tmp_path, "odd", tools=tools)
    eager = {"profiles": {"default": {"disclosure": "eager"}}}
    async with running_gateway(tmp_path, {"odd": config}, gateway=eager) as gateway:
        await gateway.until_listed(*(f"odd__{word}" for word in ARGUMENTS))
        answers = {word: await gateway.call(f"odd__{word}", value) for word, (_, value) in ARGUMENTS.items()}
    assert {word: text_of(answer) for word, answer in answers.items() if answer.get("isError")} == {}
    assert [call["arguments"] for call in record.calls()] == [value for _, value in ARGUMENTS.values()]
    unchecked = {word for word, answer in answers.items() if "typegate/unchecked" in answer["_meta"]}
    patterns = {"letters", "conditional", "recursive", "reversed", "reversed_by_reference"}
    assert unchecked == patterns | {"array_root", "remote", "openapi_reference"}
