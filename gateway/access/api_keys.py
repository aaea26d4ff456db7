"""API keys as bearer tokens: found by digest, so that no comparison leaks its progress."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import anyio

from gateway.access.principal import LOCAL, Principal
from gateway.config.auth import ApiKey

# Whoever holds a stream with a key that has expired loses it within this time; by the wall clock, which may jump.
_POLL_S: Final = 2.0


class _Key(NamedTuple):
    principal: Principal
    expires_s: float


class ApiKeys:
    """The keys of the configuration; without any, every caller is `local`."""

    def __init__(self, keys: Iterable[ApiKey], *, clock: Callable[[], float] = time.time) -> None:
        """Take these keys.

        Args:
            keys: The keys.
            clock: Seconds since 1970.
        """
        self._by_digest: dict[bytes, _Key] = {}
        self._expiring = False
        self._clock = clock
        self._on_change: list[Callable[[], None]] = []
        self.replace(keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Take other keys, at once."""
        self._by_digest = {_digest_of(key): _Key(_principal(key), _expiry_s(key)) for key in keys}
        self._expiring = any(key.expires_s != math.inf for key in self._by_digest.values())
        self._changed()

    @property
    def required(self) -> bool:
        """Whether callers must present a key; also where all keys have expired."""
        return bool(self._by_digest)

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
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        # Fields are bytes, which were decoded one by one.
        key = self._by_digest.get(hashlib.sha256(token.strip().encode("latin-1", "replace")).digest())
        if key is None or (self._expiring and key.expires_s <= self._clock()):
            return None
        return key.principal

    async def run(self) -> None:
        """Notice keys that expire, until cancelled."""
        before_s = self._clock()
        while True:
            await anyio.sleep(_POLL_S)
            now_s = self._clock()
            if self._expiring and any(before_s < key.expires_s <= now_s for key in self._by_digest.values()):
                self._changed()
            before_s = now_s

    def _changed(self) -> None:
        for callback in self._on_change:
            callback()


def _principal(key: ApiKey) -> Principal:
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
