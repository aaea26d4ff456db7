"""Cookies of one connection: sent back to the server that set them, and to nobody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.raw_http import Peer, message_of, serving

from gateway.upstream.transport.cookies import Cookies
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.transport.http_sse import open_sse
from gateway.upstream.transport.streamable_http import StreamableHttpTransport, open_streamable_http

URL = "http://127.0.0.1:8000/api/mcp"
PAST, FUTURE = "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"


def sent_back(*lines: str, url: str = URL, to: str = URL, configured: str = "") -> str:
    cookies = Cookies(url, configured)
    for line in lines:
        cookies.take(url, [line])
    return cookies.header(to)


@pytest.mark.parametrize(
    ("lines", "header"),
    [
        (["a=1"], "a=1"),
        (["a=1; Path=/; HttpOnly"], "a=1"),
        ([f"AWSALB=x+/y==; Expires={FUTURE}; Path=/"], "AWSALB=x+/y=="),
        (["AWSALB=1; Path=/", "AWSALBCORS=1; SameSite=None; Path=/"], "AWSALB=1; AWSALBCORS=1"),
        (['a="quoted value"; Path=/'], 'a="quoted value"'),
        (["a=1=2; Path=/"], "a=1=2"),
        (["a=; Path=/"], "a="),
        (["a=1; Path=/", "a=2; Path=/"], "a=2"),
        (["a=1; Path=/", f"a=1; Path=/; Expires={PAST}"], ""),
        (["a=1; Path=/", "a=; Path=/; Max-Age=0"], ""),
        (["a=1; Path=/", "a=1; Path=/; Max-Age=-1"], ""),
        (["a=1; Path=/; Max-Age=3600"], "a=1"),
        ([f"a=1; Expires={PAST}; Max-Age=3600; Path=/"], "a=1"),
        ([f"a=1; Expires={FUTURE}; Max-Age=0; Path=/"], ""),
        (["a=1; Path=/", "b=2; Path=/"], "a=1; b=2"),
        (["a=1; Path=/api/mcp"], "a=1"),
        (["a=1; Path=/api"], "a=1"),
        (["a=1; Path=/other"], ""),
        (["a=1; Path=/api/mc"], ""),
        (["a=1; Secure; Path=/"], ""),
        (["a=1; Domain=other.test; Path=/"], ""),
        (["a=1; Domain=127.0.0.1; Path=/"], "a=1"),
        (["a=" + "x" * 5_000], ""),
        (["; nothing", "", "=", "a=1; Path=/"], "a=1"),
        (["a=1; Partitioned; Priority=High; Path=/"], "a=1"),
    ],
)  # fmt: skip
def test_a_cookie_is_sent_back_as_its_attributes_say(lines: list[str], header: str) -> None:
    assert sent_back(*lines) == header


def test_a_cookie_for_encrypted_connections_is_sent_over_those() -> None:
    url = "https://mcp.example.test/mcp"
    assert sent_back("a=1; Secure; Path=/", url=url, to=url) == "a=1"
    assert sent_back("a=1; Domain=example.test; Path=/", url=url, to=url) == "a=1"
    assert sent_back("a=1; Domain=.example.test; Path=/; Secure; SameSite=Lax", url=url, to=url) == "a=1"
    assert sent_back("a=1; Domain=mcp.example.test.evil.test; Path=/", url=url, to=url) == ""


def test_nothing_is_taken_from_another_origin() -> None:
    cookies = Cookies(URL)
    for url in ("http://127.0.0.1:8001/api/mcp", "https://127.0.0.1:8000/api/mcp", "http://other.test/"):
        cookies.take(url, ["a=1; Path=/"])
    assert cookies.header(URL) == ""


def test_what_the_configuration_says_is_sent_too_unless_the_server_replaces_it() -> None:
    assert sent_back(configured="a=1; b=2") == "a=1; b=2"
    assert sent_back("c=3; Path=/", configured="a=1; b=2") == "a=1; b=2; c=3"
    assert sent_back("a=3; Path=/", configured="a=1; b=2") == "b=2; a=3"
    assert sent_back("a=3; Path=/", "a=; Max-Age=0; Path=/", configured="a=1; b=2") == "a=1; b=2"


def test_there_are_so_many_cookies_and_no_more() -> None:
    cookies = Cookies(URL)
    cookies.take(URL, [f"c{number}=1; Path=/" for number in range(500)])
    assert cookies.header(URL).count(";") == 49


@asynccontextmanager
async def connected(serve: Callable[[Peer], Any], count: int = 1) -> AsyncIterator[list[StreamableHttpTransport]]:
    client = HttpClient()
    async with serving(serve) as site:
        first = open_streamable_http("a", site.url, headers={"Cookie": "own=1"}, client=client, on_message=print)
        second = open_streamable_http("b", site.url, headers={}, client=client, on_message=print)
        async with first as one, second as other:
            yield [one, other][:count]
    client.close()


def cookie_of(request: bytes) -> str:
    lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    found = [line.partition(": ")[2] for line in lines if line.lower().startswith("cookie:")]
    assert len(found) <= 1
    return found[0] if found else ""


def answer_with(peer: Peer, request: bytes, *set_cookies: str) -> None:
    answer = {"jsonrpc": "2.0", "id": message_of(request).get("id"), "result": {}}
    head = "".join(f"Set-Cookie: {cookie}\r\n" for cookie in set_cookies)
    peer.answer(json.dumps(answer).encode(), f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{head}".encode())


async def test_a_balancer_that_sets_another_cookie_with_each_answer_gets_the_latest() -> None:
    seen: list[str] = []

    async def serve(peer: Peer) -> None:
        while True:
            request = await peer.request()
            seen.append(cookie_of(request))
            number = len(seen)
            answer_with(peer, request, f"AWSALB={number}; Path=/", f"AWSALBCORS={number}; Path=/; SameSite=None")

    async with connected(serve) as [transport]:
        for _ in range(3):
            await transport.request("tools/call", {})
        await transport.notify("notifications/x")
    assert seen == ["own=1", *(f"own=1; AWSALB={n}; AWSALBCORS={n}" for n in (1, 2, 3))]


async def test_one_answer_without_cookies_forgets_none_and_one_connection_tells_another_nothing() -> None:
    seen: list[str] = []

    async def serve(peer: Peer) -> None:
        while True:
            request = await peer.request()
            seen.append(cookie_of(request))
            answer_with(peer, request, *(["a=1; Path=/"] if len(seen) == 1 else []))

    async with connected(serve, 2) as [one, other]:
        for transport in (one, other, one, other, one):
            await transport.request("tools/call", {})
    assert seen == ["own=1", "", "own=1; a=1", "", "own=1; a=1"]


async def test_a_cookie_that_ends_is_not_sent_any_longer() -> None:
    seen: list[str] = []

    async def serve(peer: Peer) -> None:
        while True:
            request = await peer.request()
            seen.append(cookie_of(request))
            answer_with(peer, request, *(["a=1; Path=/; Max-Age=1", "b=2; Path=/"] if len(seen) == 1 else []))

    async with connected(serve) as [transport]:
        await transport.request("tools/call", {})
        await transport.request("tools/call", {})
        while "a=1" in seen[-1]:
            await asyncio.sleep(0.1)
            await transport.request("tools/call", {})
    assert seen[1] == "own=1; a=1; b=2"
    assert seen[-1] == "own=1; b=2"


async def test_a_redirect_that_sets_a_cookie_finds_it_in_the_next_request() -> None:
    seen: list[tuple[str, str]] = []

    async def serve(peer: Peer) -> None:
        while True:
            request = await peer.request()
            target = request.split(b" ")[1].decode()
            seen.append((target, cookie_of(request)))
            if target == "/mcp" and "a=1" not in cookie_of(request):
                peer.answer(b"", b"HTTP/1.1 307 Again\r\nlocation: /mcp\r\nset-cookie: a=1; Path=/\r\n")
            else:
                answer_with(peer, request)

    async with connected(serve) as [transport]:
        await transport.request("tools/call", {})
    assert seen == [("/mcp", "own=1"), ("/mcp", "own=1; a=1")]


async def test_the_older_transport_posts_with_the_cookies_of_its_stream() -> None:
    posted: list[str] = []
    streams: list[Peer] = []

    async def serve(peer: Peer) -> None:
        request = await peer.request()
        if request.startswith(b"GET"):
            streams.append(peer)
            peer.say(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nset-cookie: node=a; Path=/\r\n\r\n")
            peer.say(b"event: endpoint\ndata: /post?s=1\n\n")
            await peer.reader.read()
            return
        while True:
            posted.append(cookie_of(request))
            peer.answer(b"", b"HTTP/1.1 202 Accepted\r\nset-cookie: more=1; Path=/post\r\n")
            answer = {"jsonrpc": "2.0", "id": message_of(request)["id"], "result": {}}
            streams[0].say(b"data: %b\n\n" % json.dumps(answer).encode())
            request = await peer.request()

    client = HttpClient()
    async with (
        serving(serve) as site,
        open_sse("s", site.url, headers={}, client=client, on_message=print) as transport,
    ):
        await transport.request("tools/call", {})
        await transport.request("tools/call", {})
    client.close()
    assert posted[0] == "node=a"
    assert sorted(posted[1].split("; ")) == ["more=1", "node=a"]
