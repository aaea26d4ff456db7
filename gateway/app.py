"""Composition root: Config in, running Gateway out."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from gateway import __version__
from gateway.access.api_keys import ApiKeys
from gateway.access.credentials import Credentials
from gateway.access.oauth.tokens import Tokens
from gateway.access.principal import LOCAL
from gateway.access.quotas import Quotas
from gateway.access.signing import Signer
from gateway.audit.record import Audit
from gateway.calls.approval_book import ApprovalBook
from gateway.calls.approvals import Approvals
from gateway.calls.call_stats import CallStats
from gateway.calls.context import Caller
from gateway.calls.forwarding import Forwarder
from gateway.calls.permission import Permission
from gateway.calls.pipeline import CallPipeline
from gateway.calls.profile_views import ProfileViews
from gateway.calls.prompts_and_resources import PromptsAndResources
from gateway.calls.resource_uris import ResourceUris
from gateway.calls.search_tools import SearchTools
from gateway.calls.task_ids import TaskIds
from gateway.calls.thorough_checks import ThoroughChecks
from gateway.calls.unknown_tool import UnknownToolErrors
from gateway.calls.upstream_subscriptions import UpstreamSubscriptions
from gateway.cluster.role import Role
from gateway.config.conversion import policy_of, profile_of
from gateway.config.model import Config
from gateway.config.plan import Steps, plan
from gateway.discovery import VainRules
from gateway.downstream.changes import ChangeAnnouncer
from gateway.downstream.first_lists import FirstLists
from gateway.downstream.messages import McpRequest
from gateway.downstream.server import McpServer
from gateway.downstream.subscriptions import Subscriptions
from gateway.embeddings.tool_vectors import ToolVectors
from gateway.fleet import Fleet, FleetPorts
from gateway.hooks.active import ActiveHooks
from gateway.hooks.loading import load_hooks
from gateway.hooks.runner import HookRunner
from gateway.instruments.otel_environment import telemetry_of
from gateway.instruments.tracing import Tracing
from gateway.lock.listing_lock import ListingLock
from gateway.lock.lock_file import lock_path, read_approved, read_lockfile
from gateway.operator_notes import OperatorNotes
from gateway.owned_tasks import OwnedTasks
from gateway.secrets import SECRETS, secrets_in
from gateway.snapshot import KeptListings
from gateway.upstream.link import UpstreamLink
from gateway.upstream.oauth.addresses import addresses_at, public_url_of
from gateway.upstream.oauth.connecting import checks_by
from gateway.upstream.oauth.encryption import encryption_from
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.oauth.store import FileStore, MemoryStore
from gateway.upstream.oauth.store import Store as SignInStore
from gateway.upstream.private_links import PrivateLinks
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.transport.issuer_fetch import IssuerFetch
from gateway.upstream.transport.separation import end_left_processes, reap_left_processes
from gateway.upstream.user_links import UserLinks
from registry.catalog.shape import Shape
from registry.catalog.store import Registry
from registry.lock.lockfile import Lockfile
from registry.views.profile import Profile

# How long a list waits for the servers to which its caller has signed in for itself: two of five hosts wait a second.
_OWN_LISTINGS_S: Final = 0.8


class Gateway:
    """Everything that runs: one fleet of upstreams, one registry, one server.

    Attributes:
        config: What it runs by at present.
        authenticator: Who may call.
        quotas: What each caller uses.
        audit: The record of what they do.
        origin: Where it listens for browsers.
        on_refused: Called when an upstream has refused the credentials of its entry: they may be others by now.
        lock: What was approved of upstreams.
    """

    def __init__(
        self,
        config: Config,
        state_dir: Path | None,
        group: TaskGroup,
        *,
        runners: tuple[HookRunner, ...] = (),
        role: Role | None = None,
        audit: Audit | None = None,
        origin: str | None = None,
        sign_in_dir: Path | None = None,
        lockfile: Lockfile | None = None,
        leaves_snapshot_in: Path | None = None,
    ) -> None:
        """Put the parts together; nothing runs before `start`.

        Args:
            config: What to run by.
            state_dir: Where state is kept; None for nowhere.
            group: Runs everything.
            runners: ActiveHooks that have started.
            role: Its part among several processes; None where it is the only one.
            audit: The record of what callers do; None for one of its own.
            origin: Where it listens, as `http://127.0.0.1:8765`; None where nobody can reach it over HTTP.
            sign_in_dir: Where sign-ins are kept; by default with the rest of the state.
            lockfile: What is approved of upstreams; None where there is no lock file.
            leaves_snapshot_in: The state directory of a gateway that is started later, and is to serve what is listed
                now; without one, listings are recalled from and stored in `state_dir`.
        """
        names, search = config.gateway.names, config.gateway.search
        writes = role is None or role.writes
        # Not of the state directory, which several gateways of one user share.
        instance = role.instance if role is not None else secrets.token_hex(8)
        self.config = config
        self.origin = origin
        self.on_refused: Callable[[], object] = _nothing
        self._group = group
        self._client = HttpClient()
        auth = config.gateway.auth
        self.authenticator = Credentials(ApiKeys(auth.api_keys), Tokens(auth.oauth, IssuerFetch(self._client)))
        self.quotas = Quotas(config.gateway.quotas)
        self.audit = audit if audit is not None else Audit(config.gateway.audit, state_dir)
        self._records_changes = writes
        self.registry = Registry(Shape(max_length=names.max_length))
        self.notes = OperatorNotes(
            self.registry, state_dir, writes=writes, on_cleared=role.on_cleared if role is not None else _nothing
        )
        kept_in = sign_in_dir if sign_in_dir is not None else state_dir
        store: SignInStore | None = role.sign_ins if role is not None else None
        if store is None:
            store = FileStore(kept_in, encryption_from()) if kept_in is not None else MemoryStore()
        addresses = addresses_at(lambda: public_url_of(self.config.gateway), lambda: self.origin)
        checks = checks_by(self.authenticator, lambda: self.config.gateway.auth.oauth)
        tasks = OwnedTasks(group)
        self.sign_ins = SignIns(tasks, store, addresses, self._record_sign_in, checks)
        self.private = PrivateLinks(group, self._client, self.sign_ins)
        self.lock = ListingLock(config, lockfile, announces=writes)
        # One table for all who look links up; only the fleet writes it.
        links: dict[str, UpstreamLink] = {}
        self.users = UserLinks(group, self._client, self.sign_ins, links)
        self.subscriptions = UpstreamSubscriptions(self.users.at)
        self.users.on_update = self.subscriptions.note
        self.users.token_of = self.authenticator.tokens.text_of
        self.fleet = Fleet(
            self.registry,
            group,
            self._client,
            KeptListings(leaves_snapshot_in, recalls=False) if leaves_snapshot_in else KeptListings(state_dir),
            links=links,
            ports=FleetPorts(
                notes_of=self.notes.of,
                admits=role.admits if role is not None else _nothing,
                on_update=self.subscriptions.note,
                on_started=self.subscriptions.restore,
                on_gone=self.private.drop_server,
                on_refused=lambda: self.on_refused(),
                is_shared=lambda: self.config.gateway.auth.required,
            ),
            prefix=names.prefix,
            instance=instance,
            sign_ins=self.sign_ins,
            lock=self.lock,
            users=self.users,
            saves=writes,
        )
        self.call_stats = CallStats(
            on_success=self.notes.succeeded, on_failure=role.on_failure if role is not None else None
        )
        telemetry = telemetry_of(config.gateway.telemetry)
        self._tracing = (
            Tracing(telemetry, self.call_stats.durations, instance=f"{instance}-{role.name if role else ''}")
            if telemetry is not None
            else None
        )
        self.views = ProfileViews(self.registry, _profiles(config), policy_of(config))
        self._vain_rules = VainRules(self.registry, self.views.unmatched_rules)
        self.tool_vectors = ToolVectors(self.registry, state_dir if writes else None, enabled=search.embeddings)
        self.search_tools = SearchTools(
            registry=self.registry, users=self.users, synonyms=search.synonyms, tool_vectors=self.tool_vectors
        )
        self.announcer = ChangeAnnouncer(self.registry, self.views)
        self.hooks = ActiveHooks(self.registry, runners)
        signer = Signer(state_dir, key=role.signing_key if role is not None else None)
        self.approvals = ApprovalBook(config.gateway.approvals, self.audit)
        task_ids = TaskIds(signer, self.hooks)
        forwarder = Forwarder(
            links, self.users, self.private, signer, durations=self.call_stats.durations, tracing=self._tracing
        )
        self.thorough_checks = ThoroughChecks(tasks)
        self.permission = Permission(self.registry)
        resource_uris = ResourceUris()
        self.pipeline = CallPipeline(
            registry=self.registry,
            links=links,
            users=self.users,
            forwarder=forwarder,
            task_ids=task_ids,
            unknown_tool=UnknownToolErrors(
                registry=self.registry,
                users=self.users,
                retired=self.fleet.retired,
                successor=self.fleet.successor,
                faulty=self.fleet.faulty,
            ),
            call_stats=self.call_stats,
            search_tools=self.search_tools,
            hooks=self.hooks,
            thorough_checks=self.thorough_checks,
            permission=self.permission,
            audit=self.audit,
            approvals=Approvals(
                self.approvals if role is None or role.book is None else role.book(self.approvals),
                signer,
                tasks,
                asked_by_default=lambda: self.approvals.settings.by,
            ),
            resource_uris=resource_uris,
        )
        self._first_lists = FirstLists(
            is_settled=lambda: self.fleet.tried,
            settled=self.fleet.settled,
            has_snapshot=lambda: self.fleet.has_snapshot,
        )
        self.server = McpServer(
            views=self.views,
            pipeline=self.pipeline,
            prompts_and_resources=PromptsAndResources(
                registry=self.registry,
                forwarder=forwarder,
                task_ids=task_ids,
                hooks=self.hooks,
                resource_uris=resource_uris,
            ),
            subscriptions=Subscriptions(
                views=self.views,
                upstream_subscriptions=self.subscriptions,
                task_ids=task_ids,
                announcer=self.announcer,
                pending=self._pending,
                key_of=self.users.key_of,
                resource_uris=resource_uris,
            ),
            announcer=self.announcer,
            shared=not self.authenticator.required,
            first_listings=self._first_listings,
            pending=self._pending,
            private_links=self.private,
            durations=self.call_stats.durations,
            tracing=self._tracing,
            permission=self.permission,
            audit=self.audit,
            instance=instance,
            new_session_id=role.new_session_id if role is not None else None,
        )

    async def start(self, *, resting: Collection[str] = ()) -> None:
        """Start every link at once, except of `resting` servers; lists answer from the snapshot until then."""
        self.fleet.left_out = self.config.left_out
        await self.fleet.start(self.config.servers, resting=resting)
        for part in (
            self.announcer,
            self.notes,
            self.tool_vectors,
            self.hooks,
            self.authenticator,
            self.thorough_checks,
            self.audit,
        ):
            self._group.start_soon(part.run)
        # Of several workers one logs.
        if self._records_changes:
            self._group.start_soon(self._vain_rules.run)
        if self._tracing is not None:
            self._group.start_soon(self._tracing.run)

    def close(self) -> None:
        """Drop what no task owns."""
        self._client.close()
        if self._tracing is not None:
            self._tracing.close()
        self.sign_ins.close()

    async def reconfigure(self, config: Config, *, reloaded: bool = True) -> Steps:
        """Take another configuration; only what differs is touched, and running calls end as they began.

        Args:
            config: The other one.
            reloaded: It was read from a file, and no administrator is recorded for it.

        Returns:
            How it differs.

        Raises:
            ConfigError: It cannot be used; nothing has changed.
        """
        _hide_secrets(config)
        self.fleet.check(config.servers, self.config.servers)
        runners = await load_hooks(config, self.hooks.runners)
        # One that was there may go while it is used: what it said holds.
        is_known = self.lock.lockfile is not None and lock_path(config) == self.lock.path
        read = partial(read_lockfile, lock_path(config)) if is_known else partial(read_approved, config)
        lockfile = await anyio.to_thread.run_sync(read)
        steps = plan(self.config, config)
        names, search = config.gateway.names, config.gateway.search
        await self.fleet.prepare(
            config.servers,
            steps,
            prefix=names.prefix,
            max_length=names.max_length,
            lock=self.lock.under(config, lockfile),
        )
        # From here on nothing waits: no call sees a part of it.
        before, self.config = self.config, config
        self.fleet.left_out = config.left_out
        self.lock.replace(config, lockfile)
        self.fleet.apply(config.servers, steps, prefix=names.prefix, max_length=names.max_length)
        same_rules = before.gateway.policy == config.gateway.policy and before.gateway.names == config.gateway.names
        self.views.replace(_profiles(config), None if same_rules else policy_of(config))
        if not same_rules:
            # Another rule may have the name of the one that was answered.
            self.approvals.forget()
        self.hooks.replace(runners)
        self.search_tools.replace(search.synonyms)
        self.tool_vectors.replace(enabled=search.embeddings)
        self.quotas.replace(config.gateway.quotas)
        if self._records_changes and reloaded:
            # Before it is set otherwise: that it was switched off is to be read in it.
            self.audit.changed("reload", str(config.path) if config.path is not None else None)
        self.approvals.settings = config.gateway.approvals
        self.audit.replace(config.gateway.audit)
        auth = config.gateway.auth
        self.authenticator.replace(auth, issuers_changed=auth.oauth != before.gateway.auth.oauth)
        self.server.shared = not self.authenticator.required
        self.announcer.notice_change()
        self._vain_rules.notice_change()
        return steps

    def _record_sign_in(self, server: str, principal: str | None, action: str, error: str | None) -> None:
        self.audit.signed_in(server, principal, action=action, error=error)

    def _pending(self) -> bool:
        return self.fleet.pending

    async def _first_listings(self, request: McpRequest) -> None:
        await self._first_lists.wait(request)
        if self.users.are_used:
            await self.users.connect_signed_in(request.principal, _OWN_LISTINGS_S)

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call one wrapper as a local caller.

        Raises:
            RpcError: The name is nothing of ours.
        """
        caller = Caller(principal=LOCAL, account=self.quotas.account(LOCAL), view=self.views.view(principal=LOCAL))
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
    config: Config,
    *,
    state_dir: Path | None,
    role: Role | None = None,
    origin: str | None = None,
    sign_in_dir: Path | None = None,
    leaves_snapshot_in: Path | None = None,
    resting: Collection[str] = (),
) -> AsyncIterator[Gateway]:
    """Start every hook, then every link, and yield at once; leaving ends every connection and child.

    Args:
        config, state_dir, role, origin, sign_in_dir, leaves_snapshot_in: See `Gateway`.
        resting: Servers that are not connected to; they are listed as the snapshot has them.

    Raises:
        ConfigError: The lock file cannot be used; a hook cannot be loaded, or does not start; or the key of kept
            sign-ins cannot be used.
    """
    _hide_secrets(config)
    # Before anything is started that would have to end again.
    lockfile = await anyio.to_thread.run_sync(read_lockfile, lock_path(config))
    runners = await load_hooks(config)
    audit = Audit(config.gateway.audit, state_dir)
    try:
        async with anyio.create_task_group() as group:
            gateway = Gateway(
                config,
                state_dir,
                group,
                runners=runners,
                role=role,
                audit=audit,
                origin=origin,
                sign_in_dir=sign_in_dir,
                lockfile=lockfile,
                leaves_snapshot_in=leaves_snapshot_in,
            )
            await gateway.start(resting=resting)
            group.start_soon(reap_left_processes)
            audit.process("started", version=__version__, pid=os.getpid())
            try:
                yield gateway  # links connect meanwhile: nobody waits for a slow upstream
            finally:
                group.cancel_scope.cancel()
                gateway.close()
    finally:
        with anyio.CancelScope(shield=True):
            await end_left_processes()
        # After everything that is recorded has ended.
        audit.process("stopped", pid=os.getpid())
        await audit.close()
