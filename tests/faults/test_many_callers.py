"""More connections than anybody needs, and more than there are descriptors for."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from callers import raw_post
from faults.observing import MIB, descriptors_of, eventually, rss_of
from gateways import RunningGateway, running_gateway
from upstreams.running import builtin_tools, scripted_stdio_server

IDLE, SLOW = 9_000, 200
NEEDED = 10_000


@contextmanager
def descriptors_allowed(count: int) -> Iterator[None]:
    """Raise our own limit of open files, and that of the processes that we start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), max(hard, count)))
    except (ValueError, OSError):
        pytest.skip(f"this needs {count} open files, and the system allows {hard}")
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, max(hard, count)))


def connect(gateway: RunningGateway, said: bytes) -> socket.socket:
    host, _, port = gateway.origin.removeprefix("http://").rpartition(":")
    caller = socket.create_connection((host, int(port)), timeout=10)
    if said:
        caller.sendall(said)
    return caller


async def test_nine_thousand_idle_and_two_hundred_slow_callers_leave_the_others_served(tmp_path: Path) -> None:
    slow = (b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ", raw_post(b"{", "content-length: 1000", length=False))
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    callers: list[socket.socket] = []
    with descriptors_allowed(NEEDED):
        async with running_gateway(tmp_path, {"up": server}) as gateway:
            await gateway.until_listed("up__echo")
            before, descriptors = rss_of(gateway.process.pid), descriptors_of(gateway.process.pid)
            took_s: list[float] = []

            async def healthy() -> None:
                began_s = anyio.current_time()
                with anyio.fail_after(5):
                    result = await gateway.call("up__echo", {"still": "here"})
                assert result["structuredContent"] == {"still": "here"}
                took_s.append(anyio.current_time() - began_s)

            try:
                for number in range(IDLE + SLOW):
                    callers.append(connect(gateway, slow[number % 2] if number % 46 == 0 else b""))
                    if number % 500 == 0:
                        await healthy()
                assert len(callers) == IDLE + SLOW
                everyone = IDLE + SLOW + descriptors
                await eventually(lambda: descriptors_of(gateway.process.pid) >= everyone)
                for _ in range(50):
                    await healthy()
                assert descriptors_of(gateway.process.pid) >= everyone, "some were cut before their time"
                assert rss_of(gateway.process.pid) - before < 300 * MIB
            finally:
                for caller in callers:
                    caller.close()
            await eventually(lambda: descriptors_of(gateway.process.pid) <= descriptors + 2)
            await healthy()
            assert max(took_s) < 1
