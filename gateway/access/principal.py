"""The caller, as everything behind the door sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who a request comes from, and with which rights.

    Attributes:
        name: The name of the API key; `SUBJECT@ISSUER` for a token, with the issuer's URL without its scheme; `local`
            where nobody is asked for credentials. No two callers have one name.
        scopes: What the key or token may be used for, of the words that `gateway.config.auth.SCOPES` lists; empty means
            everything. A token has any of these words only if its issuer gives them out on purpose: one without them,
            whatever other scopes it has, is not restricted.
        groups: Which groups it belongs to.
        knows_groups: Whether these are all of its groups: issuers leave groups out of a token that would be too large.
        profiles: The profiles that it may enter; None means all.
        issuer: Of a token, its issuer as configured; empty for others.
        client: Of a token, the client that it was issued to; empty where that is not known.
        claims: Of a token, every text, number and boolean in a claim or in a claim that is a list, as pairs of name and
            value; claims inside others have the names of both, joined by a dot. `scope` has one pair for each word.
            What identifies a single token is left out.
        unknown_claims: Names of claims of which some values are not in `claims`.
        assumed: An administrator tries what this caller may do; the caller is not there. Not compared.
        token: Of a token, the digest that it is remembered by. Not part of what callers are compared by.
        expires_s: When its credentials end, in seconds since 1970. Not compared either.
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
    assumed: bool = field(default=False, compare=False, repr=False)
    token: bytes = field(default=b"", compare=False, repr=False)
    expires_s: float = field(default=math.inf, compare=False, repr=False)

    @property
    def identity(self) -> str:
        """What sessions, tasks and signed state belong to: issuer, subject and client, or the name of the key.

        Rights are no part of it: with a refreshed token the same person goes on with the same session, and each request
        may do what its own token permits.
        """
        # No name has a line break.
        return f"{self.client}\n{self.name}" if self.client else self.name

    def may_enter(self, profile: str) -> bool:
        """Whether it may use a profile."""
        return self.profiles is None or profile in self.profiles


LOCAL: Final = Principal(name="local")
