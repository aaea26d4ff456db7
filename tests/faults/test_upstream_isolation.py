"""A healthy upstream is listed and answers normally beside broken ones."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import MIB, append_result, rss_of, until_server
from support.gateways import COMMANDS, RunningGateway, brief_pause, running_gateway
from support.upstreams.running import builtin_tools, scripted_http_server, scripted_stdio_server, tool

pytestmark = pytest.mark.heavy

CALLS = 300
TRIES = 5
# The delay that a broken neighbour may cause; a test on a busy machine is repeated.
ABOVE_ALONE_S = 0.1
DEEP = '{"jsonrpc":"2.0","id":@id,"result":{"content":[],"x":' + '{"a":' * 300_000 + "1" + "}" * 300_000 + "}}"


@dataclass(slots=True)
class CallTimes:
    """The durations of calls of a healthy upstream."""

    took_s: list[float] = field(default_factory=list)

    def in_time(self, alone: CallTimes) -> bool:
        """Return whether the slowest call exceeds the slowest one without neighbours by no more than the bound."""
        return max(self.took_s) <= max(alone.took_s) + ABOVE_ALONE_S

    def as_quick(self, alone: CallTimes) -> bool:
        """Return whether the median is about that without neighbours, too."""
        # Not used where a neighbour keeps the processors busy, which all of them share.
        return self.in_time(alone) and statistics.median(self.took_s) <= 2 * statistics.median(alone.took_s) + 0.001

    def __str__(self) -> str:
        median_s, most_s = statistics.median(self.took_s), max(self.took_s)
        return f"median {median_s * 1e3:.1f} ms, slowest {most_s * 1e3:.0f} ms of {len(self.took_s)}"


async def calls_until(gateway: RunningGateway, over: Callable[[], bool], calls: int = CALLS) -> CallTimes:
    """Call the healthy upstream at least this many times, and until `over` returns true."""
    beside = CallTimes()
    while len(beside.took_s) < calls or not over():
        began_s = anyio.current_time()
        result = await gateway.call("good__echo", {"n": len(beside.took_s)})
        beside.took_s.append(anyio.current_time() - began_s)
        assert result["structuredContent"] == {"n": len(beside.took_s) - 1}
    return beside


async def test_fifth_upstream_answers_normally_beside_four_broken_ones(tmp_path: Path) -> None:
    dead, _ = scripted_stdio_server(tmp_path, "dead", faults={"exit_at_start": 1})
    mute, _ = scripted_stdio_server(tmp_path, "mute", faults={"silent": True})
    loud, _ = scripted_stdio_server(tmp_path, "loud", faults={"garbage_at_start": True, "raw": {"on": ["tools/list"]}})
    brief, brief_record = scripted_stdio_server(tmp_path, "brief", tools=builtin_tools("echo"))
    # `timeout` ends the process after a second.
    restless = {"command": "timeout", "args": ["1", brief["command"], *brief["args"]]}
    good, record = scripted_stdio_server(tmp_path, "good", tools=builtin_tools("echo"))
    servers = {"dead": dead, "mute": {**mute, "startTimeout": 3}, "loud": loud, "restless": restless, "good": good}
    async with running_gateway(tmp_path, {"good": good}) as gateway:
        await gateway.until_listed("good__echo")
        alone = await calls_until(gateway, lambda: True)
        assert await gateway.stop() == 0
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("good__echo", within_s=2)
        memory, answered = rss_of(gateway.process.pid), len(record.calls())
        seen: list[CallTimes] = []
        for _ in range(TRIES):
            # Continue until the neighbour has restarted.
            restarts = len(brief_record.starts()) + 1
            seen.append(await calls_until(gateway, lambda wanted=restarts: len(brief_record.starts()) >= wanted))
            if seen[-1].as_quick(alone):
                break
        assert seen[-1].as_quick(alone), [str(alone), *map(str, seen)]
        assert len(record.calls()) - answered == sum(len(one.took_s) for one in seen)
        assert rss_of(gateway.process.pid) - memory < 12 * MIB
        assert len(record.starts()) == 2
        for name in ("dead", "mute", "loud"):
            row = await gateway.server(name)
            assert row["state"] in ("starting", "waiting"), row
        await until_server(gateway, "mute", lambda row: "handshake" in (row["lastError"] or ""), within_s=20)


async def test_broken_upstream_delays_a_healthy_one_by_less_than_100_ms(
    tmp_path: Path,
) -> None:
    names = ("notification_storm", "endless_line", "big", "garbage", "wrong_ids", "invalid_utf8", "exit", "deep")
    over_http = ("half_body", "reset", "drop_sse", "gzip_bomb", "big", "not_json", "deep")
    deep = {"kind": "raw", "with": {"line": DEEP}}
    many = [tool(f"tool{number}", "a", "b") for number in range(2_000)]
    given: dict[str, dict[str, Any]] = {"big": {"bytes": 20_000_000}, "gzip_bomb": {"bytes": 2**27}}
    bad, _ = scripted_stdio_server(
        tmp_path, "bad", tools=[*builtin_tools(*names[:-1]), tool("deep")], behaviours={"deep": deep}, list_changed=True
    )
    good, _ = scripted_stdio_server(tmp_path, "good", tools=builtin_tools("echo"))
    script = {"tools": [*builtin_tools(*over_http[:-1]), tool("deep")], "behaviours": {"deep": deep}}
    crowded, _ = scripted_stdio_server(tmp_path, "crowded", tools=many)
    async with scripted_http_server(tmp_path, "web", **script) as web:
        servers = {"bad": {**bad, "callTimeout": 2}, "web": {**web.config, "callTimeout": 2}, "good": good}
        async with running_gateway(tmp_path, servers, gateway=COMMANDS) as gateway:
            await gateway.until_listed("bad__exit", "web__reset", "good__echo")
            alone = await calls_until(gateway, lambda: True)

            async def beside(name: str) -> CallTimes:
                answers: list[dict[str, Any]] = []
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(append_result, gateway, name, given.get(name.partition("__")[2], {}), answers)
                    return await calls_until(gateway, lambda: bool(answers), 50)

            for name in (*(f"bad__{one}" for one in names), *(f"web__{one}" for one in over_http)):
                seen: list[CallTimes] = []
                while not seen or (len(seen) < TRIES and not seen[-1].in_time(alone)):
                    seen.append(await beside(name))
                assert seen[-1].in_time(alone), [name, str(alone), *map(str, seen)]

            # So does one that joins with a long list.
            seen = []
            while not seen or (len(seen) < TRIES and not seen[-1].in_time(alone)):
                await gateway.admin("servers/crowded", "DELETE")
                assert (await gateway.admin("servers", "POST", {"name": "crowded", **crowded})).status_code == 201
                began_s = anyio.current_time()
                seen.append(await calls_until(gateway, lambda began_s=began_s: anyio.current_time() - began_s > 1.5))
                with anyio.fail_after(60):
                    while (await gateway.server("crowded"))["tools"] != len(many):
                        await brief_pause()
            assert seen[-1].in_time(alone), [str(alone), *map(str, seen)]
