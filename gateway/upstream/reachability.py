"""Whether something listens where an upstream was."""

from __future__ import annotations

from typing import Final

import anyio

from gateway.upstream.transport.http_client import split_url

# A port that takes longer to accept is not back in a way that a connection attempt would profit from.
_CONNECT_S: Final = 1.0


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
