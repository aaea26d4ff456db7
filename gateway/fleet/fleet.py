"""All upstreams, which are called servers here, each with its link, its listing and its configuration.

A link maintains the connection to a server, and its epoch counts the connections. A listing is what a server lists: its
tools, prompts and resources. The snapshot stores the last good listings on disk. The registry combines all listings
into the catalog, according to its shape, which is derived from the configuration.
"""

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
from gateway.upstream.sandbox import protect_paths
from gateway.upstream.session import RawListing, SessionPorts, WatchedKind, connector_of
from gateway.upstream.transport.process_start import ProcessStart
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName, check_aliases
from registry.catalog.overrides import Note
from registry.catalog.registry import Registry
from registry.catalog.shape import Shape
from registry.errors import AliasError
from registry.lock.lockfile import Lockfile

log = logging.getLogger(__name__)

# After this time, the gateway is ready even if some servers have not responded, because an unresponsive server must not
# make other servers unavailable.
_READY_WITHIN_S: Final = 5.0

NotesOf = Callable[[str], Mapping[str, tuple[Note, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPorts:
    """Callbacks of a fleet.

    Attributes:
        notes_of: Returns the operators' notes about the tools of a server.
        admits: Raises `ConfigError` for a server that this gateway cannot run.
        on_update: Called with the server and the update of a resource or task that a caller has subscribed to.
        on_started: Called with each new link before it connects.
        on_gone: Called with the alias of a server whose link is replaced or removed.
        on_refused: Called when a server has rejected the configured credentials.
    """

    notes_of: NotesOf
    admits: Callable[[str, ServerConfig], None]
    on_update: Callable[[str, WatchedKind, str, dict[str, Any]], None]
    on_started: Callable[[str, UpstreamLink], None]
    on_gone: Callable[[str], None]
    on_refused: Callable[[], object]


class Fleet(Reconfigurable):
    """All servers.

    Attributes:
        links: The link of each server, by alias.
        servers: The configuration of each server, by alias.
        lock: Compares listings with the approved ones, and holds changes.
        listings: The listings that all callers share.
        has_snapshot: True if the gateway started with listings from the snapshot.
        left_out: The servers in the configuration that are not used, each with the reason.
        sign_ins: The credentials for servers.
        users: The links to servers that each caller signs in to. Each of these links belongs to one caller.
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
            links: The table of links. It is empty, and other objects read it, too.
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
            resting: Servers that are not connected; callers see their listings from the snapshot.
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
        """Apply another configuration and publish a single new catalog; unchanged servers are not touched."""
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
                # Limits, names and descriptions do not affect the connection, so the server does not have to list
                # again.
                self.links[alias].use(entry)
                self.users.adjust(alias, entry)
            elif alias in steps.replace or alias in steps.add:
                # The wrappers stay in the catalog until the server has listed on the new connection.
                starting[alias] = self._retire_link(alias)
            else:
                continue
            self.servers[alias] = entry
        put = [*self.listings.reviewed_again(self.servers), *self.listings.restore_listings(fresh)]
        self._reshape(servers, max_length=max_length, drop=removed, put=put)
        for alias, epoch in starting.items():
            self._start_link(alias, servers[alias], epoch=epoch)

    async def _prepare(self, config: Config, steps: ReloadSteps, lock: ListingLock) -> None:
        """In a thread, build the catalog that `_apply` will publish. Callers do not see any change yet.

        Args:
            lock: The listing lock with the new configuration.
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
        """Review and publish all listings again with another lock file; None for no lock file."""
        self.lock.use_lockfile(lockfile)
        servers, length = dict(self.servers), self._registry.shape.max_length

        def planned() -> Planned:
            put = self.listings.to_review_again(servers, self.lock)
            return self._shape_of(servers, self._prefix, length), (), put

        await self._updates.prepare(planned)
        self._reshape(put=self.listings.reviewed_again(self.servers))
        self._own.republish(self.servers)

    def _with_changed_sharing(self, servers: Mapping[str, ServerConfig], steps: ReloadSteps) -> set[str]:
        """Return the servers whose listings have to be removed, so that no caller sees another caller's listing.

        These are servers that change between shared and per-caller listings, and servers with per-caller listings that
        get a new connection.
        """
        return {
            alias
            for alias, link in self.links.items()
            if link.per_user != self._is_per_user(servers.get(alias))
            or (link.per_user and alias in (*steps.replace, *steps.add))
        }

    def check_new(self, alias: str, config: ServerConfig) -> None:
        """Check that another server can be added.

        Raises:
            ConfigError: The alias is invalid or in use, or this gateway cannot run the server.
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
        """Rebuild the catalog from the current configuration.

        Args:
            order: Aliases of the servers that come first in the catalog.
            max_length: The maximum length of names; None for the current one.
            drop: Servers whose listings are removed.
            put: Listings to add.
        """
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
        """Check the aliases of a new configuration against those of servers that were added at run time.

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
        """Return whether a server in the configuration is not used because its entry has an error."""
        left_out = self.left_out.get(alias)
        return left_out is not None and left_out.faulty and alias not in self.servers

    def successor(self, alias: str) -> str | None:
        """Return the current alias of the server that had this alias before; None if no such server exists."""
        return self.listings.successor(alias, self.servers) if self.is_retired_alias(alias) else None

    @property
    def tried(self) -> bool:
        """Return whether every server has been tried once, or has a listing from the snapshot."""
        listed = self._registry.catalog.servers
        return all(link.tried.is_set() or alias in listed for alias, link in self.links.items())

    @property
    def ready(self) -> bool:
        """Return whether `tried` is true or the gateway has waited long enough for servers."""
        return self.tried or anyio.current_time() - self._began_s >= _READY_WITHIN_S

    @property
    def pending(self) -> bool:
        """Return whether some server has not listed anything yet."""
        return any(alias not in self._registry.catalog.servers for alias in self.links)

    async def settled(self, timeout_s: float) -> None:
        """Wait until `tried` is true, or the timeout expires."""
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
        # Called before the link runs, so that its first connection can restore the callers' subscriptions.
        self._ports.on_started(alias, link)
        self._group.start_soon(link.run)

    async def try_server(
        self, alias: str, config: ServerConfig, on_start: Callable[[ProcessStart], None]
    ) -> RawListing:
        """Connect to a server outside the fleet, list its items, and disconnect. Callers do not see the items.

        Args:
            on_start: Called when the server's process starts, with an object that describes the start.

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
        except Exception as error:  # boundary: an unknown server must not break the administrator's request
            # The task group of the connection wraps the error in an exception group.
            cause = innermost(error)
            if isinstance(cause, GatewayError):
                raise cause from None
            log.exception("server on trial failed unexpectedly", extra={"server": alias})
            raise ConnectionLost(f"unexpected {type(cause).__name__}", sent=False) from None

    def _retire_link(self, alias: str) -> int:
        """Remove a link, close it in the background once its calls have ended, and return its last epoch."""
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
    """Redact the secrets of these servers in all output, using a single call because each call is expensive."""
    SECRETS.hide({value for config in servers for value in config.secrets()})
