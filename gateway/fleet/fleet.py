"""All upstreams, each with its link, its last good listing and its shape."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.conversion import shape_of
from gateway.config.model import Config, LeftOut
from gateway.config.server import Prefix, ServerConfig
from gateway.fleet.listing_lock import ListingLock
from gateway.fleet.listings import Listings, Planned
from gateway.fleet.reload import ReloadSteps, plan
from gateway.http.http_client import HttpClient
from gateway.process.secrets import SECRETS
from gateway.protocol.gateway_errors import ConfigError, ConnectionLost, GatewayError, innermost
from gateway.upstream.caller_links import NoSharedConnector, UserLinks
from gateway.upstream.link import UpstreamLink
from gateway.upstream.link_states import LinkPorts
from gateway.upstream.mcp_connectors import credentials_of
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.sandbox_rules import protect_paths
from gateway.upstream.session import RawListing, SessionPorts, WatchedKind, connector_of
from gateway.upstream.transport.process_start import ProcessStart
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName, check_aliases
from registry.catalog.registry import Registry
from registry.catalog.shape import Note, Shape
from registry.errors import AliasError
from registry.lock.lockfile import Lockfile

log = logging.getLogger(__name__)

# The longest time that orchestrators wait: an unresponsive upstream must not make the others unavailable.
_READY_WITHIN_S: Final = 5.0

NotesOf = Callable[[str], Mapping[str, tuple[Note, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPorts:
    """Callbacks of a fleet.

    Attributes:
        notes_of: Return the operators' notes about the tools of a server.
        admits: Raises `ConfigError` for a server that cannot be served here.
        on_update: Called with the server and the change of a watched resource or task.
        on_started: Called with each new link before it connects.
        on_gone: Called with the alias of each link that is taken out of service.
        on_refused: Called when an upstream has rejected the configured credentials.
    """

    notes_of: NotesOf
    admits: Callable[[str, ServerConfig], None]
    on_update: Callable[[str, WatchedKind, str, dict[str, Any]], None]
    on_started: Callable[[str, UpstreamLink], None]
    on_gone: Callable[[str], None]
    on_refused: Callable[[], object]


class Fleet(Reconfigurable):
    """All upstreams.

    Attributes:
        links: The link of each upstream, by alias.
        servers: The configuration of each upstream, by alias.
        lock: The approved listings.
        listings: The listings that all callers share.
        has_snapshot: Some servers are listed from the snapshot.
        left_out: Configured servers that are not served, with the reason.
        sign_ins: The credentials for upstreams.
        users: The links of single callers, for upstreams with account linking.
    """

    def __init__(
        self,
        registry: Registry,
        group: TaskGroup,
        client: HttpClient,
        listings: Listings,
        *,
        links: dict[str, UpstreamLink],
        ports: FleetPorts,
        sign_ins: SignIns,
        users: UserLinks,
    ) -> None:
        """Initialize an empty fleet.

        Args:
            links: The table of links, empty and shared with other readers.
        """
        self._registry = registry
        self._group = group
        self._client = client
        self._ports = ports
        self.lock = listings.lock
        self._began_s = anyio.current_time()
        self.sign_ins = sign_ins
        self.users = users
        self._own, self._updates, self.listings = listings.own, listings.updates, listings.shared
        self._is_per_user = listings.is_per_user
        self._prefix: Prefix = "always"
        self.links = links
        self.servers: dict[str, ServerConfig] = {}
        self.left_out: Mapping[str, LeftOut] = {}
        self.has_snapshot = False

    async def start(self, config: Config, *, resting: Collection[str] = ()) -> None:
        """Publish the listings of the snapshot, then start all links concurrently.

        Args:
            resting: Servers that are not connected, and are known only from the snapshot.
        """
        servers, self.left_out = config.servers, config.left_out
        self._prefix = config.gateway.names.prefix
        protect_paths([config.path, *config.files])
        await self.listings.load()
        self._group.start_soon(self.listings.stored.run)
        _hide_secrets(servers.values())
        self.servers.update(servers)
        length = self._registry.shape.max_length

        def planned() -> Planned:
            return self._shape_of(servers, self._prefix, length), (), self.listings.find_restorable(servers)

        await self._updates.prepare(planned, more_tools=self.listings.stored.tool_count)
        restored = self.listings.restore_listings(servers)
        self.has_snapshot = any(listing.origin == "snapshot" for listing in restored)
        self._reshape(put=restored)
        for alias, entry in servers.items():
            if alias not in resting:
                self._start_link(alias, entry)

    # Changes

    async def validate(self, change: ConfigChange) -> Apply:
        self._check_aliases(change)
        lockfile = await self.lock.read_lockfile(change.after)
        steps = plan(change.before, change.after)
        await self._prepare(change.after, steps, self.lock.under(change.after, lockfile))
        return partial(self._apply, change.after, steps, lockfile)

    def _apply(self, config: Config, steps: ReloadSteps, lockfile: Lockfile | None) -> None:
        """Apply another configuration in a single new catalog, leaving all other servers untouched."""
        servers, self.left_out = config.servers, config.left_out
        self._prefix, max_length = config.gateway.names.prefix, config.gateway.names.max_length
        self.lock.replace(config, lockfile)
        protect_paths([config.path, *config.files])
        _hide_secrets(servers.values())
        turned = self._with_changed_sharing(servers, steps)
        removed = [self._remove_server(alias) for alias in steps.remove if alias in self.servers]
        starting: dict[str, int] = {}
        fresh: dict[str, ServerConfig] = {}
        for alias, entry in servers.items():
            if alias not in self.servers:
                fresh[alias] = entry
                starting[alias] = 0
            elif alias in turned:
                removed.append(self._remove_server(alias))
                fresh[alias] = entry
                starting[alias] = 0
            elif alias in steps.adjust:
                # Limits, names and descriptions do not affect the connection, so the upstream does not list again.
                self.links[alias].use(entry)
                self.users.adjust(alias, entry)
            elif alias in steps.replace or alias in steps.add:
                # The wrappers stay listed until the new connection has listed.
                starting[alias] = self._retire_link(alias)
            else:
                continue
            self.servers[alias] = entry
        put = [*self.listings.reviewed_again(self.servers), *self.listings.restore_listings(fresh)]
        self._reshape(servers, max_length=max_length, drop=removed, put=put)
        for alias, epoch in starting.items():
            self._start_link(alias, servers[alias], epoch=epoch)

    async def _prepare(self, config: Config, steps: ReloadSteps, lock: ListingLock) -> None:
        """Build in a thread what `_apply` needs; this changes nothing visible.

        Args:
            lock: The lock after the change.
        """
        servers, names = config.servers, config.gateway.names
        removed = {
            alias for alias in (*steps.remove, *self._with_changed_sharing(servers, steps)) if alias in self.servers
        }
        fresh = {alias: config for alias, config in servers.items() if alias not in self.servers or alias in removed}
        changed = {
            alias: config for alias, config in servers.items() if alias in (*steps.adjust, *steps.replace, *steps.add)
        }
        remaining = {alias: config for alias, config in self.servers.items() if alias not in removed}
        after = _in_order({**remaining, **changed, **fresh}, servers)

        def planned() -> Planned:
            shape = self._shape_of(after, names.prefix, names.max_length)
            listed = {alias: config for alias, config in after.items() if alias not in fresh}
            put = self.listings.to_review_again(listed, lock)
            return shape, [ServerName(alias) for alias in removed], put

        await self._updates.prepare(planned)

    async def relock(self, lockfile: Lockfile | None) -> None:
        """Publish all listings again under another lock file, or under none."""
        self.lock.use_lockfile(lockfile)
        servers, length = dict(self.servers), self._registry.shape.max_length

        def planned() -> Planned:
            put = self.listings.to_review_again(servers, self.lock)
            return self._shape_of(servers, self._prefix, length), (), put

        await self._updates.prepare(planned)
        self._reshape(put=self.listings.reviewed_again(self.servers))
        self._own.republish(self.servers)

    def _with_changed_sharing(self, servers: Mapping[str, ServerConfig], steps: ReloadSteps) -> set[str]:
        """Return the servers that start or stop listing per caller, whose lists must not be shown to other callers."""
        return {
            alias
            for alias, link in self.links.items()
            if link.per_user != self._is_per_user(servers.get(alias))
            or (link.per_user and alias in (*steps.replace, *steps.add))
        }

    def check_new(self, alias: str, config: ServerConfig) -> None:
        """Check that another upstream can be added.

        Raises:
            ConfigError: The alias is invalid or in use, or the server cannot be served here.
        """
        self._ports.admits(alias, config)
        if alias in self.servers:
            message = f"there is already a server '{alias}'; expected another name, or its removal first"
            raise ConfigError(message, file="request", key=alias)
        try:
            check_aliases([*self.servers, alias])
        except AliasError as error:
            raise ConfigError(str(error), file="request", key=alias) from None

    def _remove_server(self, alias: str) -> ServerName:
        config = self.servers.pop(alias)
        self._retire_link(alias)
        self.listings.forget(alias, config)
        self._own.forget(alias)
        return ServerName(alias)

    def _reshape(
        self,
        order: Iterable[str] = (),
        *,
        max_length: int | None = None,
        drop: Iterable[ServerName] = (),
        put: Iterable[ServerListing] = (),
    ) -> None:
        """Rebuild the catalog from the current configuration, with the aliases of `order` first."""
        self.servers = _in_order(self.servers, order)
        self.listings.stored.identify(self.servers)
        length = self._registry.shape.max_length if max_length is None else max_length
        self._registry.reshape(self._shape_of(self.servers, self._prefix, length), drop=drop, put=put)

    def _shape_of(self, servers: Mapping[str, ServerConfig], prefix: Prefix, max_length: int) -> Shape:
        shapes = {
            ServerName(alias): shape_of(config, prefix, self._ports.notes_of(alias))
            for alias, config in servers.items()
        }
        return Shape(max_length=max_length, servers=shapes)

    def _check_aliases(self, change: ConfigChange) -> None:
        """Check aliases of a new configuration against those that were added at run time.

        Raises:
            ConfigError: Two aliases look the same to a host.
        """
        configured = list(change.after.servers)
        added = [alias for alias in self.servers if alias not in {*change.before.servers, *configured}]
        try:
            check_aliases([*configured, *added])
        except AliasError as error:
            raise ConfigError(str(error), file="reload") from None

    # State of servers

    def is_retired_alias(self, alias: str) -> bool:
        """Return whether a removed server had this alias, and no server has it now."""
        stored = self.listings.stored
        return alias not in self.servers and (
            stored.former_fingerprint(alias) is not None or stored.ids.current_alias(alias) is not None
        )

    def faulty(self, alias: str) -> bool:
        """Return whether a configured server is not served because of an error in its entry."""
        left_out = self.left_out.get(alias)
        return left_out is not None and left_out.faulty and alias not in self.servers

    def successor(self, alias: str) -> str | None:
        """Return the present alias of the server that formerly had this alias."""
        return self.listings.successor(alias, self.servers) if self.is_retired_alias(alias) else None

    @property
    def tried(self) -> bool:
        """Return whether every upstream was tried once or is listed from the snapshot."""
        listed = self._registry.catalog.servers
        return all(link.tried.is_set() or alias in listed for alias, link in self.links.items())

    @property
    def ready(self) -> bool:
        """Return whether lists are complete or come from the snapshot, or the time to wait for them is over."""
        return self.tried or anyio.current_time() - self._began_s >= _READY_WITHIN_S

    @property
    def pending(self) -> bool:
        """Return whether some upstream has not listed anything yet."""
        return any(alias not in self._registry.catalog.servers for alias in self.links)

    async def settled(self, timeout_s: float) -> None:
        """Wait until every upstream was tried once or is listed from the snapshot, or the timeout expires."""
        with anyio.move_on_after(timeout_s):
            for alias, link in list(self.links.items()):
                if alias not in self._registry.catalog.servers:
                    await link.tried.wait()

    # Links

    def _start_link(self, alias: str, config: ServerConfig, *, epoch: int = 0) -> None:
        ports = LinkPorts(
            on_listing=self.listings.put,
            on_lost=self.listings.mark_lost,
            on_update=partial(self._ports.on_update, alias),
            has_listing=self.listings.has_listing,
            on_refused=lambda link: self._ports.on_refused(),
        )
        per_user = self._is_per_user(config)
        credentials = credentials_of(alias, config, self.sign_ins)
        own = NoSharedConnector(alias) if per_user else None
        connector = own or connector_of(alias, config.in_root(), self._client, credentials=credentials)
        link = UpstreamLink(alias, config, connector, ports, epoch=epoch, per_user=per_user)
        self.links[alias] = link
        # Called before the link runs, because its first connection has to restore subscriptions.
        self._ports.on_started(alias, link)
        self._group.start_soon(link.run)

    async def try_server(
        self, alias: str, config: ServerConfig, on_start: Callable[[ProcessStart], None]
    ) -> RawListing:
        """Connect to a server that is not part of the fleet, list its items, and disconnect. Nothing is exposed.

        Args:
            on_start: Called with the start of its process.

        Raises:
            GatewayError: The server could not be started or listed.
        """
        _hide_secrets([config])

        def started(start: ProcessStart) -> None:
            start.limit(config.start_limit_s)
            on_start(start)

        ports = SessionPorts(
            on_list_changed=lambda kinds: None, on_update=lambda kind, key, params: None, on_start=started
        )
        try:
            async with connector_of(alias, config, self._client).open(ports) as session:
                return await session.fetch_listing(limit_s=config.start_limit_s)
        except Exception as error:  # boundary: a server on trial must not break the request of the administrator
            # The task group of the connection wraps each error in a group.
            cause = innermost(error)
            if isinstance(cause, GatewayError):
                raise cause from None
            log.exception("server on trial failed unexpectedly", extra={"server": alias})
            raise ConnectionLost(f"unexpected {type(cause).__name__}", sent=False) from None

    def _retire_link(self, alias: str) -> int:
        """Take a link out of service, close it once its calls have ended, and return its last epoch."""
        link = self.links.pop(alias)
        self.users.drop_server(alias)
        self._ports.on_gone(alias)
        link.retire()
        self._group.start_soon(link.close_when_idle)
        return link.epoch


def _in_order(servers: Mapping[str, ServerConfig], order: Iterable[str]) -> dict[str, ServerConfig]:
    """Return the servers in the given order, followed by the others."""
    return {alias: servers[alias] for alias in dict.fromkeys([*order, *servers]) if alias in servers}


def _hide_secrets(servers: Iterable[ServerConfig]) -> None:
    """Redact the secrets of these servers in all output. One call for all: each call is as expensive as any other."""
    SECRETS.hide({value for config in servers for value in config.secrets()})
