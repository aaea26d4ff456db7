"""Invalid or endlessly nested JSON fails only its own call, at once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import MIB, append_result, rss_of, until_server
from support.callers import call_of, hello, running_host
from support.gateways import MODERN, RunningGateway, envelope, running_gateway, text_of
from support.upstreams.running import Recording, builtin_tools, scripted_http_server, scripted_stdio_server, tool

# Half of all faults are waits: of deadlines, restarts and pauses.
pytestmark = pytest.mark.heavy

UPSTREAMS = ("stdio", "body", "stream", "long-stream")
DEEP = 10_000
NO_JSON = {
    "not a number": '{"jsonrpc":"2.0","id":@id,"result":{"content":[],"x":NaN}}',
    "infinity": '{"jsonrpc": "2.0", "id": @id, "result": {"content": [], "x": [-Infinity]}}',
    "id at the end": '{"result":{"content":[],"x":NaN},"jsonrpc":"2.0","id":@id}',
    "an error": '{"jsonrpc":"2.0","id":@id,"error":{"code":NaN,"message":"x"}}',
    "beyond all numbers": '{"jsonrpc":"2.0","id":@id,"result":{"content":[],"x":1e999}}',
    "control character": '{"jsonrpc":"2.0","id":@id,"result":{"content":[],"x":"\x01"}}',
    "single quotes": '{"jsonrpc":"2.0","id":@id,"result":{\'content\':[]}}',
    "more behind it": '{"jsonrpc":"2.0","id":@id,"result":{"content":[]}} and so on',
    "cut": '{"jsonrpc":"2.0","id":@id,"result":{"content":[{"type":"te',
    "deep lists": '{"jsonrpc":"2.0","id":@id,"result":{"content":[],"x":' + "[" * DEEP + "]" * DEEP + "}}",
    "deep objects": '{"result":{"x":' + '{"x":' * DEEP + "1" + "}" * DEEP + '},"jsonrpc":"2.0","id":@id}',
}


@asynccontextmanager
async def on_every_transport(tmp_path: Path, **script: Any) -> AsyncIterator[tuple[dict[str, Any], list[Recording]]]:
    stdio, record = scripted_stdio_server(tmp_path, "stdio", **script)
    async with (
        scripted_http_server(tmp_path, "body", **script) as body,
        scripted_http_server(tmp_path, "stream", **script, sse=True) as stream,
        scripted_http_server(tmp_path, "long-stream", **script, legacy_sse_only=True) as long_stream,
    ):
        over_http = (body, stream, long_stream)
        servers = dict(zip(UPSTREAMS, (stdio, *(one.config for one in over_http)), strict=True))
        yield servers, [record, *(one.recording for one in over_http)]


async def test_invalid_json_answer_fails_its_own_call_at_once(tmp_path: Path) -> None:
    tools = builtin_tools("raw", "sleep", "echo")
    async with (
        on_every_transport(tmp_path, tools=tools) as (servers, records),
        running_gateway(tmp_path, servers) as gateway,
    ):
        await gateway.until_listed(*(f"{alias}__echo" for alias in UPSTREAMS))
        before = rss_of(gateway.process.pid)
        for alias, record in zip(UPSTREAMS, records, strict=True):
            others: list[dict[str, Any]] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(append_result, gateway, f"{alias}__sleep", {"seconds": 1}, others)
                await record.until(lambda seen: seen.calls("sleep"))
                for what, line in NO_JSON.items():
                    with anyio.fail_after(20):
                        result = await gateway.call(f"{alias}__raw", {"line": line})
                    assert result["isError"], (alias, what)
                    assert "not JSON" in text_of(result), (alias, what, result)
                    assert "may have taken effect" in text_of(result) or "outcome is unknown" in text_of(result)
                    assert (await gateway.call(f"{alias}__echo", {"a": what}))["structuredContent"] == {"a": what}
            assert others[0]["structuredContent"] == {"seconds": 1}, alias
            assert len(record.calls("raw")) == len(NO_JSON), alias
            row = await gateway.server(alias)
            assert (row["epoch"], row["inFlight"]) == (1, 0), row
        assert rss_of(gateway.process.pid) - before < 64 * MIB


async def test_unusual_valid_json_reaches_the_caller(tmp_path: Path) -> None:
    odd = {
        '{"jsonrpc":"2.0","id":@id,"result":{"content":[{"type":"text","text":"a\\ud800b"}]}}': "a\ud800b",
        '{"jsonrpc":"2.0","id":@id,"result":{"content":[],"content":[{"type":"text","text":"last"}]}}': "last",
        '{"id":0,"jsonrpc":"1","jsonrpc":"2.0","result":{"content":[{"type":"text","text":"x"}]},"id":@id}': "x",
    }
    async with (
        on_every_transport(tmp_path, tools=builtin_tools("raw")) as (servers, _),
        running_gateway(tmp_path, servers) as gateway,
    ):
        await gateway.until_listed(*(f"{alias}__raw" for alias in UPSTREAMS))
        for alias in UPSTREAMS:
            for line, text in odd.items():
                with anyio.fail_after(20):
                    assert text_of(await gateway.call(f"{alias}__raw", {"line": line})) == text, (alias, line)


@pytest.mark.parametrize("depth", [DEEP, 400_000])
async def test_endlessly_nested_definition_affects_no_other_tool(tmp_path: Path, depth: int) -> None:
    schema = (
        '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth
        if depth == DEEP
        else "[" * depth + "]" * depth
    )
    listed = ",".join(
        [
            json.dumps(tool("first")),
            '{"name":"deep","description":"Deep.","inputSchema":' + schema + "}",
            '{"name":"number","description":"N.","inputSchema":{"type":"object","properties":{"a":{"default":NaN}}}}',
            json.dumps(tool("last")),
        ]
    )
    line = '{"jsonrpc":"2.0","id":@id,"result":{"tools":[' + listed + "]}}"
    faults = {"raw": {"on": ["tools/list"], "line": line}}
    first_and_last = [tool("first"), tool("last")]
    async with (
        on_every_transport(tmp_path, tools=first_and_last, faults=faults) as (servers, _),
        running_gateway(tmp_path, servers) as gateway,
    ):
        names = {f"{alias}__{name}" for alias in UPSTREAMS for name in ("first", "last")}
        # An outline of an object can be shown; of lists in lists nothing can.
        deep = ("repaired", "schema_unchecked") if depth == DEEP else ("quarantined", "too_deep")
        outlined = ("deep", "number") if depth == DEEP else ("number",)
        shown = {f"{alias}__{name}" for alias in UPSTREAMS for name in outlined}
        assert set(await gateway.until_listed(*names)) == names | shown
        rows = (await gateway.admin("quarantine")).json()["quarantine"]
        found = {(row["server"], row["tool"]): (row["status"], row["code"]) for row in rows}
        assert found == {
            (alias, name): finding
            for alias in UPSTREAMS
            for name, finding in (("deep", deep), ("number", ("repaired", "schema_unchecked")))
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": envelope()}}
        assert "NaN" not in (await gateway.post(body)).text
        for name in names:
            assert (await gateway.call(name, {"a": "b"}))["structuredContent"] == {"a": "b"}


async def test_unreadable_listing_is_reported_at_once(tmp_path: Path) -> None:
    faults = {"raw": {"on": ["tools/list"], "line": '{"jsonrpc":"2.0","id":@id,"result":{"tools":['}}
    async with (
        on_every_transport(tmp_path, tools=builtin_tools("echo"), faults=faults) as (servers, _),
        running_gateway(tmp_path, servers) as gateway,
    ):
        for alias in UPSTREAMS:
            row = await until_server(gateway, alias, lambda row: row["lastError"], within_s=4)
            assert "not JSON" in row["lastError"], row


def nested_call(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    call = json.dumps(call_of("up__echo", {"a": "@deep"}, request_id="deep"))
    return call.replace('"@deep"', opening * depth + "1" + closing * depth).encode()


# Every parser can read the last two of these.
SENT_UNCHECKED = 2
NESTED = [nested_call(DEEP), nested_call(DEEP, '{"a":', "}"), nested_call(900), nested_call(300, '{"a":', "}")]


async def assert_bounded_and_serving(gateway: RunningGateway, record: Recording, *, strict: bool) -> None:
    """Check that what no parser reads is refused, and what is too deep for a check is sent, or refused if strict."""
    head = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "up__echo"}
    for body in NESTED:
        with anyio.fail_after(20):
            response = await gateway.post(None, head, raw=body)
        answer = response.json()
        if len(body) > DEEP:
            assert (response.status_code, answer["error"]["code"]) == (400, -32700)
        else:
            assert answer["id"] == "deep"
            unchecked = "more than 200 levels are too many for a check"
            if strict:
                assert answer["result"]["isError"]
                assert "could not be checked" in text_of(answer["result"])
            else:
                assert "isError" not in answer["result"]
                assert any(unchecked in text for text in answer["result"]["_meta"]["typegate/unchecked"])
    assert len(record.calls()) == (0 if strict else SENT_UNCHECKED)
    deepest = await gateway.post(None, head, raw=nested_call(150))
    assert deepest.json()["result"]["structuredContent"]["a"], deepest.text


@pytest.mark.parametrize("strict", [False, True])
async def test_endlessly_nested_arguments_are_refused_at_once(strict: bool, tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    server |= {"validation": "strict"} if strict else {}
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__echo")
        await assert_bounded_and_serving(gateway, record, strict=strict)
        assert "Traceback" not in gateway.logged()
        assert await gateway.stop() == 0
    calls = len(record.calls())
    async with running_host(tmp_path, "--config", str(gateway.config), "--state-dir", str(tmp_path / "own")) as host:
        await host.answer(hello())
        await host.until_listed("up__echo")
        for body in NESTED:
            await host.send(body)
            wanted = None if len(body) > DEEP else "deep"
            answer = await host.until(lambda one, wanted=wanted: "method" not in one and one.get("id") == wanted, 2)
            assert wanted or answer["error"]["code"] == -32700
            assert not wanted or answer["result"].get("isError", False) is strict
            host.received.clear()
        assert len(record.calls()) == calls + (0 if strict else SENT_UNCHECKED)
        answer = await host.answer(call_of("up__echo", {"a": 1}, request_id="after"))
        assert answer["result"]["structuredContent"] == {"a": 1}
        assert await host.leave() == 0
        assert "Traceback" not in host.log.read_text()
