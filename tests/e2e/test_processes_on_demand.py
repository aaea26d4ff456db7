"""Processes that run only while a call needs them: started by the first call, ended when idle, and always listed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.processes import descendants_of, still_running
from support.gateways import RunningGateway, brief_pause, running_gateway, text_of

# Notes each start, and answers with its process id. A call can wait for a file, subscribe, or start a task.
SERVER = r"""
import json, os, pathlib, sys, threading, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
with (folder / f"{name}.starts").open("a") as notes:
    notes.write(f"{os.getpid()}\n")
if (folder / f"{name}.broken").exists():
    sys.exit("the database is locked")
def say(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def answer(message):
    arguments = message["params"]["arguments"]
    while "until" in arguments and not (folder / arguments["until"]).exists():
        time.sleep(0.01)
    say({"id": message["id"], "result": {"content": [{"type": "text", "text": str(os.getpid())}]}})
CAPABILITIES = {"tools": {}, "resources": {"subscribe": True}}
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "initialize":
        say({"id": message["id"], "result": {"protocolVersion": "2025-06-18", "capabilities": CAPABILITIES,
                                             "serverInfo": {"name": name, "version": "1"}}})
    elif method == "tools/list":
        say({"id": message["id"], "result": {"tools": [{"name": "pid", "inputSchema": {"type": "object"}}]}})
    elif method == "resources/list":
        say({"id": message["id"], "result": {"resources": [{"uri": f"note://{name}", "name": name}]}})
    elif method == "resources/templates/list":
        say({"id": message["id"], "result": {"resourceTemplates": []}})
    elif method in ("resources/subscribe", "resources/unsubscribe"):
        say({"id": message["id"], "result": {}})
    elif method == "tools/call":
        threading.Thread(target=answer, args=(message,)).start()
    elif "id" in message:
        say({"id": message["id"], "error": {"code": -32601, "message": "no"}})
"""
ON_DEMAND = {"processes": {"start": "onDemand"}}


def entry(folder: Path, name: str, **members: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-c", SERVER, str(folder), name], **members}


def starts(folder: Path, name: str) -> list[int]:
    notes = folder / f"{name}.starts"
    return [int(line) for line in notes.read_text().split()] if notes.exists() else []


async def until_state(gateway: RunningGateway, name: str, state: str) -> dict[str, Any]:
    with anyio.fail_after(60):
        while (row := await gateway.server(name))["state"] != state:
            await brief_pause()
    return row


async def until_gone(*pids: int) -> None:
    with anyio.fail_after(60):
        while still_running(pids):
            await brief_pause()


@pytest.mark.heavy
async def test_process_starts_for_listing_and_then_for_a_call(tmp_path: Path) -> None:
    servers = {name: entry(tmp_path, name) for name in ("one", "two")}
    async with running_gateway(tmp_path, servers, gateway=ON_DEMAND) as gateway:
        tools = await gateway.until_listed("one__pid", "two__pid")
        row = await until_state(gateway, "one", "idle")
        assert (row["tools"], row["lastError"], row["lastLost"]) == (1, None, None)
        await until_state(gateway, "two", "idle")
        await until_gone(*starts(tmp_path, "one"), *starts(tmp_path, "two"))
    async with running_gateway(tmp_path, servers, gateway=ON_DEMAND) as gateway:
        # Now from the snapshot: complete at once, and nothing runs.
        assert await gateway.tools() == tools
        assert (await gateway.server("one"))["state"] == "idle"
        assert (await gateway.client.get(f"{gateway.origin}/readyz")).status_code == 200
        assert descendants_of(gateway.process.pid) == []
        answers: list[str] = []

        async def call() -> None:
            answers.append(text_of(await gateway.call("one__pid", timeout_s=60)))

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(call)
        # Twenty calls, one process; the other server was not started.
        assert len(answers) == 20
        assert len(starts(tmp_path, "one")) == 2
        assert set(answers) == {str(starts(tmp_path, "one")[-1])}
        assert len(starts(tmp_path, "two")) == 1
        assert (await gateway.server("one"))["state"] == "ready"
        assert await gateway.tools() == tools


async def test_idle_process_ends_and_the_next_call_starts_another(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {"one": entry(tmp_path, "one", idleTimeout=0.3)}) as gateway:
        tools = await gateway.until_listed("one__pid")
        [first] = starts(tmp_path, "one")
        row = await until_state(gateway, "one", "idle")
        await until_gone(first)
        assert (row["origin"], row["stale"], row["lastError"]) == ("live", False, None)
        assert await gateway.tools() == tools
        text = (
            await gateway.client.get(
                f"{gateway.origin}/metrics", headers={"authorization": "Bearer admin-token-of-the-test"}
            )
        ).text
        assert 'typegate_upstream_idle{server="one"} 1.0' in text
        assert 'typegate_upstream_up{server="one"} 1.0' in text
        # Longer than the timeout, during which the process is not idle.
        async with anyio.create_task_group() as group:
            texts: list[str] = []

            async def call() -> None:
                texts.append(text_of(await gateway.call("one__pid", {"until": "go"}, timeout_s=60)))

            group.start_soon(call)
            await until_state(gateway, "one", "ready")
            await anyio.sleep(0.6)
            assert (await gateway.server("one"))["state"] == "ready"
            (tmp_path / "go").touch()
        second = starts(tmp_path, "one")[1]
        assert texts == [str(second)]
        await until_state(gateway, "one", "idle")
        # An administrator may ask for the lists, which does not need a call.
        await gateway.admin("servers/one/refresh", "POST")
        with anyio.fail_after(60):
            while len(starts(tmp_path, "one")) < 3:
                await brief_pause()
        await until_state(gateway, "one", "idle")
        assert "not connected" not in gateway.logged()


@pytest.mark.heavy
async def test_subscription_keeps_a_process_and_starts_none(tmp_path: Path) -> None:
    entries = {"one": entry(tmp_path, "one", start="onDemand", idleTimeout=0.2)}
    async with running_gateway(tmp_path, entries) as gateway:
        await gateway.until_listed("one__pid")
        await until_state(gateway, "one", "idle")
        wanted = {"notifications": {"resourceSubscriptions": ["note://one"]}}
        async with anyio.create_task_group() as group:
            group.start_soon(gateway.rpc, "subscriptions/listen", wanted)
            await anyio.sleep(0.5)
            assert len(starts(tmp_path, "one")) == 1
            await gateway.call("one__pid")
            await anyio.sleep(1)
            assert (await gateway.server("one"))["state"] == "ready"
            group.cancel_scope.cancel()
        await until_state(gateway, "one", "idle")
        assert len(starts(tmp_path, "one")) == 2


@pytest.mark.heavy
async def test_process_failing_on_demand_is_started_once_per_call(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {"one": entry(tmp_path, "one")}, gateway=ON_DEMAND) as gateway:
        await gateway.until_listed("one__pid")
        await until_state(gateway, "one", "idle")
        broken = tmp_path / "one.broken"
        broken.touch()
        result = await gateway.call("one__pid", timeout_s=60)
        assert result["isError"]
        assert "the database is locked" in text_of(result)
        row = await until_state(gateway, "one", "idle")
        assert "the database is locked" in row["lastError"]
        attempts = len(starts(tmp_path, "one"))
        assert attempts <= 3  # once to be listed; a start without an answer toggles the probe
        await anyio.sleep(1.5)
        assert len(starts(tmp_path, "one")) == attempts
        assert set(await gateway.tools()) == {"one__pid"}
        broken.unlink()
        assert text_of(await gateway.call("one__pid", timeout_s=60)) == str(starts(tmp_path, "one")[-1])
        assert (await gateway.server("one"))["lastError"] is None
        # A crash while it is not called is noticed, and does not start it again.
        os.kill(starts(tmp_path, "one")[-1], signal.SIGKILL)
        row = await until_state(gateway, "one", "idle")
        assert re.search("SIGKILL", row["lastError"])


@pytest.mark.heavy
async def test_idle_timeout_can_be_changed_at_runtime(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {"one": entry(tmp_path, "one")}) as gateway:
        await gateway.until_listed("one__pid")
        changed = {"mcpServers": {"one": entry(tmp_path, "one")}, "gateway": {"processes": {"idleTimeout": 0.2}}}
        gateway.config.write_text(json.dumps(changed))
        await until_state(gateway, "one", "idle")
        del changed["gateway"]
        gateway.config.write_text(json.dumps(changed))
        await until_state(gateway, "one", "ready")
        assert len(starts(tmp_path, "one")) == 2
        with suppress(ProcessLookupError):
            os.kill(starts(tmp_path, "one")[0], 0)
            raise AssertionError("the first process still runs")
