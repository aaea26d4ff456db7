"""A forgotten session causes one new handshake and one repetition, whatever the error of the server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from support.raw_http import Peer, message_of, serving
from support.waiting import until

from gateway.config.upstream_types.http_config import HttpConfig, SseConfig
from gateway.http.http_client import HttpClient
from gateway.protocol.gateway_errors import (
    GatewayError,
    RpcError,
    UpstreamLost,
    UpstreamProtocolError,
    UpstreamUnavailable,
)
from gateway.upstream.link import UpstreamLink
from gateway.upstream.link_states import LinkPorts
from gateway.upstream.session import UpstreamCall, connector_of

JSON = "application/json"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@dataclass(frozen=True)
class Refusal:
    """The answer to an unknown session; `{id}` in the body stands for the id of the request."""

    status: int
    body: str = ""
    kind: str = JSON
    headers: str = ""

    def send(self, peer: Peer, message: dict[str, Any]) -> None:
        body = self.body.replace("{id}", json.dumps(message.get("id")))
        head = f"HTTP/1.1 {self.status} X\r\ncontent-type: {self.kind}\r\n{self.headers}"
        peer.answer(body.encode(), head.encode())


def rpc(text: str, code: int = -32000, request_id: str = "null") -> str:
    return f'{{"jsonrpc": "2.0", "id": {request_id}, "error": {{"code": {code}, "message": "{text}"}}}}'


@dataclass
class Server:
    """A server with sessions; `call` answers the calls of a session that it knows."""

    refusal: Refusal
    call: Callable[[Peer, dict[str, Any]], None] | None = None
    handshakes: int = 0
    runs: int = 0
    known: set[str] = field(default_factory=set)
    forgets_at_once: bool = False
    offers_stream: bool = False
    streams: list[Peer] = field(default_factory=list)
    listed: int = 0

    def forget(self) -> None:
        self.known.clear()

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            message = message_of(request)
            method, answer = message.get("method"), {"jsonrpc": "2.0", "id": message.get("id")}
            session = next(
                (line[16:].decode() for line in request.split(b"\r\n") if line.startswith(b"mcp-session-id: ")), ""
            )
            if method == "server/discover":
                answer["error"] = {"code": -32601, "message": "no such method"}
            elif method == "initialize":
                self.handshakes += 1
                self.known.add(f"s{self.handshakes}")
                answer["result"] = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {"listChanged": True} if self.offers_stream else {}},
                    "serverInfo": {"name": "s", "version": "1"},
                }
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s%d\r\n" % self.handshakes
                peer.answer(json.dumps(answer).encode(), head)
                continue
            elif session not in self.known or (self.forgets_at_once and method != "tools/list" and "id" in message):
                self.refusal.send(peer, message)
                continue
            elif request.startswith(b"GET") and self.offers_stream:
                peer.say(STREAM)
                self.streams.append(peer)
                await peer.reader.read()
                return
            elif request.startswith((b"GET", b"DELETE")):
                peer.answer(b"", b"HTTP/1.1 405 No\r\n")
                continue
            elif "id" not in message:
                peer.answer(b"", b"HTTP/1.1 202 Accepted\r\n")
                continue
            elif method == "tools/list":
                self.listed += 1
                answer["result"] = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
            elif method == "ping":
                answer["result"] = {}
            elif self.call is not None:
                self.runs += 1
                self.call(peer, message)
                continue
            else:
                self.runs += 1
                answer["result"] = {"content": [{"type": "text", "text": "done"}]}
            peer.answer(json.dumps(answer).encode(), b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")


@asynccontextmanager
async def linked(server: Server, **entry: Any) -> AsyncIterator[UpstreamLink]:
    client = HttpClient()
    async with serving(server.serve) as site:
        config = HttpConfig(url=site.url, **entry)
        link = UpstreamLink("up", config, connector_of("up", config, client), LinkPorts(), chance=lambda: 0.0)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(link.run)
                await link.wait_ready(5)
                yield link
                link.close()
        finally:
            client.close()


async def call(link: UpstreamLink, *, repeatable: bool = False) -> str:
    params = {"name": "t", "arguments": {}}
    result = await link.call(UpstreamCall(method="tools/call", params=params, repeatable=repeatable))
    return str(result["content"][0]["text"])


OF_SESSIONS = {
    "what the specification asks for": Refusal(404, rpc("Session not found", -32001)),
    "TypeScript SDK, never initialized": Refusal(400, rpc("Bad Request: Server not initialized")),
    "TypeScript SDK, examples": Refusal(400, rpc("Bad Request: No valid session ID provided")),
    "TypeScript SDK, header": Refusal(400, rpc("Bad Request: Mcp-Session-Id header is required")),
    "Python SDK": Refusal(404, rpc("Session not found", -32600, '"server-error"')),
    "Python SDK before that": Refusal(400, "Bad Request: No valid session ID provided", "text/plain"),
    "Go SDK": Refusal(404, "session not found\n", "text/plain; charset=utf-8"),
    "the id of the request": Refusal(400, rpc("Unknown client", -32600, "{id}")),
    "the id and a word": Refusal(400, rpc("Invalid session", -32602, "{id}")),
    "in words": Refusal(400, "Invalid session ID", "text/plain"),
    "as a page": Refusal(400, "<!doctype html><title>Session expired</title>", "text/html"),
    "as a page of something else": Refusal(404, "<html><h1>Not Found</h1></html>", "text/html"),
    "400 and nothing": Refusal(400, "", ""),
    "400 and a page": Refusal(400, "<html><h1>Bad Request</h1></html>", "text/html"),
    "404 and nothing": Refusal(404, "", ""),
    "409": Refusal(409, '{"error": "conflict"}'),
    "409 in words": Refusal(409, "the session was terminated", "text/plain"),
    "410": Refusal(410, "Gone", "text/plain"),
    "422": Refusal(422, '{"detail": "Session does not exist"}'),
    "422 and nothing": Refusal(422, "", ""),
    "428": Refusal(428, "", ""),
    "401 in words": Refusal(401, '{"error": "Session expired, please reinitialize"}'),
    "401 with a challenge": Refusal(401, "unknown session", "text/plain", "www-authenticate: Bearer\r\n"),
    "401 as JSON-RPC": Refusal(401, rpc("Session not found", -32001, "{id}")),
    "403 in words": Refusal(403, '{"message": "Invalid session"}'),
    "200 with an error": Refusal(200, rpc("Session not found", -32001, "{id}")),
    "200 with an error without id": Refusal(200, rpc("Invalid or expired session", -32001)),
    "not initialized": Refusal(400, rpc("Received request before initialization was complete", -32602)),
    "transport": Refusal(400, "No transport found for sessionId", "text/plain"),
    "an event": Refusal(200, f"data: {rpc('Session not found', -32001, '{id}')}\n\n", "text/event-stream"),
    "an event without id": Refusal(200, f"data: {rpc('Invalid session')}\n\n", "text/event-stream"),
    "404 and an event": Refusal(404, f"data: {rpc('Session not found')}\n\n", "text/event-stream"),
    "200 and a batch": Refusal(200, f"[{rpc('Session expired')}]"),
    "a batch": Refusal(400, f"[{rpc('Session expired')}]"),
    "the id as text": Refusal(404, rpc("Session not found", -32001, '"{id}"')),
    "an error of a framework": Refusal(404, '{"error": "Not Found", "status": 404}'),
    "a problem": Refusal(400, '{"title": "Unknown session", "status": 400}', "application/problem+json"),
    "another language": Refusal(400, "\u4f1a\u8bdd\u5df2\u8fc7\u671f", "text/plain"),
    "400 and a long page": Refusal(400, "<html>" + "<p>Bad Request</p>" * 100_000, "text/html"),
    "404 and the end of the connection": Refusal(404, "", "", "connection: close\r\n"),
    "410 as JSON-RPC": Refusal(410, rpc("gone", -32600)),
    "412": Refusal(412, "Precondition Failed", "text/plain"),
    "419": Refusal(419, "Page Expired", "text/plain"),
    "421": Refusal(421, "", ""),
    "440": Refusal(440, "Login Time-out", "text/plain"),
    "401 as a page": Refusal(401, "<html><body>Your session has expired</body></html>", "text/html"),
    "a session of somebody else": Refusal(403, '{"detail": "Session is not valid for this node"}'),
}


@pytest.mark.parametrize("kind", OF_SESSIONS)
async def test_call_in_a_forgotten_session_is_repeated_in_a_new_one(kind: str) -> None:
    server = Server(OF_SESSIONS[kind])
    async with linked(server) as link:
        for number in range(1, 3):
            assert await call(link) == "done"
            server.forget()
            assert await call(link) == "done"
            assert (server.handshakes, link.epoch) == (number + 1, number + 1)
            assert "the upstream has forgotten the session" in str(link.lost_reason)
        assert link.last_error is None
    assert server.runs == 4


async def test_concurrent_calls_share_one_new_handshake() -> None:
    for refusal in (OF_SESSIONS["400 and nothing"], OF_SESSIONS["what the specification asks for"]):
        server = Server(refusal)
        async with linked(server) as link:
            assert await call(link) == "done"
            server.forget()
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(call, link)
        assert (server.handshakes, server.runs) == (2, 21)


@pytest.mark.parametrize("kind", ["400 and nothing", "401 in words", "404 and nothing", "200 with an error"])
async def test_session_forgotten_each_time_ends_in_an_error_not_a_loop(kind: str) -> None:
    server = Server(OF_SESSIONS[kind], forgets_at_once=True)
    async with linked(server) as link:
        with pytest.raises(UpstreamUnavailable, match="refused the call again in a new session"):
            await call(link)
        assert server.handshakes <= 3
    assert server.runs == 0


REFUSED_CALLS = {
    "an argument": (Refusal(400, rpc("bad argument", -32602, "{id}")), RpcError, "bad argument"),
    "an argument that is a session": (Refusal(400, rpc("tab session not found", -32602, "{id}")), RpcError, "tab"),
    "an error that is a session": (Refusal(200, rpc("tab session not found", -32000, "{id}")), RpcError, "tab"),
    "an unknown tool": (Refusal(404, rpc("no such tool", -32601, "{id}")), RpcError, "no such tool"),
    "another code": (Refusal(400, rpc("boom", -32050, "{id}")), RpcError, "boom"),
    "400": (Refusal(400, "", ""), UpstreamProtocolError, "HTTP 400"),
    "409": (Refusal(409, "<html>", "text/html"), UpstreamProtocolError, "HTTP 409"),
    "422": (Refusal(422, '{"detail": "unprocessable"}'), UpstreamProtocolError, "HTTP 422"),
    "413": (Refusal(413, "", ""), UpstreamProtocolError, "HTTP 413"),
    "429": (Refusal(429, "", ""), UpstreamProtocolError, "too many requests"),
    "500": (Refusal(500, rpc("boom", -32603, "{id}")), RpcError, "boom"),
    "500 in words": (Refusal(500, "session not found", "text/plain"), UpstreamLost, "HTTP 500"),
    "503": (Refusal(503, "no session available", "text/plain"), UpstreamLost, "HTTP 503"),
}


@pytest.mark.parametrize("kind", REFUSED_CALLS)
async def test_call_refused_for_another_reason_runs_once_and_keeps_its_session(kind: str) -> None:
    refusal, error, text = REFUSED_CALLS[kind]
    server = Server(Refusal(404), call=refusal.send)
    async with linked(server) as link:
        with pytest.raises(error, match=text):
            await call(link)
        server.call = None
        assert await call(link) == "done"
        assert (server.handshakes, link.epoch) == (1, 1)
    assert server.runs == 2


async def test_refused_credentials_do_not_loop() -> None:
    server = Server(Refusal(401, '{"error": "invalid_token"}', headers="www-authenticate: Bearer\r\n"))
    async with linked(server, headers={"Authorization": "Bearer x"}) as link:
        server.forget()
        for _ in range(3):
            with pytest.raises(GatewayError, match="401: the credentials were refused"):
                await call(link)
        assert server.handshakes <= 2


async def test_call_that_may_have_run_is_not_repeated_after_its_session_is_lost() -> None:
    server = Server(Refusal(404), call=lambda peer, message: peer.writer.transport.abort())
    async with linked(server) as link:
        with pytest.raises(UpstreamLost, match="not repeated"):
            await call(link)
        assert server.runs == 1


async def test_idempotent_call_is_repeated_after_losing_connection_and_session() -> None:
    server = Server(Refusal(404))

    def crash(peer: Peer, message: dict[str, Any]) -> None:
        server.forget()
        server.call = None
        peer.writer.transport.abort()

    async with linked(server) as link:
        server.call = crash
        assert await call(link, repeatable=True) == "done"
        assert (server.handshakes, server.runs) == (2, 2)


@pytest.mark.parametrize("kind", ["400 and nothing", "404 and nothing", "TypeScript SDK, never initialized"])
async def test_list_and_stream_in_a_forgotten_session_start_a_new_one(kind: str) -> None:
    for offers_stream in (False, True):
        server = Server(OF_SESSIONS[kind], offers_stream=offers_stream)
        async with linked(server) as link:
            if offers_stream:
                await until(lambda server=server: server.streams)
                server.forget()
                server.streams[0].writer.close()
            else:
                server.forget()
                link.refresh()
            await until(lambda server=server: server.handshakes == 2 and server.listed >= 2)
            await link.wait_ready(5)
            assert await call(link) == "done"


async def test_notification_revealing_a_forgotten_session_starts_a_new_one() -> None:
    server = Server(OF_SESSIONS["TypeScript SDK, never initialized"])
    async with linked(server) as link:
        server.forget()
        assert link.session is not None
        with pytest.raises(GatewayError, match="forgotten"):
            await link.session.notify("notifications/roots/list_changed")
        await until(lambda: server.handshakes == 2)
        assert await call(link) == "done"


@dataclass
class OldServer:
    """HTTP+SSE behind a proxy that keeps the stream open even if the server ends."""

    refusal: Refusal
    streams: dict[str, Peer] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    runs: int = 0

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.startswith(b"GET"):
                session = str(len(self.streams))
                self.streams[session] = peer
                self.known.add(session)
                peer.say(STREAM + b"event: endpoint\ndata: /post?session=%b\n\n" % session.encode())
                await peer.reader.read()
                return
            message = message_of(request)
            session = request.partition(b"session=")[2].partition(b" ")[0].decode()
            if session not in self.known:
                self.refusal.send(peer, message)
                continue
            peer.answer(b"", b"HTTP/1.1 202 Accepted\r\n")
            results: dict[str, Any] = {
                "initialize": {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": {}},
                "tools/list": {"tools": []},
                "tools/call": {"content": [{"type": "text", "text": "done"}]},
            }
            self.runs += message["method"] == "tools/call"
            if "id" in message:
                answer = {"jsonrpc": "2.0", "id": message["id"], "result": results.get(message["method"], {})}
                self.streams[session].say(b"data: %b\n\n" % json.dumps(answer).encode())


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(404, "Could not find session", "text/plain"),
        Refusal(400, "No transport found for sessionId", "text/plain"),
        Refusal(404, "", ""),
        Refusal(400, "", ""),
        Refusal(410, "", ""),
    ],
)
async def test_forgotten_session_is_replaced_over_sse_too(refusal: Refusal) -> None:
    server, client = OldServer(refusal), HttpClient()
    async with serving(server.serve) as site, anyio.create_task_group() as group:
        config = SseConfig(url=site.url)
        link = UpstreamLink("up", config, connector_of("up", config, client), LinkPorts(), chance=lambda: 0.0)
        group.start_soon(link.run)
        assert await call(link) == "done"
        server.known.clear()
        assert await call(link) == "done"
        assert (len(server.streams), server.runs) == (2, 2)
        link.close()
    client.close()
