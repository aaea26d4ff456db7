"""One trace from a host through the gateway to an upstream, received by a collector, and logs with its id."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import call_of, handshake, hello, running_host
from support.collector import Collector, ReceivedSpan, collector
from support.gateways import brief_pause, running_gateway
from support.upstreams.full_running import full_stdio
from support.upstreams.running import builtin_tools, scripted_http_server, scripted_stdio_server

# Each starts a receiver beside the gateway and its upstream.
pytestmark = pytest.mark.heavy

SERVER, CLIENT = 2, 3
TRACE, SPAN, OTHER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "c7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def settings(received: Collector, **more: Any) -> dict[str, Any]:
    telemetry = {"endpoint": received.url, "interval": 0.2, "metricsInterval": 0.3, "headers": {"x-key": "k"}, **more}
    return {"telemetry": telemetry}


async def until_pair(received: Collector) -> tuple[ReceivedSpan, ReceivedSpan]:
    """The span of the call, and that of the request to the upstream; lists were asked for before, and may come late."""
    with anyio.fail_after(25):
        while True:
            for ours in (span for span in received.spans if span.kind == SERVER and span.name.startswith("tools/call")):
                for theirs in (span for span in received.spans if span.kind == CLIENT):
                    if theirs.parent_id == ours.span_id:
                        return ours, theirs
            await brief_pause()


@pytest.mark.parametrize("era", ["modern", "handshake"])
@pytest.mark.parametrize("via", ["wrapper", "invoke_tool"])
async def test_host_gateway_and_upstream_share_one_trace_in_both_eras(tmp_path: Path, era: str, via: str) -> None:
    name, arguments = "up__echo", {"to": "ann"}
    if via == "invoke_tool":
        name, arguments = "invoke_tool", {"server": "up", "tool": "echo", "arguments": arguments}
    modern = era == "modern"
    async with scripted_http_server(tmp_path, "up", tools=builtin_tools("echo"), modern=modern) as up:
        with collector() as received:
            async with running_gateway(tmp_path, {"up": up.config}, gateway=settings(received)) as gateway:
                await gateway.until_listed("up__echo")
                received.spans.clear()
                if modern:
                    await gateway.call(name, arguments, headers={"traceparent": PARENT, "tracestate": "a=1"})
                else:
                    session = await handshake(gateway)
                    await session.call(name, arguments, traceparent=PARENT, tracestate="a=1")
                ours, theirs = await until_pair(received)
    assert (ours.trace_id, ours.parent_id, theirs.trace_id) == (TRACE, SPAN, TRACE)
    assert (ours.name, theirs.name) == (f"tools/call {name}", "tools/call echo")
    assert ours.attributes["gen_ai.operation.name"] == "execute_tool"
    assert ours.attributes["mcp.protocol.version"] == ("2026-07-28" if modern else "2025-11-25")
    assert ours.attributes["network.transport"] == "tcp"
    assert theirs.attributes["typegate.server"] == "up"
    assert not any("arguments" in key or "result" in key for key in ours.attributes)
    [call] = up.recording.calls("echo")
    continued = f"00-{TRACE}-{theirs.span_id}-01"
    assert call["_meta"]["traceparent"] == continued
    assert call["_meta"]["tracestate"] == "a=1"
    heads = [one["headers"] for one in up.recording.http() if "traceparent" in one["headers"]]
    assert heads[-1]["traceparent"] == continued
    assert received.headers[0]["x-key"] == "k"


@pytest.mark.heavy
async def test_nearer_parent_is_used_and_the_other_linked(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    with collector() as received:
        async with running_gateway(tmp_path, {"up": server}, gateway=settings(received)) as gateway:
            await gateway.until_listed("up__echo")
            received.spans.clear()
            other = {"traceparent": f"00-{TRACE}-{OTHER}-01"}
            await gateway.post(call_of("up__echo", {}, traceparent=PARENT), other)
            ours, theirs = await until_pair(received)
    assert (ours.parent_id, ours.links) == (SPAN, [OTHER])
    assert theirs.attributes["network.transport"] == "pipe"


async def test_span_names_omit_possible_secrets(tmp_path: Path) -> None:
    server = full_stdio(tmp_path, "up", modern=True)
    with collector() as received:
        async with running_gateway(tmp_path, {"up": server.config}, gateway=settings(received)) as gateway:
            await gateway.until_listed("up__echo")
            for uri in ("full://up/note", "full://ann:pass-word-7@up/note?token=pass-word-8"):
                received.spans.clear()
                await gateway.rpc("resources/read", {"uri": uri}, headers={"mcp-name": uri})
                with anyio.fail_after(25):
                    while len(found := [span for span in received.spans if span.name == "resources/read"]) < 2:
                        await brief_pause()
                assert {span.attributes["mcp.resource.uri"] for span in found} == {"full://up/note"}
                assert "pass-word" not in str(found)


@pytest.mark.heavy
async def test_failures_are_named_and_retries_are_events(tmp_path: Path) -> None:
    tools = [{**tool, "annotations": {"readOnlyHint": True}} for tool in builtin_tools("echo")]
    well, _ = scripted_stdio_server(tmp_path, "well", tools=builtin_tools("result"))
    faults = {"reset": True, "calls": 1}
    async with scripted_http_server(tmp_path, "up", tools=tools, faults=faults) as up:
        with collector() as received:
            servers = {"up": up.config, "well": well}
            async with running_gateway(tmp_path, servers, gateway=settings(received)) as gateway:
                await gateway.until_listed("up__echo", "well__result")
                received.spans.clear()
                await gateway.call("up__echo", {})
                _, theirs = await until_pair(received)
                assert "retry" in theirs.events
                received.spans.clear()
                await gateway.call("well__result", {"result": {"content": [], "isError": True}})
                assert {span.attributes["error.type"] for span in await until_pair(received)} == {"tool_error"}
                received.spans.clear()
                await gateway.rpc("tools/call", {"name": "nothing__here", "arguments": {}})
                with anyio.fail_after(25):
                    while not (found := [span for span in received.spans if span.name == "tools/call nothing__here"]):
                        await brief_pause()
                [unknown] = found
                assert (unknown.attributes["error.type"], unknown.failed) == ("-32602", True)


@pytest.mark.parametrize("modern", [True, False], ids=["modern", "handshake"])
async def test_unsampled_trace_is_propagated_as_unsampled(tmp_path: Path, modern: bool) -> None:
    async with scripted_http_server(tmp_path, "up", tools=builtin_tools("echo"), modern=modern) as up:
        with collector() as received:
            none = settings(received, sampleRatio=0)
            async with running_gateway(tmp_path, {"up": up.config}, gateway=none) as gateway:
                await gateway.until_listed("up__echo")
                unsampled = PARENT[:-2] + "00"
                await gateway.call("up__echo", {}, headers={"traceparent": unsampled})
                await gateway.call("up__echo", {}, headers={"baggage": "a=1"})
                await gateway.call("up__echo", {}, headers={"traceparent": PARENT})
                spans = await received.until(2)
    assert {span.trace_id for span in spans} == {TRACE}
    heads = [one["headers"] for one in up.recording.http() if "traceparent" in one["headers"]]
    as_it_came, begun, sampled = heads
    assert as_it_came["traceparent"] == unsampled
    # A trace that begins here says so to the server, which may have another ratio than we have.
    assert re.fullmatch(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-00", begun["traceparent"])
    assert begun["baggage"] == "a=1"
    assert begun["traceparent"][3:35] != TRACE
    assert sampled["traceparent"].endswith("-01")
    first, second, _ = up.recording.calls("echo")
    assert "traceparent" not in first.get("_meta", {})
    assert second["_meta"]["traceparent"] == begun["traceparent"]


async def test_environment_sampler_applies_unless_the_file_sets_one(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    with collector() as received:
        # This sampler ignores the parent: traces that a caller does not sample are sampled here.
        environment = {"OTEL_TRACES_SAMPLER": "always_on"}
        async with running_gateway(
            tmp_path, {"up": server}, gateway=settings(received), environment=environment
        ) as gateway:
            await gateway.until_listed("up__echo")
            received.spans.clear()
            await gateway.call("up__echo", {}, headers={"traceparent": PARENT[:-2] + "00"})
            ours, _ = await until_pair(received)
    assert (ours.trace_id, ours.parent_id) == (TRACE, SPAN)


async def test_metrics_are_exported_and_shown_by_tool(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    with collector() as received:
        async with running_gateway(tmp_path, {"up": server}, gateway=settings(received)) as gateway:
            await gateway.until_listed("up__echo")
            for _ in range(3):
                await gateway.call("up__echo", {})
            text = (await gateway.admin("../metrics")).text
            named = 'gen_ai_tool_name="echo",mcp_method_name="tools/call",server="up"'
            assert f'mcp_server_operation_duration_seconds_count{{error_type="",{named}}} 3.0' in text
            assert f'mcp_client_operation_duration_seconds_count{{error_type="",{named}}} 3.0' in text
            assert re.search(r'_bucket\{error_type="",gen_ai_tool_name="echo",le="\+Inf",.*\} 3\.0', text)
    assert received.metrics["mcp.server.operation.duration"] >= 3
    assert received.metrics["mcp.client.operation.duration"] >= 3


async def test_log_lines_are_json_with_the_trace_id(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    config = tmp_path / "typegate.json"
    with collector() as received:
        config.write_text(json.dumps({"mcpServers": {"up": server}, "gateway": settings(received)}))
        async with running_host(tmp_path, "--config", str(config), "--log-format", "json", "--verbose") as host:
            await host.answer(hello())
            await host.until_listed("up__echo")
            body = call_of("up__echo", {}, request_id="c")
            body["params"]["_meta"] = {"traceparent": PARENT}
            await host.answer(body)
            assert await host.leave() == 0
        with anyio.fail_after(25):
            while not any(span.trace_id == TRACE and span.kind == SERVER for span in received.spans):
                await brief_pause()
    lines = [json.loads(line) for line in host.log.read_text().splitlines() if line.startswith("{")]
    [call] = [line for line in lines if line["message"] == "call"]
    assert (call["trace_id"], call["wrapper"], call["level"]) == (TRACE, "up__echo", "INFO")
    [ours] = [span for span in received.spans if span.trace_id == TRACE and span.kind == SERVER]
    assert (call["span_id"], ours.attributes["network.transport"]) == (ours.span_id, "pipe")
