"""Streamable HTTP on the wire: an answer belongs to its own request only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from support.raw_http import Peer, message_of, serving
from support.waiting import until

from gateway.http.client_connection import HttpConnection
from gateway.http.event_stream import PAUSE_BYTES
from gateway.http.http_client import HttpClient
from gateway.protocol.gateway_errors import (
    ConnectionLost,
    GatewayError,
    HttpStatusError,
    RpcError,
    SessionForgotten,
    UnusableAnswer,
)
from gateway.upstream.transport.jsonrpc_transport import Reply
from gateway.upstream.transport.streamable_http import StreamableHttpTransport, open_streamable_http
from tests.fuzz.http_requests import Wire

JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@asynccontextmanager
async def transports(url: str, count: int) -> AsyncIterator[list[StreamableHttpTransport]]:
    """Yield this many sessions of one origin, over the connections of one client."""
    client = HttpClient()

    def ignore(message: dict[str, Any], reply: Reply) -> None:
        """Take what belongs to no request."""

    async with (
        open_streamable_http("a", url, headers={}, client=client, on_message=ignore) as first,
        open_streamable_http("b", url, headers={}, client=client, on_message=ignore) as second,
    ):
        yield [first, second][:count]
    client.close()


def answer_to(request: bytes, **members: Any) -> bytes:
    """The body that answers a request."""
    message = json.loads(request.partition(b"\r\n\r\n")[2])
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], **members}).encode()


@pytest.mark.parametrize("members", [{"result": {"whose": "first"}}, {"error": {"code": -1, "message": "first"}}])
async def test_late_answer_is_not_matched_to_the_next_request(members: dict[str, Any]) -> None:
    async def late(peer: Peer) -> None:
        first = await peer.request()
        peer.answer(answer_to(first, result={"whose": "first"}), JSON)
        second = await peer.request()
        if peer.number:
            peer.answer(answer_to(second, result={"whose": "third"}), JSON)
            return
        # The second request is in flight, and only the id distinguishes the two responses.
        peer.answer(answer_to(first, **members), JSON)
        peer.answer(answer_to(second, result={"whose": "second"}), JSON)

    async with serving(late) as site, transports(site.url, 2) as (one, other):
        assert await one.request("tools/call", {}) == {"whose": "first"}
        with pytest.raises(ConnectionLost, match="the id of another request"):
            await other.request("tools/call", {})
        # Its connection would be one answer behind from now on.
        assert await other.request("tools/call", {}) == {"whose": "first"}
        assert await other.request("tools/call", {}) == {"whose": "third"}
        assert len(site.peers) == 2


@pytest.mark.parametrize("error", [{"code": -5, "message": "no"}, None])
async def test_error_beside_a_result_counts_unless_null(error: dict[str, Any] | None) -> None:
    async def both(peer: Peer) -> None:
        peer.answer(answer_to(await peer.request(), result={"whose": "ours"}, error=error), JSON)

    async with serving(both) as site, transports(site.url, 1) as (one,):
        if error is None:
            assert await one.request("tools/call", {}) == {"whose": "ours"}
        else:
            with pytest.raises(RpcError, match="no"):
                await one.request("tools/call", {})


@pytest.mark.parametrize("request_id", [None, "server-error"])
async def test_parse_error_without_an_id_is_the_answer(request_id: str | None) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.request()
        error = {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32700, "message": "what?"}}
        peer.answer(json.dumps(error).encode(), JSON)

    async with serving(refuse) as site, transports(site.url, 1) as [transport]:
        with pytest.raises(RpcError, match="what"):
            await transport.request("tools/call", {})


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("method", ["server/discover", "initialize", "tools/list", "tools/call"])
@pytest.mark.parametrize("given", ["a header", "a query", "nothing"])
async def test_credential_refusal_is_reported_without_the_servers_text(status: int, method: str, given: str) -> None:
    async def refuse(peer: Peer) -> None:
        request = await peer.request()
        body = answer_to(request, error={"code": -32001, "message": "Bearer credential-0123 is not valid"})
        peer.answer(body, JSON.replace(b"200 OK", b"%d No" % status))

    configured = {"x-api-key": "credential-0123"} if given == "a header" else {}
    client = HttpClient()
    async with (
        serving(refuse) as site,
        open_streamable_http(
            "a",
            site.url + ("?key=credential-0123" if given == "a query" else ""),
            headers=configured,
            client=client,
            on_message=print,
        ) as transport,
    ):
        with pytest.raises(HttpStatusError) as refused:
            await transport.request(method, {})
    client.close()
    why = "no credentials are configured for this server; add them to its entry under `headers` or `auth`"
    assert str(refused.value) == f"HTTP {status}: {why if given == 'nothing' else 'the credentials were refused'}"


class McpServer:
    """Opens sessions, answers calls as configured, and records all requests."""

    def __init__(self, *calls: Callable[[Peer, bytes], None], session: bool = True) -> None:
        self.calls = list(calls)
        self.session = b"mcp-session-id: s1\r\n" if session else b""
        self.requests: list[bytes] = []
        self.arrived = asyncio.Event()

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            self.requests.append(request)
            self.arrived.set()
            message = message_of(request)
            if message.get("method") == "initialize":
                peer.answer(answer_to(request, result={}), JSON + self.session)
            elif message.get("method") in ("tools/call", "ping"):
                self.calls.pop(0)(peer, request)
            elif request.startswith(b"GET"):
                peer.say(EVENTS + b'data: {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}\n\n')
            else:
                peer.answer(b"", b"HTTP/1.1 202 Accepted\r\n")

    async def until(self, wanted: bytes) -> bytes:
        """The first request that holds this."""
        while not (found := [request for request in self.requests if wanted in request]):
            self.arrived.clear()
            await self.arrived.wait()
        return found[0]


def silent(peer: Peer, request: bytes) -> None:
    """Never answer."""


def answers(**members: Any) -> Callable[[Peer, bytes], None]:
    return lambda peer, request: peer.answer(answer_to(request, **members), JSON)


def status(code: int, body: bytes = b"", kind: bytes = b"application/json") -> Callable[[Peer, bytes], None]:
    return lambda peer, request: peer.answer(body, b"HTTP/1.1 %d X\r\ncontent-type: %b\r\n" % (code, kind))


@pytest.mark.parametrize("how", ["ended", "abandoned", "without a session"])
async def test_session_is_deleted_unless_absent_or_still_needed(how: str) -> None:
    server = McpServer(answers(result={}), session=how != "without a session")
    async with serving(server.serve) as site:
        async with transports(site.url, 1) as [transport]:
            await transport.request("initialize", {})
            transport.use_version("2025-11-25")
            await transport.request("tools/call", {})
            if how == "abandoned":
                transport.abandon()
        ends = [request for request in server.requests if request.startswith(b"DELETE")]
        assert len(ends) == (how == "ended")
        assert all(b"mcp-session-id: s1\r\n" in request for request in ends)
    named = [b"mcp-session-id: s1\r\n" in request for request in server.requests]
    assert named == [False, *[how != "without a session"] * (len(named) - 1)]
    versions = [b"mcp-protocol-version: 2025-11-25\r\n" in request for request in server.requests]
    assert versions == [False, *[True] * (len(named) - 1)]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26"])
async def test_servers_predating_the_version_header_do_not_receive_it(version: str) -> None:
    server = McpServer(answers(result={}))
    async with serving(server.serve) as site, transports(site.url, 1) as [transport]:
        transport.use_version(version)
        await transport.request("tools/call", {})
        assert b"mcp-protocol-version" not in server.requests[0]


async def test_abandoned_request_is_cancelled_if_there_is_a_session() -> None:
    for session in (True, False):
        server = McpServer(silent, session=session)
        async with serving(server.serve) as site, transports(site.url, 1) as [transport]:
            await transport.request("initialize", {})
            async with anyio.create_task_group() as group:
                group.start_soon(transport.request, "tools/call", {})
                call = message_of(await server.until(b"tools/call"))
                group.cancel_scope.cancel()
            if session:
                cancelled = message_of(await server.until(b"notifications/cancelled"))
                assert cancelled["params"]["requestId"] == call["id"]
            else:
                await transport.notify("notifications/last")
                await server.until(b"notifications/last")
                assert not any(b"notifications/cancelled" in request for request in server.requests)


async def test_answered_request_is_not_cancelled() -> None:
    server = McpServer(answers(result={}), answers(error={"code": -1, "message": "no"}))
    async with serving(server.serve) as site, transports(site.url, 1) as [transport]:
        await transport.request("initialize", {})
        await transport.request("tools/call", {})
        with pytest.raises(RpcError):
            await transport.request("tools/call", {})
        await transport.notify("notifications/last")
        assert not any(b"notifications/cancelled" in request for request in server.requests)


FORGOTTEN = [
    status(404),
    status(400, b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": "Session not found"}}'),
    answers(error={"code": -32600, "message": "Bad Request: No valid session ID provided"}),
]


@pytest.mark.parametrize("answer", FORGOTTEN)
async def test_forgotten_session_is_reported_only_if_there_was_one(answer: Callable[[Peer, bytes], None]) -> None:
    for session in (True, False):
        server = McpServer(answer, answer, session=session)
        async with serving(server.serve) as site, transports(site.url, 1) as [transport]:
            await transport.request("initialize", {})
            with pytest.raises(GatewayError) as refused:
                await transport.request("tools/call", {})
            assert isinstance(refused.value, SessionForgotten) is session


UNUSABLE: dict[str, tuple[Callable[[Peer, bytes], None], type[Exception], str]] = {
    "a page": (status(200, b"<html>", b"text/html"), UnusableAnswer, "neither JSON nor an event stream"),
    "nothing": (status(202), UnusableAnswer, "not JSON"),
    "half": (status(200, b'{"jsonrpc": "2.0", '), UnusableAnswer, "the answer is not JSON"),
    "a list": (status(200, b"[]"), UnusableAnswer, "neither JSON nor an event stream"),
    "too many": (
        lambda peer, request: peer.answer(b"", b"HTTP/1.1 429 X\r\nretry-after: 7\r\n"),
        HttpStatusError,
        "HTTP 429: too many requests, retry in 7 s",
    ),
    "too many, until a day": (
        lambda peer, request: peer.answer(b"", b"HTTP/1.1 429 X\r\nretry-after: Mon, 1 Jan 2035 00:00:00 GMT\r\n"),
        HttpStatusError,
        "HTTP 429: too many requests$",
    ),
    "a redirect": (status(302, kind=b"text/plain"), HttpStatusError, "HTTP 302: a redirect is not followed"),
    "an error of its framework": (status(500, b'{"error": "boom"}'), HttpStatusError, "HTTP 500"),
    "a fault": (status(500, b'{"error": {"message": "boom"}}'), HttpStatusError, "HTTP 500"),
    "a result under an error": (status(500, b'{"result": {}}'), HttpStatusError, "HTTP 500"),
    "an error of the protocol": (
        status(500, b'{"jsonrpc": "2.0", "error": {"code": -5, "message": "boom"}}'),
        RpcError,
        "boom",
    ),
    "an error of an API": (status(500, b'{"error": {"code": -5, "message": "boom"}}'), HttpStatusError, "HTTP 500"),
    "half an error": (status(500, b'{"error": '), HttpStatusError, "HTTP 500"),
    "not strict": (
        lambda peer, request: peer.answer(answer_to(request, result={}).replace(b"{}", b'{"a": NaN}'), JSON),
        RpcError,
        "The answer is not JSON",
    ),
}


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_unusable_answer_is_described(kind: str) -> None:
    answer, error, text = UNUSABLE[kind]
    server = McpServer(answer, answers(result={"n": 1}))
    async with serving(server.serve) as site, transports(site.url, 1) as [transport]:
        with pytest.raises(error, match=text):
            await transport.request("tools/call", {})
        assert await transport.request("tools/call", {}) == {"n": 1}


async def test_json_of_another_content_type_is_accepted() -> None:
    def plain(peer: Peer, request: bytes) -> None:
        peer.answer(answer_to(request, result={"n": 1}), JSON.replace(b"application/json", b"text/plain"))

    async with serving(McpServer(plain).serve) as site, transports(site.url, 1) as [transport]:
        assert await transport.request("tools/call", {}) == {"n": 1}


async def test_request_headers_are_sent_once_with_that_request() -> None:
    server = McpServer(*[answers(result={})] * 3)
    async with serving(server.serve) as site, transports(site.url, 1) as [transport]:
        await transport.request("tools/call", {}, headers={"mcp-name": "n"})
        await transport.request("tools/call", {}, headers={"accept": "other"})
        await transport.request("tools/call", {})
    heads = [request.partition(b"\r\n\r\n")[0].lower() for request in server.requests]
    assert [head.count(b"mcp-name: n") for head in heads] == [1, 0, 0]
    assert [head.count(b"accept:") for head in heads] == [1, 1, 1]
    assert b"accept: other" in heads[1]
    assert heads[2].count(b"accept: application/json, text/event-stream") == 1


async def test_configured_headers_replace_defaults_except_connection_headers() -> None:
    server, client = McpServer(answers(result={})), HttpClient()
    headers = {"Host": "other.test", "Accept": "application/json", "Content-Length": "3", "X-Own": "1"}
    async with (
        serving(server.serve) as site,
        open_streamable_http("a", site.url, headers=headers, client=client, on_message=print) as transport,
    ):
        await transport.request("tools/call", {})
    client.close()
    head = server.requests[0].partition(b"\r\n\r\n")[0].lower()
    assert [head.count(name) for name in (b"\r\nhost: other.test", b"\r\nhost:", b"\r\naccept:")] == [1, 1, 1]
    assert head.count(b"\r\ncontent-length:") == head.count(b"\r\nx-own: 1") == 1


async def test_unrelated_messages_are_received_once_the_stream_is_open() -> None:
    received: list[str] = []
    opened = asyncio.Event()
    server = McpServer(session=False)
    client = HttpClient()

    def on_message(message: dict[str, Any], reply: Reply) -> None:
        received.append(message["method"])

    async with (
        serving(server.serve) as site,
        open_streamable_http("a", site.url, headers={}, client=client, on_message=on_message) as transport,
        anyio.create_task_group() as group,
    ):
        group.start_soon(transport.listen, opened.set)
        await opened.wait()
        await until(lambda: received)
        group.cancel_scope.cancel()
    client.close()
    assert received == ["notifications/tools/list_changed"]
    assert b"\r\naccept: text/event-stream\r\n" in server.requests[0]
    assert b"content-type" not in server.requests[0]


@pytest.mark.parametrize("head", [JSON, EVENTS.replace(b"200 OK", b"405 No").removesuffix(b"\r\n")])
async def test_server_without_a_stream_is_reported(head: bytes) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.request()
        peer.answer(b"", head)

    async with serving(refuse) as site, transports(site.url, 1) as [transport]:
        with pytest.raises(HttpStatusError, match="no stream of notifications"):
            await transport.listen(lambda: None)


async def test_stream_of_an_answer_accepts_only_its_own_messages() -> None:
    def stream(peer: Peer, request: bytes) -> None:
        own = message_of(request)["id"]
        messages: list[Any] = [
            {"method": "notifications/progress", "params": {"progressToken": own, "progress": 1}},
            {"method": "notifications/progress", "params": {"progressToken": own + 1, "progress": 2}},
            {"method": "notifications/progress", "params": [3]},
            {"method": "notifications/progress"},
            {"method": "notifications/message", "params": {}},
            {"method": 5},
            {"jsonrpc": "2.0", "id": own + 1, "result": {"whose": "another's"}},
            [],
            {"id": own, "result": {"whose": "nobody's"}},
            {"level": 30, "id": own, "msg": "answering"},
            {"jsonrpc": "2.0", "id": own, "result": {"whose": "ours"}},
        ]
        peer.say(EVENTS + b"event: other\ndata: {}\n\ndata: no JSON\n\n")
        peer.say(b"".join(b"data: %b\n\n" % json.dumps(message).encode() for message in messages))

    progress: list[Any] = []
    seen: list[str] = []
    async with serving(McpServer(stream).serve) as site, transports(site.url, 1) as [transport]:
        result = await transport.request(
            "tools/call",
            {},
            on_progress=progress.append,
            on_message=lambda message, reply: seen.append(message["method"]),
        )
    assert result == {"whose": "ours"}
    assert [params["progress"] for params in progress] == [1]
    assert seen == ["notifications/message"]


class Pausing(Wire):
    """A connection whose reading can be paused."""

    paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_fully_received_answer_leaves_no_connection_paused(more: int) -> None:
    wires: list[Pausing] = []

    async def dial(make: Callable[[], HttpConnection]) -> HttpConnection:
        connection, wire_end = make(), Pausing()
        connection.connection_made(wire_end)
        wires.append(wire_end)

        async def answer() -> None:
            await until(lambda: wire_end.written)
            body = answer_to(bytes(wire_end.written), result={"content": []})
            # To its last byte as large as what reading is paused for.
            body = body[:-1].ljust(PAUSE_BYTES + more - 1) + b"}"
            # The body after a cached header block is not read by the parser.
            new_head = b"%bx-new: %d\r\ncontent-length: %d\r\n\r\n" % (JSON, more, len(body))
            connection.data_received(new_head + body)

        group.start_soon(answer)
        return connection

    client = HttpClient(dial=dial)
    async with (
        anyio.create_task_group() as group,
        open_streamable_http("a", "http://a.test/", headers={}, client=client, on_message=print) as transport,
    ):
        assert await transport.request("tools/call", {}) == {"content": []}
    (wire_end,) = wires
    assert not wire_end.closed  # kept for the next request
    assert not wire_end.paused
    client.close()
