"""The composition root: construct and start all parts of a gateway from a configuration.

A *link* is the connection of the gateway to one upstream.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from gateway import __version__
from gateway.access.credentials import ApiKeys, Credentials
from gateway.access.oauth.access_tokens import Tokens
from gateway.access.principal import LOCAL
from gateway.access.quotas import Quotas
from gateway.access.signing import Signer
from gateway.audit.recording import Audit
from gateway.calls.advice.unknown_tool import UnknownToolErrors
from gateway.calls.approval_requests import Approvals
from gateway.calls.approval_store import ApprovalStore
from gateway.calls.builtin_tools import SearchTools
from gateway.calls.call_stats import CallStats, Durations
from gateway.calls.call_targets import Permission
from gateway.calls.caller import Caller
from gateway.calls.caller_ids import TaskIds, UpstreamSubscriptions, UpstreamUpdates
from gateway.calls.forwarding import Forwarder
from gateway.calls.item_requests import PromptsAndResources
from gateway.calls.pipeline import CallPipeline, ExposedNames
from gateway.calls.profile_views import ProfileViews
from gateway.calls.result_parts import ResultParts, StoredValues
from gateway.calls.result_store import ResultStore
from gateway.calls.results import ResourceUris
from gateway.calls.thorough_checks import ThoroughChecks
from gateway.calls.tool_call import CallParts
from gateway.cluster.roles import ProcessRole
from gateway.config.active_config import ActiveConfig
from gateway.config.conversion import policy_of, profiles_of
from gateway.config.model import Config, extensions_of
from gateway.downstream.declarations import FirstLists
from gateway.downstream.mcp_server import McpServer, ServerProcess
from gateway.downstream.sessions import ChangeAnnouncer
from gateway.downstream.subscriptions import Subscriptions
from gateway.embeddings.tool_vectors import ToolVectors
from gateway.fleet.fleet import Fleet, FleetPorts
from gateway.fleet.listing_lock import ListingLock
from gateway.fleet.listings import Listings, UnmatchedRules
from gateway.fleet.lock_file import FirstListings, LockDecisions, lock_path, read_lockfile
from gateway.fleet.operator_notes import OperatorNotes
from gateway.fleet.snapshot import StoredListings
from gateway.hooks.hook_loading import ActiveHooks, load_hooks
from gateway.hooks.runner import HookRunner
from gateway.http.http_client import HttpClient
from gateway.process.tasks import OwnedTasks
from gateway.telemetry.tracing import Tracing, resolve_telemetry
from gateway.upstream.caller_links import PrivateLinks, UserLinks, UserPorts
from gateway.upstream.link import UpstreamLink
from gateway.upstream.oauth.account_linking import caller_checks
from gateway.upstream.oauth.authorization import BrowserOrigin, addresses_at, public_url_of
from gateway.upstream.oauth.guarded_requests import IssuerFetch
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.oauth.token_store import FileTokenStore, MemoryTokenStore, TokenStore, encryption_from
from gateway.upstream.sandbox import protect_paths
from gateway.upstream.transport.process_start import end_left_processes, reap_left_processes
from registry.catalog.registry import Registry
from registry.catalog.shape import Shape
from registry.lock.lockfile import Lockfile


@dataclass(frozen=True, slots=True, kw_only=True)
class BorrowedState:
    """State directories of another gateway, for a command that briefly runs a gateway of its own.

    Attributes:
        sign_in_dir: The directory for OAuth sign-ins; None for the gateway's own state directory.
        snapshot_dir: The directory to which listings of upstreams are written, for a gateway that starts later. None to
            read and write listings in the gateway's own state directory.
        decisions_dir: The directory with decisions about changed definitions, if the gateway has no state directory of
            its own; None to use no stored decisions.
    """

    sign_in_dir: Path | None = None
    snapshot_dir: Path | None = None
    decisions_dir: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedParts:
    """The parts that are loaded before the other parts are constructed, because loading them can fail.

    Attributes:
        audit: The audit log. `open_gateway` closes it after all other parts, which may write entries, have ended.
        runners: The started hooks.
        lockfile: The approved definitions; None without a lock file.
    """

    audit: Audit
    runners: tuple[HookRunner, ...]
    lockfile: Lockfile | None


class Gateway:
    """All parts of a running gateway: a fleet of upstreams, the registry and the MCP server.

    Attributes:
        active: The configuration in effect, and the parts that depend on it.
        lock: The approved definitions of the upstreams.
    """

    def __init__(
        self,
        config: Config,
        state_dir: Path | None,
        group: TaskGroup,
        opened: StartedParts,
        *,
        role: ProcessRole | None = None,
        origin: BrowserOrigin | None = None,
        borrowed: BorrowedState | None = None,
    ) -> None:
        """Construct the parts. No tasks run before `start`.

        Args:
            state_dir: The directory for state; None to store nothing.
            group: The task group in which all tasks of the gateway run.
            opened: The parts that were loaded for this configuration.
            role: The role of this process in a worker group or cluster; None for a single process.
            origin: The origin of the URL at which browsers reach the gateway; None without HTTP.
            borrowed: State directories of another gateway to use; None to use only `state_dir`.
        """
        borrowed = borrowed if borrowed is not None else BorrowedState()
        names, search = config.gateway.names, config.gateway.search
        writes = role is None or role.writes
        # The id is random: an id derived from the state directory would be the same for several gateways of a user.
        instance = role.instance if role is not None else secrets.token_hex(8)
        self.active = active = ActiveConfig(config)
        self._group = group
        self._client = HttpClient()
        auth = config.gateway.auth
        self.authenticator = Credentials(ApiKeys(auth.api_keys), Tokens(auth.oauth, IssuerFetch(self._client)))
        self.quotas = Quotas(config.gateway.quotas, sharing=role.sharing if role is not None else None)
        self.audit = audit = opened.audit
        self._logs_unmatched_rules = writes
        self.registry = Registry(Shape(max_length=names.max_length))
        self.notes = OperatorNotes(
            self.registry, state_dir, writes=writes, on_cleared=role.on_cleared if role is not None else _do_nothing
        )
        protect_paths([state_dir, borrowed.sign_in_dir, borrowed.snapshot_dir])
        sign_in_dir = borrowed.sign_in_dir if borrowed.sign_in_dir is not None else state_dir
        store: TokenStore | None = role.sign_ins if role is not None else None
        if store is None:
            store = FileTokenStore(sign_in_dir, encryption_from()) if sign_in_dir is not None else MemoryTokenStore()
        origin = origin if origin is not None else BrowserOrigin()
        addresses = addresses_at(lambda: public_url_of(active.current.gateway), lambda: origin.url)
        checks = caller_checks(self.authenticator, lambda: active.current.gateway.auth.oauth)
        tasks = OwnedTasks(group)
        self.sign_ins = SignIns(tasks, store, addresses, audit.signed_in, checks, origin)
        first_listings = FirstListings(state_dir, saves=writes)
        decisions = LockDecisions(state_dir or borrowed.decisions_dir, saves=writes)
        self.lock = ListingLock(
            config, opened.lockfile, first_listings=first_listings, decisions=decisions, announces=writes
        )
        # The links by server alias. Many parts look up links in this dictionary; only the fleet changes it.
        links: dict[str, UpstreamLink] = {}
        recalls = borrowed.snapshot_dir is None
        stored_listings = StoredListings(state_dir if recalls else borrowed.snapshot_dir, recalls=recalls, saves=writes)
        listings = Listings(
            self.registry,
            self.lock,
            links,
            stored_listings,
            instance=instance,
            is_shared=lambda: active.current.gateway.auth.required,
        )
        updates = UpstreamUpdates()
        user_ports = UserPorts(
            on_listing=listings.own.put,
            has_listing=listings.own.has_listing,
            epoch_of=listings.own.epoch_of,
            on_update=updates.publish,
            token_of=self.authenticator.tokens.text_of,
        )
        self.users = UserLinks(group, self._client, self.sign_ins, links, ports=user_ports)
        self.private = PrivateLinks(group, self._client, self.sign_ins, self.users)
        self.fleet = Fleet(
            self.registry,
            group,
            self._client,
            listings,
            links=links,
            ports=FleetPorts(
                notes_of=self.notes.for_server,
                admits=role.admits if role is not None else _do_nothing,
                on_update=updates.publish,
                on_started=updates.restore,
                on_gone=self.private.drop_server,
                on_refused=active.suspect,
            ),
            sign_ins=self.sign_ins,
            users=self.users,
        )
        telemetry = resolve_telemetry(config.gateway.telemetry)
        self._tracing = (
            Tracing(telemetry, instance=f"{instance}-{role.name if role else ''}") if telemetry is not None else None
        )
        duration_export = self._tracing.duration_export if self._tracing is not None else None
        self.call_stats = CallStats(
            on_success=self.notes.succeeded,
            awaited=self.notes.with_failure_notes,
            on_failure=role.on_failure if role is not None else None,
            durations=Durations(duration_export.exporter_of if duration_export is not None else None),
        )
        self.views = ProfileViews(self.registry, profiles_of(config), policy_of(config))
        self._unmatched_rules = UnmatchedRules(self.registry, self.views.unmatched_rules)
        self.tool_vectors = ToolVectors(self.registry, state_dir if writes else None, enabled=search.embeddings)
        self.search_tools = SearchTools(
            registry=self.registry,
            users=self.users,
            id_of=stored_listings.ids.get,
            synonyms=search.synonyms,
            tool_vectors=self.tool_vectors,
        )
        self.announcer = ChangeAnnouncer(self.registry, self.views)
        self.hooks = ActiveHooks(self.registry, opened.runners)
        signer = Signer(state_dir, key=role.signing_key if role is not None else None)
        self.approvals = ApprovalStore(
            config.gateway.approvals,
            self.audit,
            on_change=role.on_approvals_changed if role is not None else _do_nothing,
        )
        task_ids = TaskIds(signer, self.hooks)
        forwarder = Forwarder(
            links, self.users, self.private, signer, durations=self.call_stats.durations, tracing=self._tracing
        )
        self.thorough_checks = ThoroughChecks(tasks)
        self.permission = Permission(self.registry)
        resource_uris = ResourceUris()
        self.results = ResultStore(
            config.gateway.results,
            signer,
            process=role.name if role is not None else "",
            fetch=role.fetch_result if role is not None else None,
        )
        stored_values = StoredValues(self.results, self.thorough_checks, self.audit, config.gateway.results.flow)
        result_parts = ResultParts(stored_values)
        call_parts = CallParts(
            registry=self.registry,
            forwarder=forwarder,
            thorough_checks=self.thorough_checks,
            unknown_tool=UnknownToolErrors(
                registry=self.registry,
                users=self.users,
                retired=self.fleet.is_retired_alias,
                successor=self.fleet.successor,
                faulty=self.fleet.faulty,
            ),
            permission=self.permission,
            audit=self.audit,
            result_parts=result_parts,
        )
        self.pipeline = CallPipeline(
            call_parts,
            links=links,
            users=self.users,
            names=ExposedNames(task_ids=task_ids, resource_uris=resource_uris),
            call_stats=self.call_stats,
            search_tools=self.search_tools,
            hooks=self.hooks,
            approvals=Approvals(
                self.approvals
                if role is None or role.share_approvals is None
                else role.share_approvals(self.approvals),
                signer,
                tasks,
                asked_by_default=lambda: active.current.gateway.approvals.by,
            ),
        )
        self.prompts_and_resources = PromptsAndResources(
            registry=self.registry,
            forwarder=forwarder,
            task_ids=task_ids,
            hooks=self.hooks,
            resource_uris=resource_uris,
            result_parts=result_parts,
            extensions=extensions_of(config),
        )
        process = ServerProcess(
            instance=instance,
            new_session_id=role.new_session_id if role is not None else None,
            audit=self.audit,
            durations=self.call_stats.durations,
            tracing=self._tracing,
        )
        self.server = McpServer(
            process,
            views=self.views,
            pipeline=self.pipeline,
            prompts_and_resources=self.prompts_and_resources,
            subscriptions=Subscriptions(
                views=self.views,
                upstream_subscriptions=UpstreamSubscriptions(updates, self.users.get_open),
                task_ids=task_ids,
                announcer=self.announcer,
                upstreams=self.fleet,
                users=self.users,
                resource_uris=resource_uris,
            ),
            authenticator=self.authenticator,
            first_lists=FirstLists(self.fleet, self.users),
            private_links=self.private,
        )
        # Hooks are last, because validating a configuration change starts the new hooks. If a later part refused the
        # change, the new hooks would have to be stopped again.
        for part in (
            self.fleet,
            self.views,
            self.approvals,
            self.search_tools,
            self.results,
            stored_values,
            self.prompts_and_resources,
            self.quotas,
            self.audit,
            self.authenticator,
            self.announcer,
            self._unmatched_rules,
            *([self._tracing] if self._tracing is not None else []),
            self.hooks,
        ):
            active.add(part)

    @property
    def config(self) -> Config:
        """The configuration in effect."""
        return self.active.current

    async def start(self, *, resting: Collection[str] = ()) -> None:
        """Start the links to all servers except those in `resting`, and the tasks of the other parts.

        Callers see the stored listing of a server until the server has sent a new one.
        """
        await self.fleet.start(self.config, resting=resting)
        for part in (
            self.announcer,
            self.notes,
            self.tool_vectors,
            self.hooks,
            self.authenticator,
            self.thorough_checks,
            self.results,
            self.audit,
        ):
            self._group.start_soon(part.run)
        # Only one of several workers logs the warnings about unmatched rules.
        if self._logs_unmatched_rules:
            self._group.start_soon(self._unmatched_rules.run)

    def close(self) -> None:
        """Close the parts that do not run in a task."""
        self._client.close()
        self.active.close()
        self.sign_ins.close()

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a wrapper as the local user, for commands.

        Raises:
            RpcError: The wrapper does not exist.
        """
        caller = Caller(principal=LOCAL, account=self.quotas.account(LOCAL), view=self.views.view(principal=LOCAL))
        return await self.pipeline.call({"name": name, "arguments": arguments}, caller)


def _do_nothing(*_: object) -> None:
    """Do nothing: the default of callbacks that only a gateway with several processes needs."""


@asynccontextmanager
async def open_gateway(
    config: Config,
    *,
    state_dir: Path | None,
    role: ProcessRole | None = None,
    origin: BrowserOrigin | None = None,
    borrowed: BorrowedState | None = None,
    resting: Collection[str] = (),
) -> AsyncIterator[Gateway]:
    """Start a gateway, and yield it without waiting for its upstreams to connect.

    At exit, close all connections and end all local upstreams. For the other arguments, see `Gateway`.

    Args:
        resting: Aliases of servers to which the gateway does not connect. Callers see their stored listings.

    Raises:
        ConfigError: The lock file or the encryption key of the sign-ins cannot be used, or a hook does not start.
    """
    # Read the lock file before anything is started, so that nothing has to be stopped if this fails.
    lockfile = await anyio.to_thread.run_sync(read_lockfile, lock_path(config))
    runners = await load_hooks(config)
    audit = Audit(config.gateway.audit, state_dir, records_reloads=role is None or role.writes)
    try:
        async with anyio.create_task_group() as group:
            gateway = Gateway(
                config,
                state_dir,
                group,
                StartedParts(audit=audit, runners=runners, lockfile=lockfile),
                role=role,
                origin=origin,
                borrowed=borrowed,
            )
            await gateway.start(resting=resting)
            group.start_soon(reap_left_processes)
            audit.process("started", version=__version__, pid=os.getpid())
            try:
                yield gateway  # the upstreams connect concurrently, so that a slow one does not delay the start
            finally:
                group.cancel_scope.cancel()
                gateway.close()
    finally:
        with anyio.CancelScope(shield=True):
            await end_left_processes()
        # This is the last audit entry, because all parts that write entries have ended.
        audit.process("stopped", pid=os.getpid())
        await audit.aclose()
