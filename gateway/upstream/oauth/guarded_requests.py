"""Requests of a sign-in: guarded when they are dialled, bounded in size, time and redirects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl, urljoin, urlsplit

import anyio

from gateway import wire
from gateway.errors import ConnectionLost, GatewayError, HttpStatusError
from gateway.upstream.oauth.address_guard import AddressGuard, AddressRefused
from gateway.upstream.oauth.authorization import as_form
from gateway.upstream.oauth.tokens import CLIENT_ERRORS
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.transport.proxies import ProxyChoice

REQUEST_S: Final = 10.0
"""For one exchange with its redirects: what a browser's user waits for, and below the 30 s of a lock of the store."""
_CONNECT_S: Final = 5.0
# Metadata with every member that is registered has ten kilobytes; answers with tokens as much at most.
_MAX_BODY_BYTES: Final = 256 * 1024
# One to another host name, one to a path; more is a loop.
_MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_ACCEPT: Final = {"accept": "application/json"}
_ACCEPT_PAGE: Final = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
# What authorization endpoints answer to a client that they do not know. 403 and 404 have other causes more often.
_REFUSED: Final = frozenset({400, 401, 422})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back.

    Attributes:
        document: The body as JSON; None where it is none.
        nonce: What the next proof of possession has to repeat; empty for nothing.
    """

    status: int
    document: Any
    nonce: str = ""


class GuardedRequests:
    """Sends the requests of the sign-in to one upstream."""

    def __init__(self, guard: AddressGuard, proxy: ProxyChoice = None) -> None:
        self.guard = guard
        self._client = HttpClient(
            connect_timeout_s=_CONNECT_S, resolve=guard.resolve, follows_redirects=False, proxy=proxy
        )

    def close(self) -> None:
        """Drop every idle connection."""
        self._client.close()

    async def get_json(self, url: str) -> Answer:
        """Fetch metadata.

        Raises:
            AddressRefused: The URL, or one that it leads to, is not to be requested.
            GatewayError: There was no answer within the bounds.
        """
        for _ in range(_MAX_REDIRECTS + 1):
            status, location, body, _ = await self._exchange("GET", url, _ACCEPT, b"")
            if status not in _REDIRECTS:
                return Answer(status=status, document=_json(body))
            url = urljoin(url, location)
        raise HttpStatusError(status, "too many redirects")

    async def leads_on(self, url: str) -> bool:
        """Return whether an authorization endpoint takes a request: false where it says that it does not know us.

        Raises:
            AddressRefused: The URL is not to be requested.
        """
        try:
            status, location, _, _ = await self._exchange("GET", url, _ACCEPT_PAGE, b"")
        except AddressRefused:
            raise
        except GatewayError:
            return True  # whoever signs in will see
        error = parse_qs(urlsplit(location).query).get("error", [""])[0]
        return status not in _REFUSED and error not in CLIENT_ERRORS

    async def post_form(self, url: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Answer:
        """Post a form that may hold credentials: never beyond the URL itself.

        Raises:
            AddressRefused: The URL is not to be requested.
            GatewayError: There was no answer within the bounds.
        """
        head = {**_ACCEPT, "content-type": "application/x-www-form-urlencoded", **(headers or {})}
        status, _, body, nonce = await self._exchange("POST", url, head, as_form(form))
        return Answer(status=status, document=_json_or_form(body), nonce=nonce)

    async def post_json(self, url: str, document: Mapping[str, Any]) -> Answer:
        """Post a JSON document.

        Raises:
            AddressRefused: The URL is not to be requested.
            GatewayError: There was no answer within the bounds.
        """
        head = {**_ACCEPT, "content-type": "application/json"}
        status, _, body, _ = await self._exchange("POST", url, head, wire.dumps(document))
        return Answer(status=status, document=_json(body))

    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, str, bytes, str]:
        origin = self.guard.check_url(url)
        with anyio.move_on_after(REQUEST_S):
            try:
                async with self._client.send(method, url, headers, body) as response:
                    content = await response.read(_MAX_BODY_BYTES)
                    found = response.headers
                    return response.status, found.get("location", ""), content, found.get("dpop-nonce", "")
            except AddressRefused:
                raise
            except (GatewayError, ValueError) as error:
                raise ConnectionLost(f"{origin}: {error}", sent=True) from None
        raise ConnectionLost(f"{origin}: no answer within {REQUEST_S:g} s", sent=True)


def _json(body: bytes) -> Any:
    try:
        return wire.loads(body)
    except wire.MalformedJson:
        return None


def _json_or_form(body: bytes) -> Any:
    """Read the answer of a token endpoint; some that are older than RFC 6749 answer with a form."""
    document = _json(body)
    if document is None and body.lstrip()[:1] not in (b"<", b"{", b"["):
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
        document = dict(pairs) if any(name in ("access_token", "error") for name, _ in pairs) else None
    return document
