"""One of several gateways with one configuration, each on its own machine: its part, and its port for the others."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio

from gateway.access.administrators import EndedSessions
from gateway.access.api_keys import ApiKeys
from gateway.access.quotas import Quotas
from gateway.calls.approval_book import ApprovalBook, Book
from gateway.cluster.cluster_routes import ClusterRoutes, render
from gateway.cluster.peer_credentials import PeerCredentials
from gateway.cluster.pods import PeerRouter, Pods, Resolve
from gateway.cluster.role import Role
from gateway.cluster.sealing import Seal
from gateway.cluster.shared_book import SharedBook
from gateway.cluster.shared_changes import SharedChanges
from gateway.cluster.shared_limits import SharedLimits
from gateway.cluster.shared_parts import (
    SharedApprovals,
    SharedEndedSessions,
    SharedLock,
    SharedNotes,
    SharedOverlay,
    SharedRevocations,
)
from gateway.cluster.single_process_only import may_be_copied
from gateway.cluster.status import StoreStatus
from gateway.cluster.store import SharedStore
from gateway.config.cluster import ClusterConfig
from gateway.config.model import Config
from gateway.downstream.http.connections import Connections
from gateway.downstream.http.handler import Handler
from gateway.downstream.http.protocol import HttpProtocol
from gateway.fleet import Fleet
from gateway.operator_notes import OperatorNotes
from gateway.reload import Reloader
from gateway.upstream.oauth.store import Store as SignIns

log = logging.getLogger(__name__)

# As of the port that callers use: a burst of carried requests must not be refused by the kernel.
_BACKLOG: Final = 2048
# Between gateways it takes milliseconds; whoever is slower is none of them.
_HANDSHAKE_S: Final = 5.0
_SETTLED_S: Final = 0.25
# Each connection ends with its next answer; those that are merely kept for later are of no use any more.
_LEAVE_S: Final = 0.5
_POLL_S: Final = 0.02
_INSTANCE_CHARS: Final = 16


class Pod:
    """One gateway's place in the cluster.

    Attributes:
        config: What the file says of the cluster.
        name: The name of this gateway.
        role: What its parts have to know.
        pods: The other gateways; None where sessions are not carried.
        connections: Those on which the others ask this one.
        status: How the store does; None, as the two that follow, where there is none.
        limits: The calls of all gateways.
        changes: What all gateways hold alike; from `join` on.
    """

    def __init__(self, config: ClusterConfig, *, most: int, resolve: Resolve | None = None) -> None:
        """Take this place.

        Args:
            config: What the file says of the cluster.
            most: How many requests of other gateways are taken at once.
            resolve: Looks hosts up; by default as the system does.
        """
        peers, given = config.peers, config.signing_key
        self.config = config
        self.name = peers.own_name if peers is not None else socket.gethostname()
        secret = (given if peers is None else peers.secret) or given
        assert secret is not None, "the model has checked it"
        self.credentials = PeerCredentials(secret.get_secret_value(), self.name)
        signing = PeerCredentials(given.get_secret_value(), self.name) if given is not None else self.credentials
        self.pods = Pods(peers, self.credentials, resolve=resolve) if peers is not None else None
        self.connections = Connections(most=most)
        self._server: asyncio.AbstractServer | None = None
        self.changes: SharedChanges | None = None
        self.limits: SharedLimits | None = None
        self._store: SharedStore | None = None
        sign_ins: SignIns | None = None
        self.status: StoreStatus | None = None
        if config.store is not None:
            # Late: a package of its own, which only this needs.
            from gateway.cluster.redis_store import RedisStore
            from gateway.cluster.shared_sign_ins import SharedSignIns

            store = RedisStore(config.store)
            self._store, self.status = store, StoreStatus()
            sign_ins = SharedSignIns(store, Seal(self.credentials.key("sign-ins in the shared store")), self.status)
        self.role = Role(
            # Of a derived key: the secret itself is for the gateways alone.
            instance=self.credentials.key("instance").hex()[:_INSTANCE_CHARS],
            name=self.name,
            new_session_id=self.credentials.new_session_id if peers is not None else None,
            signing_key=signing.key("signed states"),
            writes=True,
            admits=lambda alias, server: None,
            on_failure=None,
            on_cleared=lambda server, tool: None,
            book=self._book if config.store is not None else None,
            sign_ins=sign_ins,
        )

    def join(
        self,
        reloader: Reloader,
        *,
        fleet: Fleet,
        notes: OperatorNotes,
        keys: ApiKeys,
        approvals: ApprovalBook,
        quotas: Quotas,
        ended: EndedSessions,
        state_dir: Path | None,
    ) -> None:
        """Share what this gateway holds, where there is a store.

        Args:
            reloader: Has what administrators have changed.
            fleet: Its upstreams.
            notes: Notes about their tools.
            keys: The keys of its callers.
            approvals: The calls that wait for a person.
            quotas: What its callers use.
            ended: Sessions of administrators that were ended.
            state_dir: Where what is shared is kept, too.
        """
        store, status = self._store, self.status
        if store is None or status is None:
            return
        waiting = SharedApprovals(approvals)
        changes = self.changes = SharedChanges(
            store,
            Seal(self.credentials.key("the shared store")),
            status,
            (
                SharedNotes(notes),
                SharedRevocations(keys),
                SharedEndedSessions(ended),
                waiting,
                # The last, because these take time: nothing of the others changes while they apply theirs.
                SharedLock(fleet),
                SharedOverlay(reloader),
            ),
            state_dir=state_dir,
            ask_peers=None if self.pods is None else self.pods.ask_all,
            on_informed=keys.accept,
        )
        keys.withhold()
        self.limits = SharedLimits(self.name, quotas, store, status)
        quotas.ledger = self.limits

        def approvals_changed() -> None:
            waiting.changed()
            changes.wake()

        approvals.on_change = approvals_changed
        ended.on_change = changes.wake

    async def leave(self) -> None:
        """Be connected to no more, and return once nobody waits here for an answer that says so.

        A request that was sent and not answered is lost: whoever sent it cannot know that it was not run.
        """
        if self._server is None:
            return
        self._server.close()
        # Connections that are being made are not counted yet; between gateways that takes milliseconds.
        await anyio.sleep(_SETTLED_S)
        with anyio.move_on_after(_LEAVE_S):
            while self.connections.open:
                await anyio.sleep(_POLL_S)

    @property
    def routes(self) -> tuple[object, ...]:
        """What administrators can ask of it."""
        return (ClusterRoutes(self.row),)

    def metrics(self) -> str:
        """Its figures, in the text format of Prometheus."""
        return render(self.pods, self.status, self.limits, self.changes)

    def row(self) -> dict[str, Any]:
        """This gateway in its cluster, for administrators."""
        limits = self.limits
        return {
            "name": self.name,
            "peers": None if self.pods is None else dict(self.pods.outcomes),
            "store": None if self.status is None else self.status.row(),
            "pendingChanges": 0 if self.changes is None else self.changes.pending,
            "replicas": None if limits is None else limits.replicas,
            "limits": "shared" if limits is not None and limits.shared else "each",
        }

    def _book(self, own: ApprovalBook) -> Book:
        assert self._store is not None
        assert self.status is not None
        return SharedBook(own, self._sync, self._store, self.status)

    async def _sync(self, always: bool) -> None:
        if self.changes is not None:
            await self.changes.sync(always=always)

    @asynccontextmanager
    async def at_work(
        self, listener: socket.socket | None, endpoint: Handler, draining: Callable[[], bool]
    ) -> AsyncIterator[None]:
        """Answer the others until left.

        Args:
            listener: Where they connect to; None where there are no peers.
            endpoint: Answers requests of sessions that live here.
            draining: Whether this gateway is about to end.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self.connections.watch)
            if self.changes is not None and self.limits is not None:
                # Before the first caller is served, this replica learns what was revoked.
                await self.changes.begin()
                group.start_soon(self.changes.run)
                group.start_soon(self.limits.run)
            if listener is not None:
                router = PeerRouter(endpoint, draining, None if self.changes is None else self.changes.document)
                self._server = await asyncio.get_running_loop().create_server(
                    lambda: HttpProtocol(self.connections, router),
                    sock=listener,
                    ssl=self.credentials.listener_context,
                    ssl_handshake_timeout=_HANDSHAKE_S,
                    backlog=_BACKLOG,
                )
                log.info("%s answers other gateways on port %d", self.name, listener.getsockname()[1])
            try:
                yield
            finally:
                if self._server is not None:
                    self._server.close()
                if self.pods is not None:
                    self.pods.close()
            group.cancel_scope.cancel()
        if self._store is not None:
            await self._store.close()


def warn_of_private(config: Config) -> None:
    """Say which servers keep for themselves what a caller expects to find at every gateway."""
    names = [alias for alias, one in config.servers.items() if not may_be_copied(one)]
    if names:
        log.warning(
            "each gateway of the cluster starts its own %s: what a call leaves in one, the next call may not find. "
            'Say "copies": true in the entry if that is fine',
            ", ".join(names),
        )
