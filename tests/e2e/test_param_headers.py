"""Arguments declared as headers reach their server both as arguments and as headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.callers import handshake
from support.gateways import running_gateway
from support.upstreams.running import Recording, scripted_http_server

from gateway.protocol.versions import header_value

TOOL = {
    "name": "query",
    "inputSchema": {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "limit": {"type": "integer", "x-mcp-header": "Limit"},
            "where": {"type": "object", "properties": {"dry": {"type": "boolean", "x-mcp-header": "Dry-Run"}}},
            "plain": {"type": "string"},
        },
    },
}
CALLS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"region": "eu", "plain": "x"}, {"mcp-param-region": "eu"}),
    ({"region": "Zürich", "limit": 3}, {"mcp-param-region": header_value("Zürich"), "mcp-param-limit": "3"}),
    ({"where": {"dry": True}}, {"mcp-param-dry-run": "true"}),
    ({"region": "a\r\nx-more: b"}, {"mcp-param-region": header_value("a\r\nx-more: b")}),
    ({"plain": "only"}, {}),
]


def mirrored(record: Recording) -> list[dict[str, str]]:
    """The mirrored headers of each call that arrived."""
    calls = [one["headers"] for one in record.http("/mcp") if one["headers"].get("mcp-method") == "tools/call"]
    assert all("x-more" not in headers for headers in calls)
    return [{name: value for name, value in one.items() if name.startswith("mcp-param-")} for one in calls]


@pytest.mark.heavy
async def test_header_arguments_of_both_eras_are_mirrored_upstream(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=[TOOL], modern=True) as up,
        running_gateway(tmp_path, {"up": up.config}) as gateway,
    ):
        await gateway.until_listed("up__query")
        session = await handshake(gateway)
        for arguments, headers in CALLS:
            assert (await gateway.call("up__query", arguments, headers=headers))["structuredContent"] == arguments
            answer = await session.call("up__query", arguments)
            assert answer["result"]["structuredContent"] == arguments
            answer = await session.call("invoke_tool", {"server": "up", "tool": "query", "arguments": arguments})
            assert answer["result"]["structuredContent"] == arguments
        expected = [headers for _, headers in CALLS for _ in range(3)]
        assert mirrored(up.recording) == expected


@pytest.mark.heavy
async def test_repaired_arguments_are_mirrored(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=[TOOL], modern=True) as up,
        running_gateway(tmp_path, {"up": up.config}) as gateway,
    ):
        await gateway.until_listed("up__query")
        session = await handshake(gateway)
        answer = await session.call("up__query", {"limit": "7"})
        assert answer["result"]["structuredContent"] == {"limit": 7}
        assert mirrored(up.recording) == [{"mcp-param-limit": "7"}]


async def test_handshake_era_server_gets_no_mirrored_headers(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=[TOOL]) as up,
        running_gateway(tmp_path, {"up": up.config}) as gateway,
    ):
        await gateway.until_listed("up__query")
        session = await handshake(gateway)
        assert (await session.call("up__query", {"region": "eu"}))["result"]["structuredContent"] == {"region": "eu"}
        assert not any(name.startswith("mcp-param-") for one in up.recording.http() for name in one["headers"])
