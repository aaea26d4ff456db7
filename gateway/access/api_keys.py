"""API keys as bearer tokens: found by digest, so that no comparison leaks its progress."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from gateway.access.principal import LOCAL, Principal
from gateway.config.model import ApiKey


class ApiKeys:
    """The keys of the configuration; without any, every caller is `local`."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._by_digest: dict[bytes, Principal] = {}
        self._on_change: list[Callable[[], None]] = []
        self.replace(keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Take other keys, at once."""
        self._by_digest = {
            _digest(key.key.get_secret_value()): Principal(name=key.name, scopes=frozenset(key.scopes)) for key in keys
        }
        for callback in self._on_change:
            callback()

    @property
    def required(self) -> bool:
        """Whether callers must present a key."""
        return bool(self._by_digest)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have this called whenever keys were replaced."""
        self._on_change.append(callback)

    def knows(self, principal: Principal) -> bool:
        """Whether a key of this principal is still there."""
        return principal in self._by_digest.values() if self._by_digest else principal == LOCAL

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
        return self._by_digest.get(_digest(token.strip()))

    async def run(self) -> None:
        """Return: keys change with the configuration only."""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
