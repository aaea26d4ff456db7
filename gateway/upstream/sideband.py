"""What travels beside requests: progress, log messages, questions to the user, and each one's deadline."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio

OnParams = Callable[[dict[str, Any]], None]
Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Asks the caller something: method and params in, the result out; raises `RpcError` for its refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One downstream session, as a connection of its own is negotiated and answered.

    Attributes:
        version: The protocol version that it negotiated with us.
        capabilities: What it said it can do.
        client_info: What it said it is.
        ask: Puts a question to it that belongs to no request of its own.
        tell: Sends it a notification.
    """

    version: str
    capabilities: dict[str, Any]
    client_info: dict[str, Any]
    ask: Ask
    tell: OnParams


class Sideband:
    """One request's way to its caller while the answer is being made.

    Attributes:
        owner: Equal for requests of one caller: where a wire tells nothing of which request a message
            belongs to, it is passed on only if all that are in flight have one owner.
        on_progress: Hears progress params; None where the caller wants none.
        on_log: Hears the params of log messages; None where the caller wants none.
        ask: Puts a question to the caller; None where it cannot be asked.
        refused: The methods of questions that were refused while the request was in flight.
        ended: Nobody waits for the answer any more, so nobody is to be asked anything for it.
    """

    __slots__ = (
        "_deadline_s",
        "_held",
        "_scope",
        "ask",
        "asking",
        "ended",
        "on_log",
        "on_progress",
        "owner",
        "refused",
    )

    def __init__(
        self,
        owner: object = None,
        *,
        on_progress: OnParams | None = None,
        on_log: OnParams | None = None,
        ask: Ask | None = None,
    ) -> None:
        self.owner = owner
        self.on_progress = on_progress
        self.on_log = on_log
        self.ask = ask
        self.refused: list[str] = []
        self.asking: list[anyio.CancelScope] = []
        self.ended = False
        self._scope: anyio.CancelScope | None = None
        self._deadline_s = 0.0
        self._held = 0

    def bound_by(self, scope: anyio.CancelScope, limit_s: float) -> None:
        """Let this scope end the request when nothing is heard of it for so long."""
        self._scope = scope
        self._deadline_s = limit_s
        self.extend()

    def extend(self) -> None:
        """Start the deadline anew: there was a sign of life."""
        if self._scope is not None:
            self._scope.deadline = math.inf if self._held else anyio.current_time() + self._deadline_s

    def progressed(self, params: dict[str, Any]) -> None:
        """Take one progress notification."""
        self.extend()
        if self.on_progress is not None:
            self.on_progress(params)

    def hold(self) -> None:
        """Stop the clock while a person is asked."""
        self._held += 1
        self.extend()

    def release(self) -> None:
        """Let the clock run again."""
        self._held -= 1
        self.extend()

    def end(self) -> None:
        """Withdraw whatever is still being asked on behalf of this request."""
        self.ended = True
        for scope in list(self.asking):
            scope.cancel()
