"""A server of raw bytes for tests of HTTP clients: each connection is served by what the test says."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from gateway.http.http_client import HttpClient

Serve = Callable[["Peer"], Awaitable[None]]


@dataclass
class Peer:
    """The server's side of one connection."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    requests: list[bytes] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def request(self) -> bytes:
        """Return the next request with its header block and body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)
        self.requests.append(head + await self.reader.readexactly(length))
        return self.requests[-1]

    def say(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    async def say_apart(self, data: bytes) -> None:
        """Send bytes, and let a client in this event loop read them before any more are sent."""
        self.say(data)
        await self.writer.drain()
        # The kernel has the bytes. In the next iteration the loop finds them, and the client reads them.
        for _ in range(2):
            await checkpoint()

    def answer(self, body: bytes, head: bytes = b"HTTP/1.1 200 OK\r\n") -> None:
        """Send a whole answer."""
        self.say(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))


@dataclass
class Site:
    """A server on a free port."""

    port: int = 0
    peers: list[Peer] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}/mcp"


@asynccontextmanager
async def serving(serve: Serve, *, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[Site]:
    """Serve each connection with `serve` until the block ends, on a free port by default."""
    site = Site()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(len(site.peers), reader, writer)
        site.peers.append(peer)
        try:
            await serve(peer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            peer.left.set()

    server = await asyncio.start_server(connected, "127.0.0.1", port, ssl=tls)
    site.port = server.sockets[0].getsockname()[1]
    try:
        with anyio.fail_after(120):
            yield site
    finally:
        server.close()
        # A connection that was accepted just now becomes a peer within a few turns of the loop.
        for _ in range(5):
            await asyncio.sleep(0)
        for peer in site.peers:
            peer.writer.transport.abort()
            await peer.left.wait()


async def echo(peer: Peer) -> None:
    """Answer each request with its body."""
    while True:
        request = await peer.request()
        peer.answer(request.partition(b"\r\n\r\n")[2])


TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "other")]
RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "s", "version": "1"},
    },
    "tools/list": {"tools": TOOLS},
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
}


def mcp_answer(message: dict[str, Any], result: dict[str, Any] | None = None) -> bytes:
    """Return the whole response of a small MCP server to a message."""
    if "id" not in message:
        return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
    found = result or RESULTS.get(message["method"])
    outcome = {"error": {"code": -32601, "message": "no such method"}} if found is None else {"result": found}
    body = json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


async def mcp(peer: Peer) -> None:
    """Answer as a small MCP server."""
    while True:
        peer.say(mcp_answer(message_of(await peer.request())))


def message_of(request: bytes) -> dict[str, Any]:
    """Return the message in a request; an empty object if the request has no body."""
    body = request.partition(b"\r\n\r\n")[2]
    message: dict[str, Any] = json.loads(body) if body else {}
    return message


@asynccontextmanager
async def a_client(**options: Any) -> AsyncIterator[HttpClient]:
    """Close a client of the gateway at the end."""
    client = HttpClient(**options)
    try:
        yield client
    finally:
        client.close()


async def ask(client: HttpClient, url: str, body: bytes = b"question", **headers: str) -> bytes:
    """Return the body of the answer to a POST."""
    async with client.send("POST", url, headers, body) as response:
        return await response.read()
