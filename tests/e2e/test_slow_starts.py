"""Slow servers of every kind are listed completely without extra options."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.gateways import running_gateway, text_of
from support.raw_http import Peer, mcp, serving

# Longer than the probe for the protocol version lasts.
SLOW_S = 4
PROGRAM = """
import json, os, pathlib, subprocess, sys, threading, time
KIND, SLOW_S, MARK = sys.argv[1], float(sys.argv[2]), pathlib.Path(sys.argv[3])
def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def wait(say=lambda: None):
    end = time.monotonic() + SLOW_S
    while time.monotonic() < end:
        say()
        time.sleep(0.1)
match KIND:
    case "reads late":
        wait()
    case "reports progress on standard error":
        wait(lambda: print("\\r#### 40 %", end="", file=sys.stderr, flush=True))
    case "reports progress on standard output":
        wait(lambda: print("Downloading packages ... 40 %", flush=True))
    case "draws a bar on standard output":
        wait(lambda: print("\\r#### 40 %", end="", flush=True))
        print(flush=True)
    case "prints JSON logs":
        wait(lambda: print('{"level": "info", "id": 1, "msg": "starting"}', flush=True))
    case "logs before the handshake":
        wait(lambda: send({"method": "notifications/message", "params": {"level": "info", "data": "starting"}}))
    case "asks before the handshake":
        send({"id": 1, "method": "roots/list"})
        send({"id": "a", "method": "ping"})
        wait()
    case "is a child" if "child" not in sys.argv:
        wait()
        sys.exit(subprocess.call([sys.executable, "-S", "-E", *sys.argv, "child"]))
    case "fails at first" if not MARK.exists():
        wait()
        MARK.touch()
        sys.exit(1)
late = threading.Event()
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method is None or "id" not in message:
        continue
    if KIND == f"is late with {method}":
        wait()
    if KIND == "ignores the probe" and method == "server/discover":
        continue
    if KIND == "has its tools late" and method == "tools/list" and not late.is_set():
        def announce():
            wait()
            late.set()
            send({"method": "notifications/tools/list_changed"})
        threading.Thread(target=announce, daemon=True).start()
    tools = [{"name": "t", "inputSchema": {"type": "object"}}]
    results = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "s", "version": "1"}},
        "tools/list": {"tools": [] if KIND == "has its tools late" and not late.is_set() else tools},
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
    }
    found = results.get(method)
    send({"id": message["id"], **({"result": found} if found else {"error": {"code": -32601, "message": "?"}})})
"""
PROCESSES = [
    "reads late", "reports progress on standard error", "reports progress on standard output",
    "draws a bar on standard output", "prints JSON logs", "logs before the handshake", "asks before the handshake",
    "is a child", "fails at first", "ignores the probe", "has its tools late", "is late with server/discover",
    "is late with initialize", "is late with tools/list",
]  # fmt: skip


def at_first(serve: Callable[[Peer], Awaitable[None]]) -> Callable[[Peer], Awaitable[None]]:
    """Serve like this for a few seconds after the first connection, then as an MCP server."""
    began_s: list[float] = []

    async def changing(peer: Peer) -> None:
        began_s.append(time.monotonic())
        await (serve if time.monotonic() < began_s[0] + SLOW_S else mcp)(peer)

    return changing


def answering(head: bytes, body: bytes = b"") -> Callable[[Peer], Awaitable[None]]:
    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.answer(body, head + b"connection: close\r\n")

    return serve


async def resetting(peer: Peer) -> None:
    await peer.request()
    peer.writer.transport.abort()


async def hanging(peer: Peer) -> None:
    await peer.request()
    await peer.reader.read()


SITES = {
    "503": answering(b"HTTP/1.1 503 Starting\r\nretry-after: 120\r\n"),
    "502": answering(b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\n", b"<html>"),
    "404": answering(b"HTTP/1.1 404 No\r\n"),
    "page": answering(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n", b"<html>The application is waking up"),
    "resets": resetting,
    "hangs": hanging,
}


@pytest.mark.heavy
async def test_slow_processes_are_listed_without_an_option(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(PROGRAM)
    servers: dict[str, Any] = {}
    for number, kind in enumerate(PROCESSES):
        options = [kind, str(SLOW_S), str(tmp_path / f"mark{number}")]
        servers[f"p{number}"] = {"command": sys.executable, "args": ["-S", "-E", str(program), *options]}
    shell = f"sleep {SLOW_S}; exec '{sys.executable}' -S -E '{program}' x 0 x"
    servers["shell"] = {"command": shutil.which("sh"), "args": ["-c", shell]}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed(*(f"{name}__t" for name in servers), within_s=90)
        for name in servers:
            assert text_of(await gateway.call(f"{name}__t")) == "done"


@pytest.mark.heavy
async def test_slow_network_servers_are_listed_without_an_option(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        servers: dict[str, Any] = {}
        for kind, serve in SITES.items():
            site = await stack.enter_async_context(serving(at_first(serve)))
            servers[f"h-{kind}"] = {"url": site.url}
        gateway = await stack.enter_async_context(running_gateway(tmp_path, servers))
        await gateway.until_listed(*(f"{name}__echo" for name in servers), within_s=25)
        for name in servers:
            assert text_of(await gateway.call(f"{name}__echo")) == "done"
