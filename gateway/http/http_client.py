"""HTTP/1.1 client with a connection pool and limits per request.

An exchange is one request and its response. The peer is the server at the other end of a connection.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urljoin, urlsplit

import anyio
import anyio.lowlevel
from msgspec import Struct

from gateway.http.client_connection import HttpConnection
from gateway.http.event_stream import MAX_MESSAGE_BYTES, media_type
from gateway.http.proxies import Proxy, ProxyChoice, open_tunnel, proxy_for, warn_once
from gateway.protocol.gateway_errors import ConnectionLost, HttpStatusError, UnusableAnswer

Dial = Callable[[Callable[[], HttpConnection]], Awaitable[HttpConnection]]
"""A function that opens a connection with the protocol that the given factory creates; raises `OSError` on failure."""

# How long an idle connection can be reused. Uvicorn and Node close idle connections after 5 s.
IDLE_S: Final = 4.0
# The maximum number of idle connections per origin, which covers the usual bursts of concurrent calls. Opening a
# connection makes a call three times as expensive.
MAX_IDLE: Final = 256
# A trailing slash and a moved path cause one redirect each; more redirects indicate a loop.
_MAX_REDIRECTS: Final = 3
# The time limit for resolving a name locally if a proxy is used. A name that can be resolved resolves immediately.
_LOOK_UP_S: Final = 1.0
# Requests with these methods have a Content-Length even if the body is empty (RFC 9110, section 8.6).
_WITH_CONTENT: Final = frozenset({"POST", "PUT", "PATCH"})
# The maximum number of cached URLs, far above the number of configured URLs. It limits memory use by redirects.
_MAX_CACHED_URLS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Scheme, host and port of a URL. Connections and credentials are used for one origin only."""

    secure: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Return the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.authority}"


Resolve = Callable[[Origin], Awaitable[Sequence[str]]]
"""A function that returns the permitted addresses of an origin, in the order in which to try them.

Raises `GatewayError` if no address is permitted."""


@lru_cache(maxsize=_MAX_CACHED_URLS)
def split_url(url: str) -> tuple[Origin, str]:
    """Split an absolute URL into its origin and request target.

    Raises:
        ValueError: The URL is not an absolute http or https URL, or has characters that must be percent-encoded.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an http(s) URL: {url!r}")
    secure = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if any(character <= " " or character > "~" for character in target):
        raise ValueError("the URL contains characters that must be percent-encoded")
    return Origin(secure=secure, host=parts.hostname, port=parts.port or (443 if secure else 80)), target


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Return headers as the lines of a request, each with its line break.

    Raises:
        ValueError: A name or value contains a line break or a NUL character.
    """
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    # Count line breaks in the joined text, which is cheaper than checking every name and value.
    if text.count("\n") != len(headers) or text.count("\r") != len(headers) or "\0" in text:
        raise ValueError("a header contains a line break")
    return text.encode("latin-1", "replace")


@lru_cache(maxsize=_MAX_CACHED_URLS)
def _first_lines(method: str, url: str) -> tuple[str, bytes]:
    """Return the URL's origin as text, and the first lines of every request with this method to the URL."""
    origin, target = split_url(url)
    head = f"{method} {target} HTTP/1.1\r\nhost: {origin.authority}\r\naccept-encoding: identity\r\n"
    return str(origin), head.encode("latin-1", "replace")


@lru_cache(maxsize=_MAX_CACHED_URLS)
def _first_lines_through(proxy: Proxy, method: str, url: str) -> bytes:
    """Return the first lines of a request that a proxy forwards to the URL.

    Source: RFC 9112, section 3.2.2 "absolute-form".
    """
    origin, target = split_url(url)
    head = f"{method} {origin}{target} HTTP/1.1\r\nhost: {origin.authority}\r\naccept-encoding: identity\r\n"
    if proxy.authorization is not None:
        head += f"proxy-authorization: {proxy.authorization}\r\n"
    return head.encode("latin-1", "replace")


@lru_cache(maxsize=_MAX_CACHED_URLS)
def _without_host(first: bytes) -> bytes:
    """Return the first lines of a request without its Host header."""
    return b"\r\n".join([line for line in first.split(b"\r\n") if not line.startswith(b"host:")])


class CookieStore(Protocol):
    """Stores the cookies of responses, and adds them to requests."""

    def store(self, url: str, lines: Sequence[str]) -> None:
        """Store the Set-Cookie headers of the response to a request for `url`."""

    def renew(self, url: str, lines: bytes) -> bytes:
        """Return the header lines with the cookies that are valid now for `url`."""


# The codings of RFC 9110, section 8.4.1 "Content Codings", and of the IANA registry, including older names.
_CODINGS: Final = frozenset(
    {
        *("aes128gcm", "br", "compress", "dcb", "dcz", "deflate", "exi", "gzip", "pack200-gzip", "zstd"),
        *("bzip2", "lz4", "lzma", "snappy", "x-bzip2", "x-compress", "x-gzip", "xz"),
    }
)


@lru_cache(maxsize=_MAX_CACHED_URLS)
def is_encoded(value: str) -> bool:
    """Return whether a Content-Encoding header contains a known coding.

    For an unencoded body, some servers send `none`, `utf-8` or an empty header. httpx and fetch accept these, too.
    """
    return not _CODINGS.isdisjoint(word.strip() for word in value.lower().split(","))


# A body with more lines or pieces is read in slices, so that it does not block the event loop. Processing takes 1 µs
# per line, a few µs per event, and some tens of µs per message that is forwarded to a caller.
_FEW_LINES: Final = 256
_FEW_PIECES: Final = 512
_SLICE_BYTES: Final = 4 * 1024


class Response(Struct, eq=False):
    """The header block of a response, and its body as it arrives.

    Attributes:
        turns: A lock that is held for one iteration of the event loop before each slice of a body with very many small
            parts. All responses of a client share the lock, so that only one slice is processed per iteration.
        body: The whole body, once `read` has returned it.
    """

    status: int
    headers: dict[str, str]
    connection: HttpConnection
    turns: anyio.Lock
    body: bytes | None = None

    @property
    def content_type(self) -> str:
        """Return the media type without parameters, in lower case."""
        return media_type(self.headers.get("content-type", ""))

    @property
    def length(self) -> str | None:
        """Return Content-Length; None if absent. For a body in `HttpConnection.plain`, it is the length of the body."""
        plain = self.connection.plain
        return self.headers.get("content-length") if plain is None else str(len(plain))

    async def read(self, limit_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
        """Return the whole body and store it in `body`, so that it can be read again.

        Raises:
            ConnectionLost: The connection was lost before the body was complete.
            UnusableAnswer: The body is larger than the limit.
        """
        if self.body is not None:
            return self.body
        connection = self.connection
        parts: list[bytes] = []
        size_bytes = 0
        while True:
            if connection.pieces > _FEW_PIECES:
                await self._wait_turn()
            size_bytes += connection.read_body_into(parts)
            if size_bytes > limit_bytes:
                raise UnusableAnswer(f"the answer is larger than {limit_bytes} bytes")
            if connection.complete:
                self.body = parts[0] if len(parts) == 1 else b"".join(parts)
                return self.body
            if connection.lost is not None:
                raise ConnectionLost(connection.lost, sent=True)
            await connection.wait_change()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body in chunks: an event stream as it arrives, any other body whenever the buffer is full.

        Raises:
            ConnectionLost: The connection ended before the body did.
        """
        connection = self.connection
        while True:
            if connection.pieces > _FEW_PIECES:
                await self._wait_turn()
            chunk = connection.read_body()
            if chunk.count(b"\n") > _FEW_LINES:
                for at in range(0, len(chunk), _SLICE_BYTES):
                    await self._wait_turn()
                    yield chunk[at : at + _SLICE_BYTES]
            elif chunk:
                yield chunk
            elif connection.complete:
                return
            elif connection.lost is not None:
                raise ConnectionLost(connection.lost, sent=True)
            else:
                await connection.wait_change()

    async def _wait_turn(self) -> None:
        async with self.turns:
            await anyio.lowlevel.checkpoint()


class HttpClient:
    """An HTTP client with a pool of connections to upstreams.

    The client does not queue or retry requests. Each upstream has its own limit of concurrent requests. Redirects are
    followed only within the same origin.

    Attributes:
        parsing: Allows one thread at a time to parse a large response; more threads would starve the event loop.
    """

    def __init__(
        self,
        *,
        connect_timeout_s: float = 10.0,
        unix_path: str | None = None,
        resolve: Resolve | None = None,
        dial: Dial | None = None,
        follows_redirects: bool = True,
        proxy: ProxyChoice = None,
        idle_s: float = IDLE_S,
        max_idle: int = MAX_IDLE,
    ) -> None:
        """Initialize the client without opening a connection.

        Args:
            connect_timeout_s: The time limit for opening a connection. A reachable host accepts within seconds.
            unix_path: A Unix domain socket for all requests; the host in URLs is ignored.
            resolve: Replaces the system's name resolution.
            dial: Opens all connections; the host in URLs is ignored.
            follows_redirects: Whether to follow redirects; if not, they are returned like any other response.
            proxy: The proxy of all connections, by default from the environment; ignored with `unix_path` and `dial`.
            idle_s: A connection that was idle for longer is not reused.
            max_idle: The number of idle connections to keep for each origin.
        """
        self._idle_s, self._max_idle = idle_s, max_idle
        self._resolve = resolve
        self._proxy = proxy
        self._via: dict[ProxyChoice, HttpClient] = {}
        self._follows_redirects = follows_redirects
        self._connect_timeout_s = connect_timeout_s
        self._unix_path = unix_path
        self._opener = dial
        self.parsing = anyio.CapacityLimiter(1)
        self._turns = anyio.Lock()
        self._idle: dict[str, deque[HttpConnection]] = {}
        self._tls: ssl.SSLContext | None = None

    def close(self) -> None:
        """Close every idle connection."""
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()
        for client in self._via.values():
            client.close()

    def with_proxy(self, proxy: ProxyChoice) -> HttpClient:
        """Return a client that uses this proxy setting. `close` on this client closes the returned client, too."""
        if proxy == self._proxy:
            return self
        client = self._via.get(proxy)
        if client is None:
            client = self._via[proxy] = HttpClient(
                connect_timeout_s=self._connect_timeout_s, follows_redirects=self._follows_redirects, proxy=proxy
            )
            client.parsing, client._turns = self.parsing, self._turns
        return client

    @asynccontextmanager
    async def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        cookies: CookieStore | None = None,
    ) -> AsyncIterator[Response]:
        """Send a request, and yield the response once its header block has arrived.

        If the context ends before the body is complete, the connection is closed, so that the peer can stop working.

        Raises:
            ConnectionLost: The client could not connect, or the connection ended before the header block arrived.
            HttpStatusError: The response redirects to another origin, or there were too many redirects.
            UnusableAnswer: The response is compressed.
        """
        response = await self.exchange(method, url, header_lines(headers), body, cookies=cookies)
        try:
            yield response
        finally:
            self.end_exchange(response.connection)

    async def exchange(
        self,
        method: str,
        url: str,
        lines: bytes,
        body: bytes = b"",
        *,
        cookies: CookieStore | None = None,
    ) -> Response:
        """Send a request whose headers are already encoded.

        The caller has to pass the response's connection to `end_exchange`, or abort it.

        Args:
            lines: The headers, each with its line break.
            cookies: Stores the cookies of every response, including redirects.
        """
        origin, first = _first_lines(method, url)
        for _ in range(_MAX_REDIRECTS + 1):
            connection = self._pop_idle(origin) or await self._connect(url)
            if connection.via is not None:
                first = _first_lines_through(connection.via, method, url)
            if lines.startswith(b"host:"):
                first = _without_host(first)  # the configuration sets another Host header
            try:
                # Do not bind the request to a local name: this would keep it in memory while the coroutine waits.
                if body or method in _WITH_CONTENT:
                    connection.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (first, lines, len(body), body))
                else:
                    connection.write(b"%b%b\r\n" % (first, lines))
                while not connection.head_done:
                    if connection.lost is not None:
                        raise ConnectionLost(connection.lost, sent=True)
                    await connection.wait_change()
                headers, status = connection.headers, connection.status
                if cookies is not None and connection.set_cookies:
                    cookies.store(url, connection.set_cookies)
                if connection.plain is not None:
                    # Fast path: a complete JSON response needs none of the checks below.
                    return Response(status, headers, connection, self._turns)
                # Rejected instead of decompressed, because a small body may expand to a huge one.
                if "content-encoding" in headers and is_encoded(headers["content-encoding"]):
                    raise UnusableAnswer("the response is compressed although the request did not allow it")
            except BaseException:
                connection.abort()
                raise
            # Redirects with 301, 302 and 303 are not followed, because they would turn a POST into a GET.
            if status not in (307, 308) or not self._follows_redirects:
                return Response(status, headers, connection, self._turns)
            self.end_exchange(connection)
            try:
                url = urljoin(url, headers.get("location", ""))
                moved, first = _first_lines(method, url)
            except ValueError as error:
                raise HttpStatusError(status, str(error)) from None
            # The headers may contain credentials, which must be sent only to the configured origin.
            if moved != origin:
                raise HttpStatusError(status, "a redirect to another origin is not followed")
            if cookies is not None:
                lines = cookies.renew(url, lines)
        raise HttpStatusError(status, "too many redirects")

    def _pop_idle(self, origin: str) -> HttpConnection | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            # Newest first: an older connection is more likely to have been closed by the server.
            if connection.is_usable(self._idle_s):
                return connection
            connection.abort()
        return None

    async def _connect(self, url: str) -> HttpConnection:
        origin, _ = split_url(url)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if self._unix_path is not None:
                    _, connection = await loop.create_unix_connection(
                        lambda: HttpConnection(loop, str(origin)), self._unix_path
                    )
                    return connection
                if self._opener is not None:
                    return await self._opener(lambda: HttpConnection(loop, str(origin)))
                proxy = proxy_for(origin.host, origin.port, secure=origin.secure, choice=self._proxy)
                if proxy is not None:
                    return await self._dial_through(proxy, origin, loop)
                return await self._dial(origin, loop)
        except TimeoutError:
            raise ConnectionLost(f"no connection within {self._connect_timeout_s:g} s", sent=False) from None
        except OSError as error:
            raise ConnectionLost(f"cannot connect ({error.strerror or error})", sent=False) from None

    async def _dial(self, origin: Origin, loop: asyncio.AbstractEventLoop) -> HttpConnection:
        context = self._context() if origin.secure else None
        hosts: Sequence[str] = (origin.host,) if self._resolve is None else await self._resolve(origin)
        failure = OSError("the host name has no address")
        for host in hosts:
            try:
                _, connection = await loop.create_connection(
                    lambda: HttpConnection(loop, str(origin)),
                    host,
                    origin.port,
                    ssl=context,
                    # The certificate has to match the host name even if `resolve` returned the address.
                    server_hostname=origin.host if context is not None else None,
                )
            except OSError as error:
                failure = error
            else:
                return connection
        raise failure

    async def _dial_through(self, proxy: Proxy, origin: Origin, loop: asyncio.AbstractEventLoop) -> HttpConnection:
        if self._resolve is not None:
            # If the name can be resolved here, check that its addresses are permitted. Otherwise only the proxy can
            # resolve the name.
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_LOOK_UP_S):
                    await self._resolve(origin)
        connection = HttpConnection(loop, str(origin))
        context = self._context() if origin.secure or proxy.secure else None
        try:
            if origin.secure:
                assert context is not None
                await open_tunnel(proxy, origin.host, origin.port, connection, context)
            else:
                await loop.create_connection(
                    lambda: connection,
                    proxy.host,
                    proxy.port,
                    ssl=context,
                    server_hostname=proxy.host if context is not None else None,
                )
                connection.via = proxy
        except OSError as error:
            raise OSError(error.errno, f"through the proxy {proxy}: {error.strerror or error}") from None
        return connection

    def end_exchange(self, connection: HttpConnection) -> None:
        """End an exchange: return the connection to the pool, or close it if it cannot be reused.

        A connection cannot be reused if the response was not read to its end, or the server closes the connection.
        """
        if not connection.end():
            connection.abort()
            return
        idle = self._idle.get(connection.origin)
        if idle is None:
            idle = self._idle[connection.origin] = deque()
        elif len(idle) >= self._max_idle:
            idle.popleft().abort()
        idle.append(connection)

    def _context(self) -> ssl.SSLContext:
        # Created on first use: reading the system's certificates takes tens of milliseconds.
        if self._tls is None:
            self._tls = tls_context()
        return self._tls


# Variables in which other HTTP clients look for additional certificates. OpenSSL itself reads SSL_CERT_FILE and
# SSL_CERT_DIR.
_CA_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")


def tls_context() -> ssl.SSLContext:
    """Return a TLS context with the certificates of the system and of the environment variables."""
    context = ssl.create_default_context()
    for name in _CA_VARIABLES:
        path = os.environ.get(name)
        if not path:
            continue
        try:
            if Path(path).is_dir():
                context.load_verify_locations(capath=path)
            else:
                context.load_verify_locations(cafile=path)
        except (OSError, ssl.SSLError) as error:
            warn_once(
                f"certificates of the environment ignored: {name}: {path} cannot be read ({error.strerror or error})"
            )
    return context
