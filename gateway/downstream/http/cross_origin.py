"""Cross-origin resource sharing: what pages of allowed origins may send, and what of each answer they may read.

Sources: WHATWG Fetch, "CORS protocol"; RFC 9110, section 12.5.5 "Vary"; W3C Private Network Access, "CORS preflight".
"""

from __future__ import annotations

import re
from typing import Final

from gateway.downstream.http.request import Fields, RequestHead, RequestRefused
from gateway.downstream.http.responder import Responder

VARY: Final = b"vary: origin\r\n"
# Every header that a client of MCP reads; a page sees no other ones (WHATWG Fetch, "CORS-safelisted response-header").
_EXPOSED: Final = (
    b"access-control-expose-headers: mcp-session-id, mcp-protocol-version, www-authenticate, retry-after, allow\r\n"
)
_CREDENTIALS: Final = b"access-control-allow-credentials: true\r\n"
_METHODS: Final = b"GET, POST, DELETE, OPTIONS"
# Headers of requests for clients that do not name them; `authorization` is not covered by `*`.
_ALLOWED_HEADERS: Final = (
    b"authorization", b"content-type", b"accept", b"mcp-protocol-version", b"mcp-session-id", b"mcp-method",
    b"mcp-name", b"last-event-id",
)  # fmt: skip
# A list of field names (RFC 9110, section 5.6.2 "Tokens"); anything else is not repeated into a response.
_FIELD_NAMES: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
_MAX_FIELD_NAMES_BYTES: Final = 4 * 1024
"""Longer than the names of all `Mcp-Param-*` headers of one call."""
_MAX_AGE_S: Final = b"7200"
"""How long a browser may remember a preflight: the most that Chromium accepts."""


class CrossOrigin:
    """Adds the headers of CORS to answers, and answers preflight requests. Origins were checked before.

    Args:
        named: The origins that the configuration names, in lower case. Their pages may also send cookies, which a
            proxy in front of the gateway may require; pages of this machine may not.
    """

    max_body_bytes: Final = 64 * 1024
    """A preflight has no body; what comes anyway is ignored."""

    def __init__(self, named: frozenset[str]) -> None:
        self._named = named

    def lines(self, head: RequestHead) -> bytes:
        """Return the header lines that every response to this request has."""
        origin = head.raw(b"origin")
        if origin is None:
            return b""
        credentials = _CREDENTIALS if head.text(b"origin").lower() in self._named else b""
        allowed = b"access-control-allow-origin: %b\r\n" % origin.strip(b" \t")
        return b"".join((allowed, credentials, _EXPOSED, VARY))

    @staticmethod
    def is_preflight(head: RequestHead) -> bool:
        """Whether a browser asks what a page may send."""
        return (
            head.method == b"OPTIONS"
            and head.raw(b"origin") is not None
            and head.raw(b"access-control-request-method") is not None
        )

    def admit(self, head: RequestHead, peer: str) -> None:
        """Accept the request: a preflight never has credentials."""

    def answer(self, head: RequestHead, admitted: object, body: bytes, responder: Responder, peer: str) -> None:
        """Say which methods and headers a page may use.

        Raises:
            RequestRefused: The names of headers are malformed.
        """
        asked = head.text(b"access-control-request-headers").encode("latin-1")
        if asked and (len(asked) > _MAX_FIELD_NAMES_BYTES or _FIELD_NAMES.fullmatch(asked) is None):
            raise RequestRefused(400, "Access-Control-Request-Headers must be a list of header names")
        names = [name.strip() for name in asked.lower().split(b",")] if asked else []
        fields: Fields = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", b", ".join(dict.fromkeys([*names, *_ALLOWED_HEADERS]))),
            (b"access-control-max-age", _MAX_AGE_S),
        ]
        if head.text(b"access-control-request-private-network").lower() == "true":
            fields.append((b"access-control-allow-private-network", b"true"))
        responder.respond(204, (), fields)
