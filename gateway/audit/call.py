"""What the record tells of a call: whose it was, of what, and how it went."""

from __future__ import annotations

import hashlib
from typing import Any, Final, Protocol

from msgspec import Struct

from gateway.access.principal import Principal
from gateway.errors import RpcError

# Of a kind of result that an upstream has chosen: longer than any of the protocol.
_KIND_CHARS: Final = 40
# Hexadecimal digits, so 64 bits: enough to tell sessions apart, and useless for guessing an id.
_SESSION_CHARS: Final = 16


def session_mark(session_id: str) -> str:
    """What tells a session from others in a record; with the id itself a reader could take the session over."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:_SESSION_CHARS]


class Wrapper(Protocol):
    """The tool that was called."""

    @property
    def name(self) -> str:
        """Its wrapper's name."""

    @property
    def server(self) -> str:
        """Its server."""

    @property
    def tool(self) -> str:
        """Its name there."""


class _Profile(Protocol):
    @property
    def name(self) -> str: ...


class _View(Protocol):
    @property
    def profile(self) -> _Profile: ...


class Who(Protocol):
    """The side that calls."""

    @property
    def principal(self) -> Principal:
        """Who it is."""

    @property
    def view(self) -> _View:
        """What it sees."""

    @property
    def version(self) -> str:
        """The protocol version that it speaks."""

    @property
    def session_id(self) -> str | None:
        """Its session."""

    @property
    def peer(self) -> str:
        """The other end of its connection."""


class Outcome(Struct, eq=False):
    """How one call went, on each of three levels; None for one that it did not reach.

    Attributes:
        transport: `ok`, or how the upstream failed to answer.
        jsonrpc: `ok`, or the code of the error.
        tool: `ok`, `error`, or the kind of a result that is no end, as `input_required`.
        rule: The rule of the policy that decided about it.
        reason: Why nothing was sent.
    """

    transport: str | None = None
    jsonrpc: str | int | None = None
    tool: str | None = None
    rule: str | None = None
    reason: str | None = None

    @classmethod
    def of_tool(cls, result: dict[str, Any]) -> Outcome:
        """Of a tool of our own, which has answered this."""
        outcome = cls()
        outcome.tool = _kind_of(result)
        return outcome

    def answered(self, result: Any) -> None:
        """The upstream has answered this."""
        self.transport = self.jsonrpc = "ok"
        if type(result) is dict:
            usual = result.get("isError") is not True and result.get("resultType", "complete") == "complete"
            self.tool = "ok" if usual else _kind_of(result)

    def refused(self, rule: str | None) -> None:
        """A rule of the policy, or its default, has refused it."""
        self.rule, self.reason = rule, "policy"

    def ended(self, error: BaseException | None) -> None:
        """It has no result, for this reason."""
        if isinstance(error, RpcError):
            self.jsonrpc = error.code
            self.rule = self.rule or getattr(error, "rule", None)
        elif not isinstance(error, Exception):
            self.transport = self.transport or "cancelled"


def _kind_of(result: dict[str, Any]) -> str:
    if result.get("isError") is True:
        return "error"
    kind = result.get("resultType", "complete")
    return "ok" if kind == "complete" else str(kind)[:_KIND_CHARS]
