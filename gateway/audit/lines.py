"""What waits to be recorded, and the JSON that it becomes. Lines are made of parts that repeat from call to call."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from gateway import wire
from gateway.audit.call import Outcome, session_mark
from gateway.audit.reading import as_time
from gateway.secrets import SECRETS

STDIO: Final = "stdio"
"""The peer of a caller that is no connection over HTTP."""
# As many callers, or tools, as are busy in one minute; a part takes some 300 bytes.
_MAX_PARTS: Final = 4_096
# Ways in which calls end: rules and hooks that decide, and codes of errors.
_MAX_ENDINGS: Final = 1_024
# Of the fractions of a line: to look one up takes a tenth of what it takes to write it.
_THREE_DIGITS: Final = tuple(b"%03d" % number for number in range(1_000))
_TWO_DIGITS: Final = tuple(b"%02d" % number for number in range(100))


class EventLine(Struct, frozen=True, gc=False):
    """Whatever happens beside calls.

    Attributes:
        time_s: When, in seconds since 1970.
        about: Its members; the first one is `event`.
    """

    time_s: float
    about: dict[str, Any]

    def text(self) -> bytes:
        """The members of the line, as JSON without braces."""
        return _members({"time": as_time(self.time_s)}) + b"," + _members(_without_secrets(self._marked()))

    def row(self) -> dict[str, Any]:
        """The line as whoever reads the record gets it."""
        return {"time": as_time(self.time_s), **self._marked()}

    def _marked(self) -> dict[str, Any]:
        session = self.about.get("session")
        return {**self.about, "session": session_mark(session)} if session else self.about


class CallLine(Struct, frozen=True, gc=False):
    """A call of a tool that has ended.

    Attributes:
        time_s: When, in seconds since 1970.
        caller: The principal, the profile, the protocol version, the peer and the session.
        target: The wrapper, its server and the tool there; or the name of a tool of our own alone.
        via: The route by which it came.
        ending: How it went.
        took_s: How long it took.
        arguments: As JSON, where they are recorded.
        result: As JSON, where it is recorded.
    """

    time_s: float
    caller: tuple[str, str, str, str, str | None]
    target: tuple[str, str, str] | tuple[str | None]
    via: str
    ending: Outcome
    took_s: float
    arguments: bytes | None = None
    result: bytes | None = None

    def text(self) -> bytes:
        """The members of the line, as JSON without braces."""
        # Secrets are looked for in each part when it is made, and again once others are secret.
        known = SECRETS.generation
        caller, target = _caller_part(known, self.caller), _target_part(known, self.target, self.via)
        ending = _ending_part(known, self.ending)
        # Of whole numbers: to round a float and write it would take longer than all else.
        ms, hundredths = divmod(int(self.took_s * 100_000 + 0.5), 100)
        second = int(self.time_s)
        text = b'%b%bZ","event":"call",%b,%b,%b,"ms":%d.%b' % (
            _second_part(second), _THREE_DIGITS[int((self.time_s - second) * 1_000)],
            caller, target, ending, ms, _TWO_DIGITS[hundredths],
        )  # fmt: skip
        if self.arguments is not None:
            text += b',"arguments":' + _value_without_secrets(self.arguments)
        if self.result is not None:
            text += b',"result":' + _value_without_secrets(self.result)
        return text

    def row(self) -> dict[str, Any]:
        """The line as whoever reads the record gets it."""
        row: dict[str, Any] = wire.loads(b"{%b}" % self.text())
        return row


Line = EventLine | CallLine


@lru_cache(maxsize=8)
def _second_part(second: int) -> bytes:
    # Lines come by the hundred in a second, and a batch has those of one or two.
    return b'"time":"' + as_time(second).removesuffix("000Z").encode()


@lru_cache(maxsize=_MAX_PARTS)
def _caller_part(known: int, caller: tuple[str, str, str, str, str | None]) -> bytes:
    principal, profile, era, peer, session = caller
    return _part({
        "principal": principal,
        "profile": profile,
        "era": era,
        "transport": STDIO if peer == STDIO else "http",
        "peer": peer,
        "session": session_mark(session) if session else session,
    })  # fmt: skip


@lru_cache(maxsize=_MAX_PARTS)
def _target_part(known: int, target: tuple[str, str, str] | tuple[str | None], via: str) -> bytes:
    if len(target) == 3:
        return _part({"wrapper": target[0], "server": target[1], "tool": target[2], "via": via})
    return _part({"name": target[0], "via": via})


@lru_cache(maxsize=_MAX_ENDINGS)
def _ending_part(known: int, ending: Outcome) -> bytes:
    transport, jsonrpc, tool, rule, reason, hook, unchecked, changed_by = ending
    more = {"rule": rule, "reason": reason, "hook": hook, "unchecked": unchecked, "changedBy": changed_by}
    return _part({
        "outcome": {"transport": transport, "jsonrpc": jsonrpc, "tool": tool},
        **{name: value for name, value in more.items() if value is not None},
    })  # fmt: skip


def _part(members: dict[str, Any]) -> bytes:
    return _members(_without_secrets(members))


def _members(row: dict[str, Any]) -> bytes:
    return wire.dumps(row)[1:-1]


def _without_secrets(row: dict[str, Any]) -> dict[str, Any]:
    # Names come from callers, and paths from whoever asks for them.
    scrubbed: dict[str, Any] = SECRETS.scrub_value(row)
    return scrubbed


def _value_without_secrets(text: bytes) -> bytes:
    return wire.dumps(SECRETS.scrub_value(wire.loads(text))) if SECRETS.holds_secret(text) else text
