"""Requests that another process answers, because it has their session."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol, TypeVar

from gateway.downstream.http.request import RequestHead
from gateway.downstream.http.responder import Responder

log = logging.getLogger(__name__)

OwnerT = TypeVar("OwnerT")


class Carrier(Protocol[OwnerT]):
    """Hands requests to the process that has their session."""

    def owner(self, session_id: str | None) -> OwnerT | None:
        """Which other process has the session; None where it is this one's, or nobody's."""

    async def carry(self, owner: OwnerT, head: RequestHead, body: bytes, responder: Responder) -> None:
        """Have the request answered there, and pass the response on as it comes."""


class CarriedRequests:
    """Those that are on their way at present.

    Args:
        carrier: Knows the sessions of other processes; None where there is no other process.

    Attributes:
        possible: Whether there is one.
    """

    def __init__(self, carrier: Carrier[Any] | None) -> None:
        self._carrier = carrier
        self.possible = carrier is not None
        self._requests: set[Responder] = set()
        self._streams: set[Responder] = set()

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answer."""
        return len(self._requests)

    def take(self, head: RequestHead, body: bytes, responder: Responder) -> bool:
        """Have a request answered by the process that has its session; returns whether another one has."""
        carrier = self._carrier
        if carrier is None:
            return False
        owner = carrier.owner(head.text(b"mcp-session-id") or None)
        if owner is None:
            return False
        responder.run(self._carry(carrier, owner, head, body, responder))
        return True

    def give_up(self) -> None:
        """End what waits for an answer."""
        _hand_back(self._requests)

    def close_streams(self) -> None:
        """End the streams: their callers open them again elsewhere."""
        _hand_back(self._streams)

    async def _carry(
        self, carrier: Carrier[Any], owner: Any, head: RequestHead, body: bytes, responder: Responder
    ) -> None:
        carried = self._requests if head.method == b"POST" else self._streams
        carried.add(responder)
        try:
            await carrier.carry(owner, head, body, responder)
        except asyncio.CancelledError:
            # Where we end before the answer came: its caller has not left, and must not wait.
            responder.fail()
            raise
        except Exception:  # boundary: without an end of its response the caller would wait for ever
            log.exception("a request could not be carried")
            responder.fail()
        finally:
            carried.discard(responder)


def _hand_back(carried: set[Responder]) -> None:
    """End carried responses where they stand. Whoever can resume one does so through another process."""
    for responder in list(carried):
        task = responder.task
        if responder.started:
            responder.end()
        if task is not None:
            task.cancel()
