"""Announce changes of the catalog: coalesced, at a bounded rate, to every subscriber with the lists of its profile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import anyio

from gateway.access.principal import Principal
from gateway.calls.profile_views import ProfileViews
from gateway.upstream.backoff import Damping
from registry.catalog.catalog import ListKind
from registry.catalog.store import Registry
from registry.policy.grant import Grant
from registry.views.profile import DEFAULT_PROFILE

log = logging.getLogger(__name__)

# Several upstreams that connect together are one change for a host; nobody notices a delay of this length.
_COALESCE_S: Final = 0.03
# A host lists again at each announcement, which may change the prompt of its model. A restart of many servers is
# announced as it happens; lists that keep changing, once a second.
_BURST: Final = 20
_INTERVAL_S: Final = 1.0

Listener = Callable[[list[ListKind]], None]


def _operator() -> None:
    """Who sees everything."""


@dataclass(slots=True)
class _Subscriber:
    """One listener, and the state of the lists that it was last told of."""

    profile: str
    principal: Callable[[], Principal | None]
    listener: Listener
    lists: Mapping[ListKind, object]


class ChangeAnnouncer:
    """Tells every subscriber, once for each burst of changes, which lists of its profile differ from before."""

    def __init__(self, registry: Registry, views: ProfileViews) -> None:
        self._views = views
        self._changed = anyio.Event()
        self._subscribers: dict[int, _Subscriber] = {}
        self._next = 0
        self._damping = Damping(burst=_BURST, interval_s=_INTERVAL_S)
        self._unsubscribe = registry.subscribe(lambda change: self.notice_change(), always=True)
        registry.subscribe_own(self.notice_change)

    def subscribe(
        self, listener: Listener, profile: str = DEFAULT_PROFILE, principal: Callable[[], Principal | None] = _operator
    ) -> Callable[[], None]:
        """Call `listener`, which must not block, at each change from now on of what this caller is shown.

        Args:
            listener: Takes the lists that have changed.
            profile: The profile that it looks at.
            principal: Who looks at that moment: with its next token a caller may see something else. None for an
                operator, who sees everything.

        Returns:
            What ends that.
        """
        self._next += 1
        key = self._next
        self._subscribers[key] = _Subscriber(profile, principal, listener, _states(self._views, profile, principal()))

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
                await anyio.sleep(max(_COALESCE_S, self._damping.pause_s(anyio.current_time())))
                self._changed = anyio.Event()
                has_told = False
                states: dict[tuple[str, Grant, str], Mapping[ListKind, object]] = {}
                for subscriber in list(self._subscribers.values()):
                    profile, principal = subscriber.profile, subscriber.principal()
                    key = (profile, self._views.grant(principal), self._views.owner(principal))
                    if key not in states:
                        if profile in self._views.profiles:
                            # A large one is made aside.
                            await self._views.prepared(profile, principal)
                        states[key] = _states(self._views, profile, principal)
                    has_told = self._tell(subscriber, states[key]) or has_told
                if has_told:
                    self._damping.spend(anyio.current_time())
        finally:
            self._unsubscribe()

    def _tell(self, subscriber: _Subscriber, now: Mapping[ListKind, object]) -> bool:
        before, subscriber.lists = subscriber.lists, now
        kinds: list[ListKind] = sorted(kind for kind in now if before.get(kind) != now[kind])
        if kinds:
            try:
                subscriber.listener(kinds)
            except Exception:  # boundary: one listener spoils nothing for the others
                log.exception("a listener of changes failed")
        return bool(kinds)


def _states(views: ProfileViews, profile: str, principal: Principal | None) -> Mapping[ListKind, object]:
    """For each list a value that changes when the list does; nothing for a profile that is gone."""
    if profile not in views.profiles:
        return {}
    view = views.view(profile, principal)
    digests = view.catalog.prompts_and_resources.digests
    return {
        "tools": view.digest,
        "prompts": (digests.get("prompts"), view.grant.opens("prompts")),
        "resources": (digests.get("resources"), digests.get("resourceTemplates")),
    }
