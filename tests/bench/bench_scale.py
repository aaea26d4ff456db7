"""Measure many tools, large answers and long runs.

    python tests/bench/bench_scale.py [lists] [tools] [large] [start] [memory] [definitions] [soak]

Each part is one interleaved run; without words all but `definitions`, which installs servers, and `soak` are run. Read
the ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import anyio
from bench.contenders import Contender, direct, load, rss_mib, typegate, upstream_command
from support.gateways import running_gateway
from support.upstreams.running import builtin_tools, children_of, scripted_stdio_server

from gateway.http.http_client import HttpClient

ROUNDS = 5
# Clients do not accept a list of ten thousand tools by default.
_MAX_LIST_BYTES = 1 << 26
FirstList = Callable[[dict[str, Any], str], tuple[float, int]]


async def cpu_us(client: HttpClient, one: Contender, calls: int, width: int, method: str = "tools/call") -> float:
    """The processor time that one request costs its process."""
    used_s = one.cpu_s()
    await load(client, one, calls, width, method)
    return (one.cpu_s() - used_s) / calls * 1e6


async def lists() -> None:
    """`tools/list` against sending the same bytes from memory."""
    client = HttpClient()
    print("tools/list again and again      upstream from memory, CPU µs     typegate, CPU µs     ratio")
    for tools in (100, 1000):
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(direct(tools))
            ours = await stack.enter_async_context(typegate("typegate", {"url": first.url}))
            await ours.begin(client)
            pairs = [[await cpu_us(client, one, 400, 4, "tools/list") for one in (first, ours)] for _ in range(ROUNDS)]
            memory, gateway = (statistics.median(column) for column in zip(*pairs, strict=True))
            print(f"{tools:6} tools {memory:40.0f} {gateway:20.0f} {gateway / memory:9.2f}", flush=True)
    client.close()


async def tools() -> None:
    """The cost of a call, and memory, by the number of tools of 1.7 KB."""
    client = HttpClient()
    numbers = (10, 1000, 10_000)
    async with AsyncExitStack() as stack:
        everybody: list[Contender] = []
        print("tools     listed after s     memory MiB     CPU µs a call")
        took: list[float] = []
        for number in numbers:
            first = await stack.enter_async_context(direct(number, words=6))
            began_s = time.perf_counter()
            one = await stack.enter_async_context(typegate(str(number), {"url": first.url, "connectTimeout": 60}))
            took.append(time.perf_counter() - began_s)
            await one.begin(client)
            everybody.append(one)
        costs = [[await cpu_us(client, one, 2000, 16) for one in everybody] for _ in range(ROUNDS)]
        await anyio.sleep(4)  # free memory is given back some seconds after the last change, which nothing tells of
        memory = [rss_mib(one.pids[0]) for one in everybody]
        for number, listed_s, held, column in zip(numbers, took, memory, zip(*costs, strict=True), strict=True):
            print(f"{number:6} {listed_s:14.2f} {held:15.0f} {statistics.median(column):15.0f}")
        each_kb = (memory[2] - memory[1]) * 1024 / (numbers[2] - numbers[1])
        ratio = statistics.median(row[2] / row[0] for row in costs)
        print(
            f"a call at 10,000 tools ÷ at 10: {ratio:.2f}; memory for each further tool: {each_kb:.1f} KiB", flush=True
        )
    client.close()


async def large() -> None:
    """Answers of 64 KB and 1 MB: CPU against what they cost their own server."""
    client = HttpClient()
    print("bytes      upstream, CPU µs     typegate, CPU µs     ratio     → stdio, CPU µs")
    for size, calls in ((500, 2000), (65_536, 1000), (1_000_000, 200)):
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(direct(10, size))
            command, *arguments = upstream_command(10, size, stdio=True)
            ours = await stack.enter_async_context(typegate("http", {"url": first.url}))
            lines = await stack.enter_async_context(typegate("stdio", {"command": command, "args": arguments}))
            for one in (ours, lines):
                await one.begin(client)
                await load(client, one, 50, 4)
            costs = [[await cpu_us(client, one, calls, 8) for one in (first, ours, lines)] for _ in range(ROUNDS)]
            theirs, http, stdio = (statistics.median(column) for column in zip(*costs, strict=True))
            print(f"{size:9} {theirs:17.0f} {http:20.0f} {http / theirs:9.2f} {stdio:19.0f}", flush=True)
    client.close()


async def start() -> None:
    """Process start to the first list: from a snapshot, and from four upstreams against the slowest alone."""
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    lines = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
    ]

    def first_list(servers: dict[str, Any], state: str) -> tuple[float, int]:
        """Return the seconds until the list has arrived, and the number of its tools."""
        config = Path(state) / "config.json"
        config.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
        command = [sys.executable, "-m", "gateway", "stdio", "--config", str(config), "--state-dir", state]
        began_s = time.perf_counter()
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        ) as running:
            assert running.stdin is not None
            assert running.stdout is not None
            running.stdin.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
            running.stdin.flush()
            for raw in running.stdout:
                answer = json.loads(raw)
                if answer.get("id") == 1:
                    took_s = time.perf_counter() - began_s
                    running.stdin.close()
                    return took_s, len(answer["result"]["tools"])
        raise RuntimeError("no list came")

    # Servers that run already: else it is the processors that all of them wait for, as they start.
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(direct(250)) for _ in range(4)]
        four = {f"s{number}": {"url": one.url} for number, one in enumerate(running)}
        await first_lists({"s0": four["s0"]}, four, first_list)


async def first_lists(one_server: dict[str, Any], four: dict[str, Any], first_list: FirstList) -> None:
    """Compare a start with one server, with four, and with four that are known."""
    alone_s, all_s, again_s = [], [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as more:
            alone_s.append((await anyio.to_thread.run_sync(first_list, one_server, one))[0])
            took_s, found = await anyio.to_thread.run_sync(first_list, four, more)
            all_s.append(took_s)
            took_s, kept = await anyio.to_thread.run_sync(first_list, four, more)
            again_s.append(took_s)
    alone, together, again = map(statistics.median, (alone_s, all_s, again_s))
    print(
        f"start to first list: one server of 250 tools {alone:.2f} s; four ({found} tools) {together:.2f} s, ", end=""
    )
    print(f"{together / alone:.2f} ×; again, from the snapshot ({kept} tools) {again:.2f} s", flush=True)


async def soak() -> None:
    """Measure memory before, during and after 100,000 calls and 1,000 reconnects."""
    with tempfile.TemporaryDirectory() as tmp:
        await reconnects(Path(tmp))
    client = HttpClient()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(direct(100))
        ours = await stack.enter_async_context(typegate("typegate", {"url": first.url}))
        sessions = Contender("sessions", ours.url, tool=ours.tool, pids=ours.pids, modern=False)
        for one in (ours, sessions):
            await one.begin(client)
        print("calls      memory MiB")
        for number in range(11):
            if number:
                for one in (ours, sessions):
                    await load(client, one, 5_000, 32)
            print(f"{number * 10_000:7} {rss_mib(ours.pids[0]):12.1f}", flush=True)
    client.close()


async def reconnects(tmp: Path) -> None:
    """Kill a child again and again, and wait until it is back."""
    command, *arguments = upstream_command(100, stdio=True)
    async with running_gateway(tmp, {"b": {"command": command, "args": arguments}}) as gateway:
        await gateway.until_listed("b__tool_0001")
        pid = gateway.process.pid
        print("reconnects     memory MiB")
        for number in range(1001):
            if number % 100 == 0:
                print(f"{number:10} {rss_mib(pid):14.1f}", flush=True)
            epoch = (await gateway.server("b"))["epoch"]
            for child in list(children_of(pid)):
                os.kill(child, 9)
            with anyio.fail_after(60):
                while (await gateway.server("b"))["epoch"] == epoch:
                    # Do not wait for the delay of the link, which grows with each kill.
                    await gateway.admin("servers/b/refresh", "POST")
                    await anyio.sleep(0.01)


async def memory() -> None:
    """Measure the memory of a handshake session, an idle connection, and a call in flight with its connection."""
    client = HttpClient()
    with tempfile.TemporaryDirectory() as tmp:
        server, record = scripted_stdio_server(Path(tmp), "b", tools=builtin_tools("echo", "hang"))
        async with running_gateway(Path(tmp), {"b": {**server, "maxConcurrency": 5_000}}) as gateway:
            await gateway.until_listed("b__hang")
            pid = gateway.process.pid
            hung = Contender("hung", gateway.url, tool="b__hang", pids=(pid,))
            idle = Contender("idle", gateway.url, tool="b__echo", pids=(pid,))
            sessions = Contender("session", gateway.url, tool="b__echo", pids=(pid,), modern=False)
            await sessions.begin(client)
            await load(client, idle, 2_000, 16)

            async def grown(what: str, number: int, before_mib: float) -> None:
                each_kb = (rss_mib(pid) - before_mib) * 1024 / number
                print(f"{what}: {each_kb:.1f} KiB each, of {number}", flush=True)

            before = rss_mib(pid)
            for _ in range(5_000):
                await sessions.initialize(client)
            await grown("sessions", 5_000, before)
            before = rss_mib(pid)
            await load(client, idle, 1_000, 1_000)
            await grown("connections that were used once", 1_000, before)
            before = rss_mib(pid)
            async with anyio.create_task_group() as group:
                group.start_soon(load, client, hung, 1_000, 1_000)
                await record.until(lambda seen: len(seen.calls("hang")) == 1_000, within_s=30)
                await grown("calls in flight, each on its connection", 1_000, before)
                group.cancel_scope.cancel()
    client.close()


async def definitions() -> None:
    """Measure the memory of each further tool of real servers with distinct texts: in listings, and in lists."""
    from corpus.further import all_listings  # installs what is not there yet

    real = [tool for _, listed in sorted(all_listings().items()) for tool in listed]
    numbers = (1_000, 10_000)
    client = HttpClient()
    print("tools     listed by its server, MiB     to callers of one era     of both")
    held: list[list[float]] = []
    with tempfile.TemporaryDirectory() as tmp:
        file = Path(tmp) / "definitions.json"
        varied = [
            {**_varied(real[number % len(real)], number), "name": f"tool_{number}"} for number in range(numbers[1])
        ]
        file.write_text(json.dumps(varied), encoding="utf-8")
        for number in numbers:
            async with AsyncExitStack() as stack:
                first = await stack.enter_async_context(direct(number, file=file))
                place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                gateway = await stack.enter_async_context(running_gateway(place, {"b": {"url": first.url}}))
                with anyio.fail_after(60):
                    while (await gateway.server("b"))["tools"] < number * 0.99:  # one or the other may be refused
                        await anyio.sleep(0.2)
                pid = gateway.process.pid
                await anyio.sleep(6)  # free memory is given back some seconds after the last change
                row = [rss_mib(pid)]
                for modern in (True, False):
                    caller = Contender("caller", gateway.url, pids=(pid,), modern=modern)
                    if not modern:
                        await caller.initialize(client)
                    headers, body = caller.request("tools/list")
                    for _ in range(2):
                        async with client.send("POST", caller.url, headers, body) as response:
                            await response.read(_MAX_LIST_BYTES)
                    await anyio.sleep(1)
                    row.append(rss_mib(pid))
                held.append(row)
                print(f"{number:6}" + "".join(f"{mib:20.1f}" for mib in row), flush=True)
    each_kb = [(many - few) * 1024 / (numbers[1] - numbers[0]) for few, many in zip(*held, strict=True)]
    size_kb = sum(len(json.dumps(one, separators=(",", ":"))) for one in varied) / len(varied) / 1024
    print(f"for each further tool of {size_kb:.1f} KiB:" + "".join(f" {kb:.1f} KiB" for kb in each_kb), flush=True)
    client.close()


def _varied(value: Any, number: int, key: str = "") -> Any:
    """The same definition with other texts."""
    if isinstance(value, dict):
        return {name: _varied(one, number, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_varied(one, number) for one in value]
    is_text = key in ("title", "description") and isinstance(value, str)
    return f"{value} (as number {number} of this server does it: {number * 7})" if is_text else value


PARTS: dict[str, Callable[[], Awaitable[None]]] = {
    "lists": lists, "tools": tools, "large": large, "start": start, "memory": memory,
    "definitions": definitions, "soak": soak,
}  # fmt: skip


async def main(names: list[str]) -> None:
    """Run these parts."""
    for name in names or [name for name in PARTS if name not in ("definitions", "soak")]:
        await PARTS[name]()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1:], backend_options={"use_uvloop": True})
