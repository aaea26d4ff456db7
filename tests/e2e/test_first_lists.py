"""The first list waits as long as the host does; missing servers are named and announced later."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.processes import RawStdio, raw_stdio, typegate
from support.gateways import RunningGateway, answer_of, brief_pause, running_gateway
from support.pace import limit_now
from support.upstreams.gated import Upstream, entries

from gateway.downstream.declarations import patience_s


def test_first_list_waits_as_long_as_each_host_does() -> None:
    hosts = ("claude-code", "codex-mcp-client", "copilot-cli", "opencode", "gemini-cli-mcp-client")
    waits = {name: patience_s(name) for name in hosts}
    assert 1.5 < waits["claude-code"] < 2.0
    assert 0.7 < waits["codex-mcp-client"] < 1.0
    assert 15 < waits["copilot-cli"] < 20
    assert 20 < waits["opencode"] < 30
    assert 30 < waits["gemini-cli-mcp-client"] < 40
    assert patience_s("qwen-cli-mcp-client-gw") == waits["gemini-cli-mcp-client"]
    # Claude Desktop is another program, and the rest of the world is not known.
    assert {patience_s(name) for name in ("claude-ai", "cursor-vscode", "", None, 3)} == {5.0}


def stdio(tmp_path: Path, *upstreams: Upstream, state: str = "state") -> dict[str, Any]:
    config = tmp_path / "typegate.json"
    config.write_text(json.dumps({"mcpServers": entries(*upstreams)}))
    return typegate("stdio", "--config", str(config), "--state-dir", str(tmp_path / state))


async def hello(gateway: RawStdio, name: str) -> dict[str, Any]:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": name, "version": "1"}}
    answer: dict[str, Any] = await gateway.ask("initialize", params)
    await gateway.send_message({"method": "notifications/initialized"})
    return answer


async def names(gateway: RawStdio) -> set[str]:
    return {one["name"] for one in await gateway.tools()}


@pytest.mark.parametrize("host", ["gemini-cli-mcp-client", "a-host-that-nobody-knows"])
async def test_first_list_waits_for_a_starting_server(tmp_path: Path, host: str) -> None:
    slow, quick = Upstream(tmp_path, "slow", "wait_for('go')"), Upstream(tmp_path, "quick")
    async with raw_stdio(stdio(tmp_path, slow, quick)) as gateway:
        answer = await hello(gateway, host)
        # Before anything was listed: what is missing comes first.
        assert answer["instructions"].startswith("Not connected yet: slow")
        found: set[str] = set()
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                found.update(await names(gateway))

            group.start_soon(ask)
            await slow.until_noted("started")
            slow.go_on()
        assert {"slow__t", "quick__t"} <= found


@pytest.mark.heavy
async def test_impatient_host_is_answered_in_time_and_later_tools_are_announced(tmp_path: Path) -> None:
    slow, quick = Upstream(tmp_path, "slow", "wait_for('go')"), Upstream(tmp_path, "quick")
    async with raw_stdio(stdio(tmp_path, slow, quick)) as gateway:
        began_s = time.monotonic()
        answer = await hello(gateway, "codex-mcp-client")
        assert "slow__t" not in await names(gateway)
        assert time.monotonic() - began_s < await limit_now(1.0)
        assert "slow" in answer["instructions"][:250]
        slow.go_on()
        with anyio.fail_after(20):
            while "slow__t" not in await names(gateway):
                await brief_pause()
        assert "notifications/tools/list_changed" in [one.get("method") for one in gateway.others]
        # A host that connects now does not hear of missing servers.
        assert "Not connected yet" not in (await hello(gateway, "codex-mcp-client"))["instructions"]


@pytest.mark.heavy
async def test_list_with_a_snapshot_waits_at_most_a_second(tmp_path: Path) -> None:
    quick = Upstream(tmp_path, "quick")
    never = Upstream(tmp_path, "never", "wait_for('never')")
    async with raw_stdio(stdio(tmp_path, quick)) as gateway:
        await hello(gateway, "any")
        assert "quick__t" in await names(gateway)
        with anyio.fail_after(25):
            while not (tmp_path / "state" / "snapshot.json").exists():
                await brief_pause()
    took_s = []
    for _ in range(2):
        began_s = time.monotonic()
        async with raw_stdio(stdio(tmp_path, never, quick)) as gateway:
            answer = await hello(gateway, "gemini-cli-mcp-client")
            assert "quick__t" in await names(gateway)
            took_s.append(time.monotonic() - began_s)
            assert answer["instructions"].startswith("Not connected yet: never. ")
    assert min(took_s) < await limit_now(1.0), took_s


@pytest.mark.heavy
async def test_each_host_waits_once_over_http(tmp_path: Path) -> None:
    never, slow = Upstream(tmp_path, "never", "wait_for('never')"), Upstream(tmp_path, "slow", "wait_for('go')")
    async with running_gateway(tmp_path, entries(never, slow)) as gateway:
        assert await timed(lambda: listed_by(gateway, "claude-code")) > 1.5
        assert await timed(lambda: listed_by(gateway, "claude-code")) < 1.0
        async with anyio.create_task_group() as group:
            found: list[set[str]] = []

            async def ask() -> None:
                found.append(await listed_by(gateway, "another"))

            group.start_soon(ask)
            slow.go_on()
        # The list has waited for the slow server, and without success for the other.
        assert "slow__t" in found[0]
        assert "never__t" not in found[0]
        assert await timed(lambda: listed_by(gateway, "another")) < 1.0


async def timed(act: Callable[[], Awaitable[object]]) -> float:
    began_s = time.monotonic()
    await act()
    return time.monotonic() - began_s


async def listed_by(gateway: RunningGateway, host: str) -> set[str]:
    """The tools that a new session of this host is listed first."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": host, "version": "1"}}
    opened = await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    answer = await gateway.post({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}, session)
    return {tool["name"] for tool in answer_of(answer)["result"]["tools"]}
