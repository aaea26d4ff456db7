"""Whatever its neighbours do, a healthy upstream is listed at once and answers."""

from __future__ import annotations

import statistics
from pathlib import Path

import anyio
from faults.observing import MIB, rss_of, until_server
from gateways import running_gateway
from upstreams.running import builtin_tools, scripted_stdio_server

CALLS = 1000


async def test_among_four_broken_upstreams_the_fifth_answers_as_if_alone(tmp_path: Path) -> None:
    dead, _ = scripted_stdio_server(tmp_path, "dead", faults={"exit_at_start": 1})
    mute, _ = scripted_stdio_server(tmp_path, "mute", faults={"silent": True})
    loud, _ = scripted_stdio_server(tmp_path, "loud", faults={"garbage_at_start": True, "raw": {"on": ["tools/list"]}})
    brief, brief_record = scripted_stdio_server(tmp_path, "brief", tools=builtin_tools("echo"))
    # `timeout` ends it after a second, whatever it does.
    restless = {"command": "timeout", "args": ["1", brief["command"], *brief["args"]]}
    good, record = scripted_stdio_server(tmp_path, "good", tools=builtin_tools("echo"))
    servers = {"dead": dead, "mute": {**mute, "connectTimeout": 3}, "loud": loud, "restless": restless, "good": good}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("good__echo", within_s=2)
        took_s: list[float] = []
        memory: list[int] = []
        # As long as it takes its neighbour to restart, and no fewer than so many.
        while len(took_s) < CALLS or len(brief_record.starts()) < 3:
            began_s = anyio.current_time()
            result = await gateway.call("good__echo", {"n": len(took_s)})
            took_s.append(anyio.current_time() - began_s)
            assert result["structuredContent"] == {"n": len(took_s) - 1}
            if len(took_s) % 100 == 0:
                memory.append(rss_of(gateway.process.pid))
        assert len(record.calls()) == len(took_s)
        assert statistics.median(took_s) < 0.1
        assert max(took_s) < 1
        assert max(memory) - memory[1] < 8 * MIB
        assert len(record.starts()) == 1
        for name in ("dead", "mute", "loud"):
            row = await gateway.server(name)
            assert row["state"] in ("connecting", "waiting"), row
        await until_server(gateway, "mute", lambda row: "handshake" in (row["lastError"] or ""), within_s=20)
