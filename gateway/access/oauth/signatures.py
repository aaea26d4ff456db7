"""Signed tokens: read without trust, then verified with the key that their issuer publishes.

Source: RFC 7515 and 7519; RFC 8725, "JSON Web Token Best Current Practices"; RFC 9068, section 4.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from gateway import wire
from gateway.access.oauth.claims import invalid
from gateway.access.oauth.key_set import Key, algorithms

if TYPE_CHECKING:
    from jwt import PyJWS

MAX_TOKEN_BYTES: Final = 16 * 1024
"""The largest token that is looked at. One with hundreds of groups has half of it; proxies take heads of 8 KiB."""
_COMPACT: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]*", re.ASCII)
# Of access tokens, and of those whose issuer does not say of what kind they are. Whatever says that it is of another
# kind (a logout token, a proof of possession) was not made to open anything.
_TYPES: Final = frozenset({"at+jwt", "jwt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedToken:
    """A token as it came; nothing of it is to be believed before its signature is verified.

    Attributes:
        text: The token.
        algorithm: How it says to be signed.
        key_id: With which key; None where it does not say.
        claims: What it says.
    """

    text: str
    algorithm: str
    key_id: str | None
    claims: Mapping[str, Any]

    @property
    def issuer(self) -> str:
        """Who it says to be from."""
        issuer = self.claims.get("iss")
        return issuer if isinstance(issuer, str) else ""


def read_signed(token: str) -> SignedToken | None:
    """The token as far as it can be read without its key; None where it is no signed token at all.

    Raises:
        Rejected: It is one that is never accepted.
    """
    # Nothing but the alphabet: decoders skip other characters, so that one token could be written in many ways.
    if not _COMPACT.fullmatch(token):
        return None
    parts = token.split(".")
    header = _object(parts[0])
    if header is None or "alg" not in header:
        return None
    algorithm, key_id = header["alg"], header.get("kid")
    claims = _object(parts[1])
    if claims is None or not isinstance(algorithm, str) or not (key_id is None or isinstance(key_id, str)):
        raise invalid("the token is malformed")
    if "crit" in header:
        # RFC 7515, section 4.1.11: what it asks for is not known here.
        raise invalid("the token wants something that is not understood here (crit)")
    kind = "jwt" if header.get("typ") is None else header["typ"]
    if not isinstance(kind, str) or kind.lower().removeprefix("application/") not in _TYPES:
        raise invalid("the token is no access token: its typ is another")
    return SignedToken(text=token, algorithm=algorithm, key_id=key_id, claims=claims)


def is_signed_by(token: SignedToken, key: Key) -> bool:
    """Whether a token was signed with a key, by the algorithm that it names."""
    import jwt

    try:
        _verifier().decode(token.text, key.for_algorithm(token.algorithm), algorithms=[token.algorithm])
    # The libraries below raise what they like for keys and signatures of odd forms.
    except (jwt.PyJWTError, ValueError, TypeError):
        return False
    return True


@cache
def _verifier() -> PyJWS:
    # Late: it brings cryptography, which a gateway without issuers does without. Once: it makes every algorithm.
    from jwt import PyJWS

    verifier = PyJWS()
    for name in algorithms().keys() - verifier.get_algorithms():
        verifier.register_algorithm(name, algorithms()[name])
    return verifier


def _object(part: str) -> dict[str, Any] | None:
    """A part of a token as an object; None where it is none."""
    try:
        value = wire.loads(base64.urlsafe_b64decode(part.encode("ascii") + b"=" * (-len(part) % 4)))
    except (binascii.Error, ValueError):
        return None
    return value if isinstance(value, dict) else None
