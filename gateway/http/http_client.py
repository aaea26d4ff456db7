"""HTTP/1.1 client with a connection pool and limits per request."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol
from urllib.parse import urljoin, urlsplit

import anyio
import anyio.lowlevel
from msgspec import Struct

from gateway.http.client_connection import HttpConnection
from gateway.http.event_stream import MAX_MESSAGE_BYTES, media_type
from gateway.http.proxies import Proxy, ProxyChoice, open_tunnel, proxy_for, tls_context
from gateway.protocol.gateway_errors import ConnectionLost, HttpStatusError, UnusableAnswer

Dial = Callable[[Callable[[], HttpConnection]], Awaitable[HttpConnection]]
"""Open a connection with the protocol that the given factory creates; raises `OSError` if that fails."""

# uvicorn and Node close idle connections after 5 s: stop using them before that.
IDLE_S: Final = 4.0
# The usual number of concurrent calls in a burst: opening a connection makes a call three times as expensive.
MAX_IDLE: Final = 256
# One redirect for a trailing slash and one for a moved path; more indicate a loop.
_MAX_REDIRECTS: Final = 3
# Behind a proxy, few names can be resolved locally; those that can resolve immediately.
_LOOK_UP_S: Final = 1.0
# RFC 9110, section 8.6: a request whose method anticipates content states its length, even if it is empty.
_WITH_CONTENT: Final = frozenset({"POST", "PUT", "PATCH"})
# Far above the number of configured URLs; the limit keeps URLs of redirects from filling the memory.
_MAX_CACHED_URLS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Scheme, host and port: the scope of a connection and of a credential."""

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
"""Return the addresses of an origin that may be dialled, in order; raises `GatewayError` if none is allowed."""


@lru_cache(maxsize=_MAX_CACHED_URLS)
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
        raise ValueError("the URL contains characters that must be percent-encoded")
    return Origin(secure=secure, host=parts.hostname, port=parts.port or (443 if secure else 80)), target


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Return headers as the lines of a request, each with its line break.

    Raises:
        ValueError: A name or value contains a line break.
    """
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    # Count once for all headers: checking every name and value would cost each request more.
    if text.count("\n") != len(headers) or text.count("\r") != len(headers) or "\0" in text:
        raise ValueError("a header contains a line break")
    return text.encode("latin-1", "replace")


@lru_cache(maxsize=_MAX_CACHED_URLS)
def _first_lines(method: str, url: str) -> tuple[str, bytes]:
    """Return the URL's origin as text, and the lines that every request to the URL begins with."""
    origin, target = split_url(url)
    head = f"{method} {target} HTTP/1.1\r\nhost: {origin.authority}\r\naccept-encoding: identity\r\n"
    return str(origin), head.encode("latin-1", "replace")


@lru_cache(maxsize=_MAX_CACHED_URLS)
def _first_lines_through(proxy: Proxy, method: str, url: str) -> bytes:
    """Return the first lines of a request to a URL that is sent through a forwarding proxy.

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
    """Stores the cookies of responses."""

    def store(self, url: str, lines: Sequence[str]) -> None:
        """Store the Set-Cookie headers of the response to a request for `url`."""

    def renew(self, url: str, lines: bytes) -> bytes:
        """Return header lines with the cookies that are valid now."""


# The codings of RFC 9110, section 8.4.1 "Content Codings", and of the IANA registry, with older names.
_CODINGS: Final = frozenset(
    {
        *("aes128gcm", "br", "compress", "dcb", "dcz", "deflate", "exi", "gzip", "pack200-gzip", "zstd"),
        *("bzip2", "lz4", "lzma", "snappy", "x-bzip2", "x-compress", "x-gzip", "xz"),
    }
)


@lru_cache(maxsize=_MAX_CACHED_URLS)
def is_encoded(value: str) -> bool:
    """Return whether a Content-Encoding header names a coding.

    Servers write `none`, `utf-8` or nothing for an unencoded body, and httpx and fetch accept that.
    """
    return not _CODINGS.isdisjoint(word.strip() for word in value.lower().split(","))


# A body with more lines or pieces is read in slices, so that it does not block the event loop: a line takes a
# microsecond, an event a few, and a message that is forwarded to a caller several tens.
_FEW_LINES: Final = 256
_FEW_PIECES: Final = 512
_SLICE_BYTES: Final = 4 * 1024


class Response(Struct, eq=False):
    """The header block of a response, and its body as it arrives.

    Attributes:
        turns: Held for one turn of the event loop before each slice of a body with very many small parts. All responses
            of a client share it, so that many such bodies together delay a turn by no more than one slice.
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
        """Return Content-Length, which for a `plain` body is derived from the body instead of the headers."""
        plain = self.connection.plain
        return self.headers.get("content-length") if plain is None else str(len(plain))

    async def read(self, limit_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
        """Return the whole body and store it in `body`, so that it can be read again.

        Raises:
            ConnectionLost: The connection was lost before the body was complete.
            UnusableAnswer: The body is over the limit.
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
        """Yield the body: an event stream as the peer sends it, anything else whenever the buffer is full.

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
    """A pool of HTTP connections to upstreams.

    The pool does not queue or retry requests: the upstream's bulkhead limits their number. It follows redirects only
    within the same origin.

    Attributes:
        parsing: Limits how many large responses are parsed in threads; more would starve the event loop.
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
    ) -> None:
        """Initialize the client without opening a connection.

        Args:
            connect_timeout_s: The limit of each attempt. A reachable host accepts a connection within seconds.
            unix_path: A Unix domain socket for all requests, whatever host the URL names.
            resolve: Replaces the system's name resolution.
            dial: Opens all connections, whatever host the URL names.
            follows_redirects: If false, a redirect is returned like any other response.
            proxy: The proxy of all connections, by default from the environment; ignored with `unix_path` and `dial`.
        """
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
        """Drop every idle connection."""
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()
        for client in self._via.values():
            client.close()

    def with_proxy(self, proxy: ProxyChoice) -> HttpClient:
        """Return a client that uses this proxy, or no proxy. Closing this client closes it, too."""
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
        """Send a request and yield its response once the header block has arrived.

        Leaving the context before the body is complete closes the connection, so that the peer can stop working.

        Raises:
            ConnectionLost: Could not connect, or the connection ended before the header block arrived.
            HttpStatusError: A redirect to another origin, or too many redirects.
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
        """Send a request with ready header lines. Pass the response's connection to `end_exchange`, or abort it.

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
                first = _without_host(first)  # the configuration sets the Host header
            try:
                # Not bound to a name, because the waiting coroutine would keep the bytes alive.
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
                # A small compressed body may expand to a huge one.
                if "content-encoding" in headers and is_encoded(headers["content-encoding"]):
                    raise UnusableAnswer("the response is compressed although the request did not allow it")
            except BaseException:
                connection.abort()
                raise
            # 301, 302 and 303 would turn a POST into a GET, so they are returned as they are.
            if status not in (307, 308) or not self._follows_redirects:
                return Response(status, headers, connection, self._turns)
            self.end_exchange(connection)
            try:
                url = urljoin(url, headers.get("location", ""))
                moved, first = _first_lines(method, url)
            except ValueError as error:
                raise HttpStatusError(status, str(error)) from None
            # The headers may contain credentials, which are only for the configured origin.
            if moved != origin:
                raise HttpStatusError(status, "a redirect to another origin is not followed")
            if cookies is not None:
                lines = cookies.renew(url, lines)
        raise HttpStatusError(status, "too many redirects")

    def _pop_idle(self, origin: str) -> HttpConnection | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            # Newest first: the server is most likely to have closed the older ones.
            if connection.is_usable(IDLE_S):
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
            # Apply the address rules if the name resolves here; otherwise the proxy resolves it.
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
        """End an exchange: return its connection to the pool, or close it if the response was not read to its end."""
        if not connection.end():
            connection.abort()
            return
        idle = self._idle.get(connection.origin)
        if idle is None:
            idle = self._idle[connection.origin] = deque()
        elif len(idle) >= MAX_IDLE:
            idle.popleft().abort()
        idle.append(connection)

    def _context(self) -> ssl.SSLContext:
        # Created lazily: reading the system's certificates takes tens of milliseconds.
        if self._tls is None:
            self._tls = tls_context()
        return self._tls
