"""Sign texts that travel through callers, bound to whom and what they were given for.

What an upstream hands out was meant for us: unsigned, any caller could use another's.
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
from typing import Final

from gateway import wire

log = logging.getLogger(__name__)

FILE_NAME: Final = "seal.key"
"""Its name from the first release: with another, what was signed before an upgrade would be refused after it."""
MAX_AGE_S: Final = 24 * 60 * 60.0
"""A person may answer a question the next morning; nobody comes back to a call later than that."""
# As long as the digest of SHA-256, beyond which HMAC gains nothing.
_KEY_BYTES: Final = 32
# 128 bits cannot be guessed, and the text travels in every round of a call.
_TAG_BYTES: Final = 16
# Shown in names of tasks, where 64 bits are enough for one server and one principal.
_MARK_BYTES: Final = 8


class BadSignature(ValueError):
    """The text was not signed here, not for this, or too long ago."""


class Signer:
    """Signer texts with one key; nothing is remembered, so that any process with the key can verify them."""

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
            self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                if len(key := path.read_bytes()) == _KEY_BYTES:
                    return key
                path.unlink()
            # Linked in whole, so that of two processes that begin at once both read the first one's.
            fresh = path.with_name(f".{FILE_NAME}-{secrets.token_hex(8)}")
            fresh.touch(mode=0o600)
            fresh.write_bytes(secrets.token_bytes(_KEY_BYTES))
            with suppress(FileExistsError):
                os.link(fresh, path)
            fresh.unlink()
            return path.read_bytes()
        except OSError as error:
            log.warning("the signing key cannot be kept: %s", error)
            return secrets.token_bytes(_KEY_BYTES)

    def sign(self, text: str, *binding: str) -> str:
        """Sign a text for what `binding` names."""
        payload = wire.dumps([text, int(time.time())])
        return _encode(payload) + "." + _encode(self._tag(payload, binding))

    def verify(self, signed: str, *binding: str) -> str:
        """Return the text that was signed.

        Raises:
            BadSignature: It was altered, signed for something else, or too long ago.
        """
        body, found, tag = signed.partition(".")
        try:
            payload = _decode(body)
            genuine = found and hmac.compare_digest(_decode(tag), self._tag(payload, binding))
        except (binascii.Error, ValueError):
            genuine = False
        if not genuine:
            raise BadSignature("it was not given out for this request")
        text, at_s = wire.loads(payload)
        if time.time() - at_s > self._max_age_s:
            raise BadSignature("it is too old")
        return str(text)

    def mark(self, text: str, *binding: str) -> str:
        """A short mark that only this text with this binding has: 16 hexadecimal digits."""
        return self._tag(text.encode("utf-8", "surrogatepass"), binding)[:_MARK_BYTES].hex()

    def _tag(self, payload: bytes, binding: tuple[str, ...]) -> bytes:
        digest = hmac.new(self.key, digestmod=hashlib.sha256)
        for part in (*(name.encode("utf-8", "surrogatepass") for name in binding), payload):
            # With its length in front: no two lists of parts run together to the same bytes.
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()[:_TAG_BYTES]


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
