"""The states of a link, which is the gateway's connection to one upstream, and the callbacks of a link.

Connecting → Starting: the upstream is a process; `Starting` lasts until the process is ready or has failed.
Connecting → Ready: the protocol version is negotiated, and the upstream's lists have been fetched.
Connecting → Waiting: the attempt failed.
Connecting → SignInNeeded: the upstream requires a sign-in; the link returns to Connecting afterwards.
Ready → Connecting: the connection was lost.
Waiting → Connecting: the pause is over, the port accepts connections again, or a refresh was requested.
Connecting → Idle: the process is not needed (see `call_sender`); the link returns to Connecting when a call needs it.

Each state has `since_s`, the monotonic time at which it was entered.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import anyio

from gateway.config.server import ServerConfig
from gateway.upstream.session import RawListing, UpstreamSession, WatchedKind
from gateway.upstream.transport.process_start import ProcessStart
from gateway.upstream.upstream_credentials import SignInSource


class ListedLink(Protocol):
    """The part of `UpstreamLink` that its callbacks may use."""

    server: str
    config: ServerConfig
    epoch: int
    owner: str
    retired: bool


async def ignore_listing(link: ListedLink, listing: RawListing) -> bool:
    """Discard the listing."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPorts:
    """The callbacks of a link; by default they ignore every event.

    Attributes:
        on_listing: Awaited with every listing; returns whether anything has changed. Calls cannot use a connection
            until `on_listing` has handled the connection's first listing.
        on_lost: Called when a connection was lost or an attempt to connect has failed.
        on_update: Called when a resource or task on the watch list has changed.
        on_refused: Called when the upstream has rejected the configured credentials or URL.
        has_listing: Returns whether the gateway already has a listing of the upstream, from an earlier connection.
    """

    on_listing: Callable[[ListedLink, RawListing], Awaitable[bool]] = ignore_listing
    on_lost: Callable[[ListedLink], None] = lambda link: None
    on_update: Callable[[WatchedKind, str, dict[str, Any]], None] = lambda kind, key, params: None
    on_refused: Callable[[ListedLink], object] = lambda link: None
    has_listing: Callable[[ListedLink], bool] = lambda link: False


@dataclass(frozen=True, slots=True, eq=False)
class Connecting:
    """A connection attempt is in progress, or will start once the previous connection is closed."""

    name: ClassVar = "connecting"
    session: ClassVar[None] = None
    since_s: float = field(default_factory=time.monotonic, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Starting:
    """A process is starting, or waits in the queue of process starts."""

    name: ClassVar = "starting"
    session: ClassVar[None] = None
    start: ProcessStart
    since_s: float = field(default_factory=time.monotonic, compare=False)


@dataclass(slots=True, eq=False)
class Ready:
    """The upstream is connected.

    Attributes:
        scope: Spans the connection; other tasks cancel it to close the connection.
        served: Whether a call has been answered on this connection.
    """

    name: ClassVar = "ready"
    session: UpstreamSession
    scope: anyio.CancelScope
    served: bool = False
    since_s: float = field(default_factory=time.monotonic, compare=False)

    def note_served(self) -> None:
        """Note that a call has been answered on this connection."""
        self.served = True


@dataclass(frozen=True, slots=True)
class Waiting:
    """The last attempt failed, and the link waits before the next attempt.

    Attributes:
        scope: Spans the wait; cancelled to retry at once.
    """

    name: ClassVar = "waiting"
    session: ClassVar[None] = None
    scope: anyio.CancelScope
    since_s: float = field(default_factory=time.monotonic, compare=False)


@dataclass(frozen=True, slots=True)
class Idle:
    """The process is not running, because nothing needs the process; callers still see the tools of the server.

    Attributes:
        scope: Spans the idle time; cancelled to start the process.
    """

    name: ClassVar = "idle"
    session: ClassVar[None] = None
    scope: anyio.CancelScope
    since_s: float = field(default_factory=time.monotonic, compare=False)


@dataclass(frozen=True, slots=True)
class SignInNeeded:
    """A user has to sign in before the next attempt.

    Attributes:
        scope: Spans the wait; cancelled to retry at once.
        source: Creates sign-in links, and reports new credentials.
    """

    name: ClassVar = "signInNeeded"
    session: ClassVar[None] = None
    scope: anyio.CancelScope
    source: SignInSource
    since_s: float = field(default_factory=time.monotonic, compare=False)


LinkState = Connecting | Starting | Ready | Waiting | Idle | SignInNeeded
