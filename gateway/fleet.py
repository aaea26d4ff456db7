"""Every upstream with its link, its last good listing and its shape: added, changed and removed while calls run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from gateway import snapshot
from gateway.config.conversion import shape_of
from gateway.config.model import LeftOut
from gateway.config.plan import Steps
from gateway.config.server import Prefix, ServerConfig
from gateway.discovery import INLINE_TOOLS, listing_of
from gateway.errors import ConfigError, LeadsBack
from gateway.protocol import gateways_of
from gateway.secrets import SECRETS
from gateway.snapshot import Saved
from gateway.upstream.connector import connector_of
from gateway.upstream.link import LinkPorts, UpstreamLink
from gateway.upstream.session import RawListing
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.watch_list import WatchedKind
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName, check_aliases
from registry.catalog.notes import Note
from registry.catalog.shape import Shape
from registry.catalog.store import Registry
from registry.catalog.unmatched import CODES as UNMATCHED
from registry.catalog.unmatched import HIDES_NOTHING
from registry.errors import AliasError
from registry.intake.issues import ItemIssue

log = logging.getLogger(__name__)

# What orchestrators wait for at most: an upstream that does not answer must not keep the others from being used.
_READY_WITHIN_S: Final = 5.0
# Several upstreams that list together are one write; a crash this soon after a listing loses only the snapshot of it.
_SAVE_AFTER_S: Final = 0.2

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
    """

    notes_of: NotesOf
    admits: Callable[[str, ServerConfig], None]
    on_update: Callable[[str, WatchedKind, str, dict[str, Any]], None]
    on_started: Callable[[str, UpstreamLink], None]
    on_gone: Callable[[str], None]


class Fleet:
    """All upstreams. What tells of one here is a task of its own for each.

    Attributes:
        links: By alias, what keeps each upstream connected.
        servers: By alias, the configuration of each.
        left_out: Servers that the configuration names and that are not served, with the reason.
    """

    def __init__(
        self,
        registry: Registry,
        group: TaskGroup,
        client: HttpClient,
        state_dir: Path | None,
        *,
        links: dict[str, UpstreamLink],
        ports: FleetPorts,
        prefix: Prefix,
        instance: str,
        saves: bool = True,
    ) -> None:
        """Begin without any upstream.

        Args:
            registry: Takes what upstreams list.
            group: Runs every link.
            client: Sends HTTP requests.
            state_dir: Where the snapshot is; None for nowhere.
            links: The table of links, empty; others read it.
            ports: The way to others.
            prefix: Whether names carry their server's alias, where a server does not say so itself.
            instance: The id of this gateway; an upstream that leads to it is not listed.
            saves: Whether this process keeps the snapshot.
        """
        self._registry = registry
        self._group = group
        self._client = client
        self._state_dir = state_dir
        self._ports = ports
        self._saves = saves
        self._told: dict[str, set[ItemIssue]] = {}
        self._began_s = anyio.current_time()
        self._instance = instance
        self._prefix: Prefix = prefix
        self._saved: dict[str, Saved] = {}
        self._listed_s: dict[str, float] = {}
        self._former: dict[str, str] = {}
        self._unsaved = anyio.Event()
        self.links = links
        self.servers: dict[str, ServerConfig] = {}
        self.left_out: Mapping[str, LeftOut] = {}

    def start(self, servers: Mapping[str, ServerConfig]) -> None:
        """Take what the snapshot knows, then start every link at once."""
        if self._state_dir is not None:
            self._saved = snapshot.load(self._state_dir)
            self._former = {alias: saved.fingerprint for alias, saved in self._saved.items()}
            if self._saves:
                self._group.start_soon(self._keep_saving, self._state_dir)
        _hide_secrets(servers.values())
        self.servers.update(servers)
        self._reshape(put=self._recalled(servers))
        for alias, config in servers.items():
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
        gone = [self._remove(alias) for alias in steps.remove if alias in self.servers]
        starting: dict[str, int] = {}
        fresh: dict[str, ServerConfig] = {}
        for alias, config in servers.items():
            if alias not in self.servers:
                fresh[alias] = config
                starting[alias] = 0
            elif alias in steps.adjust:
                # What does not concern the connection: limits, names and words. The upstream is not asked again.
                self.links[alias].config = config
            elif alias in steps.replace or alias in steps.add:
                # Its wrappers stay listed until the new connection has listed its own.
                starting[alias] = self._retire(alias)
            else:
                continue
            self.servers[alias] = config
        self._reshape(servers, max_length=max_length, drop=gone, put=self._recalled(fresh))
        for alias, epoch in starting.items():
            self._start_link(alias, servers[alias], epoch=epoch)

    def add(self, alias: str, config: ServerConfig) -> None:
        """Begin to serve one more upstream.

        Raises:
            ConfigError: The alias is unsound or taken, or such a server cannot be served here.
        """
        self._ports.admits(alias, config)
        try:
            check_aliases([*self.servers, alias])
        except AliasError as error:
            raise ConfigError(str(error), file="request", key=alias) from None
        _hide_secrets([config])
        self.servers[alias] = config
        self._reshape(put=self._recalled({alias: config}))
        self._start_link(alias, config)

    def remove(self, alias: str) -> None:
        """Stop serving an upstream; calls that are running end first, within their deadline.

        Raises:
            KeyError: There is none of this name.
        """
        self._reshape(drop=[self._remove(alias)])

    def _remove(self, alias: str) -> ServerName:
        config = self.servers.pop(alias)
        self._former[alias] = snapshot.fingerprint(config)
        self._retire(alias)
        self._saved.pop(alias, None)
        self._listed_s.pop(alias, None)
        self._unsaved.set()
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
        ordered = [alias for alias in dict.fromkeys([*order, *self.servers]) if alias in self.servers]
        self.servers = {alias: self.servers[alias] for alias in ordered}
        shapes = {
            ServerName(alias): shape_of(config, self._prefix, self._ports.notes_of(alias))
            for alias, config in self.servers.items()
        }
        length = self._registry.shape.max_length if max_length is None else max_length
        self._registry.reshape(Shape(max_length=length, servers=shapes), drop=drop, put=put)

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
        return alias in self._former and alias not in self.servers

    def successor(self, alias: str) -> str | None:
        """The alias under which a server of this former alias is reached today."""
        former = self._former.get(alias)
        if former is None or not self.retired(alias):
            return None
        for current, config in self.servers.items():
            if snapshot.fingerprint(config) == former:
                return current
        return None

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
        """Wait until every upstream was tried once, within the bound."""
        with anyio.move_on_after(timeout_s):
            for link in list(self.links.values()):
                await link.tried.wait()

    def listing_age_s(self, alias: str) -> float | None:
        """How old the listing of a server is; None where there is none."""
        listing = self._registry.catalog.servers.get(ServerName(alias))
        saved = self._saved.get(alias)
        if listing is not None and listing.origin == "live" and alias in self._listed_s:
            return anyio.current_time() - self._listed_s[alias]
        if listing is not None and saved is not None:
            # Only over a restart is the wall clock all there is, and it may have been set back since.
            return max(0.0, time.time() - saved.at_s)
        return None

    # links

    def _recalled(self, servers: Mapping[str, ServerConfig]) -> list[ServerListing]:
        """What the snapshot has of these servers, where they are still reached in the same way."""
        saved = ((self._saved.get(alias), config) for alias, config in servers.items())
        return [kept.listing for kept, config in saved if kept and kept.fingerprint == snapshot.fingerprint(config)]

    def _start_link(self, alias: str, config: ServerConfig, *, epoch: int = 0) -> None:
        on_update = partial(self._ports.on_update, alias)
        ports = LinkPorts(
            on_listing=self._listed, on_lost=self._lost, on_update=on_update, has_listing=self._has_listing
        )
        link = UpstreamLink(alias, config, connector_of(alias, config, self._client), ports, epoch=epoch)
        self.links[alias] = link
        # Before it runs: what is still subscribed to must be known to its first connection.
        self._ports.on_started(alias, link)
        self._group.start_soon(link.run)

    def _retire(self, alias: str) -> int:
        """Take a link out of service and end it once its calls are done; returns its last epoch."""
        link = self.links.pop(alias)
        self._ports.on_gone(alias)
        link.retire()
        self._group.start_soon(link.close_when_idle)
        return link.epoch

    async def _listed(self, link: UpstreamLink, raw: RawListing) -> None:
        alias, config, epoch = link.server, link.config, link.epoch
        if self._instance in gateways_of(raw.capabilities) and self.links.get(alias) is link:
            self._reshape(drop=[ServerName(alias)])
            raise LeadsBack("skipped: it leads back to this gateway, whose tools would be listed without end")
        take = partial(
            listing_of,
            raw,
            server=ServerName(alias),
            epoch=epoch,
            transport=config.listed_over,
            before=self._registry.catalog.servers.get(ServerName(alias)),
        )
        inline = raw.tools is None or len(raw.tools) <= INLINE_TOOLS
        listing = take() if inline else await anyio.to_thread.run_sync(take)
        # While a thread checked the listing the link may have been replaced: then it says nothing about the new one.
        if self.links.get(alias) is not link:
            return
        self._registry.put(listing)
        self._tell_unmatched(alias)
        if not raw.confirmed:
            return
        self._listed_s[alias] = anyio.current_time()
        self._saved[alias] = Saved(fingerprint=snapshot.fingerprint(config), at_s=time.time(), listing=listing)
        self._unsaved.set()

    def _tell_unmatched(self, alias: str) -> None:
        """Log once what is configured for a server and matches nothing of it."""
        part = self._registry.catalog.parts.get(ServerName(alias))
        found = {one for one in part.warnings if one.code in UNMATCHED} if part is not None else set()
        for one in sorted(found - self._told.get(alias, set()), key=lambda one: one.tool):
            # Whoever hides something believes from then on that it is hidden.
            level = logging.ERROR if one.code == HIDES_NOTHING else logging.WARNING
            log.log(level, "%s", one.detail, extra={"server": alias, "tool": one.tool})
        self._told[alias] = found

    def _has_listing(self, link: UpstreamLink) -> bool:
        # Of the same server: another one may have had the alias before, whose tools stay listed until this one lists.
        saved = self._saved.get(link.server)
        return (
            saved is not None
            and saved.fingerprint == snapshot.fingerprint(link.config)
            and ServerName(link.server) in self._registry.catalog.servers
        )

    def _lost(self, link: UpstreamLink) -> None:
        if self.links.get(link.server) is link:
            self._registry.mark_stale(ServerName(link.server), link.epoch)

    async def _keep_saving(self, state_dir: Path) -> None:
        while True:
            await self._unsaved.wait()
            await anyio.sleep(_SAVE_AFTER_S)
            self._unsaved = anyio.Event()
            saved = dict(self._saved)
            # Shielded: a snapshot that is being written at the end is written whole.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(snapshot.save, state_dir, saved)


def _hide_secrets(servers: Iterable[ServerConfig]) -> None:
    """Keep what these servers are given out of every text. All of them at once: each time costs as much as one."""
    SECRETS.hide({value for config in servers for value in config.secrets()})
