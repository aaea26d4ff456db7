"""What the record tells of a call: whose it was, of what, and how it went."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from gateway.access.principal import Principal
from gateway.errors import RpcError

# Of the paths of unchecked arguments, which callers may have chosen.
_UNCHECKED_CHARS: Final = 200
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


class Outcome(NamedTuple):
    """How one call went, on each of three levels; None for one that it did not reach. Most are `ANSWERED`.

    Attributes:
        transport: `ok`, or how the upstream failed to answer.
        jsonrpc: `ok`, or the code of the error.
        tool: `ok`, `error`, or the kind of a result that is no end, as `input_required`.
        rule: The rule of the policy that decided about it.
        reason: Why nothing was sent.
        hook: The hook that has blocked it.
        unchecked: The arguments that were sent although they could not be checked.
        changed_by: The hooks that have changed the arguments.
    """

    transport: str | None = None
    jsonrpc: str | int | None = None
    tool: str | None = None
    rule: str | None = None
    reason: str | None = None
    hook: str | None = None
    unchecked: str | None = None
    changed_by: str | None = None

    @classmethod
    def of_tool(cls, result: dict[str, Any]) -> Outcome:
        """Of a tool of our own, which has answered this."""
        return cls(tool=_kind_of(result))

    def answered(self, result: Any) -> Outcome:
        """The same, once the upstream has answered this."""
        if type(result) is not dict:
            return self._replace(transport="ok", jsonrpc="ok")
        usual = result.get("isError") is not True and result.get("resultType", "complete") == "complete"
        if usual and self is UNREACHED:
            return ANSWERED
        return self._replace(transport="ok", jsonrpc="ok", tool="ok" if usual else _kind_of(result))

    def failed(self, transport: str, jsonrpc: int | None = None) -> Outcome:
        """The same, where the upstream has failed to answer, or has answered with this error."""
        return self._replace(transport=transport, jsonrpc=self.jsonrpc if jsonrpc is None else jsonrpc)

    def refused(self, rule: str | None) -> Outcome:
        """The same, where a rule of the policy, or its default, has refused it."""
        return self._replace(rule=rule, reason="policy")

    def unsent(self, reason: str | None) -> Outcome:
        """The same, where nothing was sent for this reason."""
        return self._replace(reason=reason)

    def hooked(self, blocked_by: str | None, changed_by: Sequence[str]) -> Outcome:
        """The same, where this hook has blocked it, if any, and these have changed its arguments."""
        if blocked_by is None and not changed_by:
            return self
        return self._replace(hook=blocked_by, changed_by=", ".join(dict.fromkeys(changed_by)) or None)

    def not_checked(self, paths: Sequence[str]) -> Outcome:
        """The same, where these arguments were sent unchecked."""
        return self._replace(unchecked=", ".join(dict.fromkeys(paths))[:_UNCHECKED_CHARS])

    def ended(self, error: BaseException | None) -> Outcome:
        """The same, where it has no result for this reason."""
        if isinstance(error, RpcError):
            return self._replace(jsonrpc=error.code, rule=self.rule or getattr(error, "rule", None))
        return self if isinstance(error, Exception) else self._replace(transport=self.transport or "cancelled")


UNREACHED: Final = Outcome()
"""Of a call that has not reached its upstream."""
ANSWERED: Final = Outcome("ok", "ok", "ok")
"""Of a call that has its result."""


def _kind_of(result: dict[str, Any]) -> str:
    if result.get("isError") is True:
        return "error"
    kind = result.get("resultType", "complete")
    return "ok" if kind == "complete" else str(kind)[:_KIND_CHARS]
