"""Where the time of one call goes, room by room, in a real serving process.

    python tests/bench/profile_call.py [--size-bytes N …] [--calls N]

For each kind of call the CPU time is measured first without a profiler; the profiler's shares are then scaled to
it. A profiler makes Python functions look dearer than C, so read shares, not digits. `outside Python` is what no
function of ours was on the stack for: the loop, the HTTP parsers' feeding, and the kernel's part of reading.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import anyio
import anyio.to_thread
from bench.contenders import Contender, direct, load, upstream_command

from gateway.config.load import parse
from gateway.http.http_client import HttpClient
from gateway.serving.app import Gateway
from gateway.serving.listen import ServeOptions
from gateway.serving.over_http import serve

WIDTH = 8
ROOMS = {
    "gateway/http/": "http: the connection, the request, the response",
    "gateway/downstream/": "downstream: the caller and the method",
    "gateway/audit/": "audit: the audit log",
    "gateway/calls/": "calls: the pipeline",
    "registry/": "registry: look-up, repair, check",
    "gateway/upstream/": "upstream: session, exchange",
    "gateway/protocol/": "protocol: JSON",
}
KERNEL = "writing to sockets and pipes"
# uvloop's own functions are not seen; these do little but call them.
WRITES = {("responder.py", "respond"), ("client_connection.py", "write"), ("stdio_transport.py", "write_line")}
OTHER = "other Python and C"
OUTSIDE = "outside Python"


def room_of(path: str, name: str) -> str:
    """Return the package that a function belongs to."""
    if (Path(path).name, name) in WRITES:
        return KERNEL
    if "JSON" in name or "orjson" in name or "msgspec" in name:
        return ROOMS["gateway/protocol/"]
    return next((room for part, room in ROOMS.items() if part in path), OTHER)


def shares(profile: cProfile.Profile, calls: int) -> dict[str, float]:
    """Microseconds of a call by room, as the profiler saw them."""
    found: dict[str, float] = defaultdict(float)
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined] # its stubs lack it
    for (path, _, name), (_, _, own_s, _, callers) in stats.items():
        room = room_of(path, name)
        if room != OTHER or not callers:
            found[room] += own_s / calls * 1e6
            continue
        # A built-in function counts for its caller.
        for (caller_path, _, caller_name), (_, _, part_s, _) in callers.items():
            found[room_of(caller_path, caller_name)] += part_s / calls * 1e6
    return found


async def one_kind(url: str | None, size_bytes: int, modern: bool, calls: int) -> tuple[float, dict[str, float]]:
    """CPU time of a call, and its parts; `url` None is a stdio upstream."""
    command, *arguments = upstream_command(10, size_bytes, stdio=True)
    server = {"url": url} if url is not None else {"command": command, "args": arguments}
    server["maxConcurrency"] = 100
    config = parse(json.dumps({"mcpServers": {"b": server}}), environ={})
    measured: list[float] = []
    profile = cProfile.Profile()

    async def drive(gateway: Gateway, where: str) -> None:
        me = [sys.executable, __file__, "--drive", where, "--era", "modern" if modern else "handshake"]
        for number, profiled in ((calls // 4, False), (calls, False), (calls, True)):
            used_s = time.process_time()
            if profiled:
                profile.enable()
            await anyio.run_process([*me, "--calls", str(number)], stderr=None)
            profile.disable()
            measured.append((time.process_time() - used_s) / number * 1e6)
        os.kill(os.getpid(), 15)

    with tempfile.TemporaryDirectory() as state:
        await serve(config, ServeOptions(host="127.0.0.1", state_dir=Path(state)), on_ready=drive)
    real_us = measured[1]
    parts = shares(profile, calls)
    parts[OUTSIDE] = max(0.0, measured[2] - sum(parts.values()))
    scale = real_us / (sum(parts.values()) or 1)
    return real_us, {room: part * scale for room, part in parts.items()}


async def table(sizes: list[int], calls: int) -> None:
    """Print one table for each size."""
    for size in sizes:
        number = max(200, calls * 500 // max(size, 500))
        columns: dict[str, tuple[float, dict[str, float]]] = {}
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(direct(10, size))
            for upstream, url in (("HTTP", first.url), ("stdio", None)):
                for era, modern in (("2026-07-28", True), ("2025-11-25", False)):
                    columns[f"{upstream}, {era}"] = await one_kind(url, size, modern, number)
        rooms = sorted(
            {room for _, parts in columns.values() for room in parts}, key=lambda room: (room == OUTSIDE, room)
        )
        print(f"\n| {size} bytes, µs of CPU | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
        for room in rooms:
            print(f"| {room} | {' | '.join(f'{parts.get(room, 0):.0f}' for _, parts in columns.values())} |")
        print(f"| **all** | {' | '.join(f'**{real:.0f}**' for real, _ in columns.values())} |", flush=True)


async def drive(url: str, modern: bool, calls: int) -> None:
    """The other process: call and call again."""
    client = HttpClient()
    one = Contender("driven", url, tool="b__tool_0001", modern=modern)
    await one.begin(client)
    await load(client, one, calls, WIDTH)
    client.close()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-bytes", type=int, nargs="*", default=[500, 65_536, 1_000_000])
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--era", default="modern", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = {"use_uvloop": True}
    os.environ["TYPEGATE_ADMIN_TOKEN"] = "of no use"
    if arguments.drive:
        anyio.run(drive, arguments.drive, arguments.era == "modern", arguments.calls, backend_options=options)
    else:
        anyio.run(table, arguments.size_bytes, arguments.calls, backend_options=options)


if __name__ == "__main__":
    main()
