"""What servers list to everybody: the last good listing of each, and of it what the lock file approves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import anyio

from gateway.catalog_updates import CatalogUpdates
from gateway.config.server import ServerConfig
from gateway.discovery import VainSettings
from gateway.errors import LeadsBack
from gateway.lock.listing_lock import ListingLock, with_state_of
from gateway.own_listings import LEADS_BACK, placeholder, reviewed
from gateway.protocol import gateways_of
from gateway.snapshot import KeptListings, fingerprint
from gateway.upstream.link_ports import ListedLink
from gateway.upstream.session import RawListing
from gateway.worker_thread import run_in_thread
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.store import Registry


class SharedListings:
    """Takes what servers list to everybody into the registry, and keeps it for the next start.

    Attributes:
        kept: The last good listing of each server, on disk.
    """

    def __init__(
        self,
        registry: Registry,
        lock: ListingLock,
        links: Mapping[str, ListedLink],
        *,
        updates: CatalogUpdates,
        kept: KeptListings,
        instance: str,
        worker: anyio.CapacityLimiter,
        is_per_user: Callable[[ServerConfig], bool],
    ) -> None:
        """Know nothing yet.

        Args:
            registry: Takes what servers list.
            lock: Says what of a listing is shown.
            links: By alias, the link that speaks for each server at present.
            updates: Puts listings into the registry.
            kept: The listings of before, and what becomes of those of now.
            instance: The id of this gateway; an upstream that leads to it is not listed.
            worker: Bounds how many threads look at listings.
            is_per_user: Whether a server lists to each caller apart.
        """
        self._registry = registry
        self._lock = lock
        self._links = links
        self._updates = updates
        self._instance = instance
        self._worker = worker
        self._is_per_user = is_per_user
        self._vain = VainSettings()
        self._listed_s: dict[str, float] = {}
        self.kept = kept

    async def load(self) -> None:
        """Read what was kept."""
        await run_in_thread(self.kept.load, limiter=self._worker)

    # what links tell

    async def take(self, link: ListedLink, raw: RawListing) -> bool:
        """Put what a server has listed into the registry.

        Returns:
            Whether it has listed something else than the last time.

        Raises:
            LeadsBack: It is this very gateway, or leads to it.
        """
        alias, config, epoch = link.server, link.config, link.epoch
        if self._instance in gateways_of(raw.capabilities) and self._links.get(alias) is link:
            self._registry.drop(ServerName(alias))
            self._lock.forget(alias)
            raise LeadsBack(LEADS_BACK)
        lockfile = self._lock.lockfile
        # Not that of the catalog, in which what is held is as it was approved.
        before = self._lock.listing_of(alias, config)
        hints = self.kept.first_hints(alias, config)
        listing, review = await reviewed(link, raw, self._lock, before=before, worker=self._worker, hints=hints)

        def confirm() -> ServerListing | None:
            # Meanwhile the link may have been replaced: then it says nothing about the new one.
            known = self._registry.catalog.servers.get(ServerName(alias))
            if self._links.get(alias) is not link or (known is not None and epoch < known.epoch):
                return None
            # The lock file may have become another one while a thread looked at the listing.
            found = review if self._lock.lockfile is lockfile else self._lock.review(alias, listing, config)
            return self._lock.take(alias, listing, config, found)

        await self._updates.put(review.listing, confirm)
        has_changed = before is None or not listing.lists_as(before)
        if self._links.get(alias) is not link:
            return has_changed
        if (part := self._registry.catalog.parts.get(ServerName(alias))) is not None:
            self._vain.tell(alias, part.warnings)
        if raw.confirmed:
            self._listed_s[alias] = anyio.current_time()
            self.kept.put(alias, config, listing)
        return has_changed

    def has_listing(self, link: ListedLink) -> bool:
        """Whether there is a listing of this very server."""
        # Another one may have had the alias before, whose tools stay listed until this one lists.
        listed = ServerName(link.server) in self._registry.catalog.servers
        return listed and self.kept.of(link.server, link.config) is not None

    def lose(self, link: ListedLink) -> None:
        """Show that the connection to a server is lost; what it listed stays."""
        if self._links.get(link.server) is link:
            self._registry.mark_stale(ServerName(link.server), link.epoch)

    # what is known of servers

    def age_s(self, alias: str) -> float | None:
        """How old the listing of a server is; None where there is none."""
        listing = self._registry.catalog.servers.get(ServerName(alias))
        saved = self.kept.get(alias)
        if listing is not None and listing.origin == "live" and alias in self._listed_s:
            return anyio.current_time() - self._listed_s[alias]
        if listing is not None and saved is not None:
            # Only over a restart is the wall clock all there is, and it may have been set back since.
            return max(0.0, time.time() - saved.at_s)
        return None

    def successor(self, former: str, servers: Mapping[str, ServerConfig]) -> str | None:
        """Which of these servers is the one that had another alias before."""
        known = self.kept.former(former)
        if known is None:
            return None
        return next((alias for alias, config in servers.items() if fingerprint(config) == known), None)

    def forget(self, alias: str, config: ServerConfig) -> None:
        """Keep of a server only that there was one of this alias."""
        self.kept.retire(alias, config)
        self._lock.forget(alias)
        self._listed_s.pop(alias, None)

    # what is shown before a server lists, and once it is to be shown otherwise

    def recalled(self, servers: Mapping[str, ServerConfig]) -> list[ServerListing]:
        """What was kept of these servers, where they are still reached in the same way."""
        found: list[ServerListing] = []
        for alias, config in servers.items():
            listing, is_shared = self._kept_of(alias, config), not self._is_per_user(config)
            if not is_shared:
                # What was kept of it is what it once listed to all.
                self.kept.forget(alias)
            if listing is not None and is_shared:
                listing = self._lock.take(alias, listing, config, self._lock.review(alias, listing, config))
            if listing is not None:
                found.append(listing)
        return found

    def to_recall(self, servers: Mapping[str, ServerConfig]) -> list[ServerListing]:
        """What `recalled` would return; changes nothing: any thread may ask."""
        return [
            listing if self._is_per_user(config) else self._lock.review(alias, listing, config).listing
            for alias, config in servers.items()
            if (listing := self._kept_of(alias, config)) is not None
        ]

    def reviewed_again(self, servers: Mapping[str, ServerConfig]) -> list[ServerListing]:
        """The listings of these servers as the lock file, which has changed, says."""
        return self._as_connected(listing for _, listing in self._lock.reviewed_again(servers))

    def to_review_again(self, servers: Mapping[str, ServerConfig], lock: ListingLock) -> list[ServerListing]:
        """What `reviewed_again` would return under this lock; changes nothing: any thread may ask."""
        return self._as_connected(lock.review_all(servers))

    def _as_connected(self, listings: Iterable[ServerListing]) -> list[ServerListing]:
        current = self._registry.catalog.servers
        return [with_state_of(listing, current.get(listing.server)) for listing in listings]

    def _kept_of(self, alias: str, config: ServerConfig) -> ServerListing | None:
        if self._is_per_user(config):
            return None if config.exchanges_callers else placeholder(alias, config)
        return self.kept.of(alias, config)
