"""One HTTP request: its head as the parser read it, and the refusals that are decided by the head alone.

Sources: RFC 9110 and 9112; MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP".
"""

from __future__ import annotations

import re
from typing import Any, Final

from gateway import wire
from gateway.errors import INVALID_REQUEST, QuotaExceeded

Fields = list[tuple[bytes, bytes]]

MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""The largest body that is taken. Arguments are text that a model wrote; the largest seen in practice, a whole file
as base64, stays well below this."""
DISCARDED_BYTES: Final = 64 * 1024 * 1024
"""A refused body up to this size is read and thrown away: a client that is cut off while it writes sees a reset
instead of the refusal. Beyond it, the bandwidth is worth more than the courtesy."""
_TRACE_FIELDS: Final = (b"traceparent", b"tracestate", b"baggage")
# A second one of these could make us and a proxy before us read two different requests.
_SINGLE_FIELDS: Final = frozenset(
    {
        b"host", b"origin", b"authorization", b"content-type", b"content-length", b"mcp-protocol-version",
        b"mcp-method", b"mcp-name", b"mcp-session-id",
    }
)  # fmt: skip
_PARAM_FIELD: Final = b"mcp-param-"
EVENT_STREAM: Final = "text/event-stream"
# As the SDKs write it; nothing has to be parsed then.
_BOTH: Final = (None, b"application/json, text/event-stream", b"text/event-stream, application/json", b"*/*")
# A weight of zero: this range is not acceptable (RFC 9110, section 12.4.2 "Quality Values").
_IS_ZERO: Final = re.compile(r"q\s*=\s*0(\.0*)?")
_NO_TRACE: Final[dict[str, str]] = {}


class RequestRefused(Exception):
    """The request ends with this response before anything runs.

    Attributes:
        status: The HTTP status.
        body: A JSON text.
        fields: Further response headers.
        close: Whether the connection ends with the response.
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
            body = wire.dumps({"jsonrpc": "2.0", "id": None, "error": error})
        self.body = body


def over_quota(error: QuotaExceeded, *, body: bytes | None = None, close: bool = False) -> RequestRefused:
    """The refusal of a request that a quota forbids (RFC 6585, section 4 "429 Too Many Requests")."""
    retry = [(b"retry-after", b"%d" % error.retry_after_s)]
    return RequestRefused(429 if error.own else 503, error.message, retry, body=body, close=close)


class RequestHead:
    """Request line and fields of one request.

    Attributes:
        method: In capitals, as it was sent.
        target: The request target as it was written.
        path: Its path, still percent-encoded, without the query.
        query: What follows the first question mark.
        fields: Names in lower case and values, in their order; a name may stand twice.
        version: The HTTP version, `1.0` or `1.1`.
        keep_alive: Whether the connection may carry another request after this one.
        judged: What an endpoint has found out from it, which holds for every request with this head; None before.
        routed: The router that was asked, and who answers; None before.
        cross_origin: Header lines that each response to a page of another origin has.
        trace: The caller's trace context, by header name.
    """

    __slots__ = ("_by_name", "_texts", "cross_origin", "fields", "judged", "keep_alive", "method", "path", "query",
                 "routed", "target", "trace", "version")  # fmt: skip

    def __init__(self, method: bytes, target: bytes, fields: Fields, *, version: str, keep_alive: bool) -> None:
        self.method = method
        self.target = target
        path = target
        if target[:1] != b"/":
            # Absolute form: its authority counts instead of Host (RFC 9112, section 3.2.2 "absolute-form").
            scheme, _, rest = target.partition(b"://")
            if scheme.lower() in (b"http", b"https") and rest:
                authority, slash, path = rest.partition(b"/")
                path = slash + path or b"/"
                # A Host that is missing or repeated stays so, and is refused for that.
                fields = [(b"host", authority) if field[0] == b"host" else field for field in fields]
        self.path, _, self.query = path.partition(b"?")
        self.fields = fields
        self.version = version
        self.keep_alive = keep_alive
        # Of fields that may be repeated the values are read as one list; the others are checked by `check_fields`.
        self._by_name: dict[bytes, bytes] = dict(fields)
        # Read from them before; one head may be that of many requests.
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
        """The value of a field; None where it is absent."""
        return self._by_name.get(name)

    def text(self, name: bytes, default: str = "") -> str:
        """The value of a field without the white space around it (RFC 9110, section 5.5 "Field Values")."""
        known = self._texts.get(name)
        if known is not None:
            return known
        value = self._by_name.get(name)
        if value is None:
            return default
        text = self._texts[name] = value.decode("latin-1").strip(" \t")
        return text

    def texts(self) -> dict[str, str]:
        """Every field by name."""
        return {name.decode("latin-1"): self.text(name) for name in self._by_name}

    @property
    def content_length(self) -> int | None:
        """The length that was declared; None for a body in chunks, or for none at all."""
        value = self._by_name.get(b"content-length")
        return int(value) if value is not None and value.strip().isdigit() else None

    def check_fields(self) -> None:
        """Refuse a request in which a field that decides where it goes appears twice.

        Raises:
            RequestRefused: One does.
        """
        if len(self._by_name) == len(self.fields):
            return
        seen: set[bytes] = set()
        for name, _ in self.fields:
            if name in seen and (name in _SINGLE_FIELDS or name.startswith(_PARAM_FIELD)):
                raise RequestRefused(400, f"the header {name.decode('latin-1')} appears more than once")
            seen.add(name)

    def _join_repeated(self) -> None:
        # RFC 9110, section 5.3 "Field Order": several lines of one name are one list.
        values: dict[bytes, list[bytes]] = {}
        for name, value in self.fields:
            values.setdefault(name, []).append(value)
        self._by_name = {name: b", ".join(lines) for name, lines in values.items()}


def check_post(head: RequestHead) -> bool:
    """Check the media types of a POST to an MCP endpoint; return whether its answer may be an event stream.

    Raises:
        RequestRefused: They are not what this endpoint takes.
    """
    media = head.raw(b"content-type")
    if media != b"application/json":
        essence = head.text(b"content-type").partition(";")[0].strip().lower()
        if essence != "application/json":
            raise RequestRefused(415, "Content-Type must be application/json")
    if head.raw(b"accept") in _BOTH:
        return True
    if not accepts(head, "application/json"):
        raise RequestRefused(406, "Accept must allow application/json, and text/event-stream for answers with progress")
    return accepts(head, EVENT_STREAM)


def accepts(head: RequestHead, media_type: str) -> bool:
    """Return whether Accept allows a media type; the most specific range decides.

    Source: RFC 9110, section 12.5.1 "Accept".
    """
    text = head.text(b"accept").lower()
    if not text:
        return True
    # `*` alone is what the HTTP client of Java sends for any type.
    ranges = ("*", "*/*", media_type.partition("/")[0] + "/*", media_type)
    best, allowed = -1, False
    for item in text.split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        rank = ranges.index(name) if name in ranges else -1
        if rank > best:
            best, allowed = rank, not any(map(_IS_ZERO.fullmatch, parameters))
    return allowed
