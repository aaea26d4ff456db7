"""A forward proxy on loopback that knows where the names of a test lead."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True)
class ForwardProxy:
    """The proxy.

    Attributes:
        hosts: The port on loopback of each name.
        authorization: The value of Proxy-Authorization that it wants; None for none.
        refuses: The response to every request instead of forwarding it; empty to forward.
        established: The response when a tunnel is open.
        asked: The first line of each request.
        headers: The header block of each request, in lower case.
    """

    hosts: Mapping[str, int]
    authorization: str | None = None
    refuses: bytes = b""
    established: bytes = b"HTTP/1.1 200 Connection established\r\nvia: the proxy of the test\r\n\r\n"
    port: int = 0
    request_lines: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        inner: asyncio.StreamWriter | None = None
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            first, _, rest = head.decode("latin-1").partition("\r\n")
            self.request_lines.append(first)
            self.headers.append(rest.lower())
            if self.refuses:
                writer.write(self.refuses)
                return
            wanted = self.authorization
            if wanted is not None and f"proxy-authorization: {wanted.lower()}\r\n" not in rest.lower():
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
                return
            method, target, _ = first.split(" ")
            host = urlsplit(f"//{target}" if method == "CONNECT" else target).hostname or ""
            if host not in self.hosts:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
                return
            source, inner = await asyncio.open_connection("127.0.0.1", self.hosts[host])
            if method == "CONNECT":
                for part in self.established.splitlines(keepends=True):
                    writer.write(part)
                    await asyncio.sleep(0)
            else:
                inner.write(head)
            there = asyncio.get_running_loop().create_task(_copy(reader, inner))
            await _copy(source, writer)
            there.cancel()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for one in (writer, inner):
                if one is not None:
                    one.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()


@asynccontextmanager
async def forward_proxy(
    hosts: Mapping[str, int], *, tls: ssl.SSLContext | None = None, authorization: str | None = None
) -> AsyncIterator[ForwardProxy]:
    """Serve until the block ends."""
    proxy = ForwardProxy(hosts, authorization)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=tls)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
