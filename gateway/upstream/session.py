"""The interfaces that every type of upstream implements: sessions, and connectors that open sessions.

This module also defines the calls, deadlines, listings and callbacks that these interfaces pass. A "host" is an MCP
client that is connected to the gateway.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from importlib import import_module
from threading import get_ident
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, Protocol, Self

import anyio
from msgspec import Struct, field

from gateway.config.server import ServerConfig
from gateway.http.http_client import HttpClient
from gateway.process.secrets import SECRETS
from gateway.upstream.transport.process_start import ProcessStart
from gateway.upstream.upstream_credentials import Credentials
from registry.catalog.catalog import ListKind
from registry.catalog.listing import CacheScope
from registry.intake.issues import ItemIssue
from registry.intake.item_intake import ItemKind

WatchedKind = Literal["resourceSubscriptions", "taskIds"]
"""The member names of `subscriptions/listen`. Source: MCP 2026-07-28, "Subscriptions"."""


class WatchList:
    """The resource URIs and task ids of one upstream that callers watch; kept when the upstream reconnects."""

    def __init__(self) -> None:
        self.keys: dict[WatchedKind, set[str]] = {"resourceSubscriptions": set(), "taskIds": set()}
        self.changed = anyio.Event()
        self.version = 0
        self._applied_version = 0
        self._applied = anyio.Event()

    def add(self, kind: WatchedKind, key: str) -> None:
        """Start watching a URI or task id."""
        self.keys[kind].add(key)
        self._change()

    def remove(self, kind: WatchedKind, key: str) -> None:
        """Stop watching a URI or task id."""
        self.keys[kind].discard(key)
        self._change()

    def note_applied(self, version: int) -> None:
        """Note that the upstream has received this version of the list."""
        # A slower connection may report an older version after a newer version was reported.
        self._applied_version = max(self._applied_version, version)
        self._applied.set()
        self._applied = anyio.Event()

    async def wait_applied(self) -> None:
        """Wait until the upstream has received the current version of the list."""
        version = self.version
        while self._applied_version < version:
            await self._applied.wait()

    def __bool__(self) -> bool:
        return any(self.keys.values())

    def _change(self) -> None:
        self.version += 1
        # Replace the event, so that every waiter sees this change and can wait for the next change.
        self.changed.set()
        self.changed = anyio.Event()


class KnownRoots:
    """The roots (folders that a server may use) that a host has reported.

    Attributes:
        uris: The URIs of the roots; None if they are not known.
        version: The number of changes that the host has announced.
    """

    def __init__(self) -> None:
        self.uris: tuple[str, ...] | None = None
        self.version = 0

    def remember(self, uris: tuple[str, ...], version: int) -> None:
        """Store the host's answer, unless the host has announced a change since the request was sent.

        Args:
            version: The value of `version` when the request was sent.
        """
        if version == self.version:
            self.uris = uris

    def forget(self) -> None:
        """Discard the URIs, because the host has announced a change."""
        self.uris, self.version = None, self.version + 1


OnParams = Callable[[dict[str, Any]], None]
Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Sends a request (method, params) to the caller and returns the result; raises `RpcError` if the caller refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSession:
    """The downstream session for which a separate upstream connection is opened.

    Attributes:
        version: The protocol version negotiated with the host.
        capabilities: The capabilities that the host declared.
        client_info: The name and version of the host, as sent.
        ask: Sends a request to the host outside of any call.
        notify: Sends the host a notification.
        roots: The roots of the host.
    """

    version: str
    capabilities: dict[str, Any]
    client_info: dict[str, Any]
    ask: Ask
    notify: OnParams
    roots: KnownRoots = dataclass_field(default_factory=KnownRoots)


_OUTSIDE_TASK: Final = "a deadline must be entered inside the task that it bounds"


class _Alarm:
    """The single timer of an event loop, set to the earliest deadline. A timer for each call would be slower."""

    __slots__ = ("_timer", "due_s", "loop", "set_to_s", "thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = get_ident()
        # Removing a deadline does not reset the timer; `_ring` skips removed deadlines.
        self.due_s: dict[Deadline, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.set_to_s = math.inf

    def set(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.set_to_s = self.loop.call_at(at_s, self._ring), at_s

    def _ring(self) -> None:
        self._timer, self.set_to_s = None, math.inf
        now_s = self.loop.time()
        over = [deadline for deadline, due_s in self.due_s.items() if due_s <= now_s]
        for deadline in over:
            del self.due_s[deadline]
            deadline.expire()
        if self.due_s:
            self.set(min(self.due_s.values()))


# The timer of the event loop that was used last. A serving process has only one event loop.
_alarm: _Alarm | None = None


class Deadline(Struct, eq=False):
    """A context manager that cancels its task when the time is up, and then raises `TimeoutError` on exit.

    It is equivalent to `anyio.fail_after`, but ten times faster. The speed matters because every call uses a deadline.

    Args:
        seconds: The time until the deadline. It starts at the entry, and restarts at each `extend`.

    Raises:
        TimeoutError: On exit, if the time was up and nothing else had cancelled the task.
    """

    _seconds: float
    _alarm: _Alarm | None = None
    _task: asyncio.Task[object] | None = None
    _cancelling: int = 0
    _held: int = 0
    _expired: bool = False

    def __enter__(self) -> Self:
        global _alarm
        # Read the global once, because another thread may replace it. Compare threads instead of calling
        # `get_running_loop`, which makes a system call in Python 3.11.
        alarm = _alarm
        if alarm is None or alarm.thread != get_ident() or (task := asyncio.current_task(alarm.loop)) is None:
            alarm = _alarm = _Alarm(asyncio.get_running_loop())
            task = asyncio.current_task(alarm.loop)
            assert task is not None, _OUTSIDE_TASK
        self._alarm, self._task = alarm, task
        # Count cancellations that are already pending, to distinguish them on exit from the cancellation by `expire`.
        if cancelling := task.cancelling():
            self._cancelling = cancelling
        if not self._held:
            self._start(alarm)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        task, alarm, self._task = self._task, self._alarm, None
        if alarm is not None:
            alarm.due_s.pop(self, None)
        if not self._expired or task is None:
            return
        # As in `asyncio.timeout`: if something else has cancelled the task as well, propagate the cancellation.
        if task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    def extend(self) -> None:
        """Restart the clock, because the upstream has reported progress."""
        # The clock is not running before the entry, after `expire`, or while `hold` stops it.
        if self._task is not None and self._alarm is not None and not self._expired and not self._held:
            self._start(self._alarm)

    def hold(self) -> None:
        """Stop the clock until `release` has been called as often as `hold`, for example while a user gives input."""
        self._held += 1
        if self._alarm is not None:
            self._alarm.due_s.pop(self, None)

    def release(self) -> None:
        """Undo one call of `hold`. If all calls are undone, restart the clock from the beginning."""
        self._held = max(0, self._held - 1)
        self.extend()

    def expire(self) -> None:
        """Cancel the task, because the time is up."""
        self._expired = True
        if self._task is not None:
            self._task.cancel()

    def _start(self, alarm: _Alarm) -> None:
        due_s = alarm.due_s[self] = alarm.loop.time() + self._seconds
        if due_s < alarm.set_to_s:
            alarm.set(due_s)


class RequestCallbacks(Struct, eq=False):
    """The callbacks of one request for the messages that arrive before the result.

    A "question" is a request that the upstream sends to the caller during the call, such as an elicitation.

    Attributes:
        owner: Identifies the caller. If a transport does not say which request a message belongs to, the message is
            forwarded only if all requests in flight have the same owner.
        on_progress: Receives the params of progress notifications; None if the caller does not want them.
        on_log: Receives the params of log messages; None if the caller does not want them.
        ask: Sends a request to the caller; None if the caller cannot answer requests.
        on_pause: Called when the upstream closes the response stream early; takes the number of milliseconds until the
            gateway reopens the stream.
        deadline: Cancels the request after a time limit that progress restarts; None before the request is sent.
        refused: The methods of upstream requests that were refused while this request was in flight.
        open_questions: The cancel scopes of the questions that the caller has not answered yet.
        ended: Whether the request is over, so that the caller gets no more questions for this request.
    """

    owner: object = None
    on_progress: OnParams | None = None
    on_log: OnParams | None = None
    on_pause: Callable[[int], None] | None = None
    ask: Ask | None = None
    refused: list[str] = field(default_factory=list)
    open_questions: list[anyio.CancelScope] = field(default_factory=list)
    ended: bool = False
    deadline: Deadline | None = None

    def start_deadline(self, limit_s: float) -> Deadline:
        """Create the deadline for the next attempt; progress and questions extend the deadline."""
        deadline = self.deadline = Deadline(limit_s)
        return deadline

    def handle_progress(self, params: dict[str, Any]) -> None:
        """Forward a progress notification and restart the deadline."""
        if self.deadline is not None:
            self.deadline.extend()
        if self.on_progress is not None:
            # Most notifications contain only numbers, which need no scrubbing.
            self.on_progress(SECRETS.scrub_value(params) if "message" in params else params)

    def hold(self) -> None:
        """Pause the deadline while the gateway waits for something other than the upstream."""
        if self.deadline is not None:
            self.deadline.hold()

    def release(self) -> None:
        """Restart the deadline with its full time limit once `release` has been called as often as `hold`."""
        if self.deadline is not None:
            self.deadline.release()

    def end(self) -> None:
        """Cancel the questions that are still open for this request."""
        self.ended = True
        if self.open_questions:
            # Iterate over a copy, because a cancelled question removes itself from the list.
            for scope in list(self.open_questions):
                scope.cancel()


ALL_KINDS: Final[frozenset[ListKind]] = frozenset(("tools", "prompts", "resources"))

NO_HEADER_MAP: Final[Mapping[tuple[str, ...], str]] = MappingProxyType({})
"""The `header_map` of a call whose tool does not mirror arguments in headers; one object for all such calls."""

OnListChanged = Callable[[Collection[ListKind]], None]
"""Called with the kinds of lists that have changed."""
OnUpdate = Callable[[WatchedKind, str, dict[str, Any]], None]
"""Called when a watched resource or task has changed; takes the kind, the URI or task id, and the params."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPorts:
    """Callbacks for messages that an upstream sends unprompted; they are synchronous and must return quickly.

    Attributes:
        on_start: Called with the new `ProcessStart` before a process is started or put into the queue.
    """

    on_list_changed: OnListChanged
    on_update: OnUpdate
    on_start: Callable[[ProcessStart], None] = lambda start: None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawListing:
    """All pages of an upstream's lists, unchecked.

    Attributes:
        tools: The tools; None if tools were not requested or could not be listed. Tools from a long page are
            `json_bytes.UnparsedJson`.
        refused: Items that the connector could not turn into tools, with the reason.
        noted: Remarks for operators on items that the connector turned into tools.
        instructions: The instructions of the upstream, for models.
        confirmed: Whether the upstream answered; if not, the previous listing stays in use.
        failed: The kinds of lists that were requested but could not be fetched.
        warnings: Texts for operators about lists that are missing or incomplete.
    """

    tools: list[Any] | None
    prompts_and_resources: Mapping[ItemKind, list[Any]]
    capabilities: Mapping[str, Any]
    ttl_ms: int | None
    scope: CacheScope
    refused: tuple[ItemIssue, ...] = ()
    noted: tuple[ItemIssue, ...] = ()
    confirmed: bool = True
    failed: frozenset[ListKind] = frozenset()
    warnings: tuple[str, ...] = ()
    instructions: str | None = None


def unchanged_listing(capabilities: Mapping[str, Any]) -> RawListing:
    """Return a listing that leaves the previous listing in use."""
    return RawListing(
        tools=None,
        prompts_and_resources={},
        capabilities=capabilities,
        ttl_ms=None,
        scope="private",
        confirmed=False,
    )


class UpstreamCall(Struct, frozen=True, kw_only=True, eq=False):
    """One request of a caller, in the form in which the upstream receives it.

    Attributes:
        method: Any method except the methods for discovery and subscription.
        params: The whole `params` object, with the upstream's own names for tools, prompts and resources.
        repeatable: Whether the request may safely run twice.
        header_map: Maps paths of argument properties to the names of the headers that mirror them (`x-mcp-header`).
        capabilities: The capabilities of the caller, for upstreams that speak 2026-07-28.
        log_level: The minimum level of log messages that the caller wants; None for no messages.
        trace: HTTP headers of the caller's trace context.
        principal: The name of the caller, for the limit of calls per caller; empty if callers are not distinguished.
        confirm: Awaited if the upstream has reconnected since the request was checked against the listing, before the
            request is sent; raises an error if the request must not be sent.
    """

    method: str
    params: dict[str, Any]
    repeatable: bool = False
    header_map: Mapping[tuple[str, ...], str] = NO_HEADER_MAP
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    log_level: str | None = None
    trace: Mapping[str, str] = field(default_factory=dict)
    callbacks: RequestCallbacks = field(default_factory=RequestCallbacks)
    principal: str = ""
    confirm: Callable[[], Awaitable[None]] | None = None


class UpstreamSession(Protocol):
    """An open session with an upstream. One task opens and watches the session; any task may send calls.

    Attributes:
        protocol_version: The protocol version shown to administrators.
        server_info: The name and version of the upstream.
        instructions: The instructions of the upstream, for models.
        independent_requests: Whether requests fail independently, as over HTTP. The gateway then notices that the
            upstream is gone only when a request fails.
        announces_changes: Whether the upstream currently announces changes to its tools; if so, the gateway need not
            poll.
        calls_need_listing: Whether tools must be listed in this session before calls can be sent.
    """

    # Read-only properties, so that an implementation may compute the values.
    @property
    def protocol_version(self) -> str: ...
    @property
    def capabilities(self) -> Mapping[str, Any]: ...
    @property
    def server_info(self) -> Mapping[str, Any]: ...
    @property
    def instructions(self) -> str | None: ...
    @property
    def independent_requests(self) -> bool: ...
    @property
    def announces_changes(self) -> bool: ...
    @property
    def calls_need_listing(self) -> bool: ...

    async def fetch_listing(
        self, kinds: Collection[ListKind] = ALL_KINDS, *, limit_s: float, polled: bool = False
    ) -> RawListing:
        """Fetch all pages of these lists, up to the limits of the implementation.

        The result omits lists of prompts and resources whose requests fail or would delay the list of tools.

        Args:
            kinds: The lists to request.
            limit_s: The time limit for all pages of one list, in seconds.
            polled: Whether this is a periodic check, not a reaction to an announced change.

        Raises:
            ListLost: The connection ended while prompts or resources were listed.
            GatewayError: The listing failed.
        """

    async def send(self, call: UpstreamCall) -> Any:
        """Send a caller's request and return the raw result.

        Raises:
            RpcError: The upstream answered with an error.
            ConnectionLost: The connection failed.
            SessionForgotten: The upstream no longer knows the session; the request did not run.
            TooManyCalls: Too many requests are queued; nothing was sent.
            HttpStatusError: The upstream answered with an HTTP error.
        """

    async def notify(self, method: str) -> None:
        """Forward a notification from the host that owns this session.

        Raises:
            GatewayError, TimeoutError: The notification could not be sent.
        """

    async def watch(self, watch_list: WatchList | None) -> None:
        """Report changes of lists and of watched resources and tasks until the session ends."""

    async def wait_closed(self) -> str:
        """Wait until the session has ended, and return the reason."""

    def abandon(self) -> None:
        """Close without notifying the upstream, because it is unreachable or calls in flight still need the session."""


class Connector(Protocol):
    """Opens sessions with one upstream; may remember facts between sessions, such as the transport that works."""

    def open(self, ports: SessionPorts) -> AbstractAsyncContextManager[UpstreamSession]:
        """Connect within `connectTimeout`; leaving the context ends the session.

        Raises:
            GatewayError: The connection failed; the message gives the reason.
        """


def connector_of(
    server: str,
    config: ServerConfig,
    client: HttpClient,
    *,
    host: HostSession | None = None,
    credentials: Credentials | None = None,
) -> Connector:
    """Return a connector that supports this type of upstream.

    Args:
        host: The downstream session to which the connection belongs; None if callers share the connection.
        credentials: Credentials that may change during a connection, such as OAuth tokens.
    """
    # Imported lazily, so that `typegate stdio` starts faster: few configurations use every type of upstream.
    module, _, name = config.connector.partition(":")
    connector: Callable[..., Connector] = getattr(import_module(module), name)
    client = client.with_proxy(config.proxy_choice)
    return connector(server, config, client, host=host, credentials=credentials)
