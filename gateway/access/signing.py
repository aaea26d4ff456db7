"""Encrypt and sign state that is passed through callers.

A caller receives some state with a response and sends the state back in a later request, such as an upstream's
`requestState`. Without encryption and a binding, callers could read this state, and use the state of other callers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.process.files import ForeignFile, make_private_folder, read_private
from gateway.protocol import json_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

log = logging.getLogger(__name__)

FILE_NAME: Final = "seal.key"
"""The key file. Its name has not changed since the first release, so that signatures stay valid across upgrades."""
MAX_AGE_S: Final = 24 * 60 * 60.0
"""The default lifetime of a signature in seconds: a person may answer a server's question the next morning."""
# The digest size of SHA-256, beyond which HMAC gains no strength, and the largest AES key size.
_KEY_BYTES: Final = 32
# Nonce size of AES-GCM (NIST SP 800-38D, section 8.2). Random nonces limit a key to about four billion texts.
_NONCE_BYTES: Final = 12
# The label that is used to derive the encryption key from the key in the file.
_ENCRYPTION: Final = b"typegate: texts that travel through callers"
# The length of `mark`, which is part of task names: 64 bits are enough for the tasks of one server and one principal.
_MARK_BYTES: Final = 8


class BadSignature(ValueError):
    """The text was not signed with the signer's key, was signed for another binding, or has expired."""


class Signer:
    """Encrypts and signs texts with a single key. Every process that has this key can verify the texts."""

    def __init__(
        self,
        state_dir: Path | None = None,
        *,
        key: bytes | None = None,
        max_age_s: float = MAX_AGE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a signer; the key is created on first use.

        Args:
            state_dir: Directory that stores the key. Without a directory, the key is lost when the process exits.
            key: Key received from another process, which takes precedence over `state_dir`.
            max_age_s: Lifetime of a signature, in seconds.
            clock: Returns seconds since 1970.
        """
        self._state_dir = state_dir
        self._fixed_key = key
        self._max_age_s = max_age_s
        self._clock = clock

    @cached_property
    def key(self) -> bytes:
        """The key, to be passed to other processes that verify the same signatures."""
        if self._fixed_key is not None:
            return self._fixed_key
        if self._state_dir is None:
            return secrets.token_bytes(_KEY_BYTES)
        path = self._state_dir / FILE_NAME
        try:
            make_private_folder(self._state_dir)
            if (stored := _read_key(path)) is not None:
                return stored
            with suppress(FileNotFoundError):
                path.unlink()
            # Create the file atomically with its content, so that processes that start concurrently read the same key.
            fresh = path.with_name(f".{FILE_NAME}-{secrets.token_hex(8)}")
            fresh.touch(mode=0o600)
            fresh.write_bytes(secrets.token_bytes(_KEY_BYTES))
            with suppress(FileExistsError):
                os.link(fresh, path)
            fresh.unlink()
            if (stored := _read_key(path)) is not None:
                return stored
            log.warning("signing key not stored: its file is not usable")
        except OSError as error:
            log.warning("signing key not stored: %s", error)
        return secrets.token_bytes(_KEY_BYTES)

    @cached_property
    def _cipher(self) -> AESGCM:
        # Imported lazily: most gateways have no upstream that issues state.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(hmac.digest(self.key, _ENCRYPTION, hashlib.sha256))

    def sign(self, text: str, *binding: str) -> str:
        """Encrypt a text so that `verify` returns it only with the same `binding`."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        payload = json_bytes.dumps([text, int(self._clock())])
        return _encode(nonce + self._cipher.encrypt(nonce, payload, _join_parts(binding)))

    def verify(self, signed: str, *binding: str) -> str:
        """Return the text that was encrypted.

        Raises:
            BadSignature: The text was altered, was signed for another binding, or has expired.
        """
        from cryptography.exceptions import InvalidTag

        try:
            encrypted = _decode(signed)
            payload = self._cipher.decrypt(encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], _join_parts(binding))
        except (binascii.Error, InvalidTag, ValueError):
            raise BadSignature("it was not issued for this request") from None
        text, at_s = json_bytes.loads(payload)
        if self._clock() - at_s > self._max_age_s:
            raise BadSignature("it has expired")
        return str(text)

    def mark(self, text: str, *binding: str) -> str:
        """Return a short keyed hash of the text and its binding: 16 hexadecimal digits."""
        parts = _join_parts((*binding, text))
        return hmac.digest(self.key, parts, hashlib.sha256)[:_MARK_BYTES].hex()


def _join_parts(parts: tuple[str, ...]) -> bytes:
    # Prefix each part with its length, so that different lists of parts never produce the same bytes.
    encoded = (part.encode("utf-8", "surrogatepass") for part in parts)
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


def _read_key(path: Path) -> bytes | None:
    """Return the key in a file; None if the file is missing, damaged or not trusted. Warn unless it is missing."""
    try:
        key = read_private(path, most_bytes=_KEY_BYTES)
    except FileNotFoundError:
        return None
    except ForeignFile as error:
        # Another user may know this key, and could forge state.
        log.warning("signing key replaced: %s", error)
        return None
    if len(key) != _KEY_BYTES:
        log.warning("signing key replaced: the stored key is damaged")
        return None
    return key


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
