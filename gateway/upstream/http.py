"""An HTTP/1.1 client in which every request is contained: it fails alone, within its bounds."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, cast
from urllib.parse import urljoin, urlsplit

import httptools

from gateway.errors import ConnectionLost, HttpStatusError

MAX_BODY_BYTES: Final = 8 * 1024 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
# uvicorn and Node close idle connections after 5 s: leave before they do.
IDLE_S: Final = 4.0
MAX_IDLE: Final = 64
_PAUSE_BYTES: Final = 512 * 1024
_MAX_REDIRECTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Scheme, host and port: what a connection, and a credential, belong to."""

    secure: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


@lru_cache(maxsize=1024)
def split_url(url: str) -> tuple[Origin, str]:
    """Split an absolute URL into its origin and request target.

    Raises:
        ValueError: Not an absolute http or https URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an http(s) URL: {url!r}")
    secure = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if any(character <= " " or character > "~" for character in target):
        raise ValueError("the URL holds characters that must be percent-encoded")
    return Origin(secure=secure, host=parts.hostname, port=parts.port or (443 if secure else 80)), target


@dataclass(slots=True, kw_only=True)
class Response:
    """The head of a response, and its body as it comes."""

    status: int
    headers: dict[str, str]
    _connection: _Connection = field(repr=False)

    @property
    def content_type(self) -> str:
        """The media type without parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def read(self, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
        """The whole body.

        Raises:
            ConnectionLost: The connection ended first, or the body is over the limit.
        """
        connection = self._connection
        if connection.complete:
            body = connection.take()
        else:
            parts: list[bytes] = []
            size = 0
            async for chunk in self.chunks():
                size += len(chunk)
                if size > limit_bytes:
                    raise ConnectionLost(f"the answer is larger than {limit_bytes} bytes", sent=True)
                parts.append(chunk)
            body = b"".join(parts)
        if len(body) > limit_bytes:
            raise ConnectionLost(f"the answer is larger than {limit_bytes} bytes", sent=True)
        return body

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece, as the peer sends it.

        Raises:
            ConnectionLost: The connection ended before the body did.
        """
        connection = self._connection
        while True:
            chunk = connection.take()
            if chunk:
                yield chunk
            elif connection.complete:
                return
            elif connection.lost is not None:
                raise ConnectionLost(connection.lost, sent=True)
            else:
                await connection.wait()


class _Connection(asyncio.Protocol):
    """One socket; carries one exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.lost: str | None = None
        self.idle_since_s = 0.0
        self.reset()

    def reset(self) -> None:
        """Be ready for the next exchange."""
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._buffered_bytes = 0
        self._head_bytes = 0
        self._paused = False
        self.headers: dict[str, str] = {}
        self.status = 0
        self.head_done = False
        self.complete = False
        self.reusable = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports derive from none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self.head_done:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES + MAX_BODY_BYTES:
                self.fail("the head of the answer is too large")
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail("the peer switched protocols")
        except httptools.HttpParserError as error:
            self.fail(f"the answer is not HTTP ({error})")
        self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self.head_done and not self.complete and error is None and self._until_close():
            self.complete = True
        if self.lost is None:
            self.lost = f"the connection was lost ({error})" if error else "the peer closed the connection"
        self._wake()

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        if len(self.headers) > 256:
            raise ValueError("too many headers")
        self.headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers = {}
            return
        self.head_done = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._buffered_bytes += len(body)
        if self._buffered_bytes > _PAUSE_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status < 200:
            return
        self.complete = True
        self.reusable = self._parser.should_keep_alive()

    # what an exchange uses

    def write(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            ConnectionLost: The socket is closed already; nothing was sent.
        """
        if self._transport is None or self._transport.is_closing() or self.lost is not None:
            raise ConnectionLost(self.lost or "the connection is closed", sent=False)
        self._transport.write(data)

    def take(self) -> bytes:
        """Whatever of the body has come and was not taken yet."""
        if not self._body:
            return b""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._buffered_bytes = 0
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()
        return body

    async def wait(self) -> None:
        """Return when something has changed."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def fail(self, reason: str) -> None:
        """End the connection for a reason of ours."""
        self.lost = self.lost or reason
        self.abort()

    def abort(self) -> None:
        """Drop the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def alive(self) -> bool:
        """Whether another exchange may use it."""
        return self.lost is None and self._transport is not None and not self._transport.is_closing()

    def _until_close(self) -> bool:
        return "content-length" not in self.headers and "chunked" not in self.headers.get("transfer-encoding", "")

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class HttpClient:
    """Connections to upstreams, kept while they live.

    Requests beyond what the caller limits are not queued here: the link's bulkhead bounds
    them. Nothing is retried. A redirect is followed only within its own origin.
    """

    def __init__(self, *, connect_timeout_s: float = 10.0) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._idle: dict[Origin, deque[_Connection]] = {}
        self._tls: ssl.SSLContext | None = None

    def close(self) -> None:
        """Drop every idle connection."""
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[Response]:
        """One exchange: yields once the head of the response is there.

        Leaving before the body is complete drops the connection, which tells the peer that
        nobody waits any more.

        Raises:
            ConnectionLost: Could not connect, or the connection ended before the head came.
            HttpStatusError: A redirect to another origin, or too many of them.
        """
        origin, target = split_url(url)
        for _ in range(_MAX_REDIRECTS + 1):
            connection = await self._connect(origin)
            try:
                connection.write(_head(method, target, origin, headers, body))
                while not connection.head_done:
                    if connection.lost is not None:
                        raise ConnectionLost(connection.lost, sent=True)
                    await connection.wait()
                if connection.headers.get("content-encoding", "identity") != "identity":
                    raise ConnectionLost("the answer is compressed, which was not asked for", sent=True)
                if connection.status not in (307, 308):
                    yield Response(status=connection.status, headers=connection.headers, _connection=connection)
                    return
                location, status = connection.headers.get("location", ""), connection.status
            finally:
                self._release(origin, connection)
            try:
                url = urljoin(url, location)
                moved, target = split_url(url)
            except ValueError as error:
                raise HttpStatusError(status, str(error)) from None
            if moved != origin:
                raise HttpStatusError(status, "a redirect to another origin is not followed")
        raise HttpStatusError(status, "too many redirects")

    async def _connect(self, origin: Origin) -> _Connection:
        loop = asyncio.get_running_loop()
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.alive and loop.time() - connection.idle_since_s < IDLE_S:
                connection.reset()
                return connection
            connection.abort()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, made = await loop.create_connection(
                    lambda: _Connection(loop),
                    origin.host,
                    origin.port,
                    ssl=self._context() if origin.secure else None,
                )
        except TimeoutError:
            raise ConnectionLost(f"no connection within {self._connect_timeout_s:g} s", sent=False) from None
        except OSError as error:
            raise ConnectionLost(f"cannot connect ({error.strerror or error})", sent=False) from None
        return made

    def _release(self, origin: Origin, connection: _Connection) -> None:
        if not (connection.complete and connection.reusable and connection.alive):
            connection.abort()
            return
        connection.take()
        idle = self._idle.setdefault(origin, deque())
        if len(idle) >= MAX_IDLE:
            idle.popleft().abort()
        connection.idle_since_s = asyncio.get_running_loop().time()
        idle.append(connection)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _head(method: str, target: str, origin: Origin, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"host: {origin.authority}", "accept-encoding: identity"]
    for name, value in headers.items():
        if "\r" in value or "\n" in value or "\0" in value:
            raise ValueError(f"header {name!r} holds a line break")
        lines.append(f"{name}: {value}")
    if body or method == "POST":
        lines.append(f"content-length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace") + body
