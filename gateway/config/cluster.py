"""Several gateways that serve as one: how they reach each other, and what they share."""

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
"""Of a secret that stands for the key of everything that gateways tell each other: 128 bits as hexadecimal digits."""
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DOMAIN: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MAX_PORT: Final = 65_535
_MAX_DOMAIN_CHARS: Final = 253
# Names that only a private network resolves.
_PRIVATE_SUFFIXES: Final = (".svc", ".local", ".internal", ".localhost", ".lan")
_SCHEMES: Final = ("redis", "rediss", "unix")


def _address(value: object) -> object:
    """Check HOST:PORT; a port alone is one of every address of this machine."""
    not_boolean(value)
    text = str(value) if isinstance(value, int) else value
    if not isinstance(text, str):
        return value
    host, colon, port = text.rpartition(":")
    if not colon:
        host = "0.0.0.0"
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    sound = bare and not any(character.isspace() or character in "/@?#" for character in bare)
    if not sound or (":" in bare and bare == host) or not port.isascii() or not port.isdecimal():
        raise fault("is no address", "HOST:PORT, as 0.0.0.0:8766, or a port")
    if len(port) > len(str(_MAX_PORT)) or int(port) > _MAX_PORT:
        raise fault("is no port", f"one of 0 to {_MAX_PORT}")
    return f"{host}:{int(port)}"


Address = Annotated[
    str, BeforeValidator(_address), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}]})
]


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of an address that was checked."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _secret(value: SecretStr | None) -> SecretStr | None:
    if value is not None and len(value.get_secret_value()) < MIN_SECRET_CHARS:
        raise fault("is too short", f"at least {MIN_SECRET_CHARS} characters, as `openssl rand -hex 32` prints")
    return value


class DiscoveryConfig(Section):
    """Where a gateway is found by its name."""

    dns: str | None = None
    """The domain in which each gateway has a name of its own, as the headless Service of a StatefulSet gives them:
    typegate-headless.tools.svc. It must have addresses of pods that are not ready, too."""
    port: Count | None = Field(default=None, ge=1, le=_MAX_PORT)
    """Their port; absent means that of `listen`."""
    addresses: dict[str, Address] = Field(default_factory=dict)
    """In place of dns, HOST:PORT of each gateway by its name."""

    @field_validator("dns")
    @classmethod
    def _is_a_domain(cls, value: str | None) -> str | None:
        if value is not None and (not _DOMAIN.fullmatch(value) or len(value) > _MAX_DOMAIN_CHARS or ".." in value):
            raise fault("is no domain", "the name of a headless Service, as typegate-headless.tools.svc")
        return value

    @model_validator(mode="after")
    def _is_one_way(self) -> DiscoveryConfig:
        if (self.dns is None) == (not self.addresses):
            what = "is missing" if self.dns is None else "stands beside addresses"
            raise fault(what, "either dns or addresses", key="dns")
        if self.addresses and self.port is not None:
            raise fault("stands beside addresses", "the port in each of them", key="port")
        for name, address in self.addresses.items():
            if not _LABEL.fullmatch(name):
                raise fault(f"names no gateway ({name})", "lower-case letters, digits and -", key="addresses")
            if host_and_port(address)[1] == 0:
                raise fault("has no port", "the one where that gateway listens", key=f"addresses.{name}")
        return self


class PeersConfig(Section):
    """The other gateways: requests of a session are carried to the one that has it."""

    listen: Address
    """HOST:PORT for other gateways, never for callers: TLS that only those with the secret can speak."""
    secret: SecretStr
    """What all of them know and nobody else, at least 32 characters, as "${file:/run/secrets/typegate-peers}"."""
    name: str | None = None
    """The name of this one, unlike any other: lower-case letters, digits and -. Absent means the host's name, which in
    a StatefulSet is typegate-0, typegate-1 and so on."""
    discovery: DiscoveryConfig
    """Where the others are."""

    @field_validator("secret")
    @classmethod
    def _is_long(cls, value: SecretStr) -> SecretStr:
        _secret(value)
        return value

    @field_validator("name")
    @classmethod
    def _is_a_label(cls, value: str | None) -> str | None:
        if value is not None and not _LABEL.fullmatch(value):
            raise fault("is no name", "lower-case letters, digits and -, 63 at most, as typegate-0")
        return value

    @model_validator(mode="after")
    def _has_a_name(self) -> PeersConfig:
        if self.name is None and not _LABEL.fullmatch(self.own_name):
            raise fault(f"is missing, and the host's name does not do ({self.own_name})", "a name", key="name")
        return self

    @property
    def own_name(self) -> str:
        """The name of this gateway."""
        return self.name if self.name is not None else socket.gethostname().partition(".")[0].lower()


class StoreConfig(Section):
    """A Valkey or Redis server with what all gateways know; needs the extra cluster. What is in it is encrypted."""

    url: str
    """Its address: redis://HOST:PORT/DATABASE, rediss:// with TLS, or unix:///path/of/a/socket."""
    username: str | None = Field(default=None, min_length=1)
    """The user of its access control list."""
    password: SecretStr | None = Field(default=None, min_length=1)
    """The password; not a part of the URL, which is shown."""
    ca_file: str | None = Field(default=None, min_length=1)
    """Certificates that its own is checked against, with rediss://; absent means those of the system."""
    prefix: str = "typegate"
    """What the names of its keys and of its channel begin with."""
    # A store in the same cluster answers within a millisecond: one that takes longer is as good as none.
    timeout: Annotated[float, BeforeValidator(not_boolean), Field(gt=0, le=10)] = 0.5
    """Seconds for each of its answers. Only calls of a caller that is close to its quota wait for them."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        expected = "redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH"
        try:
            parts = urlsplit(value)
            sound = parts.scheme in _SCHEMES and bool(parts.path if parts.scheme == "unix" else parts.hostname)
            sound = sound and parts.port != 0 and not any(character.isspace() for character in value)
        except ValueError:  # as for a port that is no number
            sound = False
        if not sound:
            raise fault("is no address", expected)
        if parts.username or parts.password:
            raise fault("has a user or a password", "them under the keys username and password")
        if parts.query or parts.fragment:
            raise fault("has parameters", expected)
        if parts.scheme != "unix" and parts.path.strip("/") and not parts.path.strip("/").isdecimal():
            raise fault("names no database", "its number, as redis://HOST:PORT/0")
        return value

    @field_validator("prefix")
    @classmethod
    def _is_a_prefix(cls, value: str) -> str:
        if not _PREFIX.fullmatch(value):
            raise fault("is no prefix", "letters, digits, and . _ - in between, 64 at most")
        return value

    @property
    def is_open(self) -> bool:
        """Whether passwords and answers travel in plain text beyond a private network."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        if parts.scheme != "redis":
            return False
        try:
            return not ipaddress.ip_address(host).is_private
        except ValueError:
            return "." in host and not host.endswith(_PRIVATE_SUFFIXES)


class ClusterConfig(Section):
    """Several gateways with one configuration behind one address. All take effect at the start only."""

    peers: PeersConfig | None = None
    """The other gateways. Without it sessions of the handshake era work only where a caller always reaches the same
    gateway."""
    store: StoreConfig | None = None
    """What they share beside the configuration: changes by administrators, notes, approvals, revoked keys, sign-ins
    and the count of calls. Without it each has its own."""
    signing_key: SecretStr | None = None
    """What ids of tasks and states of requests are signed with, at least 32 characters; absent means that it is derived
    from the secret of peers."""

    @field_validator("signing_key")
    @classmethod
    def _is_long(cls, value: SecretStr | None) -> SecretStr | None:
        return _secret(value)

    @model_validator(mode="after")
    def _has_a_secret(self) -> ClusterConfig:
        if self.peers is None and self.store is None and self.signing_key is None:
            raise fault("is empty", "peers, store, or both")
        if self.peers is None and self.signing_key is None:
            raise fault("is missing", "a signing key that all gateways have, or peers with a secret", key="signingKey")
        return self

    @property
    def warnings(self) -> Iterator[str]:
        """What is allowed and seldom meant."""
        if self.store is not None and self.store.is_open:
            yield "gateway.cluster.store.url: passwords travel in plain text; expected rediss://"
        if self.store is None:
            yield "gateway.cluster: without store, limits, approvals and changes are those of each gateway alone"

    def missing_package(self) -> str | None:
        """The package that the store needs and that is not installed."""
        return "redis" if self.store is not None and importlib.util.find_spec("redis") is None else None
