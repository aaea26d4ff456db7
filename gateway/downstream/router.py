"""Check Host and Origin, route requests by path, and forward a request to the process that has its session.

Several gateway processes can serve the same address. A session exists in only one of them, its owner.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Protocol, TypeVar

from gateway.downstream.protected_resource import WELL_KNOWN
from gateway.http.http_request import RequestHead
from gateway.http.origins import VARY, CrossOrigin, HostCheck
from gateway.http.responder import Responder
from gateway.http.server_connections import Handler

log = logging.getLogger(__name__)

OwnerT = TypeVar("OwnerT")


class SessionForwarder(Protocol[OwnerT]):
    """Forwards a request to the process that has the session of the request."""

    def owner(self, session_id: str | None) -> OwnerT | None:
        """Return the other process that has the session; None if the session is local or unknown."""

    async def forward(self, owner: OwnerT, head: RequestHead, body: bytes, responder: Responder) -> None:
        """Forward the request to the process that has its session, and relay the response."""


class ForwardedRequests:
    """The requests that are being forwarded to other processes.

    Args:
        forwarder: Finds the sessions of other processes; None if there is only one process.

    Attributes:
        possible: True if there are other processes.
    """

    def __init__(self, forwarder: SessionForwarder[Any] | None) -> None:
        self._forwarder = forwarder
        self.possible = forwarder is not None
        self._requests: set[Responder] = set()
        self._streams: set[Responder] = set()

    @property
    def in_flight(self) -> int:
        """Return how many forwarded requests wait for their response, not counting session streams."""
        return len(self._requests)

    def forward(self, head: RequestHead, body: bytes, responder: Responder) -> bool:
        """Forward the request if another process has its session; return whether the request was forwarded."""
        forwarder = self._forwarder
        if forwarder is None:
            return False
        owner = forwarder.owner(head.text(b"mcp-session-id") or None)
        if owner is None:
            return False
        responder.run(self._forward(forwarder, owner, head, body, responder))
        return True

    def give_up(self) -> None:
        """End the forwarded requests that wait for a response; each caller gets an error response."""
        _end_all(self._requests)

    def close_streams(self) -> None:
        """End the forwarded session streams, so that callers reopen them through another process."""
        _end_all(self._streams)

    async def _forward(
        self, forwarder: SessionForwarder[Any], owner: Any, head: RequestHead, body: bytes, responder: Responder
    ) -> None:
        forwarded = self._requests if head.method == b"POST" else self._streams
        forwarded.add(responder)
        try:
            await forwarder.forward(owner, head, body, responder)
        except asyncio.CancelledError:
            # Cancelled by shutdown before the response arrived: the caller is still connected and needs a response.
            responder.fail()
            raise
        except Exception:  # boundary: without a response, the caller would wait forever
            log.exception("forwarding failed")
            responder.fail()
        finally:
            forwarded.discard(responder)


def _end_all(forwarded: set[Responder]) -> None:
    """End forwarded responses; callers may resume a resumable response through another process."""
    for responder in list(forwarded):
        task = responder.task
        if responder.started:
            responder.end()
        if task is not None:
            task.cancel()


_WELL_KNOWN: Final = WELL_KNOWN.encode()
# Clients look for metadata at many paths below this path, including paths that do not exist here.
_METADATA: Final = b"/.well-known/"


class PathRouter:
    """Routes `/mcp` and the paths below it to the endpoint, and other paths to the application."""

    def __init__(
        self,
        host_check: HostCheck,
        cross_origin: CrossOrigin,
        endpoint: Handler,
        protected_resource: Handler,
        application: Handler,
    ) -> None:
        self._host_check = host_check
        self._cross_origin = cross_origin
        self._endpoint = endpoint
        self._protected_resource = protected_resource
        self._application = application

    def route(self, head: RequestHead) -> Handler:
        """Return the handler of a request.

        Raises:
            RequestRefused: The request's Host or Origin is not allowed.
        """
        # Fast path: equal requests share a header block. Its handler changes only with the allowed hosts and origins.
        routed = head.routed
        if routed is not None and routed[0] is self._host_check.edition:
            answers: Handler = routed[1]
            return answers
        self._host_check.check(head)
        path = head.path
        handler = self._application
        is_endpoint, is_metadata = path == b"/mcp" or path.startswith(b"/mcp/"), path.startswith(_METADATA)
        if is_endpoint:
            handler = self._endpoint
        elif path.startswith(_WELL_KNOWN):
            handler = self._protected_resource
        if is_endpoint or is_metadata:
            # Other paths get no CORS headers, so that pages of other origins cannot read responses of /admin.
            head.cross_origin = self._cross_origin.lines(head) or (VARY if is_metadata else b"")
            if self._cross_origin.is_preflight(head):
                handler = self._cross_origin
        head.routed = self._host_check.edition, handler
        return handler


class AdminRouter:
    """Routes every request to the admin application; used if the admin page has an address of its own."""

    def __init__(self, host_check: HostCheck, application: Handler) -> None:
        self._host_check = host_check
        self._application = application

    def route(self, head: RequestHead) -> Handler:
        """Return the admin application.

        Raises:
            RequestRefused: The request's Host or Origin is not allowed.
        """
        self._host_check.check(head)
        return self._application
