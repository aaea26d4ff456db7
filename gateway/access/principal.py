"""The authenticated caller, and the interface of authenticators."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An authenticated caller and its rights.

    Attributes:
        name: The name of the API key; `SUBJECT@ISSUER` for a token, where ISSUER is the issuer's URL without the
            scheme; `local` if no credentials are required. Names are unique.
        scopes: Scopes from `SCOPES` in `gateway.config.auth_config` that restrict the caller; empty means unrestricted.
            An issuer includes these scopes in a token only on purpose, so a token that has only other scopes is
            unrestricted.
        knows_groups: True if `groups` is complete. Issuers omit groups that would make a token too large.
        profiles: Profiles that the caller may use; None means all.
        issuer: Issuer of the access token, as configured; empty for other credentials.
        client: Client that the access token was issued to; empty if unknown.
        claims: The access token's claims as pairs of name and value: one pair for each string, boolean, integer, and
            item of a list. The name of a nested claim is its path, joined by dots. `scope` has one pair per word.
            Claims that identify a single token are omitted.
        unknown_claims: Names of claims whose values are incomplete in `claims`: the issuer has omitted values, or the
            gateway cannot represent them.
        is_simulated: True if an administrator is testing what this caller may use. Ignored by `==`.
        token: Digest of the access token, used as a cache key. Ignored by `==`.
        expires_s: Expiry of the credentials, in seconds since 1970. Ignored by `==`.
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
        """The owner id of this caller's sessions, tasks and signed state.

        The id of a token's caller consists of subject, issuer and client. The id of a key's caller is the key's name.
        The id does not depend on the caller's rights, so that a session survives a token refresh. Each request has the
        rights of the token in that request.
        """
        # The id is unambiguous, because names do not contain line breaks.
        return f"{self.client}\n{self.name}" if self.client else self.name

    def may_enter(self, profile: str) -> bool:
        """Return whether the caller may use a profile."""
        return self.profiles is None or profile in self.profiles


LOCAL: Final = Principal(name="local")
"""The principal of every caller if no credentials are configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason for rejecting credentials, in the terms of RFC 6750, section 3.1 "Error Codes".

    Attributes:
        status: HTTP status: 401; 403 if the token lacks scopes; 503 if the credentials cannot be verified at present.
        error: `invalid_token` or `insufficient_scope`; empty if the request had no credentials.
        description: Explanation for the client.
        scopes: All required scopes, for `insufficient_scope`.
        bearer_of_token: True if access tokens are accepted: the `WWW-Authenticate` header then has the URL of the
            gateway's resource metadata.
        retry_after_s: Seconds after which to retry, for status 503.
    """

    status: int = 401
    error: str = ""
    description: str = ""
    scopes: tuple[str, ...] = ()
    bearer_of_token: bool = False
    retry_after_s: int = 0


class UnverifiedCredentials(Protocol):
    """Credentials that can be verified only by asking the issuer."""

    async def verify(self) -> Principal | Refusal:
        """Ask the issuer. Return within seconds, even if the issuer does not respond."""


class Authenticator(Protocol):
    """Authenticates callers.

    `principal` runs for every request. Therefore this method is synchronous, and only reads a dictionary if the caller
    is known. For an unknown token it may return `UnverifiedCredentials`, whose `verify` has to be awaited.
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
        """Return whether a caller's streams may stay open: the credentials are neither revoked nor expired."""

    def may_finish(self, principal: Principal) -> bool:
        """Return whether a caller's running requests may finish. An expired access token does not prevent this."""

    def principal(self, authorization: str | None) -> Principal | Refusal | UnverifiedCredentials:
        """Authenticate an Authorization header."""

    async def run(self) -> None:
        """Refresh prefetched data, such as issuers' keys, until cancelled. Return at once if there is no such data."""
