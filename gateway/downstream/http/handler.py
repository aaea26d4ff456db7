"""What a connection hands its requests to, whoever answers them."""

from __future__ import annotations

from typing import Any, Protocol

from gateway.access.quotas import Account
from gateway.downstream.http.request import RequestHead
from gateway.downstream.http.responder import Responder


class Admission(Protocol):
    """What a handler knows of a request whose head it has accepted.

    Attributes:
        account: On which the request is held while it arrives; None where its sender is trusted.
    """

    @property
    def account(self) -> Account | None: ...


class Handler(Protocol):
    """What answers the requests of one part of the address space.

    Attributes:
        max_body_bytes: The largest body that is collected for it.
    """

    @property
    def max_body_bytes(self) -> int: ...

    def admit(self, head: RequestHead, peer: str) -> Admission | None:
        """Judge a request by its head, before its body is read; what this returns is handed to `answer`.

        Raises:
            RequestRefused: It ends here.
        """

    def answer(self, head: RequestHead, admitted: Any, body: bytes, responder: Responder, peer: str) -> None:
        """Answer a whole request, at once or in a task of the responder.

        Raises:
            RequestRefused: It ends here.
        """


class Router(Protocol):
    """Chooses who answers."""

    def route(self, head: RequestHead) -> Handler:
        """The handler of a request.

        Raises:
            RequestRefused: Nobody's.
        """
