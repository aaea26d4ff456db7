"""Cookies of a connection are returned to the server that set them, and to no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.raw_http import Peer, message_of, serving

from gateway.http.http_client import HttpClient
from gateway.protocol.gateway_errors import HttpStatusError
from gateway.upstream.transport.client_headers import Cookies
from gateway.upstream.transport.http_sse import open_sse
from gateway.upstream.transport.streamable_http import StreamableHttpTransport, open_streamable_http

URL = "http://127.0.0.1:8000/api/mcp"
PAST, FUTURE = "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"


def sent_back(*lines: str, url: str = URL, to: str = URL, configured: str = "") -> str:
    cookies = Cookies(url, configured)
    for line in lines:
        cookies.store(url, [line])
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
def test_cookie_is_returned_according_to_its_attributes(lines: list[str], header: str) -> None:
    assert sent_back(*lines) == header


def test_secure_cookie_is_sent_over_tls() -> None:
    url = "https://mcp.example.test/mcp"
    assert sent_back("a=1; Secure; Path=/", url=url, to=url) == "a=1"
    assert sent_back("a=1; Domain=example.test; Path=/", url=url, to=url) == "a=1"
    assert sent_back("a=1; Domain=.example.test; Path=/; Secure; SameSite=Lax", url=url, to=url) == "a=1"
    assert sent_back("a=1; Domain=mcp.example.test.evil.test; Path=/", url=url, to=url) == ""


@pytest.mark.parametrize(
    ("host", "domain"),
    [("localhost", "localhost"), ("mcp-server:8000", ".mcp-server"), ("[::1]:8000", "[::1]"), ("a.test", "A.TEST")],
)
def test_server_may_set_its_own_name_as_the_domain(host: str, domain: str) -> None:
    url = f"http://{host}/mcp"
    assert sent_back(f"a=1; Domain={domain}; Path=/", url=url, to=url) == "a=1"


def test_cookies_of_another_origin_are_ignored() -> None:
    cookies = Cookies(URL)
    for url in ("http://127.0.0.1:8001/api/mcp", "https://127.0.0.1:8000/api/mcp", "http://other.test/"):
        cookies.store(url, ["a=1; Path=/"])
    assert cookies.header(URL) == ""


def test_configured_cookies_are_sent_unless_replaced_by_the_server() -> None:
    assert sent_back(configured="a=1; b=2") == "a=1; b=2"
    assert sent_back("c=3; Path=/", configured="a=1; b=2") == "a=1; b=2; c=3"
    assert sent_back("a=3; Path=/", configured="a=1; b=2") == "b=2; a=3"
    assert sent_back("a=3; Path=/", "a=; Max-Age=0; Path=/", configured="a=1; b=2") == "a=1; b=2"


def test_number_of_cookies_is_bounded() -> None:
    cookies = Cookies(URL)
    cookies.store(URL, [f"c{number}=1; Path=/" for number in range(500)])
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


async def test_latest_load_balancer_cookie_is_sent() -> None:
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


async def test_cookies_persist_within_a_connection_and_are_not_shared() -> None:
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


async def test_expired_cookie_is_not_sent() -> None:
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


# Attributes that browsers ignore, or read otherwise than `http.cookiejar`.
ODD_ATTRIBUTES = [
    "", "Path=mcp", "Path", 'Path="/"', "Path=/x; Path=/", "Path=/; Max-Age=abc", "Max-Age=", 'Max-Age="1"',
    "Max-Age=0.5", "Max-Age=99999999999999999999", "Expires=0", "Expires=Session", "Expires=Wed, 31 Feb 2099 00:00:00",
    "Domain=", "Domain=.127.0.0.1", 'Port="80"', "Version=1", "Comment=x, y=2", "SameSite=Whatever", ";; ;",
]  # fmt: skip


@pytest.mark.parametrize("attributes", ODD_ATTRIBUTES)
async def test_cookie_with_unusual_attributes_is_returned(attributes: str) -> None:
    seen: list[str] = []

    async def serve(peer: Peer) -> None:
        while True:
            request = await peer.request()
            seen.append(cookie_of(request))
            answer_with(peer, request, f"AWSALB=x; {attributes}")

    async with connected(serve) as [transport]:
        await transport.request("tools/call", {})
        await transport.request("tools/call", {})
    assert seen == ["own=1", "own=1; AWSALB=x"]


@pytest.mark.parametrize("value", ["\u00e9", '{"b": "c, d"}', "a b", "a=b=c", "%3B", '"', "x" * 4_000])
async def test_cookie_is_returned_byte_for_byte(value: str) -> None:
    seen: list[bytes] = []

    async def serve(peer: Peer) -> None:
        while True:
            request = await peer.request()
            seen.append(request)
            answer_with(peer, request, f"a={value}; Path=/")

    async with connected(serve, 2) as [_, transport]:
        await transport.request("tools/call", {})
        await transport.request("tools/call", {})
    assert f"\r\ncookie: a={value}\r\n".encode() in seen[1]


async def test_every_request_sends_the_cookie_of_an_error_answer() -> None:
    seen: dict[str, str] = {}

    async def serve(peer: Peer) -> None:
        while True:
            request = await peer.request()
            message = message_of(request)
            kind = message.get("method") or request.split(b" ")[0].decode()
            seen[kind] = cookie_of(request)
            if kind == "server/discover":
                peer.answer(b"no", b"HTTP/1.1 404 No\r\nset-cookie: node=a; Path=/\r\n")
            elif kind == "initialize":
                body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}).encode()
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s\r\n"
                peer.answer(body, head + b"set-cookie: more=b; Path=/\r\n")
            else:
                peer.answer(b"", b"HTTP/1.1 405 No\r\n")

    async with connected(serve) as [transport]:
        with pytest.raises(HttpStatusError):
            await transport.request("server/discover", {})
        await transport.request("initialize", {})
        await transport.notify("notifications/initialized")
        with pytest.raises(HttpStatusError):
            await transport.listen(lambda: None)
    both = "own=1; node=a; more=b"
    assert seen == {
        "server/discover": "own=1", "initialize": "own=1; node=a", "notifications/initialized": both, "GET": both,
        "DELETE": both,
    }  # fmt: skip


async def test_redirected_request_sends_the_cookie_set_by_the_redirect() -> None:
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


async def test_sse_posts_send_the_cookies_of_their_stream() -> None:
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
