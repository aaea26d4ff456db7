"""Configure a cluster of replicas."""

from __future__ import annotations

import importlib.util
import ipaddress
import re
import socket
from collections.abc import Iterator
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, WithJsonSchema, field_validator, model_validator

from gateway.config.section import Count, Section, fault, not_boolean

EXTRA: Final = "cluster"
MIN_SECRET_CHARS: Final = 32
"""Minimum length of the secret that protects traffic between replicas: 128 bits as hexadecimal digits."""
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DOMAIN: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MAX_PORT: Final = 65_535
_MAX_DOMAIN_CHARS: Final = 253
# Suffixes that only private networks resolve.
_PRIVATE_SUFFIXES: Final = (".svc", ".local", ".internal", ".localhost", ".lan")
_SCHEMES: Final = ("redis", "rediss", "unix")


def _address(value: object) -> object:
    """Normalize HOST:PORT. A port without a host listens on every address of this machine."""
    not_boolean(value)
    text = str(value) if isinstance(value, int) else value
    if not isinstance(text, str):
        return value
    host, colon, port = text.rpartition(":")
    if not colon:
        host = "0.0.0.0"
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    is_valid = bare and not any(character.isspace() or character in "/@?#" for character in bare)
    if not is_valid or (":" in bare and bare == host) or not port.isascii() or not port.isdecimal():
        raise fault("is not an address", "HOST:PORT such as 0.0.0.0:8766, or a port")
    if len(port) > len(str(_MAX_PORT)) or int(port) > _MAX_PORT:
        raise fault("is not a port", f"a number from 0 to {_MAX_PORT}")
    return f"{host}:{int(port)}"


Address = Annotated[
    str, BeforeValidator(_address), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}]})
]


def host_and_port(address: str) -> tuple[str, int]:
    """Split a validated address into host and port."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _check_secret_length(value: SecretStr | None) -> SecretStr | None:
    if value is not None and len(value.get_secret_value()) < MIN_SECRET_CHARS:
        raise fault("is too short", f"at least {MIN_SECRET_CHARS} characters, such as from `openssl rand -hex 32`")
    return value


class DiscoveryConfig(Section):
    """How replicas find each other by name. Give either `dns` or `addresses`."""

    dns: str | None = None
    """Domain in which each replica has a host name, such as typegate-headless.tools.svc for the headless Service of a
    StatefulSet. It must also resolve replicas that are not ready (`publishNotReadyAddresses: true`)."""
    port: Count | None = Field(default=None, ge=1, le=_MAX_PORT)
    """Port of the replicas. By default the port of `listen`."""
    addresses: dict[str, Address] = Field(default_factory=dict)
    """HOST:PORT of each replica, by its name."""

    @field_validator("dns")
    @classmethod
    def _is_a_domain(cls, value: str | None) -> str | None:
        if value is not None and (not _DOMAIN.fullmatch(value) or len(value) > _MAX_DOMAIN_CHARS or ".." in value):
            raise fault("is not a domain", "the name of a headless Service such as typegate-headless.tools.svc")
        return value

    @model_validator(mode="after")
    def _is_one_way(self) -> DiscoveryConfig:
        if (self.dns is None) == (not self.addresses):
            what = "is missing" if self.dns is None else "cannot be combined with addresses"
            raise fault(what, "either dns or addresses", key="dns")
        if self.addresses and self.port is not None:
            raise fault("cannot be combined with addresses", "the port in each address", key="port")
        for name, address in self.addresses.items():
            if not _LABEL.fullmatch(name):
                what = f"has an invalid replica name ({name})"
                raise fault(what, "lower-case letters, digits and -", key="addresses")
            if host_and_port(address)[1] == 0:
                raise fault("has no port", "the port on which that replica listens", key=f"addresses.{name}")
        return self


class PeersConfig(Section):
    """Connections between replicas, which forward each request to the replica that has its session."""

    listen: Address
    """HOST:PORT, or a port, on which this replica accepts other replicas, never callers. Connections use TLS, and
    both sides need the secret."""
    secret: SecretStr
    """Secret shared by all replicas, at least 32 characters, such as "${file:/run/secrets/typegate-peers}"."""
    name: str | None = None
    """Unique name of this replica: lower-case letters, digits and -. The default is the host name, which in a
    StatefulSet is typegate-0, typegate-1 and so on."""
    discovery: DiscoveryConfig
    """How replicas find each other."""

    @field_validator("secret")
    @classmethod
    def _is_long(cls, value: SecretStr) -> SecretStr:
        _check_secret_length(value)
        return value

    @field_validator("name")
    @classmethod
    def _is_a_label(cls, value: str | None) -> str | None:
        if value is not None and not _LABEL.fullmatch(value):
            raise fault("is not a valid replica name", "at most 63 lower-case letters, digits and -, as in typegate-0")
        return value

    @model_validator(mode="after")
    def _has_a_name(self) -> PeersConfig:
        if self.name is None and not _LABEL.fullmatch(self.own_name):
            raise fault(f"is missing, and the host name is not valid here ({self.own_name})", "a name", key="name")
        return self

    @property
    def own_name(self) -> str:
        """The name of this replica."""
        return self.name if self.name is not None else socket.gethostname().partition(".")[0].lower()


class StoreConfig(Section):
    """A Valkey or Redis server for the state that replicas share, stored encrypted. Requires the extra `cluster`."""

    url: str
    """Address of the store: redis://HOST:PORT/DATABASE, rediss:// for TLS, or unix:///path/to/socket."""
    username: str | None = Field(default=None, min_length=1)
    """User name (ACL) at the store."""
    password: SecretStr | None = Field(default=None, min_length=1)
    """Password at the store. It must not be part of the URL, which is shown in messages."""
    ca_file: str | None = Field(default=None, min_length=1)
    """File of CA certificates to verify the store with, for rediss://. By default the certificates of the system."""
    prefix: str = "typegate"
    """Prefix of all keys and channels in the store, so that several gateways can use one store."""
    # A store in the same cluster answers within a millisecond. A store that takes this long counts as unavailable.
    timeout: Annotated[float, BeforeValidator(not_boolean), Field(gt=0, le=10)] = 0.5
    """Seconds to wait for each response of the store. Only calls of callers close to their quota wait
    for the store."""

    @field_validator("url")
    @classmethod
    def _is_address(cls, value: str) -> str:
        expected = "redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH"
        try:
            parts = urlsplit(value)
            is_valid = parts.scheme in _SCHEMES and bool(parts.path if parts.scheme == "unix" else parts.hostname)
            is_valid = is_valid and parts.port != 0 and not any(character.isspace() for character in value)
        except ValueError:  # for example, the port is not a number
            is_valid = False
        if not is_valid:
            raise fault("is not the address of a store", expected)
        if parts.username or parts.password:
            raise fault("contains a user or a password", "them under the keys username and password")
        if parts.query or parts.fragment:
            raise fault("has parameters", expected)
        if parts.scheme != "unix" and parts.path.strip("/") and not parts.path.strip("/").isdecimal():
            raise fault("has an invalid database", "its number, as in redis://HOST:PORT/0")
        return value

    @field_validator("prefix")
    @classmethod
    def _is_a_prefix(cls, value: str) -> str:
        if not _PREFIX.fullmatch(value):
            raise fault("is not a valid prefix", "at most 64 letters, digits, and . _ - after the first")
        return value

    @property
    def is_open(self) -> bool:
        """True if passwords and responses cross a public network in plain text."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        if parts.scheme != "redis":
            return False
        try:
            return not ipaddress.ip_address(host).is_private
        except ValueError:
            return "." in host and not host.endswith(_PRIVATE_SUFFIXES)


class ClusterConfig(Section):
    """Several replicas with one configuration behind one address. Changes take effect at the start only."""

    peers: PeersConfig | None = None
    """Connections between replicas. Without this key, the load balancer must always send a caller with a session
    (protocol versions up to 2025-11-25) to the same replica."""
    store: StoreConfig | None = None
    """Store for shared state: changes by administrators, notes, approvals, revoked keys, sign-ins and call counts.
    Without it, each replica has its own state."""
    signing_key: SecretStr | None = None
    """Key that signs task ids and request states, at least 32 characters. By default it is derived from
    `peers.secret`."""

    @field_validator("signing_key")
    @classmethod
    def _is_long(cls, value: SecretStr | None) -> SecretStr | None:
        return _check_secret_length(value)

    @model_validator(mode="after")
    def _has_a_secret(self) -> ClusterConfig:
        if self.peers is None and self.store is None and self.signing_key is None:
            raise fault("is empty", "peers, store, or both")
        if self.peers is None and self.signing_key is None:
            raise fault("is missing", "a signing key that all replicas share, or peers with a secret", key="signingKey")
        return self

    @property
    def warnings(self) -> Iterator[str]:
        """Settings that are valid but rarely intended."""
        if self.store is not None and self.store.is_open:
            yield "gateway.cluster.store.url: passwords are sent in plain text; expected rediss://"
        if self.store is None:
            yield "gateway.cluster: without a store, limits, approvals and changes apply to each replica separately"

    def missing_package(self) -> str | None:
        """Return the package that the store requires if it is not installed."""
        return "redis" if self.store is not None and importlib.util.find_spec("redis") is None else None
