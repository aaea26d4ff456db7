"""The first list of a process that has just started, and the demo."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from e2e.processes import descendants_of, raw_stdio, still_running, typegate
from support.gateways import running_gateway
from support.pace import limit_now
from support.upstreams.running import rescript, scripted_http_server, scripted_stdio_server, tool
from support.visitors import ALWAYS
from support.waiting import brief_pause

_ROOT = Path(__file__).parents[2]
# Hosts wait one second; a machine that does other things at the same time is given another, or more (`limit_now`).
FIRST_LIST_S = 2.0


def many_tools(prefix: str, count: int) -> list[dict[str, Any]]:
    """Definitions of the size that real ones have."""
    words = "Does one thing and says what came of it, in as many words as people use. " * 4
    shapes = {f"parameter{i}": {"type": "string", "description": words[:120]} for i in range(8)}
    return [tool(f"{prefix}{i:03}", "subject", **shapes) | {"description": words} for i in range(count)]


def stdio_gateway(config: Path, state: Path) -> dict[str, Any]:
    """The gateway over stdio, as a host's configuration starts it."""
    return typegate("stdio", "--config", str(config), "--state-dir", str(state))


async def first_list(config: dict[str, Any], *, modern: bool = False) -> tuple[float, set[str], list[Any]]:
    """Seconds from the start of the process to its list, the names in it, and what else was said."""
    began_s = time.perf_counter()
    async with raw_stdio(config) as gateway:
        if modern:
            meta = {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            await gateway.ask("server/discover", {"_meta": meta})
            tools = (await gateway.ask("tools/list", {"_meta": meta}))["tools"]
        else:
            await gateway.initialize()
            tools = await gateway.tools()
        took_s = time.perf_counter() - began_s
        return took_s, {tool["name"] for tool in tools}, gateway.others


@pytest.mark.heavy
@pytest.mark.parametrize("modern", [False, True])
async def test_first_stdio_list_is_complete_though_every_upstream_hangs(tmp_path: Path, modern: bool) -> None:
    stdio, record = scripted_stdio_server(tmp_path, "s", tools=many_tools("s", 150))
    async with scripted_http_server(tmp_path, "h", tools=many_tools("h", 150)) as http:
        servers = {"s": stdio, "h": http.config}
        async with running_gateway(tmp_path, servers) as gateway:
            wanted = set(await gateway.until_listed("s__s149", "h__h149"))
            with anyio.fail_after(25):
                while not (gateway.state_dir / "snapshot.json").exists():
                    await gateway.server("s")
            assert await gateway.stop() == 0
        rescript(stdio, record, faults={"silent": True})
        await http.restart(faults={"silent": True})
        config = stdio_gateway(gateway.config, gateway.state_dir)
        runs = [await first_list(config, modern=modern) for _ in range(3)]
    best_s = min(took_s for took_s, _, _ in runs)
    print(f"first list of 300 tools, every upstream hanging: {[round(took_s, 3) for took_s, _, _ in runs]} s")
    assert len(wanted) == 300
    for _, names, others in runs:
        assert names == wanted | ALWAYS
        assert others == []
    assert best_s < await limit_now(FIRST_LIST_S)


@pytest.mark.heavy
async def test_demo_prints_a_working_command_and_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gateway", "demo", "--port", "0", "--state-dir", str(tmp_path / "state")]
    process = await anyio.open_process(command, cwd=_ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        output, printed = BufferedByteReceiveStream(process.stdout), []
        with anyio.fail_after(30):
            while not printed or "Ctrl-C" not in printed[-1]:
                printed.append((await output.receive_until(b"\n", 65536)).decode().strip())
        [url] = [line for line in printed if line.startswith("http://127.0.0.1:")]
        assert {"bank__get_bank_balance", "calendar-mcp__send_email"} <= set(printed)
        [page] = [line for line in printed if line.startswith("admin page: ")]
        address = page.split()[2]
        assert address == url.removesuffix("/mcp") + "/admin/"
        async with httpx2.AsyncClient(timeout=30) as client:
            assert "<title>typegate</title>" in (await client.get(address)).text
        ready = [shlex.split(line) for line in printed if f"--url {url} " in line]
        ran = [await anyio.run_process(line, cwd=_ROOT, check=False) for line in ready]
        [accounts] = [done for line, done in zip(ready, ran, strict=True) if "calendar-mcp__list_accounts" in line]
        [refused] = [done for line, done in zip(ready, ran, strict=True) if "calendar-mcp__send_email" in line]
        [servers] = [done for line, done in zip(ready, ran, strict=True) if "servers" in line]
        assert (accounts.returncode, b"work" in accounts.stdout) == (0, True), accounts
        assert refused.returncode == 1
        assert b"to, subject, body" in refused.stdout
        assert (servers.returncode, b"calendar-mcp" in servers.stdout) == (0, True), servers
        children = descendants_of(process.pid)
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(25):
            assert await process.wait() == 0
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
                await process.wait()
            await process.aclose()
    assert len(children) == 2
    assert still_running(children) == []


@pytest.mark.heavy
async def test_readiness_waits_at_most_five_seconds_for_a_hanging_upstream(tmp_path: Path) -> None:
    hanging, _ = scripted_stdio_server(tmp_path, "hanging", faults={"silent": True})
    async with running_gateway(tmp_path, {"hanging": hanging}) as gateway:
        began_s = time.perf_counter()
        assert (await gateway.client.get(f"{gateway.origin}/readyz")).status_code == 503
        with anyio.fail_after(25):
            while (await gateway.client.get(f"{gateway.origin}/readyz")).status_code != 200:
                await brief_pause()
        assert time.perf_counter() - began_s < await limit_now(6)
