"""Proofs that a token is presented by whom it was given to: a key of our own signs each request.

Source: RFC 9449, sections 4.2 "DPoP Proof JWT Syntax", 5 "DPoP Access Token Request", 7.1 "The DPoP Authentication
Scheme", 8 and 9 (nonces).
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

# What every implementation has to know (RFC 9449, section 5.1, and RFC 7518): ECDSA over P-256.
ALGORITHM: Final = "ES256"
_RANDOM_BYTES: Final = 16
# Of a nonce that a server hands out; it becomes a part of a header.
_MAX_NONCE_CHARS: Final = 1_024


def new_key() -> str:
    """A fresh private key, in PEM."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    made = ec.generate_private_key(ec.SECP256R1())
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


class ProofKey:
    """Signs requests with one private key.

    Attributes:
        nonce: What the server last asked to be repeated; None for nothing.
    """

    def __init__(self, pem: str) -> None:
        self._pem = pem
        self.nonce: str | None = None

    def take_nonce(self, nonce: str) -> bool:
        """Repeat what a server has handed out from now on; whether it is another one than before."""
        if not nonce or len(nonce) > _MAX_NONCE_CHARS or nonce == self.nonce:
            return False
        self.nonce = nonce
        return True

    def proof(self, method: str, url: str, *, token: str | None = None) -> str:
        """The proof for one request.

        Args:
            method, url: Of the request.
            token: The access token that goes with it; None where one is asked for.
        """
        import jwt

        claims: dict[str, Any] = {
            "jti": secrets.token_urlsafe(_RANDOM_BYTES),
            "htm": method,
            "htu": urlunsplit(urlsplit(url)._replace(query="", fragment="")),
            "iat": int(time.time()),
        }
        if token is not None:
            claims["ath"] = _encoded(hashlib.sha256(token.encode("ascii")).digest())
        if self.nonce is not None:
            claims["nonce"] = self.nonce
        return jwt.encode(claims, self._key, algorithm=ALGORITHM, headers={"typ": "dpop+jwt", "jwk": self._public})

    @cached_property
    def _key(self) -> Any:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        return load_pem_private_key(self._pem.encode(), password=None)

    @cached_property
    def _public(self) -> dict[str, str]:
        from jwt.algorithms import ECAlgorithm

        made = json.loads(ECAlgorithm.to_jwk(self._key.public_key()))
        return {name: made[name] for name in ("kty", "crv", "x", "y")}


def _encoded(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
