"""What servers list to single callers: each sees what its own connection brought, and what others saw stays theirs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import anyio

from gateway.config.server import ServerConfig
from gateway.discovery import is_short, listing_of
from gateway.errors import LeadsBack
from gateway.lock.listing_lock import ListingLock
from gateway.protocol import gateways_of
from gateway.upstream.link_ports import LinkPorts, ListedLink
from gateway.upstream.session import RawListing
from gateway.upstream.user_links import UserLinks
from gateway.worker_thread import run_in_thread
from registry.catalog.hints import Hints
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.store import Registry
from registry.lock.review import Review

LEADS_BACK: Final = "skipped: it leads back to this gateway, whose tools would be listed without end"
SIGN_IN_TOOL: Final = "sign_in"
"""What a server has for callers who have not signed in to it: a host calls nothing that is in no list."""


class OwnListings:
    """Takes what servers list to single callers.

    A server to which each caller signs in for itself may list other tools, prompts and resources to each. The listing
    of one is never shown to another, not even before the other has signed in: until then there is one tool, which asks
    for the sign-in. What the lock file approves of the server holds for each caller's listing alike.
    """

    def __init__(
        self, registry: Registry, lock: ListingLock, users: UserLinks, instance: str, worker: anyio.CapacityLimiter
    ) -> None:
        self._worker = worker
        self._instance = instance
        self._registry = registry
        self._lock = lock
        self._users = users
        # As each server lists it, whatever of it is held: by owner and alias.
        self._unheld: dict[tuple[str, str], ServerListing] = {}
        users.ports = LinkPorts(on_listing=self._take, has_listing=self._has_listing)
        users.epoch_of = self._epoch_of

    async def _take(self, link: ListedLink, raw: RawListing) -> bool:
        if self._instance in gateways_of(raw.capabilities):
            raise LeadsBack(LEADS_BACK)
        alias, owner, config = link.server, link.owner, link.config
        before = self._unheld.get((owner, alias)) if self._has_listing(link) else None
        listed = self._lock.listing_of(alias, config)
        hints = listed.first_hints if listed is not None else None
        listing, review = await reviewed(link, raw, self._lock, before=before, worker=self._worker, hints=hints)
        if self._users.is_open(link):
            self._show(owner, alias, config, listing, review)
        return before is None or not listing.lists_as(before)

    def _show(self, owner: str, alias: str, config: ServerConfig, listing: ServerListing, review: Review) -> None:
        if self._lock.lockfile is not None or self._lock.listing_of(alias) is None:
            # Compared with what is approved; without that there is nothing to compare the list of one with.
            self._lock.take(alias, listing, config, review, is_shared=False)
        shown = review.listing if self._lock.lockfile is not None else listing
        self._unheld[owner, alias] = listing
        self._registry.put_own(owner, shown)
        if len(self._unheld) > 2 * sum(map(len, self._registry.owners.values())):
            self._unheld = {key: one for key, one in self._unheld.items() if key[0] in self._registry.owners}

    def review_again(self, servers: Mapping[str, ServerConfig]) -> None:
        """Show every listing as the lock file, which has changed, says."""
        for (owner, alias), listing in list(self._unheld.items()):
            if alias in servers and self._registry.own_listing(owner, ServerName(alias)) is not None:
                review = self._lock.review(alias, listing, servers[alias])
                self._show(owner, alias, servers[alias], listing, review)

    def forget(self, alias: str) -> None:
        """End the connections of single callers to a server, and forget what it has listed to them."""
        self._users.drop_server(alias)
        self._unheld = {key: one for key, one in self._unheld.items() if key[1] != alias}
        self._registry.drop_own(ServerName(alias))

    def _has_listing(self, link: ListedLink) -> bool:
        return self._registry.own_listing(link.owner, ServerName(link.server)) is not None

    def _epoch_of(self, server: str, owner: str) -> int:
        listing = self._registry.own_listing(owner, ServerName(server))
        return listing.epoch if listing is not None else 0


async def reviewed(
    link: ListedLink,
    raw: RawListing,
    lock: ListingLock,
    *,
    before: ServerListing | None,
    worker: anyio.CapacityLimiter,
    hints: Mapping[str, Hints] | None = None,
) -> tuple[ServerListing, Review]:
    """The listing that an answer makes of the one before it, and what the lock says of it; a long answer is used up.

    Args:
        link, raw, lock: Whose answer it is, and what approves of it.
        before: The listing before it.
        worker: Bounds how many threads look at long answers: the loop waits for each of them in turn.
        hints: Those that its tools were first listed with, where there is no listing before.
    """
    alias, config = link.server, link.config
    take = partial(
        listing_of, raw, server=ServerName(alias), epoch=link.epoch, transport=config.listed_over, before=before,
        strict=config.validation == "strict", hints=hints,
    )  # fmt: skip

    def look() -> tuple[ServerListing, Review]:
        listing = take()
        return listing, lock.review(alias, listing, config)

    return look() if is_short(raw) else await run_in_thread(look, limiter=worker)


def placeholder(alias: str, config: ServerConfig) -> ServerListing:
    """What is listed of a server to callers who have not signed in to it."""
    name = config.display_name or alias
    tool = {
        "name": SIGN_IN_TOOL,
        "title": f"Sign in to {name}",
        "description": f"Sign in to {name}. Its tools are listed once you have; this one asks you to open a link.",
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": True},
    }
    capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
    # Of no connection: those of callers begin with 1.
    return ServerListing(
        server=ServerName(alias),
        epoch=0,
        tools=(tool,),
        capabilities=capabilities,
        scope="private",
        transport=config.listed_over,
    )
