"""Trace context: which span of a caller ours are below, and what upstreams get to continue the trace.

Source: MCP SEP-414 for trace context in `_meta`; W3C Trace Context for its form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
BAGGAGE: Final = "baggage"
SAMPLED: Final = 1
_PARENT_FORM: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
# W3C Trace Context asks for 512 characters of state to be passed on; longer ones are cut off by most others too.
_MAX_STATE_CHARS: Final = 512


class Parent(NamedTuple):
    """A span that a caller names as the one above.

    Attributes:
        text: As it was sent.
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        flags: Of its trace.
        state: What goes with it, in the form of each vendor.
    """

    text: str
    trace_id: str
    span_id: str
    flags: int
    state: str | None

    @property
    def sampled(self) -> bool:
        """Whether its trace is recorded."""
        return bool(self.flags & SAMPLED)


def parents_of(meta: Mapping[str, Any] | None, head: Mapping[str, str]) -> list[Parent]:
    """The spans that a request names as above it, the nearest first; at most two.

    Args:
        meta: The `_meta` of its params.
        head: Its trace context as HTTP headers.
    """
    # Of two that differ, the one in the message is nearer to whoever asks; the other was added on the way.
    return [parent for fields in (meta, head) if fields and (parent := _parent_in(fields)) is not None]


def with_context(
    fields: Mapping[str, str], params: dict[str, Any], head: Mapping[str, str]
) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return params and HTTP headers of a request to an upstream with this trace context in both.

    Both are to be left as they are: `fields` itself may be part of them.
    """
    meta = params.get("_meta")
    if not meta and not head:
        return {**params, "_meta": fields}, fields
    own = meta if isinstance(meta, dict) else {}
    kept = {key: value for key, value in own.items() if key not in (PARENT, STATE)}
    passed = {name: value for name, value in head.items() if name not in (PARENT, STATE)}
    baggage = own.get(BAGGAGE)
    if BAGGAGE not in passed and isinstance(baggage, str) and baggage.isprintable() and baggage.isascii():
        passed[BAGGAGE] = baggage
    return {**params, "_meta": {**kept, **fields}}, {**passed, **fields}


def _parent_in(fields: Mapping[str, Any]) -> Parent | None:
    text = fields.get(PARENT)
    if not isinstance(text, str) or len(text) > _MAX_STATE_CHARS:
        return None
    match = _PARENT_FORM.fullmatch(text)
    if match is None:
        return None
    given = fields.get(STATE)
    state = given if isinstance(given, str) and len(given) <= _MAX_STATE_CHARS else None
    return Parent(text, match[1], match[2], int(match[3], 16), state)
