"""An HTTP/1.1 client in which every request is contained: it fails alone, within its bounds."""

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

from gateway.errors import ConnectionLost, HttpStatusError, UnusableAnswer
from gateway.upstream.transport.bounds import LARGE_BYTES, MAX_MESSAGE_BYTES, PAUSE_BYTES
from gateway.upstream.transport.http_connection import HttpConnection
from gateway.upstream.transport.media_type import media_type
from gateway.upstream.transport.proxies import Proxy, ProxyChoice, proxy_for, tls_context
from gateway.upstream.transport.tunnel import open_tunnel

Dial = Callable[[Callable[[], HttpConnection]], Awaitable[HttpConnection]]
"""Opens a connection with the protocol that the function makes; raises `OSError` where it cannot."""

# uvicorn and Node close idle connections after 5 s: leave before they do.
IDLE_S: Final = 4.0
# As many as calls come at once, each for a few seconds: a burst that has to connect anew costs thrice as much.
MAX_IDLE: Final = 256
# One for a trailing slash, one for a moved path; more is a loop.
_MAX_REDIRECTS: Final = 3
# Behind a proxy few names can be resolved here; one that can be is resolved at once.
_LOOK_UP_S: Final = 1.0
# Far above the URLs of a configuration; those of redirects must not fill the memory.
_MAX_CACHED_URLS: Final = 1024


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

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.authority}"


Resolve = Callable[[Origin], Awaitable[Sequence[str]]]
"""The addresses that may be dialled for an origin, the first one first; raises `GatewayError` where none may be."""


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
        raise ValueError("the URL holds characters that must be percent-encoded")
    return Origin(secure=secure, host=parts.hostname, port=parts.port or (443 if secure else 80)), target


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Write headers as they stand in the head of a request, each with its line break.

    Raises:
        ValueError: A name or value holds a line break of its own.
    """
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    # Counted once for all: a look at each name and value would cost every request more.
    if text.count("\n") != len(headers) or text.count("\r") != len(headers) or "\0" in text:
        raise ValueError("a header holds a line break")
    return text.encode("latin-1", "replace")


@lru_cache(maxsize=_MAX_CACHED_URLS)
def _first_lines(method: str, url: str) -> tuple[str, bytes]:
    """The name of a URL's origin, and the lines that every request to it begins with."""
    origin, target = split_url(url)
    head = f"{method} {target} HTTP/1.1\r\nhost: {origin.authority}\r\naccept-encoding: identity\r\n"
    return str(origin), head.encode("latin-1", "replace")


@lru_cache(maxsize=_MAX_CACHED_URLS)
def _first_lines_for(proxy: Proxy, method: str, url: str) -> bytes:
    """The lines that every request to a URL begins with that a proxy forwards.

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
    """Takes the cookies of answers."""

    def take(self, url: str, lines: Sequence[str]) -> None:
        """Take the Set-Cookie headers of the answer to a request for this URL."""

    def renew(self, url: str, lines: bytes) -> bytes:
        """Return header lines with the cookies of now."""


# What RFC 9110, section 8.4.1 "Content Codings", and the registry of IANA name, with older names.
_CODINGS: Final = frozenset(
    {
        *("aes128gcm", "br", "compress", "dcb", "dcz", "deflate", "exi", "gzip", "pack200-gzip", "zstd"),
        *("bzip2", "lz4", "lzma", "snappy", "x-bzip2", "x-compress", "x-gzip", "xz"),
    }
)


@lru_cache(maxsize=_MAX_CACHED_URLS)
def is_encoded(value: str) -> bool:
    """Return whether a Content-Encoding header names a coding.

    Servers write `none`, `utf-8` or nothing where the body is as it is, and clients on httpx and fetch take it so.
    """
    return not _CODINGS.isdisjoint(word.strip() for word in value.lower().split(","))


# A body in more lines or pieces than that is read in slices, so that it cannot keep the loop: a line costs a
# microsecond, an event some, and a message that is passed on to a caller some tens.
_FEW_LINES: Final = 256
_FEW_PIECES: Final = 512
_SLICE_BYTES: Final = 4 * 1024


class Response(Struct, eq=False):
    """The head of a response, and its body as it comes.

    Attributes:
        turns: Held for a turn of the loop before each slice of a body that is a flood of small parts. All of them share
            it, so that many floods together take no more of a turn than one.
    """

    status: int
    headers: dict[str, str]
    connection: HttpConnection
    turns: anyio.Lock
    body: bytes | None = None

    @property
    def content_type(self) -> str:
        """The media type without parameters, in lower case."""
        return media_type(self.headers.get("content-type", ""))

    @property
    def length(self) -> str | None:
        """The header Content-Length, also where the body is `plain`: of such an answer it is not among the headers."""
        plain = self.connection.plain
        return self.headers.get("content-length") if plain is None else str(len(plain))

    async def read(self, limit_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
        """Return the whole body; it stays in `body` and can be read again.

        Raises:
            ConnectionLost: The connection ended first, or the body is over the limit.
        """
        if self.body is not None:
            return self.body
        connection = self.connection
        parts: list[bytes] = []
        size_bytes = 0
        while True:
            if connection.pieces > _FEW_PIECES:
                await self._wait_turn()
            size_bytes += connection.take_into(parts)
            if size_bytes > limit_bytes:
                raise UnusableAnswer(f"the answer is larger than {limit_bytes} bytes")
            if connection.complete:
                self.body = parts[0] if len(parts) == 1 else b"".join(parts)
                return self.body
            if connection.lost is not None:
                raise ConnectionLost(connection.lost, sent=True)
            await connection.changed()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece: an event stream as the peer sends it, anything else as it fills our buffer.

        Raises:
            ConnectionLost: The connection ended before the body did.
        """
        connection = self.connection
        while True:
            if connection.pieces > _FEW_PIECES:
                await self._wait_turn()
            chunk = connection.take()
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
                await connection.changed()

    async def _wait_turn(self) -> None:
        async with self.turns:
            await anyio.lowlevel.checkpoint()


class HttpClient:
    """Connections to upstreams, kept while they live.

    Requests beyond what the caller limits are not queued here: the link's bulkhead bounds
    them. Nothing is retried. A redirect is followed only within its own origin.

    Attributes:
        parsing: Bounds how many large answers are parsed beside the loop: more at a time would keep it from its turn.
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
        """Open no connection yet.

        Args:
            connect_timeout_s: For each attempt; a host on the network that answers at all does so within some seconds.
            unix_path: A socket in the file system that every request goes to, whatever host its URL names.
            resolve: Says which addresses are dialled, in place of the system; names are not looked up again.
            dial: Opens every connection, whatever host the URL names.
            follows_redirects: Otherwise a redirect is an answer as any other.
            proxy: What connections go through; by default what the environment says. Not with `unix_path` and `dial`.
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

    def via(self, proxy: ProxyChoice) -> HttpClient:
        """Return the client whose connections go through a proxy, or through none; it is closed with this one."""
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
        """One exchange: yields once the head of the response is there.

        Leaving before the body is complete drops the connection, which shows the peer that
        nobody waits any more.

        Raises:
            ConnectionLost: Could not connect, or the connection ended before the head came.
            HttpStatusError: A redirect to another origin, or too many of them.
        """
        response = await self.exchange(method, url, header_lines(headers), body, cookies=cookies)
        try:
            yield response
        finally:
            self.keep(response.connection)

    async def exchange(
        self,
        method: str,
        url: str,
        lines: bytes,
        body: bytes = b"",
        *,
        in_pieces: bool = False,
        cookies: CookieStore | None = None,
    ) -> Response:
        """As `send`, for who has its header lines ready; the response has to be released, however it ends.

        Args:
            method, url, body: As `send`.
            lines: The headers, each with its line break.
            in_pieces: A large body is wanted before all of it is there.
            cookies: Takes the cookies of every answer, that of a redirect too.
        """
        origin, first = _first_lines(method, url)
        pauses_from_bytes = LARGE_BYTES if in_pieces else PAUSE_BYTES
        for _ in range(_MAX_REDIRECTS + 1):
            connection = self._kept(origin) or await self._connect(url)
            if connection.via is not None:
                first = _first_lines_for(connection.via, method, url)
            if lines.startswith(b"host:"):
                first = _without_host(first)  # the configuration names another one
            try:
                # Not kept in a name: whoever waits would hold it all that time.
                if body or method == "POST":
                    connection.write(
                        b"%b%bcontent-length: %d\r\n\r\n%b" % (first, lines, len(body), body), pauses_from_bytes
                    )
                else:
                    connection.write(b"%b%b\r\n" % (first, lines), pauses_from_bytes)
                while not connection.head_done:
                    if connection.lost is not None:
                        raise ConnectionLost(connection.lost, sent=True)
                    await connection.changed()
                headers, status = connection.headers, connection.status
                if cookies is not None and connection.set_cookies:
                    cookies.take(url, connection.set_cookies)
                if connection.plain is not None:
                    # Whole, and as it should be: there is nothing to ask its head.
                    return Response(status, headers, connection, self._turns)
                # A small compressed body may be a huge one.
                if "content-encoding" in headers and is_encoded(headers["content-encoding"]):
                    raise UnusableAnswer("the answer is compressed, which was not asked for")
            except BaseException:
                connection.abort()
                raise
            # 301, 302 and 303 would turn a POST into a GET; they are an answer that is no result.
            if status not in (307, 308) or not self._follows_redirects:
                return Response(status, headers, connection, self._turns)
            self.keep(connection)
            try:
                url = urljoin(url, headers.get("location", ""))
                moved, first = _first_lines(method, url)
            except ValueError as error:
                raise HttpStatusError(status, str(error)) from None
            # Our headers may hold credentials, which are for the configured origin only.
            if moved != origin:
                raise HttpStatusError(status, "a redirect to another origin is not followed")
            if cookies is not None:
                lines = cookies.renew(url, lines)
        raise HttpStatusError(status, "too many redirects")

    def _kept(self, origin: str) -> HttpConnection | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            # The newest first: the older ones are the likeliest to be closed by their server.
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
                    _, made = await loop.create_unix_connection(
                        lambda: HttpConnection(loop, str(origin)), self._unix_path
                    )
                    return made
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
        failure = OSError("there is no address of this name")
        for host in hosts:
            try:
                _, made = await loop.create_connection(
                    lambda: HttpConnection(loop, str(origin)),
                    host,
                    origin.port,
                    ssl=context,
                    # Where the address was found elsewhere the certificate is still that of the name.
                    server_hostname=origin.host if context is not None else None,
                )
            except OSError as error:
                failure = error
            else:
                return made
        raise failure

    async def _dial_through(self, proxy: Proxy, origin: Origin, loop: asyncio.AbstractEventLoop) -> HttpConnection:
        if self._resolve is not None:
            # A name that is known here is looked at; any other is the proxy's to resolve.
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
            raise OSError(error.errno, f"by the proxy {proxy}: {error.strerror or error}") from None
        return connection

    def keep(self, connection: HttpConnection) -> None:
        """End an exchange: its connection is kept, or dropped where the answer was not read to its end."""
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
        # Late: reading the system's certificates takes tens of milliseconds.
        if self._tls is None:
            self._tls = tls_context()
        return self._tls
