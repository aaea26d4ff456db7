"""One owner task for each upstream: connect, list, watch, reconnect; callers only send to it."""

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
from gateway.errors import (
    ConnectionLost,
    CredentialsUnavailable,
    GatewayError,
    HttpStatusError,
    LeadsBack,
    ListLost,
    NoAnswer,
    RpcError,
    SessionForgotten,
    UnusableAnswer,
    UpstreamUnavailable,
    innermost,
)
from gateway.secrets import SECRETS
from gateway.upstream.backoff import delay_s
from gateway.upstream.call_sender import CallSender
from gateway.upstream.connector import Connector
from gateway.upstream.credentials import NotSignedIn, SignInRequired, SignInSource, refuses_us
from gateway.upstream.link_ports import LinkPorts
from gateway.upstream.link_states import Connecting, LinkState, Ready, SignInNeeded, Starting, Waiting
from gateway.upstream.reachability import accepts_connections, is_behind_proxy
from gateway.upstream.relisting import Relisting
from gateway.upstream.session import ALL_KINDS, RawListing, SessionPorts, UpstreamCall, UpstreamSession, nothing_new
from gateway.upstream.transport.process_start import ProcessStart
from gateway.upstream.watch_list import WatchedKind, WatchList
from registry.catalog.catalog import ListKind
from registry.schema.display_text import excerpt

log = logging.getLogger(__name__)

_OTHER_LISTS: Final[frozenset[ListKind]] = frozenset(("prompts", "resources"))

# A connection that lived this long was sound: its end starts the backoff afresh.
SOUND_S: Final = 10.0
# How long a call waits for a connection: a restarted server is up within some seconds.
WAIT_READY_S: Final = 10.0
# After this many failures in a row it is not expected to be, and callers get their error soon.
_FAILING_AFTER: Final = 3
WAIT_FAILING_S: Final = 2.0
# Neither does a call bring back a token that could not be refreshed.
WAIT_CREDENTIALS_S: Final = 0.5
# What a refresh waits for is not the server: to ask for it again costs the server nothing.
_LONGEST_CREDENTIALS_PAUSE_S: Final = 5.0
# Our credentials or the URL are wrong: unauthorized, forbidden, not found, no such method, gone.
_REFUSALS: Final = frozenset({401, 403, 404, 405, 410})
# What leads back here goes on doing so until somebody changes a configuration; `refresh` looks at once.
_LEADS_BACK_S: Final = 300.0
# A process that has ended so often in a row while one list was asked for is used without that list.
_MAX_LIST_CRASHES: Final = 2
# How often the end of the calls in flight is looked for; a signal would cost every call something.
_DRAIN_POLL_S: Final = 0.05
# An error of an upstream may hold pages; this much of it says why, in ADM and in texts for models.
_MAX_REASON_CHARS: Final = 1_000
# How often a port that refused is tried while the link waits: a server that was restarted is noticed at once by
# people's measure, and one that has been gone for minutes twice a minute.
_PROBE_PORT_S: Final = 0.4
_LONGEST_PROBE_S: Final = 30.0
_PROBES_PER_OUTAGE: Final = 10
# Ports, process ids and times differ each time that a server fails for the same reason.
_VARYING: Final = re.compile(r"\w*\d\w*")
# Of a server that keeps failing the reason says more than that it has just been started again.
_NEW_START_S: Final = 3.0
# An upstream that has come to want no sign-in any more is noticed all the same.
_SIGN_IN_LOOK_S: Final = 300.0


class UpstreamLink:
    """Keeps one upstream connected and its listing true.

    Attributes:
        server: The alias.
        config: The entry; see `use`.
        elicitation: The upstream may ask its callers in the middle of a call.
        watch_list: What of this upstream somebody watches.
        state: See `link_states`.
        epoch: The number of the last connection; 0 before the first one.
        last_error: Why there is no connection, or no true listing; None where all is well.
        warnings: What is wrong with lists, or missing in them, although there is a connection.
        lost_reason: Why the last connection that worked has ended; None before the first one has.
        tried: Set once the first attempt has ended, well or not.
        handshake_refused: The upstream itself refused the first attempt, as one that speaks only a newer version does.
        per_user: It stands for the links of single callers (`user_links`), and never connects.
        owner: The name of the caller whose own link it is; empty where callers share it.
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
        """Keep a link that `run` begins.

        Args:
            server: The alias.
            config: The entry.
            connector: Opens its sessions.
            ports: Where changes are reported.
            lists: Its tools are listed and watched; not so for the connection of one downstream session.
            epoch: Of the link that it takes the place of.
            per_user, owner: See the attributes.
            chance: Random numbers in [0, 1).
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
            on_list_changed=self._mark_stale, on_update=self._updated, on_start=self._starting
        )
        self._lists = lists
        self._chance = chance
        self._sender = CallSender(self, chance=chance)
        self.use(config)
        self._scope = anyio.CancelScope()
        self._ready = anyio.Event()
        # One for each group of lists: a list that fails or takes long keeps no other from being listed.
        self._relistings: list[Relisting] = []
        self._list_crashes: dict[ListKind, int] = {}
        self.warnings: tuple[str, ...] = ()
        self._start: ProcessStart | None = None
        self._failures = 0
        self._refused = self._awaits_credentials = False
        # Failures since somebody last wanted it tried at once: they decide how long the next pause is.
        self._paused = 0
        self._ready_s = math.inf
        self._lost_s = time.monotonic()
        self._closed = False
        self._warned_reason, self._warned = "", 0

    def use(self, config: ServerConfig) -> None:
        """Put another entry of the same reach in the place of the present one; calls in flight keep theirs."""
        self.config = config
        # Every call asks for these, and to read a field of a configuration model takes as long as ten attributes.
        self.elicitation = config.elicitation
        self._sender.use(config)
        if isinstance(self.state, Waiting):
            self.refresh()  # whoever has changed the entry wants to see whether it works now
        if isinstance(self.state, Starting):
            self.state.start.limit_s = config.start_limit_s

    @property
    def session(self) -> UpstreamSession | None:
        """The present session, while there is one."""
        return self.state.session

    @property
    def last_error(self) -> str | None:
        """Why there is no connection, or no new listing: one line, without secrets. None while all is well."""
        return self._last_error

    @last_error.setter
    def last_error(self, reason: str | None) -> None:
        self._last_error = None if reason is None else excerpt(SECRETS.scrub(reason), _MAX_REASON_CHARS)

    @property
    def in_flight(self) -> int:
        """How many calls have been admitted and have not ended."""
        return self._sender.in_flight

    @property
    def patience_s(self) -> float:
        """How long a call waits for a connection: less where attempts keep failing."""
        if self._awaits_credentials:
            return min(WAIT_CREDENTIALS_S, self.config.call_timeout)
        return min(WAIT_READY_S if self._failures < _FAILING_AFTER else WAIT_FAILING_S, self.config.call_timeout)

    # its life

    async def run(self) -> None:
        """Own the upstream until it is closed. Nothing that the upstream does ends this."""
        with self._scope:
            while True:
                self._ready_s = math.inf
                at_once = refused = leads_back = False
                epoch = self.epoch
                wanted: SignInSource | None = None
                try:
                    at_once = await self._hold_connection()
                except Exception as error:  # boundary: no upstream may end its owner task
                    cause = innermost(error)
                    refused = isinstance(cause, ConnectionLost) and not cause.sent
                    self._refused = isinstance(cause, HttpStatusError) and cause.status in _REFUSALS
                    leads_back = isinstance(cause, LeadsBack)
                    self._awaits_credentials = isinstance(cause, CredentialsUnavailable)
                    if isinstance(cause, ListLost):
                        self._note_crash(cause.kind)
                    wanted = cause.source if isinstance(cause, NotSignedIn) else None
                    self.handshake_refused = not self._lists and self.epoch == 0 and isinstance(cause, RpcError)
                    if isinstance(cause, GatewayError):
                        self.last_error = str(cause)
                    else:
                        self.last_error = f"unexpected {type(cause).__name__}"
                        log.exception("the link failed unexpectedly", extra={"server": self.server})
                finally:
                    self._leave_ready()
                if self._closed:
                    return
                if self.epoch != epoch:
                    self.lost_reason = self.last_error
                self._ports.on_lost(self)
                if wanted is None:
                    self.tried.set()
                    if self._refused:
                        self._ports.on_refused(self)
                was_sound = time.monotonic() - self._ready_s >= SOUND_S
                self._warn_of_loss("connecting again" if at_once else "not connected", is_new=was_sound)
                if wanted is not None:
                    self._failures = self._paused = 0
                    await self._wait_for_sign_in(wanted)
                    continue
                if at_once:
                    self._failures = self._paused = 0
                    continue
                # A handshake that hangs for long is a failure as any other.
                if was_sound:
                    self._failures = self._paused = 0
                else:
                    self._failures, self._paused = self._failures + 1, self._paused + 1
                if leads_back:  # and will until somebody changes the configuration
                    self._failures = max(self._failures, _FAILING_AFTER)
                wait_s = _LEADS_BACK_S if leads_back else delay_s(max(0, self._paused - 1), self._chance())
                if self._awaits_credentials:
                    wait_s = min(wait_s, _LONGEST_CREDENTIALS_PAUSE_S)
                await self._pause(wait_s, probe_port=refused and not self._awaits_credentials)

    def _warn(self, text: str) -> None:
        log.log(logging.DEBUG if self.per_user else logging.WARNING, "%s", text, extra={"server": self.server})

    def _warn_of_loss(self, what: str, *, is_new: bool) -> None:
        """Log why there is no connection: of a reason that comes again and again, how many times it was."""
        reason = _VARYING.sub("#", f"{what}: {self.last_error}")
        is_same = reason == self._warned_reason and not is_new
        self._warned_reason, self._warned = reason, self._warned + 1 if is_same else 1
        if not is_same:
            self._warn(f"{what}: {self.last_error}")
        elif self._warned & (self._warned - 1) == 0:  # 2, 4, 8, …: a server that is gone for days is told of rarely
            self._warn(f"{what}: again ({self._warned} times)")

    def retire(self) -> None:
        """Report nothing more: another link has taken its place, or none."""
        self._ports = LinkPorts()

    async def close_when_idle(self) -> None:
        """End `run` once no call is in flight any more, or after the time that a call may take."""
        with anyio.move_on_after(self.config.call_timeout):
            while self.in_flight:
                await anyio.sleep(_DRAIN_POLL_S)
        self.close()

    def close(self) -> None:
        """End `run`, and with it the connection; a process that is starting is given time to clean up."""
        if isinstance(self.state, Starting) and self.state.start.under_way:
            self._closed = True
            self.state.start.stop()
        else:
            self._scope.cancel()

    def refresh(self) -> None:
        """List everything again soon. Where the link waits, connect at once, and begin with short pauses again."""
        self._paused = 0
        self._list_crashes.clear()
        for relisting in self._relistings:
            relisting.left_out = frozenset()
        self.list_again()
        if isinstance(self.state, Waiting | SignInNeeded):
            self.state.scope.cancel()

    def list_again(self) -> None:
        """List again soon, where there is a connection."""
        self._mark_stale(ALL_KINDS)

    # what calls use

    async def wait_ready(self, wait_s: float) -> Ready:
        """The connection, waiting for it if need be.

        Raises:
            SignInRequired: Somebody has to sign in first, which is not waited for.
            UpstreamUnavailable: Not connected within the bound.
        """
        if isinstance(state := self.state, Ready):
            return state
        with anyio.move_on_after(wait_s):
            # It may be lost again before this task has its turn.
            while not isinstance(state := self.state, Ready):
                if isinstance(state, SignInNeeded):
                    raise self.sign_in_required(state.source)
                await self._ready.wait()
            return state
        raise UpstreamUnavailable(self.server, self.not_reachable())

    def not_reachable(self) -> str:
        """What to say of a call that waited for a connection, or would have to."""
        if isinstance(self.state, SignInNeeded):
            return str(self.sign_in_required(self.state.source))
        if isinstance(self.state, Starting) and (not self._failures or self.state.start.took_s >= _NEW_START_S):
            said = SECRETS.scrub(self.state.start.describe())
            return f"Not called: server '{self.server}' is still {said}. Nothing was sent; try again in a while."
        reason = f" ({self.last_error})" if self.last_error else ""
        # What was refused, or failed again and again, is not mended by whoever calls.
        lasting = self._refused or (self._failures >= _FAILING_AFTER and not self._awaits_credentials)
        advice = "its operator has to look at it, so trying again at once will not help" if lasting else "try again"
        return f"Not called: server '{self.server}' is not reachable right now{reason}. Nothing was sent; {advice}."

    def sign_in_required(self, source: SignInSource, reason: str | None = None) -> SignInRequired:
        """The error of a call that waits for somebody to sign in."""
        said = SECRETS.scrub(reason) if reason is not None else self.last_error or "sign-in needed"
        text = f"Not called: server '{self.server}' needs somebody to sign in ({said}). Nothing was sent."
        return SignInRequired(self.server, text, source=source)

    def call(self, call: UpstreamCall) -> Coroutine[Any, Any, Any]:
        """See `CallSender.call`."""
        # Not awaited here: a frame of its own would cost every call something.
        return self._sender.call(call)

    def drop(self, connection: Ready, reason: str) -> None:
        """Use this connection no more: it was found to be lost."""
        # Several calls may find it out; by the second one there may be another connection.
        if self.state is not connection:
            return
        self.last_error = reason
        self._leave_ready()
        # The end of a child is noticed by its owner, with the reason; an HTTP connection has no end of its own.
        if connection.session.independent_requests:
            connection.session.abandon()
            connection.scope.cancel()

    # one connection

    async def _hold_connection(self) -> bool:
        """Open a connection and stay until it ends; true where the next one is due at once.

        Raises:
            GatewayError: Why there is none, or none any more.
        """
        connection: Ready | None = None
        self._relistings = []
        with anyio.CancelScope() as scope:
            async with self._connector.open(self._session_ports) as session:
                failure: str | None = None
                listing: RawListing | None = None
                if self._lists:
                    # Before the first listing: a change that is announced meanwhile is listed once more.
                    self._relistings = self._relistings_of(session)
                    kinds = frozenset[ListKind]().union(*(one.universe for one in self._relistings))
                    try:
                        listing = await session.fetch_listing(kinds, limit_s=self.config.start_limit_s)
                    except GatewayError as error:
                        listing = await self._listing_without_tools(session, error)
                        failure = f"listing failed: {error}"
                        self._warn(f"{failure}; the last good one stays")
                self.epoch += 1
                # Before calls can use it: they are checked against the listing of the connection they go over.
                if listing is not None:
                    await self._ports.on_listing(self, listing)
                connection = Ready(session, scope)
                async with anyio.create_task_group() as group:
                    self._enter_ready(connection)
                    self.last_error = failure
                    group.start_soon(session.watch, self.watch_list if self._lists else None)
                    if listing is not None:
                        self._note_warnings(listing, kinds)
                    for relisting in self._relistings:
                        assert listing is not None
                        failed = failure is not None and "tools" in relisting.universe
                        relisting.begin(listing, failed=failed, now_s=anyio.current_time())
                        group.start_soon(self._keep_listed, connection, relisting)
                    reason = await session.wait_closed()
                    group.cancel_scope.cancel()
                raise ConnectionLost(reason, sent=True)
        if connection is not None and connection.served:
            # It worked and wants a new session: no failure, and callers wait for it.
            return True
        raise SessionForgotten(self.last_error or "reconnecting")

    async def _listing_without_tools(self, session: UpstreamSession, error: GatewayError) -> RawListing:
        """Return what can be used of a server although its tools could not be listed.

        Raises:
            GatewayError: Nothing can: the reason why tools could not be listed.
        """
        is_answer = isinstance(error, RpcError | HttpStatusError | NoAnswer | UnusableAnswer)
        is_over = not is_answer and not session.independent_requests
        # Who refuses our credentials refuses calls too.
        if is_over or refuses_us(error) or session.calls_need_listing:
            raise error
        others = _OTHER_LISTS.intersection(session.capabilities) - self._crashing
        if others:
            listing = await session.fetch_listing(others, limit_s=self.config.connect_timeout)
            if listing.failed != others:
                return replace(listing, confirmed=False)
        # It may well answer calls: they go on with the last good listing, as after a poll that fails.
        if is_answer and self._ports.has_listing(self):
            return nothing_new(session.capabilities)
        raise error

    def _relistings_of(self, session: UpstreamSession) -> list[Relisting]:
        """What is to be listed of a session, and listed again."""
        others = _OTHER_LISTS.intersection(session.capabilities)
        groups = (ALL_KINDS - _OTHER_LISTS, others) if others else (ALL_KINDS,)
        found = [Relisting(chance=self._chance, universe=group) for group in groups]
        for relisting in found:
            relisting.left_out = self._crashing
        return found

    @property
    def _crashing(self) -> frozenset[ListKind]:
        return frozenset(kind for kind, crashes in self._list_crashes.items() if crashes >= _MAX_LIST_CRASHES)

    def _note_crash(self, kind: ListKind) -> None:
        self._list_crashes[kind] = self._list_crashes.get(kind, 0) + 1

    def _note_warnings(self, listing: RawListing, kinds: Collection[ListKind]) -> None:
        for kind in set(kinds) - listing.failed:
            self._list_crashes.pop(kind, None)
        left_out = [
            f"{kind} are not asked for, because the process ended each time; refresh the server to have it tried again"
            for kind in sorted(self._crashing)
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
        start.limit_s = self.config.start_limit_s
        self.state, self._start = Starting(start), start

    @property
    def is_separate(self) -> bool | None:
        """Whether the process runs in a domain of its own; None without a process."""
        return self._start.is_separate if self._start is not None else None

    def _leave_ready(self) -> None:
        if isinstance(self.state, Ready):
            self._lost_s = time.monotonic()
        self.state = Connecting()
        # A new event only where the old one was used up: calls may be waiting for it already.
        if self._ready.is_set():
            self._ready = anyio.Event()

    async def _keep_listed(self, connection: Ready, relisting: Relisting) -> None:
        session, now_s = connection.session, anyio.current_time
        has_tools = "tools" in relisting.universe
        while True:
            with anyio.move_on_after(relisting.wait_s(now_s(), announced=session.announces_changes)):
                await relisting.stale.wait()
            await anyio.sleep(relisting.gather_s(now_s()))
            # Taken before the request: what changes while it is on its way is listed once more.
            stale = relisting.take_stale()
            kinds = relisting.kinds(stale, now_s(), announced=session.announces_changes)
            try:
                listing = await session.fetch_listing(kinds, limit_s=self.config.connect_timeout, polled=not stale)
            except GatewayError as error:
                # A server that has never listed tools in this session may answer with what looks like the end of it.
                forgotten = isinstance(error, SessionForgotten) and relisting.has_listed
                gone = forgotten or (isinstance(error, NotSignedIn) and not error.step_up)
                is_cut = isinstance(error, ConnectionLost) and not error.sent
                if gone or refuses_us(error) or (is_cut and not isinstance(error, CredentialsUnavailable)):
                    self.drop(connection, str(error))
                    return
                if isinstance(error, ListLost):
                    self._note_crash(error.kind)
                    return  # the connection is over
                relisting.failed(stale, now_s())
                if not has_tools:
                    continue
                # The last good listing stays; the reason is for the operator.
                known, self.last_error = self.last_error, f"listing failed: {error}"
                if known is None:  # of many in a row the first
                    self._warn(f"{self.last_error}; the last good one stays")
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

    def _updated(self, kind: WatchedKind, key: str, params: dict[str, Any]) -> None:
        # Looked up each time: a retired link has other ports.
        self._ports.on_update(kind, key, params)

    async def _wait_for_sign_in(self, source: SignInSource) -> None:
        """Wait until there may be other credentials, or somebody wants it tried again."""
        with anyio.CancelScope() as scope:
            self.state = SignInNeeded(scope, source)
            self.tried.set()
            # Calls that wait for the connection are told at once.
            woken, self._ready = self._ready, anyio.Event()
            woken.set()
            with anyio.move_on_after(_SIGN_IN_LOOK_S):
                await source.changed(source.version)
        self.state = Connecting()

    async def _pause(self, seconds: float, *, probe_port: bool) -> None:
        """Wait before the next attempt; a port that refused connections and accepts them again ends the wait."""
        address = self.config.address if probe_port else None
        if address is not None and is_behind_proxy(address, self.config.proxy_choice):
            address = None
        with anyio.CancelScope() as scope:
            self.state = Waiting(scope)
            until_s = time.monotonic() + seconds
            if address is not None and await accepts_connections(address):
                address = None  # something else is wrong, such as its certificate
            while (left_s := until_s - (now_s := time.monotonic())) > 0:
                probe_s = min(max(_PROBE_PORT_S, (now_s - self._lost_s) / _PROBES_PER_OUTAGE), _LONGEST_PROBE_S)
                await anyio.sleep(min(probe_s, left_s) if address is not None else left_s)
                if address is not None and await accepts_connections(address):
                    break
        self.state = Connecting()
