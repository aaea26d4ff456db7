"""The parsed header block of a request, and the checks that need only the header block.

Sources: RFC 9110 and 9112; MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import INVALID_REQUEST, QuotaExceeded

_UPGRADE_FIELDS: Final = frozenset({b"upgrade", b"http2-settings"})
_UPGRADE_OPTIONS: Final = frozenset({b"upgrade", b"http2-settings"})


def head_without_upgrade(
    method: bytes, target: bytes, fields: Iterable[tuple[bytes, bytes]], version: str = "1.1"
) -> bytes:
    """Return the header block of an upgrade request without the upgrade, up to and including the empty line.

    Source: RFC 9110, section 7.8 "Upgrade".
    """
    lines = [b"%b %b HTTP/%b\r\n" % (method, target, version.encode())]
    for name, value in fields:
        if name == b"connection":
            options = [option.strip() for option in value.split(b",")]
            value = b", ".join(option for option in options if option.lower() not in _UPGRADE_OPTIONS)
        if name not in _UPGRADE_FIELDS:
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join((*lines, b"\r\n"))


Fields = list[tuple[bytes, bytes]]

MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""The largest accepted body. Arguments are text that a model wrote. The largest arguments in practice contain a whole
file as base64, and are well below this limit."""
DISCARDED_BYTES: Final = 64 * 1024 * 1024
"""A rejected body up to this size is read and discarded, because a client that is cut off while it writes sees a reset
instead of the response. Larger bodies are not worth the bandwidth."""
_TRACE_FIELDS: Final = (b"traceparent", b"tracestate", b"baggage")
# Headers that must not be repeated, because the gateway and a proxy in front of it could use different values.
_SINGLE_FIELDS: Final = frozenset(
    {
        b"host",
        b"origin",
        b"authorization",
        b"content-type",
        b"content-length",
        b"mcp-protocol-version",
        b"mcp-method",
        b"mcp-name",
        b"mcp-session-id",
    }
)
_PARAM_FIELD: Final = b"mcp-param-"
EVENT_STREAM: Final = "text/event-stream"
# The values of Accept that the MCP SDKs send. They are accepted without parsing.
_USUAL_ACCEPT: Final = (None, b"application/json, text/event-stream", b"text/event-stream, application/json", b"*/*")
# A weight of zero, which means that the media range is not acceptable (RFC 9110, section 12.4.2 "Quality Values").
_IS_ZERO: Final = re.compile(r"q\s*=\s*0(\.0*)?")
_NO_TRACE: Final[dict[str, str]] = {}


class RequestRefused(Exception):
    """Raised to reject a request with an HTTP response before anything runs.

    Attributes:
        body: The body of the response, a JSON text.
        fields: Additional response headers.
        close: Whether to close the connection after the response.
    """

    def __init__(
        self, status: int, message: str, fields: Fields | None = None, *, body: bytes | None = None, close: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.fields = fields or []
        self.close = close
        if body is None:
            error = {"code": INVALID_REQUEST, "message": message}
            body = json_bytes.dumps({"jsonrpc": "2.0", "id": None, "error": error})
        self.body = body


def over_quota(error: QuotaExceeded, *, body: bytes | None = None, close: bool = False) -> RequestRefused:
    """Return the response to a request that exceeds a quota: 429 for the caller's own quota, otherwise 503.

    Source: RFC 6585, section 4 "429 Too Many Requests".
    """
    retry = [(b"retry-after", b"%d" % error.retry_after_s)]
    return RequestRefused(429 if error.own else 503, error.message, retry, body=body, close=close)


class RequestHead:
    """Request line and headers of a request. Requests whose header blocks have the same bytes may share one object.

    Attributes:
        method: The method as sent, usually in upper case.
        target: The request target as sent.
        path: The path, still percent-encoded, without the query.
        query: The part after the first question mark.
        fields: Lower-case names and values, in order; a name may be repeated.
        version: The HTTP version, `1.0` or `1.1`.
        keep_alive: Whether another request may follow on the connection.
        judged: The endpoint's cached result of parsing the headers; None until it is computed.
        routed: The router's cached result: the edition of `HostCheck`, and the handler chosen with that edition; None
            until it is computed.
        cross_origin: Header lines to add to the response if the request comes from a page of another origin.
        trace: The caller's trace context, by header name.
    """

    __slots__ = (
        "_by_name",
        "_texts",
        "cross_origin",
        "fields",
        "judged",
        "keep_alive",
        "method",
        "path",
        "query",
        "routed",
        "target",
        "trace",
        "version",
    )

    def __init__(self, method: bytes, target: bytes, fields: Fields, *, version: str, keep_alive: bool) -> None:
        self.method = method
        self.target = target
        path = target
        if not target.startswith(b"/"):
            # In absolute form, the authority replaces Host (RFC 9112, section 3.2.2 "absolute-form").
            scheme, _, after_scheme = target.partition(b"://")
            if scheme.lower() in (b"http", b"https") and after_scheme:
                authority, slash, path = after_scheme.partition(b"/")
                path = slash + path or b"/"
                # A missing or repeated Host header is rejected later, by `HostCheck`.
                fields = [(b"host", authority) if field[0] == b"host" else field for field in fields]
        self.path, _, self.query = path.partition(b"?")
        self.fields = fields
        self.version = version
        self.keep_alive = keep_alive
        # The lines of a repeated field are joined into one list; `check_fields` rejects the fields that must be unique.
        self._by_name: dict[bytes, bytes] = dict(fields)
        # Decoded values, cached because many requests may share one header block.
        self._texts: dict[bytes, str] = {}
        self.judged: object = None
        self.routed: tuple[object, Any] | None = None
        self.cross_origin = b""
        if len(self._by_name) != len(fields):
            self._join_repeated()
        by_name = self._by_name
        self.trace = _NO_TRACE
        if b"traceparent" in by_name or b"tracestate" in by_name or b"baggage" in by_name:
            self.trace = {name.decode(): self.text(name) for name in _TRACE_FIELDS if name in by_name}

    def raw(self, name: bytes) -> bytes | None:
        """Return the value of a field; None if it is absent."""
        return self._by_name.get(name)

    def text(self, name: bytes, default: str = "") -> str:
        """Return the value of a field without surrounding white space (RFC 9110, section 5.5 "Field Values")."""
        cached = self._texts.get(name)
        if cached is not None:
            return cached
        value = self._by_name.get(name)
        if value is None:
            return default
        text = self._texts[name] = value.decode("latin-1").strip(" \t")
        return text

    def texts(self) -> dict[str, str]:
        """Return all fields by name."""
        return {name.decode("latin-1"): self.text(name) for name in self._by_name}

    @property
    def content_length(self) -> int | None:
        """Return the declared length; None for a chunked body or no body."""
        value = self._by_name.get(b"content-length")
        return int(value) if value is not None and value.strip().isdigit() else None

    def check_fields(self) -> None:
        """Reject a request that repeats a header that must be unique.

        Raises:
            RequestRefused: Such a header is repeated.
        """
        if len(self._by_name) == len(self.fields):
            return
        seen: set[bytes] = set()
        for name, _ in self.fields:
            if name in seen and (name in _SINGLE_FIELDS or name.startswith(_PARAM_FIELD)):
                raise RequestRefused(400, f"the header {name.decode('latin-1')} appears more than once")
            seen.add(name)

    def _join_repeated(self) -> None:
        # RFC 9110, section 5.3 "Field Order": several lines with the same name form a list.
        values: dict[bytes, list[bytes]] = {}
        for name, value in self.fields:
            values.setdefault(name, []).append(value)
        self._by_name = {name: b", ".join(lines) for name, lines in values.items()}


def check_post(head: RequestHead) -> tuple[bool, bool]:
    """Check the media types of a POST to an MCP endpoint.

    Returns:
        Whether the response may be JSON, and whether it may be an event stream.

    Raises:
        RequestRefused: The endpoint does not support the media types.
    """
    media = head.raw(b"content-type")
    if media != b"application/json":
        essence = head.text(b"content-type").partition(";")[0].strip().lower()
        if essence != "application/json":
            raise RequestRefused(415, "Content-Type must be application/json")
    if head.raw(b"accept") in _USUAL_ACCEPT:
        return True, True
    accepted = accepts(head, "application/json"), accepts(head, EVENT_STREAM)
    if not any(accepted):
        raise RequestRefused(406, "Accept must allow application/json, and text/event-stream for answers with progress")
    return accepted


def accepts(head: RequestHead, media_type: str) -> bool:
    """Return whether Accept allows a media type; the most specific range decides.

    Source: RFC 9110, section 12.5.1 "Accept".
    """
    text = head.text(b"accept").lower()
    if not text:
        return True
    # The ranges from the least to the most specific. Java's HTTP client sends `*` for any type.
    ranges = ("*", "*/*", media_type.partition("/")[0] + "/*", media_type)
    best, allowed = -1, False
    for item in text.split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        rank = ranges.index(name) if name in ranges else -1
        if rank > best:
            best, allowed = rank, not any(map(_IS_ZERO.fullmatch, parameters))
    return allowed
