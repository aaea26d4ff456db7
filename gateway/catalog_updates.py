"""Changes of a catalog of many tools: built beside the loop, and taken over whole at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import anyio

from gateway.worker_thread import run_in_thread
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.shape import Shape
from registry.catalog.store import Registry

# To build a catalog of so many tools takes some 5 ms, which other requests can wait.
_MAX_BUILT_INLINE: Final = 256
# While connections are lost and come back all the time nothing that is built stays the next one for long.
_MAX_BUILT_ASIDE: Final = 3

Confirm = Callable[[], ServerListing | None]
"""Returns what is to be put at this moment: usually what was announced, None where that is out of date."""
Planned = tuple[Shape, Iterable[ServerName], Iterable[ServerListing]]
"""A configuration of the catalog, the servers that leave it, and the listings that come into it."""


class CatalogUpdates:
    """Has catalogs built in a thread while calls go on, one at a time, and in the order of their listings.

    Readers see the old catalog until the new one is complete. What comes while one is built is built together: at a
    start all servers list at once.
    """

    def __init__(self, registry: Registry, worker: anyio.CapacityLimiter | None = None) -> None:
        """Update a registry; others may do so too, which costs only that something is built again.

        Args:
            registry: It.
            worker: Bounds how many threads work at the same time; None for one.
        """
        self._registry = registry
        self._worker = worker or anyio.CapacityLimiter(1)
        self._building = anyio.Lock()
        self._waiting: list[tuple[ServerListing, Confirm]] = []

    async def put(self, listing: ServerListing, confirm: Confirm) -> None:
        """Put a listing into the registry.

        Args:
            listing: What `confirm` is expected to return.
            confirm: Called once, at the moment when the listing is put.
        """
        if not self._waiting and self._is_small(len(listing.tools)):
            self._put([(listing, confirm)])
            return
        entry = (listing, confirm)
        self._waiting.append(entry)
        try:
            async with self._building:
                if entry not in self._waiting:
                    return  # it was built together with another one
                group = list(self._waiting)
                for _ in range(_MAX_BUILT_ASIDE):
                    if await self._built(partial(self._registry.build_ahead, put=[one for one, _ in group])):
                        break
                    group = list(self._waiting)
                self._waiting = [one for one in self._waiting if one not in group]
                self._put(group)
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    async def prepare(self, plan: Callable[[], Planned], *, more_tools: int = 0) -> None:
        """Build what `Registry.reshape` is about to be given, so that it takes no time.

        Args:
            plan: Returns what that is; called in a thread.
            more_tools: How many tools it brings that nobody has listed yet.
        """
        if not self._waiting and self._is_small(more_tools):
            return
        async with self._building:
            for _ in range(_MAX_BUILT_ASIDE):
                if await self._built(lambda: self._build(plan)):
                    return

    def _build(self, plan: Callable[[], Planned]) -> object:
        shape, drop, put = plan()
        return self._registry.build_ahead(shape=shape, drop=drop, put=put)

    async def _built(self, build: Callable[[], object]) -> bool:
        """Build aside; returns whether it is of use."""
        return await run_in_thread(build, limiter=self._worker) is self._registry.catalog

    def _is_small(self, more_tools: int = 0) -> bool:
        return len(self._registry.catalog.wrappers) + more_tools <= _MAX_BUILT_INLINE

    def _put(self, group: Iterable[tuple[ServerListing, Confirm]]) -> None:
        confirmed = [listing for _, confirm in group if (listing := confirm()) is not None]
        if confirmed:
            self._registry.reshape(self._registry.shape, put=confirmed)
