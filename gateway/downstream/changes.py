"""Announce changes of the catalog: coalesced, to everyone who listens, each in its own way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import anyio

from gateway.calls.profile_views import ProfileViews
from registry.catalog.catalog import ListKind
from registry.catalog.store import Registry
from registry.views.profile import DEFAULT

log = logging.getLogger(__name__)

# Several upstreams that come up together are one change for a host.
_GATHER_S: Final = 0.03

Listener = Callable[[list[ListKind]], None]


@dataclass(slots=True)
class _Ear:
    """One listener, and the lists as it knows them."""

    profile: str
    listener: Listener
    known: Mapping[ListKind, object]


class Announcer:
    """Tells every listener once for each burst of changes which lists of its profile differ from those it knows."""

    def __init__(self, registry: Registry, views: ProfileViews) -> None:
        self._views = views
        self._changed = anyio.Event()
        self._ears: dict[int, _Ear] = {}
        self._next = 0
        self._unsubscribe = registry.subscribe(lambda change: self.stir(), always=True)

    def listen(self, listener: Listener, profile: str = DEFAULT) -> Callable[[], None]:
        """Call `listener`, synchronous and quick, at each change from now on; returns what ends that."""
        self._next += 1
        key = self._next
        self._ears[key] = _Ear(profile, listener, _lists(self._views, profile))

        def end() -> None:
            self._ears.pop(key, None)

        return end

    def stir(self) -> None:
        """Something that lists are made of may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Announce until cancelled."""
        try:
            while True:
                await self._changed.wait()
                await anyio.sleep(_GATHER_S)
                self._changed = anyio.Event()
                profiles = {ear.profile for ear in self._ears.values()}
                now = {profile: _lists(self._views, profile) for profile in profiles}
                for ear in list(self._ears.values()):
                    self._tell(ear, now[ear.profile])
        finally:
            self._unsubscribe()

    def _tell(self, ear: _Ear, now: Mapping[ListKind, object]) -> None:
        before, ear.known = ear.known, now
        kinds: list[ListKind] = sorted(kind for kind in now if before.get(kind) != now[kind])
        if kinds:
            try:
                ear.listener(kinds)
            except Exception:  # boundary: one listener spoils nothing for the others
                log.exception("a listener of changes failed")


def _lists(views: ProfileViews, profile: str) -> Mapping[ListKind, object]:
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
