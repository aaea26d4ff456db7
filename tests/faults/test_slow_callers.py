"""Callers that send slowly or do not read."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from anyio.abc import SocketStream
from faults.observing import MIB, descriptors_of, eventually, rss_of
from support.callers import call_of, hello, raw_exchange, raw_post, running_host, status_of
from support.gateways import TOKEN, RunningGateway, brief_pause, running_gateway
from support.upstreams.running import builtin_tools, scripted_stdio_server, tool

pytestmark = pytest.mark.heavy

NEVER_READING = 200
HEAD = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: "
MODERN_CALL = ("mcp-protocol-version: 2026-07-28", "mcp-method: tools/call", "mcp-name: up__big")


async def connected(gateway: RunningGateway) -> SocketStream:
    host, _, port = gateway.origin.removeprefix("http://").rpartition(":")
    return await anyio.connect_tcp(host, int(port))


async def trickle(gateway: RunningGateway, start: bytes, drop: bytes) -> tuple[bytes, float]:
    """Send one more drop each second until the connection is closed; return the response and the seconds."""
    began_s, received = anyio.current_time(), b""
    async with await connected(gateway) as stream:
        if start:
            await stream.send(start)
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                with anyio.move_on_after(1):
                    while True:
                        received += await stream.receive()
                if drop:
                    await stream.send(drop)
    return received, anyio.current_time() - began_s


def never_reading(gateway: RunningGateway, request: bytes) -> socket.socket:
    """Ask for something over a connection on which nothing is ever read."""
    host, _, port = gateway.origin.removeprefix("http://").rpartition(":")
    caller = socket.socket()
    # Before connecting: little is to disappear in the kernel's own buffers.
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    caller.connect((host, int(port)))
    caller.sendall(request)
    return caller


@pytest.mark.heavy  # half a minute of deadlines that are waited for
async def test_slow_and_unreading_callers_are_disconnected_while_others_are_served(tmp_path: Path) -> None:
    body = raw_post(b"", "content-length: 1000", length=False)
    chunked = raw_post(b"", "transfer-encoding: chunked", length=False)
    get = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    lost = raw_post(b"", "content-length: 1000", length=False, path="/nowhere")
    lost = lost.replace(b"connection: close", b"x: y")
    admin = raw_post(b"{", f"authorization: Bearer {TOKEN}", "content-length: 9", length=False, path="/admin/servers")
    slow: dict[str, tuple[bytes, bytes, int, float, float]] = {
        "half a body": (body + b'{"jsonrpc":', b"", 408, 28, 33),
        "a body in drops": (body, b" ", 408, 28, 33),
        "chunks in drops": (chunked, b"1\r\n \r\n", 408, 28, 33),
        "a head in drops": (HEAD, b"x", 0, 14.5, 17),
        "nothing": (b"", b"", 0, 9.5, 12),
        "no head at all": (b"\r\n", b"\r\n", 0, 9.5, 12),
        "a second head in drops": (get + HEAD, b"x", 200, 14.5, 17),
        "line ends after an answer": (get, b"\r\n", 200, 19.5, 22),
        "a body that nobody wants, in drops": (lost, b" ", 404, 4, 38),
        "half a body for the administrator": (admin, b"", 408, 28, 38),
    }
    ended: dict[str, tuple[bytes, float]] = {}
    server, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("big", "echo"))
    big = json.dumps(call_of("up__big", {"bytes": MIB})).encode()
    closing = raw_post(big, *MODERN_CALL)
    keeping = closing.replace(b"connection: close", b"connection: keep-alive")
    callers: list[socket.socket] = []
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__big")
        await gateway.call("up__big", {"bytes": MIB})
        pid = gateway.process.pid
        memory, descriptors = [rss_of(pid)], descriptors_of(pid)
        held: list[int] = []

        async def watch(name: str) -> None:
            start, drop, *_ = slow[name]
            ended[name] = await trickle(gateway, start, drop)

        async def healthy_until(satisfied: Callable[[], bool]) -> float:
            slowest_s = 0.0
            while not satisfied():
                began_s = anyio.current_time()
                assert (await gateway.call("up__echo", {"a": 1}))["structuredContent"] == {"a": 1}
                slowest_s = max(slowest_s, anyio.current_time() - began_s)
                memory.append(rss_of(pid))
                if anyio.current_time() - asked_s < 25:
                    held.append(descriptors_of(pid))
                with anyio.move_on_after(0.05):
                    await anyio.sleep_forever()
            return slowest_s

        try:
            with anyio.fail_after(50):
                async with anyio.create_task_group() as tasks:
                    for name in slow:
                        tasks.start_soon(watch, name)
                    for number in range(1, NEVER_READING + 1):
                        callers.append(never_reading(gateway, closing if number % 2 else keeping))
                        if number % 20 == 0:
                            await record.until(
                                lambda seen, sent_before=number: len(seen.calls("big")) == sent_before + 1
                            )
                    asked_s = anyio.current_time()
                    slowest_s = await healthy_until(lambda: len(ended) == len(slow))
            await eventually(lambda: descriptors_of(pid) <= descriptors + 2)
            # Their memory is released a moment after the last one was disconnected.
            await eventually(lambda: rss_of(pid) - memory[0] < 64 * MIB)
            assert anyio.current_time() - asked_s < 40
        finally:
            for caller in callers:
                caller.close()
        for name, (_, _, status, least_s, most_s) in slow.items():
            received, took_s = ended[name]
            assert status_of(received) == status, (name, received)
            assert least_s <= took_s <= most_s, (name, took_s)
        # Callers that do not read have at least fifteen seconds. Other callers do not wait for them.
        assert slowest_s < 3
        # Slow is not too slow at once: who still leaves room for others has its time.
        assert min(held) > descriptors + NEVER_READING / 2
        # The bound of what is held unread, and twenty answers on their way.
        assert max(memory) - memory[0] < (128 + 20) * MIB
        logged = gateway.logged()
        assert "slow callers disconnected" in logged
        # There is at most one line a second (the clock may be set in between) for any number of disconnected callers.
        crowded = [line.split(" ", 1)[0] for line in logged.splitlines() if "over 128 MiB unread" in line]
        assert crowded
        assert len(crowded) <= len(set(crowded)) + 1
        assert "Traceback" not in gateway.logged()


async def test_unreading_stdio_host_is_throttled_and_gets_everything_later(tmp_path: Path) -> None:
    words = [{**tool(f"tool{number}"), "description": "word " * 380} for number in range(200)]
    server, _ = scripted_stdio_server(tmp_path, "up", tools=words)
    config = tmp_path / "host.json"
    config.write_text(json.dumps({"mcpServers": {"up": server}}))
    async with running_host(tmp_path, "--config", str(config), "--state-dir", str(tmp_path / "own")) as host:
        await host.answer(hello())
        await host.until_listed("up__tool199")
        host.received.clear()
        before = rss_of(host.process.pid)
        lists = [{"jsonrpc": "2.0", "id": number, "method": "tools/list"} for number in range(400)]
        await host.send(*lists)
        most = 0
        # The time is enough to write all 160 MiB many times over.
        with anyio.move_on_after(1.5):
            while True:
                most = max(most, rss_of(host.process.pid) - before)
                await brief_pause()
        assert 16 * MIB < most < 64 * MIB
        for one in lists:
            answer = await host.until(lambda message, wanted=one["id"]: message.get("id") == wanted)
            assert len(answer["result"]["tools"]) == 202, "two hundred, and two of our own"
            host.received.clear()
        assert await host.leave() == 0


async def test_pipelined_requests_are_answered_in_order_and_bounded(
    tmp_path: Path,
) -> None:
    def raw_call(name: str, **arguments: Any) -> bytes:
        head = ("mcp-protocol-version: 2026-07-28", "mcp-method: tools/call", f"mcp-name: {name}")
        body = json.dumps(call_of(name, arguments)).encode()
        return raw_post(body, *head).replace(b"connection: close", b"connection: keep-alive")

    server, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo", "hang"))
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__echo")
        ahead = b"".join(raw_call("up__echo", n=number) for number in range(40))
        answers = await raw_exchange(gateway, ahead, raw_post(b"{}"))
        order = [int(one) for one in re.findall(rb'"structuredContent":\{"n":(\d+)\}', answers)]
        assert order == list(range(40))

        # If a caller disconnects, its running and its queued requests are cancelled.
        async with await connected(gateway) as stream:
            await stream.send(raw_call("up__hang") + raw_call("up__echo"))
            await record.until(lambda seen: seen.calls("hang"))
        await record.until(lambda seen: seen.cancelled() == [seen.calls("hang")[0]["id"]])
        assert len(record.calls("echo")) == 40

        before = rss_of(gateway.process.pid)
        many = raw_call("up__echo") * 20_000
        with anyio.fail_after(25):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(raw_exchange, gateway, raw_call("up__hang") + many)
        assert rss_of(gateway.process.pid) - before < 64 * MIB
        assert len(record.calls("echo")) == 40
        await record.until(lambda seen: {one["id"] for one in seen.calls("hang")} <= set(seen.cancelled()))
        assert (await gateway.server("up"))["inFlight"] == 0
        assert "isError" not in await gateway.call("up__echo")
        assert "Traceback" not in gateway.logged()


async def test_shutdown_waits_for_a_slow_reader_and_not_for_an_unreading_one(
    tmp_path: Path,
) -> None:
    big = raw_post(json.dumps(call_of("up__big", {"bytes": MIB})).encode(), *MODERN_CALL)
    server, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("big"))
    callers: list[socket.socket] = []
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__big")
        try:
            callers += [never_reading(gateway, big) for _ in range(20)]
            await record.until(lambda seen: len(seen.calls("big")) == 20)
            reader, received = callers[0], b""
            reader.setblocking(False)
            began_s = anyio.current_time()
            gateway.process.send_signal(signal.SIGTERM)
            with suppress(ConnectionError):
                while True:
                    await brief_pause()
                    # A third of a megabyte a second, however long the pauses of a busy machine are.
                    due = int((anyio.current_time() - began_s) / 3 * MIB) - len(received)
                    with suppress(BlockingIOError):
                        if due > 0:
                            if not (some := reader.recv(due)):
                                break
                            received += some
            took_s = anyio.current_time() - began_s
            assert len(received.partition(b"\r\n\r\n")[2]) > MIB, (len(received), took_s)
            assert took_s > 2, "too quick to show anything"
            with anyio.fail_after(10 - took_s):
                assert await gateway.process.wait() == 0
        finally:
            for caller in callers:
                caller.close()


async def test_call_on_a_connection_near_its_keep_alive_limit_is_not_lost(tmp_path: Path) -> None:
    kept_s = httpx2.Limits().keepalive_expiry
    assert kept_s is not None
    steps: list[str] = []

    async def slow_to_send(step: str, details: dict[str, Any]) -> None:
        steps.append(step)
        if step == "http11.send_request_headers.started":
            # Busy with something else, when it has chosen its connection and before it writes.
            await anyio.sleep(2.5)

    async def traced(request: httpx2.Request) -> None:
        request.extensions["trace"] = slow_to_send

    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__echo")
        await anyio.sleep(kept_s - 0.5)
        gateway.client.event_hooks = {"request": [traced]}
        result = await gateway.call("up__echo", {"still": "here"})
    assert result["structuredContent"] == {"still": "here"}
    assert "connection.connect_tcp.started" not in steps
    assert "http11.send_request_headers.complete" in steps
