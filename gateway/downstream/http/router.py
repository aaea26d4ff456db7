"""Host and Origin first, then whoever answers for the path."""

from __future__ import annotations

from gateway.downstream.http.host_check import HostCheck
from gateway.downstream.http.protocol import Handler
from gateway.downstream.http.request import RequestHead


class PathRouter:
    """Gives `/mcp` and what is below it to the endpoint, all other paths to the application beside it."""

    def __init__(self, host_check: HostCheck, endpoint: Handler, application: Handler) -> None:
        self._host_check = host_check
        self._endpoint = endpoint
        self._application = application

    def route(self, head: RequestHead) -> Handler:
        """The handler of a request.

        Raises:
            RequestRefused: Its Host or Origin is not served.
        """
        self._host_check.check(head)
        path = head.path
        return self._endpoint if path == b"/mcp" or path.startswith(b"/mcp/") else self._application


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
