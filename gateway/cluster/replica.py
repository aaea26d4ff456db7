"""This replica of a cluster: its connections to other replicas, the state that it shares with them, and its metrics."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
from starlette.requests import Request
from starlette.responses import Response

from gateway.access.quotas import Sharing
from gateway.admin.routes import JsonDocument, Merge, route
from gateway.cluster.replicas import PeerCredentials, PeerRouter, Replicas, Resolve
from gateway.cluster.roles import ProcessRole, may_be_copied
from gateway.cluster.shared_changes import SharedChanges
from gateway.cluster.shared_limits import SharedLimits
from gateway.cluster.shared_parts import SharedLock, SharedOverlay
from gateway.cluster.shared_state import SharedParts, SharedState
from gateway.cluster.shared_store import StoreStatus, ValueCipher
from gateway.config.cluster_config import ClusterConfig
from gateway.config.model import Config
from gateway.http.server_connection import HttpProtocol
from gateway.http.server_connections import Connections, Handler
from gateway.upstream.oauth.token_store import TokenStore

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
            from gateway.cluster.shared_sign_ins import SharedTokenStore

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
