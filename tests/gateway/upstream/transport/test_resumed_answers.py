"""Response streams that the server closes or the network breaks before the answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.raw_http import Peer, serving

from gateway.http.http_client import HttpClient
from gateway.protocol.gateway_errors import ConnectionLost
from gateway.upstream.transport.streamable_http import StreamableHttpTransport, open_streamable_http

EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
SESSION = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def progress(number: int, request_id: object) -> bytes:
    params = {"progressToken": request_id, "progress": number}
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode()


@asynccontextmanager
async def called(
    begin: Callable[[Peer, Any], Awaitable[None]], resume: Callable[[Peer, bytes, Any], Awaitable[None]]
) -> AsyncIterator[tuple[StreamableHttpTransport, list[bytes]]]:
    """A session with a server that begins and resumes answers like this, and the requests for more that it got."""
    resumed: list[bytes] = []
    ids: list[Any] = []

    async def serve(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.startswith(b"GET"):
                resumed.append(request)
                await resume(peer, request, ids[-1])
                continue
            if request.startswith(b"DELETE"):
                peer.answer(b"")
                continue
            message = json.loads(request.partition(b"\r\n\r\n")[2])
            if message["method"] == "initialize":
                peer.answer(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}).encode(), SESSION)
            elif message["method"] == "tools/call":
                ids.append(message["id"])
                await begin(peer, message["id"])
            else:
                peer.answer(b"", b"HTTP/1.1 202 Accepted\r\n")

    client = HttpClient()
    async with (
        serving(serve) as site,
        open_streamable_http(
            "a", site.url, headers={}, client=client, on_message=lambda message, reply: None
        ) as transport,
    ):
        await transport.request("initialize", {})
        transport.use_version("2025-11-25")
        yield transport, resumed
    client.close()


async def closes_with_an_id(peer: Peer, request_id: Any) -> None:
    event = b"id: e-0\nretry: 60\ndata: \n\nid: e-1\ndata: " + progress(1, request_id) + b"\n\n"
    peer.say(EVENTS + chunk(event) + b"0\r\n\r\n")


async def test_closed_stream_is_resumed_from_its_last_event() -> None:
    async def resume(peer: Peer, request: bytes, request_id: Any) -> None:
        if b"last-event-id: e-1" in request:
            peer.say(EVENTS + chunk(b"id: e-2\ndata: " + progress(2, request_id) + b"\n\n") + b"0\r\n\r\n")
            return
        answer = json.dumps({"jsonrpc": "2.0", "id": request_id, "result": {"done": True}}).encode()
        peer.say(EVENTS + chunk(b"id: e-3\ndata: " + answer + b"\n\n") + b"0\r\n\r\n")

    async with called(closes_with_an_id, resume) as (transport, resumed):
        seen: list[Any] = []
        paused_ms: list[int] = []
        result = await transport.request(
            "tools/call", {}, on_progress=lambda params: seen.append(params["progress"]), on_pause=paused_ms.append
        )
        assert result == {"done": True}
        assert seen == [1, 2]
        assert paused_ms == [60, 60]
        ids = [line for head in resumed for line in head.split(b"\r\n") if line.startswith(b"last-event-id")]
        assert ids == [b"last-event-id: e-1", b"last-event-id: e-2"]
        assert all(b"mcp-session-id: s\r\n" in head and b"mcp-protocol-version: 2025-11-25" in head for head in resumed)


async def test_connection_broken_within_an_event_is_resumed() -> None:
    async def begin(peer: Peer, request_id: Any) -> None:
        peer.say(EVENTS + chunk(b"id: e-1\nretry: 50\ndata: " + progress(1, request_id) + b"\n\nid: e-2\ndata: {"))
        await peer.writer.drain()
        peer.writer.transport.abort()

    async def resume(peer: Peer, request: bytes, request_id: Any) -> None:
        answer = json.dumps({"jsonrpc": "2.0", "id": request_id, "result": {"after": "the break"}}).encode()
        peer.say(EVENTS + chunk(b"id: e-2\ndata: " + answer + b"\n\n") + b"0\r\n\r\n")

    async with called(begin, resume) as (transport, resumed):
        assert await transport.request("tools/call", {}) == {"after": "the break"}
        (head,) = resumed
        assert b"last-event-id: e-1\r\n" in head, "what was cut in the middle is not there yet"


async def refuses(peer: Peer, request: bytes, request_id: Any) -> None:
    peer.answer(b"", b"HTTP/1.1 404 Not Found\r\n")


async def is_no_stream(peer: Peer, request: bytes, request_id: Any) -> None:
    peer.answer(b"{}", b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")


@pytest.mark.parametrize("resume", [refuses, is_no_stream])
async def test_answer_that_cannot_be_resumed_is_lost_after_sending(resume: Any) -> None:
    async with called(closes_with_an_id, resume) as (transport, resumed):
        with pytest.raises(ConnectionLost, match="cannot be opened again") as caught:
            await transport.request("tools/call", {})
        assert caught.value.sent
        assert len(resumed) == 1


async def test_stream_without_event_ids_is_not_resumed() -> None:
    async def begin(peer: Peer, request_id: Any) -> None:
        peer.say(EVENTS + chunk(b"data: " + progress(1, request_id) + b"\n\n") + b"0\r\n\r\n")

    async with called(begin, refuses) as (transport, resumed):
        with pytest.raises(ConnectionLost, match="ended before the answer"):
            await transport.request("tools/call", {})
        assert resumed == []
