"""Endless listings are cut at the limits, reported, and do not grow the memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import MIB, rss_of
from support.gateways import running_gateway
from support.raw_http import Peer, mcp_answer, message_of, serving
from support.upstreams.running import builtin_tools, scripted_http_server, scripted_stdio_server

# By method: the member of its result, the member that identifies an item, and what its number follows.
LISTS = {
    "tools/list": ("tools", "name", "t"),
    "prompts/list": ("prompts", "name", "p"),
    "resources/list": ("resources", "uri", "file:///r"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate", "file:///{a}/"),
}
# The members of each item besides its name, and the number of items in a page of 7 MB.
FILLS: dict[str, tuple[dict[str, Any], int]] = {
    "long texts": ({"_meta": {"x": "y" * 70_000}}, 100),
    "many items": ({"description": "y" * 600}, 10_000),
    "descriptions": ({"description": "y" * 700_000}, 10),
    "values": ({"_meta": {"x": [[]] * 20_000}}, 110),
}


def page(method: str, number: int, fill: dict[str, Any], items: int) -> bytes:
    """The result of a page, with a cursor."""
    member, key, prefix = LISTS[method]
    schema = {"inputSchema": {"type": "object"}} if member == "tools" else {}
    found = [
        {key: f"{prefix}{number}-{index}", "name": f"{prefix}{number}-{index}", **fill, **schema}
        for index in range(items)
    ]
    return json.dumps({member: found, "nextCursor": f"c{number + 1}"}, separators=(",", ":")).encode()


class Endless:
    """An MCP server one of whose lists has no end; its pages are made before it is connected."""

    def __init__(self, method: str, fill: dict[str, Any], items: int) -> None:
        self.method = method
        self.pages = [page(method, number, fill, items) for number in range(6)]
        self.sent = 0

    async def serve(self, peer: Peer) -> None:
        while True:
            message = message_of(await peer.request())
            method = message.get("method", "")
            if method == self.method:
                number = int((message["params"].get("cursor") or "c0")[1:])
                self.sent += 1
                body = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (message["id"], self.pages[number])
                peer.answer(body, b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                await peer.writer.drain()
            elif method in LISTS:
                member, key, prefix = LISTS[method]
                schema = {"inputSchema": {"type": "object"}} if member == "tools" else {}
                peer.say(mcp_answer(message, {member: [{key: f"{prefix}only", "name": "only", **schema}]}))
            else:
                peer.say(mcp_answer(message, HELLO if method == "initialize" else None))


HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
    "serverInfo": {"name": "s", "version": "1"},
}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("method", "fill"),
    [("tools/list", fill) for fill in FILLS]
    + [("resources/list", fill) for fill in FILLS]
    + [("prompts/list", "long texts"), ("resources/templates/list", "descriptions")],
)
async def test_endless_listing_is_cut_and_memory_stays_small(tmp_path: Path, method: str, fill: str) -> None:
    endless = Endless(method, *FILLS[fill])
    calm, _ = scripted_stdio_server(tmp_path, "calm", tools=builtin_tools("echo"))
    async with serving(endless.serve) as site, running_gateway(tmp_path, {"calm": calm}) as gateway:
        await gateway.until_listed("calm__echo")
        before_bytes = rss_of(gateway.process.pid)
        added = await gateway.admin("servers", "POST", {"name": "big", "config": {"url": site.url}})
        assert added.status_code < 300, added.text
        peak_bytes, longest_s, warnings = 0, 0.0, []
        with anyio.fail_after(90):
            while not warnings:
                began_s = anyio.current_time()
                assert "isError" not in await gateway.call("calm__echo")
                longest_s = max(longest_s, anyio.current_time() - began_s)
                peak_bytes = max(peak_bytes, rss_of(gateway.process.pid))
                row = await gateway.server("big")
                warnings = [one for one in row["warnings"] if one.startswith(f"{method} was cut after")]
                await anyio.sleep(0.02)
        # It is built into the catalog, and into what callers are shown.
        tools = await gateway.tools()
        assert "big__only" in tools or len([name for name in tools if name.startswith("big__")]) >= 40
        peak_bytes = max(peak_bytes, rss_of(gateway.process.pid))
        assert (await gateway.server("big"))["state"] == "ready"
        # The growth of four pages was six times as much, and had no end.
        assert peak_bytes - before_bytes < 300 * MIB, f"{(peak_bytes - before_bytes) // MIB} MiB"
        assert longest_s < 8
        assert endless.sent > 1


@pytest.mark.heavy
async def test_quarantined_tool_is_logged_once_however_often_it_is_listed(tmp_path: Path) -> None:
    bad = [{"name": f"bad{number}", "inputSchema": {}, "extra": "x" * 1_100_000} for number in range(3)]
    many = [{"name": number} for number in range(100)]
    async with (
        scripted_http_server(tmp_path, "up", tools=[*builtin_tools("echo"), *bad, *many], modern=True, ttl_ms=1) as up,
        running_gateway(tmp_path, {"up": up.config}) as gateway,
    ):
        await gateway.until_listed("up__echo")

        def lines() -> list[str]:
            return [line for line in gateway.logged().splitlines() if "quarantined" in line]

        # Three of them by name, as many of the others as are logged of one listing, and how many more there are.
        await up.recording.until(lambda seen: len(seen.requests("tools/list")) >= 4)
        assert len(lines()) == 21
        assert "83 more items quarantined" in lines()[-1]
        rows = (await gateway.admin("quarantine")).json()["quarantine"]
        assert len([row for row in rows if row["server"] == "up"]) == 103
        up.announce(tools=[*builtin_tools("echo"), *bad, {"name": "late", "inputSchema": 5, "extra": "x" * 1_100_000}])
        await up.recording.until(lambda seen: len(seen.requests("tools/list")) >= 7)
        assert len(lines()) == 22
        assert "tool='late'" in lines()[-1]
