"""A restarted child: waiting calls share one start, and nothing runs twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import append_result
from support.callers import call_of, hello, running_host
from support.gateways import running_gateway, text_of
from support.upstreams.running import Recording, builtin_tools, rescript, scripted_stdio_server, tool

# Half of all faults are waits: of deadlines, restarts and pauses.
pytestmark = pytest.mark.heavy

TOOLS = builtin_tools("exit", "sleep", "echo")
CROWD = 20


def slow_to_start(tmp_path: Path) -> tuple[dict[str, Any], Recording]:
    server, record = scripted_stdio_server(tmp_path, "up", tools=TOOLS)
    late = ["-c", 'sleep 0.7 && exec "$@"', "sh", server["command"], *server["args"]]
    return {"command": "sh", "args": late}, record


def assert_one_start_and_one_call_each(record: Recording) -> None:
    assert len(record.starts()) == 2
    assert len(record.requests("initialize")) == 2
    assert sorted(one["arguments"]["n"] for one in record.calls("echo")) == list(range(CROWD))


async def test_twenty_calls_during_a_child_restart_share_one_start(tmp_path: Path) -> None:
    server, record = slow_to_start(tmp_path)
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__echo")
        answers: list[dict[str, Any]] = []
        async with anyio.create_task_group() as tasks:
            assert "outcome is unknown" in text_of(await gateway.call("up__exit"))
            for number in range(CROWD):
                tasks.start_soon(append_result, gateway, "up__echo", {"n": number}, answers)
                # The list stays available in the meantime.
                assert "up__echo" in await gateway.tools()
        assert sorted(one["structuredContent"]["n"] for one in answers) == list(range(CROWD))
        assert_one_start_and_one_call_each(record)


async def test_twenty_stdio_calls_during_a_child_restart_share_one_start(tmp_path: Path) -> None:
    server, record = slow_to_start(tmp_path)
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__echo")
        # With a bridge in between, all calls reach the gateway at the same moment.
        async with running_host(tmp_path, "--url", gateway.url) as host:
            await host.answer(hello())
            gone = await host.answer(call_of("up__exit", request_id="gone"))
            assert "outcome is unknown" in text_of(gone["result"])
            calls = [call_of("up__echo", {"n": number}, request_id=f"call-{number}") for number in range(CROWD)]
            await host.send(*calls)
            for number in range(CROWD):
                answer = await host.until(lambda one, wanted=f"call-{number}": one.get("id") == wanted)
                assert answer["result"].get("structuredContent") == {"n": number}, answer
            assert await host.leave() == 0
        assert_one_start_and_one_call_each(record)


async def test_slow_call_survives_a_new_discovery_of_its_server(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "up", tools=TOOLS, list_changed=True)
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__sleep")
        answers: list[dict[str, Any]] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append_result, gateway, "up__sleep", {"seconds": 1}, answers)
            await record.until(lambda seen: seen.calls("sleep"))
            lists = len(record.requests("tools/list"))
            assert (await gateway.admin("servers/up/refresh", "POST")).status_code == 202
            await record.until(lambda seen: len(seen.requests("tools/list")) > lists)
            rescript(server, record, announce=True, tools=[*TOOLS, *builtin_tools("hang")], list_changed=True)
            await gateway.until_listed("up__hang")
            assert not answers
        assert answers[0].get("structuredContent") == {"seconds": 1}, answers
        assert len(record.starts()) == 1


async def test_calls_work_and_the_list_returns_if_only_listing_fails_after_a_restart(tmp_path: Path) -> None:
    tools = builtin_tools("echo", "exit")
    server, record = scripted_stdio_server(tmp_path, "up", tools=tools, list_changed=True)
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__echo")
        error = {"code": -32000, "message": "the database is starting", "on": ["tools/list"], "calls": 2}
        rescript(server, record, tools=[*tools, tool("more")], list_changed=True, faults={"error": error})
        await gateway.call("up__exit")
        for number in range(3):
            assert (await gateway.call("up__echo", {"n": number}))["structuredContent"] == {"n": number}
        assert (
            gateway.logged().count("listing failed: the database is starting; the last complete listing stays in use")
            == 1
        )
        assert "up__more" in await gateway.until_listed("up__echo", "up__more")
        row = await gateway.server("up")
        assert (row["state"], row["epoch"], row["lastError"], row["tools"]) == ("ready", 2, None, 3)
