"""The seam between a request and whatever proves who sends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.access.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why credentials open nothing, in the words of RFC 6750, section 3.1 "Error Codes".

    Attributes:
        status: The HTTP status: 401, 403 for a token that lacks scopes, 503 where nobody can tell at present.
        error: `invalid_token` or `insufficient_scope`; empty where no credentials were given.
        description: What is wrong with them, for whoever sent them.
        scopes: With `insufficient_scope`, every scope that is needed.
        bearer_of_token: Whether tokens are accepted at all, so that the challenge says where to get one.
        retry_after_s: With 503, when to come back.
    """

    status: int = 401
    error: str = ""
    description: str = ""
    scopes: tuple[str, ...] = ()
    bearer_of_token: bool = False
    retry_after_s: int = 0


class Unverified(Protocol):
    """Credentials that are seen for the first time, and of which only others can tell whom they speak for."""

    async def verify(self) -> Principal | Refusal:
        """Ask them; whatever they do, this ends within seconds."""


class Authenticator(Protocol):
    """Knows callers by their credentials.

    Look-ups are synchronous, since each request makes one, and a dictionary look-up for whoever is known. Where a token
    is seen for the first time they may have to be completed by `Unverified.verify`. What is known in advance (keys of
    an issuer) is kept up to date by `run`.
    """

    @property
    def required(self) -> bool:
        """Whether callers must present credentials at all."""

    @property
    def accepts_tokens(self) -> bool:
        """Whether there are issuers whose tokens are accepted."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have this called whenever callers may have lost their credentials."""

    def knows(self, principal: Principal) -> bool:
        """Whether a caller who was admitted may keep its streams: its key is not revoked, its token has not ended."""

    def may_finish(self, principal: Principal) -> bool:
        """Whether what it has begun may go on: a token that has merely ended does not take back what it permitted."""

    def principal(self, authorization: str | None) -> Principal | Refusal | Unverified:
        """Who an Authorization header speaks for."""

    async def run(self) -> None:
        """Keep what look-ups rely on up to date, until cancelled; returns where nothing changes by itself."""
