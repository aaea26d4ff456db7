"""This replica of a cluster: its connections to other replicas, the state and sign-ins that it shares, and its metrics.

While the store does not respond, users cannot sign in and tokens are not refreshed. Otherwise two replicas could use
the same refresh token. Access tokens that are still valid remain in use.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import Response

from gateway.access.quotas import Sharing
from gateway.admin.routes import JsonDocument, Merge, route
from gateway.cluster.redis_store import RedisStore, translated_errors
from gateway.cluster.replicas import PeerCredentials, PeerRouter, Replicas, Resolve
from gateway.cluster.roles import ProcessRole, may_be_copied
from gateway.cluster.shared_changes import SharedChanges
from gateway.cluster.shared_limits import SharedLimits
from gateway.cluster.shared_state import SharedLock, SharedOverlay, SharedParts, SharedState
from gateway.cluster.shared_store import DecryptionFailed, StoreStatus, StoreTrouble, ValueCipher
from gateway.config.cluster_config import ClusterConfig
from gateway.config.model import Config
from gateway.http.server_connection import HttpProtocol
from gateway.http.server_connections import Connections, Handler
from gateway.protocol import json_bytes
from gateway.upstream.oauth.token_store import (
    LOCK_S,
    Conflict,
    KeyedLocks,
    LockTimeout,
    StoredDocument,
    StoreFailed,
    TokenStore,
)

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


log = logging.getLogger(__name__)

_OUTCOMES: Final = ("answered", "lost", "gone")
_TROUBLES: Final = ("down", "slow", "full")
_ROW: Final = {
    "name": "gateway-0",
    "peers": {"answered": 12, "lost": 0, "gone": 0},
    "store": {"state": "up", "since": 1801382400.5, "lastError": None, "failing": []},
    "pendingChanges": 0,
    "replicas": 3,
    "limits": "shared",
}


class ClusterRoutes:
    """Shows the state of this replica and its cluster."""

    def __init__(self, row: Callable[[], dict[str, Any]]) -> None:
        self._row = row

    @route("GET", "/admin/cluster", merge=Merge.SAME, example=_ROW)
    async def cluster(self, request: Request) -> Response:
        """Return the state of this replica and its cluster.

        Returns:
            `name`; `peers`: requests forwarded to other replicas by outcome, null without peers; `store`: state (up,
            down, slow, full, starting), since, lastError and failing, null without a store; `pendingChanges`: changes
            of this replica that are not yet in the store; `replicas`: the number of running replicas; `limits`: shared,
            or each (counted by each replica alone).
        """
        return JsonDocument(self._row())


def render(
    replicas: Replicas | None, status: StoreStatus | None, limits: SharedLimits | None, changes: SharedChanges | None
) -> str:
    """Return the metrics of the cluster in the Prometheus text format."""
    lines: list[str] = []
    if replicas is not None:
        forwarded = {outcome: replicas.outcomes[outcome] for outcome in _OUTCOMES}
        lines += _family(
            "typegate_cluster_carried_total",
            "counter",
            "Requests forwarded to the replica that has their session.",
            {f'{{outcome="{outcome}"}}': count for outcome, count in forwarded.items()},
        )
    if status is not None and limits is not None and changes is not None:
        lines += _family(
            "typegate_cluster_store_up",
            "gauge",
            "Whether the shared store works.",
            {"": int(status.state == "up")},
        )
        lines += _family(
            "typegate_cluster_store_errors_total",
            "counter",
            "Failed operations of the shared store.",
            {f'{{kind="{kind}"}}': status.troubles[kind] for kind in _TROUBLES},
        )
        lines += _family(
            "typegate_cluster_pending_changes",
            "gauge",
            "Changes of this replica that are not yet in the store.",
            {"": changes.pending},
        )
        lines += _family("typegate_cluster_replicas", "gauge", "Running replicas.", {"": limits.replicas})
        lines += _family(
            "typegate_cluster_limits_shared",
            "gauge",
            "Whether calls per minute are counted across all replicas.",
            {"": int(limits.shared)},
        )
    return "".join(f"{line}\n" for line in lines)


def _family(name: str, kind: str, text: str, samples: Mapping[str, Any]) -> list[str]:
    figures = [f"{name}{labels} {value}" for labels, value in samples.items()]
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *figures]


# Maximum number of connections that wait to be accepted, as on the port for callers. A lower number would make the
# kernel refuse a burst of forwarded requests.
_BACKLOG: Final = 2048
# Time limit for a TLS handshake. Between replicas it takes milliseconds, so a slower client is not a replica.
_HANDSHAKE_S: Final = 5.0
# Time for connections that are being established to appear in `Replica.connections`.
_SETTLED_S: Final = 0.25
# Time limit for connections to close. A busy connection closes after its next response; an idle one may stay open.
_LEAVE_S: Final = 0.5
_POLL_S: Final = 0.02
_INSTANCE_CHARS: Final = 16


class Replica:
    """This replica of the cluster.

    Attributes:
        config: The section `gateway.cluster`.
        name: The name of this replica.
        role: The process role of this replica.
        credentials: The keys and certificates of this replica.
        replicas: The other replicas; None if requests are not forwarded to other replicas.
        connections: Incoming connections of other replicas.
        status: The status of the shared store; None without a store.
        limits: Counts calls jointly with the other replicas; None without a store.
    """

    def __init__(
        self, config: ClusterConfig, *, most: int, state_dir: Path | None = None, resolve: Resolve | None = None
    ) -> None:
        """Create this replica.

        Args:
            config: The section `gateway.cluster`.
            most: The maximum number of concurrent connections of other replicas.
            state_dir: The directory for a local copy of the shared state; None for no copy.
            resolve: Resolves host names; by default the system's resolver.
        """
        peers, signing_key = config.peers, config.signing_key
        self.config = config
        self._state_dir = state_dir
        self.name = peers.own_name if peers is not None else socket.gethostname()
        secret = (signing_key if peers is None else peers.secret) or signing_key
        assert secret is not None, "the model has checked it"
        self.credentials = PeerCredentials(secret.get_secret_value(), self.name)
        signing = (
            PeerCredentials(signing_key.get_secret_value(), self.name) if signing_key is not None else self.credentials
        )
        self.replicas = Replicas(peers, self.credentials, resolve=resolve) if peers is not None else None
        self.connections = Connections(most=most)
        self._server: asyncio.AbstractServer | None = None
        self.limits: SharedLimits | None = None
        self._shared: SharedState | None = None
        sign_ins: TokenStore | None = None
        self.status: StoreStatus | None = None
        if config.store is not None:
            # Imported lazily: only a cluster with a store needs the redis package.
            from gateway.cluster.redis_store import RedisStore

            store, self.status = RedisStore(config.store), StoreStatus()
            self._shared = SharedState(store, ValueCipher(self.credentials.key("the shared store")), self.status)
            self.limits = SharedLimits(self.name, store, self.status)
            sign_ins = SharedTokenStore(
                store, ValueCipher(self.credentials.key("sign-ins in the shared store")), self.status
            )
        self.role = ProcessRole(
            # Derived from the peer secret, so that the id does not expose it.
            instance=self.credentials.key("instance").hex()[:_INSTANCE_CHARS],
            name=self.name,
            new_session_id=self.credentials.new_session_id if peers is not None else None,
            signing_key=signing.key("signed states"),
            writes=True,
            admits=lambda alias, server: None,
            on_failure=None,
            on_cleared=lambda server, tool: None,
            share_approvals=self._shared.share_approvals if self._shared is not None else None,
            sign_ins=sign_ins,
            sharing=Sharing(ledger=self.limits) if self.limits is not None else None,
            on_approvals_changed=self._shared.approvals_changed if self._shared is not None else lambda: None,
            fetch_result=self.replicas.fetch_result if self.replicas is not None else None,
        )

    @property
    def changes(self) -> SharedChanges | None:
        """Return the state shared with all replicas; None without a store, and before `join`."""
        return self._shared.changes if self._shared is not None else None

    def join(self, parts: SharedParts) -> None:
        """Prepare to share the state of this gateway, if a store is configured; `serve_peers` starts sharing.

        Until the revocations of API keys are known, the keys are not accepted.
        """
        if self._shared is None:
            return
        self._shared.join(
            parts,
            (SharedLock(parts.fleet), SharedOverlay(parts.reloader)),
            state_dir=self._state_dir,
            ask_peers=None if self.replicas is None else self.replicas.ask_all,
            on_informed=parts.keys.accept,
        )
        parts.keys.withhold()

    def wake(self) -> None:
        """Share state that has changed, without waiting for the next poll."""
        if self._shared is not None:
            self._shared.wake()

    async def leave(self) -> None:
        """Stop accepting connections of other replicas, then wait briefly for the open connections to close.

        Without the wait, a forwarded request could remain without a response. The other replica could then not know
        whether the request was carried out.
        """
        if self._server is None:
            return
        self._server.close()
        await anyio.sleep(_SETTLED_S)
        with anyio.move_on_after(_LEAVE_S):
            while self.connections.open:
                await anyio.sleep(_POLL_S)

    @property
    def routes(self) -> tuple[object, ...]:
        """Return the objects with the admin routes of the cluster."""
        return (ClusterRoutes(self.row),)

    def metrics(self) -> str:
        """Return the metrics of the cluster in the Prometheus text format."""
        return render(self.replicas, self.status, self.limits, self.changes)

    def row(self) -> dict[str, Any]:
        """Return the state of this replica, as `/admin/cluster` shows it."""
        limits = self.limits
        return {
            "name": self.name,
            "peers": None if self.replicas is None else dict(self.replicas.outcomes),
            "store": None if self.status is None else self.status.row(),
            "pendingChanges": 0 if self.changes is None else self.changes.pending,
            "replicas": None if limits is None else limits.replicas,
            "limits": "shared" if limits is not None and limits.shared else "each",
        }

    @asynccontextmanager
    async def serve_peers(
        self,
        listener: socket.socket | None,
        endpoint: Handler,
        draining: Callable[[], bool],
        results: Callable[[str], bytes],
    ) -> AsyncIterator[None]:
        """Serve other replicas for the duration of the context.

        Args:
            listener: The socket for other replicas; None without peers.
            endpoint: Handles requests for sessions of this process.
            draining: Returns whether this replica is shutting down.
            results: Returns a stored result of this replica, given the id of the result.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self.connections.watch)
            if self.changes is not None and self.limits is not None:
                # Load before serving callers, because the replica has to know which API keys are revoked.
                await self.changes.load()
                group.start_soon(self.changes.run)
                group.start_soon(self.limits.run)
            if listener is not None:
                router = PeerRouter(
                    endpoint, draining, None if self.changes is None else self.changes.document, results
                )
                self._server = await asyncio.get_running_loop().create_server(
                    lambda: HttpProtocol(self.connections, router),
                    sock=listener,
                    ssl=self.credentials.listener_context,
                    ssl_handshake_timeout=_HANDSHAKE_S,
                    backlog=_BACKLOG,
                )
                log.info("listening for other replicas on port %d", listener.getsockname()[1])
            try:
                yield
            finally:
                if self._server is not None:
                    self._server.close()
                if self.replicas is not None:
                    self.replicas.close()
            group.cancel_scope.cancel()
        if self._shared is not None:
            await self._shared.close()


def warn_of_private(config: Config) -> None:
    """Log a warning about servers that run separately in each replica, because their state may then differ."""
    names = [alias for alias, server in config.servers.items() if not may_be_copied(server)]
    if names:
        log.warning(
            "each replica starts its own process of %s, so state left by one call may be missing in the next. "
            'Set "copies": true in the entry if the server has no such state',
            ", ".join(names),
        )
