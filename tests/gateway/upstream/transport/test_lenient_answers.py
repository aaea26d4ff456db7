"""HTTP answers that clients based on fetch and httpx accept, and invalid ones."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.raw_http import Peer, message_of, serving

from gateway.http.http_client import HttpClient
from gateway.protocol.gateway_errors import ConnectionLost, RpcError
from gateway.upstream.transport.jsonrpc_transport import Reply
from gateway.upstream.transport.streamable_http import StreamableHttpTransport, open_streamable_http

OK = "HTTP/1.1 200 OK\r\n"
JSON = "content-type: application/json\r\n"


@asynccontextmanager
async def answered(
    head: str, body: str, *, received: list[Any] | None = None
) -> AsyncIterator[StreamableHttpTransport]:
    """A transport whose requests are answered so; `{id}` in the body is the id of the request."""

    async def serve(peer: Peer) -> None:
        while True:
            request = await peer.request()
            text = body.replace("{id}", str(message_of(request).get("id")))
            peer.answer(text.encode(), head.encode())

    def on_message(message: dict[str, Any], reply: Reply) -> None:
        if received is not None:
            received.append(message["method"])

    client = HttpClient()
    async with (
        serving(serve) as site,
        open_streamable_http("s", site.url, headers={}, client=client, on_message=on_message) as transport,
    ):
        yield transport
    client.close()


USUAL = '{"jsonrpc": "2.0", "id": {id}, "result": {"n": 1}}'
TAKEN = {
    "an id as text": (OK + JSON, '{"jsonrpc": "2.0", "id": "{id}", "result": {"n": 1}}'),
    "an id as a fraction": (OK + JSON, '{"jsonrpc": "2.0", "id": {id}.0, "result": {"n": 1}}'),
    "a large answer with an id as text": (
        OK + JSON,
        '{"jsonrpc": "2.0", "id": "{id}", "result": {"n": 1, "_meta": {"x": "' + "x" * 100_000 + '"}}}',
    ),
    "an event with an id as text": (
        OK + "content-type: text/event-stream\r\n",
        'data: {"jsonrpc": "2.0", "id": "{id}", "result": {"n": 1}}\n\n',
    ),
    "no coding": (OK + JSON + "content-encoding: none\r\n", USUAL),
    "an empty coding": (OK + JSON + "content-encoding:\r\n", USUAL),
    "identity in capitals": (OK + JSON + "Content-Encoding: IDENTITY\r\n", USUAL),
    "a charset as coding": (OK + JSON + "content-encoding: UTF-8\r\n", USUAL),
    "several that are none": (OK + JSON + "content-encoding: identity, utf-8\r\n", USUAL),
    "binary": (OK + JSON + "content-encoding: binary\r\n", USUAL),
    "no type": (OK, USUAL),
    "an empty type": (OK + "content-type:\r\n", USUAL),
    "a type twice": (OK + "content-type: application/json, application/json\r\n", USUAL),
    "a type of its own": (OK + "content-type: application/json-rpc\r\n", USUAL),
    "a type with a charset": (OK + "Content-Type: Application/JSON; charset=utf-8\r\n", USUAL),
    "text after white space": (OK + "content-type: text/plain\r\n", "\r\n  " + USUAL),
    "a byte order mark": (OK + JSON, "\ufeff" + USUAL),
    "a byte order mark in text": (OK + "content-type: text/plain\r\n", "\ufeff" + USUAL),
    "created": ("HTTP/1.1 201 Created\r\n" + JSON, USUAL),
    "accepted": ("HTTP/1.1 202 Accepted\r\n" + JSON, USUAL),
    "an event under another status": (
        "HTTP/1.1 201 Created\r\ncontent-type: text/event-stream\r\n",
        f"data: {USUAL}\n\n",
    ),
    "an event stream in capitals": (OK + "Content-Type: Text/Event-Stream\r\n", f"data: {USUAL}\n\n"),
    "an event stream twice": (
        OK + "content-type: text/event-stream, text/event-stream\r\n",
        f"data: {USUAL}\n\n",
    ),
    "an event stream with a byte order mark": (OK + "content-type: text/event-stream\r\n", f"\ufeffdata: {USUAL}\n\n"),
    "a batch": (
        OK + JSON,
        '[{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}, ' + USUAL + "]",
    ),
    "more members": (OK + JSON, '{"jsonrpc": "2.0", "id": {id}, "result": {"n": 1}, "error": null, "level": 30}'),
}


@pytest.mark.parametrize("kind", TAKEN)
async def test_answer_accepted_by_common_clients_is_accepted(kind: str) -> None:
    head, body = TAKEN[kind]
    received: list[Any] = []
    async with answered(head, body, received=received) as transport:
        for _ in range(3):  # the header blocks of the later responses may be cached
            assert (await transport.request("tools/call", {}))["n"] == 1
    assert received == ["notifications/message"] * 3 * (kind == "a batch")


NOT_TAKEN = {
    "gzip": (OK + JSON + "content-encoding: gzip\r\n", USUAL),
    "br in capitals": (OK + JSON + "content-encoding: BR\r\n", USUAL),
    "a coding beside none": (OK + JSON + "content-encoding: identity\r\ncontent-encoding: gzip\r\n", USUAL),
    "a coding before none": (OK + JSON + "content-encoding: gzip\r\ncontent-encoding: identity\r\n", USUAL),
    "no version": (OK + JSON, '{"id": {id}, "result": {"n": 1}}'),
    "another version": (OK + JSON, '{"jsonrpc": "1.0", "id": {id}, "result": {"n": 1}}'),
    "neither result nor error": (OK + JSON, '{"jsonrpc": "2.0", "id": {id}}'),
    "a line of a log": (OK + JSON, '{"level": 30, "id": {id}, "msg": "x"}'),
    "another's id": (OK + JSON, '{"jsonrpc": "2.0", "id": "987654", "result": {"n": 1}}'),
    "a fraction of an id": (OK + JSON, '{"jsonrpc": "2.0", "id": {id}.5, "result": {"n": 1}}'),
    "a batch without it": (OK + JSON, "[]"),
    "a line of a log as an event": (
        OK + "content-type: text/event-stream\r\n",
        'data: {"id": {id}, "result": {"n": 1}}\n\n',
    ),
}


@pytest.mark.parametrize("kind", NOT_TAKEN)
async def test_invalid_answer_is_refused(kind: str) -> None:
    async with answered(*NOT_TAKEN[kind]) as transport:
        with pytest.raises(ConnectionLost):
            await transport.request("tools/call", {})


async def test_empty_session_id_counts_as_absent() -> None:
    seen: list[bytes] = []

    async def serve(peer: Peer) -> None:
        while True:
            request = await peer.request()
            seen.append(request)
            result = {"jsonrpc": "2.0", "id": message_of(request).get("id"), "result": {"n": 1}}
            peer.answer(json.dumps(result).encode(), (OK + JSON + "mcp-session-id:\r\n").encode())

    client = HttpClient()
    async with (
        serving(serve) as site,
        open_streamable_http("s", site.url, headers={}, client=client, on_message=print) as transport,
    ):
        await transport.request("initialize", {})
        await transport.request("tools/call", {})
    client.close()
    assert not any(b"mcp-session-id" in request for request in seen)
    assert not any(request.startswith(b"DELETE") for request in seen)


async def test_error_with_its_id_in_another_form_is_the_answer() -> None:
    body = '{"jsonrpc": "2.0", "id": "{id}", "error": {"code": -1, "message": "no"}}'
    async with answered(OK + JSON, body) as transport:
        with pytest.raises(RpcError, match="no"):
            await transport.request("tools/call", {})
