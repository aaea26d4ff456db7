"""Connections to upstreams: which are used again, what ends them, and whose bytes an answer is made of."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from support.raw_http import Peer, echo, serving

from gateway.errors import ConnectionLost, HttpStatusError
from gateway.upstream.transport import http_client
from gateway.upstream.transport.http_client import HttpClient


@asynccontextmanager
async def a_client() -> AsyncIterator[HttpClient]:
    client = HttpClient()
    try:
        yield client
    finally:
        client.close()


async def ask(client: HttpClient, url: str, body: bytes = b"question", **headers: str) -> bytes:
    async with client.send("POST", url, headers, body) as response:
        return await response.read()


async def test_a_kept_connection_carries_the_next_request() -> None:
    async with serving(echo) as site, a_client() as client:
        for number in range(5):
            assert await ask(client, site.url, b"%d" % number) == b"%d" % number
        assert len(site.peers) == 1


@pytest.mark.parametrize("late", [b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged", b"\r\n", b"x"])
async def test_bytes_that_nobody_asked_for_close_a_kept_connection(late: bytes) -> None:
    async with serving(echo) as site, a_client() as client:
        assert await ask(client, site.url, b"one") == b"one"
        site.peers[0].say(late)
        await site.peers[0].left.wait()
        assert await ask(client, site.url, b"two") == b"two"
        assert len(site.peers) == 2


@pytest.mark.parametrize("ends", [False, True])
async def test_a_kept_connection_is_looked_at_before_it_is_used(ends: bool) -> None:
    async with serving(echo) as site, a_client() as client:
        assert await ask(client, site.url, b"one") == b"one"
        # Past its loop: the bytes are in the kernel's buffer, and the loop has had no turn to read them.
        raw = site.peers[0].writer.get_extra_info("socket")
        with socket.socket(fileno=socket.dup(raw.fileno())) as sock:
            sock.setblocking(True)
            sock.send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")
            if ends:
                sock.shutdown(socket.SHUT_WR)
        assert await ask(client, site.url, b"two") == b"two"
        assert len(site.peers) == 2


async def test_a_second_answer_in_the_same_segment_is_dropped_with_its_connection() -> None:
    async def twice(peer: Peer) -> None:
        request = await peer.request()
        body = request.partition(b"\r\n\r\n")[2]
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        peer.say(answer + answer)
        await peer.reader.read()

    async with serving(twice) as site, a_client() as client:
        for word in (b"one", b"two"):
            assert await ask(client, site.url, word) == word
        assert len(site.peers) == 2


async def test_a_server_that_speaks_before_it_is_asked_is_not_believed() -> None:
    spoken = anyio.Event()

    async def first(peer: Peer) -> None:
        if peer.number:
            await echo(peer)
        peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")
        spoken.set()
        await peer.reader.read()

    async with serving(first) as site, a_client() as client:
        connection = await client._connect(site.url)
        await spoken.wait()
        while connection.lost is None:
            await asyncio.sleep(0)
        assert connection.lost == "the peer speaks unasked"
        with pytest.raises(ConnectionLost) as lost:
            connection.write(b"POST / HTTP/1.1\r\n\r\n")
        assert not lost.value.sent


async def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(echo) as site, a_client() as client:
        await ask(client, site.url)
        monkeypatch.setattr(http_client, "IDLE_S", 0.0)
        await ask(client, site.url)
        assert len(site.peers) == 2
        await site.peers[0].left.wait()


async def test_no_more_idle_connections_are_kept_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_IDLE", 2)
    here = anyio.Event()

    async def together(peer: Peer) -> None:
        await peer.request()
        if peer.number == 3:
            here.set()
        await here.wait()
        peer.answer(b"ok")
        await echo(peer)

    async with serving(together) as site, a_client() as client:
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(ask, client, site.url)
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(ask, client, site.url)
        assert len(site.peers) == 4
        while sum(peer.left.is_set() for peer in site.peers) < 2:
            await asyncio.sleep(0)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"])
async def test_a_body_without_a_length_ends_with_its_connection(head: bytes) -> None:
    async def until_close(peer: Peer) -> None:
        await peer.request()
        peer.say(head + b"as far ")
        await peer.writer.drain()
        peer.say(b"as it goes")

    async with serving(until_close) as site, a_client() as client:
        assert await ask(client, site.url) == b"as far as it goes"
        assert await ask(client, site.url) == b"as far as it goes"
        assert len(site.peers) == 2


@pytest.mark.parametrize("framing", [b"content-length: 100\r\n", b"transfer-encoding: chunked\r\n"])
async def test_a_body_that_ends_before_its_length_is_no_answer(framing: bytes) -> None:
    async def cut(peer: Peer) -> None:
        await peer.request()
        peer.say(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n5\r\nhello\r\n")

    async with serving(cut) as site, a_client() as client:
        with pytest.raises(ConnectionLost) as lost:
            await ask(client, site.url)
        assert lost.value.sent


async def test_a_body_that_a_reset_ends_is_no_answer() -> None:
    async def reset(peer: Peer) -> None:
        await peer.request()
        peer.say(b"HTTP/1.1 200 OK\r\n\r\nas far ")
        await peer.writer.drain()
        sock = peer.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.writer.transport.abort()

    async with serving(reset) as site, a_client() as client:
        with pytest.raises(ConnectionLost):
            await ask(client, site.url)


@pytest.mark.parametrize("closing", [b"", b"connection: close\r\n"])
async def test_no_request_follows_a_redirect_to_another_origin(closing: bytes) -> None:
    async with serving(echo) as other:

        async def redirect(peer: Peer) -> None:
            while True:
                await peer.request()
                where = b"location: " + other.url.encode() + b"\r\n"
                peer.answer(b"", b"HTTP/1.1 307 Elsewhere\r\n" + where + closing)
                if closing:
                    return

        async with serving(redirect) as site, a_client() as client:
            for _ in range(2):
                with pytest.raises(HttpStatusError, match="another origin"):
                    await ask(client, site.url, authorization="Bearer ours")
            assert other.peers == []
            assert len(site.peers) == (2 if closing else 1)


async def test_a_redirect_within_the_origin_is_followed_with_everything_that_was_sent() -> None:
    async def redirect(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.startswith(b"POST /mcp/ "):
                peer.answer(request)
            else:
                peer.answer(b"", b"HTTP/1.1 308 Moved\r\nlocation: /mcp/\r\nconnection: close\r\n")
                return

    async with serving(redirect) as site, a_client() as client:
        answer = await ask(client, site.url, authorization="Bearer ours")
        assert b"authorization: Bearer ours\r\n" in answer
        assert answer.endswith(b"\r\n\r\nquestion")


@pytest.mark.parametrize("value", ["a\r\nx-more: b", "a\nb", "a\rb", "a\0b", "\r\n\r\nGET / HTTP/1.1"])
@pytest.mark.parametrize("as_name", [False, True])
async def test_a_header_with_a_line_break_is_never_sent(value: str, as_name: bool) -> None:
    async with serving(echo) as site, a_client() as client:
        with pytest.raises(ValueError, match="line break"):
            await ask(client, site.url, **({value: "x"} if as_name else {"x-value": value}))
        assert site.peers == []
