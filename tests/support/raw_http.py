"""A server of raw bytes for tests of HTTP clients: each connection is served by what the test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

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
        """The next request, head and body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)
        self.requests.append(head + await self.reader.readexactly(length))
        return self.requests[-1]

    def say(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

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
async def serving(serve: Serve, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    """Serve each connection with `serve`, until left."""
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

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    site.port = server.sockets[0].getsockname()[1]
    try:
        with anyio.fail_after(10):
            yield site
    finally:
        server.close()
        for peer in site.peers:
            peer.writer.transport.abort()
            await peer.left.wait()


async def echo(peer: Peer) -> None:
    """Answer each request with its body."""
    while True:
        request = await peer.request()
        peer.answer(request.partition(b"\r\n\r\n")[2])
