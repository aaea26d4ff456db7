"""Deadlines, sessions and ages do not depend on the wall clock."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import append_result, eventually, until_server
from support.callers import handshake
from support.gateways import COMMANDS, RunningGateway, running_gateway, text_of
from support.pace import limit_now
from support.upstreams.running import builtin_tools, rescript, scripted_http_server, scripted_stdio_server

# Half of all faults are waits: of deadlines, restarts and pauses.
pytestmark = pytest.mark.heavy

YEARS_S = 10 * 365 * 24 * 3600


class Clock:
    """The wall clock of one gateway, and of all that it starts: an offset in a file, read at every look."""

    def __init__(self, tmp_path: Path) -> None:
        if shutil.which("faketime") is None:
            assert os.environ.get("CI") != "true", "faketime is missing"
            pytest.skip("faketime is not installed")
        preload = subprocess.run(
            ["faketime", "-f", "+0", "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        # Not beside the configuration: the gateway watches that folder, so that every look would be an event there.
        self._file = tmp_path / "clock" / "offset"
        self._file.parent.mkdir()
        self.set(0)
        self.environment = {
            "LD_PRELOAD": preload.replace("libfaketime.so", "libfaketimeMT.so"),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Otherwise threads that wait with a deadline wake at once, again and again, while the clock is moved.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def set(self, offset_s: int) -> None:
        """Let the gateway see another time from now on."""
        whole = self._file.with_suffix(".new")
        whole.write_text(f"{offset_s:+d}\n")
        whole.replace(self._file)


async def seen_by(gateway: RunningGateway) -> str:
    """The year in which the gateway writes its log."""
    lines = len(gateway.logged().splitlines())
    # A server that cannot be started is good for a line.
    name = f"gone{lines}"
    assert (await gateway.admin("servers", "POST", {"name": name, "command": "/nowhere/at/all"})).status_code == 201
    await eventually(lambda: any(f"'{name}'" in line for line in gateway.logged().splitlines()))
    [line, *_] = [line for line in gateway.logged().splitlines() if f"'{name}'" in line]
    assert (await gateway.admin(f"servers/{name}", "DELETE")).status_code == 204
    return line[:4]


async def test_wall_clock_jumps_change_no_deadline_session_or_age(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    tools = builtin_tools("sleep", "hang", "exit", "echo")
    stdio, record = scripted_stdio_server(tmp_path, "up", tools=tools)
    async with scripted_http_server(tmp_path, "web", tools=tools) as web:
        servers = {"up": {**stdio, "callTimeout": 2}, "web": {**web.config, "callTimeout": 2}}
        async with running_gateway(tmp_path, servers, environment=clock.environment, gateway=COMMANDS) as gateway:
            await gateway.until_listed("up__echo", "web__echo")
            session = await handshake(gateway)
            years = {int(await seen_by(gateway))}
            for offset_s in (YEARS_S, -YEARS_S):
                slow: list[dict[str, Any]] = []
                hung: list[dict[str, Any]] = []
                began_s = anyio.current_time()
                async with anyio.create_task_group() as tasks:
                    for alias, seen in (("up", record), ("web", web.recording)):
                        before = len(seen.calls())
                        tasks.start_soon(append_result, gateway, f"{alias}__sleep", {"seconds": 1}, slow)
                        tasks.start_soon(append_result, gateway, f"{alias}__hang", {}, hung)
                        await seen.until(lambda one, before=before: len(one.calls()) == before + 2)
                    clock.set(offset_s)
                    years.add(int(await seen_by(gateway)))
                    answer = await session.call("up__echo", {"at": offset_s})
                    assert answer["result"]["structuredContent"] == {"at": offset_s}
                    for alias in ("up", "web"):
                        row = await gateway.server(alias)
                        assert row["state"] == "ready"
                        assert 0 <= row["ageSeconds"] < 60, row
                assert [one.get("structuredContent") for one in slow] == [{"seconds": 1}] * 2
                assert all("within 2 s" in text_of(one) for one in hung)
                assert 2 <= anyio.current_time() - began_s < await limit_now(2.5)
                # Back-off and the breaker work as before.
                began_s = anyio.current_time()
                assert "outcome is unknown" in text_of(await gateway.call("up__exit"))
                assert "isError" not in await gateway.call("up__echo")
                assert anyio.current_time() - began_s < await limit_now(3)
            assert max(years) - min(years) >= 19, years
            assert "Traceback" not in gateway.logged()
            assert await gateway.stop() == 0


async def test_snapshot_from_the_future_is_used_without_a_negative_age(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    server, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    clock.set(YEARS_S)
    async with running_gateway(tmp_path, {"up": server}, environment=clock.environment, gateway=COMMANDS) as gateway:
        await gateway.until_listed("up__echo")
        await eventually((gateway.state_dir / "snapshot.json").exists)
        assert await gateway.stop() == 0
    for offset_s, least_s in ((-YEARS_S, 0), (2 * YEARS_S, YEARS_S - 60)):
        clock.set(offset_s)
        starts = len(record.starts())
        rescript(server, record, faults={"silent": True})
        async with running_gateway(
            tmp_path, {"up": server}, environment=clock.environment, gateway=COMMANDS
        ) as gateway:
            assert "up__echo" in await gateway.tools()
            row = await until_server(gateway, "up", lambda row: row["origin"] == "snapshot")
            assert least_s <= row["ageSeconds"] < 3 * YEARS_S, row
            await record.until(lambda one, before=starts: len(one.starts()) > before)
