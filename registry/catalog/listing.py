"""ServerListing: what one upstream listed on one connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from registry.catalog.names import ServerName
from registry.intake.issues import ItemIssue

ListedItems = tuple[dict[str, Any], ...]
# `unstated`: of versions with a handshake, which have no such word. Shared caches take it for `private`.
CacheScope = Literal["public", "private", "unstated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerListing:
    """What one upstream listed on one connection, after intake; nothing in it is ever changed in place.

    Attributes:
        epoch: The number of the connection.
        ttl_ms: How long the upstream says that its lists stay fresh.
        scope: Whether it says that others may be given them too.
        origin: `snapshot` until the server has answered for the first time since we started.
        stale: The connection is lost; tools stay listed until the next one.
    """

    server: ServerName
    epoch: int
    tools: ListedItems
    prompts: ListedItems = ()
    resources: ListedItems = ()
    templates: ListedItems = ()
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    quarantined: tuple[ItemIssue, ...] = ()
    repaired: tuple[ItemIssue, ...] = ()
    ttl_ms: int | None = None
    scope: CacheScope = "public"
    origin: Literal["live", "snapshot"] = "live"
    stale: bool = False
    transport: Literal["stdio", "http"] = "stdio"
