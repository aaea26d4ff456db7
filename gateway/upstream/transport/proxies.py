"""Forward proxies and certificate authorities of our own connections, as the environment or an entry names them.

`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` mean what they mean to curl, Go and Python; the form in lower
case has precedence. Addresses of this machine are never reached through a proxy of the environment, as in Go: a proxy
elsewhere would reach itself.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from gateway.secrets import SECRETS

log = logging.getLogger(__name__)

ProxyChoice = str | Literal[False] | None
"""What an entry says: a URL, False for none, or None for what the environment says."""
EXPECTED: Final = "a URL as http://proxy.example.test:3128, or false"
_PORTS: Final = {"http": 80, "https": 443}
_LOOPBACK_NAMES: Final = frozenset({"localhost", "ip6-localhost", "ip6-loopback"})
_SEPARATORS: Final = re.compile(r"[,\s]+")
# Further certificates, as clients of other kinds read them. OpenSSL itself reads SSL_CERT_FILE and SSL_CERT_DIR.
_CA_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
# URLs of proxies, of which an environment has two or three.
_READ: Final = 256


@dataclass(frozen=True, slots=True)
class Proxy:
    """A forward proxy.

    Attributes:
        secure: Whether the connection to it is over TLS.
        authorization: The value of Proxy-Authorization; None where it wants none.
    """

    host: str
    port: int
    secure: bool = False
    authorization: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@lru_cache(_READ)
def read_proxy(text: str) -> Proxy:
    """Read the URL of a proxy; without a scheme it is spoken to over HTTP.

    Raises:
        ValueError: It is no URL of a proxy; the text says why, without the URL, which may hold a password.
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
        SECRETS.hide({one for one in (password, parts.password or "", authorization.partition(" ")[2]) if one})
    return Proxy(host, port or _PORTS[parts.scheme], parts.scheme == "https", authorization)


def proxy_for(host: str, port: int, *, secure: bool, choice: ProxyChoice = None) -> Proxy | None:
    """Return the proxy to reach a host through; None to connect to it directly.

    Args:
        host, port, secure: Whom to reach, and whether by https.
        choice: What the entry of the upstream says.
    """
    if choice is not None:
        return read_proxy(choice) if choice else None
    return _from_environment(host, port, secure, os.environ)


def _from_environment(host: str, port: int, secure: bool, environ: Mapping[str, str]) -> Proxy | None:
    for name in ("https_proxy" if secure else "http_proxy", "all_proxy"):
        # A CGI script gets request headers as variables, and HTTP_PROXY would be the header Proxy.
        upper = () if name == "http_proxy" and "REQUEST_METHOD" in environ else (name.upper(),)
        found = next((environ[one] for one in (name, *upper) if one in environ), None)
        if found is None:
            continue
        if not found.strip() or is_excluded(host, port, environ.get("no_proxy", environ.get("NO_PROXY", ""))):
            return None
        try:
            return read_proxy(found)
        except ValueError as error:
            _warn(f"{name} of the environment is not used: {error}")
            return None
    return None


def is_excluded(host: str, port: int, excluded: str) -> bool:
    """Return whether a host is reached directly: this machine, and what `NO_PROXY` lists.

    Args:
        host, port: Whom to reach.
        excluded: The value of NO_PROXY: names with all that is below them, addresses, networks and `*`, each perhaps
            with a port, separated by commas or spaces.
    """
    name = host.lower().rstrip(".")
    address = _address(name)
    if name in _LOOPBACK_NAMES or (address is not None and address.is_loopback):
        return True
    for entry in filter(None, _SEPARATORS.split(excluded.lower())):
        if entry == "*":
            return True
        listed, listed_port = _split_port(entry)
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


def tls_context() -> ssl.SSLContext:
    """Return what verifies servers: the system's certificates, and those that the environment adds."""
    context = ssl.create_default_context()
    for name in _CA_VARIABLES:
        path = os.environ.get(name)
        if not path:
            continue
        try:
            if Path(path).is_dir():
                context.load_verify_locations(capath=path)
            else:
                context.load_verify_locations(cafile=path)
        except (OSError, ssl.SSLError) as error:
            _warn(f"{name} is not used: {path} cannot be read ({error.strerror or error})")
    return context


@lru_cache(_READ)
def _warn(text: str) -> None:
    # Once for each text, and not with every connection.
    log.warning("%s", text)


def _split_port(entry: str) -> tuple[str, int | None]:
    if entry.startswith("["):
        inside, _, rest = entry[1:].partition("]")
        return inside, int(rest[1:]) if rest[1:].isdecimal() else None
    host, colon, port = entry.rpartition(":")
    if colon and ":" not in host and port.isdecimal():
        return host, int(port)
    return entry, None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None
