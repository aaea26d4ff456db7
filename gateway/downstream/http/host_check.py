"""Which hosts and origins are served: a page in somebody's browser must not reach a gateway on their machine.

A page reaches it by DNS rebinding: the host name of the page is given another address, and the browser sends that name
as Host. A literal address in Host was looked up nowhere, so that nobody can rebind it. Prometheus and load balancers
send the address of a pod, which no configuration can know. A page that asks an address sends its Origin.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from gateway.downstream.http.request import RequestHead, RequestRefused

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})
"""The names of this machine that no other machine can claim."""
# Nothing but a name or an address and a port: user information, paths and leftovers behind an address are refused.
_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]\\]+)(?::\d{1,5})?")
# A browser of one page sends one pair; this many differ only under attack.
_MAX_REMEMBERED: Final = 64


class HostCheck:
    """Looks at Host and Origin of every request, on every path.

    Source: MCP 2026-07-28, "Transports", "Security Warning" (DNS rebinding).

    Args:
        hosts: The hosts that may be named, in lower case, with or without a port, beside literal addresses; None for
            any.
        origins: Further origins that may call, beside those of this machine.
    """

    def __init__(self, hosts: frozenset[str] | None, origins: frozenset[str]) -> None:
        self._hosts = hosts
        self._origins = origins
        self._accepted: set[tuple[bytes | None, bytes | None]] = set()

    def check(self, head: RequestHead) -> None:
        """Let a request pass, or not.

        Raises:
            RequestRefused: Its Host is missing, repeated or not served, or its Origin is a stranger's.
        """
        pair = (head.raw(b"host"), head.raw(b"origin"))
        if pair in self._accepted:
            return
        hosts = [value for name, value in head.fields if name == b"host"]
        if len(hosts) > 1 or (not hosts and head.version != "1.0"):
            # RFC 9112, section 3.2 "Request Target".
            raise RequestRefused(400, "one Host is needed", body=b'{"error":"one Host is needed"}')
        if hosts and not self._host_allowed(head.text(b"host").lower()):
            raise RequestRefused(421, "Host", body=b'{"error":"this Host is not served here"}')
        if pair[1] is not None and not self._origin_allowed(head.text(b"origin").lower()):
            text = b'{"error":"this Origin is not allowed"}'
            raise RequestRefused(403, "Origin", [(b"vary", b"origin")], body=text)
        # Without a host it depends on the version, too.
        if hosts and len(self._accepted) < _MAX_REMEMBERED:
            self._accepted.add(pair)

    def _host_allowed(self, host: str) -> bool:
        if self._hosts is None:
            return True
        match = _AUTHORITY.fullmatch(host)
        return match is not None and (host in self._hosts or match[1] in self._hosts or _is_address(match[1]))

    def _origin_allowed(self, origin: str) -> bool:
        if origin in self._origins:
            return True
        scheme, _, authority = origin.partition("://")
        match = _AUTHORITY.fullmatch(authority)
        return scheme in ("http", "https") and match is not None and match[1] in LOOPBACK


def _is_address(host: str) -> bool:
    """Whether a host is an address as RFC 3986 writes it; other forms of numbers are names to a resolver."""
    is_bracketed = host.startswith("[")
    try:
        return ipaddress.ip_address(host.strip("[]")).version == (6 if is_bracketed else 4)
    except ValueError:
        return False
