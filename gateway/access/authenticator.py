"""The seam between a request and whatever proves who sends it."""

from __future__ import annotations

from collections.abc import Callable
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

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have this called whenever callers may have lost their credentials."""

    def knows(self, principal: Principal) -> bool:
        """Whether a caller who was admitted would still be admitted: its key is not revoked, its token not expired."""

    def principal(self, authorization: str | None) -> Principal | None:
        """Who an Authorization header speaks for; None when it proves nothing."""

    async def run(self) -> None:
        """Keep what look-ups rely on up to date, until cancelled; returns where nothing changes by itself."""
