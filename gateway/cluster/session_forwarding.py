"""Forward a request to the process that has the request's session, which is called the owner of the session."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import anyio

from gateway.downstream.messages import error_response
from gateway.http import responder as sse
from gateway.http.http_client import HttpClient, Response
from gateway.http.http_request import Fields, RequestHead
from gateway.http.responder import Responder
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import INTERNAL_ERROR, INVALID_REQUEST, ConnectionLost, RpcError
from gateway.protocol.jsonrpc import InvalidMessage, RequestId, RpcRequest, read

# Headers that are not forwarded: they apply to one connection, or the forwarding process sets them itself.
_HOP_BY_HOP: Final = frozenset(
    {
        b"host",
        b"origin",
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
        b"accept-encoding",
        b"content-length",
        b"date",
        b"server",
        b"typegate-peer",
    }
)
_ENDED: Final = "the process that had this session has ended; whether the request was carried out is not known"


class NotForwarded(ConnectionLost):
    """The owner of the session uses another version of the protocol, and has not carried out the request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardingOptions:
    """How requests are forwarded to another process.

    Attributes:
        lines: Additional header lines for the owner of the session.
        silence_s: Seconds without a byte after which the owner is considered lost. The owner's pings are more frequent.
        refused_status: The status with which the owner reports that it uses another version of the protocol.
    """

    lines: bytes = b""
    silence_s: float = math.inf
    refused_status: int | None = None


async def forward_request(
    client: HttpClient,
    base: str,
    head: RequestHead,
    body: bytes,
    responder: Responder,
    options: ForwardingOptions,
) -> ConnectionLost | None:
    """Forward a request to the owner of its session, and stream the response to the caller.

    Args:
        client: The client for the owner of the session.
        base: Scheme and host of the owner.
        head: The header block of the request.
        body: The body of the request.
        responder: Responds to the caller.

    Returns:
        The error that ended the response early; None if the response is complete.
    """
    silence_s = options.silence_s
    own = b"".join(b"%b: %b\r\n" % field for field in head.fields if field[0] not in _HOP_BY_HOP)
    # The owner's pings are forwarded, so this process does not send pings of its own.
    responder.omit_pings()
    began = events = False
    try:
        with anyio.CancelScope() as silent:
            silent.deadline = anyio.current_time() + silence_s
            target = base + head.path.decode("latin-1")
            response = await client.exchange(head.method.decode("latin-1"), target, own + options.lines, body)
            try:
                if response.status == options.refused_status:
                    raise NotForwarded("the replica that has the session uses another version of the protocol")
                if response.headers.get("connection", "").lower() == "close":
                    # The owner is shutting down, so do not reuse idle connections to it.
                    client.close()
                events = response.content_type == "text/event-stream"
                began = True
                responder.start(response.status, _forwarded_fields(response))
                async for chunk in response.chunks():
                    responder.write(chunk)
                    silent.deadline = math.inf
                    await responder.drain()
                    silent.deadline = anyio.current_time() + silence_s
                responder.end()
            finally:
                client.end_exchange(response.connection)
        if silent.cancelled_caught:
            raise ConnectionLost(f"no data for {silence_s:g} s", sent=True)
    except ConnectionLost as error:
        _answer_lost(body, responder, began=began, events=events, sent=error.sent)
        return error
    return None


def respond_session_not_found(responder: Responder) -> None:
    """Tell the caller that the session no longer exists.

    Source: MCP 2025-11-25, "Transports", "Session Management".
    """
    responder.respond(404, error_response(None, RpcError(INVALID_REQUEST, "Session not found")).pieces)


def _forwarded_fields(response: Response) -> Fields:
    fields = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in response.headers.items()
        if name.encode("latin-1") not in _HOP_BY_HOP
    ]
    length = response.length
    if length is not None:
        fields.append((b"content-length", length.encode("latin-1")))
    return fields


def _answer_lost(body: bytes, responder: Responder, *, began: bool, events: bool, sent: bool) -> None:
    """Tell the caller that the owner of the session has ended, as far as this is possible in the response.

    Args:
        began: True if the beginning of the response has been sent.
        events: True if the response is an event stream.
        sent: True if the owner may have received the request.
    """
    request_id = _request_id(body)
    if began and not events:
        responder.fail()  # the client notices that the body is truncated
    elif began:
        if request_id is not None:
            message = error_response(request_id, RpcError(INTERNAL_ERROR, _ENDED))
            responder.write(sse.event(message.pieces))
        responder.end()
    elif sent and request_id is not None:
        # Not 404: the client would then send the request again, although the request may have been carried out.
        responder.respond(200, error_response(request_id, RpcError(INTERNAL_ERROR, _ENDED)).pieces)
    else:
        respond_session_not_found(responder)


def _request_id(body: bytes) -> RequestId | None:
    try:
        message = read(body)
    except (json_bytes.MalformedJson, InvalidMessage):
        return None
    return message.id if isinstance(message, RpcRequest) else None
