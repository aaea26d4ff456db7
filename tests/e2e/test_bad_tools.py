"""An invalid tool is repaired or quarantined alone, so that no client loses the list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.clients import installed
from support.gateways import RunningGateway, running_gateway, text_of
from support.upstreams.running import scripted_http_server, scripted_stdio_server, tool
from support.visitors import ALWAYS, Visitor, in_both_eras

pytestmark = pytest.mark.heavy

ANYTHING = {"type": "object"}
TYPED = {"type": "object", "properties": {"x": {"type": "integer"}}}
BARE_ANY_OF = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
BARE_REF = {"$ref": "#/$defs/p", "$defs": {"p": {"type": "object", "required": ["a"]}}}


def offender(name: str, **members: Any) -> dict[str, Any]:
    """A definition that is sound but for these members."""
    return {"name": name, "title": name, "description": f"Does {name}.", "inputSchema": TYPED, **members}


def without(name: str, member: str) -> dict[str, Any]:
    """A definition that lacks a member."""
    return {key: value for key, value in offender(name).items() if key != member}


# name -> the definition, the finding's code, and the members that are right in the list (None: absent)
REPAIRED: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    one["name"]: (one, code, seen)
    for one, code, seen in (
        (without("schema_absent", "inputSchema"), "input_schema", {"inputSchema": ANYTHING}),
        (offender("schema_null", inputSchema=None), "input_schema", {"inputSchema": ANYTHING}),
        (offender("schema_true", inputSchema=True), "input_schema", {"inputSchema": ANYTHING}),
        (offender("schema_empty", inputSchema={}), "input_schema", {"inputSchema": ANYTHING}),
        (offender("annotations_text", annotations="safe"), "wrong_type", {"annotations": None}),
        (
            offender("annotations_typed", annotations={"readOnlyHint": "yes", "title": 3, "vendor": 1}),
            "wrong_type",
            {"annotations": {"vendor": 1}},
        ),
        (
            offender("icon_sizes", icons=[{"src": "https://example.com/i.png", "sizes": "16x16 32x32"}]),
            "icons",
            {"icons": [{"src": "https://example.com/i.png", "sizes": ["16x16", "32x32"]}]},
        ),
        (offender("meta_text", _meta="m"), "wrong_type", {"_meta": None}),
        (offender("meta_list", _meta=[1]), "wrong_type", {"_meta": None}),
        (
            offender("boolean_property", inputSchema={"type": "object", "properties": {"x": True, "y": False}}),
            "boolean_property",
            {"inputSchema": {"type": "object", "properties": {"x": {}, "y": {"not": {}}}}},
        ),
        (
            offender("root_untyped", inputSchema={"properties": {"x": {"type": "integer"}}}),
            "root_type",
            {"inputSchema": TYPED},
        ),
        (
            offender("root_or_null", inputSchema={**TYPED, "type": ["object", "null"]}),
            "root_type",
            {"inputSchema": TYPED},
        ),
        (offender("root_any_of", inputSchema=BARE_ANY_OF), "root_type", {"inputSchema": ANYTHING | BARE_ANY_OF}),
        (offender("root_ref", inputSchema=BARE_REF), "root_type", {"inputSchema": ANYTHING | BARE_REF}),
        (
            offender("properties_null", inputSchema={"type": "object", "properties": None}),
            "properties",
            {"inputSchema": ANYTHING},
        ),
        (
            offender("properties_list", inputSchema={"type": "object", "properties": []}),
            "properties",
            {"inputSchema": ANYTHING},
        ),
        (offender("required_null", inputSchema={**TYPED, "required": None}), "required", {"inputSchema": TYPED}),
        (offender("title_null", title=None), "null_member", {"title": None}),
        (offender("description_null", description=None), "description", {"description": "description_null"}),
        (offender("annotations_null", annotations=None), "null_member", {"annotations": None}),
        (offender("meta_null", _meta=None), "null_member", {"_meta": None}),
        (offender("output_null", outputSchema=None), "output_schema", {"outputSchema": None}),
        (
            offender("output_bad_ref", outputSchema={"type": "object", "properties": {"x": {"$ref": "#/$defs/no"}}}),
            "output_reference",
            {"outputSchema": {"type": "object", "properties": {"x": {}}}},
        ),
        (offender("output_text", outputSchema="none"), "output_schema", {"outputSchema": None}),
        (offender("root_array", inputSchema={"type": "array"}), "schema_unchecked", {"inputSchema": ANYTHING}),
        (offender("root_text", inputSchema={"type": "string"}), "schema_unchecked", {"inputSchema": ANYTHING}),
        (offender("schema_text", inputSchema="none"), "schema_unchecked", {"inputSchema": ANYTHING}),
        (offender("schema_list", inputSchema=[]), "input_schema", {"inputSchema": ANYTHING}),
    )
}
# Schemas that `validation: strict` does not replace by one that takes any arguments.
REFUSED_IF_STRICT = {"root_array", "root_text", "schema_text"}
NAMELESS: tuple[Any, ...] = (None, "tool", 7, [], {"inputSchema": ANYTHING}, {"name": None}, {"name": 5})


def everything_bad() -> list[Any]:
    """Every offender between sound tools, as one listing."""
    bad = [one for one, _, _ in REPAIRED.values()]
    # Legal in 2026-07-28, and a lost list before it.
    array_output = offender("output_array", outputSchema={"type": "array", "items": {"type": "integer"}})
    namesakes = [tool("twin", x="integer"), tool("twin", x="integer"), tool("rival", x="integer"), tool("rival")]
    return [tool("first", x="integer"), *bad, *NAMELESS, array_output, *namesakes, tool("last", "x")]


LISTED = {*REPAIRED, "first", "last", "twin", "rival", "output_array"}


JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1.5, "", "x", [], {}, [None], [1], ["x"], [{}], [[]]),
    *({"x": junk} for junk in (None, True, False, 1, "x", [], {}, ["x"], {"type": None}, {"$ref": "#/no"})),
)
PLACES = (
    *("title", "description", "annotations", "icons", "_meta", "execution", "inputSchema", "outputSchema"),
    *("annotations.title", "annotations.readOnlyHint", "annotations.destructiveHint"),
    *("annotations.idempotentHint", "annotations.openWorldHint", "execution.taskSupport"),
    *("icons.src", "icons.sizes", "icons.mimeType", "icons.theme"),
    *(
        f"{schema}.{keyword}"
        for schema in ("inputSchema", "outputSchema")
        for keyword in ("type", "properties", "required", "$schema", "$defs", "items", "additionalProperties")
    ),
)


def junk_everywhere() -> list[dict[str, Any]]:
    """A tool for each kind of junk in each place that a parser looks at."""
    tools = []
    for place in PLACES:
        for number, junk in enumerate(JUNK):
            member, _, inner = place.partition(".")
            around = {"inputSchema": TYPED, "outputSchema": TYPED, "icons": {"src": "https://example.com/i.png"}}
            value = {**around.get(member, {}), inner: junk} if inner else junk
            value = [value] if inner and member == "icons" else value
            tools.append(offender(f"junk{len(tools)}", **{member: value}, **{"x-junk": f"{place} {number}"}))
    return tools


async def findings(gateway: RunningGateway, server: str) -> set[tuple[str, str, str]]:
    """Return the tool, status and code of each finding about a server; each must have a reason."""
    rows = (await gateway.admin("quarantine")).json()["quarantine"]
    assert all(row["detail"] for row in rows)
    return {(row["tool"], row["status"], row["code"]) for row in rows if row["server"] == server}


@in_both_eras
async def test_each_bad_tool_is_repaired_or_quarantined_alone_with_its_reason(era: str, tmp_path: Path) -> None:
    stdio, _ = scripted_stdio_server(tmp_path, "s", tools=everything_bad())
    async with (
        scripted_http_server(tmp_path, "h", tools=everything_bad(), modern=True) as http,
        running_gateway(tmp_path, {"s": stdio, "h": http.config}) as gateway,
    ):
        await gateway.until_listed("s__last", "h__last")
        listed = await Visitor(gateway=gateway, era=era).listed()
        assert set(listed) == ALWAYS | {f"{server}__{name}" for server in "sh" for name in LISTED}
        for server in "sh":
            for name, (_, _, seen) in REPAIRED.items():
                shown = listed[f"{server}__{name}"]
                assert {key: shown.get(key) for key in seen} == seen, name
                assert shown["description"].strip(), name
            found = await findings(gateway, server)
            assert {(name, "repaired", code) for name, (_, code, _) in REPAIRED.items()} <= found
            assert ("rival", "quarantined", "duplicate_name") in found
            assert ("twin", "repaired", "duplicate") in found
            nameless = {code for label, _, code in found if label.startswith("(tool ")}
            assert nameless == {"not_an_object", "no_name"}
            assert sum(label.startswith("(tool ") for label, _, _ in found) == len(NAMELESS)
            # Valid tools are not reported.
            assert not {one for one in found if one[0] in ("first", "last", "output_array")}


async def test_strict_validation_quarantines_schemas_that_declare_no_arguments(tmp_path: Path) -> None:
    config, _ = scripted_stdio_server(tmp_path, "s", tools=everything_bad())
    async with running_gateway(tmp_path, {"s": {**config, "validation": "strict"}}) as gateway:
        listed = await gateway.until_listed("s__last")
        assert not {f"s__{name}" for name in REFUSED_IF_STRICT} & set(listed)
        quarantined = {name for name, status, _ in await findings(gateway, "s") if status == "quarantined"}
        assert quarantined >= REFUSED_IF_STRICT


async def test_repaired_schema_accepts_what_the_tool_accepted(tmp_path: Path) -> None:
    accepted = {
        "schema_absent": {"any": [1]},
        "schema_true": {"any": [1]},
        "boolean_property": {"x": [None]},
        "root_untyped": {"x": 1},
        "root_or_null": {},
        "root_any_of": {"b": 1},
        "root_ref": {"a": 1},
        "properties_null": {"p": 1},
        "required_null": {},
    }
    refused = {
        "boolean_property": {"y": 1},
        "root_untyped": {"x": "one"},
        "root_any_of": {"c": 1},
        "root_ref": {"c": 1},
    }
    config, record = scripted_stdio_server(tmp_path, "s", tools=everything_bad())
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await gateway.until_listed("s__last")
        for name, arguments in accepted.items():
            assert not (result := await gateway.call(f"s__{name}", arguments)).get("isError"), (name, result)
        assert [(one["name"], one["arguments"]) for one in record.calls()] == list(accepted.items())
        for name, arguments in refused.items():
            result = await gateway.call(f"s__{name}", arguments)
            assert result["isError"], (name, result)
            assert "not called" in text_of(result).lower(), name
        assert len(record.calls()) == len(accepted)


CLIENTS = (
    *(pytest.param(name, marks=pytest.mark.heavy) for name in ("typescript", "sdk1", "sdk2-legacy")),
    "sdk2-auto",
)


@pytest.mark.parametrize("client", CLIENTS)
async def test_strict_client_parser_accepts_any_list(client: str, tmp_path: Path) -> None:
    bad, _ = scripted_stdio_server(tmp_path, "bad", tools=everything_bad(), modern=True)
    junk, _ = scripted_stdio_server(tmp_path, "junk", tools=junk_everywhere(), modern=True)
    with pytest.raises(AssertionError, match=f"{client} ended with 1"):
        await installed.report(client, bad)
    sound, record = scripted_stdio_server(tmp_path, "sound", tools=[tool("plain", "x")])
    async with running_gateway(tmp_path, {"bad": bad, "sound": sound, "junk": junk}) as gateway:
        await gateway.until_listed("bad__last", "sound__plain", "junk__junk0")
        junk_left = {name for name in await gateway.tools() if name.startswith("junk__")}
        calls = [{"name": name, "arguments": {"x": "1"}} for name in ("sound__plain", "bad__last")]
        report = await installed.report(client, gateway.url, calls)
    names = [one["name"] for one in report["tools"]]
    assert set(names) == {*ALWAYS, "sound__plain", *(f"bad__{name}" for name in LISTED), *junk_left}
    assert len(junk_left) > len(PLACES) * len(JUNK) / 2
    assert len(names) == len(set(names))
    for outcome in report["calls"]:
        assert outcome["result"]["structuredContent"] == {"x": "1"}
    assert len(record.calls()) == 1
    shown = {one["name"]: one for one in report["tools"]}
    assert ("outputSchema" in shown["bad__output_array"]) == (client == "sdk2-auto")


@pytest.mark.parametrize("strange", [["soon", -5, None, True, []], [10**30], [1e300]], ids=repr)
async def test_invalid_ttl_becomes_one_every_parser_accepts(tmp_path: Path, strange: list[Any]) -> None:
    servers = {
        f"s{number}": scripted_stdio_server(tmp_path, f"s{number}", tools=[tool("t")], modern=True, ttl_ms=ttl_ms)[0]
        for number, ttl_ms in enumerate(strange)
    }
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed(*(f"{alias}__t" for alias in servers))
        result = (await gateway.rpc("tools/list"))["result"]
    assert type(result["ttlMs"]) is int
    assert 0 <= result["ttlMs"] <= 86_400_000
