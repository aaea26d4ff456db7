"""What stands in the shared store: encrypted, so that whoever can read or write there learns and changes nothing."""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway import wire

# What AES-GCM takes (NIST SP 800-38D, section 8.2). Chosen at random: a key is good for some four billion values.
_NONCE_BYTES: Final = 12


class NotSealed(Exception):
    """It was not sealed with our key, or not for this place."""


class Seal:
    """Seals values with one key."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, value: Any, place: str) -> str:
        """Seal a JSON value for the place where it is to stand."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return base64.b64encode(nonce + self._cipher.encrypt(nonce, wire.dumps(value), place.encode())).decode()

    def open(self, sealed: str, place: str) -> Any:
        """The value.

        Raises:
            NotSealed: It was sealed with another key, or for another place.
        """
        try:
            raw = base64.b64decode(sealed, validate=True)
            return wire.loads(self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], place.encode()))
        except (InvalidTag, ValueError, binascii.Error):
            raise NotSealed("it was not sealed by a gateway of ours for this place") from None
