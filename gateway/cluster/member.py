"""One worker at work: what it answers the others, and what it has them do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio

from gateway import wire
from gateway.admin.event_feed import EventFeed
from gateway.admin.routes import REPEATED, WHOLE
from gateway.calls.approval_book import ApprovalBook
from gateway.calls.call_stats import CallStats
from gateway.cluster import approvals_relay, call_stats_relay, events_relay, shared_state
from gateway.cluster.administration import FLUSH, OWN, PASSED_ON, PEER, PROCESS, Administration, send_reply
from gateway.cluster.peers import Reply
from gateway.cluster.shared_limits import SharedLimits
from gateway.cluster.shared_running import SharedRunning
from gateway.cluster.shared_state import SharedState
from gateway.cluster.team import Team
from gateway.downstream.http.asgi import AsgiHandler, Receive, Scope, Send, send_json
from gateway.downstream.http.handler import Handler
from gateway.downstream.http.protocol import HttpProtocol
from gateway.downstream.http.request import RequestHead, RequestRefused
from gateway.operator_notes import OperatorNotes
from gateway.reload import Reloader

# As of the port that callers use: a burst of carried requests must not be refused by the kernel.
_BACKLOG: Final = 2048
_MAX_SHARED_BYTES: Final = 64 * 1024 * 1024
"""A shared document holds the configuration and every server that was added: far more than either may be."""


class Member:
    """One worker of a team, with the parts of its gateway that the team has to do with.

    Attributes:
        administration: Answers what is beside `/mcp`, for all workers.
    """

    def __init__(
        self,
        team: Team,
        *,
        reloader: Reloader,
        endpoint: Handler,
        administration: Administration,
        state: SharedState,
        call_stats: CallStats,
        notes: OperatorNotes,
        approvals: ApprovalBook,
        feed: EventFeed,
        limits: tuple[SharedLimits, SharedRunning],
    ) -> None:
        """Take part.

        Args:
            team: The worker's place.
            reloader: Of its configuration.
            endpoint: Answers MCP requests of sessions that live here.
            administration: The same for all workers.
            state: What all workers hold alike.
            call_stats: Counts what other workers relay.
            notes: The notes of administrators.
            approvals: The calls of all workers that wait for a person.
            feed: What happens here.
            limits: Count calls and requests together with the other workers.
        """
        self._team = team
        self._reloader = reloader
        self._endpoint = endpoint
        self._state = state
        self._call_stats = call_stats
        self._notes = notes
        self._approvals = approvals
        self._feed = feed
        self._limits = limits
        self._shared = AsgiHandler(self._answer, max_body_bytes=_MAX_SHARED_BYTES)
        self.administration = administration

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Answer the others, and hold what they hold, until left."""
        team = self._team
        path = team.assignment.socket_of(team.assignment.index)
        path.unlink(missing_ok=True)
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: HttpProtocol(team.connections, self), str(path), backlog=_BACKLOG
        )
        path.chmod(0o600)
        try:
            # At the first start, too: another worker may have pushed a change before this one answered.
            await self._state.pull()
            async with anyio.create_task_group() as group:
                group.start_soon(team.connections.watch)
                for limits in self._limits:
                    group.start_soon(limits.run)
                group.start_soon(self._lead if team.relay is None else team.relay.run)
                yield
                group.cancel_scope.cancel()
        finally:
            server.close()
            path.unlink(missing_ok=True)
            team.peers.close()

    def route(self, head: RequestHead) -> Handler:
        """The handler of another worker's request.

        Raises:
            RequestRefused: It does not know our secret.
        """
        # The secret stands where a host's name stands: whoever does not know it is refused as a stranger's host is.
        if head.raw(b"host") != self._team.assignment.secret.encode():
            raise RequestRefused(421, "this Host is not served here")
        return self._endpoint if head.path == b"/mcp" or head.path.startswith(b"/mcp/") else self._shared

    async def _lead(self) -> None:
        """Read the configuration for all workers, and hand on what changes by itself."""
        async with anyio.create_task_group() as group:
            group.start_soon(partial(self._reloader.run, hangups=True, reloaded=self._state.push))
            while True:
                await self._team.notes_changed.wait()
                self._team.notes_changed = anyio.Event()
                await self._state.push()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path.startswith(OWN):
            body = (await receive())["body"]
            reply = await self.administration.alone(
                {**scope, "path": path[len(OWN) :], REPEATED: True, WHOLE: True}, body
            )
            await send_reply(send, reply, names=(*PASSED_ON, PROCESS))
        elif path.startswith("/shared/"):
            await self._share(scope["method"], path, (await receive())["body"], send)
        else:
            await self.administration(_as_asked(scope), receive, send)

    async def _share(self, method: str, path: str, body: bytes, send: Send) -> None:
        status = 204
        if path == FLUSH:
            if self._team.relay is not None:
                await self._team.relay.flush()
        elif path == call_stats_relay.TARGET:
            if call_stats_relay.take(wire.loads(body), self._call_stats, self._notes):
                self._team.notes_changed.set()
        elif path == approvals_relay.TARGET:
            await send_reply(send, await approvals_relay.take(wire.loads(body), self._approvals))
            return
        elif path == events_relay.TARGET:
            await send_reply(send, events_relay.take(wire.loads(body), self._feed))
            return
        elif path == shared_state.TARGET and method == "PUT":
            await self._state.take(wire.loads(body))
        elif path == shared_state.TARGET and self._state.joined:
            await send_json(send, 200, wire.dumps(self._state.document()))
            return
        else:
            status = 503
        await send_reply(send, Reply(status=status, headers={}, body=b""))


def _as_asked(scope: Scope) -> Scope:
    """The request of another worker's caller, with the address of that caller."""
    peer = next((value.decode("latin-1") for name, value in scope["headers"] if name == PEER.encode()), "")
    host, _, port = peer.rpartition(":")
    return {**scope, "client": (host, int(port))} if port.isdigit() else scope
