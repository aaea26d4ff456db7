"""What is kept of sign-ins, encrypted where the operator gives a key."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.errors import ConfigError
from gateway.extras import install_command
from gateway.files import NotOurs, expand_home, read_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VARIABLE: Final = "TYPEGATE_STATE_KEY"
FILE_VARIABLE: Final = "TYPEGATE_STATE_KEY_FILE"
KEYRING: Final = "keyring"
"""The value of the variable that means the keyring of the system."""
# 128 bits written in hexadecimal digits are 32 characters; in base64 they are 22.
_MIN_CHARS: Final = 22
_MAX_BYTES: Final = 4096
# What AES-GCM takes (NIST SP 800-38D, section 8.2).
_NONCE_BYTES: Final = 12
_MARK: Final = b"typegate encrypted 1\n"
_PURPOSE: Final = b"typegate: sign-ins at rest"
# Of a key of our own making: 256 bits.
_KEY_BYTES: Final = 32
_OTHERWISE: Final = f"expected a keyring that is unlocked, or a key in {VARIABLE} or {FILE_VARIABLE}"
_SERVICE: Final = "typegate"
_ENTRY: Final = "state-key"


class Undecipherable(ValueError):
    """What is kept cannot be read with the key that is given, or with none."""


class Encryption:
    """Encrypts with one key, or passes on as it is without one."""

    def __init__(self, key: str | None = None) -> None:
        self._key = key

    @property
    def active(self) -> bool:
        """Whether there is a key."""
        return self._key is not None

    @cached_property
    def _cipher(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(hmac.digest((self._key or "").encode(), _PURPOSE, hashlib.sha256))

    def encrypt(self, content: bytes, *, name: str) -> bytes:
        """The content as it is written under this name."""
        if self._key is None:
            return content
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _MARK + nonce + self._cipher.encrypt(nonce, content, name.encode())

    def decrypt(self, content: bytes, *, name: str) -> bytes:
        """The content as it was given; what was written before there was a key is read, too.

        Raises:
            Undecipherable: It was encrypted with another key, or under another name.
        """
        if not content.startswith(_MARK):
            return content
        if self._key is None:
            raise Undecipherable(f"it is encrypted, and there is no {VARIABLE}")
        from cryptography.exceptions import InvalidTag

        sealed = content[len(_MARK) :]
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name.encode())
        except (InvalidTag, ValueError):
            raise Undecipherable(f"it is encrypted with another {VARIABLE}") from None


def encryption_from(environ: Mapping[str, str] | None = None) -> Encryption:
    """The encryption that the environment asks for.

    Raises:
        ConfigError: There is to be a key, and it cannot be used.
    """
    environ = os.environ if environ is None else environ
    given, path = environ.get(VARIABLE), environ.get(FILE_VARIABLE)
    if given and path:
        raise ConfigError(f"stands beside {FILE_VARIABLE}; expected one of the two", file="environment", key=VARIABLE)
    if path:
        return Encryption(_sound(_of_file(expand_home(path)), FILE_VARIABLE))
    if given == KEYRING:
        return Encryption(_of_keyring())
    return Encryption(_sound(given, VARIABLE)) if given else Encryption()


def _sound(key: str, variable: str) -> str:
    if len(key) < _MIN_CHARS:
        what = f"is too short for a key; expected {_MIN_CHARS} random characters or more, as `openssl rand -hex 32`"
        raise ConfigError(what, file="environment", key=variable)
    return key


def _of_file(path: Path) -> str:
    try:
        content = read_private(path, most_bytes=_MAX_BYTES)
        return content.decode("utf-8").strip() if len(content) <= _MAX_BYTES else ""
    except NotOurs as error:
        raise ConfigError(f"{error}; expected a file of mode 0600", file="environment", key=FILE_VARIABLE) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"{path} cannot be read ({reason})", file="environment", key=FILE_VARIABLE) from None


def _of_keyring() -> str:
    # By its name: it is there only where the extra is.
    try:
        keyring = import_module("keyring")
    except ImportError:
        expected = f"expected {install_command('keyring')}"
        raise ConfigError(f"needs a package; {expected}", file="environment", key=VARIABLE) from None
    try:
        kept = keyring.get_password(_SERVICE, _ENTRY)
        if not kept:
            keyring.set_password(_SERVICE, _ENTRY, secrets.token_urlsafe(_KEY_BYTES))
            # As it is kept: another process may have been quicker, and some keyrings keep nothing.
            kept = keyring.get_password(_SERVICE, _ENTRY)
    except Exception as error:  # boundary: each system has a keyring of its own, with errors of its own
        what = f"the keyring of this system cannot be used ({type(error).__name__}); {_OTHERWISE}"
        raise ConfigError(what, file="environment", key=VARIABLE) from error
    if not kept:
        what = f"the keyring of this system keeps nothing; {_OTHERWISE}"
        raise ConfigError(what, file="environment", key=VARIABLE)
    return _sound(str(kept), f"{VARIABLE} ({_ENTRY} of {_SERVICE} in the keyring)")
