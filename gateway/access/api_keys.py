"""API keys as bearer tokens: found by digest, so that no comparison leaks its progress."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import anyio

from gateway.access.principal import LOCAL, Principal
from gateway.config.auth import ApiKey

# Whoever holds a stream with a key that has expired loses it within this time; by the wall clock, which may jump.
_POLL_S: Final = 2.0
# Enough to tell a few thousand keys apart.
_SHOWN_CHARS: Final = 12


class _Key(NamedTuple):
    principal: Principal
    expires_s: float


class ApiKeys:
    """The keys of the configuration; without any, every caller is `local`.

    Attributes:
        revoked: The digests of keys that open nothing any more, though they may stand there.
        required: Whether callers must present a key; also where all keys have expired.
        withheld: Whether no key opens anything at present, because it is not known which ones were revoked.
    """

    def __init__(
        self, keys: Iterable[ApiKey], *, clock: Callable[[], float] = time.time, poll_s: float = _POLL_S
    ) -> None:
        """Take these keys.

        Args:
            keys: The keys.
            clock: Seconds since 1970.
            poll_s: How often keys that have expired are looked for.
        """
        self._poll_s = poll_s
        self._by_digest: dict[bytes, _Key] = {}
        self.required = self.withheld = False
        self._given: tuple[ApiKey, ...] = ()
        self.revoked: frozenset[str] = frozenset()
        self._expiring = False
        self._clock = clock
        self._on_change: list[Callable[[], None]] = []
        self.replace(keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Take other keys, at once."""
        self._given = tuple(keys)
        # Kept as expired: without any key everybody could call.
        self._by_digest = {
            digest: _Key(principal_of(key), 0.0 if self.withheld or digest.hex() in self.revoked else _expiry_s(key))
            for key in self._given
            for digest in [_digest_of(key)]
        }
        self.required = bool(self._by_digest)
        self._expiring = any(key.expires_s != math.inf for key in self._by_digest.values())
        self._changed()

    def revoke(self, digests: Iterable[str]) -> None:
        """Have these keys open nothing from now on, whatever the configuration says.

        Args:
            digests: Their SHA-256, in hexadecimal digits.
        """
        revoked = self.revoked | frozenset(digests)
        if revoked != self.revoked:
            self.revoked = revoked
            self.replace(self._given)

    def withhold(self) -> None:
        """Accept no key until `accept` is called."""
        self.withheld = True
        self.replace(self._given)

    def accept(self) -> None:
        """Accept the keys that were not revoked."""
        self.withheld = False
        self.replace(self._given)

    def has(self, digest: bytes) -> bool:
        """Return whether there is a key with this SHA-256, whether or not it is accepted."""
        return digest in self._by_digest

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have this called whenever keys were replaced, or one may have expired."""
        self._on_change.append(callback)

    def knows(self, principal: Principal) -> bool:
        """Whether a key of this principal is there and has not expired."""
        if not self._by_digest:
            return principal == LOCAL
        now_s = self._clock()
        return any(key.principal == principal and key.expires_s > now_s for key in self._by_digest.values())

    def principal(self, authorization: str | None) -> Principal | None:
        """Who an Authorization header speaks for; None when it proves nothing.

        Source: RFC 6750, section 2.1 "Authorization Request Header Field".
        """
        # Without keys nobody can be told apart, and `serve` listens on this machine only.
        if not self._by_digest:
            return LOCAL
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        # Fields are bytes, which were decoded one by one.
        return self.of_digest(hashlib.sha256(key.strip().encode("latin-1", "replace")).digest())

    def of_digest(self, digest: bytes) -> Principal | None:
        """Who has the key with this SHA-256; None for nobody, or where it has expired."""
        key = self._by_digest.get(digest)
        if key is None or (self._expiring and key.expires_s <= self._clock()):
            return None
        return key.principal

    async def run(self) -> None:
        """Notice keys that expire, until cancelled."""
        before_s = self._clock()
        while True:
            await anyio.sleep(self._poll_s)
            now_s = self._clock()
            if self._expiring and any(before_s < key.expires_s <= now_s for key in self._by_digest.values()):
                self._changed()
            before_s = now_s

    def _changed(self) -> None:
        for callback in self._on_change:
            callback()


def key_row(key: ApiKey) -> dict[str, Any]:
    """What may be shown of a key: never the key itself."""
    expired = key.expires is not None and key.expires <= datetime.now(UTC)
    return {
        "name": key.name,
        # Of one that stands in the file in plain text, its hash could be enough to guess it.
        "hash": None if key.key_hash is None else key.key_hash.removeprefix("sha256:")[:_SHOWN_CHARS],
        "state": "expired" if expired else "good",
        "profiles": "all" if key.profiles is None else ", ".join(key.profiles) or "none",
        "scopes": ", ".join(key.scopes) or "all",
        "groups": ", ".join(key.groups),
        "expires": None if key.expires is None else key.expires.isoformat(timespec="seconds"),
    }


def principal_of(key: ApiKey) -> Principal:
    """Whom a key stands for."""
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
