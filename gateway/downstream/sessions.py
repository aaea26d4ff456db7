"""Sessions of the handshake era, bounded in number and in idle time.

Source: MCP 2025-11-25, "Transports", "Session Management" and "Resumability and Redelivery".
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import anyio

from gateway import wire
from gateway.access.principal import Principal
from gateway.access.quotas import Account
from gateway.downstream.changes import ChangeAnnouncer
from gateway.downstream.found_tools import FoundTools
from gateway.downstream.http.resumption import RESUMABLE_SINCE, ResumableAnswers
from gateway.errors import INTERNAL_ERROR, INVALID_PARAMS, QuotaExceeded, RpcError
from gateway.jsonrpc import find_by_id, number_of
from gateway.upstream.request_callbacks import HostSession
from registry.catalog.catalog import ListKind
from registry.views.profile import DEFAULT_PROFILE

MAX_SESSIONS: Final = 10_000
"""All callers together: as many as connections that are served at once; an idle session takes about 4 KiB."""
IDLE_S: Final = 1800.0
"""Hosts seldom end their sessions; one that was away for longer initializes again."""
MAX_INTRODUCTION_BYTES: Final = 16 * 1024
"""Capabilities and name of a host, which are kept for as long as its session: ten times the most that hosts send."""
MAX_REPLAYED: Final = 256
"""Messages kept for a stream that comes back: changes of lists and logs, of which older ones are of no use."""
# Requests to a host that wait for a person: no host shows more.
_MAX_REQUESTS: Final = 256
# Against half an hour of idleness a minute more does not matter.
_SWEEP_S: Final = 60.0

Emit = Callable[[dict[str, Any]], None]
EmitNumbered = Callable[[dict[str, Any], int], None]


def random_session_id() -> str:
    """An id that nobody can guess."""
    return secrets.token_hex(16)


class Running(Protocol):
    """A request in flight, whatever transport carries it."""

    def cancel(self) -> None:
        """Stop it; its caller gets an answer that says so."""


class Session:
    """One handshake-era caller: what it negotiated, what it runs, and its stream of notifications.

    Attributes:
        id: Unguessable; where several processes serve, it says which of them has the session.
        version: The protocol version that was negotiated.
        resumable: Its caller knows how to come back for an answer.
        profile: The profile that it addresses.
        account: What its caller uses at present.
        used_s: When its caller last used it, by the clock of the table.
        found: Tools that its own searches have found, and by which search last. Its list has them in addition, in this
            order, as far as there is room.
        log_level: The last `logging/setLevel`; before the first one everything is sent.
        running: The requests in flight, by id.
        subscribed: By URI, what ends the subscription to each resource.
        answers: To its requests, where they have become streams that its caller can resume.
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
        """Open a session; it has to be ended.

        Args:
            principal: Who opens it.
            version: The protocol version that was negotiated.
            params: Those of `initialize`, of which capabilities and name are kept.
            account: What the caller uses at present.
            profile: The profile that it addresses.
            new_id: Makes its id; by default one that says nothing.

        Raises:
            RpcError: Capabilities and name are too large, or the caller may keep no more.
        """
        capabilities, client_info = params.get("capabilities"), params.get("clientInfo")
        introduction = wire.dumps([capabilities, client_info])
        if len(introduction) > MAX_INTRODUCTION_BYTES:
            raise RpcError(
                INVALID_PARAMS, f"capabilities and clientInfo may take {MAX_INTRODUCTION_BYTES} bytes together"
            )
        held_bytes = wire.parsed_bytes(introduction)
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
            ask=partial(self.ask, self._send_now),
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

    # the stream of messages that belong to no request

    @property
    def streaming(self) -> bool:
        """Whether its stream is open."""
        return self._emit is not None

    @property
    def in_use(self) -> bool:
        """Whether it streams or runs something."""
        return self.streaming or bool(self.running)

    def open_stream(self, emit: EmitNumbered, hang_up: Callable[[], None], after: int | None = None) -> None:
        """Send what was missed, then what comes: since the message of this number, or since the last stream.

        A stream that is still open ends: its host has come back before its loss was noticed.
        """
        if self._hang_up is not None:
            self._hang_up()
        self._emit, self._hang_up = emit, hang_up
        seen = self._delivered if after is None else after
        for number, message in list(self._outbox):
            if number > seen:
                self._deliver(number, message)

    def close_stream(self, emit: EmitNumbered) -> None:
        """Keep what comes for the next stream, unless that is open already."""
        if self._emit == emit:
            self._emit = self._hang_up = None

    def notify(self, message: dict[str, Any]) -> None:
        """Send a notification, now or when the caller opens its stream; the same one waits only once."""
        if self._emit is None and any(n > self._delivered and waiting == message for n, waiting in self._outbox):
            return
        number = next(self._numbers)
        self._outbox.append((number, message))
        self._deliver(number, message)

    def announce(self, kinds: Iterable[ListKind]) -> None:
        """Notify of changed lists."""
        for kind in kinds:
            self.notify({"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"})

    def _send_now(self, message: dict[str, Any]) -> None:
        if self._emit is None:
            raise RpcError(INTERNAL_ERROR, "the host has no stream open on which it could be asked")
        self._emit(message, next(self._numbers))

    def emit_beside(self, message: dict[str, Any]) -> None:
        """Send what belongs to a request whose caller accepts no stream as its answer.

        Without an open stream of the session a notification is dropped.

        Raises:
            RpcError: A question cannot be asked without that stream.
        """
        if self._emit is not None or "id" in message:
            self._send_now(message)

    def _deliver(self, number: int, message: dict[str, Any]) -> None:
        if self._emit is not None:
            self._emit(message, number)
            self._delivered = max(self._delivered, number)

    # requests to its user

    async def ask(self, emit: Emit, method: str, params: dict[str, Any]) -> Any:
        """Send a request to the caller beside one of its own, and return the result.

        Raises:
            RpcError: It refused, or is asked too much at once.
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

    def answered(self, message: dict[str, Any]) -> None:
        """Take a response of the caller; one that nobody waits for is ignored."""
        number = number_of(message.get("id"))
        request = self._requests.get(number) if number is not None else None
        if request is not None:
            request.message = message
            request.answered.set()

    # cancellation and end

    def cancel(self, request_id: object) -> None:
        """Cancel one of its requests, if it is still running."""
        running = find_by_id(self.running, request_id)
        if running is not None:
            running.cancel()

    def end(self) -> None:
        """Cancel and end everything that belongs to it; only the first time has an effect."""
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
    """One request to a caller, waiting for its response."""

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
            text if isinstance(text, str) else "the host gave no reason",
            error.get("data") if isinstance(error, dict) else None,
        )


class SessionTable:
    """All sessions. Where a caller has as many as it may, its own that was idle longest makes room for a new one."""

    def __init__(self, announcer: ChangeAnnouncer, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._announcer = announcer
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        # By principal; the one that was used least recently stands first.
        self._owned: dict[str, OrderedDict[str, Session]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def put(self, session: Session) -> None:
        """Keep a new session, and notify it of changes.

        Raises:
            QuotaExceeded: There is no room, and none of the caller's own sessions is idle.
        """
        account = session.account
        owned: Mapping[str, Session] = self._owned.get(account.name, {})
        if len(owned) >= account.limits.sessions:
            self._end_idle(owned, f"{account.name} has {len(owned)} sessions in use, which is its quota. End some.")
        elif len(self._sessions) >= MAX_SESSIONS:
            # Whoever has most gives way, so that many callers together keep nobody out.
            most = max(self._owned.values(), key=len)
            self._end_idle(most if len(most) > len(owned) else owned, "too many sessions are in use", own=False)
        session.on_end.append(self._announcer.subscribe(session.announce, session.profile, lambda: session.principal))
        session.used_s = self._clock()
        self._sessions[session.id] = session
        self._owned.setdefault(account.name, OrderedDict())[session.id] = session
        account.sessions += 1

    def get(self, session_id: str, principal: Principal, profile: str = DEFAULT_PROFILE) -> Session | None:
        """The session, if it is this caller's and of this profile; for anyone else it does not exist."""
        session = self._sessions.get(session_id)
        if session is None or session.profile != profile:
            return None
        if session.principal is not principal:
            if session.principal.identity != principal.identity:
                return None
            # The next token of the same caller: what it is told of follows this one, and it is told what that changes.
            changed = session.principal != principal
            session.principal = principal
            if changed:
                self._announcer.notice_change()
        now_s = self._clock()
        if now_s - session.used_s > IDLE_S and not session.in_use:
            self.close(session)
            return None
        self._use(session, now_s)
        return session

    async def keep_swept(self) -> None:
        """End idle sessions also while nobody calls; one that streams or runs something is not idle."""
        while True:
            await anyio.sleep(_SWEEP_S)
            self.sweep()

    def sweep(self) -> None:
        """End what has been idle for too long."""
        now_s = self._clock()
        for session in list(self._sessions.values()):
            if session.in_use:
                self._use(session, now_s)
            elif now_s - session.used_s > IDLE_S:
                self.close(session)

    def close(self, session: Session) -> None:
        """End a session; its id is unknown from now on."""
        if self._sessions.pop(session.id, None) is not None:
            name = session.account.name
            owned = self._owned[name]
            del owned[session.id]
            session.account.sessions -= 1
            if not owned:
                del self._owned[name]
        session.end()

    def close_unless(self, is_known: Callable[[Principal], bool]) -> None:
        """End the sessions of callers who are not known any more."""
        for session in list(self._sessions.values()):
            if not is_known(session.principal):
                self.close(session)

    def _use(self, session: Session, now_s: float) -> None:
        session.used_s = now_s
        self._owned[session.account.name].move_to_end(session.id)

    def _end_idle(self, owned: Mapping[str, Session], words: str, *, own: bool = True) -> None:
        for session in owned.values():
            if not session.in_use:
                self.close(session)
                return
        raise QuotaExceeded(f"No session was opened: {words}", own=own)
