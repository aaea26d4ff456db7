"""The other workers, reached over private sockets: ask them, or have them answer a caller's request."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

import anyio

from gateway import wire
from gateway.cluster.assignment import Assignment, owner_of
from gateway.downstream.http.request import Scope
from gateway.downstream.http.response import Receive, Send, send_json
from gateway.downstream.server import error_answer
from gateway.errors import INTERNAL_ERROR, INVALID_REQUEST, ConnectionLost, GatewayError, RpcError
from gateway.upstream.transport.http_client import HttpClient, Response

log = logging.getLogger(__name__)

ASK_S: Final = 5.0
_MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
# They belong to one connection, or are said anew by whoever sends the message on.
_OF_A_HOP: Final = frozenset(
    {
        "host", "origin", "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding",
        "upgrade", "expect", "accept-encoding", "content-length", "date", "server",
    }
)  # fmt: skip
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
            index: HttpClient(connect_timeout_s=2.0, unix_path=str(assignment.socket_of(index)))
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

    async def carry(self, owner: int, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Have another worker answer a caller's request, and pass its answer on as it comes."""
        lines = b"".join(
            b"%b: %b\r\n" % (name, value) for name, value in scope["headers"] if name.decode("latin-1") not in _OF_A_HOP
        )
        began = False
        events = False
        async with anyio.create_task_group() as group:
            group.start_soon(_until_left, receive, group)
            client = self._clients[owner]
            try:
                response = await client.exchange(scope["method"], self._base + scope["path"], lines, body)
                try:
                    events = response.content_type == "text/event-stream"
                    began = True
                    await _pass_on(response, send)
                finally:
                    client.release(response)
            except ConnectionLost as lost:
                log.debug("a request could not be carried to worker %d: %s", owner, lost)
                await _tell_lost(body, send, began=began, events=events, sent=lost.sent)
            group.cancel_scope.cancel()


async def _until_left(receive: Receive, group: anyio.abc.TaskGroup) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    group.cancel_scope.cancel()


async def _pass_on(response: Response, send: Send) -> None:
    kept = ((name, value) for name, value in response.headers.items() if name not in _OF_A_HOP)
    head = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept]
    length = response.headers.get("content-length")
    if length is not None:
        head.append((b"content-length", length.encode("latin-1")))
    await send({"type": "http.response.start", "status": response.status, "headers": head})
    async for chunk in response.chunks():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _tell_lost(body: bytes, send: Send, *, began: bool, events: bool, sent: bool) -> None:
    """Say that a session's worker has ended, in the way that is still open."""
    request_id = _request_id(body)
    if began and not events:
        return  # a body that ends too early says it all
    if began:
        frame = b""
        if request_id is not None:
            frame = b"event: message\ndata: " + error_answer(request_id, RpcError(INTERNAL_ERROR, _ENDED)).body
            frame += b"\n\n"
        await send({"type": "http.response.body", "body": frame})
    elif sent and request_id is not None:
        # Not 404: that invites the caller to send it again, and it may have been carried out.
        await send_json(send, 200, error_answer(request_id, RpcError(INTERNAL_ERROR, _ENDED)).body)
    else:
        await send_json(send, 404, error_answer(None, RpcError(INVALID_REQUEST, "Session not found")).body)


def _request_id(body: bytes) -> Any:
    try:
        message = wire.loads(body)
    except wire.MalformedJson:
        return None
    asks = isinstance(message, dict) and isinstance(message.get("method"), str)
    found = message.get("id") if asks else None
    return found if isinstance(found, str | int | float) and not isinstance(found, bool) else None
