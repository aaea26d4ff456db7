"""Requests to registries and downloads of bundles: over TLS or loopback, within bounds of time, size and redirects."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import closing
from typing import Any, Final, cast
from urllib.parse import SplitResult, urljoin, urlsplit

from gateway.server_sources.proposal import SourceRefused
from gateway.upstream.transport.proxies import proxy_for, tls_context

MAX_DOCUMENT_BYTES: Final = 8 * 1024 * 1024
"""Of a JSON document: npm's of one package with all its versions may have some megabytes."""
MAX_BUNDLE_BYTES: Final = 256 * 1024 * 1024
"""Of a bundle: Node programs with all their modules have some tens of megabytes."""
# Registries answer within a second or two; a bundle takes longer, but not so long between two bytes.
_PAUSE_S: Final = 20.0
_WHOLE_S: Final = 300.0
# A release of GitHub is two away.
_MAX_REDIRECTS: Final = 4
_CHUNK_BYTES: Final = 64 * 1024
# As for the answers of upstreams: what servers in use accept of requests (8 to 64 KiB).
_MAX_LINES: Final = 256
_MAX_LINES_BYTES: Final = 64 * 1024
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def fetch_json(url: str) -> Any:
    """The JSON document at an address.

    Raises:
        SourceRefused: There is none, or it is not to be asked for.
    """
    content = fetch(url, most_bytes=MAX_DOCUMENT_BYTES, accept="application/json")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise SourceRefused(f"{_shown(url)} answered with something that is not JSON") from None


def fetch(url: str, *, most_bytes: int, accept: str = "*/*") -> bytes:
    """The content at an address.

    Raises:
        SourceRefused: There is none, it is too big, or it is not to be asked for.
    """
    end_s = time.monotonic() + _WHOLE_S
    for _ in range(_MAX_REDIRECTS + 1):
        target = urlsplit(url)
        _check_address(url)
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        with closing(_connection(target)) as connection:
            connection.response_class = _Response
            try:
                connection.request("GET", path, headers={"Accept": accept, "User-Agent": "typegate"})
                answer = connection.getresponse()
                if answer.status in (301, 302, 303, 307, 308):
                    moved = urljoin(url, answer.getheader("Location", ""))
                    if urlsplit(moved).hostname in _LOOPBACK and target.hostname not in _LOOPBACK:
                        raise SourceRefused(f"{_shown(url)} leads to this machine")
                    url = moved
                    continue
                content = _read(answer, most_bytes, end_s, url)
            except (OSError, http.client.HTTPException) as error:
                raise SourceRefused(f"{_shown(url)} cannot be reached ({str(error) or type(error).__name__})") from None
        if answer.status == 404:
            raise SourceRefused(f"{_shown(url)} knows nothing of it (HTTP 404)")
        if answer.status != 200:
            raise SourceRefused(f"{_shown(url)} answered HTTP {answer.status}")
        return content
    raise SourceRefused(f"{_shown(url)} redirects without end")


def _connection(target: SplitResult) -> http.client.HTTPConnection:
    host, port = target.hostname or "", target.port
    if target.scheme == "http":  # this machine
        return http.client.HTTPConnection(host, port, timeout=_PAUSE_S)
    proxy = proxy_for(host, port or http.client.HTTPS_PORT, secure=True)
    if proxy is None:
        return http.client.HTTPSConnection(host, port, timeout=_PAUSE_S, context=tls_context())
    # To the proxy itself only without TLS: http.client has no TLS within TLS.
    connection = http.client.HTTPSConnection(proxy.host, proxy.port, timeout=_PAUSE_S, context=tls_context())
    credentials = {} if proxy.authorization is None else {"Proxy-Authorization": proxy.authorization}
    connection.set_tunnel(host, port or http.client.HTTPS_PORT, headers=credentials)
    return connection


class _BoundedLines:
    """A reader that gives out only so many lines in a row: header blocks, 1xx responses and trailers are lines.

    `http.client` bounds one line and the headers of one response, but reads 1xx responses and trailers without end.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._lines = self._line_bytes = 0

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._file.readline(limit)
        self._lines += 1
        self._line_bytes += len(line)
        if self._lines > _MAX_LINES or self._line_bytes > _MAX_LINES_BYTES:
            raise http.client.HTTPException("its headers are too large")
        return line

    def __getattr__(self, name: str) -> Any:
        # Anything else reads the body, which has a bound of its own.
        self._lines = self._line_bytes = 0
        return getattr(self._file, name)


class _Response(http.client.HTTPResponse):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fp = cast(Any, _BoundedLines(self.fp))


def _read(answer: http.client.HTTPResponse, most_bytes: int, end_s: float, url: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := answer.read(_CHUNK_BYTES):
        size += len(part)
        parts.append(part)
        if size > most_bytes:
            raise SourceRefused(f"{_shown(url)} sends more than {most_bytes // 2**20} MiB")
        if time.monotonic() > end_s:
            raise SourceRefused(f"{_shown(url)} takes too long")
    return b"".join(parts)


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        sound = bool(parts.hostname) and parts.port != 0 and url.isascii() and not any(map(str.isspace, url))
    except ValueError:
        sound = False
    if not sound or parts.username is not None:
        raise SourceRefused(f"{_shown(url)!r} is no address")
    # What is fetched decides what will run here.
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise SourceRefused(f"{_shown(url)} is not asked over a connection that others can change; expected https")


def _shown(url: str) -> str:
    return url.partition("?")[0][:200]
