"""More connections than file descriptors."""

from __future__ import annotations

import os
import resource
import socket
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from faults.observing import MIB, append_result, cpu_of, descriptors_of, eventually, rss_of
from support.callers import raw_exchange, raw_post
from support.gateways import RunningGateway, brief_pause, running_gateway, text_of
from support.pace import slowness
from support.upstreams.running import builtin_tools, scripted_http_server, scripted_stdio_server

pytestmark = pytest.mark.heavy

# One address may have nine tenths of all connections.
IDLE, SLOW = 8_000, 200
NEEDED = 10_000
GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


@contextmanager
def descriptors_allowed(count: int) -> Iterator[None]:
    """Raise our own limit of open files, and that of the processes that we start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), max(hard, count)))
    except (ValueError, OSError):
        assert os.environ.get("CI") != "true", f"the system allows only {hard} open files"
        pytest.skip(f"this needs {count} open files, and the system allows {hard}")
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, max(hard, count)))


def connect(gateway: RunningGateway, first_bytes: bytes) -> socket.socket:
    host, _, port = gateway.origin.removeprefix("http://").rpartition(":")
    caller = socket.create_connection((host, int(port)), timeout=10)
    if first_bytes:
        caller.sendall(first_bytes)
    return caller


@pytest.mark.heavy
async def test_eight_thousand_idle_and_200_slow_callers_leave_others_served(tmp_path: Path) -> None:
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
                with anyio.fail_after(20):
                    result = await gateway.call("up__echo", {"still": "here"})
                assert result["structuredContent"] == {"still": "here"}
                took_s.append(anyio.current_time() - began_s)

            try:
                for number in range(IDLE + SLOW):
                    # Those that have asked for something: a caller that says nothing is cut after 10 s.
                    callers.append(connect(gateway, slow[number % 2] if number % 41 == 0 else GET))
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
            assert statistics.median(took_s) < 0.5
            assert max(took_s) < 5


@contextmanager
def no_descriptor_left(pid: int) -> Iterator[None]:
    """Forbid a running process to open anything more."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # The number of open files means nothing to the limit: the lowest free number does.
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (next(n for n in range(soft) if n not in used), hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


async def test_callers_cannot_exhaust_the_descriptors_upstreams_need(tmp_path: Path) -> None:
    tools = builtin_tools("sleep", "exit", "echo")
    stdio, record = scripted_stdio_server(tmp_path, "up", tools=tools)
    limited = ("sh", "-c", 'ulimit -n 128 && exec "$@"', "sh")
    callers: list[socket.socket] = []
    async with (
        scripted_http_server(tmp_path, "web", tools=tools) as web,
        running_gateway(tmp_path, {"up": stdio, "web": web.config}, through=limited) as gateway,
    ):
        pid = gateway.process.pid
        await gateway.until_listed("up__echo", "web__echo")
        descriptors, answers = descriptors_of(pid), list[dict[str, Any]]()
        try:
            async with anyio.create_task_group() as tasks:
                for alias in ("up", "web"):
                    tasks.start_soon(append_result, gateway, f"{alias}__sleep", {"seconds": 2}, answers)
                await record.until(lambda seen: seen.calls("sleep"))
                await web.recording.until(lambda seen: seen.calls("sleep"))
                assert "isError" not in await gateway.call("up__echo")
                used_s = cpu_of(pid)
                for number in range(300):
                    callers.append(connect(gateway, GET if number % 2 else b""))
                # Room is made for a newcomer: those that wait for nothing are cut.
                asking = GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
                assert (await raw_exchange(gateway, asking)).startswith(b"HTTP/1.1 200 ")
                assert descriptors_of(pid) < 100
                for alias in ("up", "web"):
                    assert "isError" not in await gateway.call(f"{alias}__echo")
            assert [one.get("structuredContent") for one in answers] == [{"seconds": 2}] * 2
            # They cannot keep an upstream from reconnecting either.
            assert "outcome is unknown" in text_of(await gateway.call("up__exit"))
            await web.restart(tools=tools)
            for alias in ("up", "web"):
                assert (await gateway.call(f"{alias}__echo", {"a": 1}))["structuredContent"] == {"a": 1}
            assert len(record.starts()) == 2
            assert cpu_of(pid) - used_s < slowness()
        finally:
            for caller in callers:
                caller.close()
        await eventually(lambda: descriptors_of(pid) <= descriptors + 4)
        async with httpx2.AsyncClient(timeout=30) as newcomer:
            assert (await newcomer.get(f"{gateway.origin}/healthz")).status_code == 200
        assert "Traceback" not in gateway.logged()


async def test_descriptor_exhaustion_refuses_new_work_and_recovers(tmp_path: Path) -> None:
    tools = builtin_tools("sleep", "exit", "reset", "echo")
    stdio, record = scripted_stdio_server(tmp_path, "up", tools=tools)
    async with (
        scripted_http_server(tmp_path, "web", tools=tools) as web,
        running_gateway(tmp_path, {"up": {**stdio, "callTimeout": 2}, "web": web.config}) as gateway,
    ):
        pid = gateway.process.pid
        await gateway.until_listed("up__echo", "web__echo")
        answers: list[dict[str, Any]] = []
        async with anyio.create_task_group() as tasks:
            # Each call opens its connection before the descriptors are used up.
            for alias in ("up", "web", "web"):
                tasks.start_soon(append_result, gateway, f"{alias}__sleep", {"seconds": 1}, answers)
            await record.until(lambda seen: seen.calls("sleep"))
            await web.recording.until(lambda seen: len(seen.calls("sleep")) == 2)
            assert "isError" not in await gateway.call("web__echo")
            with no_descriptor_left(pid):
                used_s, descriptors = cpu_of(pid), descriptors_of(pid)
                turned_away = [connect(gateway, GET) for _ in range(100)]
                with anyio.fail_after(20):
                    for caller in turned_away:
                        # The kernel has answered for the gateway, which can only hang up.
                        with suppress(ConnectionError):
                            assert await anyio.to_thread.run_sync(caller.recv, 1) == b""
                        caller.close()
                await eventually(lambda: len(answers) == 3)
                assert [one.get("structuredContent") for one in answers] == [{"seconds": 1}] * 3
                assert "outcome is unknown" in text_of(await gateway.call("up__exit"))
                assert "outcome is unknown" in text_of(await gateway.call("web__reset"))
                refused = await gateway.call("up__echo")
                assert "cannot start" in text_of(refused)
                assert "Too many open files" in text_of(refused)
                assert descriptors_of(pid) <= descriptors
                assert cpu_of(pid) - used_s < 0.5 * slowness()
        for alias, seen in (("up", record), ("web", web.recording)):
            with anyio.fail_after(25):
                while (await gateway.call(f"{alias}__echo", {"back": alias})).get("isError"):
                    await brief_pause()
            assert seen.calls("echo")[-1]["arguments"] == {"back": alias}
        assert len(record.starts()) == 2
        assert "Traceback" not in gateway.logged()
