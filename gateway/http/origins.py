"""Host and Origin checks against DNS rebinding, and CORS.

In a DNS rebinding attack, the owner of a web page changes the address of the page's host name to the gateway's address,
so that scripts of the page may send requests to the gateway. The browser sends the page's host name as Host. A literal
address in Host cannot be the result of such an attack, so it is accepted. This is needed for Prometheus and load
balancers, which send the address of a replica. If a page of another origin sends a request to an address, the browser
adds Origin, which is checked, too.

Sources: WHATWG Fetch, "CORS protocol"; RFC 9110, section 12.5.5 "Vary"; W3C Private Network Access, "CORS preflight".
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from gateway.http.http_request import Fields, RequestHead, RequestRefused
from gateway.http.responder import Responder

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})
"""Host names that always refer to this machine."""
# A name or an address with an optional port. User information, paths and trailing characters do not match.
_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]\\]+)(?::\d{1,5})?")
# The maximum number of cached pairs of Host and Origin. A page always sends the same pair, so only attacks cause more.
_MAX_REMEMBERED: Final = 64


class HostCheck:
    """Checks Host and Origin of every request on every path.

    Source: MCP 2026-07-28, "Transports", "Security Warning" (DNS rebinding).

    Args:
        hosts: The accepted hosts in addition to literal addresses, in lower case, with or without a port; None to
            accept any host.
        origins: The accepted origins, in lower case, in addition to the origins of this machine.

    Attributes:
        edition: An object that identifies the accepted hosts and origins. Results cached with another edition are
            outdated.
    """

    def __init__(self, hosts: frozenset[str] | None, origins: frozenset[str]) -> None:
        self._hosts = hosts
        self._origins = origins
        self._accepted: set[tuple[bytes | None, bytes | None]] = set()
        self.edition = object()

    def replace(self, hosts: frozenset[str] | None, origins: frozenset[str]) -> None:
        """Accept other hosts and origins from now on. The class docstring describes the arguments."""
        self._hosts, self._origins = hosts, origins
        self._accepted.clear()
        self.edition = object()

    def check(self, head: RequestHead) -> None:
        """Reject a request from an unknown host or origin.

        Raises:
            RequestRefused: Host is missing, repeated or not accepted, or Origin is not accepted.
        """
        pair = (head.raw(b"host"), head.raw(b"origin"))
        if pair in self._accepted:
            return
        hosts = [value for name, value in head.fields if name == b"host"]
        if len(hosts) > 1 or (not hosts and head.version != "1.0"):
            # RFC 9112, section 3.2 "Request Target".
            raise RequestRefused(
                400, "exactly one Host header is required", body=b'{"error":"exactly one Host header is required"}'
            )
        if hosts and not self._is_host_allowed(head.text(b"host").lower()):
            raise RequestRefused(421, "Host", body=b'{"error":"this Host is not served here"}')
        if pair[1] is not None and not self._is_origin_allowed(head.text(b"origin").lower()):
            text = b'{"error":"this Origin is not allowed"}'
            raise RequestRefused(403, "Origin", [(b"vary", b"origin")], body=text)
        # Without Host, the result also depends on the HTTP version, so it is not cached.
        if hosts and len(self._accepted) < _MAX_REMEMBERED:
            self._accepted.add(pair)

    def _is_host_allowed(self, host: str) -> bool:
        if self._hosts is None:
            return True
        match = _AUTHORITY.fullmatch(host)
        return match is not None and (host in self._hosts or match[1] in self._hosts or _is_address(match[1]))

    def _is_origin_allowed(self, origin: str) -> bool:
        if origin in self._origins:
            return True
        scheme, _, authority = origin.partition("://")
        match = _AUTHORITY.fullmatch(authority)
        return scheme in ("http", "https") and match is not None and match[1] in LOOPBACK


def _is_address(host: str) -> bool:
    """Return whether a host is an IP address in the form of RFC 3986. Other numeric forms are names to a resolver."""
    is_bracketed = host.startswith("[")
    try:
        return ipaddress.ip_address(host.strip("[]")).version == (6 if is_bracketed else 4)
    except ValueError:
        return False


VARY: Final = b"vary: origin\r\n"
# All response headers that MCP clients read. A page can read only these and the headers of WHATWG Fetch,
# "CORS-safelisted response-header".
_EXPOSED: Final = (
    b"access-control-expose-headers: mcp-session-id, mcp-protocol-version, www-authenticate, retry-after, allow\r\n"
)
_CREDENTIALS: Final = b"access-control-allow-credentials: true\r\n"
_METHODS: Final = b"GET, POST, DELETE, OPTIONS"
# Request headers that are always allowed, even if a preflight does not name them. `*` cannot be used instead, because
# it does not include `authorization`.
_ALLOWED_HEADERS: Final = (
    b"authorization",
    b"content-type",
    b"accept",
    b"mcp-protocol-version",
    b"mcp-session-id",
    b"mcp-method",
    b"mcp-name",
    b"last-event-id",
)
# A list of header names (RFC 9110, section 5.6.2 "Tokens"). Other values are not echoed in the response.
_FIELD_NAMES: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
_MAX_FIELD_NAMES_BYTES: Final = 4 * 1024
"""The limit of the requested header names. The names of all `Mcp-Param-*` headers of one call are shorter."""
_MAX_AGE_S: Final = b"7200"
"""How long a browser may cache a preflight response. This is the maximum in Chromium."""


class CrossOrigin:
    """CORS headers and preflight requests. `HostCheck` has already checked the origin.

    Args:
        allowed_origins: The configured origins, in lower case. Pages of these origins may also send cookies, which a
            proxy in front of the gateway may require. Pages of this machine may send requests without cookies.
    """

    max_body_bytes: Final = 64 * 1024
    """A preflight has no body; if the client sends one, the body is ignored."""

    def __init__(self, allowed_origins: frozenset[str]) -> None:
        self._allowed_origins = allowed_origins

    def lines(self, head: RequestHead) -> bytes:
        """Return the CORS header lines for the response to this request; empty if the request has no Origin."""
        origin = head.raw(b"origin")
        if origin is None:
            return b""
        credentials = _CREDENTIALS if head.text(b"origin").lower() in self._allowed_origins else b""
        allowed = b"access-control-allow-origin: %b\r\n" % origin.strip(b" \t")
        return b"".join((allowed, credentials, _EXPOSED, VARY))

    @staticmethod
    def is_preflight(head: RequestHead) -> bool:
        """Return whether a request is a CORS preflight."""
        return (
            head.method == b"OPTIONS"
            and head.raw(b"origin") is not None
            and head.raw(b"access-control-request-method") is not None
        )

    def admit(self, head: RequestHead, peer: str) -> None:
        """Accept the request without authentication: a preflight has no credentials."""

    def answer(self, head: RequestHead, admission: object, body: bytes, responder: Responder, peer: str) -> None:
        """Respond with the methods and headers that a page may use.

        Raises:
            RequestRefused: A header name is malformed.
        """
        requested = head.text(b"access-control-request-headers").encode("latin-1")
        if requested and (len(requested) > _MAX_FIELD_NAMES_BYTES or _FIELD_NAMES.fullmatch(requested) is None):
            raise RequestRefused(400, "Access-Control-Request-Headers must be a list of header names")
        names = [name.strip() for name in requested.lower().split(b",")] if requested else []
        fields: Fields = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", b", ".join(dict.fromkeys([*names, *_ALLOWED_HEADERS]))),
            (b"access-control-max-age", _MAX_AGE_S),
        ]
        if head.text(b"access-control-request-private-network").lower() == "true":
            fields.append((b"access-control-allow-private-network", b"true"))
        responder.respond(204, (), fields)
