"""Announce changes of the catalog: coalesced, to everyone who listens, each in its own way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import anyio

from registry.catalog import CatalogChange
from registry.store import Registry

log = logging.getLogger(__name__)

# Several upstreams that come up together are one change for a host.
_GATHER_S: Final = 0.03


class Announcer:
    """Wakes every listener once for each burst of catalog changes."""

    def __init__(self, registry: Registry) -> None:
        self._changed = anyio.Event()
        self._listeners: dict[int, Callable[[], None]] = {}
        self._due: set[int] = set()
        self._next = 0
        self._unsubscribe = registry.subscribe(self._note)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, synchronous and quick, at each change; returns what ends that."""
        self._next += 1
        key = self._next
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    async def run(self) -> None:
        """Announce until cancelled."""
        try:
            while True:
                await self._changed.wait()
                await anyio.sleep(_GATHER_S)
                self._changed = anyio.Event()
                due, self._due = sorted(self._due), set()
                for key in due:
                    try:
                        self._listeners.get(key, _nobody)()
                    except Exception:  # boundary: one listener spoils nothing for the others
                        log.exception("a listener of changes failed")
        finally:
            self._unsubscribe()

    def _note(self, change: CatalogChange) -> None:
        # Who comes after a change finds it in the list already.
        self._due.update(self._listeners)
        self._changed.set()


def _nobody() -> None:
    """The listener that has left."""
