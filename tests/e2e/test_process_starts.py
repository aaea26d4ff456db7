"""Slow, hanging and failing process starts: timeouts, progress messages and limits."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.processes import descendants_of, still_running
from support.gateways import RunningGateway, brief_pause, running_gateway, text_of
from support.pace import limit_now
from support.upstreams.gated import TIDY, Upstream, entries

from gateway.upstream.transport.process_start import cores


async def until_server(gateway: RunningGateway, name: str, *words: str, within_s: float = 20) -> dict[str, Any]:
    """Wait until the row of a server has these words in its reason."""
    row: dict[str, Any] = {}
    with anyio.move_on_after(within_s):
        while True:
            row = await gateway.server(name)
            if all(word in (row["lastError"] or "") for word in words):
                return row
            await brief_pause()
    raise AssertionError(f"{words} never was the reason: {row}")


@pytest.mark.heavy
async def test_slow_process_is_started_once_and_reports_its_progress(tmp_path: Path) -> None:
    waits = "wait_for('go')"
    says = "print('fetching 12 packages', file=sys.stderr, flush=True); "
    slow = Upstream(tmp_path, "slow", says + waits, connectTimeout=1)
    noisy = Upstream(
        tmp_path, "noisy", "while not (folder / 'go').exists(): print('loading', time.time(), file=sys.stderr)"
    )
    banner = Upstream(tmp_path, "banner", f"print('Starting...', flush=True); {waits}")
    asks = Upstream(tmp_path, "asks", f"print('Ok to proceed? (y) ', end='', flush=True); {waits}; print()")
    lists_late = Upstream(tmp_path, "lists-late", listing=waits, connectTimeout=1)
    upstreams = [slow, noisy, banner, asks, lists_late]
    async with running_gateway(tmp_path, entries(*upstreams)) as gateway:
        # Longer than `connectTimeout`, and than what is taken for a usual start.
        row = await until_server(gateway, "slow", "starting (", "fetching 12 packages")
        assert re.fullmatch(r"starting \(\d+ s\): fetching 12 packages", row["lastError"])
        assert row["state"] == "starting"
        assert row["startingSeconds"] >= 3
        assert row["lastLine"] == "fetching 12 packages"
        assert (await until_server(gateway, "asks", "Ok to proceed? (y)"))["state"] == "starting"
        assert (await until_server(gateway, "noisy", "starting (", "loading"))["state"] == "starting"
        assert (await until_server(gateway, "lists-late", "starting ("))["state"] == "starting"
        for one in upstreams:
            one.go_on()
        await gateway.until_listed(*(f"{one.name}__t" for one in upstreams))
        for one in upstreams:
            # One process, and one handshake.
            assert one.notes() == ["started", "asked"]
            assert text_of(await gateway.call(f"{one.name}__t")) == "done"
            row = await gateway.server(one.name)
            assert (row["state"], row["lastError"], row["startingSeconds"]) == ("ready", None, None)


@pytest.mark.heavy
async def test_dead_server_is_reported_with_the_explaining_line(tmp_path: Path) -> None:
    missing = tmp_path / "no-such-folder"
    plain = tmp_path / "plain.sh"
    plain.write_text("#!/bin/sh\n")
    odd = tmp_path / "odd.sh"
    odd.write_text("#!/no/such/interpreter\n")
    odd.chmod(0o755)
    cases: dict[str, tuple[dict[str, Any], str]] = {}

    def case(name: str, code: str, reason: str, **entry: Any) -> None:
        cases[name] = ({"command": sys.executable, "args": ["-c", code], **entry}, reason)

    case("zero", "pass", "the process exited with code 0")
    case("one", "import sys; sys.exit('set API_KEY')", "the process exited with code 1: set API_KEY")
    case(
        "usage",
        "import sys; print('Usage: server DIR'); sys.exit(2)",
        "the process exited with code 2; its standard output is not JSON-RPC: Usage: server DIR",
    )
    case(
        "both",
        "import sys; print('Starting...'); sys.exit('npm notice new version\\nerror: no key\\nnpm notice run it')",
        "the process exited with code 1: error: no key; its standard output is not JSON-RPC: Starting...",
    )
    case(
        "killed",
        "import os; print('half', end='', flush=True); os.kill(os.getpid(), 9)",
        "the process was ended by SIGKILL; its standard output is not JSON-RPC: half",
    )
    case("closes", "import os, sys, time; os.close(1); time.sleep(60)", "the process closed its output")
    folders = {
        missing: "does not exist",
        plain / "inside": "does not exist",
        plain: "is not a directory",
        tmp_path / ("n" * 300): "cannot be read: File name too long",
    }
    for number, (folder, defect) in enumerate(folders.items()):
        reason = f"cannot start {sys.executable}: the working directory {folder} {defect} (cwd)"
        case(f"folder{number}", "pass", reason, cwd=str(folder))
    cases["shell"] = (
        {"command": "sh", "args": ["-c", "no-such-server-here"]},
        "the process exited with code 127: ",
    )
    cases["none"] = ({"command": "no-such-program"}, "command not found: no-such-program")
    cases["plain"] = ({"command": str(plain)}, f"command not found: {plain} (the file exists, but is not executable)")
    cases["odd"] = (
        {"command": str(odd)},
        f"cannot start {odd}: {odd} names an interpreter in its first line that does not exist",
    )
    async with running_gateway(tmp_path, {name: entry for name, (entry, _) in cases.items()}) as gateway:
        for name, (_, reason) in cases.items():
            row = await until_server(gateway, name, reason)
            assert row["lastError"] == reason or (name == "shell" and "not found" in row["lastError"]), row


@pytest.mark.heavy
async def test_output_of_a_failing_server_is_logged_once_and_then_counted(tmp_path: Path) -> None:
    code = "import os, sys; print(f'pid {os.getpid()}: no key', file=sys.stderr); sys.exit(3)"
    async with running_gateway(tmp_path, {"u": {"command": sys.executable, "args": ["-c", code]}}) as gateway:
        with anyio.fail_after(30):
            while "not connected: again (4 times)" not in gateway.logged():
                await brief_pause()
        logged = gateway.logged()
    assert logged.count("stderr: pid") == 1
    assert logged.count("not connected: the process exited with code 3: pid") == 1
    assert logged.count("not connected: again (2 times)") == 1


@pytest.mark.heavy
async def test_process_over_its_start_timeout_gets_time_to_clean_up(tmp_path: Path) -> None:
    # Longer than a child is given that is ended with its gateway.
    never = Upstream(tmp_path, "never", TIDY.format(seconds=3) + "wait_for('never')", startTimeout=1)
    async with running_gateway(tmp_path, entries(never)) as gateway:
        row = await until_server(gateway, "never", "no answer to the handshake within 1 s")
        assert row["state"] in ("waiting", "starting")
        assert never.notes()[:3] == ["started", "asked to end", "tidied up"]


@pytest.mark.heavy
async def test_server_removed_while_starting_gets_time_to_clean_up(tmp_path: Path) -> None:
    starting = Upstream(tmp_path, "starting", TIDY.format(seconds=3) + "wait_for('never')")
    other = Upstream(tmp_path, "other")
    async with running_gateway(tmp_path, entries(starting, other)) as gateway:
        await gateway.until_listed("other__t")
        await starting.until_noted("started")
        # A longer timeout does not cause a restart.
        patient = {**starting.entry, "connectTimeout": 60, "startTimeout": 600}
        gateway.config.write_text(json.dumps({"mcpServers": {"starting": patient, **entries(other)}}))
        with anyio.fail_after(25):
            while "reloaded" not in gateway.logged():
                await brief_pause()
        gateway.config.write_text(json.dumps({"mcpServers": entries(other)}))
        await starting.until_noted("tidied up")
        assert starting.notes() == ["started", "asked to end", "tidied up"]
        assert other.notes() == ["started", "asked"]


@pytest.mark.heavy
async def test_shutdown_does_not_wait_for_starting_processes(tmp_path: Path) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); wait_for('never')"
    upstreams = [Upstream(tmp_path, f"deaf{number}", deaf) for number in range(cores() + 4)]
    async with running_gateway(tmp_path, entries(*upstreams)) as gateway:
        with anyio.fail_after(20):
            while sum(bool(one.notes()) for one in upstreams) <= cores():
                await brief_pause()
        children = descendants_of(gateway.process.pid)
        began_s = time.monotonic()
        assert await gateway.stop() == 0
        assert time.monotonic() - began_s < await limit_now(6)
    assert still_running(children) == []


async def test_concurrent_starts_are_limited_to_cores_plus_one(tmp_path: Path) -> None:
    upstreams = [Upstream(tmp_path, f"u{number}", "wait_for('go')") for number in range(cores() + 6)]
    async with running_gateway(tmp_path, entries(*upstreams)) as gateway:

        async def started() -> int:
            return sum(bool(one.notes()) for one in upstreams)

        with anyio.fail_after(9):  # the places are given back after 10 s
            while await started() <= cores():
                await brief_pause()
            rows = [await gateway.server(one.name) for one in upstreams]
        assert await started() == cores() + 1
        assert all(row["state"] == "starting" for row in rows)
        assert sum(row["startingSeconds"] == 0 for row in rows) >= 5
        for one in upstreams:
            one.go_on()
        await gateway.until_listed(*(f"{one.name}__t" for one in upstreams), within_s=30)


@pytest.mark.heavy
async def test_hanging_starts_do_not_block_others(tmp_path: Path) -> None:
    hanging = [Upstream(tmp_path, f"hangs{number}", "wait_for('never')") for number in range(cores() + 1)]
    good = Upstream(tmp_path, "good")
    async with running_gateway(tmp_path, entries(*hanging, good)) as gateway:
        await gateway.until_listed("good__t", within_s=30)


@pytest.mark.heavy
async def test_call_waits_a_limited_time_for_a_start_and_reports_its_progress(tmp_path: Path) -> None:
    waits = (
        "print('loading a model', file=sys.stderr, flush=True)\n"
        "if (folder / 'notes').read_text().count('started') > 1: wait_for('go')"
    )
    slow = Upstream(tmp_path, "slow", waits, callTimeout=2)
    async with running_gateway(tmp_path, entries(slow)) as gateway:
        await gateway.until_listed("slow__t")
        with anyio.fail_after(25):
            while not (gateway.state_dir / "snapshot.json").exists():
                await brief_pause()
        assert await gateway.stop() == 0
    async with running_gateway(tmp_path, entries(slow)) as gateway:
        assert "slow__t" in await gateway.tools()
        result = await gateway.call("slow__t")
        assert result["isError"]
        assert re.search(r"server 'slow' is still starting \(\d+ s\): loading a model\. Nothing", text_of(result))
        unknown = await gateway.rpc("tools/call", {"name": "slow__other", "arguments": {}})
        assert "slow" in json.dumps(unknown)
        slow.go_on()
        with anyio.fail_after(20):
            while (await gateway.call("slow__t")).get("isError"):
                await brief_pause()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_cores_are_those_available_to_the_process() -> None:
    assert 1 <= cores() <= len(os.sched_getaffinity(0))
