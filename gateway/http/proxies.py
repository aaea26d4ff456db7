"""Forward proxies and additional certificate authorities.

`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` have the same meaning as in curl, Go and Python; the lower-case
variables take precedence. As in Go, proxies of the environment are never used for loopback addresses: to the proxy, a
loopback address is an address of its own machine.

Source: RFC 9110, section 9.3.6 "CONNECT".
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import logging
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, cast
from urllib.parse import unquote, urlsplit

from gateway.process.secrets import SECRETS

log = logging.getLogger(__name__)

ProxyChoice = str | Literal[False] | None
"""The configured proxy: a URL, False for no proxy, or None for the proxy in the environment variables."""
EXPECTED: Final = "a URL such as http://proxy.example.test:3128, or false"
_PORTS: Final = {"http": 80, "https": 443}
_LOOPBACK_NAMES: Final = frozenset({"localhost", "ip6-localhost", "ip6-loopback"})
_SEPARATORS: Final = re.compile(r"[,;|\s]+")
# NO_PROXY may contain URLs. Only their host and port are used.
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://([^/?#]*).*")
# The maximum number of cached proxy URLs, and of logged warnings. An environment has two or three.
_MAX_CACHED: Final = 256


@dataclass(frozen=True, slots=True)
class Proxy:
    """A forward proxy.

    Attributes:
        secure: Whether to connect to the proxy over TLS.
        authorization: The value of Proxy-Authorization; None if the proxy needs no credentials.
    """

    host: str
    port: int
    secure: bool = False
    authorization: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@lru_cache(_MAX_CACHED)
def read_proxy(text: str) -> Proxy:
    """Parse the URL of a proxy; without a scheme, the proxy uses HTTP.

    Raises:
        ValueError: The URL is invalid. The message omits the URL, which may contain a password.
    """
    url = text.strip()
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in _PORTS:
        raise ValueError(f"it is a {parts.scheme} proxy, and only http and https proxies can be used")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not (url.isascii() and url.isprintable()) or " " in url:
        raise ValueError("it is not the URL of a proxy")
    authorization = None
    if parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
        authorization = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode('ascii')}"
        SECRETS.hide({secret for secret in (password, parts.password or "", authorization.partition(" ")[2]) if secret})
    return Proxy(host, port or _PORTS[parts.scheme], parts.scheme == "https", authorization)


def proxy_for(host: str, port: int, *, secure: bool, choice: ProxyChoice = None) -> Proxy | None:
    """Return the proxy for a connection to this host; None to connect directly.

    Args:
        secure: Whether the URL to request is https.
        choice: The proxy in the upstream's configuration.
    """
    if choice is not None:
        return read_proxy(choice) if choice else None
    return _from_environment(host, port, secure, os.environ)


def _from_environment(host: str, port: int, secure: bool, environ: Mapping[str, str]) -> Proxy | None:
    for name in ("https_proxy" if secure else "http_proxy", "all_proxy"):
        # CGI passes request headers as variables, so HTTP_PROXY may contain the request header `Proxy`. Ignore
        # HTTP_PROXY in a CGI process.
        upper = () if name == "http_proxy" and "REQUEST_METHOD" in environ else (name.upper(),)
        setting = next((environ[key] for key in (name, *upper) if key in environ), None)
        if setting is None:
            continue
        if not setting.strip() or is_excluded(host, port, environ.get("no_proxy", environ.get("NO_PROXY", ""))):
            return None
        try:
            return read_proxy(setting)
        except ValueError as error:
            warn_once(f"proxy of the environment ignored: {name}: {error}")
            return None
    return None


def is_excluded(host: str, port: int, excluded: str) -> bool:
    """Return whether to connect to a host without a proxy, because it is this machine or listed in `NO_PROXY`.

    Args:
        excluded: The value of NO_PROXY: names (which include their subdomains), addresses, networks and `*`, each with
            an optional port, separated by commas, semicolons, bars or spaces.
    """
    name = host.lower().rstrip(".")
    address = _address(name)
    if name in _LOOPBACK_NAMES or (address is not None and address.is_loopback):
        return True
    for entry in filter(None, _SEPARATORS.split(excluded.lower())):
        if entry == "*":
            return True
        listed, listed_port = _split_port(_URL.sub(r"\1", entry))
        if listed_port is not None and listed_port != port:
            continue
        if address is not None:
            network = _network(listed)
            if network is not None and address in network:
                return True
        listed = listed.removeprefix("*").strip(".")
        if listed and (name == listed or name.endswith(f".{listed}")):
            return True
    return False


@lru_cache(_MAX_CACHED)
def warn_once(text: str) -> None:
    """Log a warning unless it was logged before."""
    # `lru_cache` makes sure that each text is logged once, not for every connection.
    log.warning("%s", text)


def _split_port(entry: str) -> tuple[str, int | None]:
    if entry.startswith("["):
        inside, _, port_part = entry[1:].partition("]")
        return inside, int(port_part[1:]) if port_part[1:].isdecimal() else None
    host, colon, port = entry.rpartition(":")
    if colon and ":" not in host and port.isdecimal():
        return host, int(port)
    return entry, None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None


# The maximum size of a proxy's header block. Proxies send a few hundred bytes.
_MAX_HEAD_BYTES: Final = 16 * 1024
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: ([^\r\n]*))?\r?\n")
_INTERIM: Final = re.compile(rb"\A(?:HTTP/1\.[01] 1\d\d[^\n]*\n(?:[^\r\n][^\n]*\n)*\r?\n)+")
_WANTS_CREDENTIALS: Final = 407


async def open_tunnel(proxy: Proxy, host: str, port: int, protocol: asyncio.Protocol, context: ssl.SSLContext) -> None:
    """Connect a protocol to a host through a proxy.

    Args:
        protocol: The protocol; `connection_made` is called after the TLS handshake with the host.
        context: The TLS context for the host, and for a proxy that uses TLS.

    Raises:
        OSError: The proxy or the host cannot be reached, or the proxy rejects the request.
    """
    loop = asyncio.get_running_loop()
    transport, connect = await loop.create_connection(
        lambda: _Connect(proxy, host, port),
        proxy.host,
        proxy.port,
        ssl=context if proxy.secure else None,
        server_hostname=proxy.host if proxy.secure else None,
    )
    try:
        await connect.answered
        secured = await loop.start_tls(cast(asyncio.WriteTransport, transport), protocol, context, server_hostname=host)
    except BaseException:
        transport.abort()
        raise
    if secured is None:
        raise OSError("the connection was lost during the handshake")
    protocol.connection_made(secured)


class _Connect(asyncio.Protocol):
    """Requests a tunnel from the proxy.

    Attributes:
        answered: A future that is done once the tunnel is open, and raises `OSError` if the proxy does not open it.
    """

    def __init__(self, proxy: Proxy, host: str, port: int) -> None:
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {authority} HTTP/1.1", f"host: {authority}"]
        if proxy.authorization is not None:
            lines.append(f"proxy-authorization: {proxy.authorization}")
        self._request = "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1", "replace")
        self._head = b""
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._head = _INTERIM.sub(b"", self._head + data)
        if b"\r\n\r\n" not in self._head and b"\n\n" not in self._head:
            if len(self._head) > _MAX_HEAD_BYTES:
                self._fail("it does not answer with HTTP")
            return
        status_line = _STATUS_LINE.match(self._head)
        if status_line is None:
            self._fail("it does not answer with HTTP")
        elif status_line[1][:1] == b"2":
            if not self.answered.done():
                self.answered.set_result(None)
        else:
            status = int(status_line[1])
            hint = ": it requires a user name and a password" if status == _WANTS_CREDENTIALS else ""
            self._fail(f"it answers HTTP {status} to CONNECT{hint}")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(str(error) if error is not None else "it closed the connection")

    def _fail(self, reason: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(OSError(reason))
            # Retrieve the exception, so that asyncio does not log it if the waiting task was cancelled.
            self.answered.exception()
