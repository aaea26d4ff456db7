"""Where a link reports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.config.server import ServerConfig
from gateway.upstream.session import RawListing
from gateway.upstream.watch_list import WatchedKind


class ListedLink(Protocol):
    """What is to be known of a link that reports; see `UpstreamLink`."""

    server: str
    config: ServerConfig
    epoch: int
    owner: str


async def _ignore_listing(link: ListedLink, listing: RawListing) -> bool:
    """Take a listing that nobody wants."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPorts:
    """Where a link reports; without arguments nobody takes anything.

    Attributes:
        on_listing: Awaited with every listing, the first one of a connection before calls can use it; returns whether
            something has changed.
        on_lost: Called when a connection, or an attempt, has ended.
        on_update: Takes changes of what is on the watch list.
        on_refused: Called when the upstream has refused the credentials of its entry.
        has_listing: Whether there is a listing of this very upstream from before, by which calls can be made.
    """

    on_listing: Callable[[ListedLink, RawListing], Awaitable[bool]] = _ignore_listing
    on_lost: Callable[[ListedLink], None] = lambda link: None
    on_update: Callable[[WatchedKind, str, dict[str, Any]], None] = lambda kind, key, params: None
    on_refused: Callable[[ListedLink], object] = lambda link: None
    has_listing: Callable[[ListedLink], bool] = lambda link: False
