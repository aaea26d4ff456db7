"""The seam to upstreams of every type: what a link needs of a session, and what goes through it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

from msgspec import Struct, field

from gateway.upstream.request_callbacks import RequestCallbacks
from gateway.upstream.transport.process_start import ProcessStart
from gateway.upstream.watch_list import WatchedKind, WatchList
from registry.catalog.catalog import ListKind
from registry.catalog.listing import CacheScope
from registry.intake.issues import ItemIssue
from registry.intake.prompts_and_resources import ItemKind

ALL_KINDS: Final[frozenset[ListKind]] = frozenset(("tools", "prompts", "resources"))

NO_HEADER_MAP: Final[Mapping[tuple[str, ...], str]] = MappingProxyType({})
"""Of the many tools that have no argument repeated in a header."""

OnListChanged = Callable[[Collection[ListKind]], None]
"""Takes the kinds of lists that have changed."""
OnUpdate = Callable[[WatchedKind, str, dict[str, Any]], None]
"""Takes a change of one watched resource or task: its kind, its URI or id, the notification's params."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPorts:
    """Where a session reports what its upstream sends unasked; all are synchronous and quick.

    Attributes:
        on_list_changed: Takes the kinds of lists that have changed.
        on_update: Takes a change of what is watched.
        on_start: Takes the start of a process, before it has a turn.
    """

    on_list_changed: OnListChanged
    on_update: OnUpdate
    on_start: Callable[[ProcessStart], None] = lambda start: None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawListing:
    """What an upstream answered to its list methods, all pages, unchecked; None where it was not asked.

    Attributes:
        tools: Those of a long page are `wire.Unparsed`.
        refused: What should have become a tool and did not, with the reason.
        noted: What an operator should know of tools that did.
        instructions: The upstream's own, for models.
        confirmed: The upstream gave an answer; without one, what it listed before is all that is known.
        failed: The kinds of which a list was to be had, and was not this time.
        warnings: For operators: the lists that could not be had, or not as a whole, each with the reason.
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


def nothing_new(capabilities: Mapping[str, Any]) -> RawListing:
    """A listing that leaves everything as it was."""
    return RawListing(
        tools=None,
        prompts_and_resources={},
        capabilities=capabilities,
        ttl_ms=None,
        scope="private",
        confirmed=False,
    )


class UpstreamCall(Struct, frozen=True, kw_only=True, eq=False):
    """One request on behalf of a caller, as the upstream is to get it.

    Attributes:
        method: Any method but those of discovery and subscription.
        params: The whole `params` object, names already those of the upstream.
        repeatable: To run it twice does no harm.
        header_map: Property paths to the `x-mcp-header` tokens they are mirrored in.
        capabilities: The caller's, as they are sent to an upstream that speaks 2026-07-28.
        log_level: What the caller wants to read; None for nothing.
        trace: HTTP headers of the caller's trace context.
        callbacks: The request's way back to its caller while it runs.
        principal: The name of the caller where callers are told apart, so that none takes all places; else empty.
        confirm: Awaited before the request goes over another connection than the one that its caller knew of; it
            raises if the request is not to be sent there.
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
    """One span of time in which an upstream can be used. Its owner opens and watches it; calls come from any task.

    Attributes:
        protocol_version: As administrators are shown it.
        capabilities: Those that it declares.
        server_info: Its name and version.
        instructions: Its own, for models.
        independent_requests: A lost request is no sign that the others are, and only a failed request shows that
            the upstream is gone.
        announces_changes: Changes of its tools are announced right now, so that nobody has to poll for them.
        calls_need_listing: No call can be sent before its tools were listed here.
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
        """Every page of these kinds, within bounds; a list other than that of tools which fails is left out.

        Lists that are asked for together with tools do not hold them up: they are left out where they take long.

        Args:
            kinds: Which lists to ask for.
            limit_s: For each list, all its pages together.
            polled: Nothing has changed as far as is known: it is only time to look again.

        Raises:
            ListLost: The connection ended while a list other than that of tools was asked for.
            GatewayError: There is no listing.
        """

    async def send(self, call: UpstreamCall) -> Any:
        """Send a caller's request and return the raw result.

        Raises:
            RpcError: The upstream answered with an error.
            ConnectionLost: The connection failed.
            SessionForgotten: The upstream does not know the session any more; the request was not run.
            Congested: Too much is waiting; nothing was sent.
            HttpStatusError: The upstream refused over HTTP.
        """

    async def notify(self, method: str) -> None:
        """Send a notification of the host whose own session it is.

        Raises:
            GatewayError, TimeoutError: It could not be sent.
        """

    async def watch(self, watch_list: WatchList | None) -> None:
        """Report changes of lists, and of what is on the watch list, for as long as the session lives."""

    async def wait_closed(self) -> str:
        """Return the reason once the session has ended."""

    def abandon(self) -> None:
        """Do not tell the upstream of the end: it cannot be reached, or calls on their way still need the session."""
