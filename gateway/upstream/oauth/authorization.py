"""The browser's way to an authorization server and back. Pure.

Sources: RFC 6749, section 4.1; RFC 7636 (PKCE); RFC 8707 (resource); RFC 9207 (iss).
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from gateway.upstream.oauth.scopes import OFFLINE

# 256 bits, as RFC 7636, section 7.1, asks of a verifier; the same for what must not be guessed in our own address.
_RANDOM_BYTES: Final = 32
# Of an error that a browser brings, which anybody can write.
_MAX_ERROR_CHARS: Final = 200


class AnswerRefused(ValueError):
    """What the browser brought is no authorization; the text says why."""


def new_verifier() -> str:
    """A fresh secret of PKCE."""
    return secrets.token_urlsafe(_RANDOM_BYTES)


def new_state() -> str:
    """A fresh name of one sign-in."""
    return secrets.token_urlsafe(_RANDOM_BYTES)


def challenge_of(verifier: str) -> str:
    """What is shown of a verifier before it is used: S256."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode("ascii")).digest()).rstrip(b"=").decode("ascii")


def authorization_url(
    endpoint: str,
    *,
    client_id: str,
    redirect_uri: str,
    state: str,
    verifier: str,
    resource: str,
    scopes: Sequence[str],
    consent: bool = True,
    nonce: str | None = None,
) -> str:
    """The address that whoever signs in opens; a query of the endpoint's own stays.

    Args:
        endpoint: Of the authorization server.
        client_id, redirect_uri, state, verifier, resource, scopes: What it is to contain.
        consent: The server takes the prompt that belongs to the scope of refresh tokens.
        nonce: What the identity token has to repeat; None where none is wanted.
    """
    parts = urlsplit(endpoint)
    added = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": challenge_of(verifier),
        "code_challenge_method": "S256",
        **({"resource": resource} if resource else {}),
        **({"nonce": nonce} if nonce is not None else {}),
    }
    if scopes:
        added["scope"] = " ".join(scopes)
    if OFFLINE in scopes and consent:
        # OpenID Connect Core, section 11: without consent no refresh token is given out.
        added["prompt"] = "consent"
    kept = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in added]
    return urlunsplit(parts._replace(query=urlencode([*kept, *added.items()]), fragment=""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What a browser brought back."""

    state: str
    code: str | None
    issuer: str | None
    error: str | None
    error_code: str = ""


def read_return(query: str) -> Returned:
    """Read the query of the address that a browser came back to.

    Raises:
        AnswerRefused: A parameter is there twice, or there is no state.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found and name in ("state", "code", "iss", "error"):
            raise AnswerRefused(f"it has {name} twice")
        found[name] = value
    if not found.get("state"):
        raise AnswerRefused("it has no state")
    error = code = found.get("error")
    if error is not None:
        described = found.get("error_description", "")
        error = f"{error}: {described}" if described else error
        error = "".join(character for character in error if character.isprintable())[:_MAX_ERROR_CHARS]
    return Returned(
        state=found["state"],
        code=found.get("code") or None,
        issuer=found.get("iss"),
        error=error,
        error_code=code or "",
    )


def check_issuer(returned: Returned, *, issuer: str, named: bool) -> None:
    """Compare whom an answer is from with whom it was asked of: byte for byte, errors too.

    Args:
        returned: The answer.
        issuer: Whom it was asked of.
        named: The authorization server says that its answers name it.

    Raises:
        AnswerRefused: It is another's, or does not say whose it is.
    """
    if returned.issuer is None and named:
        raise AnswerRefused("it does not name its issuer, which that authorization server always does")
    if returned.issuer is not None and returned.issuer != issuer:
        raise AnswerRefused("it is from another issuer than the one that was asked")


def code_of(returned: Returned) -> str:
    """The code of an answer whose issuer was compared.

    Raises:
        AnswerRefused: The sign-in was refused there, or the answer has no code.
    """
    if returned.error is not None:
        raise AnswerRefused(f"the sign-in was refused ({returned.error})")
    if returned.code is None:
        raise AnswerRefused("it has no code")
    return returned.code


def as_form(parameters: Mapping[str, str]) -> bytes:
    """The body of a form."""
    return urlencode(parameters).encode("ascii")
