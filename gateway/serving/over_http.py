"""`typegate serve`: sockets, signals and the order in which things end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import uvicorn
from starlette.requests import ClientDisconnect

from gateway.access.api_keys import ApiKeys
from gateway.admin.api import AdminApi
from gateway.app import Gateway, open_gateway
from gateway.config.model import Config
from gateway.downstream.http.endpoint import McpEndpoint
from gateway.downstream.http.fast_path import FastPath
from gateway.downstream.http.protocol import Connections
from gateway.downstream.http.response import Receive, Send, send_json
from gateway.memory import keep_settled
from gateway.reload import Reloader
from gateway.serving.listen import DRAIN_S, LOOPBACK, admin_token, bind, check_reach, source_of, url_of

if TYPE_CHECKING:
    from gateway.cluster.team import Team

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 9_500
_OWN_DESCRIPTORS: Final = 128
# A child has three pipes, a server on the network as many connections as it has calls.
_DESCRIPTORS_PER_SERVER: Final = 16

OnReady = Callable[[Gateway, str], Awaitable[None] | None]


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: what has to end ends in our order."""
        yield


class _Front:
    """Host and Origin first, then the room that the path names."""

    def __init__(
        self, endpoint: McpEndpoint, admin: Any, hosts: frozenset[str] | None, origins: frozenset[str]
    ) -> None:
        self._endpoint = endpoint
        self._admin = admin
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        hosts = sum(name == b"host" for name, _ in scope["headers"])
        if hosts > 1 or (hosts == 0 and scope["http_version"] != "1.0"):
            # Source: RFC 9112, section 3.2 "Request Target".
            await send_json(send, 400, b'{"error":"one Host is needed"}')
            return
        for name, value in scope["headers"]:
            # Source: MCP 2026-07-28, "Transports", "Security Warning" (DNS rebinding).
            if name == b"host" and not self._host_allowed(value):
                await send_json(send, 421, b'{"error":"this Host is not served here"}')
                return
            if name == b"origin" and not self._origin_allowed(value):
                await send_json(send, 403, b'{"error":"this Origin is not allowed"}')
                return
        if scope["path"] == "/mcp" or scope["path"].startswith("/mcp/"):
            await self._endpoint(scope, receive, send)
        else:
            # Leaving in the middle of a body is the caller's right, and no error of ours.
            with suppress(ClientDisconnect):
                await self._admin(scope, receive, send)

    def admits(self, host: bytes, origin: bytes | None) -> bool:
        """Whether a caller that names this Host and comes from this Origin may come in."""
        return self._host_allowed(host) and (origin is None or self._origin_allowed(origin))

    def _host_allowed(self, value: bytes) -> bool:
        if self._hosts is None:
            return True
        host = value.decode("latin-1").lower()
        return host in self._hosts or _without_port(host) in self._hosts

    def _origin_allowed(self, value: bytes) -> bool:
        origin = value.decode("latin-1").lower()
        if origin in self._origins:
            return True
        scheme, _, host = origin.partition("://")
        return scheme in ("http", "https") and _without_port(host) in LOOPBACK


async def serve(
    config: Config,
    *,
    host: str,
    port: int,
    state_dir: Path,
    insecure: bool = False,
    on_ready: OnReady | None = None,
) -> int:
    """Serve over Streamable HTTP until SIGINT or SIGTERM. Returns the exit code.

    Raises:
        ConfigError: The address is taken, or open to others without any API key.
    """
    check = partial(check_reach, host=host, insecure=insecure)
    check(config)
    listener = bind(host, port, source_of(config))
    token = admin_token(config, state_dir)
    return await serve_on(listener, config, host=host, state_dir=state_dir, token=token, check=check, on_ready=on_ready)


async def serve_on(
    listener: socket.socket,
    config: Config,
    *,
    host: str,
    state_dir: Path,
    token: str,
    check: Callable[[Config], None],
    on_ready: OnReady | None = None,
    team: Team | None = None,
) -> int:
    """Serve callers of this socket until SIGINT or SIGTERM. Returns the exit code.

    Args:
        listener: The socket; it listens.
        config: What to serve.
        host: The address, as callers name it.
        state_dir: Where state is kept.
        token: The administrator's.
        check: Raises `ConfigError` for a configuration that cannot be served here.
        on_ready: Told once callers are heard.
        team: The other processes that serve this configuration too.
    """
    loopback = host in LOOPBACK
    most = _most_connections(len(config.servers))
    listen = config.gateway.listen
    hosts = frozenset({*LOOPBACK, host.lower(), *(name.lower() for name in listen.allowed_hosts)})
    draining = anyio.Event()
    async with open_gateway(config, state_dir=state_dir, part=team.part if team is not None else None) as gateway:
        endpoint = McpEndpoint(gateway.server, gateway.views, ApiKeys(config.gateway.auth.api_keys))

        def applied(config: Config) -> None:
            endpoint.keys = ApiKeys(config.gateway.auth.api_keys)

        reloader = gateway.reloader = Reloader(gateway, check=check, applied=applied)
        admin: Any = AdminApi(gateway, token, draining.is_set).app()
        if team is not None:
            admin = team.join(gateway, reloader, endpoint, admin)
        front = _Front(
            endpoint,
            admin,
            hosts if loopback or listen.allowed_hosts else None,
            frozenset(origin.lower() for origin in listen.allowed_origins),
        )
        connections = Connections(most=most, fast=FastPath(endpoint, front.admits))
        server = _Uvicorn(_uvicorn_config(front, connections))
        async with anyio.create_task_group() as group, AsyncExitStack() as stack:
            group.start_soon(connections.watch)
            group.start_soon(keep_settled, gateway.registry)
            both = (connections, team.connections) if team is not None else (connections,)
            group.start_soon(_drain_at_signal, gateway, endpoint, both, server, draining)
            group.start_soon(endpoint.sessions.keep_swept)
            if team is not None:
                await stack.enter_async_context(team.at_work(partial(_protocols, server)))
            else:
                group.start_soon(partial(reloader.run, hangups=True))
            if on_ready is not None:
                group.start_soon(_tell, on_ready, gateway, url_of(host, listener))
            await server.serve(sockets=[listener])
            group.cancel_scope.cancel()
    return 0


def _uvicorn_config(app: Any, connections: Connections) -> uvicorn.Config:
    return uvicorn.Config(
        app, interface="asgi3", http=cast(Any, connections.protocol), ws="none", lifespan="off", access_log=False,
        log_config=None, timeout_graceful_shutdown=1, server_header=False, date_header=False,
    )  # fmt: skip


def _protocols(server: uvicorn.Server, connections: Connections, app: Any) -> Callable[[], asyncio.Protocol]:
    """Makes connections of another kind, which end when this server does."""
    config = _uvicorn_config(app, connections)
    config.load()
    return partial(connections.protocol, config=config, server_state=server.server_state, app_state={})


async def _tell(on_ready: OnReady, gateway: Gateway, url: str) -> None:
    told = on_ready(gateway, url)
    if told is not None:
        await told


async def _drain_at_signal(
    gateway: Gateway,
    endpoint: McpEndpoint,
    connections: Iterable[Connections],
    server: uvicorn.Server,
    draining: anyio.Event,
) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            break
        log.info("shutting down: %d calls in flight", endpoint.in_flight)
        draining.set()
        endpoint.draining = True
        gateway.server.close_streams()
        with anyio.move_on_after(DRAIN_S):
            while endpoint.in_flight:
                await anyio.sleep(0.02)
            for one in connections:
                await one.read_out()
        endpoint.give_up()
        server.should_exit = True
        await anyio.sleep_forever()


def _most_connections(servers: int) -> int:
    """How many callers are served at once: as many as descriptors allow beside those that upstreams need."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, 2 * MAX_CONNECTIONS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    allowed = max(soft, wanted)
    kept = min(allowed // 2, _OWN_DESCRIPTORS + _DESCRIPTORS_PER_SERVER * servers)
    return min(MAX_CONNECTIONS, allowed - kept)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
