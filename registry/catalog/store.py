"""Registry: the one mutable cell that holds the current catalog."""

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
"""Callers with listings of their own that are kept: as many people as one process serves within some minutes. The
catalog of each takes some hundred bytes for each tool; beyond it, whose listings are the oldest is listed for anew."""


class Registry:
    """Holds the current catalog and swaps it whole; synchronous throughout.

    A server to which each caller signs in for itself may list other things to each: such listings belong to their
    owner, whose catalog has them in place of everybody's, and to nobody else's.

    Attributes:
        catalog: The current catalog; a call reads this attribute once and uses one catalog from start to end.
        shape: The configuration that the catalog was built with.
        owners: By the name of each caller that has any, the listings of its own.
    """

    __slots__ = (
        "_ahead",
        "_ids",
        "_latest",
        "_listeners",
        "_on_own_change",
        "_own_catalogs",
        "catalog",
        "owners",
        "shape",
    )

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.catalog: Catalog = build_catalog({}, shape, version=0)
        # What `build_ahead` has built, until it is taken over or something else is.
        self._ahead: tuple[Shape, CatalogChange] | None = None
        self._listeners: dict[int, tuple[Listener, bool]] = {}
        self._ids = count()
        self.owners: dict[str, dict[ServerName, ServerListing]] = {}
        self._own_catalogs: dict[str, tuple[Catalog, Shape, Catalog]] = {}
        # Of the owner that was listed for last: most have the same lists, whose parts are built and kept once.
        self._latest: dict[ServerName, ServerListing] = {}
        self._on_own_change: list[Callable[[], object]] = []

    def put(self, listing: ServerListing) -> CatalogChange:
        """Replace a server's listing; one of an older epoch changes nothing, the same epoch lists again."""
        # A slow listing of a lost connection may arrive after that of the next one.
        current = self.catalog.servers.get(listing.server)
        if current is not None and listing.epoch < current.epoch:
            return CatalogChange(self.catalog, self.catalog)
        return self._swap(_updated(self.catalog.servers, put=(listing,)))

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
        return self._swap(_updated(self.catalog.servers, drop=(server,)))

    def build_ahead(
        self, *, shape: Shape | None = None, drop: Iterable[ServerName] = (), put: Iterable[ServerListing] = ()
    ) -> Catalog:
        """Build what the next `put` or `reshape` takes over if it is given the same, and nothing else comes first.

        This may run in another thread. It changes nothing that anybody sees: readers have the old catalog until that
        call swaps in the new one, whole.

        Args:
            shape: The configuration; None for the present one.
            drop: See `reshape`.
            put: See `reshape`.

        Returns:
            The catalog that it began with; what was built is of no use once there is another one.
        """
        before, shape = self.catalog, shape or self.shape
        after = build_catalog(_updated(before.servers, drop, put), shape, version=before.version + 1, previous=before)
        self._ahead = shape, CatalogChange(before, after)
        return before

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
        return self._swap(_updated(self.catalog.servers, drop, put))

    # listings of single callers

    def catalog_of(self, owner: str) -> Catalog:
        """Return the catalog of a caller: everybody's, with the listings that are its own."""
        own = self.owners.get(owner)
        if own is None:
            return self.catalog
        known = self._own_catalogs.get(owner)
        if known is not None and known[0] is self.catalog and known[1] is self.shape:
            return known[2]
        previous = known or next(reversed(self._own_catalogs.values()), None)
        built = build_catalog(
            {**self.catalog.servers, **own},
            self.shape,
            version=self.catalog.version,
            previous=previous[2] if previous is not None else self.catalog,
        )
        self._own_catalogs[owner] = (self.catalog, self.shape, built)
        return built

    def own_listing(self, owner: str, server: ServerName) -> ServerListing | None:
        """Return what a server has listed to this caller alone."""
        return self.owners.get(owner, {}).get(server)

    def put_own(self, owner: str, listing: ServerListing) -> None:
        """Replace what a server lists to one caller."""
        latest = self._latest.get(listing.server)
        if latest is not None and latest.tools == listing.tools:
            listing = replace(listing, tools=latest.tools)
        self._latest[listing.server] = listing
        own = self.owners.pop(owner, {})
        # The last one is the one that was listed for last.
        self.owners[owner] = {**own, listing.server: listing}
        self._own_catalogs.pop(owner, None)
        while len(self.owners) > MAX_OWNERS:
            self._forget_owner(next(iter(self.owners)))
        self._tell_own_change()

    def drop_own(self, server: ServerName) -> None:
        """Forget what a server has listed to single callers."""
        self._latest.pop(server, None)
        concerned = [owner for owner, own in self.owners.items() if server in own]
        for owner in concerned:
            left = {name: listing for name, listing in self.owners[owner].items() if name != server}
            self._own_catalogs.pop(owner, None)
            if left:
                self.owners[owner] = left
            else:
                self._forget_owner(owner)
        if concerned:
            self._tell_own_change()

    def subscribe_own(self, listener: Callable[[], object]) -> None:
        """Call a listener whenever the listings of some caller may have changed."""
        self._on_own_change.append(listener)

    def _forget_owner(self, owner: str) -> None:
        self.owners.pop(owner, None)
        self._own_catalogs.pop(owner, None)

    def _tell_own_change(self) -> None:
        for listener in self._on_own_change:
            listener()

    def subscribe(self, listener: Listener, *, always: bool = False) -> Callable[[], None]:
        """Call a listener after each swap that a caller could notice, or after all; return a function that ends it."""
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
        # A copy: listeners may subscribe and unsubscribe.
        for listener, always in tuple(self._listeners.values()):
            if always or change:
                try:
                    listener(change)
                except Exception:  # noqa: BLE001 -- boundary: a failing listener must not keep others from the change
                    _log.exception("catalog listener failed")
        return change

    def _is_next(self, shape: Shape, change: CatalogChange, listings: Mapping[ServerName, ServerListing]) -> bool:
        built = change.after.servers
        return (
            change.before is self.catalog
            and (shape is self.shape or shape == self.shape)
            and list(built) == list(listings)
            and all(one.is_like(listings[server]) for server, one in built.items())
        )


def _updated(
    listings: Mapping[ServerName, ServerListing],
    drop: Iterable[ServerName] = (),
    put: Iterable[ServerListing] = (),
) -> dict[ServerName, ServerListing]:
    gone = set(drop)
    updated = {server: listing for server, listing in listings.items() if server not in gone}
    for listing in put:
        known = updated.get(listing.server)
        if known is None or listing.epoch >= known.epoch:
            updated[listing.server] = listing
    return updated
