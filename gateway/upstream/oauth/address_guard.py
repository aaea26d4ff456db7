"""Which addresses requests of a sign-in may go to: what an upstream names must not open our network to it.

Every URL of a sign-in comes from the upstream, or from whom it names. A name is resolved once, every address that it
has is looked at, and one of those is dialled: it cannot mean another machine a moment later.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Final
from urllib.parse import urlsplit

from gateway.errors import GatewayError
from gateway.upstream.transport.http_client import Origin, split_url

_MAX_URL_CHARS: Final = 2_048
# The addresses of one name that are tried: providers give out eight at most.
_MAX_ADDRESSES: Final = 8
# Networks whose addresses hold one of IPv4: they lead to that one where the network translates.
_NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_LOCAL_NAMES: Final = frozenset({"localhost", "ip6-localhost", "ip6-loopback"})

Address = IPv4Address | IPv6Address


class AddressRefused(GatewayError):
    """A URL of a sign-in leads where none may lead; the text says why."""


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """What the sign-in to one upstream may reach.

    Attributes:
        loopback: Addresses of this machine too, and by plain http: the upstream itself is there.
        private_hosts: Names, addresses and networks that the operator allows although they are private, and by
            plain http.
    """

    loopback: bool = False
    private_hosts: tuple[str, ...] = ()

    def check_url(self, url: str) -> Origin:
        """What can be said of a URL without resolving it.

        Raises:
            AddressRefused: It is not to be requested, nor opened in a browser.
        """
        if len(url) > _MAX_URL_CHARS:
            raise AddressRefused("a URL of its metadata is too long")
        try:
            parts = urlsplit(url)
            origin, _ = split_url(url)
        except ValueError:
            raise AddressRefused(f"a URL of its metadata is no https URL: {url[:200]!r}") from None
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise AddressRefused("a URL of its metadata holds user information or a fragment")
        literal = _literal(origin.host)
        local = literal.is_loopback if literal is not None else origin.host.lower() in _LOCAL_NAMES
        if not origin.secure and not (local and self.loopback) and not self._is_listed(origin.host, literal):
            raise AddressRefused(f"{origin} is not https")
        if literal is not None:
            self._check_address(origin, literal)
        elif local and not self.loopback and not self._is_listed(origin.host, None):
            raise AddressRefused(f"{origin} is this machine")
        return origin

    async def resolve(self, origin: Origin) -> Sequence[str]:
        """The addresses to dial for an origin, each of which was looked at.

        Raises:
            AddressRefused: One of them is not to be dialled.
            OSError: There are none.
        """
        if (literal := _literal(origin.host)) is not None:
            self._check_address(origin, literal)
            return (str(literal),)
        found = await asyncio.get_running_loop().getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))[:_MAX_ADDRESSES]
        for address in addresses:
            self._check_address(origin, ipaddress.ip_address(address.partition("%")[0]))
        return addresses

    def _check_address(self, origin: Origin, address: Address) -> None:
        inner = _inner(address)
        if self._is_listed(origin.host, inner):
            return
        if inner.is_loopback:
            if not self.loopback:
                raise AddressRefused(f"{origin} leads to this machine")
            return
        if inner.is_link_local or inner.is_multicast or inner.is_unspecified or not inner.is_global:
            raise AddressRefused(f"{origin} leads to an address that is not public (auth.privateHosts allows one)")
        if not origin.secure:
            raise AddressRefused(f"{origin} is not https")

    def _is_listed(self, host: str, address: Address | None) -> bool:
        for entry in self.private_hosts:
            if entry.lower() == host.lower():
                return True
            if address is not None and (network := _network(entry)) is not None and address in network:
                return True
        return False


def guard_of(url: str, private_hosts: Sequence[str] = ()) -> AddressGuard:
    """The guard for an upstream at this URL, which the operator wrote."""
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
    """The address of IPv4 that one of IPv6 stands for; else itself."""
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
