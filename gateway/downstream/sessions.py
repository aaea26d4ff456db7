"""Sessions of the handshake era (MCP versions up to 2025-11-25), and notifications of changed lists in both eras.

Over HTTP, a host opens a session with `initialize` and names the session in every later request. Messages that do not
belong to a request, such as list changes, are sent on the session's own event stream, which the host opens with GET.

Source: MCP 2025-11-25, "Transports", "Session Management" and "Resumability and Redelivery".
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import anyio

from gateway.access.principal import Principal
from gateway.access.quotas import Account
from gateway.calls.profile_views import ProfileViews
from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.downstream.resumption import RESUMABLE_SINCE, ResumableAnswers
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import INTERNAL_ERROR, INVALID_PARAMS, QuotaExceeded, RpcError
from gateway.protocol.jsonrpc import find_by_id, number_of
from gateway.upstream.breaker import ReactionLimiter
from gateway.upstream.session import HostSession
from registry.catalog.catalog import ListKind
from registry.catalog.registry import Registry
from registry.policy.policy import Grant
from registry.views.profile import DEFAULT_PROFILE
from registry.views.view import View

# The maximum number of found names, far above any `maxTools`. It limits memory use by tools that no longer exist.
_MAX_REMEMBERED: Final = 1_000


class FoundTools:
    """Names of unlisted wrappers that searches of a session have found, in the order of their first search.

    The found wrappers are added to the session's tool list. If they exceed the profile's budget, the names whose last
    search is longest ago are dropped. The others keep their order, so that the prompt caches of hosts remain valid.
    """

    __slots__ = ("_count", "_last_found")

    def __init__(self) -> None:
        self._last_found: dict[str, int] = {}
        self._count = 0

    def add(self, names: Iterable[str], view: View) -> bool:
        """Record the names that a search has found, the most important last; return whether the tool list changes."""
        before = self.listed(view)
        for name in names:
            self._count += 1
            self._last_found[name] = self._count
        # Drop names that do not fit into the budget; otherwise they would reappear as soon as there is room.
        fitting = frozenset(self._fitting_names(view))
        self._last_found = {name: at for name, at in self._last_found.items() if name in fitting}
        return self.listed(view) != before

    def listed(self, view: View) -> tuple[str, ...]:
        """Return the names to append to the list of the view, in the order of their first search."""
        if not self._last_found:
            return ()
        selected = view.select_found(sorted(self._last_found, key=self._last_found.__getitem__))
        return tuple(name for name in self._last_found if name in selected)

    def _fitting_names(self, view: View) -> Iterable[str]:
        newest = sorted(self._last_found, key=self._last_found.__getitem__)[-_MAX_REMEMBERED:]
        fitting = view.select_found(newest)
        # Keep tools that are missing from the view or are listed anyway: they take no room in the budget at present.
        return (name for name in newest if name in fitting or (entry := view.entry(name)) is None or entry.listed)


MAX_SESSIONS: Final = 10_000
"""The maximum number of sessions, about as many as connections. An idle session takes about 4 KiB."""
IDLE_S: Final = 1800.0
"""The idle time after which a session ends and its host has to initialize again; hosts seldom end their sessions."""
MAX_INTRODUCTION_BYTES: Final = 16 * 1024
"""The limit of capabilities and `clientInfo`, which the session stores. Hosts send a tenth of this size."""
MAX_REPLAYED: Final = 256
"""How many messages are stored for a host that reopens its stream: list changes and logs, whose old messages can be
lost without harm."""
# The maximum number of open requests to a host. Most requests wait for the user, and hosts do not show more.
_MAX_REQUESTS: Final = 256
# The interval between checks for idle sessions: short compared to `IDLE_S`.
_SWEEP_S: Final = 60.0

Emit = Callable[[dict[str, Any]], None]
EmitNumbered = Callable[[dict[str, Any], int], None]


def random_session_id() -> str:
    """Return an unguessable session id."""
    return secrets.token_hex(16)


class Running(Protocol):
    """A request in flight, independent of the transport."""

    def cancel(self) -> None:
        """Cancel the request; its caller gets an error response."""


class Session:
    """A session: its negotiated protocol version, its running requests, and its event stream.

    Attributes:
        id: Unguessable. With several gateway processes, the id also identifies the process that has the session.
        resumable: True if the protocol version lets the caller resume a response after a disconnect.
        account: The account to charge.
        used_s: When the caller last used the session, by the clock of `SessionTable`.
        found: Tools found by searches of this session, which are appended to its tool list.
        log_level: The level of the last `logging/setLevel`; by default, all log messages are sent.
        running: The requests in flight, by request id.
        subscribed: For each subscribed resource URI, the function that ends the subscription.
        answers: Responses that have become event streams and can be resumed.
        on_end: Called when the session ends.
    """

    def __init__(
        self,
        principal: Principal,
        *,
        version: str,
        params: dict[str, Any],
        account: Account,
        profile: str = DEFAULT_PROFILE,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        """Create a session. The owner has to call `end` afterwards.

        Args:
            params: The parameters of `initialize`.
            new_id: Returns a new session id; by default, the id is random.

        Raises:
            RpcError: The host's capabilities and `clientInfo` are too large, or exceed the caller's memory quota.
        """
        capabilities, client_info = params.get("capabilities"), params.get("clientInfo")
        introduction = json_bytes.dumps([capabilities, client_info])
        if len(introduction) > MAX_INTRODUCTION_BYTES:
            raise RpcError(
                INVALID_PARAMS, f"capabilities and clientInfo may have at most {MAX_INTRODUCTION_BYTES} bytes together"
            )
        held_bytes = json_bytes.parsed_bytes(introduction)
        account.hold(held_bytes)
        self.id = new_id() if new_id is not None else random_session_id()
        self.principal = principal
        self.version = version
        self.resumable = version >= RESUMABLE_SINCE
        self.profile = profile
        self.account = account
        self.used_s = 0.0
        self.found = FoundTools()
        self.capabilities: dict[str, Any] = capabilities if isinstance(capabilities, dict) else {}
        self.host = HostSession(
            version=version,
            capabilities=self.capabilities,
            client_info=client_info if isinstance(client_info, dict) else {},
            ask=partial(self.send_request, self._send_now),
            notify=self.notify,
        )
        self.log_level = "debug"
        self.running: dict[str | int | float, Running] = {}
        self.subscribed: dict[str, Callable[[], None]] = {}
        self.on_end: list[Callable[[], None]] = [partial(account.release, held_bytes)]
        self.answers = ResumableAnswers()
        self._ended = False
        self._ids = itertools.count(1)
        self._requests: dict[int, _ClientRequest] = {}
        self._numbers = itertools.count(1)
        self._outbox: deque[tuple[int, dict[str, Any]]] = deque(maxlen=MAX_REPLAYED)
        self._delivered = 0
        self._emit: EmitNumbered | None = None
        self._hang_up: Callable[[], None] | None = None

    # The session's own stream

    def set_log_level(self, level: str) -> None:
        """Send only log messages of this level and above from now on."""
        self.log_level = level

    @property
    def streaming(self) -> bool:
        """Return whether the session's own event stream is open."""
        return self._emit is not None

    @property
    def in_use(self) -> bool:
        """Return whether the session has an open stream or a running request."""
        return self.streaming or bool(self.running)

    def open_stream(self, emit: EmitNumbered, hang_up: Callable[[], None], after: int | None = None) -> None:
        """Open the session's stream: send the stored messages that the host has missed, then every new message.

        If a previous stream is still open, close it: the host has reconnected before the gateway noticed the loss.

        Args:
            emit: Sends a message and its number to the host.
            hang_up: Closes the stream.
            after: The number of the last message that the host has received; None for the last message sent to it.
        """
        if self._hang_up is not None:
            self._hang_up()
        self._emit, self._hang_up = emit, hang_up
        seen = self._delivered if after is None else after
        for number, message in list(self._outbox):
            if number > seen:
                self._deliver(number, message)

    def close_stream(self, emit: EmitNumbered) -> None:
        """Record that the stream that uses `emit` has ended. Messages are stored until the next stream opens.

        If another stream has already replaced this one, nothing changes.
        """
        if self._emit == emit:
            self._emit = self._hang_up = None

    def notify(self, message: dict[str, Any]) -> None:
        """Send a notification, or store it until the caller opens a stream, unless an equal one is already stored."""
        if self._emit is None and any(n > self._delivered and waiting == message for n, waiting in self._outbox):
            return
        number = next(self._numbers)
        self._outbox.append((number, message))
        self._deliver(number, message)

    def announce(self, kinds: Iterable[ListKind]) -> None:
        """Notify the caller of each kind of list that has changed."""
        for kind in kinds:
            self.notify({"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"})

    def _send_now(self, message: dict[str, Any]) -> None:
        if self._emit is None:
            raise RpcError(INTERNAL_ERROR, "the host has no open stream on which it could receive a request")
        self._emit(message, next(self._numbers))

    def emit_beside(self, message: dict[str, Any]) -> None:
        """Send a message that belongs to a request, on the session's own stream.

        Used if the caller does not accept an event stream as the response to its request. If the session's stream is
        not open, a notification is dropped.

        Raises:
            RpcError: The message is a request to the caller, and the session's stream is not open.
        """
        if self._emit is not None or "id" in message:
            self._send_now(message)

    def _deliver(self, number: int, message: dict[str, Any]) -> None:
        if self._emit is not None:
            self._emit(message, number)
            self._delivered = max(self._delivered, number)

    # Requests to the caller

    async def send_request(self, emit: Emit, method: str, params: dict[str, Any]) -> Any:
        """Send a request to the caller and return the result.

        Args:
            emit: Sends a message to the caller.

        Raises:
            RpcError: The caller returned an error, or too many requests to the caller are open.
        """
        if len(self._requests) >= _MAX_REQUESTS:
            raise RpcError(INTERNAL_ERROR, "too many requests to the host are open")
        number = next(self._ids)
        request = self._requests[number] = _ClientRequest()
        try:
            emit({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            await request.answered.wait()
        except BaseException:
            if not request.answered.is_set():
                withdrawn = {"requestId": number, "reason": "the answer is no longer needed"}
                emit({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": withdrawn})
            raise
        finally:
            del self._requests[number]
        return request.result()

    def handle_response(self, message: dict[str, Any]) -> bool:
        """Handle a response from the caller. Return false and ignore it if no request is waiting for it."""
        number = number_of(message.get("id"))
        request = self._requests.get(number) if number is not None else None
        if request is None or request.answered.is_set():
            return False
        request.message = message
        request.answered.set()
        return True

    # Cancellation and end

    def cancel(self, request_id: object) -> None:
        """Cancel a request of this session, if it is still running."""
        running = find_by_id(self.running, request_id)
        if running is not None:
            running.cancel()

    def end(self) -> None:
        """End the session, its requests, streams and subscriptions; later calls have no effect."""
        if self._ended:
            return
        self._ended = True
        for running in list(self.running.values()):
            running.cancel()
        self.answers.close()
        for unsubscribe in list(self.subscribed.values()):
            unsubscribe()
        for callback in self.on_end:
            callback()
        if self._hang_up is not None:
            self._hang_up()


class _ClientRequest:
    """A request to the caller that waits for its response."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.message: dict[str, Any] = {}

    def result(self) -> Any:
        error = self.message.get("error")
        if error is None:
            return self.message.get("result")
        code, text = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, None)
        raise RpcError(
            code if type(code) is int else INTERNAL_ERROR,
            text if isinstance(text, str) else "the host returned an error without a message",
            error.get("data") if isinstance(error, dict) else None,
        )


class SessionTable:
    """All sessions. If a caller at its limit opens another session, the caller's longest idle session ends."""

    def __init__(
        self,
        announcer: ChangeAnnouncer,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_sessions: int = MAX_SESSIONS,
        sweep_s: float = _SWEEP_S,
    ) -> None:
        self._announcer = announcer
        self._max_sessions, self._sweep_s = max_sessions, sweep_s
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        # The sessions of each account, least recently used first.
        self._owned: dict[str, OrderedDict[str, Session]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session: Session) -> None:
        """Add a new session and subscribe it to list changes.

        Raises:
            QuotaExceeded: A limit is reached, and every session that could make room is in use.
        """
        account = session.account
        owned: Mapping[str, Session] = self._owned.get(account.name, {})
        if len(owned) >= account.limits.sessions:
            self._end_idle(
                owned,
                f"{account.name} has {len(owned)} sessions in use, the most that {account.share} allows. End some.",
            )
        elif len(self._sessions) >= self._max_sessions:
            # End a session of the caller with the most sessions, so that a few callers cannot lock out the others.
            most = max(self._owned.values(), key=len)
            self._end_idle(most if len(most) > len(owned) else owned, "too many sessions are in use", own=False)
        session.on_end.append(self._announcer.subscribe(session.announce, session.profile, lambda: session.principal))
        session.used_s = self._clock()
        self._sessions[session.id] = session
        self._owned.setdefault(account.name, OrderedDict())[session.id] = session
        account.open_session()

    def get(self, session_id: str, principal: Principal, profile: str = DEFAULT_PROFILE) -> Session | None:
        """Return the session if it exists and belongs to this caller and profile; otherwise None."""
        session = self._sessions.get(session_id)
        if session is None or session.profile != profile:
            return None
        if session.principal is not principal:
            if session.principal.identity != principal.identity:
                return None
            # The caller has a new token: notify the caller of lists that its new permissions have changed.
            changed = session.principal != principal
            session.principal = principal
            if changed:
                self._announcer.notice_change()
        now_s = self._clock()
        if now_s - session.used_s > IDLE_S and not session.in_use:
            self.close(session)
            return None
        self._mark_used(session, now_s)
        return session

    async def sweep_periodically(self) -> None:
        """End idle sessions periodically until cancelled."""
        while True:
            await anyio.sleep(self._sweep_s)
            self.sweep()

    def sweep(self) -> None:
        """End the sessions that have been idle for too long; a session that is in use is not idle."""
        now_s = self._clock()
        for session in list(self._sessions.values()):
            if session.in_use:
                self._mark_used(session, now_s)
            elif now_s - session.used_s > IDLE_S:
                self.close(session)

    def close(self, session: Session) -> None:
        """Remove a session and end it."""
        if self._sessions.pop(session.id, None) is not None:
            name = session.account.name
            owned = self._owned[name]
            del owned[session.id]
            session.account.close_session()
            if not owned:
                del self._owned[name]
        session.end()

    def close_unless(self, is_known: Callable[[Principal], bool]) -> None:
        """End the sessions of callers for which `is_known` returns false."""
        for session in list(self._sessions.values()):
            if not is_known(session.principal):
                self.close(session)

    def _mark_used(self, session: Session, now_s: float) -> None:
        session.used_s = now_s
        self._owned[session.account.name].move_to_end(session.id)

    def _end_idle(self, owned: Mapping[str, Session], words: str, *, own: bool = True) -> None:
        for session in owned.values():
            if not session.in_use:
                self.close(session)
                return
        raise QuotaExceeded(f"No session was opened: {words}", own=own)


log = logging.getLogger(__name__)

# The delay before a notification, so that upstreams that connect within this time cause only one. Users do not notice
# a delay of this length.
_COALESCE_S: Final = 0.03
# The rate limit of notifications. After each of them, a host lists again, which may change the prompt of its model.
# The burst allows the restart of many servers; lists that keep changing are announced once per second.
_BURST: Final = 20
_INTERVAL_S: Final = 1.0

Listener = Callable[[list[ListKind]], None]


def _operator() -> None:
    """Return None, which stands for an operator; operators see everything."""


@dataclass(slots=True)
class _Subscriber:
    """A listener, and the last compared states of the lists that it is notified about."""

    profile: str
    principal: Callable[[], Principal | None]
    listener: Listener
    lists: Mapping[ListKind, object]


class ChangeAnnouncer(Reconfigurable):
    """Notifies each subscriber of changes to the lists that the subscriber sees, once per burst of changes."""

    def __init__(self, registry: Registry, views: ProfileViews) -> None:
        self._views = views
        self._changed = anyio.Event()
        self._subscribers: dict[int, _Subscriber] = {}
        self._next = 0
        self._limiter = ReactionLimiter(burst=_BURST, interval_s=_INTERVAL_S)
        self._unsubscribe = registry.subscribe(lambda change: self.notice_change(), always=True)
        registry.subscribe_own(self.notice_change)

    def subscribe(
        self, listener: Listener, profile: str = DEFAULT_PROFILE, principal: Callable[[], Principal | None] = _operator
    ) -> Callable[[], None]:
        """Call `listener`, which must not block, whenever the lists that this caller sees change.

        Args:
            listener: Called with the kinds of the lists that have changed.
            principal: Returns the caller with its current permissions, which may change with its next token; None for
                an operator, who sees everything.

        Returns:
            A function that ends the subscription.
        """
        self._next += 1
        key = self._next
        self._subscribers[key] = _Subscriber(profile, principal, listener, _states(self._views, profile, principal()))

        def end() -> None:
            self._subscribers.pop(key, None)

        return end

    async def validate(self, change: ConfigChange) -> Apply:
        return self.notice_change

    def notice_change(self) -> None:
        """Schedule a comparison of all lists with their last states."""
        self._changed.set()

    async def run(self) -> None:
        """Notify subscribers of changes until cancelled."""
        try:
            while True:
                await self._changed.wait()
                await anyio.sleep(max(_COALESCE_S, self._limiter.pause_s(anyio.current_time())))
                self._changed = anyio.Event()
                has_notified = False
                states: dict[tuple[str, Grant, str], Mapping[ListKind, object]] = {}
                for subscriber in list(self._subscribers.values()):
                    profile, principal = subscriber.profile, subscriber.principal()
                    key = (profile, self._views.grant(principal), self._views.owner(principal))
                    if key not in states:
                        if profile in self._views.profiles:
                            # Build a large view in a thread, so that `_states` below does not block.
                            await self._views.prepared(profile, principal)
                        states[key] = _states(self._views, profile, principal)
                    has_notified = self._notify(subscriber, states[key]) or has_notified
                if has_notified:
                    self._limiter.spend(anyio.current_time())
        finally:
            self._unsubscribe()

    def _notify(self, subscriber: _Subscriber, now: Mapping[ListKind, object]) -> bool:
        before, subscriber.lists = subscriber.lists, now
        kinds: list[ListKind] = sorted(kind for kind in now if before.get(kind) != now[kind])
        if kinds:
            try:
                subscriber.listener(kinds)
            except Exception:  # boundary: one listener must not affect the others
                log.exception("change listener failed")
        return bool(kinds)


def _states(views: ProfileViews, profile: str, principal: Principal | None) -> Mapping[ListKind, object]:
    """Return, for each list, a value that changes whenever the list changes; empty if the profile was removed."""
    if profile not in views.profiles:
        return {}
    view = views.view(profile, principal)
    digests = view.catalog.prompts_and_resources.digests
    return {
        "tools": view.digest,
        "prompts": (digests.get("prompts"), view.grant.opens("prompts")),
        # Changed skills are announced as changed resources: MCP has no notification for skills, and skill files are
        # resources.
        "resources": (digests.get("resources"), digests.get("resourceTemplates"), digests.get("skills")),
    }
