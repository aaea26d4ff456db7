"""Connections to upstreams: reuse, termination, and the assignment of bytes to responses."""

from __future__ import annotations

import asyncio
import socket

import anyio
import pytest
from support.raw_http import Peer, a_client, ask, echo, serving
from support.waiting import until

from gateway.http.event_stream import PAUSE_BYTES
from gateway.http.http_client import split_url
from gateway.protocol.gateway_errors import ConnectionLost, HttpStatusError, UnusableAnswer


async def test_idle_connection_is_reused() -> None:
    async with serving(echo) as site, a_client() as client:
        for number in range(5):
            assert await ask(client, site.url, b"%d" % number) == b"%d" % number
        assert len(site.peers) == 1


@pytest.mark.parametrize("late", [b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged", b"\r\n", b"x"])
async def test_unsolicited_bytes_close_an_idle_connection(late: bytes) -> None:
    async with serving(echo) as site, a_client() as client:
        assert await ask(client, site.url, b"one") == b"one"
        site.peers[0].say(late)
        await site.peers[0].left.wait()
        assert await ask(client, site.url, b"two") == b"two"
        assert len(site.peers) == 2


@pytest.mark.parametrize("ends", [False, True])
async def test_idle_connection_is_checked_before_reuse(ends: bool) -> None:
    async with serving(echo) as site, a_client() as client:
        assert await ask(client, site.url, b"one") == b"one"
        # Bypass the loop: the bytes are in the kernel's buffer before the loop can read them.
        raw = site.peers[0].writer.get_extra_info("socket")
        with socket.socket(fileno=socket.dup(raw.fileno())) as sock:
            sock.setblocking(True)
            sock.send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")
            if ends:
                sock.shutdown(socket.SHUT_WR)
        assert await ask(client, site.url, b"two") == b"two"
        assert len(site.peers) == 2


async def test_second_response_in_the_same_segment_is_dropped_with_its_connection() -> None:
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


JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


@pytest.mark.parametrize("behind", [b"\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"])
async def test_bytes_after_a_body_do_not_affect_its_response(
    behind: bytes,
) -> None:
    async def chatty(peer: Peer) -> None:
        while True:
            body = (await peer.request()).partition(b"\r\n\r\n")[2]
            await peer.say_apart(JSON_HEAD % len(body))
            peer.say(body + behind)

    async with serving(chatty) as site, a_client() as client:
        for word in (b"one", b"two", b"three", b"four"):
            assert await ask(client, site.url, word) == word


async def test_server_that_speaks_first_is_not_trusted() -> None:
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
        await until(lambda: connection.lost)
        assert connection.lost == "the peer sent data without a request"
        with pytest.raises(ConnectionLost) as lost:
            connection.write(b"POST / HTTP/1.1\r\n\r\n")
        assert not lost.value.sent


async def test_connection_idle_for_too_long_is_not_reused() -> None:
    async with serving(echo) as site, a_client(idle_s=0.0) as client:
        await ask(client, site.url)
        await ask(client, site.url)
        assert len(site.peers) == 2
        await site.peers[0].left.wait()


async def test_number_of_idle_connections_is_bounded() -> None:
    here = anyio.Event()

    async def together(peer: Peer) -> None:
        await peer.request()
        if peer.number == 3:
            here.set()
        await here.wait()
        peer.answer(b"ok")
        await echo(peer)

    async with serving(together) as site, a_client(max_idle=2) as client:
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(ask, client, site.url)
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(ask, client, site.url)
        assert len(site.peers) == 4
        await until(lambda: sum(peer.left.is_set() for peer in site.peers) == 2)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"])
async def test_body_without_length_ends_with_its_connection(head: bytes) -> None:
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
async def test_truncated_body_is_an_error(framing: bytes) -> None:
    async def cut(peer: Peer) -> None:
        await peer.request()
        peer.say(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n5\r\nhello\r\n")

    async with serving(cut) as site, a_client() as client:
        with pytest.raises(ConnectionLost) as lost:
            await ask(client, site.url)
        assert lost.value.sent


async def test_body_ended_by_a_reset_is_an_error() -> None:
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
async def test_redirect_to_another_origin_is_not_followed(closing: bytes) -> None:
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


async def test_redirect_within_the_origin_is_followed_with_the_whole_request() -> None:
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
async def test_header_with_a_line_break_is_not_sent(value: str, as_name: bool) -> None:
    async with serving(echo) as site, a_client() as client:
        with pytest.raises(ValueError, match="line break"):
            await ask(client, site.url, **({value: "x"} if as_name else {"x-value": value}))
        assert site.peers == []


@pytest.mark.parametrize(("count", "taken"), [(256, True), (257, False)])
async def test_number_of_response_headers_is_limited(count: int, taken: bool) -> None:
    async def many(peer: Peer) -> None:
        await peer.request()
        # One of them is the length.
        peer.answer(b"ok", b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(count - 1)))

    async with serving(many) as site, a_client() as client:
        if taken:
            assert await ask(client, site.url) == b"ok"
            return
        with pytest.raises(ConnectionLost, match="more than 256 lines"):
            await ask(client, site.url)


@pytest.mark.parametrize(("size_bytes", "taken"), [(65_000, True), (65_600, False)])
async def test_response_headers_are_limited_to_64_kib(size_bytes: int, taken: bool) -> None:
    async def long(peer: Peer) -> None:
        await peer.request()
        peer.answer(b"ok", b"HTTP/1.1 200 OK\r\nx: " + b"y" * size_bytes + b"\r\n")
        await peer.reader.read()

    async with serving(long) as site, a_client() as client:
        if taken:
            async with client.send("POST", site.url, {}) as response:
                assert response.headers["x"] == "y" * size_bytes
            return
        with pytest.raises(ConnectionLost, match="or 64 KiB"):
            await ask(client, site.url)


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"
ENDLESS = {
    "a list on many lines": (b"HTTP/1.1 401 No\r\n", b"www-authenticate: Bearer realm=x\r\n" * 500),
    "a header on many lines": (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 2_000),
    "a header on many lines in other letters": (
        b"HTTP/1.1 200 OK\r\n",
        b"Set-Cookie: a=b\r\nset-cookie: a=b\r\n" * 400,
    ),
    "long values of a list": (b"HTTP/1.1 200 OK\r\n", b"content-encoding: " + b"identity, " * 3_000 + b"\r\n"),
    "a value that does not end": (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 16_000),
    "a name that does not end": (b"HTTP/1.1 200 OK\r\n", b"y" * 16_000),
    "a reason that does not end": (b"HTTP/1.1 200 O", b"K" * 16_000),
    "informational responses": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500),
    "headers of informational responses": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: a\r\nlink: b\r\n\r\n" * 200),
    "trailers": (CHUNKED + b"0\r\n", b"x: y\r\n" * 2_000),
    "long trailers": (CHUNKED + b"0\r\n", b"x: " + b"y" * 16_000 + b"\r\n"),
    "a trailer that does not end": (CHUNKED + b"0\r\nx: ", b"y" * 16_000),
    "a chunk extension that does not end": (CHUNKED + b"2;x=", b"y" * 16_000),
}


@pytest.mark.parametrize(("begins", "goes_on"), ENDLESS.values(), ids=ENDLESS)
async def test_endless_header_block_is_refused_at_the_limit(begins: bytes, goes_on: bytes) -> None:
    sent_bytes = 0

    async def endless(peer: Peer) -> None:
        nonlocal sent_bytes
        await peer.request()
        peer.say(begins)
        while not peer.writer.is_closing():
            sent_bytes += len(goes_on)
            await peer.say_apart(goes_on)

    async with serving(endless) as site, a_client() as client:
        with pytest.raises(ConnectionLost, match="the headers of the answer are too large"):
            await ask(client, site.url)
        # The buffers of the kernel contain most of it.
        assert sent_bytes < 8 * 2**20


async def test_trailers_are_dropped_and_repeated_headers_joined() -> None:
    lines = (
        b"www-authenticate: Bearer\r\nx: 1\r\nWWW-Authenticate: Basic\r\nset-cookie: a=1\r\nx: 2\r\nset-cookie: b=2\r\n"
    )

    async def trailing(peer: Peer) -> None:
        await peer.request()
        head = CHUNKED.replace(b"\r\n\r\n", b"\r\n" + lines + b"\r\n", 1)
        peer.say(head + b"0\r\nwww-authenticate: Digest\r\nset-cookie: c=3\r\nx: 3\r\n\r\n")
        await peer.reader.read()

    async with serving(trailing) as site, a_client() as client, client.send("POST", site.url, {}) as response:
        assert await response.read() == b"ok"
        assert response.headers["www-authenticate"] == "Bearer, Basic"
        assert response.headers["x"] == "2"
        assert response.connection.set_cookies == ["a=1", "b=2"]


@pytest.mark.parametrize("status", [b"100 Continue", b"103 Early Hints"])
async def test_interim_responses_are_skipped(status: bytes) -> None:
    async def early(peer: Peer) -> None:
        await peer.request()
        peer.say(b"HTTP/1.1 " + status + b"\r\nx-early: 1\r\n\r\n")
        peer.answer(b"ok")
        await echo(peer)

    async with serving(early) as site, a_client() as client:
        async with client.send("POST", site.url, {}) as response:
            assert (response.status, await response.read()) == (200, b"ok")
            assert "x-early" not in response.headers
        assert await ask(client, site.url) == b"question"
        assert len(site.peers) == 1


async def test_compressed_response_is_refused_and_identity_accepted() -> None:
    async def coded(peer: Peer) -> None:
        coding = b"identity" if peer.number else b"gzip"
        request = await peer.request()
        assert b"accept-encoding: identity\r\n" in request
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: " + coding + b"\r\n"
        peer.answer(b"ok", head)
        await peer.reader.read()

    async with serving(coded) as site, a_client() as client:
        with pytest.raises(UnusableAnswer, match="compressed"):
            await ask(client, site.url)
        await site.peers[0].left.wait()
        assert await ask(client, site.url) == b"ok"


async def test_redirect_loop_ends() -> None:
    async def circle(peer: Peer) -> None:
        while True:
            await peer.request()
            peer.answer(b"", b"HTTP/1.1 307 Again\r\nlocation: /mcp\r\n")

    async with serving(circle) as site, a_client() as client:
        with pytest.raises(HttpStatusError, match="too many redirects"):
            await ask(client, site.url)
        assert [len(peer.requests) for peer in site.peers] == [4]


async def test_sender_is_slowed_down_until_its_response_is_read() -> None:
    async def large(peer: Peer) -> None:
        await peer.request()
        peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 * 2**20))
        for _ in range(64):
            peer.say(b"x" * 2**20)
            await peer.writer.drain()
        await peer.reader.read()

    async with serving(large) as site, a_client() as client, client.send("GET", site.url, {}) as response:
        connection = response.connection
        await until(lambda: connection._buffered_bytes > PAUSE_BYTES)
        held = connection._buffered_bytes
        for _ in range(50):
            await asyncio.sleep(0)
        # At most one more read of the loop.
        assert connection._buffered_bytes == held < 2 * 2**20
        size_bytes = 0
        async for piece in response.chunks():
            size_bytes += len(piece)
        assert size_bytes == 64 * 2**20


async def test_response_over_the_readers_limit_closes_the_connection() -> None:
    async with serving(echo) as site, a_client() as client:
        async with client.send("POST", site.url, {}, b"x" * 100) as response:
            with pytest.raises(UnusableAnswer, match="larger than 99 bytes"):
                await response.read(99)
        async with client.send("POST", site.url, {}, b"x" * 100) as response:
            assert len(await response.read(100)) == 100


async def test_leaving_before_the_end_of_a_response_drops_the_connection() -> None:
    async def half(peer: Peer) -> None:
        await peer.request()
        peer.say(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 10\r\n\r\nhalf")
        await peer.reader.read()

    async with serving(half) as site, a_client() as client:
        async with client.send("GET", site.url, {}) as response:
            assert response.status == 200
        await site.peers[0].left.wait()
        async with client.send("GET", site.url, {}):
            pass
        assert len(site.peers) == 2


async def test_closed_client_leaves_no_connection_open() -> None:
    async with serving(echo) as site:
        async with a_client() as client:
            await ask(client, site.url)
            assert not site.peers[0].left.is_set()
        await site.peers[0].left.wait()


@pytest.mark.parametrize("kept", [b"connection: close\r\n", b""])
async def test_only_persistent_connections_are_reused(kept: bytes) -> None:
    async def answer(peer: Peer) -> None:
        while True:
            await peer.request()
            peer.answer(b"ok", b"HTTP/1.1 200 OK\r\n" + kept)

    async with serving(answer) as site, a_client() as client:
        for _ in range(2):
            assert await ask(client, site.url) == b"ok"
        assert len(site.peers) == (2 if kept else 1)


@pytest.mark.parametrize(
    "url", ["ftp://a.test/", "/relative", "http:///x", "http://a.test/\u00e9", "http://a.test/a b"]
)
async def test_invalid_url_is_never_connected_to(url: str) -> None:
    async with a_client() as client:
        with pytest.raises(ValueError, match="URL"):
            await ask(client, url)


def test_authority_names_unusual_ports_and_brackets_ipv6() -> None:
    given = ("http://a.test/x", "https://a.test/x?y=1", "http://a.test:443/", "https://[::1]:8443", "https://[::1]")
    authorities = [split_url(url)[0].authority for url in given]
    assert authorities == ["a.test", "a.test", "a.test:443", "[::1]:8443", "[::1]"]
    assert [split_url(url)[1] for url in given] == ["/x", "/x?y=1", "/", "/", "/"]
