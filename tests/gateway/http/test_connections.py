"""Unread responses are bounded for all callers together, by the memory that they occupy."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from support.waiting import until

from gateway.http.http_request import RequestHead
from gateway.http.responder import Responder
from gateway.http.server_connection import HttpProtocol
from gateway.http.server_connections import MAX_UNREAD_BYTES, Connections, Handler

SIZE_BYTES = 16 * 2**20
# More than what the kernel takes for a reader with a small buffer.
LEFT_BYTES = 8 * 2**20
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"


class Large:
    """Answers every request with more bytes than the buffers of the kernel accept."""

    max_body_bytes = 0

    def route(self, head: RequestHead) -> Handler:
        return self

    def admit(self, head: RequestHead, peer: str) -> None:
        pass

    def answer(self, head: RequestHead, admitted: object, body: bytes, responder: Responder, peer: str) -> None:
        responder.respond(200, (bytes(SIZE_BYTES),))


@asynccontextmanager
async def served(max_unread_bytes: int = MAX_UNREAD_BYTES) -> AsyncIterator[tuple[list[HttpProtocol], tuple[str, int]]]:
    connections, made = Connections(most=10, max_unread_bytes=max_unread_bytes), list[HttpProtocol]()

    def protocol() -> HttpProtocol:
        made.append(HttpProtocol(connections, Large()))
        return made[-1]

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    try:
        yield made, server.sockets[0].getsockname()[:2]
    finally:
        server.close()


@asynccontextmanager
async def reading(address: tuple[str, int], size_bytes: int) -> AsyncIterator[socket.socket]:
    """Request a large response, and read this much of it."""
    loop = asyncio.get_running_loop()
    with socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.setblocking(False)
        await loop.sock_connect(caller, address)
        await loop.sock_sendall(caller, GET)
        await read(caller, size_bytes)
        yield caller


async def read(caller: socket.socket, size_bytes: int) -> None:
    with anyio.fail_after(25):
        while size_bytes > 0:
            data = await asyncio.get_running_loop().sock_recv(caller, min(size_bytes, 2**16))
            assert data
            size_bytes -= len(data)


async def test_partly_read_response_counts_as_whole_until_fully_read() -> None:
    async with served() as (made, address), reading(address, SIZE_BYTES - LEFT_BYTES) as caller:
        assert 0 < made[0].unread_bytes <= LEFT_BYTES
        assert made[0].held_bytes == SIZE_BYTES
        await read(caller, LEFT_BYTES)
        assert made[0].held_bytes == 0


async def test_shutdown_waits_for_a_client_that_reads() -> None:
    async with served() as (made, address), reading(address, 1) as caller, anyio.create_task_group() as group:
        group.start_soon(read, caller, SIZE_BYTES)
        await made[0]._connections.wait_until_read()
        assert made[0].unread_bytes == 0


async def test_callers_that_do_not_read_are_disconnected_at_the_limit() -> None:
    # Less than three answers, and more than what is unread of them.
    limit_bytes = 2 * SIZE_BYTES + LEFT_BYTES
    leave = SIZE_BYTES - LEFT_BYTES
    async with served(limit_bytes) as (made, address), reading(address, leave), reading(address, leave):
        assert not any(each.is_cut for each in made)
        async with reading(address, 1):
            assert [each.is_cut for each in made].count(True) == 1


async def test_client_that_is_cut_off_reads_nothing_more() -> None:
    async with served() as (made, address), reading(address, 1) as caller:
        made[0].cut()
        # The data in the buffers of the kernel is discarded, too.
        with pytest.raises(ConnectionResetError):
            await read(caller, SIZE_BYTES)


class Slow:
    """Answers `/slow` never, and anything else at once."""

    max_body_bytes = 0

    def route(self, head: RequestHead) -> Handler:
        return self

    def admit(self, head: RequestHead, peer: str) -> None:
        pass

    def answer(self, head: RequestHead, admitted: object, body: bytes, responder: Responder, peer: str) -> None:
        if head.path == b"/slow":
            responder.run(anyio.sleep_forever())
        else:
            responder.respond(200, (b"ok",))


class Accepted(Connections):
    """Counts the connections that were accepted, and the bytes that they have received."""

    accepted = received_bytes = 0


class Counting(HttpProtocol):
    """Adds what it receives to the counts of all connections."""

    def __init__(self, connections: Accepted) -> None:
        super().__init__(connections, Slow())
        self._counts = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._counts.accepted += 1
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._counts.received_bytes += len(data)
        super().data_received(data)


@asynccontextmanager
async def serving(most: int, **options: Any) -> AsyncIterator[tuple[Accepted, int]]:
    connections = Accepted(most=most, **options)
    server = await asyncio.get_running_loop().create_server(lambda: Counting(connections), "127.0.0.1", 0)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(connections.watch)
            yield connections, server.sockets[0].getsockname()[1]
            group.cancel_scope.cancel()
    finally:
        server.close()


async def connect(port: int, first_bytes: bytes = b"", address: str = "127.0.0.1") -> socket.socket:
    """Connect from an address and say something."""
    loop, caller = asyncio.get_running_loop(), socket.socket()
    caller.bind((address, 0))
    caller.setblocking(False)
    await loop.sock_connect(caller, ("127.0.0.1", port))
    await loop.sock_sendall(caller, first_bytes)
    return caller


async def status(port: int, address: str = "127.0.0.1") -> bytes:
    """The status that a request gets; nothing where the connection just ends."""
    with await connect(port, GET, address) as caller:
        return (await asyncio.get_running_loop().sock_recv(caller, 4096))[9:12]


@pytest.mark.parametrize(
    "first_bytes",
    [b"", b"GET / HTTP/1.1\r\n", b"G", b"\r\n", GET],
    ids=["nothing", "a part of a head", "one byte", "an empty line", "a request that was answered"],
)
async def test_idle_connections_are_closed_for_one_with_a_request(first_bytes: bytes) -> None:
    async with serving(20) as (connections, port):
        held = [await connect(port, first_bytes) for _ in range(60)]
        await until(lambda: connections.accepted == 60)
        for _ in range(5):
            assert await status(port) == b"200"
        assert connections.open <= 21
        for caller in held:
            caller.close()


async def test_connection_being_answered_is_not_closed_for_another() -> None:
    async with serving(10) as (connections, port):
        held = [await connect(port, SLOW) for _ in range(10)]
        await until(lambda: connections.received_bytes == 10 * len(SLOW))
        assert await status(port) == b"503"
        assert connections.open >= 10
        for caller in held:
            caller.close()


async def test_one_address_cannot_lock_out_another() -> None:
    async with serving(10, per_address=8) as (connections, port):
        held = [await connect(port, SLOW) for _ in range(8)]
        await until(lambda: connections.received_bytes == 8 * len(SLOW))
        assert await status(port) == b"503"
        assert await status(port, "127.0.0.2") == b"200"
        await until(lambda: connections.open == 8)
        held.pop().close()
        await until(lambda: connections.open == 7)
        assert await status(port) == b"200"
        # Connections without a request are closed first, also among those with a separate limit.
        await until(lambda: connections.open == 7)
        held += [await connect(port)]
        await until(lambda: connections.open == 8)
        assert await status(port) == b"200"
        for caller in held:
            caller.close()


async def test_silent_connection_is_closed_before_a_slow_one() -> None:
    async with serving(10, silent_s=0.2, sweep_s=0.05) as (connections, port):
        with await connect(port) as silent, await connect(port, b"GET / HT") as slow:
            with anyio.fail_after(25), suppress(ConnectionResetError):
                assert not await asyncio.get_running_loop().sock_recv(silent, 1)
            assert connections.open == 1
            await asyncio.get_running_loop().sock_sendall(slow, b"TP/1.1\r\nhost: x\r\n\r\n")
            assert (await asyncio.get_running_loop().sock_recv(slow, 4096))[9:12] == b"200"
