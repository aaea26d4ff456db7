"""Composition root: Config in, running Gateway out."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from gateway.access.principal import LOCAL
from gateway.access.signing import Seals
from gateway.calls.call_stats import CallStats
from gateway.calls.context import Caller
from gateway.calls.forwarding import Forwarder
from gateway.calls.pipeline import CallPipeline
from gateway.calls.profile_views import ProfileViews
from gateway.calls.prompts_and_resources import PromptsAndResources, TaskIds
from gateway.calls.search_tools import SearchTools
from gateway.calls.unknown_tool import UnknownToolErrors
from gateway.calls.upstream_subscriptions import UpstreamSubscriptions
from gateway.config.model import Config
from gateway.config.plan import Plan
from gateway.config.shapes import profile_of
from gateway.downstream.changes import Announcer
from gateway.downstream.server import McpServer
from gateway.downstream.subscriptions import Listening
from gateway.embeddings.tool_vectors import ToolVectors
from gateway.fleet import Fleet
from gateway.hooks.active import ActiveHooks
from gateway.hooks.runner import HookRunner
from gateway.operator_notes import OperatorNotes
from gateway.reload import Reloader
from gateway.upstream.private_links import PrivateLinks
from gateway.upstream.transport.http_client import HttpClient
from registry.catalog.shape import Shape
from registry.catalog.store import Registry
from registry.views.profile import Profile

log = logging.getLogger(__name__)

# A first list waits this long for upstreams that nothing is known of: hosts wait one second.
FIRST_LIST_S: Final = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one of several processes has that serve together.

    Attributes:
        prefix: What the ids of its sessions begin with.
        seal_key: The key that all of them seal with.
        writes: It is the one that keeps the files of the state directory.
    """

    prefix: str
    seal_key: bytes
    writes: bool


class Gateway:
    """Everything that runs: one fleet of upstreams, one registry, one server."""

    def __init__(
        self,
        config: Config,
        state_dir: Path | None,
        group: TaskGroup,
        runners: tuple[HookRunner, ...] = (),
        part: Part | None = None,
    ) -> None:
        writes = part is None or part.writes
        self.config = config
        self._group = group
        self._client = HttpClient()
        self._began_s = anyio.current_time()
        self.registry = Registry(Shape(max_length=config.gateway.names.max_length))
        self.notes = OperatorNotes(self.registry, state_dir, writes=writes)
        self.fleet = Fleet(
            self.registry,
            group,
            self._client,
            state_dir,
            prefix=config.gateway.names.prefix,
            notes_of=self.notes.of,
            saves=writes,
        )
        self.private = PrivateLinks(group, self._client)
        self.subscriptions = UpstreamSubscriptions(self.fleet.links)
        self.fleet.on_update = lambda alias: partial(self.subscriptions.note, alias)
        self.fleet.on_started = self.subscriptions.restore
        self.fleet.on_gone = self.private.drop_server
        self.call_stats = CallStats(on_success=self.notes.succeeded)
        self.views = ProfileViews(self.registry, _profiles(config))
        search = config.gateway.search
        self.tool_vectors = ToolVectors(self.registry, state_dir if writes else None, enabled=search.embeddings)
        self.search_tools = SearchTools(
            registry=self.registry, links=self.fleet.links, synonyms=search.synonyms, tool_vectors=self.tool_vectors
        )
        self.announcer = Announcer(self.registry, self.views)
        self.reloader: Reloader | None = None
        seals = Seals(state_dir, key=part.seal_key if part is not None else None)
        self.hooks = ActiveHooks(self.registry, runners)
        task_ids = TaskIds(seals, self.hooks)
        forwarder = Forwarder(self.fleet.links, self.private, seals)
        self.pipeline = CallPipeline(
            registry=self.registry,
            links=self.fleet.links,
            forwarder=forwarder,
            task_ids=task_ids,
            unknown_tool=UnknownToolErrors(
                registry=self.registry,
                links=self.fleet.links,
                retired=self.fleet.retired,
                successor=self.fleet.successor,
            ),
            call_stats=self.call_stats,
            search_tools=self.search_tools,
            hooks=self.hooks,
        )
        self.server = McpServer(
            self.views,
            self.pipeline,
            PromptsAndResources(registry=self.registry, forwarder=forwarder, task_ids=task_ids, hooks=self.hooks),
            Listening(self.views, self.subscriptions, task_ids, self.announcer, pending=self._pending),
            self.announcer,
            shared=not config.gateway.auth.api_keys,
            settle=self._settle_first,
            pending=self._pending,
            private=self.private,
            session_prefix=part.prefix if part is not None else "",
        )

    def start(self) -> None:
        """Start every link at once; lists answer from the snapshot until then."""
        self.fleet.start(self.config.servers)
        self._group.start_soon(self.announcer.run)
        self._group.start_soon(self.notes.run)
        self._group.start_soon(self.tool_vectors.run)
        self._group.start_soon(self.hooks.run)

    def close(self) -> None:
        """Drop what no task owns."""
        self._client.close()

    def apply(self, config: Config, steps: Plan, runners: tuple[HookRunner, ...] = ()) -> None:
        """Take another configuration; only what the steps name is touched, and running calls end as they began."""
        servers = config.servers
        self.config = config
        self.fleet.prefix = config.gateway.names.prefix
        for alias in steps.remove:
            if alias in self.fleet.servers:
                self.fleet.remove(alias)
        for alias, one in servers.items():
            if alias in steps.adjust and alias in self.fleet.servers:
                self.fleet.adjust(alias, one)
            elif alias in self.fleet.servers and alias in (*steps.replace, *steps.add):
                self.fleet.replace(alias, one)
            elif alias not in self.fleet.servers:
                self.fleet.add(alias, one)
        self.fleet.reshape(servers, max_length=config.gateway.names.max_length)
        self.views.replace(_profiles(config))
        self.hooks.replace(runners)
        self.search_tools.replace(config.gateway.search.synonyms)
        self.tool_vectors.replace(enabled=config.gateway.search.embeddings)
        self.server.shared = not config.gateway.auth.api_keys
        self.announcer.stir()

    def _pending(self) -> bool:
        return self.fleet.pending

    async def _settle_first(self) -> None:
        if not self.fleet.tried:
            await self.fleet.settled(self._began_s + FIRST_LIST_S - anyio.current_time())

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call one wrapper as a local caller.

        Raises:
            RpcError: The name is nothing of ours.
        """
        caller = Caller(principal=LOCAL, view=self.views.view())
        return await self.pipeline.call({"name": name, "arguments": arguments}, caller)


def _profiles(config: Config) -> Mapping[str, Profile]:
    return {name: profile_of(name, one, config) for name, one in config.gateway.profiles.items()}


@asynccontextmanager
async def open_gateway(config: Config, *, state_dir: Path | None, part: Part | None = None) -> AsyncIterator[Gateway]:
    """Start every hook, then every link, and yield at once; leaving ends every connection and child.

    Raises:
        ConfigError: A hook cannot be loaded, or does not start.
    """
    runners: tuple[HookRunner, ...] = ()
    if config.gateway.hooks:
        from gateway.hooks.loading import load_hooks

        runners = await load_hooks(config)
    async with anyio.create_task_group() as group:
        gateway = Gateway(config, state_dir, group, runners, part)
        gateway.start()
        try:
            yield gateway
        finally:
            group.cancel_scope.cancel()
            gateway.close()
