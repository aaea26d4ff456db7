"""The cookies of one connection, by which balancers keep a session on its node.

Source: RFC 6265, "HTTP State Management Mechanism". Clients on httpx and fetch in browsers keep them too.
"""

from __future__ import annotations

import email.message
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway.upstream.transport.http_client import split_url

if TYPE_CHECKING:
    from http.cookiejar import CookieJar

# RFC 6265, section 6.1: what user agents should be capable of, for each cookie and for each domain.
_MAX_COOKIE_CHARS: Final = 4_096
_MAX_COOKIES: Final = 50


class Cookies:
    """Keeps what the server of one URL sets, and nothing of any other server.

    Attributes:
        version: Differs when `header` may.
    """

    def __init__(self, url: str, configured: str = "") -> None:
        """Begin without cookies of the server.

        Args:
            url: Of the server.
            configured: The Cookie header of the configuration. What the server sets replaces a cookie of the same name.
        """
        self._origin, _ = split_url(url)
        self._configured = configured
        self._jar: CookieJar | None = None
        self.version = 0
        self._ends_s: float | None = None

    def take(self, url: str, lines: Sequence[str]) -> None:
        """Keep, replace or delete what the Set-Cookie headers of an answer say.

        Args:
            url: Of the request.
            lines: The values of these headers.
        """
        if split_url(url)[0] != self._origin:
            return
        # Late: few servers set cookies, and these take 20 ms to import.
        from http.cookiejar import CookieJar
        from urllib.request import Request

        if self._jar is None:
            self._jar = CookieJar()
        answer = _Answer([line for line in lines if len(line) <= _MAX_COOKIE_CHARS])
        self._jar.extract_cookies(answer, Request(url))  # type: ignore[arg-type] # all that is asked of it is `info`
        for cookie in list(self._jar)[_MAX_COOKIES:]:
            self._jar.clear(cookie.domain, cookie.path, cookie.name)
        self._note_end()
        self.version += 1

    def is_due(self) -> bool:
        """Return whether a cookie has expired since `header` was asked for."""
        return self._ends_s is not None and time.time() >= self._ends_s

    def header(self, url: str) -> str:
        """Return the Cookie header of a request for this URL; empty for none."""
        if self._jar is None:
            return self._configured
        from urllib.request import Request

        request = Request(url)
        self._jar.add_cookie_header(request)
        self._note_end()
        own = request.get_header("Cookie") or ""
        names = {_name_of(pair) for pair in own.split(";")}
        configured = [pair.strip() for pair in self._configured.split(";") if _name_of(pair) not in names]
        return "; ".join([pair for pair in (*configured, own) if pair])

    def renew(self, url: str, lines: bytes) -> bytes:
        """Return the header lines of a request with the cookies of now."""
        others = [line for line in lines.split(b"\r\n") if line and not line.lower().startswith(b"cookie:")]
        cookie = self.header(url)
        own = [f"cookie: {cookie}".encode("latin-1", "replace")] if cookie else []
        return b"".join([line + b"\r\n" for line in (*others, *own)])

    def _note_end(self) -> None:
        ends_s = [cookie.expires for cookie in self._jar or () if cookie.expires is not None]
        self._ends_s = min(ends_s, default=None)


class _Answer:
    """An answer as `http.cookiejar` reads it."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._message = email.message.Message()
        for line in lines:
            self._message["Set-Cookie"] = line

    def info(self) -> email.message.Message:
        return self._message


def _name_of(pair: str) -> str:
    return pair.partition("=")[0].strip()
