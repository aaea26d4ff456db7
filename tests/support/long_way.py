"""A way to a gateway on which no request is a usual one: every body comes in chunks, and takes the long way there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream


@asynccontextmanager
async def long_way(url: str) -> AsyncIterator[str]:
    """The address of `url` by the long way, for as long as the block lasts."""
    host, _, port = url.removeprefix("http://").partition("/")[0].rpartition(":")
    path = url.removeprefix(f"http://{host}:{port}")

    async def serve(caller: SocketStream) -> None:
        try:
            async with caller, await anyio.connect_tcp(host, int(port)) as gateway, anyio.create_task_group() as group:
                group.start_soon(back, gateway, caller)
                await forth(caller, gateway)
                group.cancel_scope.cancel()
        except* (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            pass

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        own = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield f"http://127.0.0.1:{own}{path}"
        group.cancel_scope.cancel()


async def back(gateway: SocketStream, caller: SocketStream) -> None:
    """Answers, as they come."""
    async for data in gateway:
        await caller.send(data)
    await caller.aclose()


async def forth(caller: SocketStream, gateway: SocketStream) -> None:
    """Requests, each body in two chunks."""
    reader = BufferedByteReceiveStream(caller)
    while True:
        try:
            head = await reader.receive_until(b"\r\n\r\n", 1 << 20)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError):
            return
        lines = head.split(b"\r\n")
        sizes = [int(line.partition(b":")[2]) for line in lines if line.lower().startswith(b"content-length:")]
        if not sizes:
            await gateway.send(head + b"\r\n\r\n")
            continue
        body = await reader.receive_exactly(sizes[0]) if sizes[0] else b""
        kept = [line for line in lines if not line.lower().startswith(b"content-length:")]
        middle = len(body) // 2
        parts = [part for part in (body[:middle], body[middle:]) if part]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        await gateway.send(b"\r\n".join([*kept, b"transfer-encoding: chunked"]) + b"\r\n\r\n" + chunks + b"0\r\n\r\n")
