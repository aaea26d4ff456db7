"""What travels beside requests: progress, log messages, questions to the user, and each one's deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
from msgspec import Struct, field

from gateway.secrets import SECRETS
from gateway.upstream.deadline import Deadline
from gateway.upstream.transport.jsonrpc import ResultStream

OnParams = Callable[[dict[str, Any]], None]
Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Asks the caller something: method and params in, the result out; raises `RpcError` for its refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSession:
    """One downstream session, as a connection of its own is negotiated and answered.

    Attributes:
        version: The protocol version that it negotiated with us.
        capabilities: What it declared.
        client_info: Its name and version, as it sent them.
        ask: Puts a question to it that belongs to no request of its own.
        notify: Sends it a notification.
    """

    version: str
    capabilities: dict[str, Any]
    client_info: dict[str, Any]
    ask: Ask
    notify: OnParams


class RequestCallbacks(Struct, eq=False):
    """One request's way back to its caller before its result.

    Attributes:
        owner: Equal for requests of one caller: where a transport does not mark which request a message
            belongs to, it is passed on only if all that are in flight have one owner.
        on_progress: Takes the params of progress notifications; None where the caller wants none.
        on_log: Takes the params of log messages; None where the caller wants none.
        ask: Puts a question to the caller; None where it cannot be asked.
        on_pause: Is told when the upstream wants the caller to come back for the answer after some milliseconds.
        results: Takes a large result in pieces; None where the result is looked at as a whole.
        deadline: Ends the request when nothing arrives for it for too long; None before it is sent.
        refused: The methods of questions that were refused while the request was in flight.
        asking: Of the questions that are being asked on its behalf.
        begun: A part of the result has left: the request cannot be sent again in its place.
        ended: Nobody waits for the answer any more, so nobody is to be asked anything for it.
    """

    owner: object = None
    on_progress: OnParams | None = None
    on_log: OnParams | None = None
    on_pause: Callable[[int], None] | None = None
    ask: Ask | None = None
    results: ResultStream | None = None
    refused: list[str] = field(default_factory=list)
    asking: list[anyio.CancelScope] = field(default_factory=list)
    begun: bool = False
    ended: bool = False
    deadline: Deadline | None = None

    def progressed(self, params: dict[str, Any]) -> None:
        """Pass a progress notification on; the deadline starts anew."""
        if self.deadline is not None:
            self.deadline.extend()
        if self.on_progress is not None:
            # Numbers hold no secret, and most notifications have nothing else.
            self.on_progress(SECRETS.scrub_value(params) if "message" in params else params)

    def begin(self, close: Callable[[], bytes]) -> bool:
        """See `ResultStream.begin`."""
        self.begun = self.results is not None and self.results.begin(close)
        return self.begun

    def pass_on(self, items: bytes) -> Awaitable[None] | None:
        """See `ResultStream.pass_on`; the deadline is not for callers who read slowly."""
        slow = self.results.pass_on(items) if self.results is not None else None
        return self._held_for(slow) if slow is not None else None

    async def _held_for(self, slow: Awaitable[None]) -> None:
        self.hold()
        try:
            await slow
        finally:
            self.release()

    def hold(self) -> None:
        """Stop the deadline while others than the upstream are waited for."""
        if self.deadline is not None:
            self.deadline.hold()

    def release(self) -> None:
        """Let the deadline run again."""
        if self.deadline is not None:
            self.deadline.release()

    def end(self) -> None:
        """Withdraw whatever is still being asked on behalf of this request."""
        self.ended = True
        if self.asking:
            # A copy: a question that ends takes itself off the list.
            for scope in list(self.asking):
                scope.cancel()
