"""Every upstream with its link, its last good listing and its shape: added, changed and removed while calls run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from gateway import snapshot
from gateway.config.server import Prefix, ServerConfig
from gateway.config.shapes import shape_of
from gateway.discovery import INLINE_TOOLS, listing_of
from gateway.errors import ConfigError
from gateway.snapshot import Saved
from gateway.upstream.connector import connector_of
from gateway.upstream.link import LinkPorts, UpstreamLink
from gateway.upstream.session import OnUpdate, RawListing
from gateway.upstream.transport.http_client import HttpClient
from registry.catalog.names import ServerName, check_aliases
from registry.catalog.notes import Note
from registry.catalog.shape import Shape
from registry.catalog.store import Registry
from registry.errors import AliasError

log = logging.getLogger(__name__)

_SAVE_AFTER_S: Final = 0.2

NotesOf = Callable[[str], Mapping[str, tuple[Note, ...]]]


class Fleet:
    """All upstreams. What tells of one here is a task of its own for each."""

    def __init__(
        self,
        registry: Registry,
        group: TaskGroup,
        client: HttpClient,
        state_dir: Path | None,
        *,
        prefix: Prefix,
        notes_of: NotesOf,
        saves: bool = True,
    ) -> None:
        self._registry = registry
        self._group = group
        self._client = client
        self._state_dir = state_dir
        self._notes_of = notes_of
        self._saves = saves
        self._saved: dict[str, Saved] = {}
        self._listed_s: dict[str, float] = {}
        self._former: dict[str, str] = {}
        self._unsaved = anyio.Event()
        self.prefix: Prefix = prefix
        self.links: dict[str, UpstreamLink] = {}
        self.servers: dict[str, ServerConfig] = {}
        self.admits: Callable[[str, ServerConfig], None] = lambda alias, config: None
        self.on_update: Callable[[str], OnUpdate] = lambda alias: lambda kind, key, params: None
        self.on_gone: Callable[[str], None] = lambda alias: None
        self.on_started: Callable[[str, UpstreamLink], None] = lambda alias, link: None

    def start(self, servers: Mapping[str, ServerConfig]) -> None:
        """Take what the snapshot knows, then start every link at once."""
        if self._state_dir is not None:
            self._saved = snapshot.load(self._state_dir)
            self._former = {alias: one.fingerprint for alias, one in self._saved.items()}
            if self._saves:
                self._group.start_soon(self._keep_saving, self._state_dir)
        self.servers.update(servers)
        self.reshape()
        for alias, config in servers.items():
            self._recall(alias, config)
        for alias, config in servers.items():
            self._start_link(alias, config)

    # changes

    def add(self, alias: str, config: ServerConfig) -> None:
        """Begin to serve one more upstream.

        Raises:
            ConfigError: The alias is unsound or taken, or such a server cannot be served here.
        """
        self.admits(alias, config)
        try:
            check_aliases([*self.servers, alias])
        except AliasError as error:
            raise ConfigError(str(error), file="request", key=alias) from None
        self.servers[alias] = config
        self.reshape()
        self._recall(alias, config)
        self._start_link(alias, config)

    def remove(self, alias: str) -> None:
        """Stop serving an upstream; calls that are running end first, within their deadline.

        Raises:
            KeyError: There is none of this name.
        """
        config = self.servers.pop(alias)
        self._former[alias] = snapshot.fingerprint(config)
        self._retire(alias)
        self._registry.drop(ServerName(alias))
        self.reshape()
        self._saved.pop(alias, None)
        self._listed_s.pop(alias, None)
        self._unsaved.set()

    def replace(self, alias: str, config: ServerConfig) -> None:
        """Reach an upstream in another way; its wrappers stay listed until the new connection has said its own."""
        epoch = self._retire(alias)
        self.servers[alias] = config
        self.reshape()
        self._start_link(alias, config, epoch=epoch)

    def adjust(self, alias: str, config: ServerConfig) -> None:
        """Take what does not concern the connection: limits, names and words. The upstream is not asked again."""
        self.servers[alias] = config
        self.links[alias].config = config

    def reshape(self, order: Iterable[str] = (), *, max_length: int | None = None) -> None:
        """Bring names and words up to date with the configuration.

        Args:
            order: The aliases as the file has them; others follow.
            max_length: Of names, where it has changed.
        """
        ordered = [alias for alias in dict.fromkeys([*order, *self.servers]) if alias in self.servers]
        self.servers = {alias: self.servers[alias] for alias in ordered}
        shapes = {
            ServerName(alias): shape_of(config, self.prefix, self._notes_of(alias))
            for alias, config in self.servers.items()
        }
        length = self._registry.shape.max_length if max_length is None else max_length
        self._registry.reshape(Shape(max_length=length, servers=shapes))

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

    def _recall(self, alias: str, config: ServerConfig) -> None:
        saved = self._saved.get(alias)
        if saved is not None and saved.fingerprint == snapshot.fingerprint(config):
            self._registry.put(saved.listing)

    def _start_link(self, alias: str, config: ServerConfig, *, epoch: int = 0) -> None:
        ports = LinkPorts(on_listing=self._listed, on_lost=self._lost, on_update=self.on_update(alias))
        link = UpstreamLink(alias, config, connector_of(alias, config, self._client), ports, epoch=epoch)
        self.links[alias] = link
        self.on_started(alias, link)
        self._group.start_soon(link.run)

    def _retire(self, alias: str) -> int:
        """Take a link out of service and end it once its calls are done; returns its last epoch."""
        link = self.links.pop(alias)
        self.on_gone(alias)
        link.retire()
        self._group.start_soon(link.close_when_idle)
        return link.epoch

    async def _listed(self, link: UpstreamLink, raw: RawListing) -> None:
        alias, config, epoch = link.server, link.config, link.epoch
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
        if self.links.get(alias) is not link:
            return
        self._registry.put(listing)
        self._listed_s[alias] = anyio.current_time()
        self._saved[alias] = Saved(fingerprint=snapshot.fingerprint(config), at_s=time.time(), listing=listing)
        self._unsaved.set()

    def _lost(self, link: UpstreamLink) -> None:
        if self.links.get(link.server) is link:
            self._registry.mark_stale(ServerName(link.server), link.epoch)

    async def _keep_saving(self, state_dir: Path) -> None:
        while True:
            await self._unsaved.wait()
            await anyio.sleep(_SAVE_AFTER_S)
            self._unsaved = anyio.Event()
            saved = dict(self._saved)
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(snapshot.save, state_dir, saved)
