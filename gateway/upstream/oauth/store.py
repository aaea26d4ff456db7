"""Where sign-ins are kept: in the state directory, or in memory; several processes may share a directory."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread

from gateway import wire
from gateway.files import NotOurs, make_private_folder, read_private, write_whole
from gateway.upstream.oauth.encryption import Encryption, Undecipherable
from gateway.upstream.oauth.keyed_locks import KeyedLocks

log = logging.getLogger(__name__)

FOLDER: Final = "sign-ins"
LOCK_S: Final = 30.0
"""How long a lock is waited for: its owner holds it for one request and one write, which take a third of that."""
# How often a lock is tried: tokens are refreshed some times an hour.
_TRY_LOCK_S: Final = 0.02
# Sign-ins that were begun and that nobody ends: more than people of one process begin in ten minutes.
_MOST_IN_MEMORY: Final = 256
# Tokens of 32 KiB, metadata and a registration, encrypted.
_MAX_BYTES: Final = 256 * 1024


class Conflict(Exception):
    """What is kept has changed since it was read."""


class StoreFailed(Exception):
    """A store does not do what it was asked; the text says why, for whoever signs in or calls."""


class LockTimeout(StoreFailed):
    """Another process has held a lock for longer than its work can take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One document.

    Attributes:
        version: Goes up with each change of it.
    """

    version: int
    document: dict[str, Any]


class Store(Protocol):
    """Documents by key, `kind:name`, shared by all processes that serve one configuration."""

    async def load(self, key: str) -> Kept | None:
        """The document; None where there is none that can be believed.

        Raises:
            StoreFailed: It may be there, and nothing is known of it here.
        """

    async def save(self, key: str, document: Mapping[str, Any], *, expected: int) -> int:
        """Keep a document in place of that version, 0 for none; returns its own version.

        Raises:
            Conflict: It is another version by now.
            StoreFailed: It cannot be kept.
        """

    async def remove(self, key: str) -> None:
        """Forget a document.

        Raises:
            StoreFailed: It stays.
        """

    async def take(self, key: str) -> dict[str, Any] | None:
        """Forget a document and return it; of several who try, one gets it. None where there is none.

        Raises:
            StoreFailed: It may be there, and cannot be had.
        """

    async def sweep(self, kind: str, older_than_s: float) -> None:
        """Forget documents whose keys begin with `kind:` and that nobody took within this time."""

    async def stamp(self, key: str) -> object:
        """Differs when the document does; a quick look."""

    def lock(self, key: str) -> AbstractAsyncContextManager[None]:
        """Hold what no other task or process may do at the same time for this key.

        Raises:
            LockTimeout: Another one held it for too long.
        """


class MemoryStore:
    """See `Store`; it ends with the process."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._locks = KeyedLocks()

    async def load(self, key: str) -> Kept | None:
        """See `Store.load`."""
        return self._kept.get(key)

    async def save(self, key: str, document: Mapping[str, Any], *, expected: int) -> int:
        """See `Store.save`."""
        present = self._kept.get(key)
        if (present.version if present is not None else 0) != expected:
            raise Conflict
        self._kept[key] = Kept(version=expected + 1, document=dict(document))
        return expected + 1

    async def remove(self, key: str) -> None:
        """See `Store.remove`."""
        self._kept.pop(key, None)

    async def take(self, key: str) -> dict[str, Any] | None:
        """See `Store.take`."""
        kept = self._kept.pop(key, None)
        return kept.document if kept is not None else None

    async def sweep(self, kind: str, older_than_s: float) -> None:
        """See `Store.sweep`."""
        # The process is their bound where there are few; the oldest are the first.
        found = [key for key in self._kept if key.startswith(f"{kind}:")]
        for key in found[:-_MOST_IN_MEMORY]:
            del self._kept[key]

    async def stamp(self, key: str) -> object:
        """See `Store.stamp`."""
        kept = self._kept.get(key)
        return kept.version if kept is not None else None

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """See `Store.lock`."""
        async with self._locks.of(key):
            yield


class FileStore:
    """See `Store`: one file for each document, which only its owner may read."""

    def __init__(self, state_dir: Path, encryption: Encryption) -> None:
        self._folder = state_dir / FOLDER
        self._encryption = encryption
        # Locks of files are the process's: its tasks are told apart here.
        self._locks = KeyedLocks()

    async def load(self, key: str) -> Kept | None:
        """See `Store.load`."""
        return await anyio.to_thread.run_sync(self._load, key)

    async def save(self, key: str, document: Mapping[str, Any], *, expected: int) -> int:
        """See `Store.save`; the lock of the key has to be held where others may write it."""
        try:
            return await anyio.to_thread.run_sync(self._save, key, dict(document), expected)
        except OSError as error:
            raise _unwritable(error) from None

    async def remove(self, key: str) -> None:
        """See `Store.remove`."""
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            raise _unwritable(error) from None

    async def take(self, key: str) -> dict[str, Any] | None:
        """See `Store.take`."""
        path = self._path(key)
        mine = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        try:
            # One of several renames finds the file.
            os.rename(path, mine)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unwritable(error) from None
        try:
            kept = self._read(mine, key)
        finally:
            mine.unlink(missing_ok=True)
        return kept.document if kept is not None else None

    async def sweep(self, kind: str, older_than_s: float) -> None:
        """See `Store.sweep`."""
        for path in self._folder.glob(f"{kind}-*.json"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > older_than_s:
                    path.unlink()

    async def stamp(self, key: str) -> object:
        """See `Store.stamp`."""
        try:
            found = self._path(key).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """See `Store.lock`."""
        async with self._locks.of(key):
            descriptor = await self._lock_file(key)
            try:
                yield
            finally:
                if descriptor is not None:
                    os.close(descriptor)

    async def _lock_file(self, key: str) -> int | None:
        if sys.platform == "win32":
            return None  # one process serves there: several workers need another system
        import fcntl

        try:
            self._make_folder()
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path(key).with_suffix(".lock"), flags, 0o600)
        except OSError as error:
            log.warning("the state directory cannot be locked: %s", error)
            return None
        try:
            with anyio.move_on_after(LOCK_S):
                while True:
                    with suppress(BlockingIOError):
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        return descriptor
                    await anyio.sleep(_TRY_LOCK_S)
            raise LockTimeout(f"another process has held a sign-in for {LOCK_S:g} s")
        except BaseException:
            os.close(descriptor)
            raise

    def _path(self, key: str) -> Path:
        kind, _, _ = key.partition(":")
        return self._folder / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:40]}.json"

    def _make_folder(self) -> None:
        make_private_folder(self._folder)

    def _load(self, key: str) -> Kept | None:
        return self._read(self._path(key), key)

    def _read(self, path: Path, key: str) -> Kept | None:
        try:
            content = read_private(path, most_bytes=_MAX_BYTES)
            if len(content) > _MAX_BYTES:
                raise Undecipherable("it is too large")
            read = wire.loads(self._encryption.decrypt(content, name=key))
            return Kept(version=int(read["version"]), document=dict(read["document"]))
        except FileNotFoundError:
            return None
        except NotOurs as error:
            log.warning("a kept sign-in is not believed: %s", error)
        except (Undecipherable, wire.MalformedJson, KeyError, TypeError, ValueError) as error:
            log.warning("a kept sign-in cannot be read: %s", error)
        except OSError as error:
            log.warning("a kept sign-in cannot be read: %s", error.strerror)
        return None

    def _save(self, key: str, document: dict[str, Any], expected: int) -> int:
        self._make_folder()
        present = self._load(key)
        if (present.version if present is not None else 0) != expected:
            raise Conflict
        content = wire.dumps({"version": expected + 1, "document": document})
        write_whole(self._path(key), self._encryption.encrypt(content, name=key))
        return expected + 1


def _unwritable(error: OSError) -> StoreFailed:
    return StoreFailed(f"the state directory cannot be written ({error.strerror})")
