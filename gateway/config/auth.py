"""Who may call: keys, and what each of them opens."""

from __future__ import annotations

import math
import re
import string
from datetime import UTC, date, datetime, time
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, SecretStr, WithJsonSchema, field_validator, model_validator

from gateway.config.issuers import OAuthConfig
from gateway.config.section import Section, fault, suggestion

SCOPES: Final = ("tools", "tools:read", "prompts", "prompts:read", "resources", "resources:read", "metrics")
"""What a key may be restricted to; `tools:read` is what is marked as changing nothing."""
STRONG_BITS: Final = 128
"""Keys below this can be found by trying: what NIST SP 800-131A asks of a symmetric key."""
KEY_PREFIX: Final = "tg_"
"""What our keys begin with, so that scanners of repositories and logs find one that was left behind."""
RESERVED_NAMES: Final = ("local", "stdio")
"""What callers without a key are called in rules and records, and how those came that did not come over the network."""
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_WILDCARDS: Final = frozenset("*?[]")


def _moment(value: object) -> object:
    """Read an ISO date or time; a date alone ends with its day, and all are in UTC unless they say otherwise."""
    if not isinstance(value, str):
        raise fault("is no date", "a date or a time, as 2027-01-31 or 2027-01-31T12:00:00Z")
    try:
        if len(value) == len("2027-01-31"):
            return datetime.combine(date.fromisoformat(value), time.max, UTC)
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise fault("is no date", "a date or a time, as 2027-01-31 or 2027-01-31T12:00:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


class ApiKey(Section):
    """A key that callers may present."""

    name: str = Field(min_length=1, max_length=256)
    """Name of the caller: the principal in logs, quotas and conditions of hooks. Two keys may have one name while one
    takes the place of the other."""
    key: SecretStr | None = Field(default=None, min_length=1)
    """The key, sent as `Authorization: Bearer KEY`; or give keyHash."""
    key_hash: str | None = None
    """Its SHA-256, as `typegate key new` prints it: `sha256:` and 64 hexadecimal digits. The file then holds no
    secret."""
    profiles: list[str] | None = None
    """Names of the profiles that it opens, `default` for /mcp; absent means all. Others answer as if they were not
    there."""
    scopes: list[str] = Field(default_factory=list)
    """What the key may be used for; empty means everything. `tools:read` is the tools that are marked as read-only;
    prompts and resources are only ever read."""
    groups: list[str] = Field(default_factory=list)
    """Groups that its caller belongs to."""
    expires: Annotated[
        datetime | None,
        BeforeValidator(lambda value: None if value is None else _moment(value)),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ] = None
    """Until when it is good: a date, to its end in UTC, or a time."""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        # It stands in logs, one line each, and a line break tells the names of tokens from those of keys.
        if not name.isprintable():
            raise fault("holds a character that cannot be shown", "a name in letters, digits and signs")
        if name.strip().casefold() in RESERVED_NAMES:
            what = f"is reserved ({name}) for callers without a key"
            raise fault(what, f"another name than {' and '.join(RESERVED_NAMES)}")
        if not name.strip() or not _WILDCARDS.isdisjoint(name):
            # A rule about this name would be a pattern for others.
            raise fault("is no name of a caller", "a name without *, ?, [ and ], which are patterns in rules")
        return name

    @field_validator("key_hash")
    @classmethod
    def _is_a_hash(cls, value: str | None) -> str | None:
        if value is not None and not _HASH.fullmatch(value):
            raise fault("is no hash of a key", "sha256: and 64 hexadecimal digits, as `typegate key new` prints it")
        return value

    @field_validator("scopes")
    @classmethod
    def _scopes_are_known(cls, scopes: list[str]) -> list[str]:
        for place, scope in enumerate(scopes):
            if scope not in SCOPES:
                raise fault(f"is no scope ({scope})", suggestion(scope, list(SCOPES)), key=f"[{place}]")
        return scopes

    @model_validator(mode="after")
    def _has_one_secret(self) -> ApiKey:
        if (self.key is None) == (self.key_hash is None):
            what = "is missing" if self.key is None else "stands beside keyHash"
            raise fault(what, "either key or keyHash", key="key")
        return self

    @property
    def bits(self) -> float:
        """How hard the key is to guess, at most, judged by its length and the kinds of its characters."""
        text = self.key.get_secret_value() if self.key is not None else ""
        if self.key is None:
            return math.inf
        kinds = (string.digits, "abcdef", "ghijklmnopqrstuvwxyz", "ABCDEF", "GHIJKLMNOPQRSTUVWXYZ")
        letters = sum(len(kind) for kind in kinds if any(character in kind for character in text))
        others = len({character for character in text if character not in string.ascii_letters + string.digits})
        return len(text) * math.log2(max(letters + others, 2))


class AuthConfig(Section):
    """Who may call. Without keys and issuers, everyone who can reach the port."""

    api_keys: list[ApiKey] = Field(default_factory=list)
    """Keys of callers. Without any, and without oauth, everyone who can reach the port may call."""
    oauth: OAuthConfig | None = None
    """Access tokens that callers may present, of authorization servers (OAuth 2.1)."""

    @property
    def required(self) -> bool:
        """Whether callers have to say who they are."""
        return bool(self.api_keys) or self.oauth is not None

    @field_validator("api_keys")
    @classmethod
    def _no_two_alike(cls, keys: list[ApiKey]) -> list[ApiKey]:
        rights: dict[str, Any] = {}
        for place, key in enumerate(keys):
            own = (key.profiles, sorted(key.scopes), sorted(key.groups))
            # Whoever has the name owns its sessions: both keys have to open the same.
            if rights.setdefault(key.name, own) != own:
                what = f"gives the name {key.name} to keys with other profiles, scopes or groups"
                raise fault(what, "the same for all keys of one name", key=f"[{place}].name")
        # One key for two callers would make the second one act, and be logged, as the first.
        plain = [key.key.get_secret_value() for key in keys if key.key is not None]
        if len(set(plain)) < len(plain) or len({key.key_hash for key in keys if key.key is None}) < len(keys) - len(
            plain
        ):
            raise fault("gives one key twice", "each key once")
        return keys

    @model_validator(mode="after")
    def _names_are_told_apart(self) -> AuthConfig:
        for issuer in self.oauth.issuers if self.oauth is not None else ():
            for place, key in enumerate(self.api_keys):
                if key.name.casefold().endswith(f"@{issuer.name}".casefold()):
                    # A person of that issuer would be taken for the key, or the key for her.
                    what = f"is named as callers of {issuer.issuer} are"
                    raise fault(what, f"a name without @{issuer.name}", key=f"apiKeys[{place}].name")
        return self
