"""Connect to an upstream, request and watch its lists of tools, prompts and resources, and reconnect after a loss."""

from __future__ import annotations

import logging
import math
import random
import re
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, Final

import anyio

from gateway.config.server import ServerConfig
from gateway.process.secrets import SECRETS
from gateway.protocol.gateway_errors import (
    ConnectionLost,
    CredentialsUnavailable,
    GatewayError,
    HttpStatusError,
    ListLost,
    LoopDetected,
    NoAnswer,
    RpcError,
    SessionForgotten,
    UnusableAnswer,
    UpstreamUnavailable,
    innermost,
)
from gateway.upstream.breaker import accepts_connections, delay_s, is_behind_proxy, wait_accepting
from gateway.upstream.call_sender import CallSender, Demand
from gateway.upstream.link_states import Connecting, Idle, LinkPorts, LinkState, Ready, SignInNeeded, Starting, Waiting
from gateway.upstream.session import (
    ALL_KINDS,
    Connector,
    RawListing,
    SessionPorts,
    UpstreamCall,
    UpstreamSession,
    WatchedKind,
    WatchList,
    unchanged_listing,
)
from gateway.upstream.transport.process_start import ProcessStart
from gateway.upstream.upstream_credentials import NotSignedIn, SignInRequired, SignInSource, rejects_credentials
from gateway.upstream.watching import Relisting
from registry.catalog.catalog import ListKind
from registry.schema.display_text import excerpt

log = logging.getLogger(__name__)

_OTHER_LISTS: Final[frozenset[ListKind]] = frozenset(("prompts", "resources"))

# A connection that lasted this long counts as a success, so the next attempt is made without a long backoff.
SOUND_S: Final = 10.0
# How long a call waits for a connection. A restarted server is usually up within a few seconds.
WAIT_READY_S: Final = 10.0
# After this many consecutive failures, a recovery within seconds is unlikely, so callers get their error sooner.
_FAILING_AFTER: Final = 3
WAIT_FAILING_S: Final = 2.0
# A call waits only briefly if the access token could not be refreshed, because waiting rarely helps.
WAIT_CREDENTIALS_S: Final = 0.5
# Retrying a failed token refresh puts no load on the upstream, so the pause stays short.
_LONGEST_CREDENTIALS_PAUSE_S: Final = 5.0
# These HTTP statuses mean that the credentials or the URL are wrong, so a retry by the caller does not help.
_REFUSALS: Final = frozenset({401, 403, 404, 405, 410})
# The pause if the upstream is this gateway. Such a loop lasts until a configuration changes, so retry rarely.
_LOOP_PAUSE_S: Final = 300.0
# If requesting one list made the process exit this often in a row, the server is used without that list.
_MAX_LIST_CRASHES: Final = 2
# How often to check whether calls are in flight. Polling is cheaper than an event that every call has to set.
_DRAIN_POLL_S: Final = 0.05
# Upstreams' error texts can be pages long; the admin API and models get at most this much of an error text.
_MAX_REASON_CHARS: Final = 1_000
# Words with digits (ports, process ids, times), which vary between failures that have the same cause.
_VARYING: Final = re.compile(r"\w*\d\w*")
# Callers of a failing server get its last error until a restart has taken this long, then the text "still starting".
_NEW_START_S: Final = 3.0
# How often to retry while no user has signed in, in case the upstream no longer requires a sign-in.
_SIGN_IN_RETRY_S: Final = 300.0


class UpstreamLink:
    """The owner of one upstream: keeps the upstream connected and its listing up to date.

    Attributes:
        config: The configuration entry; replaced by `use`.
        elicitation: Whether an upstream that requires a handshake may ask callers for input during a call.
        has_instances: Whether each session or caller has a separate process for its calls; this link then only lists.
        watch_list: The resources and tasks of this upstream that callers watch.
        state: The current state; `link_states` describes the states.
        epoch: The number of the latest connection; 0 before the first one.
        last_error: Why the connection or the listing is missing; None if neither is missing.
        warnings: Problems with individual lists of a connected upstream.
        lost_reason: Why the last established connection ended; None before any connection has ended.
        tried: Set once the first attempt to connect has ended, or turned out to be impossible or unnecessary.
        handshake_refused: Whether the upstream rejected the first handshake, probably because it speaks only a version
            without a handshake. Always false for links that list.
        start: The latest start of a process; None for upstreams that are not processes.
        per_user: Whether callers have their own links (`caller_links`); this link then never connects.
        retired: Whether the link was replaced or removed.
        owner: The name of the caller that this link belongs to; empty for a shared link.
    """

    def __init__(
        self,
        server: str,
        config: ServerConfig,
        connector: Connector,
        ports: LinkPorts,
        *,
        lists: bool = True,
        epoch: int = 0,
        per_user: bool = False,
        owner: str = "",
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Create a link; `run` connects it.

        Args:
            lists: Whether to list and watch the upstream; false if a shared link already does so.
            epoch: The epoch of the link that this link replaces.
            chance: Returns random numbers in [0, 1), for jitter.
        """
        self.server = server
        self.per_user = per_user
        self.owner = owner
        self.watch_list = WatchList()
        self.state: LinkState = Connecting()
        self.epoch = epoch
        self._last_error: str | None = None
        self.lost_reason: str | None = None
        self.tried = anyio.Event()
        self.handshake_refused = False
        self._connector = connector
        self._ports = ports
        self._session_ports = SessionPorts(
            on_list_changed=self._mark_stale, on_update=self._publish_update, on_start=self._starting
        )
        self._lists = lists
        self._chance = chance
        # A link that does not list was created by a call, which needs the process at once.
        self._demand = Demand(is_needed=not lists)
        self._sender = CallSender(self, self._demand, chance=chance)
        self.use(config)
        if lists and config.lists_at_start:
            self._demand.request_start()
        self._scope = anyio.CancelScope()
        self._ready = anyio.Event()
        # One schedule for each group of lists, so that a slow or failing list does not delay the other groups.
        self._relistings: list[Relisting] = []
        self._list_crashes: dict[ListKind, int] = {}
        self.warnings: tuple[str, ...] = ()
        self.start: ProcessStart | None = None
        self._failures = 0
        self._refused = self._awaits_credentials = False
        # Failures since the last `refresh`; they determine the length of the next pause.
        self._pause_count = 0
        self._ready_s = math.inf
        self._lost_s = time.monotonic()
        self._closed = self.retired = False
        self._warned_reason, self._warning_count = "", 0

    def use(self, config: ServerConfig) -> None:
        """Apply a changed entry that requires no new connection; calls in flight use the previous entry's limits."""
        self.config = config
        # Cached, because reading a field of a configuration model is ten times slower than reading an attribute.
        self.elicitation, self.has_instances = config.elicitation, config.has_instances
        self._sender.use(config)
        if isinstance(self.state, Idle):
            self.state.scope.cancel()  # `run` decides again whether the process is needed
        if isinstance(self.state, Waiting):
            self.refresh()  # an administrator who changed the entry wants to know now whether it works
        if isinstance(self.state, Starting):
            self.state.start.limit(config.start_limit_s)

    @property
    def session(self) -> UpstreamSession | None:
        """The current session; None while not connected."""
        return self.state.session

    @property
    def last_error(self) -> str | None:
        """Why the connection or the listing is missing, without secrets; None if neither is missing."""
        return self._last_error

    @last_error.setter
    def last_error(self, reason: str | None) -> None:
        self._last_error = None if reason is None else excerpt(SECRETS.scrub(reason), _MAX_REASON_CHARS)

    @property
    def is_available(self) -> bool:
        """True if the upstream is connected, or a call can start its process."""
        return isinstance(self.state, Ready) or (isinstance(self.state, Idle) and self.last_error is None)

    @property
    def in_flight(self) -> int:
        """The number of admitted calls that have not ended."""
        return self._sender.in_flight

    @property
    def patience_s(self) -> float:
        """How many seconds a call waits for a connection; fewer while attempts keep failing."""
        if self._awaits_credentials:
            return min(WAIT_CREDENTIALS_S, self.config.call_timeout)
        if isinstance(self.state, Idle) or (self._demand.starts_for_call and not isinstance(self.state, Waiting)):
            # The call starts the process, which may have to download its program first.
            return min(self.config.start_limit_s, self.config.call_timeout)
        return min(WAIT_READY_S if self._failures < _FAILING_AFTER else WAIT_FAILING_S, self.config.call_timeout)

    async def run(self) -> None:
        """Connect, and reconnect after every failure, until `close` is called."""
        with self._scope:
            while True:
                await self._rest_until_needed()
                self._ready_s = math.inf
                at_once = refused = is_loop = False
                epoch = self.epoch
                sign_in_source: SignInSource | None = None
                try:
                    at_once = await self._hold_connection()
                except Exception as error:  # boundary: an upstream must never end its owner task
                    cause = innermost(error)
                    refused = isinstance(cause, ConnectionLost) and not cause.sent
                    self._refused = isinstance(cause, HttpStatusError) and cause.status in _REFUSALS
                    is_loop = isinstance(cause, LoopDetected)
                    self._awaits_credentials = isinstance(cause, CredentialsUnavailable)
                    if isinstance(cause, ListLost):
                        self._note_crash(cause.kind)
                    sign_in_source = cause.source if isinstance(cause, NotSignedIn) else None
                    self.handshake_refused = not self._lists and self.epoch == 0 and isinstance(cause, RpcError)
                    if isinstance(cause, GatewayError):
                        self.last_error = str(cause)
                    else:
                        self.last_error = f"unexpected {type(cause).__name__}"
                        log.exception("upstream link failed unexpectedly", extra={"server": self.server})
                finally:
                    self._leave_ready()
                if self._closed:
                    return
                if self._demand.has_ended():
                    self._failures = self._pause_count = 0
                    self.last_error = None
                    continue
                if self.epoch != epoch:
                    self.lost_reason = self.last_error
                self._ports.on_lost(self)
                if sign_in_source is None:
                    self.tried.set()
                    if self._refused:
                        self._ports.on_refused(self)
                was_sound = time.monotonic() - self._ready_s >= SOUND_S
                self._warn_of_loss("connecting again" if at_once else "not connected", is_new=was_sound)
                if sign_in_source is not None:
                    self._failures = self._pause_count = 0
                    await self._wait_for_sign_in(sign_in_source)
                    continue
                if at_once:
                    self._failures = self._pause_count = 0
                    continue
                # `was_sound` is measured from `_ready_s`, so that a slow handshake does not count as a long connection.
                if was_sound:
                    self._failures = self._pause_count = 0
                else:
                    self._failures, self._pause_count = self._failures + 1, self._pause_count + 1
                await self._pause(self._pause_s(is_loop=is_loop), probe_port=refused and not self._awaits_credentials)

    def _pause_s(self, *, is_loop: bool) -> float:
        """Return the seconds to pause after a failure; also wake calls that wait for the process, so that they fail."""
        if self._demand.tracks:
            self._wake_waiting()
        if is_loop:  # a loop persists until the configuration changes
            self._failures = max(self._failures, _FAILING_AFTER)
            return _LOOP_PAUSE_S
        wait_s = delay_s(max(0, self._pause_count - 1), self._chance())
        return min(wait_s, _LONGEST_CREDENTIALS_PAUSE_S) if self._awaits_credentials else wait_s

    def _warn(self, text: str) -> None:
        log.log(logging.DEBUG if self.per_user else logging.WARNING, "%s", text, extra={"server": self.server})

    def _warn_of_loss(self, what: str, *, is_new: bool) -> None:
        """Log why a connection was lost or failed; if the reason repeats, sometimes log the number of failures."""
        reason = _VARYING.sub("#", f"{what}: {self.last_error}")
        is_same = reason == self._warned_reason and not is_new
        self._warned_reason, self._warning_count = reason, self._warning_count + 1 if is_same else 1
        if not is_same:
            self._warn(f"{what}: {self.last_error}")
        elif self._warning_count & (self._warning_count - 1) == 0:  # a power of two, so that logs stay short
            self._warn(f"{what}: again ({self._warning_count} times)")

    def retire(self) -> None:
        """Stop calling the callbacks, because the link was replaced or removed."""
        self.retired = True
        self._ports = LinkPorts()

    async def close_when_idle(self) -> None:
        """End `run` once no call is in flight, but after the call timeout at the latest."""
        with anyio.move_on_after(self.config.call_timeout):
            while self.in_flight:
                await anyio.sleep(_DRAIN_POLL_S)
        self.close()

    def close(self) -> None:
        """End `run` and the connection; a process that is still starting gets time to clean up."""
        if isinstance(self.state, Starting) and self.state.start.under_way:
            self._closed = True
            self.state.start.stop()
        else:
            self._scope.cancel()

    def refresh(self) -> None:
        """List everything again, or connect at once if the link is not connected; also reset the backoff."""
        self._pause_count = 0
        self._list_crashes.clear()
        for relisting in self._relistings:
            relisting.include_all()
        self.list_again()
        if isinstance(self.state, Idle):
            self._demand.request_start()
        if isinstance(self.state, Waiting | SignInNeeded | Idle):
            self.state.scope.cancel()

    def list_again(self) -> None:
        """List everything again soon; has no effect while not connected."""
        self._mark_stale(ALL_KINDS)

    async def wait_ready(self, wait_s: float) -> Ready:
        """Return the connection; wait up to `wait_s` seconds until the upstream is connected.

        Raises:
            SignInRequired: A user has to sign in first; raised as soon as this is known.
            UpstreamUnavailable: The upstream did not connect within `wait_s`.
        """
        if isinstance(state := self.state, Ready):
            return state
        failures = self._failures
        with self._demand.wait(), anyio.move_on_after(wait_s):
            if isinstance(state, Idle):
                state.scope.cancel()
            # The connection may be lost again before this task wakes up.
            while not isinstance(state := self.state, Ready):
                if self._demand.tracks and self._failures > failures:
                    break  # this call started the process, and the start failed
                if isinstance(state, SignInNeeded):
                    raise self.sign_in_required(state.source)
                await self._ready.wait()
            else:
                return state
        raise UpstreamUnavailable(self.server, self.not_reachable())

    def not_reachable(self) -> str:
        """Return the error text for a call that found no connection."""
        if isinstance(self.state, SignInNeeded):
            return str(self.sign_in_required(self.state.source))
        if isinstance(self.state, Starting) and (not self._failures or self.state.start.took_s >= _NEW_START_S):
            detail = SECRETS.scrub(self.state.start.describe())
            return f"Not called: server '{self.server}' is still {detail}. Nothing was sent; try again in a while."
        reason = f" ({self.last_error})" if self.last_error else ""
        # If the caller tries again, rejected credentials stay rejected, and an upstream that keeps failing still fails.
        lasting = self._refused or (self._failures >= _FAILING_AFTER and not self._awaits_credentials)
        advice = (
            "an operator has to check the server, so trying again at once will not help" if lasting else "try again"
        )
        return f"Not called: server '{self.server}' is not reachable right now{reason}. Nothing was sent; {advice}."

    def sign_in_required(self, source: SignInSource, reason: str | None = None) -> SignInRequired:
        """Return the error for a call that requires a user to sign in first."""
        detail = SECRETS.scrub(reason) if reason is not None else self.last_error or "sign-in needed"
        text = f"Not called: server '{self.server}' requires a user to sign in ({detail}). Nothing was sent."
        return SignInRequired(self.server, text, source=source)

    def call(self, call: UpstreamCall) -> Coroutine[Any, Any, Any]:
        """Send a call; see `CallSender.call`."""
        # Returning the coroutine instead of awaiting it saves every call a stack frame.
        return self._sender.call(call)

    def drop(self, connection: Ready, reason: str) -> None:
        """Close a connection that no longer works."""
        # Several calls may report the same lost connection, some of them after a reconnect.
        if self.state is not connection:
            return
        self.last_error = reason
        self._leave_ready()
        # Only HTTP sessions have to be closed here. A connection to a process ends by itself, and `wait_closed` then
        # returns the reason.
        if connection.session.independent_requests:
            connection.session.abandon()
            connection.scope.cancel()

    async def _hold_connection(self) -> bool:
        """Open a connection and wait until it ends; return true if the link should reconnect at once.

        Raises:
            GatewayError: The connection could not be opened, or was lost.
        """
        connection: Ready | None = None
        self._relistings = []
        with anyio.CancelScope() as scope:
            async with self._connector.open(self._session_ports) as session:
                failure: str | None = None
                listing: RawListing | None = None
                if self._lists:
                    # Created before the first listing, so that a change announced during the listing is not lost.
                    self._relistings = self._relistings_of(session)
                    kinds = frozenset[ListKind]().union(*(each.universe for each in self._relistings))
                    try:
                        listing = await session.fetch_listing(kinds, limit_s=self.config.start_limit_s)
                    except GatewayError as error:
                        listing = await self._listing_without_tools(session, error)
                        failure = f"listing failed: {error}"
                        self._warn(f"{failure}; the last complete listing stays in use")
                self.epoch += 1
                # Report the listing before calls can use the connection, because calls are checked against the listing.
                if listing is not None:
                    await self._ports.on_listing(self, listing)
                connection = Ready(session, scope)
                async with anyio.create_task_group() as group:
                    self._enter_ready(connection)
                    self.last_error = failure
                    group.start_soon(self._end_when_idle, connection)
                    group.start_soon(session.watch, self.watch_list if self._lists else None)
                    if listing is not None:
                        self._note_warnings(listing, kinds)
                    for relisting in self._relistings:
                        assert listing is not None
                        failed = failure is not None and "tools" in relisting.universe
                        relisting.start(listing, failed=failed, now_s=anyio.current_time())
                        group.start_soon(self._keep_listed, connection, relisting)
                    reason = await session.wait_closed()
                    group.cancel_scope.cancel()
                raise ConnectionLost(reason, sent=True)
        if connection is not None and connection.served:
            # The connection worked, so the need for a new session is not a failure.
            return True
        raise SessionForgotten(self.last_error or "reconnecting")

    async def _listing_without_tools(self, session: UpstreamSession, error: GatewayError) -> RawListing:
        """Return a listing of the prompts and resources of a server whose tools could not be listed.

        Raises:
            GatewayError: The server cannot be used at all. Usually `error` itself is raised.
        """
        is_answer = isinstance(error, RpcError | HttpStatusError | NoAnswer | UnusableAnswer)
        is_over = not is_answer and not session.independent_requests
        # An upstream that rejects the credentials would reject calls too.
        if is_over or rejects_credentials(error) or session.calls_need_listing:
            raise error
        other_kinds = _OTHER_LISTS.intersection(session.capabilities) - self._crashing_kinds
        if other_kinds:
            listing = await session.fetch_listing(other_kinds, limit_s=self.config.connect_timeout)
            if listing.failed != other_kinds:
                return replace(listing, confirmed=False)
        # The upstream may still answer calls, so keep using the last good listing, as after a failed poll.
        if is_answer and self._ports.has_listing(self):
            return unchanged_listing(session.capabilities)
        raise error

    def _relistings_of(self, session: UpstreamSession) -> list[Relisting]:
        """Return one schedule for each group of lists; the groups are listed independently of each other."""
        other_kinds = _OTHER_LISTS.intersection(session.capabilities)
        groups = (ALL_KINDS - _OTHER_LISTS, other_kinds) if other_kinds else (ALL_KINDS,)
        return [Relisting(chance=self._chance, universe=group, left_out=self._crashing_kinds) for group in groups]

    @property
    def _crashing_kinds(self) -> frozenset[ListKind]:
        return frozenset(kind for kind, crashes in self._list_crashes.items() if crashes >= _MAX_LIST_CRASHES)

    def _note_crash(self, kind: ListKind) -> None:
        self._list_crashes[kind] = self._list_crashes.get(kind, 0) + 1

    def _note_warnings(self, listing: RawListing, kinds: Collection[ListKind]) -> None:
        for kind in set(kinds) - listing.failed:
            self._list_crashes.pop(kind, None)
        left_out = [
            f"{kind} are not requested, because each request ended the process; refresh the server to try again"
            for kind in sorted(self._crashing_kinds)
        ]
        self.warnings = (*listing.warnings, *left_out)

    def _enter_ready(self, connection: Ready) -> None:
        self.state = connection
        self._ready_s = time.monotonic()
        self.last_error = None
        self._refused = self._awaits_credentials = False
        self._sender.reconnected()
        self._ready.set()
        self.tried.set()
        log.info("connected", extra={"server": self.server, "epoch": self.epoch})

    def _starting(self, start: ProcessStart) -> None:
        start.limit(self.config.start_limit_s)
        self.state, self.start = Starting(start), start

    def _leave_ready(self) -> None:
        if isinstance(self.state, Ready):
            self._lost_s = time.monotonic()
        self.state = Connecting()
        # Do not replace an event that is not set, because calls may already wait for this event.
        if self._ready.is_set():
            self._ready = anyio.Event()

    async def _rest_until_needed(self) -> None:
        """Wait while the process is not needed; return at once for upstreams that stay connected."""
        while not self._demand.is_needed(is_listed=not self._lists or self._ports.has_listing(self)):
            with anyio.CancelScope() as scope:
                self.state = Idle(scope)
                self.tried.set()
                await anyio.sleep_forever()
            self.state = Connecting()
        self._demand.begin_start()

    async def _end_when_idle(self, connection: Ready) -> None:
        """Close the connection once the process is no longer needed."""
        await self._demand.wait_idle(
            lambda: self.in_flight > 0 or bool(self.watch_list),
            is_listed=lambda: self.last_error is None and not any(relisting.is_due for relisting in self._relistings),
        )
        # Calls that arrive from here on wait for the next process.
        self._leave_ready()
        log.info("process ended: not needed", extra={"server": self.server})
        connection.scope.cancel()

    def _wake_waiting(self) -> None:
        """Wake the calls that wait for the connection, so that they check the state again."""
        woken, self._ready = self._ready, anyio.Event()
        woken.set()

    async def _keep_listed(self, connection: Ready, relisting: Relisting) -> None:
        session, now_s = connection.session, anyio.current_time
        has_tools = "tools" in relisting.universe
        while True:
            with anyio.move_on_after(relisting.wait_s(now_s(), announced=session.announces_changes)):
                await relisting.stale.wait()
            await anyio.sleep(relisting.gather_s(now_s()))
            # Reset before the request, so that a change during the request causes another listing.
            stale = relisting.take_stale()
            kinds = relisting.kinds(stale, now_s(), announced=session.announces_changes)
            try:
                listing = await session.fetch_listing(kinds, limit_s=self.config.connect_timeout, polled=not stale)
            except GatewayError as error:
                # Before a listing has succeeded, an error that looks like a lost session may have another cause.
                forgotten = isinstance(error, SessionForgotten) and relisting.has_listed
                is_over = forgotten or (isinstance(error, NotSignedIn) and not error.step_up)
                is_cut = isinstance(error, ConnectionLost) and not error.sent
                if is_over or rejects_credentials(error) or (is_cut and not isinstance(error, CredentialsUnavailable)):
                    self.drop(connection, str(error))
                    return
                if isinstance(error, ListLost):
                    self._note_crash(error.kind)
                    return  # the connection is over
                relisting.failed(stale, now_s())
                if not has_tools:
                    continue
                # Keep using the last good listing, and report the reason to the operator.
                previous_error, self.last_error = self.last_error, f"listing failed: {error}"
                if previous_error is None:  # log only the first of consecutive failures
                    self._warn(f"{self.last_error}; the last complete listing stays in use")
                continue
            if has_tools:
                self.last_error = None
            self._note_warnings(listing, kinds)
            relisting.succeeded(listing, kinds, now_s())
            changed = await self._ports.on_listing(self, listing)
            relisting.settle(stale, now_s(), changed=changed)

    def _mark_stale(self, kinds: Collection[ListKind]) -> None:
        for relisting in self._relistings:
            relisting.mark_stale(kinds)

    def _publish_update(self, kind: WatchedKind, key: str, params: dict[str, Any]) -> None:
        # Look up the callback for each update, because `retire` replaces `_ports`.
        self._ports.on_update(kind, key, params)

    async def _wait_for_sign_in(self, source: SignInSource) -> None:
        """Wait until the credentials change or a retry is requested."""
        with anyio.CancelScope() as scope:
            self.state = SignInNeeded(scope, source)
            self.tried.set()
            self._wake_waiting()
            with anyio.move_on_after(_SIGN_IN_RETRY_S):
                await source.wait_changed(source.version)
        self.state = Connecting()

    async def _pause(self, seconds: float, *, probe_port: bool) -> None:
        """Wait before the next attempt; with `probe_port`, only until the upstream's port accepts connections again."""
        address = self.config.address if probe_port else None
        if address is not None and is_behind_proxy(address, self.config.proxy_choice):
            address = None
        with anyio.CancelScope() as scope:
            self.state = Waiting(scope)
            with anyio.move_on_after(seconds):
                # If the port is open already, the cause is something else, such as the certificate.
                if address is not None and not await accepts_connections(address):
                    await wait_accepting(address, down_s=time.monotonic() - self._lost_s)
                else:
                    await anyio.sleep_forever()
        self.state = Connecting()
