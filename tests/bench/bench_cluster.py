"""What one gateway of a cluster needs for a call of a session that another one has, beside a call of its own.

    python tests/bench/bench_cluster.py [--rounds N] [--calls N] [--width N …]

Two gateways on one upstream, interleaved in one run: modern calls, calls of a session at its own gateway, and calls of
the same session through the other one. CPU is that of both gateways together, for each call; the load comes from this
process alone, so what it can send is a bound too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import anyio
from bench.contenders import Contender, direct, load
from support.clusters import running_cluster

from gateway.http.http_client import HttpClient

TOOLS = 100


async def compare(rounds: int, calls: int, widths: list[int]) -> None:
    """Print a table for each width."""
    client = HttpClient()
    with tempfile.TemporaryDirectory() as folder:
        async with (
            direct(TOOLS) as upstream,
            running_cluster(Path(folder), {"bench": {"url": upstream.url}}, count=2) as cluster,
        ):
            pids = tuple(one.process.pid for one in cluster.gateways)
            here, there = (one.url for one in cluster.gateways)
            tool = f"bench__{upstream.tool}"
            modern = Contender("modern", here, tool=tool, pids=pids)
            own = Contender("own session", here, tool=tool, pids=pids, modern=False)
            for one in (upstream, modern, own):
                await one.begin(client)
            # The same session, through the gateway that does not own it.
            carried = Contender("carried session", there, tool=tool, pids=pids, modern=False, headers=own.headers)
            everybody = [upstream, modern, own, carried]
            for one in everybody:
                await load(client, one, 200, 8)
            for width in widths:
                rate, cpu = (defaultdict[str, list[float]](list) for _ in range(2))
                for _ in range(rounds):
                    for one in everybody:
                        used_s = one.cpu_s()
                        whole_s, _ = await load(client, one, calls, width)
                        cpu[one.name].append((one.cpu_s() - used_s) / calls * 1e6)
                        rate[one.name].append(calls / whole_s)
                print(f"\n{width} at a time            calls/s   CPU µs")
                for one in everybody:
                    print(
                        f"{one.name:24} {statistics.median(rate[one.name]):10.0f} "
                        f"{statistics.median(cpu[one.name]):8.0f}",
                        flush=True,
                    )
                began_s = time.perf_counter()
                for _ in range(200):
                    await load(client, carried, 1, 1)
                carried_s = time.perf_counter() - began_s
                began_s = time.perf_counter()
                for _ in range(200):
                    await load(client, own, 1, 1)
                own_s = time.perf_counter() - began_s
                print(
                    f"one at a time: own {own_s / 200 * 1e3:.2f} ms, carried {carried_s / 200 * 1e3:.2f} ms", flush=True
                )
    client.close()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--width", type=int, nargs="*", default=[8, 32])
    given = parser.parse_args()
    anyio.run(compare, given.rounds, given.calls, given.width)


if __name__ == "__main__":
    main()
