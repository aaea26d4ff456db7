"""A worker of a worker group: the state that it shares, and its private socket."""

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
from gateway.calls.call_stats import CallStats
from gateway.calls.result_store import ResultStore
from gateway.cluster import administration, roles
from gateway.cluster.administration import OWN, PASSED_ON, PEER, PROCESS, Administration, FailureRelay, send_reply
from gateway.cluster.parent_store import ParentStore
from gateway.cluster.roles import FIRST, Peers, ProcessRole, Reply, WorkerConfig
from gateway.cluster.shared_limits import SharedLimits, SharedRunning
from gateway.cluster.shared_state import SharedFiles, SharedOverlay, SharedParts, SharedState
from gateway.cluster.shared_store import StoreStatus, ValueCipher
from gateway.downstream.sessions import random_session_id
from gateway.fleet.reload import Reloader
from gateway.http.http_request import RequestHead, RequestRefused
from gateway.http.responder import AsgiHandler, Receive, Scope, Send
from gateway.http.server_connection import HttpProtocol
from gateway.http.server_connections import Connections, Handler
from gateway.protocol import json_bytes

# Maximum number of connections to the private socket. Only workers connect, with a connection for each request.
_MOST: Final = 100_000
SYNC: Final = "/shared/sync"
"""The path at which a worker reads the store, and responds once it has applied the changes of the other workers."""


class WorkerGroup:
    """A worker's connection to its worker group: the other workers and the store in their parent.

    Attributes:
        role: The process role of this worker.
        peers: The other workers.
        connections: Incoming connections of other workers.
        shared: The state shared by all workers.
        relay: Sends failed calls to the first worker; None in the first worker.
        limits: Counts calls per minute jointly with the other workers.
        running: Counts requests in flight jointly with the other workers.
    """

    def __init__(self, worker_config: WorkerConfig) -> None:
        self.worker_config = worker_config
        self.peers = Peers(worker_config)
        self.connections = Connections(most=_MOST)
        self.relay = None if worker_config.index == FIRST else FailureRelay(self.peers)
        secret, status = worker_config.secret.encode(), StoreStatus()
        # Each use has a connection of its own, so that requests do not wait for reports or the transfer of fields.
        self.shared = SharedState(
            ParentStore(worker_config),
            ValueCipher(hashlib.sha256(b"the shared store\n" + secret).digest()),
            status,
            sync_others=partial(self.peers.request_all, "POST", SYNC),
        )
        self.limits = SharedLimits(str(worker_config.index), ParentStore(worker_config), status)
        self.running = SharedRunning(worker_config.count, ParentStore(worker_config))
        self.role = ProcessRole(
            # Use a digest, so that the id does not expose the secret.
            instance=hashlib.sha256(secret).hexdigest()[:16],
            name=worker_config.prefix,
            new_session_id=lambda: worker_config.prefix + random_session_id(),
            signing_key=bytes.fromhex(worker_config.signing_key),
            writes=worker_config.index == FIRST,
            admits=roles.check_server,
            on_failure=None if self.relay is None else self.relay.failed,
            share_approvals=self.shared.share_approvals,
            sharing=Sharing(ledger=self.limits, running=self.running, workers=worker_config.count),
            on_cleared=lambda server, tool: self.wake(),
            on_approvals_changed=self.shared.approvals_changed,
            fetch_result=self.peers.fetch_result,
        )

    def join(self, parts: SharedParts) -> None:
        """Prepare to share the state of this worker; `Worker.serve_peers` starts sharing."""
        overlay = SharedOverlay(parts.reloader)
        self.shared.join(parts, (overlay, SharedFiles(parts.reloader, parts.fleet, reads=self.role.writes)))

    def wake(self) -> None:
        """Share state that has changed, without waiting for the next poll."""
        self.shared.wake()


# Maximum number of connections that wait to be accepted, as on the port for callers. A lower number would make the
# kernel refuse a burst of forwarded requests.
_BACKLOG: Final = 2048
_MAX_SHARED_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a request of another worker: more than the failed calls that a worker sends at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedParts:
    """The parts of a worker that answer requests of other workers.

    Attributes:
        call_stats: Receives the failures that other workers report.
        feed: The events of this worker.
        results: The stored results of this worker.
    """

    call_stats: CallStats
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
        relayed: RelayedParts,
    ) -> None:
        """Connect the parts of this worker with the worker group.

        Args:
            worker_group: The other workers and the shared state.
            reloader: Reloads the configuration.
            endpoint: Handles MCP requests for sessions of this worker.
            administration: The application for all paths except `/mcp`.
            relayed: The parts that answer requests of other workers.
        """
        self._worker_group = worker_group
        self._reloader = reloader
        self._endpoint = endpoint
        self._relayed = relayed
        self._shared = AsgiHandler(self._answer, max_body_bytes=_MAX_SHARED_BYTES)
        self.administration = administration

    @asynccontextmanager
    async def serve_peers(self) -> AsyncIterator[None]:
        """Serve other workers and share state with them for the duration of the context."""
        worker_group, changes = self._worker_group, self._worker_group.shared.changes
        assert changes is not None, "the worker has joined its group"
        path = worker_group.worker_config.socket_of(worker_group.worker_config.index)
        path.unlink(missing_ok=True)
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: HttpProtocol(worker_group.connections, self), str(path), backlog=_BACKLOG
        )
        path.chmod(0o600)
        try:
            # Load before serving callers, because this worker may have been restarted after a change.
            await changes.load()
            async with anyio.create_task_group() as group:
                group.start_soon(worker_group.connections.watch)
                group.start_soon(changes.run)
                group.start_soon(worker_group.limits.run)
                group.start_soon(worker_group.running.run)
                if worker_group.relay is None:
                    group.start_soon(partial(self._reloader.run, hangups=True, reloaded=worker_group.shared.publish))
                else:
                    group.start_soon(worker_group.relay.run)
                yield
                group.cancel_scope.cancel()
        finally:
            server.close()
            path.unlink(missing_ok=True)
            worker_group.peers.close()
            await worker_group.shared.close()

    def route(self, head: RequestHead) -> Handler:
        """Return the handler of another worker's request.

        Raises:
            RequestRefused: The request does not contain the secret of the worker group.
        """
        # The secret takes the place of the host name (`Peers`), so a wrong secret is refused like a wrong Host header.
        if head.raw(b"host") != self._worker_group.worker_config.secret.encode():
            raise RequestRefused(421, "this Host is not served here")
        return self._endpoint if head.path == b"/mcp" or head.path.startswith(b"/mcp/") else self._shared

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path.startswith(OWN):
            body = (await receive())["body"]
            reply = await self.administration.reply_alone(
                {**scope, "path": path[len(OWN) :], REPEATED: True, WHOLE: True}, body
            )
            await send_reply(send, reply, names=(*PASSED_ON, PROCESS))
        elif path.startswith("/shared/"):
            await send_reply(send, await self._answer_peer(path, (await receive())["body"]))
        else:
            await self.administration(_with_client(scope), receive, send)

    async def _answer_peer(self, path: str, body: bytes) -> Reply:
        """Answer a request of another worker that administrators do not send."""
        worker_group, feed = self._worker_group, self._relayed.feed
        if path == SYNC and worker_group.shared.changes is not None:
            await worker_group.shared.changes.sync()
        elif path == administration.FLUSH:
            if worker_group.relay is not None:
                await worker_group.relay.flush()
            await feed.history.save()
        elif path == administration.FAILURES_TARGET:
            administration.apply_failures(json_bytes.loads(body), self._relayed.call_stats)
        elif path == administration.EVENTS_TARGET:
            return administration.answer_events(json_bytes.loads(body), worker_group.worker_config.index, feed)
        elif path.startswith(roles.RESULTS_TARGET):
            packed = self._relayed.results.packed(path.removeprefix(roles.RESULTS_TARGET))
            return Reply(status=200, headers={}, body=packed)
        else:
            return Reply(status=404, headers={}, body=b"")
        return Reply(status=204, headers={}, body=b"")


def _with_client(scope: Scope) -> Scope:
    """Return the scope of a request that a worker forwarded, with the address of the original client."""
    peer = next((value.decode("latin-1") for name, value in scope["headers"] if name == PEER.encode()), "")
    host, _, port = peer.rpartition(":")
    return {**scope, "client": (host, int(port))} if port.isdigit() else scope
