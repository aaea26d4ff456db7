"""Who an identity token is about: what an issuer says to us, its client, of the person at a browser.

Source: OpenID Connect Core 1.0, section 3.1.3.7 "ID Token Validation".
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import Final

from gateway.access.oauth.claims import SKEW_S, invalid, subject_of
from gateway.access.oauth.key_set import KeySet
from gateway.access.oauth.signatures import MAX_TOKEN_BYTES, SignedToken, is_signed_by, read_signed

# A first look at the keys, and one after they were fetched because of this very token.
_ROUNDS: Final = 2


async def name_in(
    token: str, key_set: KeySet, *, client_id: str, nonce: str, clock: Callable[[], float] = time.time
) -> str:
    """The name that callers of this issuer have here whom an identity token is about.

    Args:
        token: As the token endpoint of the issuer gave it.
        key_set: The keys of the issuer.
        client_id: What the issuer knows us by.
        nonce: What we gave the browser.
        clock: Seconds since 1970.

    Raises:
        Rejected: It is not to be believed, or is about nobody.
    """
    signed = read_signed(token) if len(token) <= MAX_TOKEN_BYTES else None
    if signed is None or signed.issuer != key_set.issuer.issuer:
        raise invalid("the issuer gave no identity token of its own")
    _check(signed, client_id=client_id, nonce=nonce, now_s=clock())
    algorithms = key_set.issuer.accepts(signed.algorithm)
    if not algorithms:
        raise invalid(f"the identity token is signed by an algorithm that is not accepted ({signed.algorithm[:20]})")
    for round_ in range(_ROUNDS):
        if any(is_signed_by(signed, key) for key in key_set.candidates(signed.key_id, algorithms)):
            return f"{subject_of(signed.claims, key_set.issuer)}@{key_set.issuer.name}"
        if round_ + 1 < _ROUNDS and key_set.may_ask:
            await key_set.ask()
    raise invalid("the signature of the identity token cannot be verified")


def _check(signed: SignedToken, *, client_id: str, nonce: str, now_s: float) -> None:
    claims = signed.claims
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
    if client_id not in audiences or claims.get("azp", client_id) != client_id:
        raise invalid("the identity token is for another client")
    given = claims.get("nonce")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), nonce.encode()):
        raise invalid("the identity token belongs to another sign-in")
    expires = claims.get("exp")
    if isinstance(expires, bool) or not isinstance(expires, int | float) or expires + SKEW_S <= now_s:
        raise invalid("the identity token has expired")
