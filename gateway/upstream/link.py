"""One owner task for each upstream: connect, discover, watch, reconnect; callers only send to it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import anyio

from gateway.config.model import ServerConfig
from gateway.errors import (
    INVALID_PARAMS,
    Congested,
    ConnectionLost,
    GatewayError,
    HttpStatusError,
    RpcError,
    SessionForgotten,
    UpstreamLost,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
    innermost,
)
from gateway.upstream.backoff import delay_s
from gateway.upstream.breaker import Breaker
from gateway.upstream.callbacks import Host
from gateway.upstream.connector import connector_of
from gateway.upstream.deadline import Deadline
from gateway.upstream.inbound_messages import OnUpdate
from gateway.upstream.mcp_session import ALL_KINDS, RawListing, UpstreamCall, UpstreamSession
from gateway.upstream.reachability import answers, either
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.watching import Wanted, follow, watch

log = logging.getLogger(__name__)

State = Literal["connecting", "ready", "waiting", "stopped"]
OnListing = Callable[["UpstreamLink", RawListing], Awaitable[None]]
OnLost = Callable[["UpstreamLink"], None]

POLL_S: Final = 60.0
# A session that lived this long was sound: its end starts the backoff afresh.
SOUND_S: Final = 10.0
WAIT_READY_S: Final = 10.0
WAIT_FAILING_S: Final = 2.0
_STORM_S: Final = 0.05
_LOOK_S: Final = 0.05
_KNOCK_S: Final = 0.4
_HEADER_MISMATCH: Final = -32020


class UpstreamLink:
    """Keeps one upstream connected and its listing true.

    With `host` it is the connection of one downstream session: negotiated as that session was, and never listed.

    Attributes:
        wanted: What of this upstream somebody watches.
        tried: Set once the first attempt has ended, well or not.
        unwilling: The first attempt was refused by the upstream itself: it does not speak so.
    """

    def __init__(
        self,
        server: str,
        config: ServerConfig,
        client: HttpClient,
        *,
        on_listing: OnListing,
        on_lost: OnLost,
        on_update: OnUpdate | None = None,
        host: Host | None = None,
        epoch: int = 0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.server = server
        self.config = config
        self._connector = connector_of(server, config, client, host=host)
        self._private = host is not None
        self._on_listing = on_listing
        self._on_lost = on_lost
        self._on_update = on_update
        self._chance = chance
        self._session: UpstreamSession | None = None
        self._ready = anyio.Event()
        self._relist = anyio.Event()
        self._breaker = Breaker()
        self._failures = 0
        self._restart: Callable[[], None] | None = None
        self._hurry: Callable[[], None] | None = None
        self._served = False
        self.wanted = Wanted()
        self.tried = anyio.Event()
        self.state: State = "connecting"
        self.epoch = epoch
        self.in_flight = 0
        self.last_error: str | None = None
        self.unwilling = False

    @property
    def session(self) -> UpstreamSession | None:
        """The present session, while there is one."""
        return self._session

    @property
    def patience_s(self) -> float:
        """How long a call waits for a connection: less where attempts keep failing."""
        return min(WAIT_READY_S if self._failures < 3 else WAIT_FAILING_S, self.config.call_timeout)

    async def run(self) -> None:
        """Own the upstream until cancelled. Nothing that the upstream does ends this."""
        while True:
            self.state = "connecting"
            began_s = time.monotonic()
            refused = forgotten = False
            self._served = False
            try:
                await self._live()
            except Exception as error:  # boundary: no upstream may end its owner task
                cause = innermost(error)
                refused = isinstance(cause, ConnectionLost)
                forgotten = isinstance(cause, SessionForgotten)
                self.unwilling = self._private and self.epoch == 0 and isinstance(cause, RpcError)
                if isinstance(cause, GatewayError):
                    self.last_error = str(cause)
                else:
                    self.last_error = f"unexpected {type(cause).__name__}"
                    log.exception("the link failed unexpectedly", extra={"server": self.server})
            finally:
                self._session = None
                self._ready = anyio.Event() if self._ready.is_set() else self._ready
            self._on_lost(self)
            self.tried.set()
            self.state = "waiting"
            log.warning("not connected: %s", self.last_error, extra={"server": self.server})
            if forgotten and self._served:
                # It worked and wants a new session: no failure, and callers wait for it.
                self._failures = 0
                continue
            self._failures = 0 if time.monotonic() - began_s >= SOUND_S else self._failures + 1
            await self._pause(delay_s(max(0, self._failures - 1), self._chance()), knock=refused)

    def retire(self) -> None:
        """Let nothing that it still hears be told: another link has taken its place, or none."""
        self._on_listing, self._on_lost, self._on_update = _unlisted, _unheard, None
        if self._session is not None:
            self._session.hearing.on_update = None

    async def drained(self) -> None:
        """Wait until no call is in flight any more, within the time that a call may take."""
        with anyio.move_on_after(self.config.call_timeout):
            while self.in_flight:
                await anyio.sleep(_LOOK_S)

    def refresh(self) -> None:
        """List again soon; connect at once where the link waits."""
        self._relist.set()
        if self._hurry is not None:
            self._hurry()

    async def wait_ready(self, wait_s: float) -> UpstreamSession:
        """The session, waiting for it if need be.

        Raises:
            UpstreamUnavailable: Not connected within the bound.
        """
        session = self._session
        if session is not None:
            return session
        with anyio.move_on_after(wait_s):
            while self._session is None:
                await self._ready.wait()
        if self._session is None:
            reason = f" ({self.last_error})" if self.last_error else ""
            raise UpstreamUnavailable(
                self.server,
                f"Not called: server '{self.server}' is not reachable right now{reason}. Nothing was sent; try again.",
            )
        return self._session

    async def call(self, call: UpstreamCall) -> Any:
        """Send one request and return the raw result.

        Raises:
            UpstreamUnavailable: Nothing was sent.
            UpstreamTimeout: The deadline passed, progress or not.
            UpstreamLost: The connection ended after sending; the outcome is unknown.
            UpstreamProtocolError: The answer was not MCP.
            RpcError: The upstream's own error.
        """
        now_s = time.monotonic()
        if self.in_flight >= self.config.max_concurrency:
            raise UpstreamUnavailable(
                self.server,
                f"Not called: server '{self.server}' already has {self.in_flight} calls in flight. "
                "Nothing was sent; try again when some have ended.",
            )
        if not self._breaker.admits(now_s):
            raise UpstreamUnavailable(
                self.server,
                f"Not called: server '{self.server}' has failed {self._breaker.failures} times in a row "
                "and is left alone for some seconds. Nothing was sent.",
            )
        self._breaker = self._breaker.probing(now_s)
        self.in_flight += 1
        try:
            return await self._attempts(call)
        finally:
            self.in_flight -= 1

    async def _attempts(self, call: UpstreamCall) -> Any:
        sent: ConnectionLost | None = None
        for last in (False, True):
            try:
                session = await self.wait_ready(self.patience_s)
            except UpstreamUnavailable:
                if sent is not None:
                    raise self._lost(sent) from None
                raise
            try:
                result = await self._send(session, call)
            except SessionForgotten as error:
                self._end_session(session, str(error))
                if last:
                    raise UpstreamUnavailable(self.server, self._words("keeps forgetting its session")) from None
            except Congested as error:
                raise UpstreamUnavailable(
                    self.server,
                    f"Not called: server '{self.server}' is overloaded ({error}). Nothing was sent.",
                ) from None
            except ConnectionLost as error:
                if not error.sent:
                    self._breaker = self._breaker.failed(time.monotonic(), self._chance())
                if not error.sent or not session.channel.exchanges:
                    # Of exchanges only one was lost; elsewhere it was the connection of all.
                    self._end_session(session, str(error))
                if error.sent and not call.repeatable:
                    raise self._lost(error) from None
                if last:
                    raise self._lost(sent or error, repeated=sent is not None and error.sent) from None
                sent = error if error.sent else None
            except HttpStatusError as error:
                raise UpstreamProtocolError(
                    self.server, self._words(f"answered with {error}; the call has no result")
                ) from None
            except RpcError as error:
                self._breaker = self._breaker.succeeded()
                if error.code in (INVALID_PARAMS, _HEADER_MISMATCH):
                    # Evidence that our listing is no longer true.
                    self._relist.set()
                raise
            else:
                self._breaker = self._breaker.succeeded()
                self._served = True
                return result
        raise AssertionError("unreachable")

    async def _send(self, session: UpstreamSession, call: UpstreamCall) -> Any:
        limit_s = self.config.call_timeout
        deadline = call.sideband.deadline = Deadline(limit_s)
        try:
            with deadline:
                return await session.send(call)
        except TimeoutError:
            raise UpstreamTimeout(
                self.server,
                f"Server '{self.server}' gave no answer within {limit_s:g} s and the call was given up; "
                "it may still have taken effect there.",
            ) from None

    def _lost(self, error: ConnectionLost, *, repeated: bool = False) -> GatewayError:
        if not error.sent:
            return UpstreamUnavailable(
                self.server,
                f"Not called: server '{self.server}' is not reachable right now ({error}). Nothing was sent.",
            )
        return UpstreamLost(
            self.server,
            f"The connection to server '{self.server}' failed after the call was sent ({error}): its outcome is "
            f"unknown, and it was {'sent twice' if repeated else 'not repeated'}. Check before you call again.",
        )

    def _words(self, what: str) -> str:
        return f"Server '{self.server}' {what}."

    def _end_session(self, session: UpstreamSession, reason: str) -> None:
        if self._session is not session:
            return
        self.last_error = reason
        self._session = None
        self._ready = anyio.Event()
        # The end of a child is heard by its owner, with the reason; nothing else tells of an HTTP one.
        if session.channel.exchanges:
            session.channel.abandon()
            if self._restart is not None:
                self._restart()

    async def _live(self) -> None:
        """One connection from its opening to its end."""
        with anyio.CancelScope() as scope:
            self._restart = None
            async with self._connector.open() as session:
                # Nobody lists a connection that is one host's own.
                listing = None if self._private else await session.list_all(limit_s=self.config.connect_timeout)
                self.epoch += 1
                session.epoch = self.epoch
                session.hearing.on_update = self._on_update
                self._restart = scope.cancel
                if listing is not None:
                    await self._publish(listing)
                async with anyio.create_task_group() as group:
                    session.hearing.group = group
                    self._session = session
                    self.state = "ready"
                    self.last_error = None
                    self._breaker = Breaker()
                    self._ready.set()
                    self.tried.set()
                    log.info("connected", extra={"server": self.server, "epoch": self.epoch})
                    group.start_soon(watch, session)
                    if listing is not None:
                        group.start_soon(follow, session, self.wanted)
                        group.start_soon(self._keep_listed, session, listing.ttl_ms)
                    reason = await session.channel.wait_closed()
                    group.cancel_scope.cancel()
                raise ConnectionLost(reason, sent=True)
        self._restart = None
        raise SessionForgotten(self.last_error or "reconnecting")

    async def _keep_listed(self, session: UpstreamSession, ttl_ms: int | None) -> None:
        while True:
            # A hint of 0 means "do not cache", which for a live list means polling at leisure.
            hint_s = ttl_ms / 1000 if ttl_ms else POLL_S
            poll_s = max(1.0, hint_s) * (0.8 + 0.4 * self._chance())
            with anyio.move_on_after(None if session.watched and ttl_ms is None else poll_s):
                await either(session.hearing.changed, self._relist)
            # A storm of changes is one change: what comes while we list is listed once more.
            await anyio.sleep(_STORM_S)
            heard, asked = session.hearing.changed.is_set(), self._relist.is_set()
            named = heard and not asked
            kinds = frozenset(session.hearing.dirty) if named and session.hearing.dirty else ALL_KINDS
            session.hearing.changed = anyio.Event()
            session.hearing.dirty.clear()
            self._relist = anyio.Event()
            try:
                listing = await session.list_all(
                    kinds, limit_s=self.config.connect_timeout, polled=not (heard or asked)
                )
            except SessionForgotten as error:
                self._end_session(session, str(error))
                return
            except GatewayError as error:
                # The last good surface stays; the reason is for the operator.
                self.last_error = f"listing failed: {error}"
                if isinstance(error, ConnectionLost) and not error.sent:
                    self._end_session(session, str(error))
                    return
                continue
            self.last_error = None
            ttl_ms = listing.ttl_ms if kinds == ALL_KINDS else ttl_ms
            await self._publish(listing)

    async def _publish(self, listing: RawListing) -> None:
        await self._on_listing(self, listing)

    async def _pause(self, seconds: float, *, knock: bool) -> None:
        """Wait before the next attempt; a port that accepts connections again ends the wait."""
        with anyio.CancelScope() as scope:
            self._hurry = scope.cancel
            until_s = time.monotonic() + seconds
            while (left_s := until_s - time.monotonic()) > 0:
                await anyio.sleep(min(_KNOCK_S, left_s))
                if knock and self.config.address is not None and await answers(self.config.address):
                    break
        self._hurry = None


async def _unlisted(link: UpstreamLink, listing: RawListing) -> None:
    """A listing that nobody takes."""


def _unheard(link: UpstreamLink) -> None:
    """A loss that nobody is told of."""
