"""The head of every request to one server: what is the same for each is written once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from gateway.upstream.credentials import Credentials
from gateway.upstream.transport.cookies import Cookies
from gateway.upstream.transport.http_client import header_lines

# Version, method and name; written headers that are kept are those of the tools in use.
_STANDARD_HEADERS: Final = 3
_MAX_KEPT: Final = 1_024
_POST_HEADERS: Final = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


# Those that say how a message is read from its connection, which is not a matter of configuration.
_OF_THE_CONNECTION: Final = frozenset({"accept-encoding", "connection", "content-length", "transfer-encoding"})


def standing_headers(configured: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of every request: those of the configuration in place of ours, names in lower case.

    A Host header is the first one.
    """
    named = {name.lower(): value for name, value in configured.items()}
    host = {"host": named.pop("host")} if "host" in named else {}
    return {**host, **ours, **{name: value for name, value in named.items() if name not in _OF_THE_CONNECTION}}


class RequestHead:
    """The headers of requests: those of the configuration, the credentials, the version and the session.

    Attributes:
        session_id: The session that requests belong to, where the server wants one.
        version: Of the credentials in the lines that were written last.
        cookies: Those of the configuration, and those that the server sets.
    """

    def __init__(self, url: str, headers: Mapping[str, str], credentials: Credentials | None) -> None:
        """Write heads.

        Args:
            url: Where requests go.
            headers: Those of the configuration.
            credentials: What proves who we are; None for nothing.
        """
        self._url = url
        self._headers = standing_headers(headers, _POST_HEADERS)
        self.cookies = Cookies(url, self._headers.pop("cookie", ""))
        self._cookies_version = 0
        self._credentials = credentials
        self.session_id: str | None = None
        # The head of a usual request, written once; None while it has to be written anew.
        self._lines: bytes | None = None
        # The same with the headers of one request, by the identity of those.
        self._known: dict[int, tuple[dict[str, str], bytes, bytes]] = {}
        self.version = -1

    def use_version(self, version: str) -> None:
        """Name the protocol version from now on."""
        # Source: MCP 2025-06-18, "Transports", "Protocol Version Header"; servers before it know no such header.
        if version >= "2025-06-18":
            self._headers["mcp-protocol-version"] = version
            self._lines = None

    def use_session(self, session_id: str | None) -> None:
        """Belong to this session from now on."""
        self.session_id, self._lines = session_id, None

    def fields(self, method: str) -> dict[str, str]:
        """The header fields of a request that is no usual one.

        Args:
            method: Of HTTP; a proof of the credentials is for one.
        """
        return {**self._standing(), **self._proof(method)}

    def stream_fields(self) -> dict[str, str]:
        """Those of a GET that asks for an event stream."""
        fields = {**self.fields("GET"), "accept": "text/event-stream"}
        fields.pop("content-type", None)
        return fields

    def lines(self, extra: dict[str, str] | None) -> bytes:
        """The header lines of a POST.

        Args:
            extra: The headers of this request alone; for all calls of a tool they should be one object.
        """
        credentials = self._credentials
        if credentials is not None:
            if credentials.version != self.version:
                self.version = credentials.version
                self._lines = None
            if credentials.proves and (proof := credentials.proof("POST", self._url)) is not None:
                return self._whole({**(extra or {}), **proof}, usual=False)
        cookies = self.cookies
        if cookies.version != self._cookies_version or (cookies.version and cookies.is_due()):
            self._cookies_version, self._lines = cookies.version, None
        known = self._known.get(id(extra))
        if known is not None and known[0] is extra and known[1] is self._lines:
            return known[2]
        if extra is not None and "traceparent" in extra:
            return self._whole(extra, usual=False)
        whole = self._whole(extra, usual=True)
        if extra is not None and len(extra) <= _STANDARD_HEADERS and self._lines is not None:
            if len(self._known) >= _MAX_KEPT:
                self._known.clear()
            self._known[id(extra)] = extra, self._lines, whole
        return whole

    def _whole(self, extra: dict[str, str] | None, *, usual: bool) -> bytes:
        # Rare: a header twice is an error, or means both values.
        if extra and not extra.keys().isdisjoint(self._headers):
            return header_lines({**self._standing(), **extra})
        if self._lines is None:
            self._lines = header_lines(self._standing())
        if not extra:
            return self._lines
        # Others hold the trace, or the proof, of one request.
        usual = usual and len(extra) <= _STANDARD_HEADERS
        return self._lines + (_lines_of(tuple(extra.items())) if usual else header_lines(extra))

    def _standing(self) -> dict[str, str]:
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
    # Of a tool they are the same with each call.
    return header_lines(dict(items))
