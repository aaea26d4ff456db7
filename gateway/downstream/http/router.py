"""Host and Origin first, then whoever answers for the path."""

from __future__ import annotations

from typing import Final

from gateway.downstream.http.cross_origin import VARY, CrossOrigin
from gateway.downstream.http.handler import Handler
from gateway.downstream.http.host_check import HostCheck
from gateway.downstream.http.protected_resource import WELL_KNOWN
from gateway.downstream.http.request import RequestHead

_WELL_KNOWN: Final = WELL_KNOWN.encode()
# Metadata that clients look for in many places, also in those that we do not have.
_METADATA: Final = b"/.well-known/"


class PathRouter:
    """Gives `/mcp` and what is below it to the endpoint, all other paths to what is beside it."""

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
        """The handler of a request.

        Raises:
            RequestRefused: Its Host or Origin is not served.
        """
        # One head may be that of many requests, and nothing else is looked at here.
        routed = head.routed
        if routed is not None and routed[0] is self:
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
            # Not below /admin: a page of another origin has no business there.
            head.cross_origin = self._cross_origin.lines(head) or (VARY if is_metadata else b"")
            if self._cross_origin.is_preflight(head):
                handler = self._cross_origin
        head.routed = self, handler
        return handler


class AdminRouter:
    """Gives every path to the application of administrators, on an address of its own."""

    def __init__(self, host_check: HostCheck, application: Handler) -> None:
        self._host_check = host_check
        self._application = application

    def route(self, head: RequestHead) -> Handler:
        """The handler of a request.

        Raises:
            RequestRefused: Its Host or Origin is not served.
        """
        self._host_check.check(head)
        return self._application
