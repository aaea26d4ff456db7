"""The registry: the only mutable holder of the current catalog."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Final

from registry.catalog.build import build_catalog
from registry.catalog.catalog import Catalog, CatalogChange
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.shape import Shape

Listener = Callable[[CatalogChange], None]

_log = logging.getLogger("typegate.registry")

MAX_OWNERS: Final = 256
"""Maximum number of callers whose own listings are stored; one process serves about as many callers within a few
minutes. Each catalog takes a few hundred bytes per tool. Beyond the limit, the listings that were updated longest ago
are dropped.
"""


class Registry:
    """Holds the current catalog and replaces it as a whole. All methods are synchronous.

    A server with per-caller sign-in may list different items to each caller. Such a listing replaces the common listing
    of the server in the catalog of its caller (the owner), and is not visible to other callers.

    Attributes:
        catalog: The current catalog. A call reads this attribute once and uses that catalog to the end.
        shape: The configuration that the catalog was built with.
        owners: By caller, the listings that only this caller sees.
    """

    __slots__ = (
        "_ahead",
        "_ids",
        "_latest",
        "_listeners",
        "_max_owners",
        "_on_own_change",
        "_own_catalogs",
        "catalog",
        "owners",
        "shape",
    )

    def __init__(self, shape: Shape, *, max_owners: int = MAX_OWNERS) -> None:
        self.shape = shape
        self._max_owners = max_owners
        self.catalog: Catalog = build_catalog({}, shape, version=0)
        # The result of `build_ahead`, until the next swap uses or discards it.
        self._ahead: tuple[Shape, CatalogChange] | None = None
        self._listeners: dict[int, tuple[Listener, bool]] = {}
        self._ids = count()
        self.owners: dict[str, dict[ServerName, ServerListing]] = {}
        self._own_catalogs: dict[str, tuple[Catalog, Shape, Catalog]] = {}
        # By server, the latest listing of any owner. Most owners get equal lists of tools, which then share memory.
        self._latest: dict[ServerName, ServerListing] = {}
        self._on_own_change: list[Callable[[], object]] = []

    def put(self, listing: ServerListing) -> CatalogChange:
        """Replace a server's listing, unless the new listing belongs to an older connection (a lower epoch)."""
        # The listing of a slow, lost connection may arrive after the listing of the next connection.
        current = self.catalog.servers.get(listing.server)
        if current is not None and listing.epoch < current.epoch:
            return CatalogChange(self.catalog, self.catalog)
        return self._swap(_update_listings(self.catalog.servers, put=(listing,)))

    def mark_stale(self, server: ServerName, epoch: int) -> CatalogChange:
        """Record that the connection of this epoch is lost; its wrappers stay listed."""
        current = self.catalog.servers.get(server)
        if current is None or current.epoch != epoch or current.stale:
            return CatalogChange(self.catalog, self.catalog)
        return self._swap({**self.catalog.servers, server: replace(current, stale=True)})

    def drop(self, server: ServerName) -> CatalogChange:
        """Remove a server that is no longer configured."""
        if server not in self.catalog.servers:
            return CatalogChange(self.catalog, self.catalog)
        return self._swap(_update_listings(self.catalog.servers, drop=(server,)))

    def build_ahead(
        self, *, shape: Shape | None = None, drop: Iterable[ServerName] = (), put: Iterable[ServerListing] = ()
    ) -> Catalog:
        """Build the catalog that the next `put` or `reshape` will use if its arguments and the current catalog match.

        This may run in another thread. Readers see the old catalog until `put` or `reshape` swaps in the new catalog.

        Args:
            shape: The configuration; None for the current configuration.
            drop: See `reshape`.
            put: See `reshape`.

        Returns:
            The catalog that the build started from. If that catalog is no longer current at the next swap, the built
            catalog is discarded.
        """
        before, shape = self.catalog, shape or self.shape
        after = build_catalog(
            _update_listings(before.servers, drop, put), shape, version=before.version + 1, previous=before
        )
        self._ahead = shape, CatalogChange(before, after)
        return before

    def reshape(
        self, shape: Shape, *, drop: Iterable[ServerName] = (), put: Iterable[ServerListing] = ()
    ) -> CatalogChange:
        """Rebuild the catalog once with another configuration.

        Args:
            shape: The configuration.
            drop: Servers that the configuration no longer has.
            put: Listings of new servers; a listing with a lower epoch than the current listing is ignored.
        """
        self.shape = shape
        return self._swap(_update_listings(self.catalog.servers, drop, put))

    # Listings of single callers

    def catalog_of(self, owner: str) -> Catalog:
        """Return the catalog of a caller: the common catalog with the caller's own listings."""
        own = self.owners.get(owner)
        if own is None:
            return self.catalog
        cached = self._own_catalogs.get(owner)
        if cached is not None and cached[0] is self.catalog and cached[1] is self.shape:
            return cached[2]
        previous = cached or next(reversed(self._own_catalogs.values()), None)
        built = build_catalog(
            {**self.catalog.servers, **own},
            self.shape,
            version=self.catalog.version,
            previous=previous[2] if previous is not None else self.catalog,
        )
        self._own_catalogs[owner] = (self.catalog, self.shape, built)
        return built

    def own_listing(self, owner: str, server: ServerName) -> ServerListing | None:
        """Return the listing that a server gave to this caller alone, or None."""
        return self.owners.get(owner, {}).get(server)

    def put_own(self, owner: str, listing: ServerListing) -> None:
        """Replace the listing that a server gave to one caller."""
        latest = self._latest.get(listing.server)
        if latest is not None and latest.tools == listing.tools:
            listing = replace(listing, tools=latest.tools)
        self._latest[listing.server] = listing
        own = self.owners.pop(owner, {})
        # The owner is inserted again, so that the dict is ordered by the time of the last listing.
        self.owners[owner] = {**own, listing.server: listing}
        self._own_catalogs.pop(owner, None)
        while len(self.owners) > self._max_owners:
            self._forget_owner(next(iter(self.owners)))
        self._notify_own_change()

    def drop_own(self, server: ServerName) -> None:
        """Drop the listings that a server gave to single callers."""
        self._latest.pop(server, None)
        concerned = [owner for owner, own in self.owners.items() if server in own]
        for owner in concerned:
            remaining = {name: listing for name, listing in self.owners[owner].items() if name != server}
            self._own_catalogs.pop(owner, None)
            if remaining:
                self.owners[owner] = remaining
            else:
                self._forget_owner(owner)
        if concerned:
            self._notify_own_change()

    def subscribe_own(self, listener: Callable[[], object]) -> None:
        """Call a listener whenever a caller's own listings may have changed."""
        self._on_own_change.append(listener)

    def _forget_owner(self, owner: str) -> None:
        self.owners.pop(owner, None)
        self._own_catalogs.pop(owner, None)

    def _notify_own_change(self) -> None:
        for listener in self._on_own_change:
            listener()

    def subscribe(self, listener: Listener, *, always: bool = False) -> Callable[[], None]:
        """Call a listener after each swap that callers could notice; return a function to unsubscribe.

        Args:
            listener: Called with the change.
            always: True to call the listener after every swap, even if callers could not notice it.
        """
        key = next(self._ids)
        self._listeners[key] = (listener, always)

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def _swap(self, listings: Mapping[ServerName, ServerListing]) -> CatalogChange:
        before = self.catalog
        ahead, self._ahead = self._ahead, None
        if ahead is not None and self._is_next(*ahead, listings):
            change = ahead[1]
        else:
            after = build_catalog(listings, self.shape, version=before.version + 1, previous=before)
            change = CatalogChange(before, after)
        self.catalog = change.after
        # Iterate over a copy, because listeners may subscribe and unsubscribe.
        for listener, always in tuple(self._listeners.values()):
            if always or change:
                try:
                    listener(change)
                except Exception:  # noqa: BLE001 -- a failing listener must not prevent others from seeing the change
                    _log.exception("catalog listener failed")
        return change

    def _is_next(self, shape: Shape, change: CatalogChange, listings: Mapping[ServerName, ServerListing]) -> bool:
        built = change.after.servers
        return (
            change.before is self.catalog
            and (shape is self.shape or shape == self.shape)
            and list(built) == list(listings)
            and all(listing.is_equal_to(listings[server]) for server, listing in built.items())
        )


def _update_listings(
    listings: Mapping[ServerName, ServerListing],
    drop: Iterable[ServerName] = (),
    put: Iterable[ServerListing] = (),
) -> dict[ServerName, ServerListing]:
    dropped = set(drop)
    updated = {server: listing for server, listing in listings.items() if server not in dropped}
    for listing in put:
        current = updated.get(listing.server)
        if current is None or listing.epoch >= current.epoch:
            updated[listing.server] = listing
    return updated
