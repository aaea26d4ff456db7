"""Whether something listens where an upstream was."""

from __future__ import annotations

from typing import Final

import anyio

from gateway.upstream.transport.http_client import split_url
from gateway.upstream.transport.proxies import ProxyChoice, proxy_for

# A port that takes longer to accept is not back in a way that a connection attempt would profit from.
_CONNECT_S: Final = 1.0


def is_behind_proxy(url: str, choice: ProxyChoice) -> bool:
    """Whether this address is reached through a proxy, which accepts connections whatever is behind it."""
    origin, _ = split_url(url)
    return proxy_for(origin.host, origin.port, secure=origin.secure, choice=choice) is not None


async def accepts_connections(url: str) -> bool:
    """Whether something accepts connections at this address."""
    origin, _ = split_url(url)
    try:
        with anyio.fail_after(_CONNECT_S):
            stream = await anyio.connect_tcp(origin.host, origin.port)
        await stream.aclose()
    except (OSError, TimeoutError):
        return False
    return True
