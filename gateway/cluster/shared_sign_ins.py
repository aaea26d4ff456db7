"""Sign-ins to upstreams, shared by all replicas.

While the store does not respond, users cannot sign in and tokens are not refreshed. Otherwise two replicas could use
the same refresh token. Access tokens that are still valid remain in use.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from cachetools import LRUCache

from gateway.cluster.redis_store import RedisStore, translated_errors
from gateway.cluster.shared_store import DecryptionFailed, StoreStatus, StoreTrouble, ValueCipher
from gateway.protocol import json_bytes
from gateway.upstream.oauth.token_store import LOCK_S, Conflict, KeyedLocks, LockTimeout, StoredDocument, StoreFailed

# A lock expires after this time, in case its replica has crashed. Work that needs the lock does not take longer.
_LOCK_MS: Final = int(LOCK_S * 1000)
_LOCK_POLL_S: Final = 0.05
# The prefix of the keys of sign-ins in progress, and the seconds after which these sign-ins expire. Sign-in links are
# valid for less time: ten minutes.
_PENDING: Final = "pending:"
_PENDING_S: Final = 900
_TOKEN_BYTES: Final = 16
_DIGEST_CHARS: Final = 40

# Maximum number of sign-ins to cache for outages of the store: more than the callers that are active at a time.
_MOST_KNOWN: Final = 4_096

_SAVE: Final = """
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or 0)
local present = redis.call('HEXISTS', KEYS[1], 'sealed') == 1 and version or 0
if present ~= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'version', version + 1, 'sealed', ARGV[2])
if ARGV[3] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return version + 1
"""
# Delete the document, but store an increased version, so that no replica restores the document from its cache.
_REMOVE: Final = """
if redis.call('HDEL', KEYS[1], 'sealed') == 1 then redis.call('HINCRBY', KEYS[1], 'version', 1) end
"""
# Versions only increase, so a stored version below a replica's cached version means that the store has lost data.
_RESTORE: Final = """
if tonumber(redis.call('HGET', KEYS[1], 'version') or 0) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'sealed', ARGV[2])
end
"""
_TAKE: Final = """
local sealed = redis.call('HGET', KEYS[1], 'sealed')
redis.call('DEL', KEYS[1])
return sealed
"""
_UNLOCK: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"


class SharedTokenStore:
    """Sign-ins in the shared store (implements `gateway.upstream.oauth.token_store.TokenStore`)."""

    def __init__(self, store: RedisStore, cipher: ValueCipher, status: StoreStatus) -> None:
        self._store = store
        self._client = store.client
        self._cipher = cipher
        self._status = status
        # The last known values, used while the store does not respond.
        self._stamps: LRUCache[str, object] = LRUCache(_MOST_KNOWN)
        self._cached: LRUCache[str, StoredDocument] = LRUCache(_MOST_KNOWN)
        self._locks = KeyedLocks()

    async def load(self, key: str) -> StoredDocument | None:
        try:
            await self._restore(key)
            with translated_errors():
                version, encrypted = await self._client.hmget(self._name(key), ["version", "sealed"])
        except StoreTrouble as failed:
            self._status.failed("sign-ins", failed)
            if key.startswith(_PENDING):
                raise _store_error(failed) from None
            return self._cached.get(key)
        self._status.answered("sign-ins")
        stored = None
        if version is not None and encrypted is not None:
            stored = self._decrypt_document(key, str(encrypted), int(version))
        self._remember(key, stored)
        return stored

    async def save(self, key: str, document: Mapping[str, Any], *, expected: int) -> int:
        lasts_s = _PENDING_S if key.startswith(_PENDING) else 0
        encrypted = self._cipher.encrypt(dict(document), key)
        try:
            with translated_errors():
                saved = await self._client.eval(_SAVE, 1, self._name(key), str(expected), encrypted, str(lasts_s))
        except StoreTrouble as failed:
            self._status.failed("sign-ins", failed)
            raise _store_error(failed) from None
        self._status.answered("sign-ins")
        if not saved:
            raise Conflict
        self._remember(key, StoredDocument(version=int(saved), document=dict(document)))
        return int(saved)

    async def remove(self, key: str) -> None:
        self._cached.pop(key, None)
        try:
            with translated_errors():
                await self._client.eval(_REMOVE, 1, self._name(key))
        except StoreTrouble as failed:
            self._status.failed("sign-ins", failed)
            raise _store_error(failed) from None

    async def pop(self, key: str) -> dict[str, Any] | None:
        try:
            with translated_errors():
                encrypted = await self._client.eval(_TAKE, 1, self._name(key))
        except StoreTrouble as failed:
            self._status.failed("sign-ins", failed)
            raise _store_error(failed) from None
        stored = self._decrypt_document(key, str(encrypted), 0) if encrypted is not None else None
        return stored.document if stored is not None else None

    async def sweep(self, kind: str, older_than_s: float) -> None:
        """Do nothing: entries of the store expire automatically."""

    async def stamp(self, key: str) -> object:
        try:
            await self._restore(key)
            with translated_errors():
                version = self._stamps[key] = await self._client.hget(self._name(key), "version")
        except StoreTrouble as failed:
            self._status.failed("sign-ins", failed)
            return self._stamps.get(key)
        self._status.answered("sign-ins")
        return version

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """Lock a key across all replicas for the duration of the context.

        Raises:
            LockTimeout: The store does not respond, or another replica has not released the lock in time.
        """
        name, token = f"{self._name(key)}:lock", secrets.token_hex(_TOKEN_BYTES)
        async with self._locks.get_lock(key):
            await self._lock(name, token)
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self._unlock(name, token)

    def _remember(self, key: str, stored: StoredDocument | None) -> None:
        """Cache a document for outages of the store, but not a sign-in in progress, which may be used only once."""
        if stored is None:
            self._cached.pop(key, None)
        elif not key.startswith(_PENDING):
            self._cached[key] = stored

    async def _restore(self, key: str) -> None:
        """Write a cached document back to a store that has lost it."""
        stored = self._cached.get(key)
        if stored is None:
            return
        with translated_errors():
            present = await self._client.hget(self._name(key), "version")
            if int(present or 0) < stored.version:
                encrypted = self._cipher.encrypt(stored.document, key)
                await self._client.eval(_RESTORE, 1, self._name(key), str(stored.version), encrypted)

    async def _lock(self, name: str, token: str) -> None:
        until_s = time.monotonic() + LOCK_S
        while time.monotonic() < until_s:
            try:
                with translated_errors():
                    if await self._client.set(name, token, nx=True, px=_LOCK_MS):
                        return
            except StoreTrouble as failed:
                self._status.failed("sign-ins", failed)
                raise LockTimeout(f"the shared store is {failed.kind}, and sign-ins need it") from None
            await anyio.sleep(_LOCK_POLL_S)
        raise LockTimeout(f"another replica has locked the sign-in for {LOCK_S:g} s; try again")

    async def _unlock(self, name: str, token: str) -> None:
        try:
            with translated_errors():
                await self._client.eval(_UNLOCK, 1, name, token)
        except StoreTrouble as failed:
            self._status.failed("sign-ins", failed)  # the lock will expire

    def _name(self, key: str) -> str:
        kind, _, _ = key.partition(":")
        return self._store.key(f"{kind}:{hashlib.sha256(key.encode()).hexdigest()[:_DIGEST_CHARS]}")

    def _decrypt_document(self, key: str, encrypted: str, version: int) -> StoredDocument | None:
        try:
            document = self._cipher.decrypt(encrypted, key)
        except (DecryptionFailed, json_bytes.MalformedJson):
            return None
        return StoredDocument(version=version, document=dict(document))


def _store_error(trouble: StoreTrouble) -> StoreFailed:
    return StoreFailed(f"the shared store is {trouble.kind}")
