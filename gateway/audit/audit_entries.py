"""Build the entries of the audit log, and limit their rate."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from msgspec import Struct

from gateway.access.principal import Principal
from gateway.process.secrets import SECRETS
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import RpcError

# Maximum length of the recorded paths of unchecked arguments. The limit is needed because callers choose these paths.
_UNCHECKED_CHARS: Final = 200
# Maximum length of a recorded `resultType`, which an upstream chooses; longer than any value in the protocol.
_KIND_CHARS: Final = 40
# 64 bits in hexadecimal digits: enough to distinguish sessions, but useless for guessing a session id.
_SESSION_CHARS: Final = 16


def session_mark(session_id: str) -> str:
    """Return a hash that identifies a session in logs. A reader of the session id could take over the session."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:_SESSION_CHARS]


class Wrapper(Protocol):
    """The called tool."""

    @property
    def name(self) -> str:
        """The name of the wrapper."""

    @property
    def server(self) -> str:
        """The alias of the upstream."""

    @property
    def tool(self) -> str:
        """The name of the tool at the upstream."""


class _Profile(Protocol):
    @property
    def name(self) -> str: ...


class _View(Protocol):
    @property
    def profile(self) -> _Profile: ...


class AuditedCaller(Protocol):
    """The recorded properties of a caller."""

    @property
    def principal(self) -> Principal: ...

    @property
    def view(self) -> _View: ...

    @property
    def version(self) -> str:
        """The protocol version."""

    @property
    def session_id(self) -> str | None: ...

    @property
    def client(self) -> str | None:
        """The name that the host gives for itself."""

    @property
    def peer(self) -> str:
        """The remote address and port, or `STDIO`."""


class ApprovalGiven(Protocol):
    """The decision about a call that needs an approval."""

    @property
    def by(self) -> str:
        """Who decided: `host` or `administrator`; empty without a decision."""

    @property
    def lasts(self) -> str:
        """The scope of the decision: `once`, `session` or `tool`."""


class Outcome(NamedTuple):
    """The outcome of a call on the levels of transport, JSON-RPC and tool.

    A level is None if the call did not reach it. The outcome of most calls is `ANSWERED`.

    Attributes:
        transport: `ok`, or how the upstream failed to respond.
        jsonrpc: `ok`, or the code of the JSON-RPC error.
        tool: `ok`, `error`, or the type of an intermediate result, such as `input_required`.
        rule: The policy rule that decided about the call.
        reason: Why the call was not sent to the upstream.
        hook: The hook that blocked the call.
        unchecked: The paths of arguments that were sent without being checked.
        changed_by: The hooks that changed the arguments.
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
    def from_tool_result(cls, result: dict[str, Any]) -> Outcome:
        """Return the outcome of a call to one of the gateway's own tools."""
        return cls(tool=_kind_of(result))

    def answered(self, result: Any) -> Outcome:
        """Return this outcome, updated by the result that the upstream has returned."""
        if type(result) is not dict:
            return self._replace(transport="ok", jsonrpc="ok")
        usual = result.get("isError") is not True and result.get("resultType", "complete") == "complete"
        if usual and self is UNREACHED:
            return ANSWERED
        return self._replace(transport="ok", jsonrpc="ok", tool="ok" if usual else _kind_of(result))

    def failed(self, transport: str, jsonrpc: int | None = None) -> Outcome:
        """Return this outcome, updated by a failed response or a JSON-RPC error of the upstream."""
        return self._replace(transport=transport, jsonrpc=self.jsonrpc if jsonrpc is None else jsonrpc)

    def refused(self, rule: str | None) -> Outcome:
        """Return this outcome, updated by a refusal of the policy.

        Args:
            rule: The rule that refused the call; None if the default of the policy refused the call.
        """
        return self._replace(rule=rule, reason="policy")

    def unsent(self, reason: str | None) -> Outcome:
        """Return this outcome with the reason why the call was not sent to the upstream."""
        return self._replace(reason=reason)

    def hooked(self, blocked_by: str | None, changed_by: Sequence[str]) -> Outcome:
        """Return this outcome with the hook that blocked the call and the hooks that changed its arguments."""
        if blocked_by is None and not changed_by:
            return self
        return self._replace(hook=blocked_by, changed_by=", ".join(dict.fromkeys(changed_by)) or None)

    def not_checked(self, paths: Sequence[str]) -> Outcome:
        """Return this outcome with the paths of arguments that were sent unchecked."""
        return self._replace(unchecked=", ".join(dict.fromkeys(paths))[:_UNCHECKED_CHARS])

    def ended(self, error: BaseException | None) -> Outcome:
        """Return this outcome, updated by the exception that ended the call.

        An `RpcError` sets the code. A cancellation sets the transport to `cancelled`.
        """
        if isinstance(error, RpcError):
            return self._replace(jsonrpc=error.code)
        return self if isinstance(error, Exception) else self._replace(transport=self.transport or "cancelled")


UNREACHED: Final = Outcome()
"""The outcome of a call that has not reached its upstream."""
ANSWERED: Final = Outcome("ok", "ok", "ok")
"""The outcome of a successful call."""


def _kind_of(result: dict[str, Any]) -> str:
    if result.get("isError") is True:
        return "error"
    kind = result.get("resultType", "complete")
    return "ok" if kind == "complete" else str(kind)[:_KIND_CHARS]


STDIO: Final = "stdio"
"""The peer of a caller on standard input and output."""
# The maximum number of cached parts of lines: enough for the callers and tools of a minute. Each takes 300 bytes.
_MAX_PARTS: Final = 4_096
# The maximum number of cached outcomes. Outcomes are combinations of rules, hooks and error codes.
_MAX_OUTCOMES: Final = 1_024
# The three digits after a decimal point, by number. A lookup is ten times faster than formatting the number.
_THREE_DIGITS: Final = tuple(b"%03d" % number for number in range(1_000))
_TWO_DIGITS: Final = tuple(b"%02d" % number for number in range(100))


class EventEntry(Struct, frozen=True, gc=False):
    """The entry of an event other than a call.

    Attributes:
        time_s: Seconds since 1970.
        members: The members of the entry, beginning with `event`.
    """

    time_s: float
    members: dict[str, Any]

    def text(self) -> bytes:
        """Return the members of the entry as JSON without braces."""
        return (
            _members({"time": format_time(self.time_s)}) + b"," + _members(_without_secrets(self._with_session_mark()))
        )

    def row(self) -> dict[str, Any]:
        """Return the entry as a JSON object. Known secrets are not removed."""
        return {"time": format_time(self.time_s), **self._with_session_mark()}

    def _with_session_mark(self) -> dict[str, Any]:
        session = self.members.get("session")
        return {**self.members, "session": session_mark(session)} if session else self.members


class CallEntry(Struct, frozen=True, gc=False):
    """The entry of a tool call.

    Attributes:
        time_s: Seconds since 1970.
        caller: The principal, profile, protocol version, peer, session and client.
        target: The names of the wrapper, the server, and the tool at this server; or only the name of a tool of the
            gateway itself.
        via: How the tool was called: `wrapper` or `invoke_tool`.
        took_s: The duration in seconds.
        arguments: JSON, if arguments are recorded.
        result: JSON, if results are recorded.
        trace: The id of the trace, if the trace is recorded.
    """

    time_s: float
    caller: tuple[str, str, str, str, str | None, str | None]
    target: tuple[str, str, str] | tuple[str | None]
    via: str
    outcome: Outcome
    took_s: float
    arguments: bytes | None = None
    result: bytes | None = None
    trace: str | None = None

    def text(self) -> bytes:
        """Return the members of the entry as JSON without braces."""
        # Known secrets are removed from the cached parts. The generation changes when new secrets become known, and is
        # part of the cache keys, so that the parts are then built again.
        generation = SECRETS.generation
        caller, target = _caller_part(generation, self.caller), _target_part(generation, self.target, self.via)
        outcome = _outcome_part(generation, self.outcome)
        # Use integers, because rounding and formatting a float would take longer than the rest of this method.
        ms, hundredths = divmod(int(self.took_s * 100_000 + 0.5), 100)
        second = int(self.time_s)
        text = b'%b%bZ","event":"call",%b,%b,%b,"ms":%d.%b' % (
            _second_part(second),
            _THREE_DIGITS[int((self.time_s - second) * 1_000)],
            caller,
            target,
            outcome,
            ms,
            _TWO_DIGITS[hundredths],
        )
        if self.arguments is not None:
            text += b',"arguments":' + _value_without_secrets(self.arguments)
        if self.result is not None:
            text += b',"result":' + _value_without_secrets(self.result)
        if self.trace is not None:
            text += b',"trace":"%b"' % self.trace.encode()
        return text

    def row(self) -> dict[str, Any]:
        """Return the entry as a JSON object."""
        row: dict[str, Any] = json_bytes.loads(b"{%b}" % self.text())
        return row


Line = EventEntry | CallEntry


@lru_cache(maxsize=8)
def _second_part(second: int) -> bytes:
    # The result is cached, because a batch can contain hundreds of entries of the same second.
    return b'"time":"' + format_time(second).removesuffix("000Z").encode()


@lru_cache(maxsize=_MAX_PARTS)
def _caller_part(generation: int, caller: tuple[str, str, str, str, str | None, str | None]) -> bytes:
    principal, profile, era, peer, session, client = caller
    return _part(
        {
            "principal": principal,
            "profile": profile,
            "era": era,
            "transport": STDIO if peer == STDIO else "http",
            "peer": peer,
            "session": session_mark(session) if session else session,
            "client": client,
        }
    )


@lru_cache(maxsize=_MAX_PARTS)
def _target_part(generation: int, target: tuple[str, str, str] | tuple[str | None], via: str) -> bytes:
    if len(target) == 3:
        return _part({"wrapper": target[0], "server": target[1], "tool": target[2], "via": via})
    return _part({"name": target[0], "via": via})


@lru_cache(maxsize=_MAX_OUTCOMES)
def _outcome_part(generation: int, outcome: Outcome) -> bytes:
    transport, jsonrpc, tool, rule, reason, hook, unchecked, changed_by = outcome
    more = {"rule": rule, "reason": reason, "hook": hook, "unchecked": unchecked, "changedBy": changed_by}
    return _part(
        {
            "outcome": {"transport": transport, "jsonrpc": jsonrpc, "tool": tool},
            **{name: value for name, value in more.items() if value is not None},
        }
    )


def _part(members: dict[str, Any]) -> bytes:
    return _members(_without_secrets(members))


def _members(row: dict[str, Any]) -> bytes:
    return json_bytes.dumps(row)[1:-1]


def _without_secrets(row: dict[str, Any]) -> dict[str, Any]:
    # Names and paths come from clients and may contain secrets.
    scrubbed: dict[str, Any] = SECRETS.scrub_value(row)
    return scrubbed


def _value_without_secrets(text: bytes) -> bytes:
    return json_bytes.dumps(SECRETS.scrub_value(json_bytes.loads(text))) if SECRETS.holds_secret(text) else text


_MINUTE_S: Final = 60.0
_MAX_SOURCES: Final = 1_024


class EntryLimit:
    """Limits the number of entries of each source per minute. Further entries are suppressed and only counted.

    Without this limit, a caller without any rights could fill the log until the entries of other callers are deleted.
    """

    def __init__(self, clock: Callable[[], float], *, per_minute: int) -> None:
        self._clock = clock
        self._per_minute = per_minute
        self._counts: OrderedDict[str, list[float]] = OrderedDict()

    def admit(self, source: str) -> int | None:
        """Count an entry, and return whether to write it.

        Returns:
            None if the entry has to be suppressed. Otherwise the number of entries of this source that were suppressed
            since the last written entry.
        """
        now_s = self._clock()
        count, began_s, suppressed = self._counts.pop(source, [0.0, now_s, 0.0])
        if not 0 <= now_s - began_s < _MINUTE_S:
            count, began_s = 0.0, now_s
        is_admitted = count < self._per_minute
        self._counts[source] = [count + 1, began_s, 0.0 if is_admitted else suppressed + 1]
        if len(self._counts) > _MAX_SOURCES:
            self._counts.popitem(last=False)
        return int(suppressed) if is_admitted else None


def format_time(seconds: float) -> str:
    """Format a time for an entry. The formatted times sort as strings."""
    full_seconds = int(seconds)
    return f"{_format_second(full_seconds)}.{int((seconds - full_seconds) * 1000):03d}Z"


@lru_cache(maxsize=8)
def _format_second(seconds: int) -> str:
    # The result is cached, because formatting is slow and hundreds of entries can have the same second.
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").removesuffix("+00:00")
