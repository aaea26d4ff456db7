"""The seam between a request and whatever proves who sends it."""

from __future__ import annotations

from typing import Protocol

from gateway.access.principal import Principal


class Authenticator(Protocol):
    """Knows callers by their credentials.

    Look-ups are synchronous, since each request makes one. Whatever takes time (keys of an issuer, lists of what was
    revoked) is fetched by `run`, behind them.
    """

    @property
    def required(self) -> bool:
        """Whether callers must present credentials at all."""

    def principal(self, authorization: str | None) -> Principal | None:
        """Who an Authorization header speaks for; None when it proves nothing."""

    async def run(self) -> None:
        """Keep what look-ups rely on up to date, until cancelled; returns where nothing changes by itself."""
