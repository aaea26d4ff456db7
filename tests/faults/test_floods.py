"""Floods of tiny events and chunks from one server do not delay callers of others."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.gateways import running_gateway
from support.raw_http import Peer, mcp_answer, message_of
from support.upstreams.running import builtin_tools, scripted_stdio_server

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LOG = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}).encode()


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


FLOODS = {
    "comments": chunked(b":\n" * 30_000),
    "empty lines": chunked(b"\n" * 60_000),
    "empty events": chunked(b"data\n\n" * 10_000),
    "fields": chunked(b"id:1\nretry:5\n" * 5_000),
    "messages": chunked((b"data:" + LOG + b"\n\n") * 500),
    "no messages": chunked(b"data:{}\n\n" * 6_000),
    "chunks": chunked(b":") * 10_000,
}


def _serve(listener: socket.socket, flood: bytes) -> None:
    """Answer as an MCP server whose calls are answered by a flood without end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(0, reader, writer)
        try:
            while True:
                message = message_of(await peer.request())
                if message.get("method") != "tools/call":
                    peer.say(mcp_answer(message))
                    continue
                peer.say(HEAD)
                while True:
                    peer.say(flood)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        await (await asyncio.start_server(serve, sock=listener)).serve_forever()

    asyncio.run(main())


@contextmanager
def flooding(flood: bytes) -> Iterator[str]:
    """Serve in a separate process, because this process measures."""
    listener = socket.create_server(("127.0.0.1", 0))
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(listener, flood), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        process.kill()
        process.join()
        listener.close()


@pytest.mark.heavy
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_flood_of_one_server_does_not_delay_others(tmp_path: Path, flood: bytes) -> None:
    calm, _ = scripted_stdio_server(tmp_path, "calm", tools=builtin_tools("echo"))
    with flooding(flood) as url:
        servers: dict[str, Any] = {"h": {"url": url, "callTimeout": 6}, "calm": calm}
        async with running_gateway(tmp_path, servers) as gateway:
            await gateway.until_listed("h__echo", "calm__echo")
            took_s: list[float] = []
            async with anyio.create_task_group() as tasks:
                for _ in range(12):
                    tasks.start_soon(lambda: gateway.call("h__echo", timeout_s=30))
                await anyio.sleep(0.5)
                until_s = anyio.current_time() + 4
                while anyio.current_time() < until_s:
                    began_s = anyio.current_time()
                    assert "isError" not in await gateway.call("calm__echo")
                    took_s.append(anyio.current_time() - began_s)
            took_s.sort()
            assert took_s[len(took_s) // 2] < 0.5
