"""Calls through this gateway, through other proxies, and direct: in one interleaved run on the same upstream.

    python tests/bench/bench_peers.py [--rounds N] [--calls N] [--width N …] [--without-peers] [--size-bytes N]
        [--program COMMAND …]

Machines are noisy: read the ratios, and compare numbers of one run only. `CPU` is what the proxy's own process
uses for each call, as the kernel accounts it; `rate` is throughput as a part of the direct call's. `--program` compares
with a program of one's own, such as one that does only what the protocol demands of a proxy. It is started with
`--config FILE --port N`; the file has `mcpServers`, and its tools are named `server__tool` at `/mcp`.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import anyio
from bench.contenders import Contender, direct, load, peer, peer_commands, program, typegate, upstream_command

from gateway.http.http_client import HttpClient

TOOLS = 100


async def line_up(stack: AsyncExitStack, size_bytes: int, peers: bool, programs: list[str]) -> list[Contender]:
    """Start all processes."""
    command, *arguments = upstream_command(TOOLS, size_bytes, stdio=True)
    first = await stack.enter_async_context(direct(TOOLS, size_bytes))
    http = await stack.enter_async_context(typegate("typegate", {"url": first.url}))
    stdio = await stack.enter_async_context(typegate("typegate → stdio", {"command": command, "args": arguments}))
    sessions = Contender("typegate, 2025-11-25", http.url, tool=http.tool, pids=http.pids, modern=False)
    everybody = [first, http, sessions, stdio]
    for one in programs:
        everybody.append(await stack.enter_async_context(program(shlex.split(one), first.url)))
    if peers:
        for name, words, port, pace in peer_commands(first.url, TOOLS, size_bytes):
            everybody.append(await stack.enter_async_context(peer(name, words, port, modern=False, pace=pace)))
    return everybody


async def compare(
    rounds: int, calls: int, widths: list[int], size_bytes: int, peers: bool, programs: list[str]
) -> None:
    """Print a table for each width."""
    client = HttpClient()
    async with AsyncExitStack() as stack:
        everybody = await line_up(stack, size_bytes, peers, programs)
        for one in everybody:
            await one.begin(client)
            await load(client, one, max(20, int(200 * one.pace)), 4)
        for width in widths:
            rate, cpu = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
            took = defaultdict[str, list[float]](list)
            for _ in range(rounds):
                for one in everybody:
                    number = max(width, int(calls * one.pace))
                    # Idle connections were closed by now, and opening them is not measured.
                    await load(client, one, 2 * width if one.pace > 0.05 else 1, width)
                    used_s = one.cpu_s()
                    whole_s, each_s = await load(client, one, number, width)
                    cpu[one.name].append((one.cpu_s() - used_s) / number * 1e6)
                    rate[one.name].append(number / whole_s)
                    took[one.name] += each_s
            print(f"\n{width} at a time, {size_bytes} bytes     CPU µs   rate   p50 µs   p99 ÷ p50")
            for one in everybody:
                part = [mine / theirs for mine, theirs in zip(rate[one.name], rate["direct"], strict=True)]
                cut = statistics.quantiles(took[one.name], n=100)
                print(
                    f"{one.name:32} {statistics.median(cpu[one.name]):9.0f} {statistics.median(part):6.3f}"
                    f" {cut[49] * 1e6:8.0f} {cut[98] / cut[49]:8.1f}",
                    flush=True,
                )
        client.close()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--width", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument("--size-bytes", type=int, default=500)
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--program", action="append", default=[], metavar="COMMAND")
    arguments = parser.parse_args()
    anyio.run(
        compare, arguments.rounds, arguments.calls, arguments.width, arguments.size_bytes,
        not arguments.without_peers, arguments.program, backend_options={"use_uvloop": True},
    )  # fmt: skip


if __name__ == "__main__":
    main()
