"""`typegate serve`: sockets, signals and the order in which things end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import anyio
import uvicorn

from gateway.admin.api import AdminApi
from gateway.app import Gateway, open_gateway
from gateway.cluster.administration import Administration
from gateway.cluster.member import Member
from gateway.cluster.shared_state import SharedState
from gateway.cluster.team import Team
from gateway.config.model import Config
from gateway.downstream.http.asgi import AsgiApp, AsgiHandler
from gateway.downstream.http.connections import Connections
from gateway.downstream.http.endpoint import McpEndpoint
from gateway.downstream.http.host_check import LOOPBACK, HostCheck
from gateway.downstream.http.protocol import HttpProtocol
from gateway.downstream.http.router import PathRouter
from gateway.memory import keep_settled
from gateway.reload import Reloader
from gateway.serving.admin_listener import MAX_CONNECTIONS as ADMIN_CONNECTIONS
from gateway.serving.admin_listener import bind_admin, serving_admin, unbind_admin
from gateway.serving.listen import DRAIN_S, admin_token, bind, check_reach, source_of, url_of
from gateway.signals import open_signals

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 9_500
"""Callers served at once: the most that fits under the usual hard limit of 20,000 descriptors, with room beside."""
# Standard streams, listeners, the event loop, files being read, and a margin.
_OWN_DESCRIPTORS: Final = 128
# A child has three pipes, a server on the network as many connections as it has calls.
_DESCRIPTORS_PER_SERVER: Final = 16
_METRICS_SCOPE: Final = "metrics"
# Requests in flight end at their own pace; nothing wakes anybody when the last one has.
_POLL_S: Final = 0.02

OnReady = Callable[[Gateway, str], Awaitable[None] | None]


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: what has to end ends in our order."""
        yield


async def serve(
    config: Config,
    *,
    host: str,
    port: int,
    state_dir: Path,
    insecure: bool = False,
    on_ready: OnReady | None = None,
    strict: bool = False,
) -> int:
    """Serve over Streamable HTTP until SIGINT or SIGTERM. Returns the exit code.

    Raises:
        ConfigError: The address is taken, or open to others without any API key.
    """
    check = partial(check_reach, host=host, insecure=insecure)
    check(config)
    token = admin_token(config, state_dir)
    listener = bind(host, port, source_of(config))
    admin_listener = bind_admin(config)
    try:
        return await serve_on(
            listener,
            config,
            host=host,
            state_dir=state_dir,
            token=token,
            check=check,
            on_ready=on_ready,
            admin_listener=admin_listener,
            strict=strict,
        )
    finally:
        unbind_admin(admin_listener, config)


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
    admin_listener: socket.socket | None = None,
    strict: bool = False,
) -> int:
    """Serve callers of this socket until SIGINT or SIGTERM. Returns the exit code.

    Args:
        listener: The socket; it listens.
        config: What to serve.
        host: The address, as callers name it.
        state_dir: Where state is kept.
        token: The administrator's.
        check: Raises `ConfigError` for a configuration that cannot be served here.
        on_ready: Called once callers are served.
        team: The processes that serve this configuration together; None for a single one.
        admin_listener: Where this process answers administrators, if the configuration gives them an address.
        strict: A fault in the entry of one server keeps a changed file from being used.
    """
    most = _most_connections(len(config.servers))
    draining = anyio.Event()
    role = team.role if team is not None else None
    async with open_gateway(config, state_dir=state_dir, role=role) as gateway:
        endpoint = McpEndpoint(
            gateway.server,
            gateway.views,
            gateway.authenticator,
            gateway.quotas,
            carrier=team.peers if team is not None else None,
        )
        reloader = Reloader(
            gateway,
            check=check,
            text=team.assignment.text if team is not None else None,
            strict=team.assignment.strict if team is not None else strict,
        )
        admin = AdminApi(
            token=token,
            scrapers=partial(_may_read_metrics, gateway),
            registry=gateway.registry,
            fleet=gateway.fleet,
            views=gateway.views,
            call_stats=gateway.call_stats,
            hooks=gateway.hooks,
            notes=gateway.notes,
            private_links=gateway.private,
            tool_vectors=gateway.tool_vectors,
            reloader=reloader,
            draining=draining.is_set,
            allows_commands=lambda: gateway.config.gateway.admin.allow_commands,
        )
        member = _member(team, gateway, reloader, endpoint, admin) if team is not None else None
        app: AsgiApp = member.administration if member is not None else admin.app()
        connections = Connections(most=most, nobody=gateway.quotas.nobody)
        # Nothing of a request without the token is held there.
        admin_connections = Connections(most=ADMIN_CONNECTIONS)
        # An address of its own, and the port of the callers does not know of the admin API, whichever process has it.
        check_beside = admin.check if config.gateway.admin.listen is None else admin.check_probe
        router = PathRouter(
            _host_check(config, host),
            endpoint,
            AsgiHandler(app, max_body_bytes=admin.max_body_bytes, check=check_beside),
        )
        server = _Uvicorn(_uvicorn_config(connections, router))
        async with anyio.create_task_group() as group, AsyncExitStack() as stack:
            # Before anybody is accepted: every connection has its deadlines from the start.
            group.start_soon(connections.watch)
            group.start_soon(keep_settled, gateway.registry)
            group.start_soon(endpoint.sessions.keep_swept)
            every = [connections, admin_connections, *([team.connections] if team is not None else [])]
            if admin_listener is not None:
                group.start_soon(admin_connections.watch)
                handler = AsgiHandler(app, max_body_bytes=admin.max_body_bytes, check=admin.check)
                await stack.enter_async_context(serving_admin(admin_listener, config, handler, admin_connections))
            group.start_soon(_drain_at_signal, gateway, endpoint, every, server, draining)
            if member is not None:
                await stack.enter_async_context(member.at_work())
            else:
                group.start_soon(partial(reloader.run, hangups=True))
            if on_ready is not None:
                group.start_soon(_call, on_ready, gateway, url_of(host, listener))
            await server.serve(sockets=[listener])
            group.cancel_scope.cancel()
    return 0


def _may_read_metrics(gateway: Gateway, authorization: str) -> bool:
    """Whether this Authorization header, or its absence, may read `/metrics`; the administrator may in any case."""
    settings, authenticator = gateway.config.gateway, gateway.authenticator
    # Where nobody needs credentials, whoever reaches the port may list and call everything that it tells of.
    if settings.metrics.public or not (authenticator.required or settings.admin.token is not None):
        return True
    principal = authenticator.principal(authorization) if authenticator.required else None
    return principal is not None and (not principal.scopes or _METRICS_SCOPE in principal.scopes)


def _member(team: Team, gateway: Gateway, reloader: Reloader, endpoint: McpEndpoint, admin: AdminApi) -> Member:
    again = team.assignment.again
    state = SharedState(gateway, gateway.fleet, gateway.notes, reloader, team.peers, joined=not again)
    return Member(
        team,
        reloader=reloader,
        endpoint=endpoint,
        administration=Administration(admin, team.assignment.index, team.peers, state.push),
        state=state,
        call_stats=gateway.call_stats,
        notes=gateway.notes,
    )


def _host_check(config: Config, host: str) -> HostCheck:
    listen = config.gateway.listen
    named = frozenset({*LOOPBACK, host.lower(), *(name.lower() for name in listen.allowed_hosts)})
    # Behind an address of the network we cannot know our own names: they are checked only where they were told.
    hosts = named if host in LOOPBACK or listen.allowed_hosts else None
    return HostCheck(hosts, frozenset(origin.lower() for origin in listen.allowed_origins))


def _uvicorn_config(connections: Connections, router: PathRouter) -> uvicorn.Config:
    def protocol(*, server_state: Any, **_: Any) -> asyncio.Protocol:
        return HttpProtocol(connections, router, ending=server_state.connections)

    return uvicorn.Config(
        _no_application,
        interface="asgi3",
        http=cast(Any, protocol),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        # What had to end in order has ended by then: this is for connections that merely stay open.
        timeout_graceful_shutdown=1,
    )


async def _no_application(scope: Any, receive: Any, send: Any) -> None:
    """Stand for the application that uvicorn wants to be given; ours is behind the protocol."""


async def _call(on_ready: OnReady, gateway: Gateway, url: str) -> None:
    awaited = on_ready(gateway, url)
    if awaited is not None:
        await awaited


async def _drain_at_signal(
    gateway: Gateway,
    endpoint: McpEndpoint,
    every: Iterable[Connections],
    server: uvicorn.Server,
    draining: anyio.Event,
) -> None:
    with open_signals(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            break
        log.info("shutting down: %d calls in flight", endpoint.in_flight)
        draining.set()
        # New requests are refused from here on, and streams end properly while calls still run.
        endpoint.draining = True
        gateway.server.close_streams()
        with anyio.move_on_after(DRAIN_S):
            while endpoint.in_flight:
                await anyio.sleep(_POLL_S)
            for connections in every:
                await connections.read_out()
        endpoint.give_up()
        server.should_exit = True
        # The receiver stays open: a second signal must not end the process in the middle.
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
