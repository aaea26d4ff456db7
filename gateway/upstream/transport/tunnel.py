"""A connection through a proxy to a server that is spoken to over TLS.

Source: RFC 9110, section 9.3.6 "CONNECT".
"""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import Final, cast

from gateway.upstream.transport.proxies import Proxy

# Header blocks of proxies have some hundred bytes.
_MAX_HEAD_BYTES: Final = 16 * 1024
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: ([^\r\n]*))?\r?\n")
_WANTS_CREDENTIALS: Final = 407


async def open_tunnel(
    proxy: Proxy, host: str, port: int, protocol: asyncio.Protocol, context: ssl.SSLContext
) -> None:  # fmt: skip
    """Connect a protocol to a host through a proxy.

    Args:
        proxy: The proxy.
        host, port: Where to.
        protocol: Hears of the connection once the handshake with the host is done.
        context: Verifies the host, and the proxy where that is spoken to over TLS.

    Raises:
        OSError: The proxy or the host cannot be reached, or the proxy refuses.
    """
    loop = asyncio.get_running_loop()
    transport, asking = await loop.create_connection(
        lambda: _Connect(proxy, host, port),
        proxy.host,
        proxy.port,
        ssl=context if proxy.secure else None,
        server_hostname=proxy.host if proxy.secure else None,
    )
    try:
        await asking.answered
        made = await loop.start_tls(cast(asyncio.WriteTransport, transport), protocol, context, server_hostname=host)
    except BaseException:
        transport.abort()
        raise
    if made is None:
        raise OSError("the connection was lost during the handshake")
    protocol.connection_made(made)


class _Connect(asyncio.Protocol):
    """Asks the proxy for a tunnel.

    Attributes:
        answered: Done once there is one; holds an `OSError` where there is none.
    """

    def __init__(self, proxy: Proxy, host: str, port: int) -> None:
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {authority} HTTP/1.1", f"host: {authority}"]
        if proxy.authorization is not None:
            lines.append(f"proxy-authorization: {proxy.authorization}")
        self._request = "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1", "replace")
        self._head = b""
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" not in self._head and b"\n\n" not in self._head:
            if len(self._head) > _MAX_HEAD_BYTES:
                self._fail("it answers with something else than HTTP")
            return
        found = _STATUS_LINE.match(self._head)
        if found is None:
            self._fail("it answers with something else than HTTP")
        elif found[1][:1] == b"2":
            if not self.answered.done():
                self.answered.set_result(None)
        else:
            status = int(found[1])
            hint = ": it wants a user name and a password" if status == _WANTS_CREDENTIALS else ""
            self._fail(f"it answers HTTP {status} to CONNECT{hint}")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(str(error) if error is not None else "it closed the connection")

    def _fail(self, reason: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(OSError(reason))
            # Whoever was to wait may have been cancelled: then nobody is to hear of it.
            self.answered.exception()
