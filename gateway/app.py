"""Composition root: Config in, running Gateway out."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from gateway import snapshot
from gateway.access.principal import LOCAL
from gateway.access.seals import Seals
from gateway.calls.context import Caller
from gateway.calls.directions import Directions
from gateway.calls.finding import Finder
from gateway.calls.forwarding import Forwarder
from gateway.calls.offerings import OfferingCalls, TaskNames
from gateway.calls.outcomes import Outcomes
from gateway.calls.pipeline import CallPipeline
from gateway.calls.subscriptions import Subscriptions
from gateway.calls.views import Views
from gateway.config.model import Config, ServerConfig
from gateway.config.shapes import profile_of, shape_of
from gateway.discovery import INLINE_TOOLS, listing_of
from gateway.downstream.changes import Announcer
from gateway.downstream.listening import Listening
from gateway.downstream.server import McpServer
from gateway.errors import ConfigError
from gateway.notebook import Notebook
from gateway.snapshot import Saved
from gateway.upstream.http import HttpClient
from gateway.upstream.link import UpstreamLink
from gateway.upstream.private import PrivateLinks
from gateway.upstream.session import RawListing
from registry.errors import AliasError
from registry.names import ServerName, check_aliases
from registry.shape import Shape
from registry.store import Registry

log = logging.getLogger(__name__)

# A first list waits this long for upstreams that nothing is known of: hosts wait one second.
FIRST_LIST_S: Final = 0.7
_SAVE_AFTER_S: Final = 0.2


class Gateway:
    """Everything that runs: one link for each upstream, one registry, one server."""

    def __init__(self, config: Config, state_dir: Path | None, group: TaskGroup) -> None:
        self.config = config
        self._state_dir = state_dir
        self._group = group
        self._client = HttpClient()
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._saved: dict[str, Saved] = {}
        self._listed_s: dict[str, float] = {}
        self._unsaved = anyio.Event()
        self._former: dict[str, str] = {}
        self._began_s = anyio.current_time()
        self.links: dict[str, UpstreamLink] = {}
        self.servers: dict[str, ServerConfig] = {}
        self.registry = Registry(Shape(max_length=config.gateway.names.max_length))
        self.private = PrivateLinks(group, self._client)
        seals = Seals(state_dir)
        tasks = TaskNames(seals)
        forwarder = Forwarder(self.links, self.private, seals)
        self.subscriptions = Subscriptions(self.links)
        self.notebook = Notebook(self.registry, state_dir)
        self.outcomes = Outcomes(on_success=self.notebook.succeeded)
        directions = Directions(self.registry, self.links, retired=self.retired, successor=self.successor)
        self.views = Views(
            self.registry, {name: profile_of(name, one, config) for name, one in config.gateway.profiles.items()}
        )
        finder = Finder(self.registry, self.links, config.gateway.search.synonyms)
        self.pipeline = CallPipeline(self.registry, self.links, forwarder, tasks, directions, self.outcomes, finder)
        self.announcer = Announcer(self.registry, self.views)
        self.server = McpServer(
            self.views,
            self.pipeline,
            OfferingCalls(self.registry, forwarder, tasks),
            Listening(self.views, self.subscriptions, tasks, self.announcer, pending=self._pending),
            self.announcer,
            shared=not config.gateway.auth.api_keys,
            settle=self._settle_first,
            pending=self._pending,
            private=self.private,
        )

    async def start(self) -> None:
        """Take what the snapshot knows, then start every link at once."""
        if self._state_dir is not None:
            self._saved = snapshot.load(self._state_dir)
            self._former = {alias: one.fingerprint for alias, one in self._saved.items()}
        for alias, config in self.config.servers.items():
            if config.type != "graphql":
                self._shape(alias, config)
        for alias, config in self.config.servers.items():
            if config.type != "graphql":
                self._start_link(alias, config)
        self._group.start_soon(self.announcer.run)
        self._group.start_soon(self.notebook.run)
        if self._state_dir is not None:
            self._group.start_soon(self._keep_saving)

    def close(self) -> None:
        """Drop what no task owns."""
        self._client.close()

    # upstreams

    def add_server(self, alias: str, config: ServerConfig) -> None:
        """Begin to serve one more upstream.

        Raises:
            ConfigError: The alias is unsound or taken.
        """
        try:
            check_aliases([*self.servers, alias])
        except AliasError as error:
            raise ConfigError(str(error), file="request", key=alias) from None
        self._shape(alias, config)
        self._start_link(alias, config)

    def remove_server(self, alias: str) -> None:
        """Stop serving an upstream.

        Raises:
            KeyError: There is none of this name.
        """
        config = self.servers.pop(alias)
        self._former[alias] = snapshot.fingerprint(config)
        self._scopes.pop(alias).cancel()
        self.private.drop_server(alias)
        del self.links[alias]
        shape = self.registry.shape
        self.registry.drop(ServerName(alias))
        rest = {server: one for server, one in shape.servers.items() if server != alias}
        self.registry.reshape(Shape(max_length=shape.max_length, servers=rest))
        self._saved.pop(alias, None)
        self._listed_s.pop(alias, None)
        self._unsaved.set()

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

    def _shape(self, alias: str, config: ServerConfig) -> None:
        shape = shape_of(config, self.config.gateway.names.prefix, self.notebook.of(alias))
        old = self.registry.shape
        self.registry.reshape(Shape(max_length=old.max_length, servers={**old.servers, ServerName(alias): shape}))
        saved = self._saved.get(alias)
        if saved is not None and saved.fingerprint == snapshot.fingerprint(config):
            self.registry.put(saved.listing)

    def _start_link(self, alias: str, config: ServerConfig) -> None:
        link = UpstreamLink(
            alias,
            config,
            self._client,
            on_listing=self._listed,
            on_lost=self._lost,
            on_update=partial(self.subscriptions.note, alias),
        )
        self.subscriptions.restore(alias, link)
        self.servers[alias] = config
        self.links[alias] = link
        scope = self._scopes[alias] = anyio.CancelScope()

        async def own() -> None:
            with scope:
                await link.run()

        self._group.start_soon(own)

    async def _listed(self, alias: str, epoch: int, raw: RawListing) -> None:
        config = self.servers[alias]
        take = partial(
            listing_of,
            raw,
            server=ServerName(alias),
            epoch=epoch,
            transport="stdio" if config.type == "stdio" else "http",
            before=self.registry.catalog.servers.get(ServerName(alias)),
        )
        inline = raw.tools is None or len(raw.tools) <= INLINE_TOOLS
        listing = take() if inline else await anyio.to_thread.run_sync(take)
        if self.servers.get(alias) is not config:
            return
        self.registry.put(listing)
        self._listed_s[alias] = anyio.current_time()
        self._saved[alias] = Saved(fingerprint=snapshot.fingerprint(config), at_s=time.time(), listing=listing)
        self._unsaved.set()

    def _lost(self, alias: str, epoch: int) -> None:
        self.registry.mark_stale(ServerName(alias), epoch)

    async def _keep_saving(self) -> None:
        assert self._state_dir is not None
        state_dir = self._state_dir
        while True:
            await self._unsaved.wait()
            await anyio.sleep(_SAVE_AFTER_S)
            self._unsaved = anyio.Event()
            saved = dict(self._saved)
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(snapshot.save, state_dir, saved)

    # what others ask

    @property
    def tried(self) -> bool:
        """Whether every upstream was tried once, or answers from the snapshot."""
        known = self.registry.catalog.servers
        return all(link.tried.is_set() or alias in known for alias, link in self.links.items())

    async def settled(self, timeout_s: float) -> None:
        """Wait until every upstream was tried once, within the bound."""
        with anyio.move_on_after(timeout_s):
            for link in list(self.links.values()):
                await link.tried.wait()

    def _pending(self) -> bool:
        return any(alias not in self.registry.catalog.servers for alias in self.links)

    async def _settle_first(self) -> None:
        if not self.tried:
            await self.settled(self._began_s + FIRST_LIST_S - anyio.current_time())

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call one wrapper as a local caller.

        Raises:
            RpcError: The name is nothing of ours.
        """
        caller = Caller(principal=LOCAL, view=self.views.view())
        return await self.pipeline.call({"name": name, "arguments": arguments}, caller)

    def listing_age_s(self, alias: str) -> float | None:
        """How old the listing of a server is; None where there is none."""
        listing = self.registry.catalog.servers.get(ServerName(alias))
        saved = self._saved.get(alias)
        if listing is not None and listing.origin == "live" and alias in self._listed_s:
            return anyio.current_time() - self._listed_s[alias]
        if listing is not None and saved is not None:
            # Only over a restart is the wall clock all there is, and it may have been set back since.
            return max(0.0, time.time() - saved.at_s)
        return None


@asynccontextmanager
async def open_gateway(config: Config, *, state_dir: Path | None) -> AsyncIterator[Gateway]:
    """Start every link and yield at once; leaving ends every connection and child."""
    async with anyio.create_task_group() as group:
        gateway = Gateway(config, state_dir, group)
        await gateway.start()
        try:
            yield gateway
        finally:
            group.cancel_scope.cancel()
            gateway.close()
