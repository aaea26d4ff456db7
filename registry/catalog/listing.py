"""ServerListing: what one upstream listed on one connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from registry.catalog.hints import Hints
from registry.catalog.names import ServerName
from registry.intake.issues import ItemIssue

WHOLE_SERVER: Final = "server"
"""The kind under which `ServerListing.held` speaks of everything that a server has."""

# The members that may have thousands of items.
_ITEMS: Final = frozenset({"tools", "prompts", "resources", "templates", "quarantined", "repaired", "first_hints"})
# Tools of a server are packed, which are most of what it lists.
ListedItems = tuple[Mapping[str, Any], ...]
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
        instructions: What the server says of itself to models.
        held: By kind of item, why one cannot be used until somebody has approved it; by the names of its server. It is
            listed as it was approved, or not at all. Under `WHOLE_SERVER` there is why nothing of it can be used.
        first_hints: By tool, the hints that it was first listed with, or was approved with: rights follow these where
            today's promise more.
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
    instructions: str | None = None
    held: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    first_hints: Mapping[str, Hints] = field(default_factory=dict)

    def is_like(self, other: ServerListing) -> bool:
        """Return whether two listings are equal as far as that is seen at once: of the very same items."""
        if self is other:
            return True
        return all(
            mine is theirs or (name not in _ITEMS and mine == theirs)
            for name in self.__slots__
            for mine, theirs in ((getattr(self, name), getattr(other, name)),)
        )

    def lists_as(self, other: ServerListing) -> bool:
        """Return whether two listings are of the very same items, whatever else differs."""
        return all(
            getattr(self, name) is getattr(other, name) for name in ("tools", "prompts", "resources", "templates")
        )
