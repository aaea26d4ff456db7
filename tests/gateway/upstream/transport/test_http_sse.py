"""The HTTP+SSE transport: one stream for all answers, and a POST for each message."""

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

from gateway.http.http_client import HttpClient
from gateway.protocol.gateway_errors import ConnectionLost, RpcError, innermost
from gateway.upstream.transport.http_sse import open_sse
from gateway.upstream.transport.jsonrpc_transport import Reply
from gateway.upstream.transport.stream_transport import StreamTransport

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def event(message: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(message).encode()


@dataclass
class Server:
    """Answers each request with its params, on the stream; `refuses` with a status."""

    endpoint: str = "/post?session=1"
    refuses: Callable[[dict[str, Any]], int] = lambda message: 0
    stream: Peer | None = None
    posted: list[bytes] = field(default_factory=list)

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.startswith(b"GET"):
                self.stream = peer
                peer.say(STREAM + b"event: endpoint\ndata: %b\n\n" % self.endpoint.encode())
                await peer.reader.read()
                return
            self.posted.append(request)
            message = message_of(request)
            status = self.refuses(message)
            peer.answer(b"", b"HTTP/1.1 %d So\r\n" % (status or 202))
            if not status and "id" in message and self.stream is not None:
                self.stream.say(event({"jsonrpc": "2.0", "id": message["id"], "result": message["params"]}))


@asynccontextmanager
async def opened(server: Server, received: list[dict[str, Any]] | None = None) -> AsyncIterator[StreamTransport]:
    client = HttpClient()

    def on_message(message: dict[str, Any], reply: Reply) -> None:
        if received is not None:
            received.append(message)

    async with serving(server.serve) as site:
        try:
            async with open_sse(
                "s", site.url, headers={"authorization": "ours"}, client=client, on_message=on_message
            ) as transport:
                yield transport
        finally:
            client.close()


async def refusal(server: Server) -> BaseException:
    """Why the stream of a server is not opened."""
    with pytest.raises(ExceptionGroup) as refused:
        async with opened(server):
            raise AssertionError("it was opened")
    return innermost(refused.value)


async def test_messages_are_posted_to_the_announced_endpoint() -> None:
    server = Server()
    async with opened(server) as transport:
        assert await transport.request("tools/call", {"n": 1}) == {"n": 1}
        await transport.notify("notifications/initialized")
        await until(lambda: len(server.posted) == 2)
    for request in server.posted:
        assert request.startswith(b"POST /post?session=1 HTTP/1.1\r\n")
        assert b"authorization: ours\r\n" in request
        assert b"content-type: application/json\r\n" in request


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_refused_request_fails_at_once_without_affecting_others(status: int) -> None:
    server = Server(refuses=lambda message: status if message.get("params") == {"n": 0} else 0)
    async with opened(server) as transport:
        with pytest.raises(RpcError, match="could not be sent: HTTP"):
            await transport.request("tools/call", {"n": 0})
        assert await transport.request("tools/call", {"n": 1}) == {"n": 1}


async def test_refused_notification_has_no_effect() -> None:
    server = Server(refuses=lambda message: 0 if "id" in message else 400)
    async with opened(server) as transport:
        await transport.notify("notifications/initialized")
        assert await transport.request("tools/call", {"n": 1}) == {"n": 1}


@pytest.mark.parametrize("endpoint", ["http://other.test/post", "//other.test/post", "https://127.0.0.1/post"])
async def test_endpoint_of_another_origin_is_refused(endpoint: str) -> None:
    assert "another origin" in str(await refusal(Server(endpoint=endpoint)))


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n",
        b"HTTP/1.1 404 No\r\ncontent-type: text/event-stream\r\n",
    ],
)
async def test_answer_that_is_not_an_event_stream_is_refused(head: bytes) -> None:
    class Other(Server):
        async def serve(self, peer: Peer) -> None:
            await peer.request()
            peer.answer(b"", head)

    assert "not an event stream" in str(await refusal(Other()))


async def test_stream_ending_before_its_endpoint_event_fails() -> None:
    class Short(Server):
        async def serve(self, peer: Peer) -> None:
            await peer.request()
            peer.say(STREAM + b": nothing\n\n")

    assert "the event stream ended" in str(await refusal(Short()))


async def test_end_of_the_stream_fails_waiting_requests() -> None:
    server = Server(refuses=lambda message: 202)
    async with opened(server) as transport:
        async with anyio.create_task_group() as group:

            async def ends() -> None:
                await until(lambda: server.posted)
                assert server.stream is not None
                server.stream.writer.close()

            group.start_soon(ends)
            with pytest.raises(ConnectionLost) as lost:
                await transport.request("tools/call", {})
        assert lost.value.sent
        assert "the event stream ended" in await transport.wait_closed()


async def test_server_messages_are_delivered_and_other_events_ignored() -> None:
    received: list[dict[str, Any]] = []
    server = Server()
    async with opened(server, received) as transport:
        assert server.stream is not None
        server.stream.say(b"event: other\n" + event({"jsonrpc": "2.0", "method": "a"}))
        server.stream.say(event({"jsonrpc": "2.0", "method": "b"}))
        assert await transport.request("tools/call", {}) == {}
    assert [message["method"] for message in received] == ["b"]
