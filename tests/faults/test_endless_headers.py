"""Upstreams with endless header blocks are disconnected, and other callers are answered concurrently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import MIB, cpu_of, rss_of
from support.gateways import running_gateway, text_of
from support.pace import slowness
from support.raw_http import Peer, mcp_answer, message_of, serving
from support.upstreams.running import builtin_tools, scripted_stdio_server

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
# The beginning of a response, and the part that is repeated up to 8 MB, which was the bound of a message.
ANSWERS: dict[str, tuple[bytes, bytes]] = {
    "challenges": (b"HTTP/1.1 401 Unauthorized\r\n", b"www-authenticate: B\r\n"),
    "codings": (OK, b"content-encoding: identity\r\n"),
    "cookies": (OK, b"set-cookie: a=b\r\n"),
    "hints": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n"),
    "value": (OK + b"x: ", b"y"),
    "trailers": (STREAM + b"6\r\n: ok\n\n\r\n0\r\n", b"x: y\r\n"),
    "trailer": (STREAM + b"6\r\n: ok\n\n\r\n0\r\nx: ", b"y"),
    "extension": (STREAM + b"6\r\n: ok\n\n\r\n1;", b"y"),
}


@pytest.mark.parametrize(("begins", "goes_on"), ANSWERS.values(), ids=ANSWERS)
async def test_call_with_endless_response_headers_ends_and_delays_no_other(
    tmp_path: Path, begins: bytes, goes_on: bytes
) -> None:
    async def serve(peer: Peer) -> None:
        while True:
            message = message_of(await peer.request())
            if message.get("method") != "tools/call":
                peer.say(mcp_answer(message))
                continue
            peer.say(begins)
            piece = goes_on * (64_000 // len(goes_on))
            for _ in range(120):
                peer.say(piece)
                await peer.writer.drain()

    calm, _ = scripted_stdio_server(tmp_path, "calm", tools=builtin_tools("echo"))
    results: list[dict[str, Any]] = []
    async with (
        serving(serve) as site,
        running_gateway(tmp_path, {"h": {"url": site.url}, "calm": calm}) as gateway,
    ):
        await gateway.until_listed("h__echo", "calm__echo")
        before_s, before_bytes = cpu_of(gateway.process.pid), rss_of(gateway.process.pid)

        async def call() -> None:
            results.append(await gateway.call("h__echo", timeout_s=20))

        longest_s = 0.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            while not results:
                began_s = anyio.current_time()
                assert "isError" not in await gateway.call("calm__echo")
                longest_s = max(longest_s, anyio.current_time() - began_s)
        assert results[0]["isError"], json.dumps(results)
        assert "the headers of the answer are too large" in text_of(results[0])
        assert longest_s < 1
        assert cpu_of(gateway.process.pid) - before_s < 1.5 * slowness()
        assert rss_of(gateway.process.pid) - before_bytes < 32 * MIB
        assert "isError" not in await gateway.call("calm__echo")
