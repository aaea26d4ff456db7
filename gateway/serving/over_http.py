"""`typegate serve`: sockets, signals and the order of shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import anyio
import uvicorn

from gateway.access.administrators import Administrators, EndedSessions
from gateway.access.signing import Signer
from gateway.admin import rows
from gateway.admin.activity import EventFeed, Others
from gateway.admin.api import AdminApi
from gateway.admin.call_history import FILE_NAME as HISTORY_FILE
from gateway.admin.call_history import CallHistory
from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.cluster_config import host_and_port
from gateway.config.model import Config
from gateway.config.overlay import Admits, Overlay, with_changes
from gateway.config.server import ServerConfig
from gateway.downstream.admission import Callers, PathRouter, ProtectedResource
from gateway.downstream.endpoint import McpEndpoint
from gateway.fleet.reload import Reloader
from gateway.http.origins import LOOPBACK, CrossOrigin, HostCheck
from gateway.http.responder import AsgiApp, AsgiHandler
from gateway.http.server_connection import HttpProtocol
from gateway.http.server_connections import Connections
from gateway.process.files import prepare_state_dir
from gateway.process.memory import freeze_settled, use_one_heap
from gateway.process.secrets import SECRETS
from gateway.process.tasks import open_signals
from gateway.serving.admin_assembly import ServedAt, admin_api
from gateway.serving.app import Gateway, open_gateway
from gateway.serving.listen import (
    DRAIN_S,
    ServeOptions,
    admin_token,
    bind,
    bind_admin,
    check_exposure,
    config_source,
    mcp_url,
    serving_admin,
    unbind_admin,
)
from gateway.serving.listen import MAX_CONNECTIONS as ADMIN_CONNECTIONS
from gateway.upstream.oauth.authorization import BrowserOrigin
from gateway.upstream.oauth.metadata_discovery import origin_of

if TYPE_CHECKING:
    from gateway.cluster.replica import Replica
    from gateway.cluster.worker_group import Worker, WorkerGroup

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 9_500
"""Maximum number of caller connections: about half of the usual hard limit of 20,000 descriptors. Upstreams may use the
other half."""
# Descriptors to reserve for standard streams, listeners, the event loop, and files being read, with a margin.
_OWN_DESCRIPTORS: Final = 128
# Descriptors to reserve for each upstream. A local program has three pipes, and a remote server has one connection for
# each concurrent call.
_DESCRIPTORS_PER_SERVER: Final = 16
# Descriptors for each caller in a cluster: the connection of the caller, the forwarded request to the replica that has
# the session, and a request that another replica forwards to this replica.
_DESCRIPTORS_PER_FORWARDING_CALLER: Final = 3
# Seconds between checks for calls in flight during the shutdown. Polling is needed because no event reports their end.
_POLL_S: Final = 0.02

OnReady = Callable[[Gateway, str], Awaitable[None] | None]


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not handle signals here, because `_Shutdown` handles them."""
        yield


async def serve(config: Config, options: ServeOptions, *, on_ready: OnReady | None = None) -> int:
    """Serve over Streamable HTTP until SIGINT or SIGTERM, and return the exit code.

    Raises:
        ConfigError: The address is in use, or other machines could use the gateway without API keys.
    """
    check_exposure(config, host=options.host, insecure=options.insecure)
    prepare_state_dir(options.state_dir)
    token = admin_token(config, options.state_dir)
    listener = bind(options.host, options.port, config_source(config))
    admin_listener = bind_admin(config)
    try:
        return await serve_on(
            Listeners(callers=listener, admin=admin_listener), config, options, token=token, on_ready=on_ready
        )
    finally:
        unbind_admin(admin_listener, config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The listening sockets of a process.

    Attributes:
        callers: The socket for callers.
        admin: The socket for `gateway.admin.listen`; None if this process does not serve it.
    """

    callers: socket.socket
    admin: socket.socket | None = None


async def serve_on(
    listeners: Listeners,
    config: Config,
    options: ServeOptions,
    *,
    token: str,
    on_ready: OnReady | None = None,
    worker_group: WorkerGroup | None = None,
) -> int:
    """Serve on listening sockets until SIGINT or SIGTERM, and return the exit code.

    Args:
        token: The admin token.
        on_ready: Called with the gateway and the URL of its MCP endpoint once the gateway serves callers.
        worker_group: The worker group of this process; None for a single process.
    """
    listener, admin_listener = listeners.callers, listeners.admin
    host, state_dir = options.host, options.state_dir
    use_one_heap()
    clustered = worker_group is None and config.gateway.cluster is not None
    most = _max_connections(len(config.servers), each=_DESCRIPTORS_PER_FORWARDING_CALLER if clustered else 1)
    draining = anyio.Event()
    replica = _replica(config, most, state_dir) if clustered else None
    peer_listener = _bind_peers(config) if replica is not None else None
    together = worker_group or replica
    role = together.role if together is not None else None
    origin = BrowserOrigin(_origin_for_browsers(host, listener))
    overlay = Overlay(state_dir, config.path, writes=role is None or role.writes)
    overlay.check()
    admits: Admits = role.admits if role is not None else _admit_all
    running = with_changes(config, overlay.changes, admits)
    history = CallHistory(state_dir / HISTORY_FILE)
    async with history.saving(), open_gateway(running, state_dir=state_dir, role=role, origin=origin) as gateway:
        resource = ProtectedResource(lambda: gateway.config.gateway.auth.oauth, lambda: gateway.views.profiles)
        endpoint = McpEndpoint(
            gateway.server,
            gateway.views,
            gateway.authenticator,
            Callers(gateway.authenticator, gateway.views, gateway.quotas, resource, gateway.audit),
            forwarder=worker_group.peers
            if worker_group is not None
            else replica.replicas
            if replica is not None
            else None,
        )
        reloader = Reloader(
            gateway.active,
            check=partial(_check_servable, options=options, is_shared=worker_group is not None),
            strict=options.strict,
            base=config,
            overlay=overlay,
            admits=admits,
        )
        ended = EndedSessions(state_dir, on_change=together.wake if together is not None else lambda: None)
        if together is not None:
            # Imported lazily: a single process does not need this module.
            from gateway.cluster.shared_state import SharedParts

            shared = SharedParts(
                reloader=reloader,
                fleet=gateway.fleet,
                notes=gateway.notes,
                keys=gateway.authenticator.keys,
                approvals=gateway.approvals,
                ended=ended,
            )
            together.join(shared)
        SECRETS.hide([token])
        administrators = Administrators(
            token,
            lambda: gateway.config.gateway.admin.tokens,
            Signer(state_dir, key=role.signing_key if role is not None else None),
            ended=ended,
        )
        feed = EventFeed(
            partial(rows.states, gateway.fleet),
            lambda: gateway.registry.catalog,
            _events_of_others(worker_group),
            history=history,
        )
        gateway.audit.watch(feed.publish)
        admin = admin_api(
            gateway,
            reloader,
            administrators,
            feed,
            ServedAt(host=host, url=mcp_url(host, listener), draining=draining.is_set),
            replica,
        )
        worker = _worker(worker_group, gateway, reloader, endpoint, admin, feed) if worker_group is not None else None
        app: AsgiApp = worker.administration if worker is not None else admin.app()
        per_address = config.gateway.listen.connections_per_address
        if per_address is not None and worker_group is not None:
            per_address = -(-per_address // worker_group.worker_config.count)
        connections = Connections(
            most=most, anonymous=gateway.quotas.anonymous, per_address=per_address or _max_per_address(most)
        )
        # Admin connections need no quota for anonymous callers, because unauthenticated admin requests are rejected
        # before their body is buffered.
        admin_connections = Connections(most=ADMIN_CONNECTIONS, per_address=_max_per_address(ADMIN_CONNECTIONS))
        # With `gateway.admin.listen`, the callers' port serves only the paths outside of `/admin`.
        check_beside = admin.check if config.gateway.admin.listen is None else admin.check_probe
        named_origins = frozenset(map(str.lower, config.gateway.listen.allowed_origins))
        router = PathRouter(
            gateway.active.add(ServedHosts(config, host)).check,
            CrossOrigin(named_origins),
            endpoint,
            resource,
            AsgiHandler(app, max_body_bytes=admin.max_body_bytes, check=check_beside),
        )
        server = _Uvicorn(_uvicorn_config(connections, router))
        async with anyio.create_task_group() as group, AsyncExitStack() as stack:
            # Start watching deadlines before accepting connections, so that every connection is watched from the
            # beginning.
            group.start_soon(connections.watch)
            group.start_soon(freeze_settled, gateway.registry)
            group.start_soon(endpoint.sessions.sweep_periodically)
            group.start_soon(reloader.reload_when_suspected)
            group.start_soon(history.save_periodically)
            every = [connections, admin_connections, *([together.connections] if together is not None else [])]
            if admin_listener is not None:
                group.start_soon(admin_connections.watch)
                handler = AsgiHandler(app, max_body_bytes=admin.max_body_bytes, check=admin.check)
                await stack.enter_async_context(serving_admin(admin_listener, config, handler, admin_connections))
            leave = replica.leave if replica is not None else None
            delay_s = config.gateway.drain_delay
            shutdown = _Shutdown(gateway, endpoint, every, server, draining, delay_s, leave)
            group.start_soon(shutdown.run_at_signal)
            if replica is not None:
                serving = replica.serve_peers(
                    peer_listener, endpoint, lambda: endpoint.draining, gateway.results.packed
                )
                await stack.enter_async_context(serving)
            if worker is not None:
                await stack.enter_async_context(worker.serve_peers())
            else:
                group.start_soon(partial(reloader.run, hangups=True))
            if on_ready is not None:
                group.start_soon(_notify_ready, on_ready, gateway, mcp_url(host, listener))
            await server.serve(sockets=[listener])
            group.cancel_scope.cancel()
    return 0


def _check_servable(config: Config, *, options: ServeOptions, is_shared: bool) -> None:
    """Check that a changed configuration can be served with the options of this process.

    Args:
        is_shared: Whether several workers serve the configuration.

    Raises:
        ConfigError: Other machines could use the gateway without API keys, or the configuration requires a single
            process.
    """
    check_exposure(config, host=options.host, insecure=options.insecure)
    if is_shared:
        from gateway.cluster import roles  # imported lazily: a single process does not need this module

        roles.check_shareable(config, file=config_source(config))


def _admit_all(alias: str, config: ServerConfig) -> None:
    """Admit every server: the default for a single process."""


def _worker(
    worker_group: WorkerGroup,
    gateway: Gateway,
    reloader: Reloader,
    endpoint: McpEndpoint,
    admin: AdminApi,
    feed: EventFeed,
) -> Worker:
    # Imported lazily: a single process does not need these modules.
    from gateway.cluster.administration import Administration
    from gateway.cluster.worker_group import RelayedParts, Worker

    index, publish = worker_group.worker_config.index, worker_group.shared.publish
    return Worker(
        worker_group,
        reloader=reloader,
        endpoint=endpoint,
        administration=Administration(admin, index, worker_group.peers, publish),
        relayed=RelayedParts(call_stats=gateway.call_stats, feed=feed, results=gateway.results),
    )


def _events_of_others(worker_group: WorkerGroup | None) -> Others | None:
    if worker_group is None:
        return None
    # Imported lazily: a single process does not need this module.
    from gateway.cluster.administration import events_of_others

    return partial(events_of_others, worker_group.peers)


def _origin_for_browsers(host: str, listener: socket.socket) -> str:
    """Return the origin of the gateway for browsers on this machine.

    The host is an IP address, because `localhost` may resolve to an address of the other family (IPv4 or IPv6).
    """
    return mcp_url(host if host in LOOPBACK and host != "localhost" else "127.0.0.1", listener).removesuffix("/mcp")


class ServedHosts(Reconfigurable):
    """The allowed values of the headers Host and Origin.

    Changes of the gateway's URLs in the configuration take effect at once; changes of `gateway.listen` require a
    restart.

    Attributes:
        check: Checks the headers of a request.
    """

    def __init__(self, config: Config, host: str) -> None:
        listen = config.gateway.listen
        self._named_hosts = tuple(listen.allowed_hosts)
        self._named_origins = tuple(listen.allowed_origins)
        self._host = host.lower()
        self.check = HostCheck(*self._allowed_hosts_and_origins(config))

    async def validate(self, change: ConfigChange) -> Apply:
        return partial(self.check.replace, *self._allowed_hosts_and_origins(change.after))

    def _allowed_hosts_and_origins(self, config: Config) -> tuple[frozenset[str] | None, frozenset[str]]:
        oauth = config.gateway.auth.oauth
        resource = oauth.resource if oauth is not None else None
        own = [origin_of(url) for url in (config.gateway.public_url, resource) if url is not None]
        names = [*self._named_hosts, *(urlsplit(origin).netloc for origin in own)]
        allowed_hosts = frozenset({*LOOPBACK, self._host, *(name.lower() for name in names)})
        # If the gateway listens on a network address, its host names are unknown, and are checked only if configured.
        hosts = allowed_hosts if self._host in LOOPBACK or self._named_hosts else None
        # Allow requests from the gateway's own pages.
        origins = [*self._named_origins, *own]
        return hosts, frozenset(origin.lower() for origin in origins)


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
        # One second is enough to close idle connections, because `_Shutdown` has already waited for calls in flight.
        timeout_graceful_shutdown=1,
    )


async def _no_application(scope: Any, receive: Any, send: Any) -> None:
    """Serve as the application argument that uvicorn requires. `HttpProtocol` handles the requests instead."""


async def _notify_ready(on_ready: OnReady, gateway: Gateway, url: str) -> None:
    result = on_ready(gateway, url)
    if result is not None:
        await result


@dataclass(frozen=True, slots=True)
class _Shutdown:
    """The steps that shut down this process.

    Attributes:
        every: The groups of connections: of callers, of administrators, and of other processes of the gateway.
        draining: Set when the shutdown begins.
        delay_s: Seconds to keep serving after the shutdown has begun.
        leave: Stops accepting requests from other replicas, and waits for open responses; None without a cluster.
    """

    gateway: Gateway
    endpoint: McpEndpoint
    every: Iterable[Connections]
    server: uvicorn.Server
    draining: anyio.Event
    delay_s: float
    leave: Callable[[], Awaitable[None]] | None

    async def run_at_signal(self) -> None:
        """Wait for SIGINT or SIGTERM, then shut down in order."""
        with open_signals(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                break
            self.draining.set()
            for connections in self.every:
                # Close each connection after its next response, so that the client reconnects to another replica.
                connections.leave()
            if self.delay_s:
                # Keep serving during `drainDelay`, because the load balancer first has to see /readyz fail.
                log.info("shutting down in %g s, still serving", self.delay_s)
                with anyio.move_on_after(self.delay_s):
                    async for _ in signals:
                        break
            log.info("shutting down: %d calls in flight", self.endpoint.in_flight)
            # Refuse new requests and close the notification streams, while calls in flight still run.
            self.endpoint.drain()
            self.gateway.server.close_streams()
            with anyio.move_on_after(DRAIN_S):
                while self.endpoint.in_flight:
                    await anyio.sleep(_POLL_S)
                for connections in self.every:
                    await connections.wait_until_read()
                if self.leave is not None:
                    await self.leave()
            self.endpoint.give_up()
            self.server.should_exit = True
            # Keep the signal receiver open, because a second signal must not end the process during the shutdown.
            await anyio.sleep_forever()


def _replica(config: Config, most: int, state_dir: Path) -> Replica:
    # Imported lazily: a gateway without a cluster needs neither TLS between replicas nor the shared store.
    from gateway.cluster.replica import Replica, warn_of_private

    assert config.gateway.cluster is not None
    warn_of_private(config)
    return Replica(config.gateway.cluster, most=most, state_dir=state_dir)


def _bind_peers(config: Config) -> socket.socket | None:
    """Return the listening socket for other replicas; None if it is not configured.

    Raises:
        ConfigError: The address is in use, or cannot be used.
    """
    cluster = config.gateway.cluster
    if cluster is None or cluster.peers is None:
        return None
    host, port = host_and_port(cluster.peers.listen)
    return bind(host, port, config_source(config), key="gateway.cluster.peers.listen")


def _max_per_address(most: int) -> int:
    """Return the maximum number of connections from one address.

    A proxy connects from a single address, so the maximum is 90 % of `most`. The rest stays free for other addresses.
    """
    return max(1, most * 9 // 10)


def _max_connections(servers: int, *, each: int = 1) -> int:
    """Raise the descriptor limit of this process, and return how many callers can be connected at a time.

    Args:
        servers: The number of upstreams, which need descriptors as well.
        each: The number of descriptors for each caller.
    """
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    desired = 2 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, 2 * MAX_CONNECTIONS)
    if soft < desired:
        resource.setrlimit(resource.RLIMIT_NOFILE, (desired, hard))
    allowed = max(soft, desired)
    reserved = min(allowed // 2, _OWN_DESCRIPTORS + _DESCRIPTORS_PER_SERVER * servers)
    return min(MAX_CONNECTIONS, (allowed - reserved) // each)
