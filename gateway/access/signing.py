"""Encrypt and sign texts that travel through callers, bound to whom and what they were given for.

What an upstream hands out was meant for us: as it is, callers could read it, and use each other's.
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
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway import wire
from gateway.files import NotOurs, make_private_folder, read_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

log = logging.getLogger(__name__)

FILE_NAME: Final = "seal.key"
"""Its name from the first release: with another, what was signed before an upgrade would be refused after it."""
MAX_AGE_S: Final = 24 * 60 * 60.0
"""A person may answer a question the next morning; nobody comes back to a call later than that."""
# As long as the digest of SHA-256, beyond which HMAC gains nothing; and the longest key of AES.
_KEY_BYTES: Final = 32
# What AES-GCM takes (NIST SP 800-38D, section 8.2). Chosen at random, so a key is good for some four billion texts.
_NONCE_BYTES: Final = 12
# One key in the file, and another one derived from it for each use.
_ENCRYPTION: Final = b"typegate: texts that travel through callers"
# Shown in names of tasks, where 64 bits are enough for one server and one principal.
_MARK_BYTES: Final = 8


class BadSignature(ValueError):
    """The text was not signed here, not for this, or too long ago."""


class Signer:
    """Encrypts and signs texts with one key.

    Nothing is remembered, so that any process with the key can verify them.
    """

    def __init__(
        self, state_dir: Path | None = None, *, key: bytes | None = None, max_age_s: float = MAX_AGE_S
    ) -> None:
        """Keep the key in this directory, from its first use on; without one it ends with the process.

        Args:
            state_dir: Where the key is kept.
            key: The key itself, where another process has it already.
            max_age_s: How long a signature is good.
        """
        self._state_dir = state_dir
        self._given = key
        self._max_age_s = max_age_s

    @cached_property
    def key(self) -> bytes:
        """The key, for another process that has to verify the same signatures."""
        if self._given is not None:
            return self._given
        if self._state_dir is None:
            return secrets.token_bytes(_KEY_BYTES)
        path = self._state_dir / FILE_NAME
        try:
            make_private_folder(self._state_dir)
            if (kept := _kept_key(path)) is not None:
                return kept
            with suppress(FileNotFoundError):
                path.unlink()
            # Linked in whole, so that of two processes that begin at once both read the first one's.
            fresh = path.with_name(f".{FILE_NAME}-{secrets.token_hex(8)}")
            fresh.touch(mode=0o600)
            fresh.write_bytes(secrets.token_bytes(_KEY_BYTES))
            with suppress(FileExistsError):
                os.link(fresh, path)
            fresh.unlink()
            if (kept := _kept_key(path)) is not None:
                return kept
            log.warning("the signing key cannot be kept: another one takes its place")
        except OSError as error:
            log.warning("the signing key cannot be kept: %s", error)
        return secrets.token_bytes(_KEY_BYTES)

    @cached_property
    def _cipher(self) -> AESGCM:
        # Late: most gateways have no upstream that hands anything out.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(hmac.digest(self.key, _ENCRYPTION, hashlib.sha256))

    def sign(self, text: str, *binding: str) -> str:
        """Encrypt a text, and sign it for what `binding` names."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        payload = wire.dumps([text, int(time.time())])
        return _encode(nonce + self._cipher.encrypt(nonce, payload, _joined(binding)))

    def verify(self, signed: str, *binding: str) -> str:
        """Return the text that was encrypted.

        Raises:
            BadSignature: It was altered, signed for something else, or too long ago.
        """
        from cryptography.exceptions import InvalidTag

        try:
            sealed = _decode(signed)
            payload = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _joined(binding))
        except (binascii.Error, InvalidTag, ValueError):
            raise BadSignature("it was not given out for this request") from None
        text, at_s = wire.loads(payload)
        if time.time() - at_s > self._max_age_s:
            raise BadSignature("it is too old")
        return str(text)

    def mark(self, text: str, *binding: str) -> str:
        """A short mark that only this text with this binding has: 16 hexadecimal digits."""
        parts = _joined((*binding, text))
        return hmac.digest(self.key, parts, hashlib.sha256)[:_MARK_BYTES].hex()


def _joined(parts: tuple[str, ...]) -> bytes:
    # Each with its length in front: no two lists of parts run together to the same bytes.
    encoded = (part.encode("utf-8", "surrogatepass") for part in parts)
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


def _kept_key(path: Path) -> bytes | None:
    """The key in a file; None, with a warning where there is something else, if there is none to be believed."""
    try:
        key = read_private(path, most_bytes=_KEY_BYTES)
    except FileNotFoundError:
        return None
    except NotOurs as error:
        # Whoever put it there knows it, and could sign what no upstream has handed out.
        log.warning("the signing key is replaced: %s", error)
        return None
    if len(key) != _KEY_BYTES:
        log.warning("the signing key is replaced: it is damaged")
        return None
    return key


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
