"""Every upstream with its link, its last good listing and its shape: added, changed and removed while calls run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from gateway.catalog_updates import CatalogUpdates, Planned
from gateway.config.conversion import shape_of
from gateway.config.model import LeftOut
from gateway.config.plan import Steps
from gateway.config.server import Prefix, ServerConfig
from gateway.errors import ConfigError
from gateway.lock.listing_lock import ListingLock
from gateway.own_listings import OwnListings
from gateway.secrets import SECRETS
from gateway.shared_listings import SharedListings
from gateway.snapshot import KeptListings
from gateway.upstream.connector import connector_of
from gateway.upstream.credential_sources import credentials_of
from gateway.upstream.link import UpstreamLink
from gateway.upstream.link_ports import LinkPorts
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.user_links import NobodysConnector, UserLinks
from gateway.upstream.watch_list import WatchedKind
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName, check_aliases
from registry.catalog.notes import Note
from registry.catalog.shape import Shape
from registry.catalog.store import Registry
from registry.errors import AliasError

# What orchestrators wait for at most: an upstream that does not answer must not keep the others from being used.
_READY_WITHIN_S: Final = 5.0

NotesOf = Callable[[str], Mapping[str, tuple[Note, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPorts:
    """What a fleet asks of others, and what it tells them.

    Attributes:
        notes_of: The operators' notes about the tools of a server.
        admits: Raises `ConfigError` for a server that cannot be served here.
        on_update: Called with each change of a watched resource or task: its server first.
        on_started: Called with each new link before it connects.
        on_gone: Called with the alias of each link that is taken out of service.
        on_refused: Called when an upstream has refused the credentials of its entry.
        is_shared: Whether there are several callers, who are told apart.
    """

    notes_of: NotesOf
    admits: Callable[[str, ServerConfig], None]
    on_update: Callable[[str, WatchedKind, str, dict[str, Any]], None]
    on_started: Callable[[str, UpstreamLink], None]
    on_gone: Callable[[str], None]
    on_refused: Callable[[], object]
    is_shared: Callable[[], bool]


class Fleet:
    """All upstreams. What tells of one here is a task of its own for each.

    Attributes:
        links: By alias, what keeps each upstream connected.
        servers: By alias, the configuration of each.
        lock: What was approved of them.
        listings: What they list to everybody.
        has_snapshot: Some servers are listed as they were stored.
        left_out: Servers that the configuration names and that are not served, with the reason.
        sign_ins: What upstreams are signed in to with.
        users: The links of single callers, where each signs in for itself.
    """

    def __init__(
        self,
        registry: Registry,
        group: TaskGroup,
        client: HttpClient,
        kept: KeptListings,
        *,
        links: dict[str, UpstreamLink],
        ports: FleetPorts,
        prefix: Prefix,
        instance: str,
        sign_ins: SignIns,
        lock: ListingLock,
        users: UserLinks,
        saves: bool = True,
    ) -> None:
        """Begin without any upstream.

        Args:
            registry: Takes what upstreams list.
            group: Runs every link.
            client: Sends HTTP requests.
            kept: The listings of before, and what becomes of those of now.
            links: The table of links, empty; others read it.
            ports: The way to others.
            prefix: Whether names carry their server's alias, where a server does not say so itself.
            instance: The id of this gateway; an upstream that leads to it is not listed.
            sign_ins: What upstreams are signed in to with.
            lock: Says what of a listing is shown.
            users: The links of single callers.
            saves: Whether this process keeps the snapshot.
        """
        self._registry = registry
        self._group = group
        self._client = client
        self._ports = ports
        self._saves = saves
        self.lock = lock
        self._began_s = anyio.current_time()
        self.sign_ins = sign_ins
        self.users = users
        # One thread for all of them: the loop waits for its turn behind each that works.
        worker = anyio.CapacityLimiter(1)
        self._own = OwnListings(registry, lock, users, instance, worker)
        self._updates = CatalogUpdates(registry, worker)
        self.listings = SharedListings(
            registry,
            lock,
            links,
            updates=self._updates,
            kept=kept,
            instance=instance,
            worker=worker,
            is_per_user=self._is_per_user,
        )
        self._prefix: Prefix = prefix
        self.links = links
        self.servers: dict[str, ServerConfig] = {}
        self.left_out: Mapping[str, LeftOut] = {}
        self.has_snapshot = False

    async def start(self, servers: Mapping[str, ServerConfig], *, resting: Collection[str] = ()) -> None:
        """Show what the snapshot has, then start every link at once; the loop is free meanwhile.

        Args:
            servers: Every server of the configuration.
            resting: Servers that are not connected to; the snapshot is all that is known of them.
        """
        await self.listings.load()
        if self._saves:
            self._group.start_soon(self.listings.kept.run)
        _hide_secrets(servers.values())
        self.servers.update(servers)
        length = self._registry.shape.max_length

        def plan() -> Planned:
            return self._shape_of(servers, self._prefix, length), (), self.listings.to_recall(servers)

        await self._updates.prepare(plan, more_tools=self.listings.kept.tools)
        recalled = self.listings.recalled(servers)
        self.has_snapshot = any(listing.origin == "snapshot" for listing in recalled)
        self._reshape(put=recalled)
        for alias, config in servers.items():
            if alias not in resting:
                self._start_link(alias, config)

    # changes

    def apply(self, servers: Mapping[str, ServerConfig], steps: Steps, *, prefix: Prefix, max_length: int) -> None:
        """Take another configuration: one new catalog for all its steps, and only what they name is touched.

        Args:
            servers: Every server of the configuration, checked.
            steps: How it differs from the one before.
            prefix: See the constructor.
            max_length: Of wrapper names.
        """
        _hide_secrets(servers.values())
        self._prefix = prefix
        turned = self._turned(servers, steps)
        gone = [self._remove(alias) for alias in steps.remove if alias in self.servers]
        starting: dict[str, int] = {}
        fresh: dict[str, ServerConfig] = {}
        for alias, config in servers.items():
            if alias not in self.servers:
                fresh[alias] = config
                starting[alias] = 0
            elif alias in turned:
                gone.append(self._remove(alias))
                fresh[alias] = config
                starting[alias] = 0
            elif alias in steps.adjust:
                # What does not concern the connection: limits, names and words. The upstream is not asked again.
                self.links[alias].use(config)
                self.users.adjust(alias, config)
            elif alias in steps.replace or alias in steps.add:
                # Its wrappers stay listed until the new connection has listed its own.
                starting[alias] = self._retire(alias)
            else:
                continue
            self.servers[alias] = config
        put = [*self.listings.reviewed_again(self.servers), *self.listings.recalled(fresh)]
        self._reshape(servers, max_length=max_length, drop=gone, put=put)
        for alias, epoch in starting.items():
            self._start_link(alias, servers[alias], epoch=epoch)

    async def prepare(
        self,
        servers: Mapping[str, ServerConfig],
        steps: Steps,
        *,
        prefix: Prefix,
        max_length: int,
        lock: ListingLock,
    ) -> None:
        """Do ahead, beside the loop, what `apply` with the same would take long for; nothing changes yet.

        Args:
            servers, steps, prefix, max_length: See `apply`.
            lock: As it will be.
        """
        gone = {alias for alias in (*steps.remove, *self._turned(servers, steps)) if alias in self.servers}
        fresh = {alias: one for alias, one in servers.items() if alias not in self.servers or alias in gone}
        changed = {alias: one for alias, one in servers.items() if alias in (*steps.adjust, *steps.replace, *steps.add)}
        left = {alias: config for alias, config in self.servers.items() if alias not in gone}
        after = _in_order({**left, **changed, **fresh}, servers)

        def plan() -> Planned:
            shape = self._shape_of(after, prefix, max_length)
            kept = {alias: config for alias, config in after.items() if alias not in fresh}
            put = self.listings.to_review_again(kept, lock)
            return shape, [ServerName(alias) for alias in gone], put

        await self._updates.prepare(plan)

    async def relock(self) -> None:
        """Show what the lock file, which has changed, says."""
        servers, length = dict(self.servers), self._registry.shape.max_length

        def plan() -> Planned:
            put = self.listings.to_review_again(servers, self.lock)
            return self._shape_of(servers, self._prefix, length), (), put

        await self._updates.prepare(plan)
        self._reshape(put=self.listings.reviewed_again(self.servers))
        self._own.review_again(self.servers)

    def _turned(self, servers: Mapping[str, ServerConfig], steps: Steps) -> set[str]:
        """Servers whose callers are told apart from now on, or no longer: whose list it was, nobody else may see."""
        return {
            alias
            for alias, link in self.links.items()
            if link.per_user != self._is_per_user(servers.get(alias))
            or (link.per_user and alias in (*steps.replace, *steps.add))
        }

    def check_new(self, alias: str, config: ServerConfig) -> None:
        """Refuse one more upstream that cannot be served beside the others.

        Raises:
            ConfigError: The alias is unsound or taken, or such a server cannot be served here.
        """
        self._ports.admits(alias, config)
        if alias in self.servers:
            taken = f"there is a server '{alias}' already; expected another name, or its removal first"
            raise ConfigError(taken, file="request", key=alias)
        try:
            check_aliases([*self.servers, alias])
        except AliasError as error:
            raise ConfigError(str(error), file="request", key=alias) from None

    def _remove(self, alias: str) -> ServerName:
        config = self.servers.pop(alias)
        self._retire(alias)
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
        """Build the catalog under the configuration as it is now; aliases in the order of the file, others after."""
        self.servers = _in_order(self.servers, order)
        length = self._registry.shape.max_length if max_length is None else max_length
        self._registry.reshape(self._shape_of(self.servers, self._prefix, length), drop=drop, put=put)

    def _shape_of(self, servers: Mapping[str, ServerConfig], prefix: Prefix, max_length: int) -> Shape:
        shapes = {
            ServerName(alias): shape_of(config, prefix, self._ports.notes_of(alias))
            for alias, config in servers.items()
        }
        return Shape(max_length=max_length, servers=shapes)

    def check(self, servers: Iterable[str], replaced: Iterable[str]) -> None:
        """Refuse aliases that cannot stand beside those which were added while running.

        Args:
            servers: The aliases of a configuration.
            replaced: Those of the one before it.

        Raises:
            ConfigError: Two of them are one to a host.
        """
        wanted = list(servers)
        added = [alias for alias in self.servers if alias not in set(replaced) and alias not in wanted]
        try:
            check_aliases([*wanted, *added])
        except AliasError as error:
            raise ConfigError(str(error), file="reload") from None

    # what became of them

    def retired(self, alias: str) -> bool:
        """Whether a server had this alias, and none has it today."""
        return alias not in self.servers and self.listings.kept.former(alias) is not None

    def faulty(self, alias: str) -> bool:
        """Whether the configuration names such a server, and an error in its entry keeps it from being served."""
        left_out = self.left_out.get(alias)
        return left_out is not None and left_out.faulty and alias not in self.servers

    def successor(self, alias: str) -> str | None:
        """The alias under which a server of this former alias is reached today."""
        return self.listings.successor(alias, self.servers) if self.retired(alias) else None

    @property
    def tried(self) -> bool:
        """Whether every upstream was tried once, or answers from the snapshot."""
        known = self._registry.catalog.servers
        return all(link.tried.is_set() or alias in known for alias, link in self.links.items())

    @property
    def ready(self) -> bool:
        """Whether lists can be answered in full or from the snapshot, or have had time enough."""
        return self.tried or anyio.current_time() - self._began_s >= _READY_WITHIN_S

    @property
    def pending(self) -> bool:
        """Whether some upstream has not said anything yet."""
        return any(alias not in self._registry.catalog.servers for alias in self.links)

    async def settled(self, timeout_s: float) -> None:
        """Wait until every upstream was tried once, or answers from the snapshot, within the bound."""
        with anyio.move_on_after(timeout_s):
            for alias, link in list(self.links.items()):
                if alias not in self._registry.catalog.servers:
                    await link.tried.wait()

    # links

    def _start_link(self, alias: str, config: ServerConfig, *, epoch: int = 0) -> None:
        ports = LinkPorts(
            on_listing=self.listings.take,
            on_lost=self.listings.lose,
            on_update=partial(self._ports.on_update, alias),
            has_listing=self.listings.has_listing,
            on_refused=lambda link: self._ports.on_refused(),
        )
        per_user = self._is_per_user(config)
        credentials = credentials_of(alias, config, self.sign_ins)
        own = NobodysConnector(alias) if per_user else None
        connector = own or connector_of(alias, config, self._client, credentials=credentials)
        link = UpstreamLink(alias, config, connector, ports, epoch=epoch, per_user=per_user)
        self.links[alias] = link
        # Before it runs: what is still subscribed to must be known to its first connection.
        self._ports.on_started(alias, link)
        self._group.start_soon(link.run)

    def _is_per_user(self, config: ServerConfig | None) -> bool:
        return config is not None and config.per_user and self._ports.is_shared()

    def _retire(self, alias: str) -> int:
        """Take a link out of service and end it once its calls are done; returns its last epoch."""
        link = self.links.pop(alias)
        self.users.drop_server(alias)
        self._ports.on_gone(alias)
        link.retire()
        self._group.start_soon(link.close_when_idle)
        return link.epoch


def _in_order(servers: Mapping[str, ServerConfig], order: Iterable[str]) -> dict[str, ServerConfig]:
    """Servers in the order of the file, others after them."""
    return {alias: servers[alias] for alias in dict.fromkeys([*order, *servers]) if alias in servers}


def _hide_secrets(servers: Iterable[ServerConfig]) -> None:
    """Keep what these servers are given out of every text. All of them at once: each time costs as much as one."""
    SECRETS.hide({value for config in servers for value in config.secrets()})
