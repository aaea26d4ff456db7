"""The other workers, reached over private sockets: ask them, or have them answer a caller's request."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import anyio

from gateway.cluster.assignment import Assignment, owner_of
from gateway.cluster.carrying import carry
from gateway.downstream.http.request import RequestHead
from gateway.downstream.http.responder import Responder
from gateway.errors import GatewayError
from gateway.upstream.transport.http_client import HttpClient

log = logging.getLogger(__name__)

ASK_S: Final = 5.0
"""How long another worker may take for an answer: an administrator waits for it, and a hung worker must not matter."""
_MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
"""Rows of 100,000 wrappers and more; both ends are ours."""
# On a socket of this machine: a worker that takes longer is not there.
_CONNECT_S: Final = 2.0


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
        lost = await carry(self._clients[owner], self._base, head, body, responder)
        if lost is not None:
            log.debug("a request could not be carried to worker %d: %s", owner, lost)
