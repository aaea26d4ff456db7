"""Calls through one worker and through several, and direct: in one interleaved run on the same upstream.

    python tests/bench/bench_workers.py [--rounds N] [--calls N] [--width N …] [--workers N …]

The load comes from this process alone, so what it can send is a bound too: read `direct` beside the others, and
how busy this process is. CPU is that of all processes of a gateway, for each call.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import anyio
from bench.contenders import Contender, direct, load, typegate
from support.upstreams.running import children_of

from gateway.http.http_client import HttpClient

TOOLS = 100


async def compare(rounds: int, calls: int, widths: list[int], counts: list[int]) -> None:
    """Print a table for each width."""
    client = HttpClient()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(direct(TOOLS))
        everybody = [first]
        for count in counts:
            name = f"{count} worker{'s' if count > 1 else ''}"
            one = await stack.enter_async_context(typegate(name, {"url": first.url}, "--workers", str(count)))
            one.pids = (*one.pids, *(child for pid in one.pids for child in children_of(pid)))
            everybody.append(one)
            # A session whose calls arrive at any worker, and are forwarded to the worker that owns the session.
            everybody.append(Contender(f"{name}, 2025-11-25", one.url, tool=one.tool, pids=one.pids, modern=False))
        for one in everybody:
            await one.begin(client)
            await load(client, one, 200, 8)
        for width in widths:
            rate, cpu, busy = (defaultdict[str, list[float]](list) for _ in range(3))
            for _ in range(rounds):
                for one in everybody:
                    used_s, own_s = one.cpu_s(), time.process_time()
                    whole_s, _ = await load(client, one, calls, width)
                    cpu[one.name].append((one.cpu_s() - used_s) / calls * 1e6)
                    busy[one.name].append((time.process_time() - own_s) / whole_s)
                    rate[one.name].append(calls / whole_s)
            print(f"\n{width} at a time            calls/s   CPU µs   this process busy")
            for one in everybody:
                row = [statistics.median(figures[one.name]) for figures in (rate, cpu, busy)]
                print(f"{one.name:24} {row[0]:10.0f} {row[1]:8.0f} {row[2]:12.0%}", flush=True)
        client.close()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--width", type=int, nargs="*", default=[8, 32, 128])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    given = parser.parse_args()
    anyio.run(compare, given.rounds, given.calls, given.width, given.workers)


if __name__ == "__main__":
    main()
