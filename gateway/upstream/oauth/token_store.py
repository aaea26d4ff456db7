"""Store sign-ins on disk or in memory, optionally encrypted."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from gateway.process.extras import install_command
from gateway.process.files import ForeignFile, expand_home, make_private_folder, read_private, write_whole
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

log = logging.getLogger(__name__)


class KeyedLocks:
    """One lock for each key; a lock is discarded when no task uses it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._locks)

    def get_lock(self, key: str) -> anyio.Lock:
        """Return the lock of a key. Enter the lock at once: it is discarded when no task has a reference to it."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = anyio.Lock()
        return lock


VARIABLE: Final = "TYPEGATE_STATE_KEY"
FILE_VARIABLE: Final = "TYPEGATE_STATE_KEY_FILE"
KEYRING: Final = "keyring"
"""Value of `TYPEGATE_STATE_KEY` that selects the keyring of the operating system."""
# Minimum length of a key: 128 random bits need 22 characters in base64, and 32 in hexadecimal.
_MIN_CHARS: Final = 22
_MAX_KEY_BYTES: Final = 4096
# Length of an AES-GCM nonce (NIST SP 800-38D, section 8.2).
_NONCE_BYTES: Final = 12
_MAGIC: Final = b"typegate encrypted 1\n"
_PURPOSE: Final = b"typegate: sign-ins at rest"
# Length of a generated key: 256 bits.
_KEY_BYTES: Final = 32
_EXPECTED_KEY: Final = f"expected a keyring that is unlocked, or a key in {VARIABLE} or {FILE_VARIABLE}"
_SERVICE: Final = "typegate"
_ENTRY: Final = "state-key"


class UndecryptableContent(ValueError):
    """Stored content cannot be decrypted with the configured key, or there is no key."""


class Encryption:
    """Encrypts stored content with one key; without a key, the content stays unencrypted."""

    def __init__(self, key: str | None = None) -> None:
        self._key = key

    @property
    def active(self) -> bool:
        """True if there is a key."""
        return self._key is not None

    @cached_property
    def _cipher(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(hmac.digest((self._key or "").encode(), _PURPOSE, hashlib.sha256))

    def encrypt(self, content: bytes, *, name: str) -> bytes:
        """Encrypt content so that it can be decrypted only under this name; without a key, return it unchanged."""
        if self._key is None:
            return content
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _MAGIC + nonce + self._cipher.encrypt(nonce, content, name.encode())

    def decrypt(self, content: bytes, *, name: str) -> bytes:
        """Decrypt stored content; return unencrypted content, stored before a key was configured, unchanged.

        Raises:
            UndecryptableContent: The content was encrypted with another key or name, or no key is configured.
        """
        if not content.startswith(_MAGIC):
            return content
        if self._key is None:
            raise UndecryptableContent(f"the file is encrypted, but {VARIABLE} is not set")
        from cryptography.exceptions import InvalidTag

        encrypted = content[len(_MAGIC) :]
        try:
            return self._cipher.decrypt(encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], name.encode())
        except (InvalidTag, ValueError):
            raise UndecryptableContent(f"the file is encrypted with another {VARIABLE}") from None


def encryption_from(environ: Mapping[str, str] | None = None) -> Encryption:
    """Create the encryption that environment variables configure.

    Raises:
        ConfigError: A key is configured but cannot be used.
    """
    environ = os.environ if environ is None else environ
    key, path = environ.get(VARIABLE), environ.get(FILE_VARIABLE)
    if key and path:
        raise ConfigError(
            f"is set together with {FILE_VARIABLE}; expected only one of them", file="environment", key=VARIABLE
        )
    if path:
        return Encryption(_check_key(_key_from_file(expand_home(path)), FILE_VARIABLE))
    if key == KEYRING:
        return Encryption(_key_from_keyring())
    return Encryption(_check_key(key, VARIABLE)) if key else Encryption()


def _check_key(key: str, variable: str) -> str:
    if len(key) < _MIN_CHARS:
        what = (
            f"is too short for a key; expected {_MIN_CHARS} random characters, such as those of `openssl rand -hex 32`"
        )
        raise ConfigError(what, file="environment", key=variable)
    return key


def _key_from_file(path: Path) -> str:
    try:
        content = read_private(path, most_bytes=_MAX_KEY_BYTES)
        return content.decode("utf-8").strip() if len(content) <= _MAX_KEY_BYTES else ""
    except ForeignFile as error:
        raise ConfigError(f"{error}; expected a file of mode 0600", file="environment", key=FILE_VARIABLE) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"{path} cannot be read ({reason})", file="environment", key=FILE_VARIABLE) from None


def _key_from_keyring() -> str:
    # Import by name, because the package is optional.
    try:
        keyring = import_module("keyring")
    except ImportError:
        expected = f"expected {install_command('keyring')}"
        raise ConfigError(f"needs a package; {expected}", file="environment", key=VARIABLE) from None
    try:
        stored = keyring.get_password(_SERVICE, _ENTRY)
        if not stored:
            keyring.set_password(_SERVICE, _ENTRY, secrets.token_urlsafe(_KEY_BYTES))
            # Read the key back: another process may have stored a key concurrently, and some keyrings store nothing.
            stored = keyring.get_password(_SERVICE, _ENTRY)
    except Exception as error:  # boundary: each keyring backend has its own errors
        what = f"the keyring of this system cannot be used ({type(error).__name__}); {_EXPECTED_KEY}"
        raise ConfigError(what, file="environment", key=VARIABLE) from error
    if not stored:
        what = f"the keyring of this system did not store the key; {_EXPECTED_KEY}"
        raise ConfigError(what, file="environment", key=VARIABLE)
    return _check_key(str(stored), f"{VARIABLE} ({_ENTRY} of {_SERVICE} in the keyring)")


FOLDER: Final = "sign-ins"
LOCK_S: Final = 30.0
"""Timeout for acquiring a lock. A task usually holds a lock for one request and one write, at most a third of this
time."""
# Interval at which a waiting task tries to acquire a file lock. The interval is short, because a call may be waiting;
# polling costs little, because tasks rarely have to wait.
_LOCK_POLL_S: Final = 0.02
# Maximum number of pending sign-ins in memory, more than the users of one process start within ten minutes.
_MAX_PENDING: Final = 256
# Maximum size of a document's file: enough for tokens of 32 KiB, metadata and a client registration, encrypted.
_MAX_BYTES: Final = 256 * 1024


def pending_key(purpose: Literal["state", "link", "token"], secret: str) -> str:
    """Return the key of a document that is used only once; the prefix `pending:` lets `sweep` remove it.

    A browser sends the secret to the gateway. The purpose is part of the key, so that the secret of a link, for
    example, is not accepted as the `state` of a sign-in.
    """
    return f"pending:{purpose}-{secret}"


class Conflict(Exception):
    """The stored document has changed since it was read."""


class StoreFailed(Exception):
    """The store is unavailable; the message gives the reason to the user or caller."""


class LockTimeout(StoreFailed):
    """A lock could not be acquired, because another process held it for `LOCK_S`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDocument:
    """A stored document.

    Attributes:
        version: A number that each change of the document increments.
    """

    version: int
    document: dict[str, Any]


class TokenStore(Protocol):
    """Stores JSON objects, called documents, under keys of the form `kind:name`.

    All processes with the same configuration share the documents, except those in a `MemoryTokenStore`.
    """

    async def load(self, key: str) -> StoredDocument | None:
        """Return a document; None if the document does not exist or is not valid.

        Raises:
            StoreFailed: The store is unavailable.
        """

    async def save(self, key: str, document: Mapping[str, Any], *, expected: int) -> int:
        """Store a document, and return its new version.

        Args:
            expected: The version that the new document replaces; 0 if the document does not exist yet.

        Raises:
            Conflict: The stored document does not have the expected version.
            StoreFailed: The document could not be stored.
        """

    async def remove(self, key: str) -> None:
        """Delete a document.

        Raises:
            StoreFailed: The document could not be deleted.
        """

    async def pop(self, key: str) -> dict[str, Any] | None:
        """Delete a document and return it; None if it does not exist. Only one of several concurrent callers gets it.

        Raises:
            StoreFailed: The store is unavailable.
        """

    async def sweep(self, kind: str, older_than_s: float) -> None:
        """Delete the documents of one kind that are older than `older_than_s`."""

    async def stamp(self, key: str) -> object:
        """Return a value that changes whenever the document changes; faster than `load`."""

    def lock(self, key: str) -> AbstractAsyncContextManager[None]:
        """Return a context manager that holds the exclusive lock of a key, across tasks and processes.

        Raises:
            LockTimeout: Another task or process held the lock for too long.
        """


class MemoryTokenStore:
    """Stores documents in memory until the process ends."""

    def __init__(self) -> None:
        self._stored: dict[str, StoredDocument] = {}
        self._locks = KeyedLocks()

    async def load(self, key: str) -> StoredDocument | None:
        return self._stored.get(key)

    async def save(self, key: str, document: Mapping[str, Any], *, expected: int) -> int:
        present = self._stored.get(key)
        if (present.version if present is not None else 0) != expected:
            raise Conflict
        self._stored[key] = StoredDocument(version=expected + 1, document=dict(document))
        return expected + 1

    async def remove(self, key: str) -> None:
        self._stored.pop(key, None)

    async def pop(self, key: str) -> dict[str, Any] | None:
        stored = self._stored.pop(key, None)
        return stored.document if stored is not None else None

    async def sweep(self, kind: str, older_than_s: float) -> None:
        # Documents in memory are lost with the process, so limit their number instead of their age. The dictionary
        # iterates in insertion order, so the oldest keys come first.
        keys = [key for key in self._stored if key.startswith(f"{kind}:")]
        for key in keys[:-_MAX_PENDING]:
            del self._stored[key]

    async def stamp(self, key: str) -> object:
        stored = self._stored.get(key)
        return stored.version if stored is not None else None

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        async with self._locks.get_lock(key):
            yield


class FileTokenStore:
    """Stores each document in a file that only the user who runs the gateway may read."""

    def __init__(self, state_dir: Path, encryption: Encryption) -> None:
        self._folder = state_dir / FOLDER
        self._encryption = encryption
        # Locks between the tasks of this process: they need no polling, and work where files cannot be locked.
        self._locks = KeyedLocks()

    async def load(self, key: str) -> StoredDocument | None:
        return await anyio.to_thread.run_sync(self._load, key)

    async def save(self, key: str, document: Mapping[str, Any], *, expected: int) -> int:
        """Store a document; the caller must hold the key's lock if other processes may write the document."""
        try:
            return await anyio.to_thread.run_sync(self._save, key, dict(document), expected)
        except OSError as error:
            raise _unwritable(error) from None

    async def remove(self, key: str) -> None:
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            raise _unwritable(error) from None

    async def pop(self, key: str) -> dict[str, Any] | None:
        path = self._path(key)
        mine = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        try:
            # If several processes rename the file, only one of them succeeds.
            os.rename(path, mine)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unwritable(error) from None
        try:
            stored = self._read_document(mine, key)
        finally:
            mine.unlink(missing_ok=True)
        return stored.document if stored is not None else None

    async def sweep(self, kind: str, older_than_s: float) -> None:
        # A process that ended during `pop` has left the file under its other name.
        for path in (*self._folder.glob(f"{kind}-*.json"), *self._folder.glob(f".{kind}-*.json-*")):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > older_than_s:
                    path.unlink()

    async def stamp(self, key: str) -> object:
        try:
            status = self._path(key).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        async with self._locks.get_lock(key):
            descriptor = await self._lock_file(key)
            try:
                yield
            finally:
                if descriptor is not None:
                    os.close(descriptor)

    async def _lock_file(self, key: str) -> int | None:
        if sys.platform == "win32":
            return None  # on Windows a gateway has only one process, so the lock between tasks is sufficient
        import fcntl

        try:
            self._make_folder()
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path(key).with_suffix(".lock"), flags, 0o600)
        except OSError as error:
            log.warning("state directory not locked: %s", error)
            return None
        try:
            with anyio.move_on_after(LOCK_S):
                while True:
                    with suppress(BlockingIOError):
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        return descriptor
                    await anyio.sleep(_LOCK_POLL_S)
            raise LockTimeout(f"another process has locked the sign-in for {LOCK_S:g} s; try again")
        except BaseException:
            os.close(descriptor)
            raise

    def _path(self, key: str) -> Path:
        kind, _, _ = key.partition(":")
        return self._folder / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:40]}.json"

    def _make_folder(self) -> None:
        make_private_folder(self._folder)

    def _load(self, key: str) -> StoredDocument | None:
        return self._read_document(self._path(key), key)

    def _read_document(self, path: Path, key: str) -> StoredDocument | None:
        try:
            content = read_private(path, most_bytes=_MAX_BYTES)
            if len(content) > _MAX_BYTES:
                raise UndecryptableContent("the file is too large")
            read = json_bytes.loads(self._encryption.decrypt(content, name=key))
            return StoredDocument(version=int(read["version"]), document=dict(read["document"]))
        except FileNotFoundError:
            return None
        except ForeignFile as error:
            log.warning("stored sign-in rejected: %s", error)
        except (UndecryptableContent, json_bytes.MalformedJson, KeyError, TypeError, ValueError) as error:
            log.warning("stored sign-in unreadable: %s", error)
        except OSError as error:
            log.warning("stored sign-in unreadable: %s", error.strerror)
        return None

    def _save(self, key: str, document: dict[str, Any], expected: int) -> int:
        self._make_folder()
        present = self._load(key)
        if (present.version if present is not None else 0) != expected:
            raise Conflict
        content = json_bytes.dumps({"version": expected + 1, "document": document})
        write_whole(self._path(key), self._encryption.encrypt(content, name=key))
        return expected + 1


def _unwritable(error: OSError) -> StoreFailed:
    return StoreFailed(f"the state directory cannot be written ({error.strerror})")


# Bounds the size of the list. Removing the oldest entry only shortens the list: that user stays signed in.
_MAX_USERS: Final = 2_000


class SignedInUsers:
    """Lists of the users who are signed in to each server, with the times of sign-in in seconds since 1970."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store
        self._cached: dict[tuple[str, str], tuple[object, dict[str, float]]] = {}

    def cached_users(self, server: str, url: str) -> dict[str, float]:
        """Return the times of sign-in by user name, as the latest call of `load` found them."""
        cached = self._cached.get((server, url))
        return cached[1] if cached is not None else {}

    async def load(self, server: str, url: str) -> dict[str, float]:
        """Return the current times of sign-in by user name; the store is read only if the list has changed."""
        key = _users_key(server, url)
        stamp = await self._store.stamp(key)
        cached = self._cached.get((server, url))
        if cached is None or cached[0] != stamp:
            cached = self._cached[server, url] = (stamp, _users(await self._store.load(key)))
        return cached[1]

    async def record(self, server: str, url: str, user: str, since_s: float | None) -> None:
        """Record when a user signed in; None removes a user who is no longer signed in."""
        key = _users_key(server, url)
        if (await self.load(server, url)).get(user) == since_s:
            return
        try:
            async with self._store.lock(key):
                stored = await self._store.load(key)
                users = _users(stored)
                users.pop(user, None)
                if since_s is not None:
                    users[user] = since_s
                while len(users) > _MAX_USERS:
                    del users[next(iter(users))]
                await self._store.save(key, {"users": users}, expected=stored.version if stored is not None else 0)
            await self.load(server, url)
        except (StoreFailed, Conflict) as error:
            log.warning("list of signed-in users not stored: %s", error, extra={"server": server})


def _users_key(server: str, url: str) -> str:
    return f"users:{server}\n{url}"


def _users(stored: StoredDocument | None) -> dict[str, float]:
    users: Any = stored.document.get("users") if stored is not None else None
    return dict(users) if isinstance(users, dict) else {}
