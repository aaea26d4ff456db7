"""Where a browser comes back to after a sign-in, for a gateway that is reached over standard streams only.

A port of this machine that knows one path. Whatever else arrives there is refused, bounded in size and time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import anyio.lowlevel

from gateway.admin.pages import PAGE_HEADERS, callback_page
from gateway.downstream.http.host_check import LOOPBACK
from gateway.upstream.oauth.clients import CALLBACK_PATH
from gateway.upstream.oauth.sign_ins import SignIns

log = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"
# A code and a state, with the headers of a browser.
_MAX_HEAD_BYTES: Final = 32 * 1024
# The browser has its request ready when it connects; the exchange of the code has deadlines of its own.
_READ_S: Final = 5.0
_WHOLE_S: Final = 60.0
# One browser opens some connections at a time.
_MAX_CONNECTIONS: Final = 16


@asynccontextmanager
async def listening_for_browsers(sign_ins: SignIns) -> AsyncIterator[str | None]:
    """Listen on a free port of this machine until the block ends; yields the origin, None where there is no port."""
    places = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with places, asyncio.timeout(_WHOLE_S):
                async with asyncio.timeout(_READ_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _answer(head, sign_ins))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            log.debug("a browser has sent no request")
        finally:
            writer.close()

    try:
        listener = await asyncio.start_server(serve, _HOST, 0, limit=_MAX_HEAD_BYTES)
    except OSError as error:
        log.warning("browsers cannot come back here: %s", error.strerror)
        yield None
        return
    try:
        yield f"http://{_HOST}:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        # Its connections end with the loop; nobody waits for a browser.
        await anyio.lowlevel.checkpoint()


async def _answer(head: bytes, sign_ins: SignIns) -> bytes:
    lines = head.decode("latin-1").split("\r\n")
    method, _, rest = lines[0].partition(" ")
    path, _, query = rest.partition(" ")[0].partition("?")
    hosts = [line[5:].strip().lower() for line in lines[1:] if line.lower().startswith("host:")]
    # As everywhere: a page of somebody else must not reach us under a name of its own.
    if len(hosts) != 1 or hosts[0].rpartition(":")[0] not in LOOPBACK:
        return _response(421, "")
    if path != CALLBACK_PATH or method not in ("GET", "HEAD"):
        return _response(404, "")
    if method == "HEAD":
        return _response(200, "")
    status, text, location = await callback_page(sign_ins, query)
    return _response(status, text, location)


def _response(status: int, text: str, location: str | None = None) -> bytes:
    body = text.encode()
    fields = {
        **PAGE_HEADERS,
        "content-type": "text/html; charset=utf-8",
        "content-length": str(len(body)),
        "connection": "close",
        **({"location": location} if location is not None else {}),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode("latin-1") + body
