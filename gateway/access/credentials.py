"""Who an Authorization header speaks for: the holder of a key, or of a token."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

import anyio

from gateway.access.api_keys import ApiKeys
from gateway.access.authenticator import Refusal, Unverified
from gateway.access.oauth.tokens import Tokens
from gateway.access.principal import LOCAL, Principal
from gateway.config.auth import AuthConfig

# Headers of the callers of some minutes; a token has 400 to 2,000 characters.
_MAX_KEPT: Final = 512
_MAX_KEPT_CHARS: Final = 4_096
_NO_KEY: Final = Refusal(description="a valid API key is needed")
_WITHHELD: Final = Refusal(
    status=503,
    description="it is not known yet which keys were revoked, because the shared store cannot be reached",
    retry_after_s=2,
)
_NO_TOKEN: Final = Refusal(description="an access token is needed", bearer_of_token=True)


class Credentials:
    """API keys and access tokens; an `Authenticator`. Where neither is configured, every caller is `local`.

    Attributes:
        keys: The keys.
        tokens: The tokens.
    """

    def __init__(self, keys: ApiKeys, tokens: Tokens) -> None:
        self.keys = keys
        self.tokens = tokens
        # Of headers that came before, by their identity: the head of a request is often that of an earlier one.
        self._digests: dict[int, tuple[str, bytes]] = {}

    def replace(self, config: AuthConfig, *, issuers_changed: bool) -> None:
        """Take other keys and issuers, at once."""
        if issuers_changed:
            self.tokens.replace(config.oauth)
        self.keys.replace(config.api_keys)

    @property
    def required(self) -> bool:
        """Whether callers must present credentials at all."""
        return self.keys.required or self.tokens.accepted

    @property
    def accepts_tokens(self) -> bool:
        """Whether there are issuers whose tokens are accepted."""
        return self.tokens.accepted

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have this called whenever callers may have lost their credentials."""
        self.keys.on_change(callback)
        self.tokens.on_change(callback)

    def knows(self, principal: Principal) -> bool:
        """Whether a caller who was admitted may keep its streams."""
        if principal.issuer:
            return self.tokens.knows(principal)
        # Where there are issuers nobody is local any more.
        return self.keys.knows(principal) and not (principal is LOCAL and self.tokens.accepted)

    def may_finish(self, principal: Principal) -> bool:
        """Whether what a caller has begun may go on."""
        return self.tokens.may_finish(principal) if principal.issuer else self.knows(principal)

    def principal(self, authorization: str | None) -> Principal | Refusal | Unverified:
        """Who an Authorization header speaks for.

        Source: RFC 6750, section 2.1 "Authorization Request Header Field".
        """
        keys, tokens = self.keys, self.tokens
        # Without keys nobody can be told apart, and `serve` listens on this machine only.
        if not keys.required and not tokens.accepted:
            return LOCAL
        before = self._digests.get(id(authorization))
        if before is not None and before[0] is authorization and (holder := keys.of_digest(before[1])) is not None:
            return holder  # as of most requests: it was read before, and is still a key
        scheme, _, text = (authorization or "").partition(" ")
        if authorization is None or scheme.lower() != "bearer":
            return _NO_TOKEN if tokens.accepted else _NO_KEY
        digest = self._digest_of(authorization, text)
        known = keys.of_digest(digest)
        if known is not None:
            return known
        if keys.withheld and keys.has(digest):
            return _WITHHELD
        return tokens.principal(text.strip(), digest) if tokens.accepted else _NO_KEY

    def _digest_of(self, authorization: str, text: str) -> bytes:
        known = self._digests.get(id(authorization))
        if known is not None and known[0] is authorization:
            return known[1]
        # Found by digest, so that no comparison leaks its progress. Fields are bytes, which were decoded one by one.
        digest = hashlib.sha256(text.strip().encode("latin-1", "replace")).digest()
        if len(authorization) <= _MAX_KEPT_CHARS:
            if len(self._digests) >= _MAX_KEPT:
                self._digests.clear()
            self._digests[id(authorization)] = authorization, digest
        return digest

    async def run(self) -> None:
        """Keep what look-ups rely on up to date, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.keys.run)
            group.start_soon(self.tokens.run)
