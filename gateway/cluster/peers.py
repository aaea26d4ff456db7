"""The other workers, reached over private sockets: ask them, or have them answer a caller's request."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import anyio

from gateway import wire
from gateway.cluster.assignment import Assignment, owner_of
from gateway.downstream.http import sse
from gateway.downstream.http.request import Fields, RequestHead
from gateway.downstream.http.responder import Responder
from gateway.downstream.server import error_response
from gateway.errors import INTERNAL_ERROR, INVALID_REQUEST, ConnectionLost, GatewayError, RpcError
from gateway.jsonrpc import InvalidMessage, RequestId, RpcRequest, classify
from gateway.upstream.transport.http_client import HttpClient, Response

log = logging.getLogger(__name__)

ASK_S: Final = 5.0
"""How long another worker may take for an answer: an administrator waits for it, and a hung worker must not matter."""
_MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
"""Rows of 100,000 wrappers and more; both ends are ours."""
# They belong to one connection, or are said anew by whoever sends the message on.
_OF_A_HOP: Final = frozenset(
    {
        b"host", b"origin", b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
        b"upgrade", b"expect", b"accept-encoding", b"content-length", b"date", b"server",
    }
)  # fmt: skip
# On a socket of this machine: a worker that takes longer is not there.
_CONNECT_S: Final = 2.0
_ENDED: Final = "the process that had this session has ended; whether the request was carried out is not known"


class PeerLost(GatewayError):
    """Another worker did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What another worker answered."""

    status: int
    headers: dict[str, str]
    body: bytes


class Peers:
    """The other workers of one gateway."""

    def __init__(self, assignment: Assignment) -> None:
        self._count = assignment.count
        self._index = assignment.index
        # It stands where a host's name stands: whoever does not know it is refused as a stranger's host is.
        self._base = f"http://{assignment.secret}"
        self._clients = {
            index: HttpClient(connect_timeout_s=_CONNECT_S, unix_path=str(assignment.socket_of(index)))
            for index in range(assignment.count)
            if index != assignment.index
        }

    @property
    def others(self) -> tuple[int, ...]:
        """Every other worker."""
        return tuple(self._clients)

    def close(self) -> None:
        """Drop every idle connection."""
        for client in self._clients.values():
            client.close()

    def owner(self, session_id: str | None) -> int | None:
        """Which other worker has the session."""
        found = owner_of(session_id, self._count) if session_id is not None else None
        return None if found == self._index else found

    async def ask(
        self,
        index: int,
        method: str,
        target: str,
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        within_s: float = ASK_S,
    ) -> Reply:
        """One exchange with another worker.

        Raises:
            PeerLost: It is not there, or does not answer in time.
        """
        try:
            with anyio.fail_after(within_s):
                async with self._clients[index].send(method, self._base + target, headers or {}, body) as response:
                    content = await response.read(_MAX_ANSWER_BYTES)
                    return Reply(status=response.status, headers=dict(response.headers), body=content)
        except (GatewayError, TimeoutError, ValueError) as error:
            raise PeerLost(f"worker {index} does not answer ({str(error) or 'too slow'})") from None

    async def carry(self, owner: int, head: RequestHead, body: bytes, responder: Responder) -> None:
        """Have another worker answer a caller's request, and pass its response on as it comes."""
        lines = b"".join(b"%b: %b\r\n" % field for field in head.fields if field[0] not in _OF_A_HOP)
        # The owner keeps its stream alive, and what it sends arrives here.
        responder.pings = False
        target = self._base + head.path.decode("latin-1")
        client = self._clients[owner]
        began = events = False
        try:
            response = await client.exchange(head.method.decode("latin-1"), target, lines, body)
            try:
                events = response.content_type == "text/event-stream"
                began = True
                responder.start(response.status, _passed_on(response))
                async for chunk in response.chunks():
                    responder.write(chunk)
                    await responder.drain()
                responder.end()
            finally:
                client.release(response)
        except ConnectionLost as lost:
            log.debug("a request could not be carried to worker %d: %s", owner, lost)
            _answer_lost(body, responder, began=began, events=events, sent=lost.sent)


def _passed_on(response: Response) -> Fields:
    fields = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in response.headers.items()
        if name.encode("latin-1") not in _OF_A_HOP
    ]
    length = response.headers.get("content-length")
    if length is not None:
        fields.append((b"content-length", length.encode("latin-1")))
    return fields


def _answer_lost(body: bytes, responder: Responder, *, began: bool, events: bool, sent: bool) -> None:
    """Tell the caller that a session's worker has ended, in the way that is still open."""
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
        responder.respond(404, error_response(None, RpcError(INVALID_REQUEST, "Session not found")).pieces)


def _request_id(body: bytes) -> RequestId | None:
    try:
        message = classify(wire.loads(body))
    except (wire.MalformedJson, InvalidMessage):
        return None
    return message.id if isinstance(message, RpcRequest) else None
