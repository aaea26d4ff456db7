"""Registry: the one mutable cell that holds the current catalog."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count

from registry.catalog.build import build_catalog
from registry.catalog.catalog import Catalog, CatalogChange
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.shape import Shape

Listener = Callable[[CatalogChange], None]

_log = logging.getLogger("typegate.registry")


class Registry:
    """Holds the current catalog and swaps it whole; synchronous throughout.

    Attributes:
        catalog: The current catalog; a call reads this attribute once and uses one catalog from start to end.
        shape: The configuration that the catalog was built with.
    """

    __slots__ = ("_ids", "_listeners", "catalog", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.catalog: Catalog = build_catalog({}, shape, version=0)
        self._listeners: dict[int, tuple[Listener, bool]] = {}
        self._ids = count()

    def put(self, listing: ServerListing) -> CatalogChange:
        """Replace a server's listing; one of an older epoch changes nothing, the same epoch lists again."""
        # A slow listing of a lost connection may arrive after that of the next one.
        current = self.catalog.servers.get(listing.server)
        if current is not None and listing.epoch < current.epoch:
            return CatalogChange(self.catalog, self.catalog)
        return self._swap({**self.catalog.servers, listing.server: listing})

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
        return self._swap({name: listing for name, listing in self.catalog.servers.items() if name != server})

    def reshape(
        self, shape: Shape, *, drop: Iterable[ServerName] = (), put: Iterable[ServerListing] = ()
    ) -> CatalogChange:
        """Rebuild the catalog once with another configuration.

        Args:
            shape: The configuration.
            drop: Servers that it no longer has.
            put: Listings of servers that are new in it; one of an older epoch than is known changes nothing.
        """
        self.shape = shape
        gone = set(drop)
        listings = {server: listing for server, listing in self.catalog.servers.items() if server not in gone}
        for listing in put:
            known = listings.get(listing.server)
            if known is None or listing.epoch >= known.epoch:
                listings[listing.server] = listing
        return self._swap(listings)

    def subscribe(self, listener: Listener, *, always: bool = False) -> Callable[[], None]:
        """Call a listener after each swap that a caller could notice, or after all; return a function that ends it."""
        key = next(self._ids)
        self._listeners[key] = (listener, always)

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def _swap(self, listings: Mapping[ServerName, ServerListing]) -> CatalogChange:
        before = self.catalog
        self.catalog = build_catalog(listings, self.shape, version=before.version + 1, previous=before)
        change = CatalogChange(before, self.catalog)
        # A copy: listeners may subscribe and unsubscribe.
        for listener, always in tuple(self._listeners.values()):
            if always or change:
                try:
                    listener(change)
                except Exception:  # noqa: BLE001 -- boundary: a failing listener must not keep others from the change
                    _log.exception("catalog listener failed")
        return change
