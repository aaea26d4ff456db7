"""A worker of a worker group: its shared state and its private socket."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import anyio

from gateway.access.quotas import Sharing
from gateway.admin.activity import EventFeed
from gateway.admin.routes import REPEATED, WHOLE
from gateway.calls.approval_store import ApprovalStore
from gateway.calls.call_stats import CallStats
from gateway.calls.result_store import ResultStore
from gateway.cluster import relays, roles, worker_state
from gateway.cluster.administration import FLUSH, OWN, PASSED_ON, PEER, PROCESS, Administration, send_reply
from gateway.cluster.relays import CallStatsRelay, RelayedApprovals
from gateway.cluster.roles import FIRST, Peers, ProcessRole, Reply, WorkerConfig
from gateway.cluster.shared_limits import SharedLimits, SharedRunning
from gateway.cluster.shared_store import StoreStatus
from gateway.cluster.worker_state import ParentStore, SharedState
from gateway.downstream.sessions import random_session_id
from gateway.fleet.operator_notes import OperatorNotes
from gateway.fleet.reload import Reloader
from gateway.http.http_request import RequestHead, RequestRefused
from gateway.http.responder import AsgiHandler, Receive, Scope, Send, send_json
from gateway.http.server_connection import HttpProtocol
from gateway.http.server_connections import Connections, Handler
from gateway.protocol import json_bytes

# Maximum number of connections to the private socket. Only workers connect, with a connection for each request.
_MOST: Final = 100_000
# Time limit for a decision about a call that waits for approval. The first worker applies the configured timeout, which
# is shorter; this limit applies if the first worker never responds.
_APPROVAL_S: Final = 86_400.0


class WorkerGroup:
    """A worker's connection to its worker group: the other workers and the shared counters.

    Attributes:
        role: The process role of this worker.
        peers: The other workers.
        connections: Incoming connections of other workers.
        relay: Sends call statistics to the first worker; None in the first worker.
        limits: Counts calls per minute jointly with the other workers.
        running: Counts requests in flight jointly with the other workers.
        notes_changed: Set in the first worker when changed notes have to be sent to the other workers.
    """

    def __init__(self, worker_config: WorkerConfig) -> None:
        self.worker_config = worker_config
        self.peers = Peers(worker_config)
        self.connections = Connections(most=_MOST)
        self.relay = None if worker_config.index == FIRST else CallStatsRelay(self.peers)
        self.notes_changed = anyio.Event()
        self.limits = SharedLimits(str(worker_config.index), ParentStore(worker_config), StoreStatus())
        # Use a connection of its own, so that requests do not wait for the reports that `limits` sends.
        self.running = SharedRunning(worker_config.count, ParentStore(worker_config))
        self.role = ProcessRole(
            # Use a digest, so that the id does not expose the secret.
            instance=hashlib.sha256(worker_config.secret.encode()).hexdigest()[:16],
            name=worker_config.prefix,
            new_session_id=lambda: worker_config.prefix + random_session_id(),
            signing_key=bytes.fromhex(worker_config.signing_key),
            writes=worker_config.index == FIRST,
            admits=roles.check_server,
            on_failure=None if self.relay is None else self.relay.failed,
            share_approvals=None if self.relay is None else lambda own: RelayedApprovals(self.peers, _APPROVAL_S),
            sharing=Sharing(ledger=self.limits, running=self.running, workers=worker_config.count),
            on_cleared=self._note_cleared if self.relay is None else self.relay.cleared,
            fetch_result=self.peers.fetch_result,
        )

    async def until_notes_changed(self) -> None:
        """Wait until changed notes have to be sent to the other workers."""
        await self.notes_changed.wait()
        self.notes_changed = anyio.Event()

    def _note_cleared(self, server: str, tool: str) -> None:
        self.notes_changed.set()


# Maximum number of connections that wait to be accepted, as on the port for callers. A lower number would make the
# kernel refuse a burst of forwarded requests.
_BACKLOG: Final = 2048
_MAX_SHARED_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a request of another worker: more than the largest shared document, which contains the configuration
and all changes of administrators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedParts:
    """The parts of a worker that answer requests of other workers.

    Attributes:
        call_stats: Receives the failures that other workers report.
        notes: The notes about tools.
        approvals: The approval store, which contains the approvals of all workers if this is the first worker.
        feed: The events of this worker.
        results: The stored results of this worker.
    """

    call_stats: CallStats
    notes: OperatorNotes
    approvals: ApprovalStore
    feed: EventFeed
    results: ResultStore


class Worker:
    """A running worker of a worker group.

    Attributes:
        administration: The application for all paths except `/mcp`, answering for all workers.
    """

    def __init__(
        self,
        worker_group: WorkerGroup,
        *,
        reloader: Reloader,
        endpoint: Handler,
        administration: Administration,
        state: SharedState,
        relayed: RelayedParts,
    ) -> None:
        """Connect the parts of this worker with the worker group.

        Args:
            worker_group: The other workers and the shared counters.
            reloader: Reloads the configuration.
            endpoint: Handles MCP requests for sessions of this worker.
            administration: The application for all paths except `/mcp`.
            state: The state shared by all workers.
            relayed: The parts that answer requests of other workers.
        """
        self._worker_group = worker_group
        self._reloader = reloader
        self._endpoint = endpoint
        self._state = state
        self._call_stats, self._notes = relayed.call_stats, relayed.notes
        self._approvals, self._feed, self._results = relayed.approvals, relayed.feed, relayed.results
        self._shared = AsgiHandler(self._answer, max_body_bytes=_MAX_SHARED_BYTES)
        self.administration = administration

    @asynccontextmanager
    async def serve_peers(self) -> AsyncIterator[None]:
        """Serve other workers and share state with them for the duration of the context."""
        worker_group = self._worker_group
        path = worker_group.worker_config.socket_of(worker_group.worker_config.index)
        path.unlink(missing_ok=True)
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: HttpProtocol(worker_group.connections, self), str(path), backlog=_BACKLOG
        )
        path.chmod(0o600)
        try:
            # Pull after every start: another worker may have sent a change before this worker was listening.
            await self._state.pull()
            async with anyio.create_task_group() as group:
                group.start_soon(worker_group.connections.watch)
                group.start_soon(worker_group.limits.run)
                group.start_soon(worker_group.running.run)
                group.start_soon(self._reload_for_group if worker_group.relay is None else worker_group.relay.run)
                yield
                group.cancel_scope.cancel()
        finally:
            server.close()
            path.unlink(missing_ok=True)
            worker_group.peers.close()

    def route(self, head: RequestHead) -> Handler:
        """Return the handler of another worker's request.

        Raises:
            RequestRefused: The request does not contain the secret of the worker group.
        """
        # The secret takes the place of the host name (`Peers`), so a wrong secret is refused like a wrong Host header.
        if head.raw(b"host") != self._worker_group.worker_config.secret.encode():
            raise RequestRefused(421, "this Host is not served here")
        return self._endpoint if head.path == b"/mcp" or head.path.startswith(b"/mcp/") else self._shared

    async def _reload_for_group(self) -> None:
        """Reload the configuration, and send its changes and changed notes to the other workers, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(partial(self._reloader.run, hangups=True, reloaded=self._state.push))
            while True:
                await self._worker_group.until_notes_changed()
                await self._state.push()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path.startswith(OWN):
            body = (await receive())["body"]
            reply = await self.administration.reply_alone(
                {**scope, "path": path[len(OWN) :], REPEATED: True, WHOLE: True}, body
            )
            await send_reply(send, reply, names=(*PASSED_ON, PROCESS))
        elif path.startswith("/shared/"):
            await self._share(scope["method"], path, (await receive())["body"], send)
        else:
            await self.administration(_with_client(scope), receive, send)

    async def _share(self, method: str, path: str, body: bytes, send: Send) -> None:
        status = 204
        if path == FLUSH:
            if self._worker_group.relay is not None:
                await self._worker_group.relay.flush()
            await self._feed.history.save()
        elif path == relays.CALL_STATS_TARGET:
            if relays.apply_call_stats(json_bytes.loads(body), self._call_stats, self._notes):
                self._worker_group.notes_changed.set()
        elif path == relays.APPROVALS_TARGET:
            await send_reply(send, await relays.answer_approval(json_bytes.loads(body), self._approvals))
            return
        elif path == relays.EVENTS_TARGET:
            await send_reply(send, relays.answer_events(json_bytes.loads(body), self._feed))
            return
        elif path.startswith(roles.RESULTS_TARGET):
            packed = self._results.packed(path.removeprefix(roles.RESULTS_TARGET))
            await send_reply(send, Reply(status=200, headers={}, body=packed))
            return
        elif path == worker_state.TARGET and method == "PUT":
            await self._state.apply_document(json_bytes.loads(body))
        elif path == worker_state.TARGET and self._state.joined:
            await send_json(send, 200, json_bytes.dumps(self._state.document()))
            return
        else:
            status = 503
        await send_reply(send, Reply(status=status, headers={}, body=b""))


def _with_client(scope: Scope) -> Scope:
    """Return the scope of a request that a worker forwarded, with the address of the original client."""
    peer = next((value.decode("latin-1") for name, value in scope["headers"] if name == PEER.encode()), "")
    host, _, port = peer.rpartition(":")
    return {**scope, "client": (host, int(port))} if port.isdigit() else scope
