"""Definitions, arguments and results are forwarded unchanged, including unknown members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.processes import raw_stdio, typegate
from support.gateways import META, RunningGateway, envelope, running_gateway
from support.upstreams.running import scripted_http_server, scripted_stdio_server, tool

RICH = {
    "name": "send_email",
    "title": "Send an e-mail ✉",
    "description": "Sends it.\n\n  Twice indented, with “quotes”, 日本語 and a tab:\t.",
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "to": {"type": "array", "items": {"type": "string", "format": "email"}, "minItems": 1, "x-order": 1},
            "subject": {"type": "string", "default": None, "examples": ["Hi", None]},
            "body": {"$ref": "#/$defs/body"},
            "size": {"const": 2**70},
            "ratio": {"enum": [1.0, 1e300, -0.5]},
        },
        "required": ["to", "subject", "body"],
        "$defs": {"body": {"type": "string", "maxLength": 9007199254740993}},
        "additionalProperties": False,
        "x-vendor": {"a": [None, {"b": []}]},
    },
    "outputSchema": {"type": "object", "properties": {"to": {}}, "x-vendor": True},
    "annotations": {"readOnlyHint": False, "openWorldHint": True, "title": "Mail", "vendorHint": {"deep": None}},
    "icons": [{"src": "https://example.com/i.png", "mimeType": "image/png", "sizes": ["16x16"], "vendor": 1}],
    "_meta": {"example.com/a": None, "example.com/b": [1, 2.5, {"c": "d"}], "anthropic/searchHint": "mail"},
    "execution": {"taskSupport": "forbidden", "vendor": {}},
    "vendorMember": {"kept": [True, None]},
    "laterMember": None,
}
FULL = {"to": ["ana@example.com"], "subject": "Gruß 👋", "body": "a\u2028b\n", "size": 2**70, "ratio": 1e300}
# Nothing that the protocol knows, at every depth.
STRANGE: dict[str, Any] = {
    "content": [
        {"type": "text", "text": "first", "annotations": {"audience": ["user"], "vendor": None}, "vendor": [None]},
        {"type": "hologram", "beam": {"depth": 2**60, "nothing": None}},
        {"type": "image", "data": "AAAA", "mimeType": "image/png", "_meta": {"a": None}},
        {"type": "resource_link", "uri": "x:y", "name": "n", "vendor": 1},
    ],
    "structuredContent": {"big": 2**70, "negative": -(2**63) - 1, "half": 0.1, "none": None, "deep": [[[{"": None}]]]},
    "isError": False,
    "vendorMember": {"kept": None},
    "_meta": {"example.com/trace": [None, 1]},
}


def unstamped(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what each gateway adds to every one: who answered."""
    meta = {key: value for key, value in result.get("_meta", {}).items() if key != META + "serverInfo"}
    rest = {key: value for key, value in result.items() if key != "_meta"}
    return {**rest, "_meta": meta} if meta else rest


@pytest.mark.parametrize("modern", [True, False])
async def test_valid_definition_arrives_unchanged(tmp_path: Path, modern: bool) -> None:
    stdio, _ = scripted_stdio_server(tmp_path, "s", tools=[RICH], modern=modern)
    async with scripted_http_server(tmp_path, "h", tools=[RICH], modern=modern, sse=True) as http:
        servers = {"calendar-mcp": stdio, "web": http.config, "old": {"type": "sse", "url": http.sse_url}}
        async with running_gateway(tmp_path, servers) as gateway:
            names = [f"{alias}__send_email" for alias in servers]
            listed = await gateway.until_listed(*names)
            over_stdio = await handshake_list(gateway)
            quarantine = (await gateway.admin("quarantine")).json()["quarantine"]
    for name in names:
        assert listed[name] == {**RICH, "name": name}
        # Equal is not enough for JSON: 1 == 1.0 == True in Python, and the order of members is kept.
        assert json.dumps(listed[name]) == json.dumps({**RICH, "name": name})
        assert json.dumps(over_stdio[name]) == json.dumps({**RICH, "name": name})
    assert quarantine == []


async def handshake_list(gateway: RunningGateway) -> dict[str, dict[str, Any]]:
    """The raw list of a caller of the handshake era, through the bridge."""
    async with raw_stdio(typegate("stdio", "--url", gateway.url)) as server:
        await server.initialize("2025-06-18")
        return {tool["name"]: tool for tool in await server.tools()}


@pytest.mark.parametrize("modern", [True, False])
async def test_full_call_is_one_identical_call_at_the_upstream(tmp_path: Path, modern: bool) -> None:
    stdio, record = scripted_stdio_server(tmp_path, "s", tools=[RICH], modern=modern)
    async with scripted_http_server(tmp_path, "h", tools=[RICH], modern=modern) as http:
        servers = {"calendar-mcp": stdio, "web": http.config}
        async with running_gateway(tmp_path, servers) as gateway:
            await gateway.until_listed("calendar-mcp__send_email", "web__send_email")
            for alias in servers:
                params = {"name": f"{alias}__send_email", "arguments": FULL, "_meta": {"example.com/t": [None, 1]}}
                answer = await gateway.rpc("tools/call", params)
                assert answer["result"]["structuredContent"] == FULL
    for calls in (record.calls(), http.recording.calls()):
        assert len(calls) == 1
        assert calls[0]["name"] == "send_email"
        assert json.dumps(calls[0]["arguments"]) == json.dumps(FULL)
        assert calls[0]["_meta"]["example.com/t"] == [None, 1]
        assert set(calls[0]["params"]) == {"name", "arguments", "_meta"}


async def test_number_out_of_range_is_refused_rather_than_changed(tmp_path: Path) -> None:
    config, record = scripted_stdio_server(tmp_path, "s", tools=[tool("echo")])
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await gateway.until_listed("s__echo")
        params = {"name": "s__echo", "arguments": {"n": 10**19, "x": "NUMBER"}, "_meta": envelope()}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        for number in (b"1e999", b"-1e999", b"1" + b"0" * 400 + b".0", b"NaN", b"Infinity"):
            response = await gateway.post(body, raw=json.dumps(body).encode().replace(b'"NUMBER"', number))
            assert (response.status_code, response.json()["error"]["code"]) == (400, -32700), number
        assert record.calls() == []


@pytest.mark.parametrize("modern", [True, False])
async def test_unusual_result_reaches_a_modern_caller_unchanged(tmp_path: Path, modern: bool) -> None:
    result = STRANGE | ({"resultType": "complete"} if modern else {})
    script = {"tools": [tool("odd")], "behaviours": {"odd": {"kind": "result", "with": {"result": result}}}}
    stdio, _ = scripted_stdio_server(tmp_path, "s", **script, modern=modern)
    async with (
        scripted_http_server(tmp_path, "h", **script, modern=modern, sse=True) as http,
        running_gateway(tmp_path, {"s": stdio, "h": http.config}) as gateway,
    ):
        await gateway.until_listed("s__odd", "h__odd")
        for name in ("s__odd", "h__odd"):
            got = await gateway.call(name)
            assert got.pop("resultType") == "complete"
            assert json.dumps(unstamped(got), sort_keys=True) == json.dumps(STRANGE, sort_keys=True)


async def test_structured_content_alone_is_repeated_as_text(tmp_path: Path) -> None:
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    item = {"type": "text", "text": "already"}
    contents: dict[str, dict[str, Any]] = {
        "bare": {},
        "empty": {"content": []},
        "picture": {"content": [image]},
        "told": {"content": [item]},
    }
    values = ({"a": [1, None], "big": 2**70}, {}, [1, {"b": None}], "words", 0, False, None)
    results = {
        f"{kind}{number}": {"structuredContent": value, **content}
        for number, value in enumerate(values)
        for kind, content in contents.items()
    }
    behaviours = {name: {"kind": "result", "with": {"result": result}} for name, result in results.items()}
    config, _ = scripted_stdio_server(tmp_path, "s", tools=[tool(name) for name in results], behaviours=behaviours)
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await gateway.until_listed(*(f"s__{name}" for name in results))
        called = {name: await gateway.call(f"s__{name}") for name in results}
        async with raw_stdio(typegate("stdio", "--url", gateway.url)) as old:
            await old.initialize()
            called_by_old = {n: await old.ask("tools/call", {"name": f"s__{n}", "arguments": {}}) for n in results}
    for name, result in called.items():
        structured = results[name]["structuredContent"]
        assert json.dumps(result["structuredContent"]) == json.dumps(structured), name
        *before, text = result["content"]
        assert before == ([image] if "picture" in name else [])
        if "told" in name:
            assert text == item
        else:
            assert text["type"] == "text"
            assert json.dumps(json.loads(text["text"])) == json.dumps(structured), name
        of_old = called_by_old[name]
        assert of_old["content"] == result["content"], name
        # Before 2026-07-28 structured content was an object, and a strict parser wants one.
        assert ("structuredContent" in of_old) == isinstance(structured, dict), name
        assert "resultType" not in of_old
