"""What callers leave unread is bounded for all of them together, by what it keeps in memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from gateway.downstream.http import connections as connections_module
from gateway.downstream.http.connections import Connections
from gateway.downstream.http.handler import Handler
from gateway.downstream.http.protocol import HttpProtocol
from gateway.downstream.http.request import RequestHead
from gateway.downstream.http.responder import Responder

SIZE_BYTES = 16 * 2**20
# More than what the kernel takes for a reader with a small buffer.
LEFT_BYTES = 8 * 2**20
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Large:
    """Answers every request with so much that the kernel does not take all of it."""

    max_body_bytes = 0

    def route(self, head: RequestHead) -> Handler:
        return self

    def admit(self, head: RequestHead, peer: str) -> None:
        pass

    def answer(self, head: RequestHead, admitted: object, body: bytes, responder: Responder, peer: str) -> None:
        responder.respond(200, (bytes(SIZE_BYTES),))


@asynccontextmanager
async def served() -> AsyncIterator[tuple[list[HttpProtocol], tuple[str, int]]]:
    connections, made = Connections(most=10), list[HttpProtocol]()

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
    """Ask for a large answer and read so much of it."""
    loop = asyncio.get_running_loop()
    with socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.setblocking(False)
        await loop.sock_connect(caller, address)
        await loop.sock_sendall(caller, GET)
        await read(caller, size_bytes)
        yield caller


async def read(caller: socket.socket, size_bytes: int) -> None:
    with anyio.fail_after(10):
        while size_bytes > 0:
            data = await asyncio.get_running_loop().sock_recv(caller, min(size_bytes, 2**16))
            assert data
            size_bytes -= len(data)


async def test_an_answer_that_is_read_in_part_counts_as_a_whole_until_its_last_byte_is_read() -> None:
    async with served() as (made, address), reading(address, SIZE_BYTES - LEFT_BYTES) as caller:
        assert 0 < made[0].unread_bytes <= LEFT_BYTES
        assert made[0].held_bytes == SIZE_BYTES
        await read(caller, LEFT_BYTES)
        assert made[0].held_bytes == 0


async def test_callers_that_leave_the_end_of_their_answers_unread_are_cut_at_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Less than three answers, and more than what is unread of them.
    monkeypatch.setattr(connections_module, "MAX_UNREAD_BYTES", 2 * SIZE_BYTES + LEFT_BYTES)
    leave = SIZE_BYTES - LEFT_BYTES
    async with served() as (made, address), reading(address, leave), reading(address, leave):
        assert not any(each.is_cut for each in made)
        async with reading(address, 1):
            assert [each.is_cut for each in made].count(True) == 1
