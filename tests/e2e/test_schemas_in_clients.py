"""Clients list and call every tool, whatever the schemas of any server."""

from __future__ import annotations

import functools
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
Results = dict[str, tuple[dict[str, Any], dict[str, Any]]]
# Output schemas, each with the members of an object that its server returns. Most are refused by one of the clients.
RESULTS: Results = {
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
    "only_itself": ({"properties": {"a": {"$ref": "#/properties/a"}}}, {"a": DAY}),
    "anchor_twice": ({"properties": {"a": {"$anchor": "x", **TEXT}, "b": {"$anchor": "x"}}}, {"a": DAY}),
    "lost_root": ({"properties": {"a": TEXT, "b": {"$ref": "other.json#/x"}}}, {"a": DAY}),
}  # fmt: skip


def of(schema: Any, value: Any = DAY) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the output schema of an object with one property, and such an object."""
    return {"properties": {"a": schema}}, {"a": value}


def matching(pattern: str, value: str = DAY) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the output schema of a text with this pattern."""
    return of({**TEXT, "pattern": pattern}, value)


# Further forms that generators write by mistake, or that other engines for patterns understand.
SIBLINGS: Results = {
    "range_of_class": matching(r"^[\w-.]+$"),
    "needless_escape": matching(r"^\d+\_?\-\x$", "2026-x"),
    "loose_braces": matching("^{?[0-9]{4}-x}?$"),
    "open_count": matching("^[0-9]{,4}-x$"),
    "posix_class": matching("^[[:digit:]]+-x$"),
    "comment": matching("(?#year)^[0-9]+-x$"),
    "scoped_flag": matching("^(?i:2026-X)$"),
    "atomic": matching("^(?>[0-9]+)-x$"),
    "quoted": matching(r"^\Q2026-x\E$"),
    "code_point": matching(r"^\x{32}026-x$"),
    "block": matching(r"^\p{IsGreek}*2026-x$"),
    "java_letters": matching(r"^\p{Alnum}+-x$"),
    "end_of_line": matching(r"^2026-x\z"),
    "surrogates": matching("^[\\ud83d\\ude00]?2026-x$"),
    "allof_loop": ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"allOf": [{"$ref": "#/$defs/x"}],
        **TEXT}}}, {"a": DAY}),
    "root_loop": ({"$ref": "#", "properties": {"a": TEXT}}, {"a": DAY}),
    "long_loop": ({"properties": {"a": {"$ref": "#/$defs/x"}, "b": {"properties": {"c": {"$ref": "#"}}}},
        "$defs": {"x": {"anyOf": [{"$ref": "#/$defs/y"}, TEXT]}, "y": {"not": {"not": {"$ref": "#/properties/a"}}}}},
        {"a": DAY}),
    "draft7_loop": ({"$schema": DRAFT_7, "properties": {"a": {"$ref": "#/definitions/x",
        "allOf": [{"$ref": "#/definitions/x"}]}}, "definitions": {"x": TEXT}}, {"a": DAY}),
    "stray_anchors": ({"properties": {"a": {"$ref": "#x"}}, "x-types": {"t": {"$anchor": "x", "type": "string"},
        "u": {"$anchor": "x"}}}, {"a": DAY}),
    "stray_in_components": ({"properties": {"a": {"$ref": "#/components/schemas/A"}},
        "components": {"schemas": {"A": {"$id": "A", "type": "string", "pattern": "^(?P<x>2026)-x"},
        "B": {"$id": "A"}}}}, {"a": DAY}),
    "dynamic_twice": ({"properties": {"a": {"$dynamicAnchor": "x", **TEXT}, "b": {"$dynamicAnchor": "x"},
        "c": {"$dynamicRef": "#x"}}}, {"a": DAY, "c": "x"}),
    "same_inner_id": ({"properties": {"a": {"$id": "https://example.test/t", **TEXT},
        "b": {"$id": "https://example.test/t", "type": "integer"}}}, {"a": DAY, "b": 3}),
    "glob": matching("*-x"),
    "pattern_number": of({**TEXT, "pattern": 5}),
    "same_type_twice": of({"type": ["string", "string"]}),
    "no_types": of({"type": []}),
    "null_type": of({"type": None}),
    "type_none": of({"type": ["string", "None"]}),
    "type_date": of({"type": "date"}),
    "type_object": of({"type": {"type": "string"}}),
    "same_option_twice": of({"enum": [DAY, DAY]}),
    "negative_length": of({**TEXT, "minLength": -1}),
    "length_text": of({**TEXT, "minLength": "3"}),
    "length_fraction": of({**TEXT, "maxLength": 10.5}),
    "huge_length": of({**TEXT, "maxLength": 10**30}),
    "multiple_of_nothing": of({"type": "number", "multipleOf": 0}, 3),
    "bound_text": of({"type": "number", "minimum": "0"}, 3),
    "word_for_no": ({"properties": {"a": TEXT}, "additionalProperties": "false"}, {"a": DAY}),
    "no_alternatives": of({"anyOf": []}),
    "alternatives_by_name": of({"oneOf": {"x": TEXT}}),
    "null_alternatives": of({"allOf": None, "anyOf": None, "not": None}),
    "null_branch": of({"if": TEXT, "then": None, "else": {}}),
    "null_property": of(None),
    "text_property": of("string"),
    "required_object": ({"properties": {"a": TEXT}, "required": {"a": True}}, {"a": DAY}),
    "required_numbers": ({"properties": {"a": TEXT}, "required": ["a", 1, None]}, {"a": DAY}),
    "dependent_list": ({"properties": {"a": TEXT}, "dependentRequired": ["a"]}, {"a": DAY}),
    "dependencies_null": ({"properties": {"a": TEXT}, "dependencies": {"a": None}}, {"a": DAY}),
    "names_word": ({"properties": {"a": TEXT}, "propertyNames": "x"}, {"a": DAY}),
    "not_null_but_null": of({"type": ["string", "null"], "nullable": False}),
    "nullable_false": of({"nullable": False}),
    "circle": ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"$ref": "#/$defs/y"},
        "y": {"$ref": "#/$defs/x"}}}, {"a": DAY}),
    "empty_reference": of({"$ref": ""}, {}),
    "null_reference": of({"$ref": None}),
    "number_reference": of({"$ref": 5}),
    "reference_to_a_word": ({"properties": {"a": {"$ref": "#/title"}}, "title": "x"}, {"a": DAY}),
    "reference_to_a_list": ({"properties": {"a": {"$ref": "#/required"}}, "required": ["a"]}, {"a": DAY}),
    "anchor_number": of({"$anchor": "1 x", **TEXT}),
    "id_fragment": ({"properties": {"a": {"id": "#a", "$id": "#a", **TEXT}}}, {"a": DAY}),
    "id_not_a_uri": ({"$id": "my schema <1>", "properties": {"a": TEXT}}, {"a": DAY}),
    "id_number": ({"$id": 7, "properties": {"a": TEXT}}, {"a": DAY}),
    "id_property": ({"properties": {"a": TEXT, "$id": TEXT, "id": TEXT, "$ref": TEXT}}, {"a": DAY, "$id": "x",
        "$ref": "y"}),
    "id_of_a_draft": ({"$id": "http://json-schema.org/draft-07/schema#", "properties": {"a": TEXT}}, {"a": DAY}),
    "inner_dialect": of({"$schema": DRAFT_4, **TEXT}),
    "dialect_number": ({"$schema": 7, "properties": {"a": TEXT}}, {"a": DAY}),
    "vocabulary": ({"$vocabulary": {"https://example.test/v": True}, "properties": {"a": TEXT}}, {"a": DAY}),
    "broken_definition": ({"properties": {"a": TEXT}, "$defs": {"x": {"type": "wat", "pattern": "["}, "y": 5}},
        {"a": DAY}),
    "definitions_list": ({"properties": {"a": TEXT}, "$defs": [], "definitions": None}, {"a": DAY}),
    "annotations": of({"title": None, "description": 5, "examples": "x", "deprecated": "y", "readOnly": 1, **TEXT}),
    "comments": of({"$comment": {"x": 1}, **TEXT}),
    "content_schema": of({"contentMediaType": "application/json", "contentSchema": {"type": "wat"}, **TEXT}),
    "prototype": ({"properties": {"__proto__": TEXT, "constructor": TEXT, "toString": TEXT}}, {"constructor": "x",
        "toString": "y"}),
    "odd_names": ({"properties": {"a/b~c%25": TEXT, "\"'`${x}\n": TEXT}, "required": ["a/b~c%25"]}, {"a/b~c%25": "x"}),
    "items_null": of({"type": "array", "items": None, "prefixItems": []}, ["x"]),
    "contains_bound": of({"type": "array", "contains": {}, "minContains": -1, "maxContains": "x"}, ["x"]),
    "no_tuple": of({"type": "array", "items": []}, ["x"]),
    "unevaluated": ({"allOf": [{"properties": {"a": TEXT}}], "unevaluatedProperties": False}, {"a": DAY}),
    "discriminator": of({"oneOf": [{"type": "object", "properties": {"k": {"const": "x"}}}],
        "discriminator": {"propertyName": "k"}}, {"k": "x"}),
    "vocabulary_word": of({**TEXT, "$vocabulary": "x"}),
    "definition_named_id": (
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": TEXT, "$id": {"type": "string"}}}, {"a": DAY}),
    "discriminator_word": of({"oneOf": [TEXT], "discriminator": "k"}),
    "data_bound": of({"type": "number", "minimum": {"$data": "1/b"}}, 3),
    "exclusive_null": of({"type": "number", "exclusiveMinimum": None, "maximum": None}, 3),
    "exclusive_flag": of({"type": "number", "exclusiveMinimum": True, "minimum": 1}, 3),
    "recursive_ref": ({"$recursiveAnchor": "yes", "properties": {"a": {"$recursiveRef": "#/x"}}}, {"a": DAY}),
    "dynamic_ref": of({"$dynamicRef": "#nowhere"}),
    "deep": of(functools.reduce(lambda below, _: {"type": "array", "items": below}, range(100), TEXT), []),
    "wide": ({"properties": {f"p{n}": {**TEXT, "pattern": "^x{1,3}$"} for n in range(1000)}}, {"p1": "xx"}),
    "merge_keys": ({"properties": {"a": TEXT}, "patternProperties": {"[": TEXT, "*": False}}, {"a": DAY}),
    "pattern_properties_list": ({"properties": {"a": TEXT}, "patternProperties": []}, {"a": DAY}),
    "date_format_of_number": of({"type": "number", "format": "date-time"}, 3),
    "format_int64": of({"type": "integer", "format": "int64"}, 2**40),
    "format_null": of({**TEXT, "format": None}),
    "unique_word": of({"type": "array", "uniqueItems": "true"}, ["x"]),
    "const_null": of({"const": None}, None),
    "enum_word": of({"enum": DAY}),
    "enum_names": of({"enum": {"A": DAY}}),
    "root_types": ({"type": ["object", "null"], "properties": {"a": TEXT}}, {"a": DAY}),
    "root_capitals": ({"type": "Object", "properties": {"a": TEXT}}, {"a": DAY}),
    "root_one_of": ({"oneOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"required": ["b"]}]}, {"a": DAY}),
    "root_ref": ({"$ref": "#/$defs/r", "$defs": {"r": {"type": "object", "properties": {"a": TEXT}}}}, {"a": DAY}),
}  # fmt: skip


def server(tmp_path: Path, name: str, own: str, results: Results) -> dict[str, Any]:
    """Return a server whose tools answer with their arguments; `own` is required in the shared schemas."""
    shared = {"$id": "https://example.test/result.json", "required": [own], "properties": {own: TEXT}}
    inner: dict[str, Any] = {"properties": {"v": {"$ref": "https://example.test/v"}}, "required": ["v"]}
    inner["$defs"] = {"v": {"$id": "https://example.test/v", "type": "object", "required": [own]}}
    outputs = {"shared": {**shared, "additionalProperties": False}, "inner": inner}
    outputs |= {word: schema for word, (schema, _) in results.items()}
    tools = [{**tool(word), "outputSchema": {"type": "object", **schema}} for word, schema in outputs.items()]
    return scripted_stdio_server(tmp_path, name, tools=tools)[0]


async def check(tmp_path: Path, client: str, results: Results) -> None:
    """Let a client list two servers, one with these output schemas, and call every tool."""
    servers = {"odd": server(tmp_path, "odd", "city", results), "good": server(tmp_path, "good", "person", {})}
    eager = {"profiles": {"default": {"disclosure": "eager"}}}
    calls: list[dict[str, Any]] = [{"name": f"odd__{word}", "arguments": value} for word, (_, value) in results.items()]
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


@pytest.mark.parametrize("client", ["typescript", "sdk1", "sdk2-auto"])
async def test_no_output_schema_breaks_a_client_list_or_result(tmp_path: Path, client: str) -> None:
    await check(tmp_path, client, RESULTS)


@pytest.mark.heavy
@pytest.mark.parametrize("client", ["typescript", "sdk1", "sdk2-auto"])
async def test_no_further_output_schema_breaks_a_client_list_or_result(tmp_path: Path, client: str) -> None:
    await check(tmp_path, client, SIBLINGS)


# Values of `outputSchema` itself.
ROOTS: dict[str, Any] = {
    "null": None, "true": True, "false": False, "empty": {}, "list": [], "text": "object", "number": 5,
        "word": {"type": "any"},
    "types": {"type": ["object"]}, "array": {"type": "array"}, "string": {"type": "string"},
        "null_type": {"type": None},
    "no_type": {"properties": {"a": TEXT}}, "only_required": {"required": ["a"]},
        "any_of": {"anyOf": [{"type": "object"}]},
    "reference": {"$ref": "#/$defs/r", "$defs": {"r": {"type": "object"}}}, "itself": {"$ref": "#"},
    "remote": {"$ref": "https://example.test/schema.json"}, "lost": {"$ref": "#/$defs/r"},
    "properties_list": {"type": "object", "properties": []}, "wrapped": {"schema": {"type": "object"}},
    "json_schema": {"name": "x", "strict": True, "schema": {"type": "object", "properties": {"a": TEXT}}},
    "zod": {"_def": {"typeName": "ZodObject"}, "~standard": {"version": 1, "vendor": "zod"}},
        "text_of_schema": '{"type": "object"}',
}  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("client", ["typescript", "sdk1", "sdk2-auto"])
async def test_no_root_of_an_output_schema_breaks_a_client_list(tmp_path: Path, client: str) -> None:
    tools = [{**tool(word), "outputSchema": root} for word, root in ROOTS.items()]
    odd = scripted_stdio_server(tmp_path, "odd", tools=tools)[0]
    eager = {"profiles": {"default": {"disclosure": "eager"}}}
    # An object breaks these two, which clients of 2026-07-28 say.
    called = [word for word in ROOTS if word not in ("array", "string")]
    calls = [{"name": f"odd__{word}", "arguments": {"a": "x"}} for word in called]
    async with running_gateway(tmp_path, {"odd": odd}, gateway=eager) as gateway:
        await gateway.until_listed(*(f"odd__{word}" for word in ROOTS))
        seen = await installed.report(client, gateway.url, calls)
    assert {f"odd__{word}" for word in ROOTS} <= {one["name"] for one in seen["tools"]}
    results = [answer.get("result", {}) for answer in seen["calls"]]
    assert [result.get("structuredContent", {"a": "x"}) for result in results] == [{"a": "x"}] * len(called)
    assert [text_of(result) for result in results] == ['{"a": "x"}'] * len(called)


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


async def test_no_input_schema_makes_a_tool_unlisted_or_uncallable(tmp_path: Path) -> None:
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
