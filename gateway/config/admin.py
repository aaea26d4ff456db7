"""Who may use the admin API, and where it listens."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, SecretStr, field_validator

from gateway.config.section import Section, fault, not_boolean

Role = Literal["viewer", "operator", "admin"]
ROLES: Final[tuple[Role, ...]] = ("viewer", "operator", "admin")
"""From the least to the most."""
# The kernel's bound is 108, or 104 on macOS, with the byte that ends it.
_MAX_SOCKET_PATH_BYTES: Final = 100
_MAX_PORT: Final = 65_535
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_OWNER: Final = "admin"


def _admin_address(value: object) -> object:
    """Check where the admin API is to listen; a port alone is one of loopback."""
    expected = "a port, HOST:PORT, or unix:/path/of/a/socket"
    not_boolean(value)
    text = str(value) if isinstance(value, int) else value
    if not isinstance(text, str):
        return value
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or "\0" in path or len(path.encode()) > _MAX_SOCKET_PATH_BYTES:
            raise fault("is no path of a socket", f"an absolute path of at most {_MAX_SOCKET_PATH_BYTES} bytes")
        return text
    host, colon, port = text.rpartition(":")
    if not colon:
        host = "127.0.0.1"
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    sound = bare and not any(character.isspace() or character in "/@?#" for character in bare)
    if not sound or (":" in bare and bare == host) or not port.isascii() or not port.isdecimal():
        raise fault("is no address", expected)
    if len(port) > len(str(_MAX_PORT)) or int(port) > _MAX_PORT:
        raise fault("is no port", f"one of 0 to {_MAX_PORT}")
    return f"{host}:{int(port)}"


class AdminToken(Section):
    """A further token of the admin API, for one person or program."""

    name: str = Field(min_length=1, max_length=64)
    """Name of whoever has it, in the record of changes."""
    token_hash: str
    """Its SHA-256, as `typegate key new` prints it: `sha256:` and 64 hexadecimal digits."""
    role: Role = "viewer"
    """What it allows: viewer, to look; operator, also to approve, refresh, disable and try; admin, everything."""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not name.isprintable() or name == _OWNER:
            raise fault("is no name of a token", f"letters, digits and signs, and not {_OWNER}")
        return name

    @field_validator("token_hash")
    @classmethod
    def _is_a_hash(cls, value: str) -> str:
        if not _HASH.fullmatch(value):
            raise fault("is no hash of a token", "sha256: and 64 hexadecimal digits, as `typegate key new` prints it")
        return value


class AdminConfig(Section):
    """Access to the admin API."""

    token: SecretStr | None = Field(default=None, min_length=1)
    """Bearer token of the admin API; the environment variable TYPEGATE_ADMIN_TOKEN takes precedence."""
    tokens: list[AdminToken] = Field(default_factory=list)
    """Further tokens, each with a role."""
    # Off, on loopback too: with it, whoever has the token runs programs as the user of the gateway.
    allow_commands: bool = False
    """Whether the admin API may add servers that are programs, or are described by files of this machine."""
    listen: Annotated[str, BeforeValidator(_admin_address)] | None = Field(
        default=None, json_schema_extra={"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}
    )
    """Where the admin API listens, instead of on the port of the callers: a port of this machine, HOST:PORT, or
    unix:/path/of/a/socket."""

    @field_validator("tokens")
    @classmethod
    def _no_name_twice(cls, tokens: list[AdminToken]) -> list[AdminToken]:
        names = [each.name for each in tokens]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise fault(f"gives the name {name} twice", "a name of its own for each", key=f"[{place}].name")
        return tokens

    @property
    def at_start(self) -> tuple[object, ...]:
        """What takes effect at the start only; the rest at once."""
        return self.token, self.listen
