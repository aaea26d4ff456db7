"""One worker's side of working together: what it hears from the others, and what it has them do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from gateway import wire
from gateway.app import Part
from gateway.cluster import call_stats_relay, single_process_only
from gateway.cluster.administration import FLUSH, OWN, PASSED_ON, PROCESS, Administration, App
from gateway.cluster.assignment import FIRST, Assignment
from gateway.cluster.call_stats_relay import Telling
from gateway.cluster.peers import Peers, Reply
from gateway.cluster.shared_state import TARGET, Present
from gateway.config.server import ServerConfig
from gateway.config.source import read
from gateway.downstream.http.endpoint import McpEndpoint
from gateway.downstream.http.fast_path import FastPath
from gateway.downstream.http.protocol import Connections
from gateway.downstream.http.request import Scope
from gateway.downstream.http.response import Receive, Send, send_empty, send_json
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.reload import Reloader

log = logging.getLogger(__name__)

_MOST: Final = 100_000
_BACKLOG: Final = 2048
_MAX_TOLD_BYTES: Final = 64 * 1024 * 1024

Listen = Callable[[Connections, Any], Callable[[], asyncio.Protocol]]
"""Makes what speaks HTTP with whoever connects: to these connections, for this application."""


class Team:
    """One worker's place in the team."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.part = Part(
            prefix=assignment.prefix,
            seal_key=bytes.fromhex(assignment.seal_key),
            writes=assignment.index == FIRST,
        )
        self.peers = Peers(assignment)
        self.connections = Connections(most=_MOST)
        self._endpoint: McpEndpoint | None = None
        self._own: Administration | None = None
        self._present: Present | None = None
        self._gateway: Gateway | None = None
        self._telling: Telling | None = None
        self._stirred = anyio.Event()

    def join(self, gateway: Gateway, reloader: Reloader, endpoint: McpEndpoint, own: App) -> App:
        """Take part with this gateway; returns what answers beside `/mcp`, for all workers."""
        reloader.text = self.assignment.text
        endpoint.carrier = self.peers
        gateway.fleet.admits = self._admits
        self._gateway, self._endpoint = gateway, endpoint
        self._present = Present(gateway, reloader, self.peers, self.assignment)
        if self.assignment.index == FIRST:
            gateway.notebook.on_cleared = lambda server, tool: self._stirred.set()
        else:
            self._telling = Telling(gateway, self.peers)
        self._own = Administration(own, self.assignment.index, self.peers, self._present.push)
        self.connections.fast = FastPath(endpoint, self._knows)
        return self._own

    @asynccontextmanager
    async def at_work(self, listen: Listen) -> AsyncIterator[None]:
        """Hear the others, and hold what they hold, until left."""
        assert self._present is not None
        path = self.assignment.socket_of(self.assignment.index)
        path.unlink(missing_ok=True)
        made = listen(self.connections, self._hear)
        server = await asyncio.get_running_loop().create_unix_server(made, str(path), backlog=_BACKLOG)
        path.chmod(0o600)
        try:
            if self.assignment.again:
                await self._present.pull()
            async with anyio.create_task_group() as group:
                group.start_soon(self.connections.watch)
                group.start_soon(self._telling.run if self._telling is not None else self._lead)
                yield
                group.cancel_scope.cancel()
        finally:
            server.close()
            path.unlink(missing_ok=True)
            self.peers.close()

    async def _lead(self) -> None:
        """Read the configuration for all workers, and hand on what changes by itself."""
        assert self._gateway is not None
        assert self._present is not None
        reloader = self._gateway.reloader
        assert reloader is not None
        reloader.on_reload = self._present.push
        async with anyio.create_task_group() as group:
            group.start_soon(partial(reloader.run, hangups=True))
            path = self._gateway.config.path
            if path is not None and await anyio.to_thread.run_sync(_text_of, path) not in (None, reloader.text):
                # It has changed while nobody watched it.
                await reloader.reload(path)
            while True:
                await self._stirred.wait()
                self._stirred = anyio.Event()
                await self._present.push()

    # what the others say

    def _knows(self, host: bytes, origin: bytes | None) -> bool:
        return host == self.assignment.secret.encode()

    def _admits(self, alias: str, server: ServerConfig) -> None:
        single_process_only.check_server(alias, server)

    async def _hear(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if [value for name, value in scope["headers"] if name == b"host"] != [self.assignment.secret.encode()]:
            await send_empty(send, 421)
            return
        assert self._endpoint is not None
        assert self._own is not None
        path = scope["path"]
        if path == "/mcp" or path.startswith("/mcp/"):
            await self._endpoint(scope, receive, send)
        elif path.startswith(OWN):
            reply = await self._own.alone({**scope, "path": path[len(OWN) :]}, await _whole(receive))
            await _send(send, reply)
        elif path.startswith("/shared/"):
            await self._share(scope["method"], path, await _whole(receive), send)
        else:
            await self._own(scope, receive, send)

    async def _share(self, method: str, path: str, body: bytes, send: Send) -> None:
        assert self._present is not None
        assert self._gateway is not None
        if path == FLUSH:
            if self._telling is not None:
                await self._telling.flush()
        elif path == call_stats_relay.TARGET:
            if call_stats_relay.take(self._gateway, wire.loads(body)):
                self._stirred.set()
        elif path == TARGET and method == "PUT":
            await self._present.take(wire.loads(body))
        elif path == TARGET and self._present.joined:
            await send_json(send, 200, wire.dumps(self._present.document()))
            return
        else:
            await send_empty(send, 503)
            return
        await send_empty(send, 204)


def _text_of(path: Path) -> str | None:
    try:
        return read(path)
    except ConfigError:
        return ""  # what is wrong with it is said by whoever reads it next


async def _whole(receive: Receive) -> bytes:
    parts, more, size_bytes = [], True, 0
    while more and size_bytes < _MAX_TOLD_BYTES:
        message = await receive()
        parts.append(message.get("body", b""))
        size_bytes += len(parts[-1])
        more = message["type"] == "http.request" and message.get("more_body", False)
    return b"".join(parts)


async def _send(send: Send, reply: Reply) -> None:
    head: list[tuple[str, str]] = [
        (name, reply.headers[name]) for name in (*PASSED_ON, PROCESS) if name in reply.headers
    ]
    head.append(("content-length", str(len(reply.body))))
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head]
    await send({"type": "http.response.start", "status": reply.status, "headers": raw})
    await send({"type": "http.response.body", "body": reply.body})
