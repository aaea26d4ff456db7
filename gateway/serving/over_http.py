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
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import anyio
import uvicorn

from gateway.access.administrators import Administrators, EndedSessions
from gateway.access.signing import Signer
from gateway.admin import rows
from gateway.admin.api import AdminApi
from gateway.admin.event_feed import EventFeed
from gateway.app import Gateway, open_gateway
from gateway.config.cluster import host_and_port
from gateway.config.model import Config
from gateway.config.overlay import Admits, Overlay, with_changes
from gateway.config.server import ServerConfig
from gateway.downstream.http.asgi import AsgiApp, AsgiHandler
from gateway.downstream.http.callers import Callers
from gateway.downstream.http.connections import Connections
from gateway.downstream.http.cross_origin import CrossOrigin
from gateway.downstream.http.endpoint import McpEndpoint
from gateway.downstream.http.host_check import LOOPBACK, HostCheck
from gateway.downstream.http.protected_resource import ProtectedResource
from gateway.downstream.http.protocol import HttpProtocol
from gateway.downstream.http.router import PathRouter
from gateway.files import prepare_state_dir
from gateway.memory import keep_settled, use_one_heap
from gateway.reload import Reloader
from gateway.secrets import SECRETS
from gateway.serving.admin_assembly import admin_api
from gateway.serving.admin_listener import MAX_CONNECTIONS as ADMIN_CONNECTIONS
from gateway.serving.admin_listener import bind_admin, serving_admin, unbind_admin
from gateway.serving.listen import DRAIN_S, admin_token, bind, check_reach, source_of, url_of
from gateway.signals import open_signals
from gateway.upstream.oauth.discovery import origin_of

if TYPE_CHECKING:
    from gateway.cluster.member import Member
    from gateway.cluster.pod import Pod
    from gateway.cluster.team import Team

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 9_500
"""Callers served at once: the most that fits under the usual hard limit of 20,000 descriptors, with room beside."""
# Standard streams, listeners, the event loop, files being read, and a margin.
_OWN_DESCRIPTORS: Final = 128
# A child has three pipes, a server on the network as many connections as it has calls.
_DESCRIPTORS_PER_SERVER: Final = 16
# Its own, one to the gateway that has its session, and one of a caller elsewhere whose session is here.
_PER_CARRIED: Final = 3
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
    prepare_state_dir(state_dir)
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
    use_one_heap()
    clustered = team is None and config.gateway.cluster is not None
    most = _most_connections(len(config.servers), each=_PER_CARRIED if clustered else 1)
    draining = anyio.Event()
    pod = _pod(config, most) if clustered else None
    peer_listener = _bind_peers(config) if pod is not None else None
    together = team or pod
    role = together.role if together is not None else None
    origin = _origin_for_browsers(host, listener)
    overlay = Overlay(state_dir, config.path, writes=role is None or role.writes)
    overlay.check()
    admits: Admits = role.admits if role is not None else _admit_all
    running = with_changes(config, overlay.changes, admits)
    async with open_gateway(running, state_dir=state_dir, role=role, origin=origin) as gateway:
        resource = ProtectedResource(lambda: gateway.config.gateway.auth.oauth, lambda: gateway.views.profiles)
        endpoint = McpEndpoint(
            gateway.server,
            gateway.views,
            gateway.authenticator,
            Callers(gateway.authenticator, gateway.views, gateway.quotas, resource, gateway.audit),
            carrier=team.peers if team is not None else pod.pods if pod is not None else None,
        )
        reloader = Reloader(
            gateway,
            check=check,
            strict=team.assignment.strict if team is not None else strict,
            base=config,
            overlay=overlay,
            admits=admits,
        )
        ended = EndedSessions(state_dir)
        if pod is not None:
            pod.join(
                reloader,
                fleet=gateway.fleet,
                notes=gateway.notes,
                keys=gateway.authenticator.keys,
                approvals=gateway.approvals,
                quotas=gateway.quotas,
                ended=ended,
                state_dir=state_dir,
            )
        SECRETS.hide([token])
        administrators = Administrators(
            token,
            lambda: gateway.config.gateway.admin.tokens,
            Signer(state_dir, key=role.signing_key if role is not None else None),
            ended=ended,
        )
        feed = EventFeed(partial(rows.states, gateway.fleet), lambda: gateway.registry.catalog)
        gateway.audit.watcher = feed.take
        admin = admin_api(
            gateway,
            reloader,
            administrators,
            feed,
            state_dir=state_dir,
            draining=draining.is_set,
            host=host,
            url=url_of(host, listener),
            origin=origin,
            pod=pod,
        )
        member = _member(team, gateway, reloader, endpoint, admin, feed) if team is not None else None
        app: AsgiApp = member.administration if member is not None else admin.app()
        per_address = config.gateway.listen.connections_per_address
        connections = Connections(
            most=most, nobody=gateway.quotas.nobody, per_address=per_address or _most_per_address(most)
        )
        # Nothing of a request without the token is held there.
        admin_connections = Connections(most=ADMIN_CONNECTIONS, per_address=_most_per_address(ADMIN_CONNECTIONS))
        # An address of its own, and the port of the callers does not know of the admin API, whichever process has it.
        check_beside = admin.check if config.gateway.admin.listen is None else admin.check_probe
        named_origins = frozenset(map(str.lower, config.gateway.listen.allowed_origins))
        router = PathRouter(
            _host_check(config, host),
            CrossOrigin(named_origins),
            endpoint,
            resource,
            AsgiHandler(app, max_body_bytes=admin.max_body_bytes, check=check_beside),
        )
        server = _Uvicorn(_uvicorn_config(connections, router))
        async with anyio.create_task_group() as group, AsyncExitStack() as stack:
            # Before anybody is accepted: every connection has its deadlines from the start.
            group.start_soon(connections.watch)
            group.start_soon(keep_settled, gateway.registry)
            group.start_soon(endpoint.sessions.keep_swept)
            gateway.on_refused = lambda: group.start_soon(reloader.look)
            every = [connections, admin_connections, *([together.connections] if together is not None else [])]
            if admin_listener is not None:
                group.start_soon(admin_connections.watch)
                handler = AsgiHandler(app, max_body_bytes=admin.max_body_bytes, check=admin.check)
                await stack.enter_async_context(serving_admin(admin_listener, config, handler, admin_connections))
            leave = pod.leave if pod is not None else None
            delay_s = config.gateway.drain_delay
            group.start_soon(_drain_at_signal, gateway, endpoint, every, server, draining, delay_s, leave)
            if pod is not None:
                await stack.enter_async_context(pod.at_work(peer_listener, endpoint, lambda: endpoint.draining))
            if member is not None:
                await stack.enter_async_context(member.at_work())
            else:
                group.start_soon(partial(reloader.run, hangups=True))
            if on_ready is not None:
                group.start_soon(_call, on_ready, gateway, url_of(host, listener))
            await server.serve(sockets=[listener])
            group.cancel_scope.cancel()
    return 0


def _admit_all(alias: str, config: ServerConfig) -> None:
    """Stand for a rule about servers where there is one process."""


def _member(
    team: Team, gateway: Gateway, reloader: Reloader, endpoint: McpEndpoint, admin: AdminApi, feed: EventFeed
) -> Member:
    # Late: a process that serves alone starts without them.
    from gateway.cluster.administration import Administration
    from gateway.cluster.events_relay import events_of_others
    from gateway.cluster.member import Member
    from gateway.cluster.shared_state import SharedState

    again = team.assignment.again
    state = SharedState(gateway, gateway.fleet, gateway.notes, reloader, team.peers, joined=not again)
    feed.others = partial(events_of_others, team.peers)
    return Member(
        team,
        reloader=reloader,
        endpoint=endpoint,
        administration=Administration(admin, team.assignment.index, team.peers, state.push),
        state=state,
        call_stats=gateway.call_stats,
        notes=gateway.notes,
        approvals=gateway.approvals,
        feed=feed,
        limits=team.share_limits(gateway.quotas),
    )


def _origin_for_browsers(host: str, listener: socket.socket) -> str:
    """Where a browser of this machine reaches us; by number, since `localhost` may mean another family."""
    return url_of(host if host in LOOPBACK and host != "localhost" else "127.0.0.1", listener).removesuffix("/mcp")


def _host_check(config: Config, host: str) -> HostCheck:
    listen, oauth = config.gateway.listen, config.gateway.auth.oauth
    resource = oauth.resource if oauth is not None else None
    own = [origin_of(url) for url in (config.gateway.public_url, resource) if url is not None]
    names = [*listen.allowed_hosts, *(urlsplit(origin).netloc for origin in own)]
    named = frozenset({*LOOPBACK, host.lower(), *(name.lower() for name in names)})
    # Behind an address of the network we cannot know our own names: they are checked only where they were told.
    hosts = named if host in LOOPBACK or listen.allowed_hosts else None
    # What is read from our own address is our own page.
    origins = [*listen.allowed_origins, *own]
    return HostCheck(hosts, frozenset(origin.lower() for origin in origins))


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
    delay_s: float,
    leave: Callable[[], Awaitable[None]] | None,
) -> None:
    with open_signals(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            break
        draining.set()
        for connections in every:
            # Whoever comes back on a new connection is sent elsewhere.
            connections.leaving = True
        if delay_s:
            # Whoever balances has to learn of it first: until then new calls still come here.
            log.info("shutting down in %g s: not ready any more, and still serving", delay_s)
            with anyio.move_on_after(delay_s):
                async for _ in signals:
                    break
        log.info("shutting down: %d calls in flight", endpoint.in_flight)
        # New requests are refused from here on, and streams end properly while calls still run.
        endpoint.draining = True
        gateway.server.close_streams()
        endpoint.close_streams()
        with anyio.move_on_after(DRAIN_S):
            while endpoint.in_flight:
                await anyio.sleep(_POLL_S)
            for connections in every:
                await connections.read_out()
            if leave is not None:
                await leave()
        endpoint.give_up()
        server.should_exit = True
        # The receiver stays open: a second signal must not end the process in the middle.
        await anyio.sleep_forever()


def _pod(config: Config, most: int) -> Pod:
    # Late: TLS of our own and the store are nothing to a gateway that is alone.
    from gateway.cluster.pod import Pod, warn_of_private

    assert config.gateway.cluster is not None
    warn_of_private(config)
    return Pod(config.gateway.cluster, most=most)


def _bind_peers(config: Config) -> socket.socket | None:
    """The socket for other gateways, listening; None where there are none.

    Raises:
        ConfigError: The address is taken, or cannot be used.
    """
    cluster = config.gateway.cluster
    if cluster is None or cluster.peers is None:
        return None
    host, port = host_and_port(cluster.peers.listen)
    return bind(host, port, source_of(config), key="gateway.cluster.peers.listen")


def _most_per_address(most: int) -> int:
    """Return how many of so many connections one address may have: a proxy may have nearly all, nobody has all."""
    return max(1, most * 9 // 10)


def _most_connections(servers: int, *, each: int = 1) -> int:
    """How many callers are served at once: as many as descriptors allow beside those that upstreams need.

    Args:
        servers: How many upstreams there are.
        each: How many descriptors one caller may take.
    """
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, 2 * MAX_CONNECTIONS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    allowed = max(soft, wanted)
    kept = min(allowed // 2, _OWN_DESCRIPTORS + _DESCRIPTORS_PER_SERVER * servers)
    return min(MAX_CONNECTIONS, (allowed - kept) // each)
