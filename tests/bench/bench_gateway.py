"""Measure what the gateway adds to a call, with direct calls interleaved in the same run.

    python tests/bench/bench_gateway.py [--rounds N] [--calls N]

Prints ratios and CPU microseconds. Machines are noisy: compare numbers of one run only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import anyio
import orjson
from support.gateways import running_gateway

from gateway.http.http_client import HttpClient

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ENVELOPE = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
_ARGUMENTS = {"query": "q" * 200, "path": "/srv/data/reports", "limit": 25, "recursive": True}


def cpu_s(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def rss_mib(pid: int) -> float:
    """Memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def upstream(tools: int) -> Iterator[tuple[int, str]]:
    """The bench upstream as a process: its pid and URL."""
    program = str(Path(__file__).parent / "upstream.py")
    command = [sys.executable, program, "--tools", str(tools)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        finally:
            process.kill()


def message(method: str, **params: Any) -> tuple[dict[str, str], bytes]:
    """Headers and body of one modern request."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": _ENVELOPE}}
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": method,
    }
    if "name" in params:
        headers["mcp-name"] = params["name"]
    return headers, orjson.dumps(body)


async def load(
    client: HttpClient, url: str, request: tuple[dict[str, str], bytes], calls: int, width: int
) -> list[float]:
    """Send `calls` requests, `width` at a time; the seconds each took."""
    took: list[float] = []
    headers, body = request

    async def caller() -> None:
        while len(took) < calls:
            began = time.perf_counter()
            async with client.send("POST", url, headers, body) as response:
                answer = await response.read()
            took.append(time.perf_counter() - began)
            assert response.status == 200, answer[:300]

    async with anyio.create_task_group() as group:
        for _ in range(width):
            group.start_soon(caller)
    return took


def quantiles(took: list[float]) -> tuple[float, float]:
    """p50 and p99 in microseconds."""
    cut = statistics.quantiles(took, n=100)
    return cut[49] * 1e6, cut[98] * 1e6


async def compare(rounds: int, calls: int) -> None:
    """HTTP to HTTP, at three widths."""
    with upstream(100) as (_, direct_url), tempfile.TemporaryDirectory() as tmp:
        async with running_gateway(Path(tmp), {"b": {"url": direct_url}}) as gateway:
            await gateway.until_listed("b__tool_0001")
            client, pid = HttpClient(), gateway.process.pid
            direct = message("tools/call", name="tool_0001", arguments=_ARGUMENTS)
            through = message("tools/call", name="b__tool_0001", arguments=_ARGUMENTS)
            await load(client, gateway.url, through, 500, 8)
            print("calls, HTTP to HTTP, 0.5 KB   width  throughput÷direct   p50 µs (direct)   p99 µs   CPU µs a call")
            for width in (1, 8, 32):
                ratios, cpu, ours, theirs = [], [], [], []
                for _ in range(rounds):
                    began = time.perf_counter()
                    theirs += await load(client, direct_url, direct, calls, width)
                    middle, used = time.perf_counter(), cpu_s(pid)
                    ours += await load(client, gateway.url, through, calls, width)
                    ratios.append((middle - began) / (time.perf_counter() - middle))
                    cpu.append((cpu_s(pid) - used) / calls * 1e6)
                (p50, p99), (direct_p50, _) = quantiles(ours), quantiles(theirs)
                print(
                    f"{'':29} {width:5} {statistics.median(ratios):18.2f} {p50:8.0f} ({direct_p50:.0f})"
                    f" {p99:14.0f} {statistics.median(cpu):12.0f}"
                )
            print(f"memory after {rounds * calls * 3} calls: {rss_mib(pid):.0f} MiB")
            client.close()


async def listings(calls: int) -> None:
    """`tools/list` and calls, by the number of tools."""
    for tools in (100, 1000):
        with upstream(tools) as (_, url), tempfile.TemporaryDirectory() as tmp:
            began = time.perf_counter()
            async with running_gateway(Path(tmp), {"b": {"url": url}}) as gateway:
                await gateway.until_listed(f"b__tool_{tools - 1:04}")
                ready_s = time.perf_counter() - began
                client, pid = HttpClient(), gateway.process.pid
                used = cpu_s(pid)
                p50, _ = quantiles(await load(client, gateway.url, message("tools/list"), calls // 4, 4))
                list_us = (cpu_s(pid) - used) / (calls // 4) * 1e6
                used = cpu_s(pid)
                call = message("tools/call", name="b__tool_0001", arguments=_ARGUMENTS)
                await load(client, gateway.url, call, calls, 32)
                call_us = (cpu_s(pid) - used) / calls * 1e6
                print(
                    f"{tools} tools: listed {ready_s:.2f} s after start; tools/list p50 {p50:.0f} µs, "
                    f"CPU {list_us:.0f} µs; a call CPU {call_us:.0f} µs; memory {rss_mib(pid):.0f} MiB"
                )
                client.close()


def startup() -> None:
    """`typegate stdio`: process start to the answer to `tools/list`, with a hanging upstream."""
    with tempfile.TemporaryDirectory() as tmp:
        config = Path(tmp) / "c.json"
        config.write_text(json.dumps({"mcpServers": {"hang": {"command": "sleep", "args": ["60"]}}}))
        command = [sys.executable, "-m", "gateway", "stdio", "--config", str(config), "--state-dir", tmp]
        first = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        took = []
        for _ in range(5):
            began = time.perf_counter()
            with subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            ) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                line = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": first}
                process.stdin.write(orjson.dumps(line) + b"\n")
                process.stdin.flush()
                process.stdout.readline()
                took.append(time.perf_counter() - began)
                process.stdin.close()
        print(f"typegate stdio: initialize answered {statistics.median(took):.2f} s after process start (median of 5)")


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000)
    arguments = parser.parse_args()
    options = {"use_uvloop": True}
    anyio.run(compare, arguments.rounds, arguments.calls, backend_options=options)
    anyio.run(listings, arguments.calls, backend_options=options)
    startup()


if __name__ == "__main__":
    main()
