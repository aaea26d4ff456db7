"""The interfaces that every type of upstream implements: sessions, and connectors that open them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

import anyio
from msgspec import Struct, field

from gateway.config.server import ServerConfig
from gateway.http.http_client import HttpClient
from gateway.process.secrets import SECRETS
from gateway.process.tasks import Deadline
from gateway.upstream.transport.process_start import ProcessStart
from gateway.upstream.upstream_credentials import Credentials
from registry.catalog.catalog import ListKind
from registry.catalog.listing import CacheScope
from registry.intake.issues import ItemIssue
from registry.intake.item_intake import ItemKind

WatchedKind = Literal["resourceSubscriptions", "taskIds"]
"""The member names of `subscriptions/listen`. Source: MCP 2026-07-28, "Subscriptions"."""


class WatchList:
    """The resource URIs and task ids that callers watch; outlives the connections of the upstream."""

    def __init__(self) -> None:
        self.keys: dict[WatchedKind, set[str]] = {"resourceSubscriptions": set(), "taskIds": set()}
        self.changed = anyio.Event()
        self.version = 0
        self._applied_version = 0
        self._applied = anyio.Event()

    def add(self, kind: WatchedKind, key: str) -> None:
        """Watch another URI or id."""
        self.keys[kind].add(key)
        self._change()

    def remove(self, kind: WatchedKind, key: str) -> None:
        """Stop watching a URI or id."""
        self.keys[kind].discard(key)
        self._change()

    def note_applied(self, version: int) -> None:
        """Note that the upstream has received this version of the list."""
        # A slower connection may report an older version after a newer one.
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
        # Replace the event, so that every waiter sees this change and can wait for the next one.
        self.changed.set()
        self.changed = anyio.Event()


class KnownRoots:
    """The roots that a host has reported.

    Attributes:
        uris: The URIs; None if they are not known.
        version: The number of times that the host has announced a change.
    """

    def __init__(self) -> None:
        self.uris: tuple[str, ...] | None = None
        self.version = 0

    def remember(self, uris: tuple[str, ...], version: int) -> None:
        """Note the answer to a request that was sent at this version."""
        if version == self.version:
            self.uris = uris

    def forget(self) -> None:
        """Ask again before the next use, because the host has announced a change."""
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
        ask: Sends the host a request that does not belong to any request of the host.
        notify: Sends the host a notification.
        roots: The roots of the host.
    """

    version: str
    capabilities: dict[str, Any]
    client_info: dict[str, Any]
    ask: Ask
    notify: OnParams
    roots: KnownRoots = dataclass_field(default_factory=KnownRoots)


class RequestCallbacks(Struct, eq=False):
    """The callbacks of one request for messages that precede its result.

    Attributes:
        owner: Identifies the caller. If a transport does not say which request a message belongs to, the message is
            forwarded only if all requests in flight have the same owner.
        on_progress: Receives the params of progress notifications; None if the caller does not want them.
        on_log: Receives the params of log messages; None if the caller does not want them.
        ask: Sends a request to the caller; None if the caller cannot answer requests.
        on_pause: Called with the milliseconds after which the upstream wants to be polled for the result.
        deadline: Cancels the request if no message arrives for too long; None before the request is sent.
        refused: The methods of upstream requests that were refused while this request was in flight.
        open_questions: The cancel scopes of the questions that are waiting for the caller.
        ended: Whether the request is over, so that the caller must not be asked anything else for it.
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
        """Start and return the deadline of the next attempt, which progress and questions extend."""
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
        """Resume the deadline."""
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
"""Shared by the many tools that do not mirror arguments in headers."""

OnListChanged = Callable[[Collection[ListKind]], None]
"""Called with the kinds of lists that have changed."""
OnUpdate = Callable[[WatchedKind, str, dict[str, Any]], None]
"""Called when a watched resource or task has changed: kind, URI or id, params of the notification."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPorts:
    """Callbacks for messages that an upstream sends unprompted; they are synchronous and must return quickly.

    Attributes:
        on_start: Called with the start of a process when it is queued.
    """

    on_list_changed: OnListChanged
    on_update: OnUpdate
    on_start: Callable[[ProcessStart], None] = lambda start: None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawListing:
    """All pages of the lists of an upstream, unchecked.

    Attributes:
        tools: None if tools were not requested; items of a long page are `json_bytes.UnparsedJson`.
        refused: Items that could not become tools, with the reason.
        noted: Remarks for operators on items that became tools.
        instructions: The instructions of the upstream, for models.
        confirmed: Whether the upstream answered; if not, the previous listing stays in use.
        failed: The kinds whose list was requested but could not be read.
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
    """Return a listing that changes nothing."""
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
        method: Any method except those for discovery and subscription.
        params: The whole `params` object, with the names that the upstream uses.
        repeatable: Whether the request may safely run twice.
        header_map: Maps property paths to the `x-mcp-header` tokens that mirror them.
        capabilities: The capabilities of the caller, for upstreams that speak 2026-07-28.
        log_level: The minimum level of log messages that the caller wants; None for no messages.
        trace: HTTP headers of the caller's trace context.
        principal: The name of the caller, for fair queueing; empty if callers are not distinguished.
        confirm: Awaited before the request is sent over a newer connection than the one it was checked against; raises
            if the request must not be sent.
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
    """An open session with an upstream. Its owner task opens and watches the session; any task may send calls.

    Attributes:
        protocol_version: The protocol version shown to administrators.
        server_info: The name and version of the upstream.
        instructions: The instructions of the upstream, for models.
        independent_requests: Whether requests fail independently, as over HTTP. The loss of such an upstream only shows
            when a request fails.
        announces_changes: Whether the upstream currently announces changes of its tools, so that polling is not needed.
        calls_need_listing: Whether tools must be listed in this session before calls can be sent.
    """

    # Read-only, so that an implementation may derive them.
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
        """Return every page of these lists, within bounds.

        Lists of prompts and resources that fail, or that would delay the list of tools, are left out.

        Args:
            kinds: The lists to request.
            limit_s: The time for all pages of one list, in seconds.
            polled: Whether this is a periodic check without a known change.

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
        """Forward a notification of the host to which this session belongs.

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
    """Opens sessions with one upstream, and keeps what it has learned about the upstream between sessions."""

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
    """Return the connector for the type of an upstream.

    Args:
        host: The downstream session to which the connection belongs; None if callers share the connection.
        credentials: Credentials that may change during a connection, such as OAuth tokens.
    """
    # Imported lazily: this shortens the start of `typegate stdio`, and no configuration uses every type.
    module, _, name = config.connector.partition(":")
    connector: Callable[..., Connector] = getattr(import_module(module), name)
    client = client.with_proxy(config.proxy_choice)
    return connector(server, config, client, host=host, credentials=credentials)
