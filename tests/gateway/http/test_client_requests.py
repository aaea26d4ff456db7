"""Requests of the HTTP client on the wire: their bytes, redirects, addresses, and bodies that are read in slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.certificates import authority
from support.raw_http import Peer, a_client, ask, echo, serving
from support.wires import Line

from gateway.http.client_connection import HttpConnection
from gateway.http.event_stream import PAUSE_BYTES
from gateway.http.http_client import HttpClient, Origin, Response, is_encoded
from gateway.protocol.gateway_errors import ConnectionLost

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "body", "headers", "wanted"),
    [
        ("GET", b"", {}, b"GET /mcp?a~ HTTP/1.1\r\nhost: HOST\r\naccept-encoding: identity\r\n\r\n"),
        (
            "POST",
            b"",
            {},
            b"POST /mcp?a~ HTTP/1.1\r\nhost: HOST\r\naccept-encoding: identity\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            "DELETE",
            b"ab",
            {"x": "\u00e9\u20ac"},
            b"DELETE /mcp?a~ HTTP/1.1\r\nhost: HOST\r\naccept-encoding: identity\r\nx: \xe9?\r\n"
            b"content-length: 2\r\n\r\nab",
        ),
        (
            "GET",
            b"",
            {"host": "other.test", "x": "y"},
            b"GET /mcp?a~ HTTP/1.1\r\naccept-encoding: identity\r\nhost: other.test\r\nx: y\r\n\r\n",
        ),
    ],
)
async def test_request_on_the_wire(method: str, body: bytes, headers: dict[str, str], wanted: bytes) -> None:
    async with serving(echo) as site, a_client() as client:
        for _ in range(2):
            async with client.send(method, site.url + "?a~", headers, body) as response:
                await response.read()
        [peer] = site.peers
        assert peer.requests == [wanted.replace(b"HOST", b"127.0.0.1:%d" % site.port)] * 2


async def test_whole_body_can_be_read_again_and_has_a_length() -> None:
    async def twice(peer: Peer) -> None:
        for kind in (b"application/json", b"text/plain") * 2:
            await peer.request()
            peer.answer(b"{}", b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\n")
        await peer.request()
        peer.say(CHUNKED + b"0\r\n\r\n")

    async with serving(twice) as site, a_client() as client:
        for number in range(5):
            async with client.send("GET", site.url, {}) as response:
                assert await response.read() == await response.read() == response.body
                assert response.length == ("2" if number < 4 else None)


async def test_body_larger_than_the_buffer_is_read_as_it_arrives() -> None:
    sizes = [2 * PAUSE_BYTES, 2 * PAUSE_BYTES, 1]

    async def large(peer: Peer) -> None:
        await peer.request()
        peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % sum(sizes))
        for size_bytes in sizes:
            peer.say(b"x" * size_bytes)
            await peer.writer.drain()

    async with serving(large) as site, a_client() as client:
        assert len(await ask(client, site.url)) == sum(sizes)


async def test_server_that_closes_without_a_response_is_lost() -> None:
    async def close(peer: Peer) -> None:
        await peer.request()

    async with serving(close) as site, a_client() as client:
        with pytest.raises(ConnectionLost, match="closed the connection") as lost:
            await ask(client, site.url)
        assert lost.value.sent


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 309])
@pytest.mark.parametrize("follows", [True, False])
async def test_only_redirects_that_keep_the_request_are_followed(status: int, follows: bool) -> None:
    async def redirect(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.startswith(b"POST /there "):
                peer.answer(b"there")
            else:
                peer.answer(b"here", b"HTTP/1.1 %d Moved\r\nlocation: /there\r\n" % status)

    async with serving(redirect) as site, a_client(follows_redirects=follows) as client:
        is_followed = follows and status in (307, 308)
        async with client.send("POST", site.url, {}) as response:
            assert (response.status, await response.read()) == ((200, b"there") if is_followed else (status, b"here"))
        assert len(site.peers) == 1


async def test_requests_go_through_a_socket_file_or_another_dialer(tmp_path: Path) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        writer.close()

    async def dial(protocol: Callable[[], HttpConnection]) -> HttpConnection:
        _, connection = await asyncio.get_running_loop().create_unix_connection(protocol, path)
        return connection

    seen, path = list[bytes](), str(tmp_path / "socket")
    async with await asyncio.start_unix_server(connected, path):
        for client in (HttpClient(unix_path=path), HttpClient(dial=dial)):
            assert await ask(client, "http://mcp.test/x") == b"ok"
    assert all(request.startswith(b"POST /x HTTP/1.1\r\nhost: mcp.test\r\n") for request in seen)
    with pytest.raises(ConnectionLost, match="cannot connect") as lost:
        await ask(HttpClient(unix_path=path), "http://mcp.test/x")
    assert not lost.value.sent


async def test_permitted_addresses_are_tried_in_order() -> None:
    addresses: list[str] = []

    async def resolve(origin: Origin) -> list[str]:
        assert str(origin) == f"http://mcp.test:{site.port}"
        return addresses

    async with serving(echo) as site, a_client(resolve=resolve) as client:
        url = f"http://mcp.test:{site.port}/"
        for addresses[:], reason in (([], "has no address"), (["127.0.0.2", "127.0.0.3"], r"127\.0\.0\.3")):
            with pytest.raises(ConnectionLost, match=reason):
                await ask(client, url)
        addresses[:] = ["127.0.0.2", "127.0.0.1", "127.0.0.3"]
        assert await ask(client, url) == b"question"


async def test_certificate_has_to_match_the_name_and_not_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(origin: Origin) -> list[str]:
        return ["127.0.0.1"]

    trusted = authority(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.file))
    for name, is_accepted in (("mcp.test", True), ("127.0.0.1", False)):
        async with serving(echo, tls=trusted.server(name)) as site, a_client(resolve=resolve) as client:
            for _ in range(2):
                if is_accepted:
                    assert await ask(client, f"https://mcp.test:{site.port}/") == b"question"
                else:
                    with pytest.raises(ConnectionLost, match="certificate"):
                        await ask(client, f"https://mcp.test:{site.port}/")


def response_of(*packets: bytes) -> Response:
    """Return a response of which these packets have arrived."""
    connection = HttpConnection(asyncio.get_running_loop(), "http://a.test")
    connection.connection_made(Line())
    connection.write(b"GET / HTTP/1.1\r\n\r\n")
    for packet in packets:
        connection.data_received(packet)
    return Response(connection.status, connection.headers, connection, anyio.Lock())


async def iterations_during(reading: Coroutine[Any, Any, None]) -> int:
    """Return how many iterations of the event loop happen while a body is read."""
    count = 0

    async def tick() -> None:
        nonlocal count
        while True:
            await asyncio.sleep(0)
            count += 1

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await reading
        group.cancel_scope.cancel()
    return count


@pytest.mark.parametrize(("line_count", "slice_count"), [(256, 1), (257, 3)])
async def test_body_of_many_lines_is_read_in_slices(line_count: int, slice_count: int) -> None:
    body = (b"data\n" * line_count).rjust(10_000, b"x")
    chunks: list[bytes] = []

    async def read() -> None:
        response = response_of(b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n", body)
        chunks.extend([chunk async for chunk in response.chunks()])

    iterations = await iterations_during(read())
    assert b"".join(chunks) == body
    assert [len(chunk) for chunk in chunks] == ([10_000] if slice_count == 1 else [4_096, 4_096, 1_808])
    # Other tasks run between the slices.
    assert iterations >= slice_count - 1


async def test_only_one_slice_is_processed_in_each_iteration() -> None:
    iteration, turns, slices = 0, anyio.Lock(), list[int]()

    async def tick() -> None:
        nonlocal iteration
        while True:
            await asyncio.sleep(0)
            iteration += 1

    async def read() -> None:
        response = response_of(b"HTTP/1.1 200 OK\r\ncontent-length: 20000\r\n\r\n", b"\n" * 20_000)
        response.turns = turns
        async for _ in response.chunks():
            slices.append(iteration)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        async with anyio.create_task_group() as readers:
            for _ in range(3):
                readers.start_soon(read)
        group.cancel_scope.cancel()
    assert len(slices) == len(set(slices)) == 15


@pytest.mark.parametrize("whole", [True, False])
async def test_body_of_many_pieces_is_read_after_a_turn(whole: bool) -> None:
    body: list[bytes] = []

    async def read() -> None:
        response = response_of(CHUNKED + b"1\r\nx\r\n" * 600 + b"0\r\n\r\n")
        body.extend([await response.read()] if whole else [chunk async for chunk in response.chunks()])

    iterations = await iterations_during(read())
    assert b"".join(body) == b"x" * 600
    assert iterations >= 1


@pytest.mark.parametrize(
    ("value", "is_compressed"),
    [("gzip", True), ("identity, X-GZIP", True), ("br ,", True), ("identity", False), ("", False), ("none", False)],
)
def test_content_encoding_that_names_no_coding_is_accepted(value: str, is_compressed: bool) -> None:
    assert is_encoded(value) is is_compressed
