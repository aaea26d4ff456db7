"""Real third-party servers in one configuration, used by real third-party clients."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.processes import descendants_of, raw_stdio, still_running, typegate
from support.clients import installed
from support.gateways import brief_pause, running_gateway

pytestmark = pytest.mark.heavy

# The reference server listens on every interface unless it is held to one.
_HELD_TO_LOOPBACK = """
import net from "node:net";
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...rest) {
  this.once("listening", () => console.error(`at ${this.address().address}:${this.address().port} `));
  return listen.call(this, Number(port), "127.0.0.1", ...rest);
};
"""
# One client of each era by default; the others with `-m heavy`.
CLIENTS = (
    pytest.param("sdk1", marks=pytest.mark.heavy),
    pytest.param("typescript", marks=pytest.mark.heavy),
    pytest.param("sdk2-legacy", marks=pytest.mark.heavy),
    "sdk2-auto",
)
# The members of a tool in the models of every client; other members are compared in the raw messages.
_MEMBERS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations", "_meta", "icons")


@asynccontextmanager
async def everything_over_http(tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    """Run the reference server over Streamable HTTP; yields its configuration."""
    stdio = await anyio.to_thread.run_sync(installed.everything_server)
    preload, log = tmp_path / "loopback.mjs", tmp_path / "everything.log"
    preload.write_text(_HELD_TO_LOOPBACK)
    command = [stdio["command"], "--import", preload.as_uri(), stdio["args"][0], "streamableHttp"]
    with log.open("wb") as sink:
        process = await anyio.open_process(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env={**os.environ, "PORT": "0"}
        )
    try:
        with anyio.fail_after(20):
            while "at 127.0.0.1:" not in (printed := log.read_text()):
                assert process.returncode is None, printed
                await brief_pause()
        port = printed.partition("at 127.0.0.1:")[2].split()[0]
        yield {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
                await process.wait()
            await process.aclose()


@asynccontextmanager
async def four_servers(tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    """One `mcpServers` block of three servers over stdio and one over HTTP."""
    repository = git_repository(tmp_path / "repository")
    async with everything_over_http(tmp_path) as http:
        yield {
            "everything": await anyio.to_thread.run_sync(installed.everything_server),
            "time": await anyio.to_thread.run_sync(installed.time_server),
            "git": await anyio.to_thread.run_sync(installed.git_server, repository),
            "web": http,
        }


def git_repository(place: Path) -> Path:
    """Make a repository with one commit and one file that is in none."""
    place.mkdir()
    (place / "kept.txt").write_text("kept\n")
    who = ["-c", "user.name=Robin", "-c", "user.email=robin@example.com", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first words"]):
        subprocess.run(["git", *arguments], cwd=place, check=True, capture_output=True)
    (place / "new.txt").write_text("new\n")
    return place


def calls_to_each(repository: Path) -> list[tuple[str, dict[str, Any], str]]:
    """A call to every server, and a word of its answer."""
    return [
        ("everything__echo", {"message": "grüße"}, "grüße"),
        ("everything__get-structured-content", {"location": "Chicago"}, "temperature"),
        ("everything__trigger-long-running-operation", {"duration": 0.4, "steps": 4}, "4"),
        ("time__get_current_time", {"timezone": "Asia/Tokyo"}, "+09:00"),
        ("git__git_status", {"repo_path": str(repository)}, "new.txt"),
        ("git__git_log", {"repo_path": str(repository), "max_count": 1}, "first words"),
        ("web__get-sum", {"a": 2, "b": 40}, "42"),
    ]


def without_ours(tools: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the tools by name, without those of the gateway."""
    assert len({tool["name"] for tool in tools}) == len(tools)
    return {tool["name"]: tool for tool in tools if tool["name"] not in ("invoke_tool", "get_server_details")}


def known(tool: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a definition that the models of every client have."""
    return {key: tool[key] for key in _MEMBERS if key in tool}


def without_demand(tool: dict[str, Any]) -> dict[str, Any]:
    """A definition without the demand that it is called as a task: the gateway runs the task itself."""
    demands = (tool.get("execution") or {}).get("taskSupport") == "required"
    return {key: value for key, value in tool.items() if not (demands and key == "execution")}


def everyone_in(servers: dict[str, Any]) -> tuple[str, ...]:
    """One tool of each server, to wait for."""
    last = {"everything": "echo", "time": "convert_time", "git": "git_status", "web": "echo"}
    return tuple(f"{alias}__{last[alias]}" for alias in servers)


async def listed_directly(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the listing of a server without a gateway; over HTTP the bridge forwards the raw lines."""
    if "url" in config:
        config = typegate("stdio", "--url", config["url"])
    async with raw_stdio(config) as server:
        await server.initialize()
        return await server.tools()


@pytest.mark.heavy
async def test_four_real_servers_are_listed_as_directly(tmp_path: Path) -> None:
    async with four_servers(tmp_path) as servers:
        direct: dict[str, dict[str, Any]] = {}

        async def ask(alias: str) -> None:
            for tool in await listed_directly(servers[alias]):
                direct[f"{alias}__{tool['name']}"] = tool

        async with anyio.create_task_group() as group:
            for alias in servers:
                group.start_soon(ask, alias)
        async with running_gateway(tmp_path, servers) as gateway:
            await gateway.until_listed(*everyone_in(servers), within_s=30)
            listed = await gateway.tools()
            rows = (await gateway.admin("servers")).json()
            started = descendants_of(gateway.process.pid)
            assert await gateway.stop() == 0
        assert len(direct) > 30
        wanted = {name: {**without_demand(tool), "name": name} for name, tool in direct.items()}
        assert {name: tool for name, tool in wanted.items() if listed.get(name) != tool} == {}
        assert set(listed) == set(wanted)
        assert {row["state"] for row in rows["servers"]} == {"ready"}, rows
        assert len(started) >= 3
        assert still_running(started) == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_client_lists_and_calls_four_real_servers_over_http_and_stdio(client: str, tmp_path: Path) -> None:
    calls = calls_to_each(tmp_path / "repository")
    requests = [{"name": name, "arguments": arguments} for name, arguments, _ in calls]
    reports: dict[str, dict[str, Any]] = {}

    async def note(way: str, target: str | dict[str, Any]) -> None:
        reports[way] = await installed.report(client, target, requests)

    async with four_servers(tmp_path) as servers:
        async with running_gateway(tmp_path, servers) as gateway:
            wanted = await gateway.until_listed(*everyone_in(servers), within_s=30)
            async with anyio.create_task_group() as group:
                group.start_soon(note, "http", gateway.url)
                group.start_soon(note, "bridge", typegate("stdio", "--url", gateway.url))
            assert await gateway.stop() == 0
        # The first list is due before the servers are up: it comes from the snapshot of the run above.
        config, state = str(gateway.config), str(gateway.state_dir)
        await note("stdio", typegate("stdio", "--config", config, "--state-dir", state))
    modern = client == "sdk2-auto"
    for way, report in reports.items():
        assert (report["protocol"] == "2026-07-28") == modern, way
        tools = without_ours(report["tools"])
        different = [name for name in tools if known(tools[name]) != known(wanted[name])]
        assert (set(tools), different) == (set(wanted), []), way
        for (name, _, word), outcome in zip(calls, report["calls"], strict=True):
            assert not outcome["result"].get("isError"), (way, name, outcome)
            assert word in json.dumps(outcome["result"], ensure_ascii=False), (way, name, outcome)
        structured = report["calls"][1]["result"]["structuredContent"]
        assert set(structured) == {"temperature", "conditions", "humidity"}, way
        # The TypeScript SDK hears a step that comes together with the result too late, also without a gateway.
        assert report["progress"][2] >= (3 if client == "typescript" else 4), (way, report["progress"])
