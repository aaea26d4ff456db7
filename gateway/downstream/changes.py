"""Announce changes of the catalog: coalesced, to every subscriber, each with the lists of its own profile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import anyio

from gateway.calls.profile_views import ProfileViews
from registry.catalog.catalog import ListKind
from registry.catalog.store import Registry
from registry.views.profile import DEFAULT_PROFILE

log = logging.getLogger(__name__)

# Several upstreams that connect together are one change for a host; nobody notices a delay of this length.
_COALESCE_S: Final = 0.03

Listener = Callable[[list[ListKind]], None]


@dataclass(slots=True)
class _Subscriber:
    """One listener, and the state of the lists that it was last told of."""

    profile: str
    listener: Listener
    lists: Mapping[ListKind, object]


class ChangeAnnouncer:
    """Tells every subscriber, once for each burst of changes, which lists of its profile differ from before."""

    def __init__(self, registry: Registry, views: ProfileViews) -> None:
        self._views = views
        self._changed = anyio.Event()
        self._subscribers: dict[int, _Subscriber] = {}
        self._next = 0
        self._unsubscribe = registry.subscribe(lambda change: self.notice_change(), always=True)

    def subscribe(self, listener: Listener, profile: str = DEFAULT_PROFILE) -> Callable[[], None]:
        """Call `listener`, which must not block, at each change from now on; returns what ends that."""
        self._next += 1
        key = self._next
        self._subscribers[key] = _Subscriber(profile, listener, _states(self._views, profile))

        def end() -> None:
            self._subscribers.pop(key, None)

        return end

    def notice_change(self) -> None:
        """Note that something may have changed which lists are made of."""
        self._changed.set()

    async def run(self) -> None:
        """Announce until cancelled."""
        try:
            while True:
                await self._changed.wait()
                await anyio.sleep(_COALESCE_S)
                self._changed = anyio.Event()
                profiles = {subscriber.profile for subscriber in self._subscribers.values()}
                states = {profile: _states(self._views, profile) for profile in profiles}
                for subscriber in list(self._subscribers.values()):
                    self._tell(subscriber, states[subscriber.profile])
        finally:
            self._unsubscribe()

    def _tell(self, subscriber: _Subscriber, now: Mapping[ListKind, object]) -> None:
        before, subscriber.lists = subscriber.lists, now
        kinds: list[ListKind] = sorted(kind for kind in now if before.get(kind) != now[kind])
        if kinds:
            try:
                subscriber.listener(kinds)
            except Exception:  # boundary: one listener spoils nothing for the others
                log.exception("a listener of changes failed")


def _states(views: ProfileViews, profile: str) -> Mapping[ListKind, object]:
    """For each list a value that changes when the list does; nothing for a profile that is gone."""
    if profile not in views.profiles:
        return {}
    view = views.view(profile)
    digests = view.catalog.prompts_and_resources.digests
    return {
        "tools": view.digest,
        "prompts": digests.get("prompts"),
        "resources": (digests.get("resources"), digests.get("resourceTemplates")),
    }
