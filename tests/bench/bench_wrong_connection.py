"""Measure a megabyte of wrong arguments over a real connection; run it as a program.

    python tests/bench/bench_wrong_connection.py [--rounds 5] [--bytes 1000000] [--only WORD]

A gateway and its upstream run as processes, and each round sends one call of each shape of `bench_wrong_calls`. Printed
are, of the best round: the latency of the answer; the processor time of the gateway, and of the process that checks
large calls, until the answer is there; what either does afterwards; how long another caller's ping took at most
meanwhile; and the time of the checking process as a multiple of what `orjson` takes to parse the same text here.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import anyio
import anyio.lowlevel
import orjson
from bench.bench_gateway import message
from bench.bench_wrong_calls import cases
from support.gateways import running_gateway
from support.upstreams.running import children_of, scripted_http_server

from gateway.http.http_client import HttpClient

MOST_MS: Final = 50.0
SHAPES: Final = (
    "wide: wrong type",
    "wide: one wrong in the last",
    "wide: all required, half sent",
    "wide: unknown",
    "wide: marked",
    "wide: nested alternatives",
    "filter: wrong type",
    "filter: wrong field",
    "tree: one wrong",
    "tree: 100 types",
)
# Until a process that has answered is at rest again.
_REST_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Taken:
    """The durations of one call, in milliseconds."""

    latency: float
    parent: float
    child: float
    parent_after: float
    child_after: float
    ping: float


def cpu_ms(pid: int) -> float:
    """Return the processor time of a process from the kernel's clock, which is finer than its ticks."""
    return time.clock_gettime((~pid << 3) | 2) * 1e3


def parse_ms(text: bytes) -> float:
    """Return the least time of parsing a text."""
    taken = []
    for _ in range(7):
        began = time.process_time()
        orjson.loads(text)
        taken.append((time.process_time() - began) * 1e3)
    return min(taken)


async def one_call(
    client: HttpClient, url: str, request: tuple[dict[str, str], bytes], child_of: Callable[[], int], pid: int
) -> tuple[Taken, str]:
    """Send one call while another caller pings, and return what it took."""
    pings: list[float] = []
    ping_head, ping_body = message("server/discover")
    done = anyio.Event()

    async def ping() -> None:
        while not done.is_set():
            began = time.perf_counter()
            async with client.send("POST", url, ping_head, ping_body) as response:
                await response.read()
            pings.append((time.perf_counter() - began) * 1e3)
            await anyio.sleep(0.002)

    child = child_of()
    before = cpu_ms(pid), cpu_ms(child)
    async with anyio.create_task_group() as group:
        group.start_soon(ping)
        await anyio.lowlevel.checkpoint()
        began = time.perf_counter()
        async with client.send("POST", url, *request) as response:
            answer = await response.read()
        latency = (time.perf_counter() - began) * 1e3
        then = cpu_ms(pid), cpu_ms(child)
        done.set()
    pinged = cpu_ms(pid)
    await anyio.sleep(_REST_S)
    after = cpu_ms(pid), cpu_ms(child)
    taken = Taken(
        latency, then[0] - before[0], then[1] - before[1], after[0] - pinged, after[1] - then[1], max(pings, default=0)
    )
    return taken, orjson.loads(answer)["result"]["content"][0]["text"]


async def measure(rounds: int, size: int, only: str, *, texts: bool) -> bool:
    """Measure and print; return whether all is within bounds."""
    shapes = {name: case for name, case in cases(size).items() if name in SHAPES and only in name}
    tools = [{"name": f"t{n}", "inputSchema": schema} for n, (schema, _) in enumerate(shapes.values())]
    with tempfile.TemporaryDirectory() as tmp:
        async with (
            scripted_http_server(Path(tmp), "up", tools=tools) as upstream,
            running_gateway(Path(tmp), {"u": upstream.config}) as gateway,
        ):
            names = [f"u__t{n}" for n in range(len(shapes))]
            await gateway.until_listed(*names)
            client, pid = HttpClient(), gateway.process.pid
            requests = {
                shape: message("tools/call", name=name, arguments=arguments)
                for name, (shape, (_, arguments)) in zip(names, shapes.items(), strict=True)
            }
            words = ("latency", "gateway", "process", "÷ parse", "gw after", "pr after", "ping")
            print(f"{'milliseconds':32}" + "".join(f"{word:>10}" for word in words))

            def child() -> int:
                [found] = children_of(pid)
                return found

            # The process starts, and compiles each schema.
            for request in requests.values():
                async with client.send("POST", gateway.url, *request) as response:
                    await response.read()
            worst = 0.0
            for shape, request in requests.items():
                parsed = parse_ms(request[1])
                all_taken: list[Taken] = []
                text = ""
                for _ in range(rounds):
                    taken, text = await one_call(client, gateway.url, request, child, pid)
                    all_taken.append(taken)
                best = min(all_taken, key=lambda one: one.child)
                worst = max(worst, best.child)
                shown = (
                    min(one.latency for one in all_taken), best.parent, best.child, best.child / parsed,
                    best.parent_after, best.child_after, min(one.ping for one in all_taken),
                )  # fmt: skip
                mark = "" if best.child <= MOST_MS else "  !"
                print(f"{shape:32}" + "".join(f"{figure:>10.1f}" for figure in shown) + mark, flush=True)
                if texts:
                    print("   ", text[:600])
            verdict = "yes" if worst <= MOST_MS else "NO"
            print(f"the process: at worst {worst:.1f} ms before the answer; within {MOST_MS:g} ms: {verdict}")
            client.close()
    return worst <= MOST_MS


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strict", action="store_true", help="exit 1 where a figure is missed")
    parser.add_argument("--only", default="", help="shapes with this in their name")
    parser.add_argument("--texts", action="store_true", help="print what is told, too")
    parser.add_argument("--bytes", type=int, default=1_000_000, help="the size of the arguments, about")
    options = parser.parse_args()
    gc.disable()  # what is parsed here is compared with a process that does the same
    within = anyio.run(lambda: measure(options.rounds, options.bytes, options.only, texts=options.texts))
    return 1 if options.strict and not within else 0


if __name__ == "__main__":
    sys.exit(main())
