"""Transports without a socket: they keep what is written, and the test sets what is unread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.http.http_request import RequestHead
from gateway.http.server_connection import HttpProtocol
from gateway.http.server_connections import Connections, Handler, Router
from tests.fuzz.http_requests import Wire

PEER = ("10.0.0.1", 9)


class Line(Wire):
    """A transport.

    Attributes:
        peer: The remote address.
        unread_bytes: The size of the data that the client has not read.
        is_aborted: Whether the connection was aborted and not just closed.
        has_ended: Whether the writing side was closed.
        pauses: The calls of `pause_reading` and `resume_reading`, as True and False.
    """

    def __init__(self, peer: Any = PEER) -> None:
        super().__init__()
        self.peer = peer
        self.unread_bytes = 0
        self.is_aborted = self.has_ended = False
        self.pauses: list[bool] = []

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.peer if name == "peername" else default

    def abort(self) -> None:
        self.is_aborted = self.closed = True

    def write_eof(self) -> None:
        self.has_ended = True

    def pause_reading(self) -> None:
        self.pauses.append(True)

    def resume_reading(self) -> None:
        self.pauses.append(False)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        written = bytes(self.written)
        self.written.clear()
        return written


@dataclass
class SingleHandler:
    """Routes every request to one handler."""

    handler: Handler

    def route(self, head: RequestHead) -> Handler:
        return self.handler


def connect(
    router: Router,
    connections: Connections | None = None,
    *,
    line: Line | None = None,
    ending: set[Any] | None = None,
) -> tuple[HttpProtocol, Line]:
    """Return a connection of a server, and its transport."""
    protocol, line = HttpProtocol(connections or Connections(most=10), router, ending=ending), line or Line()
    protocol.connection_made(line)
    return protocol, line
