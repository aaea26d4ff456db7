"""API keys as bearer tokens: found by digest, so that no comparison leaks its progress."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from gateway.access.principal import LOCAL, Principal
from gateway.config.model import ApiKey


class ApiKeys:
    """The keys of the configuration; without any, every caller is `local`."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._by_digest = {
            hashlib.sha256(key.key.get_secret_value().encode()).digest(): Principal(
                name=key.name, scopes=frozenset(key.scopes)
            )
            for key in keys
        }

    @property
    def required(self) -> bool:
        """Whether callers must present a key."""
        return bool(self._by_digest)

    def principal(self, authorization: str | None) -> Principal | None:
        """Who an Authorization header speaks for; None when it proves nothing.

        Source: RFC 6750, section 2.1 "Authorization Request Header Field".
        """
        if not self._by_digest:
            return LOCAL
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        return self._by_digest.get(hashlib.sha256(token.strip().encode()).digest())
