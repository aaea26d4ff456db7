"""The headers of requests to one server, and the cookies that this server sets.

Like httpx and the `fetch` of browsers, the gateway stores cookies. Source: RFC 6265, "HTTP State Management Mechanism".
"""

from __future__ import annotations

import email.message
import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from gateway.http.http_client import header_lines, split_url
from gateway.upstream.upstream_credentials import Credentials

if TYPE_CHECKING:
    from http.cookiejar import CookieJar

# RFC 6265, section 6.1: the minimum sizes that user agents should support, per cookie and per domain.
_MAX_COOKIE_CHARS: Final = 4_096
_MAX_COOKIES: Final = 50
# The syntax of Max-Age, from RFC 6265, section 5.2.2; 12 digits are enough for centuries.
_SECONDS: Final = re.compile(r"-?[0-9]{1,12}")


class Cookies:
    """The cookies of one server, which a URL identifies; cookies that other servers set are ignored.

    Attributes:
        version: A number that changes whenever `store` has applied cookies, so that `header` may return another value.
    """

    def __init__(self, url: str, configured: str = "") -> None:
        """Start with only the configured cookies.

        Args:
            url: The URL of the server.
            configured: The configured Cookie header. If the server sets a cookie with the same name as a configured
                cookie, the server's cookie is sent instead.
        """
        self._origin, _ = split_url(url)
        self._configured = configured
        self._jar: CookieJar | None = None
        self.version = 0
        self._ends_s: float | None = None

    def store(self, url: str, lines: Sequence[str]) -> None:
        """Apply the Set-Cookie headers of a response.

        Args:
            url: The URL of the request.
            lines: The values of the Set-Cookie headers.
        """
        if split_url(url)[0] != self._origin:
            return
        # Imported lazily: few servers set cookies, and these modules take 20 ms to import.
        from http.cookiejar import CookieJar
        from urllib.request import Request

        if self._jar is None:
            self._jar = CookieJar()
        host = self._origin.host
        answer = _Answer([_standard_line(line, host) for line in lines if len(line) <= _MAX_COOKIE_CHARS])
        self._jar.extract_cookies(answer, Request(url))  # type: ignore[arg-type] # only `info` is called
        for cookie in list(self._jar)[_MAX_COOKIES:]:
            self._jar.clear(cookie.domain, cookie.path, cookie.name)
        self._note_end()
        self.version += 1

    def is_due(self) -> bool:
        """Return whether a cookie has expired since the last call of `header`."""
        return self._ends_s is not None and time.time() >= self._ends_s

    def header(self, url: str) -> str:
        """Return the Cookie header of a request to this URL, or an empty string if there are no cookies."""
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
        """Return header lines in which the current cookies replace the cookies in `lines`.

        Args:
            url: The URL of the request.
            lines: The header lines of the request.
        """
        other_lines = [line for line in lines.split(b"\r\n") if line and not line.lower().startswith(b"cookie:")]
        cookie = self.header(url)
        own = [f"cookie: {cookie}".encode("latin-1", "replace")] if cookie else []
        return b"".join([line + b"\r\n" for line in (*other_lines, *own)])

    def _note_end(self) -> None:
        ends_s = [cookie.expires for cookie in self._jar or () if cookie.expires is not None]
        self._ends_s = min(ends_s, default=None)


def _standard_line(line: str, host: str) -> str:
    """Return a Set-Cookie header with only the valid attributes that RFC 6265 defines.

    Browsers ignore other attributes. `http.cookiejar` instead rejects cookies with an invalid or unknown attribute, and
    cookies whose domain has only one label.
    """
    pair, *following = line.split(";")
    attributes: dict[str, str] = {}
    for attribute in following:
        name, _, value = attribute.partition("=")
        attributes[name.strip().lower()] = value.strip()  # if an attribute is repeated, the last value applies
    domain = attributes.get("domain", "").lstrip(".").strip("[]").lower()
    is_valid = {
        "path": attributes.get("path", "").startswith("/"),
        "max-age": _SECONDS.fullmatch(attributes.get("max-age", "")) is not None,
        "domain": domain not in ("", host),  # not needed if the domain is the server's host
        "expires": "expires" in attributes,
    }
    recognized = [f"{name}={attributes[name]}" for name, valid in is_valid.items() if valid]
    return "; ".join([pair, *recognized, *(["Secure"] if "secure" in attributes else [])])


class _Answer:
    """The part of a response that `http.cookiejar` reads."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._message = email.message.Message()
        for line in lines:
            self._message["Set-Cookie"] = line

    def info(self) -> email.message.Message:
        return self._message


def _name_of(pair: str) -> str:
    return pair.partition("=")[0].strip()


# A call has up to three standard headers, which contain the version, the method and the name of the tool.
_STANDARD_HEADERS: Final = 3
# The maximum number of header blocks in each cache: enough for all tools that callers use at a time.
_MAX_KEPT: Final = 1_024
_POST_HEADERS: Final = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


# Headers that control the framing and encoding of a message. The configuration must not change these headers.
_OF_THE_CONNECTION: Final = frozenset({"accept-encoding", "connection", "content-length", "transfer-encoding"})


def standing_headers(configured: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Return the headers to send with every request. Names are in lower case, and a Host header comes first.

    Args:
        configured: The configured headers, which replace the defaults.
        ours: The default headers.
    """
    by_name = {name.lower(): value for name, value in configured.items()}
    host = {"host": by_name.pop("host")} if "host" in by_name else {}
    return {**host, **ours, **{name: value for name, value in by_name.items() if name not in _OF_THE_CONNECTION}}


def has_no_credentials(url: str, configured: Mapping[str, str]) -> bool:
    """Return whether the configuration contains no possible credentials: no headers, and no query in the URL."""
    return not configured and not urlsplit(url).query


class RequestHead:
    """The headers of requests: configured headers, credentials, protocol version and session.

    Attributes:
        session_id: The session that requests belong to, if the server uses sessions.
        version: The version of the credentials that the last call of `lines` used.
        cookies: The configured cookies, and the cookies that the server has set.
    """

    def __init__(self, url: str, headers: Mapping[str, str], credentials: Credentials | None) -> None:
        """Prepare the headers of requests to one URL.

        Args:
            url: The URL of the server.
            headers: The configured headers.
            credentials: The credentials that authenticate the gateway; None to send only the configured headers.
        """
        self._url = url
        self._has_no_credentials = has_no_credentials(url, headers)
        self._headers = standing_headers(headers, _POST_HEADERS)
        self.cookies = Cookies(url, self._headers.pop("cookie", ""))
        self._cookies_version = 0
        self._credentials = credentials
        self.session_id: str | None = None
        # The cached header lines of a request without extra headers; None if they have to be rendered again.
        self._lines: bytes | None = None
        # The cached header lines of requests with extra headers. The key is the `id` of the dict of extra headers. The
        # entry contains this dict, the value of `_lines` at that time, and the header lines.
        self._known: dict[int, tuple[dict[str, str], bytes, bytes]] = {}
        self.version = -1

    @property
    def is_anonymous(self) -> bool:
        """True if requests have no credentials in the URL or in headers."""
        return self._has_no_credentials and not (self._credentials is not None and self._credentials.headers)

    def use_version(self, version: str) -> None:
        """Send this protocol version with every later request."""
        # Servers with earlier versions do not know this header.
        # Source: MCP 2025-06-18, "Transports", "Protocol Version Header".
        if version >= "2025-06-18":
            self._headers["mcp-protocol-version"] = version
            self._lines = None

    def use_session(self, session_id: str | None) -> None:
        """Send this session id with every later request."""
        self.session_id, self._lines = session_id, None

    def fields(self, method: str) -> dict[str, str]:
        """Return the header fields of a request that does not use the cached lines.

        Args:
            method: The HTTP method, which a proof of possession (DPoP) has to contain.
        """
        return {**self._standing_headers(), **self._proof(method)}

    def stream_fields(self) -> dict[str, str]:
        """Return the header fields of a GET that opens an event stream."""
        fields = {**self.fields("GET"), "accept": "text/event-stream"}
        fields.pop("content-type", None)
        return fields

    def lines(self, extra: dict[str, str] | None) -> bytes:
        """Return the header lines of a POST.

        Args:
            extra: Headers of this request only. To use the cache, pass the same object for every call of a tool.
        """
        credentials = self._credentials
        if credentials is not None:
            if credentials.version != self.version:
                self.version = credentials.version
                self._lines = None
            if credentials.needs_proof and (proof := credentials.proof("POST", self._url)) is not None:
                return self._header_block({**(extra or {}), **proof}, usual=False)
        cookies = self.cookies
        if cookies.version != self._cookies_version or (cookies.version and cookies.is_due()):
            self._cookies_version, self._lines = cookies.version, None
        cached = self._known.get(id(extra))
        if cached is not None and cached[0] is extra and cached[1] is self._lines:
            return cached[2]
        if extra is not None and "traceparent" in extra:
            return self._header_block(extra, usual=False)
        header_block = self._header_block(extra, usual=True)
        if extra is not None and len(extra) <= _STANDARD_HEADERS and self._lines is not None:
            if len(self._known) >= _MAX_KEPT:
                self._known.clear()
            self._known[id(extra)] = extra, self._lines, header_block
        return header_block

    def _header_block(self, extra: dict[str, str] | None, *, usual: bool) -> bytes:
        # An extra header replaces a standing header with the same name, which is rare. If both were sent, the server
        # would reject the request or combine the values.
        if extra and not extra.keys().isdisjoint(self._headers):
            return header_lines({**self._standing_headers(), **extra})
        if self._lines is None:
            self._lines = header_lines(self._standing_headers())
        if not extra:
            return self._lines
        # If there are more extra headers, they include a trace context or proof of this request, so do not cache them.
        usual = usual and len(extra) <= _STANDARD_HEADERS
        return self._lines + (_lines_of(tuple(extra.items())) if usual else header_lines(extra))

    def _standing_headers(self) -> dict[str, str]:
        headers = self._headers
        if self._credentials is not None:
            headers = {**headers, **self._credentials.headers}
        if cookie := self.cookies.header(self._url):
            headers = {**headers, "cookie": cookie}
        return headers if self.session_id is None else {**headers, "mcp-session-id": self.session_id}

    def _proof(self, method: str) -> Mapping[str, str]:
        return (self._credentials.proof(method, self._url) or {}) if self._credentials is not None else {}


@lru_cache(maxsize=_MAX_KEPT)
def _lines_of(items: tuple[tuple[str, str], ...]) -> bytes:
    # The result is cached, because every call of a tool has the same items.
    return header_lines(dict(items))
