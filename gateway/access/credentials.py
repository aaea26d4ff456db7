"""Authenticate an Authorization header as an API key or an access token."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import anyio

from gateway.access.oauth.access_tokens import Tokens
from gateway.access.principal import LOCAL, Principal, Refusal, UnverifiedCredentials
from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.auth_config import ApiKey, AuthConfig

# Interval of the check for expired keys, and thus the longest time that a stream stays open after its key has expired.
# A timer for each expiry would be wrong after the wall clock was adjusted.
_POLL_S: Final = 2.0
# Hexadecimal digits of a key's hash in `key_row`: enough to distinguish a few thousand keys.
_SHOWN_CHARS: Final = 12


class _Key(NamedTuple):
    principal: Principal
    expires_s: float


class ApiKeys:
    """The configured API keys. If no key is configured, every caller is `local`.

    Attributes:
        revoked: SHA-256 digests of revoked keys, in hexadecimal. A revoked key is rejected even if it is configured.
        required: True if callers must present a key. This does not change when all keys have expired.
        withheld: True while all keys are rejected, because the list of revoked keys is not available yet.
    """

    def __init__(
        self, keys: Iterable[ApiKey], *, clock: Callable[[], float] = time.time, poll_s: float = _POLL_S
    ) -> None:
        """Load the keys.

        Args:
            clock: Returns seconds since 1970.
            poll_s: Interval of the check for expired keys, in seconds.
        """
        self._poll_s = poll_s
        self._by_digest: dict[bytes, _Key] = {}
        self.required = self.withheld = False
        self._configured_keys: tuple[ApiKey, ...] = ()
        self.revoked: frozenset[str] = frozenset()
        self._clock = clock
        self._on_change: list[Callable[[], None]] = []
        self.replace(keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Replace all keys at once."""
        self._configured_keys = tuple(keys)
        # Store rejected keys as expired instead of dropping them: without any keys, every caller would be accepted.
        self._by_digest = {
            digest: _Key(principal_of(key), 0.0 if self.withheld or digest.hex() in self.revoked else _expiry_s(key))
            for key in self._configured_keys
            for digest in [_digest_of(key)]
        }
        self.required = bool(self._by_digest)
        self._notify_changed()

    def revoke(self, digests: Iterable[str]) -> None:
        """Reject these keys from now on, even if the configuration contains them.

        Args:
            digests: SHA-256 digests, in hexadecimal.
        """
        revoked = self.revoked | frozenset(digests)
        if revoked != self.revoked:
            self.revoked = revoked
            self.replace(self._configured_keys)

    def withhold(self) -> None:
        """Reject all keys until `accept` is called."""
        self.withheld = True
        self.replace(self._configured_keys)

    def accept(self) -> None:
        """Accept all keys that are not revoked."""
        self.withheld = False
        self.replace(self._configured_keys)

    def has(self, digest: bytes) -> bool:
        """Return whether a key with this SHA-256 digest is configured, even if the key is rejected."""
        return digest in self._by_digest

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever keys were replaced or may have expired."""
        self._on_change.append(callback)

    def knows(self, principal: Principal) -> bool:
        """Return whether the principal has an accepted key. If no keys are configured, only `local` is accepted."""
        if not self._by_digest:
            return principal == LOCAL
        now_s = self._clock()
        return any(key.principal == principal and key.expires_s > now_s for key in self._by_digest.values())

    def find_by_text(self, key: str) -> Principal | None:
        """Return the owner of a key; None if the key is unknown, revoked or expired."""
        return self.find_by_digest(hashlib.sha256(key.strip().encode("utf-8", "replace")).digest())

    def find_by_digest(self, digest: bytes) -> Principal | None:
        """Return the owner of the key with this SHA-256 digest; None if the key is unknown, revoked or expired."""
        key = self._by_digest.get(digest)
        return None if key is None or key.expires_s <= self._clock() else key.principal

    async def run(self) -> None:
        """Call the callbacks of `on_change` when a key expires, until cancelled."""
        before_s = self._clock()
        while True:
            await anyio.sleep(self._poll_s)
            now_s = self._clock()
            if any(before_s < key.expires_s <= now_s for key in self._by_digest.values()):
                self._notify_changed()
            before_s = now_s

    def _notify_changed(self) -> None:
        for callback in self._on_change:
            callback()


def key_row(key: ApiKey) -> dict[str, Any]:
    """Return the properties of a key that administrators may see, without the key itself."""
    expired = key.expires is not None and key.expires <= datetime.now(UTC)
    return {
        "name": key.name,
        # Omit the hash of a plain-text key: a weak key could be guessed from it.
        "hash": None if key.key_hash is None else key.key_hash.removeprefix("sha256:")[:_SHOWN_CHARS],
        "state": "expired" if expired else "good",
        "profiles": "all" if key.profiles is None else ", ".join(key.profiles) or "none",
        "scopes": ", ".join(key.scopes) or "all",
        "groups": ", ".join(key.groups),
        "expires": None if key.expires is None else key.expires.isoformat(timespec="seconds"),
    }


def principal_of(key: ApiKey) -> Principal:
    """Return the principal of a key."""
    return Principal(
        name=key.name,
        scopes=frozenset(key.scopes),
        groups=frozenset(key.groups),
        profiles=None if key.profiles is None else frozenset(key.profiles),
    )


def _expiry_s(key: ApiKey) -> float:
    return math.inf if key.expires is None else key.expires.timestamp()


def _digest_of(key: ApiKey) -> bytes:
    if key.key is not None:
        return hashlib.sha256(key.key.get_secret_value().encode()).digest()
    return bytes.fromhex((key.key_hash or "").removeprefix("sha256:"))


# The number of cached digests, enough for the headers of a few minutes, and the maximum length of a cached header.
_MAX_CACHED: Final = 512
_MAX_CACHED_CHARS: Final = 4_096


def _bearer_digest(authorization: str) -> bytes | None:
    """Return the SHA-256 digest of the key or token in an Authorization header; None for another scheme."""
    scheme, _, text = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return None
    # Keys are looked up by digest, so that timing does not leak a key. Header values are bytes decoded as Latin-1, and
    # bytes of a key in UTF-8 may look like spaces there.
    return hashlib.sha256(text.strip(" \t").encode("latin-1", "replace")).digest()


_cached_bearer_digest: Final = lru_cache(_MAX_CACHED)(_bearer_digest)
_NO_KEY: Final = Refusal(description="a valid API key is needed")
_WITHHELD: Final = Refusal(
    status=503,
    description="it is not known yet which keys were revoked, because the shared store cannot be reached",
    retry_after_s=2,
)
_NO_TOKEN: Final = Refusal(description="an access token is needed", bearer_of_token=True)


class Credentials(Reconfigurable):
    """Authenticates callers by API key or access token. If neither is configured, every caller is `local`."""

    def __init__(self, keys: ApiKeys, tokens: Tokens) -> None:
        self.keys = keys
        self.tokens = tokens

    async def validate(self, change: ConfigChange) -> Apply:
        before, after = change.before.gateway.auth, change.after.gateway.auth
        return partial(self.replace, after, issuers_changed=after.oauth != before.oauth)

    def replace(self, config: AuthConfig, *, issuers_changed: bool) -> None:
        """Replace the keys, and the issuers if they changed."""
        if issuers_changed:
            self.tokens.replace(config.oauth)
        self.keys.replace(config.api_keys)

    @property
    def required(self) -> bool:
        """True if callers must present credentials at all."""
        return self.keys.required or self.tokens.accepted

    @property
    def accepts_tokens(self) -> bool:
        """True if access tokens are accepted."""
        return self.tokens.accepted

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever credentials may have become invalid."""
        self.keys.on_change(callback)
        self.tokens.on_change(callback)

    def knows(self, principal: Principal) -> bool:
        """Return whether a caller's streams may stay open: the credentials are neither revoked nor expired."""
        if principal.issuer:
            return self.tokens.knows(principal)
        # If issuers are configured, `local` is no longer a valid caller.
        return self.keys.knows(principal) and not (principal is LOCAL and self.tokens.accepted)

    def may_finish(self, principal: Principal) -> bool:
        """Return whether a caller's running requests may finish. An expired access token does not prevent this."""
        return self.tokens.may_finish(principal) if principal.issuer else self.knows(principal)

    def principal(self, authorization: str | None) -> Principal | Refusal | UnverifiedCredentials:
        """Authenticate an Authorization header.

        Source: RFC 6750, section 2.1 "Authorization Request Header Field".
        """
        keys, tokens = self.keys, self.tokens
        # Without configured credentials every caller is local; `serve` then listens on this machine only.
        if not keys.required and not tokens.accepted:
            return LOCAL
        header = authorization or ""
        digest = _cached_bearer_digest(header) if len(header) <= _MAX_CACHED_CHARS else _bearer_digest(header)
        if digest is None:
            return _NO_TOKEN if tokens.accepted else _NO_KEY
        holder = keys.find_by_digest(digest)
        if holder is not None:
            return holder
        if keys.withheld and keys.has(digest):
            return _WITHHELD
        return tokens.principal(header.partition(" ")[2].strip(), digest) if tokens.accepted else _NO_KEY

    async def run(self) -> None:
        """Watch for expired keys and tokens, and refresh the issuers' keys, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.keys.run)
            group.start_soon(self.tokens.run)
