"""Whatever its neighbours do, a healthy upstream is listed at once and answers as if alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import MIB, calling, rss_of, until_server
from support.gateways import COMMANDS, RunningGateway, running_gateway
from support.upstreams.running import builtin_tools, scripted_http_server, scripted_stdio_server, tool

pytestmark = pytest.mark.heavy

CALLS = 300
TRIES = 5
# What a neighbour may cost; a machine that does other things too gets another try.
ABOVE_ALONE_S = 0.1
DEEP = '{"jsonrpc":"2.0","id":@id,"result":{"content":[],"x":' + '{"a":' * 300_000 + "1" + "}" * 300_000 + "}}"


@dataclass(slots=True)
class Beside:
    """How long the calls of a healthy upstream took."""

    took_s: list[float] = field(default_factory=list)

    def in_time(self, alone: Beside) -> bool:
        """Tell whether the slowest of these is within what a neighbour may cost."""
        return max(self.took_s) <= max(alone.took_s) + ABOVE_ALONE_S

    def as_quick(self, alone: Beside) -> bool:
        """Tell whether these are mostly as quick as those of the upstream alone, too."""
        # Not where a neighbour keeps the machine's processors busy: those are shared.
        return self.in_time(alone) and statistics.median(self.took_s) <= 2 * statistics.median(alone.took_s) + 0.001

    def __str__(self) -> str:
        median_s, most_s = statistics.median(self.took_s), max(self.took_s)
        return f"median {median_s * 1e3:.1f} ms, slowest {most_s * 1e3:.0f} ms of {len(self.took_s)}"


async def calls_until(gateway: RunningGateway, over: Callable[[], bool], calls: int = CALLS) -> Beside:
    """Call the healthy upstream until something is over, and no fewer times than that."""
    beside = Beside()
    while len(beside.took_s) < calls or not over():
        began_s = anyio.current_time()
        result = await gateway.call("good__echo", {"n": len(beside.took_s)})
        beside.took_s.append(anyio.current_time() - began_s)
        assert result["structuredContent"] == {"n": len(beside.took_s) - 1}
    return beside


async def test_among_four_broken_upstreams_the_fifth_answers_as_if_alone(tmp_path: Path) -> None:
    dead, _ = scripted_stdio_server(tmp_path, "dead", faults={"exit_at_start": 1})
    mute, _ = scripted_stdio_server(tmp_path, "mute", faults={"silent": True})
    loud, _ = scripted_stdio_server(tmp_path, "loud", faults={"garbage_at_start": True, "raw": {"on": ["tools/list"]}})
    brief, brief_record = scripted_stdio_server(tmp_path, "brief", tools=builtin_tools("echo"))
    # `timeout` ends it after a second, whatever it does.
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
        seen: list[Beside] = []
        for _ in range(TRIES):
            # As long as it takes its neighbour to restart.
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


async def test_no_broken_upstream_delays_a_healthy_one_by_a_tenth_of_a_second(
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

            async def beside(name: str) -> Beside:
                answers: list[dict[str, Any]] = []
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(calling, gateway, name, given.get(name.partition("__")[2], {}), answers)
                    return await calls_until(gateway, lambda: bool(answers), 50)

            for name in (*(f"bad__{one}" for one in names), *(f"web__{one}" for one in over_http)):
                seen: list[Beside] = []
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
                assert (await gateway.server("crowded"))["tools"] == len(many)
            assert seen[-1].in_time(alone), [str(alone), *map(str, seen)]
