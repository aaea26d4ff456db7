"""Composition root: Config in, running Gateway out."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from gateway.access.api_keys import ApiKeys
from gateway.access.principal import LOCAL
from gateway.access.quotas import Quotas
from gateway.access.signing import Signer
from gateway.calls.call_stats import CallStats
from gateway.calls.context import Caller
from gateway.calls.forwarding import Forwarder
from gateway.calls.pipeline import CallPipeline
from gateway.calls.profile_views import ProfileViews
from gateway.calls.prompts_and_resources import PromptsAndResources, TaskIds
from gateway.calls.search_tools import SearchTools
from gateway.calls.thorough_checks import ThoroughChecks
from gateway.calls.unknown_tool import UnknownToolErrors
from gateway.calls.upstream_subscriptions import UpstreamSubscriptions
from gateway.cluster.role import WorkerRole
from gateway.config.conversion import profile_of
from gateway.config.model import Config
from gateway.config.plan import Steps, plan
from gateway.downstream.changes import ChangeAnnouncer
from gateway.downstream.server import McpServer
from gateway.downstream.subscriptions import Subscriptions
from gateway.embeddings.tool_vectors import ToolVectors
from gateway.fleet import Fleet, FleetPorts
from gateway.hooks.active import ActiveHooks
from gateway.hooks.loading import load_hooks
from gateway.hooks.runner import HookRunner
from gateway.operator_notes import OperatorNotes
from gateway.secrets import SECRETS, secrets_in
from gateway.upstream.link import UpstreamLink
from gateway.upstream.private_links import PrivateLinks
from gateway.upstream.transport.http_client import HttpClient
from registry.catalog.shape import Shape
from registry.catalog.store import Registry
from registry.views.profile import Profile

log = logging.getLogger(__name__)

FIRST_LIST_S: Final = 0.8
"""How long a first list waits for upstreams of which nothing is known: two of five hosts wait for one second."""


class Gateway:
    """Everything that runs: one fleet of upstreams, one registry, one server.

    Attributes:
        config: What it runs by at present.
        authenticator: Who may call.
        quotas: What each caller uses.
    """

    def __init__(
        self,
        config: Config,
        state_dir: Path | None,
        group: TaskGroup,
        *,
        runners: tuple[HookRunner, ...] = (),
        role: WorkerRole | None = None,
    ) -> None:
        """Put the parts together; nothing runs before `start`.

        Args:
            config: What to run by.
            state_dir: Where state is kept; None for nowhere.
            group: Runs everything.
            runners: ActiveHooks that have started.
            role: Its part among several processes; None where it is the only one.
        """
        names, search = config.gateway.names, config.gateway.search
        writes = role is None or role.writes
        # Not of the state directory, which several gateways of one user share.
        instance = role.instance if role is not None else secrets.token_hex(8)
        self.config = config
        self._group = group
        self._client = HttpClient()
        self._began_s = anyio.current_time()
        self.authenticator = ApiKeys(config.gateway.auth.api_keys)
        self.quotas = Quotas(config.gateway.quotas)
        self.registry = Registry(Shape(max_length=names.max_length))
        self.notes = OperatorNotes(
            self.registry, state_dir, writes=writes, on_cleared=role.on_cleared if role is not None else _nothing
        )
        self.private = PrivateLinks(group, self._client)
        # One table for all who look links up; only the fleet writes it.
        links: dict[str, UpstreamLink] = {}
        self.subscriptions = UpstreamSubscriptions(links)
        self.fleet = Fleet(
            self.registry,
            group,
            self._client,
            state_dir,
            links=links,
            ports=FleetPorts(
                notes_of=self.notes.of,
                admits=role.admits if role is not None else _nothing,
                on_update=self.subscriptions.note,
                on_started=self.subscriptions.restore,
                on_gone=self.private.drop_server,
            ),
            prefix=names.prefix,
            instance=instance,
            saves=writes,
        )
        self.call_stats = CallStats(
            on_success=self.notes.succeeded, on_failure=role.on_failure if role is not None else None
        )
        self.views = ProfileViews(self.registry, _profiles(config))
        self.tool_vectors = ToolVectors(self.registry, state_dir if writes else None, enabled=search.embeddings)
        self.search_tools = SearchTools(
            registry=self.registry, links=links, synonyms=search.synonyms, tool_vectors=self.tool_vectors
        )
        self.announcer = ChangeAnnouncer(self.registry, self.views)
        self.hooks = ActiveHooks(self.registry, runners)
        signer = Signer(state_dir, key=role.signing_key if role is not None else None)
        task_ids = TaskIds(signer, self.hooks)
        forwarder = Forwarder(links, self.private, signer)
        self.thorough_checks = ThoroughChecks()
        self.pipeline = CallPipeline(
            registry=self.registry,
            links=links,
            forwarder=forwarder,
            task_ids=task_ids,
            unknown_tool=UnknownToolErrors(
                registry=self.registry, links=links, retired=self.fleet.retired, successor=self.fleet.successor
            ),
            call_stats=self.call_stats,
            search_tools=self.search_tools,
            hooks=self.hooks,
            thorough_checks=self.thorough_checks,
        )
        self.server = McpServer(
            views=self.views,
            pipeline=self.pipeline,
            prompts_and_resources=PromptsAndResources(
                registry=self.registry, forwarder=forwarder, task_ids=task_ids, hooks=self.hooks
            ),
            subscriptions=Subscriptions(
                views=self.views,
                upstream_subscriptions=self.subscriptions,
                task_ids=task_ids,
                announcer=self.announcer,
                pending=self._pending,
            ),
            announcer=self.announcer,
            shared=not self.authenticator.required,
            first_listings=self._first_listings,
            pending=self._pending,
            private_links=self.private,
            instance=instance,
            session_prefix=role.session_prefix if role is not None else "",
        )

    def start(self) -> None:
        """Start every link at once; lists answer from the snapshot until then."""
        self.fleet.left_out = self.config.left_out
        self.fleet.start(self.config.servers)
        for part in (
            self.announcer,
            self.notes,
            self.tool_vectors,
            self.hooks,
            self.authenticator,
            self.thorough_checks,
        ):
            self._group.start_soon(part.run)

    def close(self) -> None:
        """Drop what no task owns."""
        self._client.close()

    async def reconfigure(self, config: Config) -> Steps:
        """Take another configuration; only what differs is touched, and running calls end as they began.

        Returns:
            How it differs.

        Raises:
            ConfigError: It cannot be used; nothing has changed.
        """
        _hide_secrets(config)
        self.fleet.check(config.servers, self.config.servers)
        runners = await load_hooks(config, self.hooks.runners)
        steps = plan(self.config, config)
        names, search = config.gateway.names, config.gateway.search
        # From here on nothing waits: no call sees a part of it.
        self.config = config
        self.fleet.left_out = config.left_out
        self.fleet.apply(config.servers, steps, prefix=names.prefix, max_length=names.max_length)
        self.views.replace(_profiles(config))
        self.hooks.replace(runners)
        self.search_tools.replace(search.synonyms)
        self.tool_vectors.replace(enabled=search.embeddings)
        self.quotas.replace(config.gateway.quotas)
        self.authenticator.replace(config.gateway.auth.api_keys)
        self.server.shared = not self.authenticator.required
        self.announcer.notice_change()
        return steps

    def _pending(self) -> bool:
        return self.fleet.pending

    async def _first_listings(self) -> None:
        if not self.fleet.tried:
            await self.fleet.settled(self._began_s + FIRST_LIST_S - anyio.current_time())

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call one wrapper as a local caller.

        Raises:
            RpcError: The name is nothing of ours.
        """
        caller = Caller(principal=LOCAL, account=self.quotas.account(LOCAL), view=self.views.view())
        return await self.pipeline.call({"name": name, "arguments": arguments}, caller)


def _nothing(*_: object) -> None:
    """Stand for a port that nobody needs in a single process."""


def _hide_secrets(config: Config) -> None:
    """Keep what the gateway's own settings hold out of every text; upstreams are seen to by the fleet."""
    SECRETS.hide({*config.secrets, *secrets_in(config.gateway.model_dump(by_alias=True, exclude_unset=True))})


def _profiles(config: Config) -> Mapping[str, Profile]:
    return {name: profile_of(name, one, config) for name, one in config.gateway.profiles.items()}


@asynccontextmanager
async def open_gateway(
    config: Config, *, state_dir: Path | None, role: WorkerRole | None = None
) -> AsyncIterator[Gateway]:
    """Start every hook, then every link, and yield at once; leaving ends every connection and child.

    Raises:
        ConfigError: A hook cannot be loaded, or does not start.
    """
    _hide_secrets(config)
    runners = await load_hooks(config)
    async with anyio.create_task_group() as group:
        gateway = Gateway(config, state_dir, group, runners=runners, role=role)
        gateway.start()
        try:
            yield gateway  # links connect meanwhile: nobody waits for a slow upstream
        finally:
            group.cancel_scope.cancel()
            gateway.close()
