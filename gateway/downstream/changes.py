"""Announce changes of the catalog: coalesced, to everyone who listens, each in its own way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import anyio

from gateway.calls.views import Views
from registry.catalog import ListKind
from registry.profile import DEFAULT
from registry.store import Registry

log = logging.getLogger(__name__)

# Several upstreams that come up together are one change for a host.
_GATHER_S: Final = 0.03

Listener = Callable[[list[ListKind]], None]


class Announcer:
    """Tells every listener once for each burst of changes which lists of its profile have changed."""

    def __init__(self, registry: Registry, views: Views) -> None:
        self._views = views
        self._changed = anyio.Event()
        self._listeners: dict[int, tuple[str, Listener]] = {}
        self._due: set[int] = set()
        self._told: dict[str, Mapping[ListKind, object]] = {}
        self._next = 0
        self._unsubscribe = registry.subscribe(lambda change: self.stir(), always=True)

    def listen(self, listener: Listener, profile: str = DEFAULT) -> Callable[[], None]:
        """Call `listener`, synchronous and quick, at each change; returns what ends that."""
        self._next += 1
        key = self._next
        self._listeners[key] = (profile, listener)
        if profile not in self._told or not self._changed.is_set():
            self._told[profile] = _lists(self._views, profile)
        return lambda: self._listeners.pop(key, None) and None

    def stir(self) -> None:
        """Something that lists are made of may have changed."""
        # Who comes after a change finds it in the list already.
        self._due.update(self._listeners)
        self._changed.set()

    async def run(self) -> None:
        """Announce until cancelled."""
        try:
            while True:
                await self._changed.wait()
                await anyio.sleep(_GATHER_S)
                self._changed = anyio.Event()
                due, self._due = self._due, set()
                kinds = {profile: self._news(profile) for profile in {one for one, _ in self._listeners.values()}}
                for key in sorted(due):
                    profile, listener = self._listeners.get(key, (DEFAULT, _nobody))
                    if kinds.get(profile):
                        self._tell(listener, kinds[profile])
        finally:
            self._unsubscribe()

    def _news(self, profile: str) -> list[ListKind]:
        before, after = self._told.get(profile, {}), _lists(self._views, profile)
        self._told[profile] = after
        return sorted(kind for kind in after if before.get(kind) != after[kind])

    def _tell(self, listener: Listener, kinds: list[ListKind]) -> None:
        try:
            listener(kinds)
        except Exception:  # boundary: one listener spoils nothing for the others
            log.exception("a listener of changes failed")


def _lists(views: Views, profile: str) -> Mapping[ListKind, object]:
    """What tells two states of each list apart; nothing for a profile that is gone."""
    if profile not in views.profiles:
        return {}
    view = views.view(profile)
    digests = view.catalog.offerings.digests
    return {
        "tools": view.digest,
        "prompts": digests.get("prompts"),
        "resources": (digests.get("resources"), digests.get("resourceTemplates")),
    }


def _nobody(kinds: list[ListKind]) -> None:
    """The listener that has left."""
