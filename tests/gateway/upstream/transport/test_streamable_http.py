"""Streamable HTTP on the wire: an answer belongs to the request that it answers, and to no other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.raw_http import Peer, serving

from gateway.errors import ConnectionLost, HttpStatusError, RpcError
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.transport.jsonrpc import Reply
from gateway.upstream.transport.streamable_http import StreamableHttpTransport, open_streamable_http

JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@asynccontextmanager
async def transports(url: str, count: int) -> AsyncIterator[list[StreamableHttpTransport]]:
    """So many sessions of one origin, over the connections of one client."""
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
async def test_a_late_answer_is_never_taken_for_that_of_the_next_request(members: dict[str, Any]) -> None:
    async def late(peer: Peer) -> None:
        first = await peer.request()
        peer.answer(answer_to(first, result={"whose": "first"}), JSON)
        second = await peer.request()
        if peer.number:
            peer.answer(answer_to(second, result={"whose": "third"}), JSON)
            return
        # While the second request is on its way: nothing but its id tells this answer from that of the second.
        peer.answer(answer_to(first, **members), JSON)
        peer.answer(answer_to(second, result={"whose": "second"}), JSON)

    async with serving(late) as site, transports(site.url, 2) as (one, other):
        assert await one.request("tools/call", {}) == {"whose": "first"}
        with pytest.raises(ConnectionLost, match="another request's id"):
            await other.request("tools/call", {})
        # Its connection would be one answer behind from now on.
        assert await other.request("tools/call", {}) == {"whose": "first"}
        assert await other.request("tools/call", {}) == {"whose": "third"}
        assert len(site.peers) == 2


@pytest.mark.parametrize("request_id", [None, "server-error"])
async def test_an_error_of_a_server_that_could_not_read_the_request_is_its_answer(request_id: str | None) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.request()
        error = {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32700, "message": "what?"}}
        peer.answer(json.dumps(error).encode(), JSON)

    async with serving(refuse) as site, transports(site.url, 1) as [transport]:
        with pytest.raises(RpcError, match="what"):
            await transport.request("tools/call", {})


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("method", ["server/discover", "initialize", "tools/list", "tools/call"])
async def test_an_answer_that_refuses_the_credentials_is_told_in_our_words(status: int, method: str) -> None:
    async def refuse(peer: Peer) -> None:
        request = await peer.request()
        body = answer_to(request, error={"code": -32001, "message": "Bearer credential-0123 is not valid"})
        peer.answer(body, JSON.replace(b"200 OK", b"%d No" % status))

    async with serving(refuse) as site, transports(site.url, 1) as [transport]:
        with pytest.raises(HttpStatusError) as refused:
            await transport.request(method, {})
        assert str(refused.value) == f"HTTP {status}: the credentials were refused"
