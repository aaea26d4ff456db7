"""Promised limits at their edges, and memory per call."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import MIB, append_result, rss_of
from support.callers import call_of
from support.gateways import MODERN, RunningGateway, running_gateway, text_of
from support.upstreams.running import builtin_tools, scripted_http_server, scripted_stdio_server

pytestmark = pytest.mark.heavy

IN_FLIGHT = 64
HEAD = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "up__echo"}
CALLS, LANES = 4_800, 16


async def test_call_over_the_in_flight_limit_is_refused(tmp_path: Path) -> None:
    tools = builtin_tools("hang", "echo")
    stdio, record = scripted_stdio_server(tmp_path, "up", tools=tools)
    async with scripted_http_server(tmp_path, "web", tools=tools) as web:
        servers = {"up": {**stdio, "callTimeout": 1.5}, "web": {**web.config, "callTimeout": 1.5}}
        async with running_gateway(tmp_path, servers) as gateway:
            await gateway.until_listed("up__hang", "web__hang")
            for alias, seen in (("up", record), ("web", web.recording)):
                answers: list[dict[str, Any]] = []
                async with anyio.create_task_group() as tasks:
                    for _ in range(IN_FLIGHT):
                        tasks.start_soon(append_result, gateway, f"{alias}__hang", {}, answers)
                    await seen.until(lambda one: len(one.calls("hang")) == IN_FLIGHT)
                    assert "already has 64 calls in flight" in text_of(await gateway.call(f"{alias}__echo"))
                    assert not answers
                assert "isError" not in await gateway.call(f"{alias}__echo")
                assert len(seen.calls("echo")) == 1


async def test_answer_up_to_eight_mebibytes_arrives_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    script: dict[str, Any] = {"tools": builtin_tools("big", "echo")}
    stdio, _ = scripted_stdio_server(tmp_path, "stdio", **script)
    async with (
        scripted_http_server(tmp_path, "body", **script) as body,
        scripted_http_server(tmp_path, "stream", **script, sse=True) as stream,
        scripted_http_server(tmp_path, "long", **script, legacy_sse_only=True) as long_stream,
    ):
        servers: dict[str, Any] = {
            "stdio": stdio, "body": body.config, "stream": stream.config, "long": long_stream.config,
        }  # fmt: skip
        servers = {alias: {**config, "callTimeout": 30} for alias, config in servers.items()}
        async with running_gateway(tmp_path, servers) as gateway:
            await gateway.until_listed(*(f"{alias}__big" for alias in servers))
            for alias in servers:
                whole = await gateway.call(f"{alias}__big", {"bytes": 8 * MIB - 1_000})
                assert len(text_of(whole)) == 8 * MIB - 1_000, alias
            for alias in servers:
                with anyio.fail_after(20):
                    refused = await gateway.call(f"{alias}__big", {"bytes": 8 * MIB})
                assert refused["isError"]
                assert "8388608 bytes" in text_of(refused)
                assert "isError" not in await gateway.call(f"{alias}__echo")


async def test_request_up_to_four_mebibytes_is_accepted_and_a_larger_one_refused(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__echo")
        empty = len(json.dumps(call_of("up__echo", {"a": ""})))
        for length, status in ((4 * MIB, 200), (4 * MIB + 1, 413), (20 * MIB, 413)):
            body = json.dumps(call_of("up__echo", {"a": "x" * (length - empty)})).encode()
            assert len(body) == length
            assert (await gateway.post(None, HEAD, raw=body)).status_code == status
        assert len(record.calls()) == 1


async def lane(gateway: RunningGateway, name: str, count: int) -> None:
    """One connection that calls and calls, in plain bytes: a client would cost more than the gateway."""
    body = json.dumps(call_of(name, {"a": "some text"})).encode()
    head = "".join(f"{key}: {value}\r\n" for key, value in {**HEAD, "mcp-name": name}.items())
    request = f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{head}".encode()
    request += f"content-length: {len(body)}\r\n\r\n".encode() + body
    host, _, port = gateway.origin.removeprefix("http://").rpartition(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        for _ in range(count):
            await stream.send(request)
            answer = await stream.receive()
            while b"\r\n\r\n" not in answer or not answer.endswith(b"}}"):
                answer += await stream.receive()
            assert b'"structuredContent":{"a":"some text"}' in answer, answer


@pytest.mark.heavy
async def test_calls_leave_no_memory_behind(tmp_path: Path) -> None:
    stdio, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    async with (
        scripted_http_server(tmp_path, "web", tools=builtin_tools("echo")) as web,
        running_gateway(tmp_path, {"up": stdio, "web": web.config}) as gateway,
    ):
        await gateway.until_listed("up__echo", "web__echo")

        async def calls(alias: str, count: int) -> int:
            async with anyio.create_task_group() as tasks:
                for _ in range(LANES):
                    tasks.start_soon(lane, gateway, f"{alias}__echo", count // LANES)
            return rss_of(gateway.process.pid)

        for alias in ("up", "web"):
            held = [await calls(alias, CALLS // 4)]
            # A leak grows every time; the allocator takes a quarter of a megabyte now and then.
            for _ in range(8):
                held.append(await calls(alias, CALLS))
            grown = min(after - before for before, after in pairwise(held))
            assert grown < 50 * CALLS, f"{grown / CALLS:.0f} B a call: {held}"
