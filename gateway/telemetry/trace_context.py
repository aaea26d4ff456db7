"""Read and forward the trace context of requests, and define the attribute names of OpenTelemetry for MCP.

Source: OpenTelemetry, Semantic Conventions, "Generative AI", "Model Context Protocol (MCP)"; MCP SEP-414 for trace
context in `_meta`; W3C Trace Context for its format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, Literal, NamedTuple, Protocol

METHOD: Final = "mcp.method.name"
PROTOCOL_VERSION: Final = "mcp.protocol.version"
SESSION_ID: Final = "mcp.session.id"
RESOURCE_URI: Final = "mcp.resource.uri"
TOOL: Final = "gen_ai.tool.name"
PROMPT: Final = "gen_ai.prompt.name"
OPERATION: Final = "gen_ai.operation.name"
EXECUTE_TOOL: Final = "execute_tool"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
REQUEST_ID: Final = "jsonrpc.request.id"
ERROR_TYPE: Final = "error.type"
TOOL_ERROR: Final = "tool_error"
"""The `error.type` of a tool result with `isError`."""
TRANSPORT: Final = "network.transport"
PIPE: Final = "pipe"
TCP: Final = "tcp"
SERVER: Final = "typegate.server"
"""The alias of an upstream. The conventions do not define such an attribute, as they assume a single server."""
WRAPPER: Final = "typegate.wrapper"

SERVER_DURATION: Final = "mcp.server.operation.duration"
CLIENT_DURATION: Final = "mcp.client.operation.duration"
BUCKETS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the histogram buckets of both metrics, in seconds."""


Side = Literal["server", "client"]
MAX_NAMED_TOOLS: Final = 200
"""Maximum number of tools with separate time series, the busiest first. All other tools are counted as `other`.

A tool has sixteen time series for each kind of outcome, and a monitoring system stores all of them at every scrape.
"""
OTHER: Final = "other"


class Key(NamedTuple):
    """The attributes of the requests that one histogram counts.

    Attributes:
        side: `server` for requests from callers, `client` for requests to upstreams.
        method: The MCP method.
        server: The alias of the upstream; empty if there is none.
        tool: The name of the tool; empty if the request does not concern a tool.
        error: The kind of error, or empty for success.
    """

    side: Side
    method: str
    server: str = ""
    tool: str = ""
    error: str = ""


class Span(Protocol):
    """The span of a request."""

    @property
    def recorded(self) -> bool:
        """True if the span is recorded."""

    @property
    def fields(self) -> Mapping[str, str]:
        """The trace context to send to upstreams; empty if the caller's trace context is forwarded unchanged."""

    @property
    def trace_id(self) -> str:
        """The id of the trace, 32 hexadecimal digits."""

    @property
    def span_id(self) -> str:
        """The id of the span, 16 hexadecimal digits."""

    def add_event(self, name: str, **attributes: str | int | float | bool) -> None:
        """Add an event to the span."""

    def mark_failed(self, kind: str) -> None:
        """Mark the span as failed, with the code of a JSON-RPC error, `tool_error`, or the name of an exception."""

    def set_attribute(self, name: str, value: str | int | float | bool) -> None:
        """Set an attribute of the span."""


CURRENT: Final[ContextVar[Span | None]] = ContextVar("typegate_span", default=None)


def note_event(name: str, **attributes: str | int | float | bool) -> None:
    """Add an event to the span of the current request, if the request has a span."""
    span = CURRENT.get()
    if span is not None:
        span.add_event(name, **attributes)


def recorded_trace() -> str | None:
    """Return the trace id of the current request; None if the trace is not recorded."""
    span = CURRENT.get()
    return span.trace_id if span is not None and span.recorded else None


PARENT: Final = "traceparent"
STATE: Final = "tracestate"
BAGGAGE: Final = "baggage"
SAMPLED: Final = 1
_PARENT_FORM: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
# W3C Trace Context requires forwarding at least 512 characters of `tracestate`. A longer value is dropped.
_MAX_STATE_CHARS: Final = 512


class Parent(NamedTuple):
    """The parent span that a request names.

    Attributes:
        text: The value of `traceparent`.
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        flags: The trace flags.
        state: The value of `tracestate`.
    """

    text: str
    trace_id: str
    span_id: str
    flags: int
    state: str | None

    @property
    def sampled(self) -> bool:
        """True if the trace is recorded."""
        return bool(self.flags & SAMPLED)


def parents_of(meta: Mapping[str, Any] | None, head: Mapping[str, str]) -> list[Parent]:
    """Return the parent spans that a request names in its params and its HTTP headers, in this order.

    Args:
        meta: `_meta` of the request's params.
        head: The HTTP headers with the trace context.
    """
    # The params come first, because the client set them, while a proxy may have set the headers.
    return [parent for fields in (meta, head) if fields and (parent := _parent_in(fields)) is not None]


def with_context(
    fields: Mapping[str, str], params: dict[str, Any], head: Mapping[str, str]
) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return the params and HTTP headers of a request to an upstream with the trace context `fields` added to both.

    The caller must not modify the result, which may contain `fields` itself.
    """
    meta = params.get("_meta")
    if not meta and not head:
        return {**params, "_meta": fields}, fields
    own = meta if isinstance(meta, dict) else {}
    own_members = {key: value for key, value in own.items() if key not in (PARENT, STATE)}
    passed = {name: value for name, value in head.items() if name not in (PARENT, STATE)}
    baggage = own.get(BAGGAGE)
    if BAGGAGE not in passed and isinstance(baggage, str) and baggage.isprintable() and baggage.isascii():
        passed[BAGGAGE] = baggage
    return {**params, "_meta": {**own_members, **fields}}, {**passed, **fields}


def _parent_in(fields: Mapping[str, Any]) -> Parent | None:
    text = fields.get(PARENT)
    if not isinstance(text, str) or len(text) > _MAX_STATE_CHARS:
        return None
    match = _PARENT_FORM.fullmatch(text)
    if match is None:
        return None
    state_field = fields.get(STATE)
    state = state_field if isinstance(state_field, str) and len(state_field) <= _MAX_STATE_CHARS else None
    return Parent(text, match[1], match[2], int(match[3], 16), state)
