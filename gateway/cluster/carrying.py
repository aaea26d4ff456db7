"""A caller's request, answered by another process of ours that has its session."""

from __future__ import annotations

import math
from typing import Final

import anyio

from gateway import wire
from gateway.downstream.http import sse
from gateway.downstream.http.request import Fields, RequestHead
from gateway.downstream.http.responder import Responder
from gateway.downstream.messages import error_response
from gateway.errors import INTERNAL_ERROR, INVALID_REQUEST, ConnectionLost, RpcError
from gateway.jsonrpc import InvalidMessage, RequestId, RpcRequest, read
from gateway.upstream.transport.http_client import HttpClient, Response

# They belong to one connection, or are said anew by whoever sends the message on.
_OF_A_HOP: Final = frozenset(
    {
        b"host", b"origin", b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
        b"upgrade", b"expect", b"accept-encoding", b"content-length", b"date", b"server", b"typegate-peer",
    }
)  # fmt: skip
_ENDED: Final = "the process that had this session has ended; whether the request was carried out is not known"


class NotCarried(ConnectionLost):
    """The owner cannot take what we say; nothing was done."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)


async def carry(
    client: HttpClient,
    base: str,
    head: RequestHead,
    body: bytes,
    responder: Responder,
    *,
    lines: bytes = b"",
    silence_s: float = math.inf,
    refused_status: int | None = None,
) -> ConnectionLost | None:
    """Have a request answered elsewhere, and pass the response on as it comes; returns why it was not answered whole.

    Args:
        client: Connects to the owner of the session.
        base: Scheme and host of the owner.
        head: Of the request.
        body: Of the request.
        responder: Of the request.
        lines: Further header lines for the owner.
        silence_s: After so long without a byte the owner is taken for lost; it gives a sign of life more often.
        refused_status: With this status the owner says that it cannot take our request.
    """
    own = b"".join(b"%b: %b\r\n" % field for field in head.fields if field[0] not in _OF_A_HOP)
    # The owner keeps its stream alive, and what it sends arrives here.
    responder.pings = False
    began = events = False
    try:
        with anyio.CancelScope() as silent:
            silent.deadline = anyio.current_time() + silence_s
            target = base + head.path.decode("latin-1")
            response = await client.exchange(head.method.decode("latin-1"), target, own + lines, body)
            try:
                if response.status == refused_status:
                    raise NotCarried("the gateway that has the session speaks another version")
                if response.headers.get("connection", "").lower() == "close":
                    # It is about to end, and with it what is kept of connections to it.
                    client.close()
                events = response.content_type == "text/event-stream"
                began = True
                responder.start(response.status, _passed_on(response))
                async for chunk in response.chunks():
                    responder.write(chunk)
                    silent.deadline = math.inf
                    await responder.drain()
                    silent.deadline = anyio.current_time() + silence_s
                responder.end()
            finally:
                client.keep(response.connection)
        if silent.cancelled_caught:
            raise ConnectionLost(f"it has been silent for {silence_s:g} s", sent=True)
    except ConnectionLost as lost:
        _answer_lost(body, responder, began=began, events=events, sent=lost.sent)
        return lost
    return None


def answer_gone(responder: Responder) -> None:
    """Tell the caller that there is no such session any more.

    Source: MCP 2025-11-25, "Transports", "Session Management".
    """
    responder.respond(404, error_response(None, RpcError(INVALID_REQUEST, "Session not found")).pieces)


def _passed_on(response: Response) -> Fields:
    fields = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in response.headers.items()
        if name.encode("latin-1") not in _OF_A_HOP
    ]
    length = response.length
    if length is not None:
        fields.append((b"content-length", length.encode("latin-1")))
    return fields


def _answer_lost(body: bytes, responder: Responder, *, began: bool, events: bool, sent: bool) -> None:
    """Tell the caller that a session's process has ended, in the way that is still open."""
    request_id = _request_id(body)
    if began and not events:
        responder.fail()  # a body that ends too early says it all
    elif began:
        if request_id is not None:
            lost = error_response(request_id, RpcError(INTERNAL_ERROR, _ENDED))
            responder.write(sse.event(lost.pieces))
        responder.end()
    elif sent and request_id is not None:
        # Not 404: that invites the caller to send it again, and it may have been carried out.
        responder.respond(200, error_response(request_id, RpcError(INTERNAL_ERROR, _ENDED)).pieces)
    else:
        answer_gone(responder)


def _request_id(body: bytes) -> RequestId | None:
    try:
        message = read(body)
    except (wire.MalformedJson, InvalidMessage):
        return None
    return message.id if isinstance(message, RpcRequest) else None
