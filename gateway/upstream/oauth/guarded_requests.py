"""Send the HTTP requests of a sign-in: check addresses, and limit size, time and redirects.

The URLs of a sign-in come from the upstream or from a server that the upstream names, so they may point at internal
services. For each connection, the host name is resolved once, and the resulting addresses are checked. The connection
then uses one of the checked addresses, so that a later change of the DNS record has no effect.
"""

from __future__ import annotations

import asyncio
import codecs
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import anyio

from gateway.access.oauth.key_set import FETCH_S, Fetched
from gateway.http.http_client import HttpClient, Origin, split_url
from gateway.http.proxies import ProxyChoice
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import ConnectionLost, GatewayError, HttpStatusError

_MAX_URL_CHARS: Final = 2_048
# Maximum number of addresses to try for one name. Large providers return up to eight.
_MAX_ADDRESSES: Final = 8
# A NAT64 gateway translates an IPv6 address with one of these prefixes to the IPv4 address in the last 32 bits.
_NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_LOCAL_NAMES: Final = frozenset({"localhost", "ip6-localhost", "ip6-loopback"})

Address = IPv4Address | IPv6Address


class AddressRefused(GatewayError):
    """A URL of a sign-in points to an address that is not allowed; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """The addresses that the sign-in to one upstream may use.

    Attributes:
        loopback: Whether loopback addresses are allowed, even with plain HTTP, because the upstream's own address is a
            loopback address.
        private_hosts: Private names, addresses and networks that the operator allows, even with plain HTTP.
        setting: The configuration key of `private_hosts`, for messages.
        origin_of_urls: Where the URLs come from, for messages.
    """

    loopback: bool = False
    private_hosts: tuple[str, ...] = ()
    setting: str = "auth.privateHosts"
    origin_of_urls: str = "the metadata"

    def check_url(self, url: str) -> Origin:
        """Check a URL without resolving its host name, and return the origin (scheme, host and port).

        Raises:
            AddressRefused: The URL must not be requested or opened in a browser.
        """
        if len(url) > _MAX_URL_CHARS:
            raise AddressRefused(f"a URL in {self.origin_of_urls} is too long")
        try:
            parts = urlsplit(url)
            origin, _ = split_url(url)
        except ValueError:
            raise AddressRefused(f"a URL in {self.origin_of_urls} is not a valid https URL: {url[:200]!r}") from None
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise AddressRefused(f"a URL in {self.origin_of_urls} contains user information or a fragment")
        literal = _literal(origin.host)
        local = literal.is_loopback if literal is not None else origin.host.lower() in _LOCAL_NAMES
        if not origin.secure and not (local and self.loopback) and not self._is_listed(origin.host, literal):
            raise AddressRefused(f"{origin} does not use https")
        if literal is not None:
            self._check_address(origin, literal)
        elif local and not self.loopback and not self._is_listed(origin.host, None):
            raise AddressRefused(f"{origin} is a loopback address")
        return origin

    async def resolve(self, origin: Origin) -> Sequence[str]:
        """Resolve the host of an origin, check its first `_MAX_ADDRESSES` addresses, and return these addresses.

        Raises:
            AddressRefused: One of the addresses is not allowed.
            OSError: The host could not be resolved.
        """
        if (literal := _literal(origin.host)) is not None:
            self._check_address(origin, literal)
            return (str(literal),)
        entries = await asyncio.get_running_loop().getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))[:_MAX_ADDRESSES]
        for address in addresses:
            self._check_address(origin, ipaddress.ip_address(address.partition("%")[0]))
        return addresses

    def _check_address(self, origin: Origin, address: Address) -> None:
        inner = _inner(address)
        if self._is_listed(origin.host, inner):
            return
        if inner.is_loopback:
            if not self.loopback:
                raise AddressRefused(f"{origin} resolves to a loopback address")
            return
        if inner.is_link_local or inner.is_multicast or inner.is_unspecified or not inner.is_global:
            raise AddressRefused(
                f"{origin} resolves to an address that is not public; add the host to {self.setting} to allow it"
            )
        if not origin.secure:
            raise AddressRefused(f"{origin} does not use https")

    def _is_listed(self, host: str, address: Address | None) -> bool:
        for entry in self.private_hosts:
            if entry.lower() == host.lower():
                return True
            if address is not None and (network := _network(entry)) is not None and address in network:
                return True
        return False


def create_guard(url: str, private_hosts: Sequence[str] = ()) -> AddressGuard:
    """Return the guard for an upstream whose configured URL is `url`."""
    host = urlsplit(url).hostname or ""
    literal = _literal(host)
    local = literal.is_loopback if literal is not None else host.lower() in _LOCAL_NAMES
    return AddressGuard(loopback=local, private_hosts=tuple(private_hosts))


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _network(entry: str) -> ipaddress.IPv4Network | IPv6Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None


def _inner(address: Address) -> Address:
    """Return the IPv4 address embedded in an IPv6 address; otherwise the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in _NAT64):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


REQUEST_S: Final = 10.0
"""Timeout of one request. A user may wait for the response, and other processes may wait for the store lock that is
held during the request; they give up after 30 s."""
_CONNECT_S: Final = 5.0
# Limit for response bodies. Metadata with all registered members, and token responses, have up to ten kilobytes.
_MAX_BODY_BYTES: Final = 256 * 1024
# One redirect to another host and one to another path are common; more than three indicate a loop.
_MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_ACCEPT: Final = {"accept": "application/json"}
_ACCEPT_PAGE: Final = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthResponse:
    """An HTTP response.

    Attributes:
        document: The parsed body; None if the body is neither JSON nor, from a token endpoint, form-encoded.
        nonce: The nonce that the next DPoP proof must contain; empty if the server sent none.
    """

    status: int
    document: Any
    nonce: str = ""


class GuardedRequests:
    """Sends the requests of the sign-in to one upstream, and refuses URLs that the upstream's guard does not allow."""

    def __init__(self, guard: AddressGuard, proxy: ProxyChoice = None, *, timeout_s: float = REQUEST_S) -> None:
        self.guard = guard
        self._timeout_s = timeout_s
        self._client = HttpClient(
            connect_timeout_s=_CONNECT_S, resolve=guard.resolve, follows_redirects=False, proxy=proxy
        )

    def close(self) -> None:
        """Close all idle connections."""
        self._client.close()

    async def get_json(self, url: str) -> OAuthResponse:
        """Fetch a JSON document, following redirects.

        Raises:
            AddressRefused: The URL, or the target of a redirect, is not allowed.
            GatewayError: The request failed, or the response exceeds a limit.
        """
        for _ in range(_MAX_REDIRECTS + 1):
            status, location, body, _ = await self._exchange("GET", url, _ACCEPT, b"")
            if status not in _REDIRECTS:
                return OAuthResponse(status=status, document=_json(body))
            url = urljoin(url, location)
        raise HttpStatusError(status, "too many redirects")

    async def get_page(self, url: str) -> tuple[int, str]:
        """Open a page as a browser does, without following redirects; return the status and the Location header.

        Raises:
            AddressRefused: The URL is not allowed.
            GatewayError: The request failed, or the response exceeds a limit.
        """
        status, location, _, _ = await self._exchange("GET", url, _ACCEPT_PAGE, b"")
        return status, location

    async def post_form(
        self, url: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> OAuthResponse:
        """Post a form, which may contain credentials, without following redirects.

        Raises:
            AddressRefused: The URL is not allowed.
            GatewayError: The request failed, or the response exceeds a limit.
        """
        head = {**_ACCEPT, "content-type": "application/x-www-form-urlencoded", **(headers or {})}
        status, _, body, nonce = await self._exchange("POST", url, head, urlencode(form).encode("ascii"))
        return OAuthResponse(status=status, document=_json_or_form(body), nonce=nonce)

    async def post_json(self, url: str, document: Mapping[str, Any]) -> OAuthResponse:
        """Post a JSON document without following redirects.

        Raises:
            AddressRefused: The URL is not allowed.
            GatewayError: The request failed, or the response exceeds a limit.
        """
        head = {**_ACCEPT, "content-type": "application/json"}
        status, _, body, _ = await self._exchange("POST", url, head, json_bytes.dumps(document))
        return OAuthResponse(status=status, document=_json(body))

    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, str, bytes, str]:
        origin = self.guard.check_url(url)
        with anyio.move_on_after(self._timeout_s):
            try:
                async with self._client.send(method, url, headers, body) as response:
                    content = await response.read(_MAX_BODY_BYTES)
                    response_headers = response.headers
                    return (
                        response.status,
                        response_headers.get("location", ""),
                        content,
                        response_headers.get("dpop-nonce", ""),
                    )
            except AddressRefused:
                raise
            except (GatewayError, ValueError) as error:
                raise ConnectionLost(f"{origin}: {error}", sent=True) from None
        raise ConnectionLost(f"{origin}: no response within {self._timeout_s:g} s", sent=True)


def _json(body: bytes) -> Any:
    try:
        # Ignore a byte order mark, as `fetch` and httpx do.
        return json_bytes.loads(body.removeprefix(codecs.BOM_UTF8))
    except json_bytes.MalformedJson:
        return None


def _json_or_form(body: bytes) -> Any:
    """Parse the response of a token endpoint, which is form-encoded if the server is older than RFC 6749."""
    document = _json(body)
    if document is None and body.lstrip()[:1] not in (b"<", b"{", b"["):
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
        document = dict(pairs) if any(name in ("access_token", "error") for name, _ in pairs) else None
    return document


class IssuerFetch:
    """Sends requests to an issuer of access tokens, with a timeout."""

    def __init__(self, client: HttpClient, *, within_s: float = FETCH_S) -> None:
        self._client = client
        self._within_s = within_s

    async def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, limit_bytes: int
    ) -> Fetched:
        """Send a request and return the response.

        Raises:
            GatewayError: The request failed, or the body is larger than `limit_bytes`.
            TimeoutError: The request took longer than `within_s`.
        """
        try:
            with anyio.fail_after(self._within_s):
                async with self._client.send(method, url, headers, body) as response:
                    return Fetched(status=response.status, body=await response.read(limit_bytes))
        except TimeoutError:
            raise TimeoutError(f"no answer within {self._within_s:g} s") from None
