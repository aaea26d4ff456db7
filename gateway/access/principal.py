"""The authenticated caller, and the protocol of authenticators."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An authenticated caller and its rights.

    Attributes:
        name: The name of the API key; `SUBJECT@ISSUER` for a token, with the issuer's URL without its scheme; `local`
            if no credentials are required. Names are unique.
        scopes: Scopes from `SCOPES` in `gateway.config.auth_config` that restrict the caller; empty means unrestricted.
            An issuer includes these scopes in a token only on purpose, so a token that has only other scopes is
            unrestricted.
        knows_groups: Whether `groups` is complete: issuers omit groups that would make a token too large.
        profiles: Profiles that the caller may use; None means all.
        issuer: Issuer of the access token, as configured; empty for other credentials.
        client: Client that the access token was issued to; empty if unknown.
        claims: Pairs of claim name and value of the access token, for every string, number and boolean, including list
            items. Names of nested claims are joined by a dot. `scope` has one pair per word. Claims that identify a
            single token are omitted.
        unknown_claims: Names of claims with values that are missing from `claims`.
        is_simulated: Whether an administrator is testing the rights of this caller. Not compared.
        token: Digest of the access token, used as its cache key. Not compared.
        expires_s: Expiry of the credentials, in seconds since 1970. Not compared.
    """

    name: str
    scopes: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    knows_groups: bool = True
    profiles: frozenset[str] | None = None
    issuer: str = ""
    client: str = ""
    claims: frozenset[tuple[str, str]] = frozenset()
    unknown_claims: frozenset[str] = frozenset()
    is_simulated: bool = field(default=False, compare=False, repr=False)
    token: bytes = field(default=b"", compare=False, repr=False)
    expires_s: float = field(default=math.inf, compare=False, repr=False)

    @property
    def identity(self) -> str:
        """Owner of sessions, tasks and signed state: issuer, subject and client, or the name of the API key.

        Rights are excluded, so that a session survives a token refresh. Each request has the rights of the token that
        it was sent with.
        """
        # Unambiguous, because names contain no line breaks.
        return f"{self.client}\n{self.name}" if self.client else self.name

    def may_enter(self, profile: str) -> bool:
        """Return whether the caller may use a profile."""
        return self.profiles is None or profile in self.profiles


LOCAL: Final = Principal(name="local")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason for rejecting credentials, in the terms of RFC 6750, section 3.1 "Error Codes".

    Attributes:
        status: HTTP status: 401, 403 if the token lacks scopes, 503 if the credentials cannot be verified at present.
        error: `invalid_token` or `insufficient_scope`; empty if the request had no credentials.
        description: Explanation for the client.
        scopes: All required scopes, for `insufficient_scope`.
        bearer_of_token: Whether access tokens are accepted, so that the challenge names the issuer's metadata.
        retry_after_s: Seconds after which to retry, for status 503.
    """

    status: int = 401
    error: str = ""
    description: str = ""
    scopes: tuple[str, ...] = ()
    bearer_of_token: bool = False
    retry_after_s: int = 0


class UnverifiedCredentials(Protocol):
    """Unknown credentials that can be verified only by asking the issuer."""

    async def verify(self) -> Principal | Refusal:
        """Ask the issuer. Returns within seconds, even if the issuer does not respond."""


class Authenticator(Protocol):
    """Authenticator of callers.

    Every request makes a look-up, so look-ups are synchronous, and for known callers only read a dictionary. An unknown
    token may need `UnverifiedCredentials.verify`. `run` keeps prefetched data, such as the keys of issuers, up to date.
    """

    @property
    def required(self) -> bool:
        """True if callers must present credentials at all."""

    @property
    def accepts_tokens(self) -> bool:
        """True if access tokens are accepted."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever credentials may have become invalid."""

    def knows(self, principal: Principal) -> bool:
        """Return whether a caller may keep its streams: its key is not revoked and its token has not expired."""

    def may_finish(self, principal: Principal) -> bool:
        """Return whether running requests of a caller may finish: an expired token does not interrupt them."""

    def principal(self, authorization: str | None) -> Principal | Refusal | UnverifiedCredentials:
        """Authenticate an Authorization header."""

    async def run(self) -> None:
        """Keep prefetched data up to date until cancelled. Returns at once if there is none."""
