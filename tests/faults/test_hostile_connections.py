"""Truncated, damaged, concurrent and fragmented input leaves no state behind."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from support.callers import call_of
from support.gateways import MODERN, RunningGateway, brief_pause, running_gateway
from support.upstreams.running import builtin_tools, scripted_stdio_server

pytestmark = pytest.mark.heavy

CALLERS = 12
CONNECTIONS = 25


def request(chance: random.Random) -> bytes:
    """A call as some client may send it: most are sound, some lie about their length."""
    name = chance.choice(["s__echo"] * 5 + ["s__hang", "s__progress", "x"])
    arguments = (
        {"count": 3, "interval_s": 0.01} if name == "s__progress" else {"a": "x" * chance.choice([1, 100, 70_000])}
    )
    token = {"progressToken": 1} if chance.random() < 0.3 else {}
    body = json.dumps(call_of(name, arguments, request_id=chance.randint(1, 9), **token)).encode()
    lines = [
        f"POST {chance.choice(['/mcp'] * 8 + ['/mcp/', '/nope'])} HTTP/1.1",
        "host: 127.0.0.1",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        f"mcp-protocol-version: {MODERN}",
        "mcp-method: tools/call",
        f"mcp-name: {name}",
        *(["connection: close"] if chance.random() < 0.1 else []),
        *(["expect: 100-continue"] if chance.random() < 0.1 else []),
    ]
    if chance.random() < 0.15:
        lines.append("transfer-encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        lines.append(f"content-length: {len(body) - (3 if chance.random() < 0.1 else 0)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def bytes_of(chance: random.Random) -> bytes:
    """Return the bytes to send on one connection."""
    raw = bytearray(b"".join(request(chance) for _ in range(chance.choice([1, 1, 2, 5]))))
    if chance.random() < 0.2:
        for _ in range(chance.randint(1, 5)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
    return bytes(raw[: chance.randrange(len(raw))] if chance.random() < 0.2 else raw)


async def connect(gateway: RunningGateway, chance: random.Random) -> None:
    """One connection: bytes in pieces, and away after a while."""
    raw = bytes_of(chance)
    host, _, port = gateway.origin.removeprefix("http://").rpartition(":")
    with suppress(OSError, anyio.EndOfStream, anyio.BrokenResourceError):
        async with await anyio.connect_tcp(host, int(port)) as stream:
            while raw:
                size = chance.choice([1, 50, 3_000, len(raw)])
                await stream.send(raw[:size])
                raw = raw[size:]
            with anyio.move_on_after(chance.choice([0, 0.05, 0.3])):
                while True:
                    await stream.receive()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.heavy)])
async def test_hostile_connections_leave_no_state(tmp_path: Path, seed: int) -> None:
    server, _ = scripted_stdio_server(tmp_path, "s", tools=builtin_tools("echo", "hang", "progress"))
    async with running_gateway(tmp_path, {"s": {**server, "callTimeout": 3}}) as gateway:
        await gateway.until_listed("s__echo")

        async def caller(number: int) -> None:
            chance = random.Random(seed * 100 + number)
            for _ in range(CONNECTIONS):
                await connect(gateway, chance)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for number in range(CALLERS):
                    group.start_soon(caller, number)
        with anyio.fail_after(25):
            while (await gateway.server("s"))["inFlight"]:
                await brief_pause()
        assert (await gateway.call("s__echo", {"a": 1}))["structuredContent"] == {"a": 1}
        assert "Traceback" not in gateway.logged()
        assert await gateway.stop() == 0
