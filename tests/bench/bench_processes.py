"""Measure local servers that start on demand in a sandbox: time of the first list, processes and memory.

    python tests/bench/bench_processes.py [--servers 30] [--idle 100] [--sandbox default|none] [--starts 0]

Published servers from npm and PyPI are started once with `npx` and `uvx`, to be listed. Then a second gateway serves
them from its snapshot: measured are the first list, and the processes below the gateway with their memory after the
start, after a concurrent call of one tool of each server, and after the idle time. At the end, a table shows for each
server what its sandbox has denied it, and its memory.

With `--starts`, nothing of this is done. Instead the same program is started so often directly, and so often in the
default sandbox, in turn: measured are finding its rules, and the time from its start to its end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import anyio

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from corpus.samples import sample
from differential.packages import SERVERS
from e2e.processes import descendants_of
from e2e.test_published_starts import entry
from support.gateways import TOKEN, RunningGateway, running_gateway
from support.upstreams.running import children_of

from gateway.config.operation_config import SandboxConfig
from gateway.upstream.sandbox import prepare_sandbox

_LIST_WITHIN_S = 900
_CALLS_AT_ONCE = 20
_PATIENCE_S = 120
_LOOK_S = 0.2
# Packages whose program has another name.
_PROGRAMS = {
    "aws-documentation": "awslabs.aws-documentation-mcp-server",
    "aws-location": "awslabs.aws-location-mcp-server",
    "memcached": "awslabs.memcached-mcp-server",
}


def proportional_mib(pids: Iterable[int]) -> float:
    """Return the memory of processes in MiB, with shared pages divided among their users (PSS)."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def report(what: str, gateway: RunningGateway) -> None:
    pids = descendants_of(gateway.process.pid)
    print(f"{what:<22} {len(pids):>4} processes {proportional_mib(pids):>8.1f} MiB", flush=True)


def mib_of_each(gateway: RunningGateway, packages: Mapping[str, str]) -> dict[str, float]:
    """Return the memory of the processes of each server, by alias; a process belongs to the package that it names."""
    found: dict[str, float] = {}
    for child in children_of(gateway.process.pid):
        pids = [child, *descendants_of(child)]
        lines = " ".join(command_line(pid) for pid in pids)
        for alias, package in packages.items():
            if f" {package} " in lines:
                found[alias] = found.get(alias, 0.0) + proportional_mib(pids)
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return ""


async def ask(gateway: RunningGateway, path: str) -> Any:
    """Ask the admin API, which answers late while thirty programs start."""
    head = {"authorization": f"Bearer {TOKEN}"}
    response = await gateway.client.get(f"{gateway.origin}/admin/{path}", headers=head, timeout=_PATIENCE_S)
    return response.json()


async def list_once(folder: Path, servers: dict[str, Any], settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Start each server once, and return the row of each."""
    began_s = time.monotonic()
    async with running_gateway(folder, servers, gateway=settings) as gateway:
        rows: list[dict[str, Any]] = []
        with anyio.move_on_after(_LIST_WITHIN_S):
            while True:
                rows = (await ask(gateway, "servers"))["servers"]
                if all(row["state"] == "idle" or (row["lastError"] and row["state"] == "waiting") for row in rows):
                    break
                await anyio.sleep(_LOOK_S)
        listed = sum(row["tools"] > 0 for row in rows)
        print(f"{listed} of {len(servers)} servers listed in {time.monotonic() - began_s:.0f} s", flush=True)
    return {row["name"]: row for row in rows}


async def measure(
    folder: Path, servers: dict[str, Any], settings: dict[str, Any], idle_s: float, packages: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    """Call each server, and return the memory and the row of each."""
    async with running_gateway(folder, servers, gateway=settings) as gateway:
        began_s = time.monotonic()
        tools = await gateway.tools()
        print(f"first list: {len(tools)} tools in {time.monotonic() - began_s:.3f} s", flush=True)
        report("after the start", gateway)
        first: dict[str, tuple[str, Any]] = {}
        for row in (await ask(gateway, "wrappers"))["wrappers"]:
            # Arguments that fit, because other calls are refused before they need the process.
            schema = tools.get(row["name"], {}).get("inputSchema")
            if schema is not None:
                first.setdefault(row["server"], (row["name"], sample(schema, schema, False)))
        # 20 concurrent calls of one server start one process.
        alias, call_arguments = next(iter(first.items()))
        async with anyio.create_task_group() as group:
            for _ in range(_CALLS_AT_ONCE):
                group.start_soon(call, gateway, *call_arguments)
        print(
            f"{_CALLS_AT_ONCE} calls of {alias}: epoch {(await ask(gateway, f'servers/{alias}'))['epoch']}", flush=True
        )
        began_s = time.monotonic()
        async with anyio.create_task_group() as group:
            for call_arguments in first.values():
                group.start_soon(call, gateway, *call_arguments)
        print(f"a call of each: {time.monotonic() - began_s:.1f} s", flush=True)
        report("after a call of each", gateway)
        memory = mib_of_each(gateway, packages)
        rows = {row["name"]: row for row in (await ask(gateway, "servers"))["servers"]}
        with anyio.move_on_after(idle_s + 60):
            while any(row["state"] != "idle" for row in (await ask(gateway, "servers"))["servers"]):
                await anyio.sleep(_LOOK_S)
        report("after the idle time", gateway)
    return memory, rows


async def call(gateway: RunningGateway, name: str, arguments: Any) -> None:
    """Call a tool; an error of the server is as good as a result."""
    await gateway.rpc("tools/call", {"name": name, "arguments": arguments}, timeout_s=300)


async def run(count: int, idle_s: float, sandbox: str) -> None:
    if shutil.which("npx") is None:
        sys.exit("there is no npx")
    with tempfile.TemporaryDirectory() as path:
        folder, scratch = Path(path), Path(path) / "scratch"
        scratch.mkdir()
        simple = [each for each in SERVERS if not each.files]
        chosen = [each for each in simple if each.registry == "npm"][: count * 2 // 3]
        # `uvx` installs the newest SDK where a package does not say which one it needs.
        chosen += [each for each in simple if each.registry == "pypi" and not each.sdk1][: count - len(chosen)]
        servers = {each.alias: entry(each, scratch, folder / "shared") for each in chosen}
        for alias, program in _PROGRAMS.items():
            if alias in servers:
                servers[alias]["args"][2] = program
        processes: dict[str, Any] = {"start": "onDemand", "idleTimeout": idle_s}
        processes |= {"sandbox": True} if sandbox == "default" else {}
        settings = {"processes": processes, "profiles": {"default": {"disclosure": "eager"}}}
        packages = {each.alias: each.package for each in chosen}
        first = await list_once(folder, servers, settings)
        listed = {alias: servers[alias] for alias, row in first.items() if row["tools"]}
        memory, called = await measure(folder, listed, settings, idle_s, packages)
        print("| server | tools | sandbox | MiB | denied, or why it is not listed |\n|---|---|---|---|---|")
        for alias, row in first.items():
            last = called.get(alias, row)
            denied = "; ".join(dict.fromkeys([*row["denied"], *last["denied"]])).replace(str(folder), "")
            why = denied or ("" if row["tools"] else str(row["lastError"])[:300])
            mib = f"{memory[alias]:.0f}" if alias in memory else ""
            print(f"| {packages[alias]} | {row['tools']} | {last['sandbox']} | {mib} | {why} |", flush=True)


async def measure_starts(count: int) -> None:
    """Start a small program directly and in the default sandbox, in turn, and print the medians."""
    program, environment = "/bin/true", dict(os.environ)
    times_s: dict[str, list[float]] = {"finding the rules": [], "direct": [], "in the sandbox": []}

    async def start(name: str, line: list[str]) -> None:
        began_s = time.perf_counter()
        await anyio.run_process(line, env=environment)
        times_s[name].append(time.perf_counter() - began_s)

    for _ in range(count):
        began_s = time.perf_counter()
        sandbox = await prepare_sandbox(
            SandboxConfig(), [program], environment=environment, cwd=None, server="bench", denials={}
        )
        times_s["finding the rules"].append(time.perf_counter() - began_s)
        await start("direct", [program])
        await start("in the sandbox", [*sandbox.arguments, program])
        sandbox.remove_folder()
    for name, values in times_s.items():
        print(f"{name:<18} {statistics.median(values) * 1000:6.1f} ms, at most {max(values) * 1000:.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=30)
    parser.add_argument("--idle", type=float, default=100.0)
    parser.add_argument("--sandbox", choices=("default", "none"), default="default")
    parser.add_argument("--starts", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.starts:
        sys.exit(anyio.run(measure_starts, arguments.starts))
    anyio.run(run, arguments.servers, arguments.idle, arguments.sandbox)
