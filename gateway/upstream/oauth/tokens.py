"""What a token endpoint answers. Pure: the time comes in as an argument."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from registry.schema.display_text import excerpt

REFRESH_AT: Final = 0.8
"""The part of a token's life after which another one is fetched: a fifth is left for a server that is away."""
# Tokens of large providers have some kilobytes; servers in use refuse heads above 8 to 64.
_MAX_TOKEN_CHARS: Final = 32 * 1024
# A year: what claims more is believed until it is refused, as one that claims nothing.
_MAX_LIFE_S: Final = 366 * 24 * 60 * 60.0
_MAX_ERROR_CHARS: Final = 300
_SECONDS: Final = re.compile(r"\d{1,11}(\.\d{0,6})?")
# The grant, or the client, is known and refused: no repetition mends it.
_SPENT: Final = frozenset({"invalid_grant", "bad_refresh_token", "invalid_refresh_token"})
# Tokens that have to be presented with a proof (RFC 9449; the OAuth token type registry), or not at all (RFC 8693).
_NO_BEARER: Final = frozenset({"dpop", "pop", "mac", "n_a"})
CLIENT_ERRORS: Final = frozenset({"invalid_client", "unauthorized_client"})
"""Errors that mean that the server does not know the client, or not for this."""
_PASSING: Final = frozenset({"temporarily_unavailable", "server_error", "slow_down"})


class TokenRefused(Exception):
    """A token endpoint gave no token.

    Attributes:
        code: The OAuth error; empty where the answer is none.
        passing: It may answer otherwise in a moment: whatever was presented is still good.
    """

    def __init__(self, reason: str, *, code: str = "", passing: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.passing = passing

    @property
    def spent(self) -> bool:
        """Whether what was presented is good for nothing any more."""
        return self.code in _SPENT

    @property
    def client_refused(self) -> bool:
        """Whether it does not know us, or not for this."""
        return self.code in CLIENT_ERRORS


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A token and what came with it.

    Attributes:
        access: What is presented to the upstream.
        refresh: What another one is fetched with.
        scopes: What was granted; None where that was not said.
        obtained_at_s: When, by the wall clock: it has to hold over a restart.
        expires_at_s: The same; None where it is believed until it is refused.
        scheme: How it is presented: `Bearer`, or `DPoP` with a proof.
    """

    access: str
    refresh: str | None = None
    scopes: tuple[str, ...] | None = None
    obtained_at_s: float
    expires_at_s: float | None = None
    scheme: str = "Bearer"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no text may repeat."""
        return (self.access,) if self.refresh is None else (self.access, self.refresh)

    @property
    def refresh_at_s(self) -> float | None:
        """When another one is due; None where nobody knows."""
        if self.expires_at_s is None:
            return None
        return self.obtained_at_s + REFRESH_AT * (self.expires_at_s - self.obtained_at_s)

    def is_expired(self, now_s: float) -> bool:
        """Whether it is known to be good no more."""
        return self.expires_at_s is not None and now_s >= self.expires_at_s

    def is_due(self, now_s: float) -> bool:
        """Whether another one should be fetched by now."""
        due_s = self.refresh_at_s
        return due_s is not None and now_s >= due_s

    def document(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self)

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Tokens:
        """Read what `document` has written."""
        scopes = document.get("scopes")
        return cls(
            access=str(document["access"]),
            refresh=document.get("refresh"),
            scopes=tuple(scopes) if scopes is not None else None,
            obtained_at_s=float(document["obtained_at_s"]),
            expires_at_s=document.get("expires_at_s"),
            scheme=str(document.get("scheme", "Bearer")),
        )


def read_tokens(
    status: int,
    document: object,
    *,
    now_s: float,
    before: Tokens | None = None,
    bearer: bool = True,
    proven: bool = False,
) -> Tokens:
    """Read the answer of a token endpoint.

    Args:
        status: Of HTTP.
        document: The body as JSON; None where it is none.
        now_s: When it was asked, so that a slow answer does not lengthen the life of a token.
        before: Those that were refreshed: what is not sent again stays.
        bearer: It is to be presented to an upstream, and not to another token endpoint.
        proven: It was asked for with a proof of possession, so that it may be bound to one.

    Raises:
        TokenRefused: It gave none.
    """
    body = document if isinstance(document, dict) else {}
    if not 200 <= status < 300 or body.get("access_token") in (None, ""):
        raise _refusal(status, body)
    access = body["access_token"]
    kind = str(body.get("token_type") or "bearer").strip().lower()
    bound = proven and kind == "dpop"
    # Any other word is one of the server's own for a bearer token, as `user` or `JWT`.
    if bearer and not bound and kind in _NO_BEARER:
        raise TokenRefused("the token endpoint gave a token that is no bearer token")
    refresh = body.get("refresh_token") or None
    for token in (access, *([] if refresh is None else [refresh])):
        # It becomes a header: a line break in it would be a header of its own.
        sound = isinstance(token, str) and 0 < len(token) <= _MAX_TOKEN_CHARS and token.isascii()
        if not sound or not token.isprintable() or " " in token:
            raise TokenRefused("the token endpoint gave a token that no header can carry")
    scope = body.get("scope")
    scopes = tuple(scope.split()) if isinstance(scope, str) else None
    return Tokens(
        access=access,
        refresh=refresh or (before.refresh if before is not None else None),
        scopes=scopes if scopes is not None or before is None else before.scopes,
        obtained_at_s=now_s,
        expires_at_s=_expiry(body.get("expires_in"), now_s),
        scheme="DPoP" if bound else "Bearer",
    )


def _expiry(life: object, now_s: float) -> float | None:
    # Some servers send it as text. A boolean is an int to Python.
    if isinstance(life, str) and _SECONDS.fullmatch(life.strip()):
        life = float(life)
    if isinstance(life, bool) or not isinstance(life, int | float) or not 0 < life <= _MAX_LIFE_S:
        return None
    return now_s + life


def _refusal(status: int, body: Mapping[str, Any]) -> TokenRefused:
    code = body.get("error")
    code = code if isinstance(code, str) and code.isascii() and code.isprintable() and len(code) < 100 else ""
    described = body.get("error_description")
    said = f": {excerpt(described, _MAX_ERROR_CHARS)}" if isinstance(described, str) and described else ""
    if code and status < 500:
        reason = f"the token endpoint answered {code}{said}"
        return TokenRefused(reason, code=code, passing=code in _PASSING or status == 429)
    passing = status >= 500 or status in (408, 425, 429)
    return TokenRefused(f"the token endpoint answered HTTP {status} without a token", passing=passing)
