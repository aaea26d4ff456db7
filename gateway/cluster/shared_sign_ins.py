"""Sign-ins to upstreams, shared by all gateways of a cluster: refreshed by one of them, and known to all.

While the store does not answer, nobody signs in and nothing is refreshed: a token is never spent twice, and those that
are still good go on being used.
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

from gateway import wire
from gateway.cluster.redis_store import RedisStore, trouble
from gateway.cluster.sealing import NotSealed, Seal
from gateway.cluster.status import StoreStatus
from gateway.cluster.store import StoreTrouble
from gateway.upstream.oauth.keyed_locks import KeyedLocks
from gateway.upstream.oauth.store import LOCK_S, Conflict, Kept, LockTimeout, StoreFailed

# Whoever ends without letting go of a lock holds up the others no longer than its work can take.
_LOCK_MS: Final = int(LOCK_S * 1000)
_TRY_LOCK_S: Final = 0.05
# Sign-ins that were begun and that nobody ends; a link is good for ten minutes.
_PENDING: Final = "pending:"
_PENDING_S: Final = 900
_TOKEN_BYTES: Final = 16
_DIGEST_CHARS: Final = 40

# Of what is known here for as long as the store does not answer: those of callers who come at the time.
_MOST_KNOWN: Final = 4_096

_SAVE: Final = """
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or 0)
local present = redis.call('HEXISTS', KEYS[1], 'sealed') == 1 and version or 0
if present ~= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'version', version + 1, 'sealed', ARGV[2])
if ARGV[3] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return version + 1
"""
# The version stays, and grows: whoever knows the document would bring it back into a store that knows of none.
_REMOVE: Final = """
if redis.call('HDEL', KEYS[1], 'sealed') == 1 then redis.call('HINCRBY', KEYS[1], 'version', 1) end
"""
# Versions only grow, unless the store has lost what it had.
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


class SharedSignIns:
    """See `gateway.upstream.oauth.store.Store`.

    Args:
        store: Where they are kept.
        seal: Seals them.
        status: Is told how the store does.
    """

    def __init__(self, store: RedisStore, seal: Seal, status: StoreStatus) -> None:
        self._store = store
        self._client = store.client
        self._seal = seal
        self._status = status
        # What was last known, for as long as the store does not answer.
        self._stamps: LRUCache[str, object] = LRUCache(_MOST_KNOWN)
        self._kept: LRUCache[str, Kept] = LRUCache(_MOST_KNOWN)
        self._locks = KeyedLocks()

    async def load(self, key: str) -> Kept | None:
        """See `Store.load`."""
        try:
            await self._restore(key)
            with trouble():
                version, sealed = await self._client.hmget(self._name(key), ["version", "sealed"])
        except StoreTrouble as failed:
            self._status.failed("sign-ins", failed)
            if key.startswith(_PENDING):
                raise _failed(failed) from None
            return self._kept.get(key)
        self._status.answered("sign-ins")
        kept = None
        if version is not None and sealed is not None:
            kept = self._opened(key, str(sealed), int(version))
        self._note(key, kept)
        return kept

    async def save(self, key: str, document: Mapping[str, Any], *, expected: int) -> int:
        """See `Store.save`."""
        lasts_s = _PENDING_S if key.startswith(_PENDING) else 0
        sealed = self._seal.seal(dict(document), key)
        try:
            with trouble():
                saved = await self._client.eval(_SAVE, 1, self._name(key), str(expected), sealed, str(lasts_s))
        except StoreTrouble as failed:
            self._status.failed("sign-ins", failed)
            raise _failed(failed) from None
        self._status.answered("sign-ins")
        if not saved:
            raise Conflict
        self._note(key, Kept(version=int(saved), document=dict(document)))
        return int(saved)

    async def remove(self, key: str) -> None:
        """See `Store.remove`."""
        self._kept.pop(key, None)
        try:
            with trouble():
                await self._client.eval(_REMOVE, 1, self._name(key))
        except StoreTrouble as failed:
            self._status.failed("sign-ins", failed)
            raise _failed(failed) from None

    async def take(self, key: str) -> dict[str, Any] | None:
        """See `Store.take`."""
        try:
            with trouble():
                sealed = await self._client.eval(_TAKE, 1, self._name(key))
        except StoreTrouble as failed:
            self._status.failed("sign-ins", failed)
            raise _failed(failed) from None
        kept = self._opened(key, str(sealed), 0) if sealed is not None else None
        return kept.document if kept is not None else None

    async def sweep(self, kind: str, older_than_s: float) -> None:
        """See `Store.sweep`: what nobody ends expires by itself."""

    async def stamp(self, key: str) -> object:
        """See `Store.stamp`."""
        try:
            await self._restore(key)
            with trouble():
                found = self._stamps[key] = await self._client.hget(self._name(key), "version")
        except StoreTrouble as failed:
            self._status.failed("sign-ins", failed)
            return self._stamps.get(key)
        self._status.answered("sign-ins")
        return found

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """See `Store.lock`; where the store does not answer nobody has it."""
        name, token = f"{self._name(key)}:lock", secrets.token_hex(_TOKEN_BYTES)
        async with self._locks.of(key):
            await self._lock(name, token)
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self._unlock(name, token)

    def _note(self, key: str, kept: Kept | None) -> None:
        """Know it for as long as the store does not answer; what may be used once only is known to the store alone."""
        if kept is None:
            self._kept.pop(key, None)
        elif not key.startswith(_PENDING):
            self._kept[key] = kept

    async def _restore(self, key: str) -> None:
        """Bring back what is known here, where the store was started empty."""
        kept = self._kept.get(key)
        if kept is None:
            return
        with trouble():
            stored = await self._client.hget(self._name(key), "version")
            if int(stored or 0) < kept.version:
                sealed = self._seal.seal(kept.document, key)
                await self._client.eval(_RESTORE, 1, self._name(key), str(kept.version), sealed)

    async def _lock(self, name: str, token: str) -> None:
        until_s = time.monotonic() + LOCK_S
        while time.monotonic() < until_s:
            try:
                with trouble():
                    if await self._client.set(name, token, nx=True, px=_LOCK_MS):
                        return
            except StoreTrouble as failed:
                self._status.failed("sign-ins", failed)
                raise LockTimeout(f"the shared store is {failed.kind}, and sign-ins wait for it") from None
            await anyio.sleep(_TRY_LOCK_S)
        raise LockTimeout(f"another gateway has held a sign-in for {LOCK_S:g} s")

    async def _unlock(self, name: str, token: str) -> None:
        try:
            with trouble():
                await self._client.eval(_UNLOCK, 1, name, token)
        except StoreTrouble as failed:
            self._status.failed("sign-ins", failed)  # it ends by itself

    def _name(self, key: str) -> str:
        kind, _, _ = key.partition(":")
        return self._store.key(f"{kind}:{hashlib.sha256(key.encode()).hexdigest()[:_DIGEST_CHARS]}")

    def _opened(self, key: str, sealed: str, version: int) -> Kept | None:
        try:
            document = self._seal.open(sealed, key)
        except (NotSealed, wire.MalformedJson):
            return None
        return Kept(version=version, document=dict(document))


def _failed(trouble: StoreTrouble) -> StoreFailed:
    return StoreFailed(f"the shared store is {trouble.kind}")
