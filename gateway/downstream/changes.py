"""Announce changes of the catalog: coalesced, to everyone who listens, each in its own way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import anyio

from registry.catalog import CatalogChange, ListKind
from registry.store import Registry

log = logging.getLogger(__name__)

# Several upstreams that come up together are one change for a host.
_GATHER_S: Final = 0.03

Listener = Callable[[list[ListKind]], None]


class Announcer:
    """Tells every listener once for each burst of catalog changes which lists have changed."""

    def __init__(self, registry: Registry) -> None:
        self._changed = anyio.Event()
        self._listeners: dict[int, Listener] = {}
        self._due: dict[int, set[ListKind]] = {}
        self._next = 0
        self._unsubscribe = registry.subscribe(self._note)

    def listen(self, listener: Listener) -> Callable[[], None]:
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
                due, self._due = self._due, {}
                for key, kinds in due.items():
                    try:
                        self._listeners.get(key, _nobody)(sorted(kinds))
                    except Exception:  # boundary: one listener spoils nothing for the others
                        log.exception("a listener of changes failed")
        finally:
            self._unsubscribe()

    def _note(self, change: CatalogChange) -> None:
        # Who comes after a change finds it in the list already.
        for key in self._listeners:
            self._due.setdefault(key, set()).update(change.kinds)
        self._changed.set()


def _nobody(kinds: list[ListKind]) -> None:
    """The listener that has left."""
