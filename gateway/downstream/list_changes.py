"""Notify callers of changed lists of tools, prompts and resources, coalesced and rate-limited."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import anyio

from gateway.access.principal import Principal
from gateway.calls.profile_views import ProfileViews
from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.upstream.breaker import ReactionLimiter
from registry.catalog.catalog import ListKind
from registry.catalog.registry import Registry
from registry.policy.policy import Grant
from registry.views.profile import DEFAULT_PROFILE

log = logging.getLogger(__name__)

# The delay before a notification, so that upstreams that connect within this time cause only one. Users do not notice
# a delay of this length.
_COALESCE_S: Final = 0.03
# The rate limit of notifications. After each of them, a host lists again, which may change the prompt of its model.
# The burst allows the restart of many servers; lists that keep changing are announced once per second.
_BURST: Final = 20
_INTERVAL_S: Final = 1.0

Listener = Callable[[list[ListKind]], None]


def _operator() -> None:
    """Return None, which stands for an operator; operators see everything."""


@dataclass(slots=True)
class _Subscriber:
    """A listener, and the last compared states of the lists that it is notified about."""

    profile: str
    principal: Callable[[], Principal | None]
    listener: Listener
    lists: Mapping[ListKind, object]


class ChangeAnnouncer(Reconfigurable):
    """Notifies each subscriber of changes to the lists that the subscriber sees, once per burst of changes."""

    def __init__(self, registry: Registry, views: ProfileViews) -> None:
        self._views = views
        self._changed = anyio.Event()
        self._subscribers: dict[int, _Subscriber] = {}
        self._next = 0
        self._limiter = ReactionLimiter(burst=_BURST, interval_s=_INTERVAL_S)
        self._unsubscribe = registry.subscribe(lambda change: self.notice_change(), always=True)
        registry.subscribe_own(self.notice_change)

    def subscribe(
        self, listener: Listener, profile: str = DEFAULT_PROFILE, principal: Callable[[], Principal | None] = _operator
    ) -> Callable[[], None]:
        """Call `listener`, which must not block, whenever the lists that this caller sees change.

        Args:
            listener: Called with the kinds of the lists that have changed.
            principal: Returns the caller with its current permissions, which may change with its next token; None for
                an operator, who sees everything.

        Returns:
            A function that ends the subscription.
        """
        self._next += 1
        key = self._next
        self._subscribers[key] = _Subscriber(profile, principal, listener, _states(self._views, profile, principal()))

        def end() -> None:
            self._subscribers.pop(key, None)

        return end

    async def validate(self, change: ConfigChange) -> Apply:
        return self.notice_change

    def notice_change(self) -> None:
        """Schedule a comparison of all lists with their last states."""
        self._changed.set()

    async def run(self) -> None:
        """Notify subscribers of changes until cancelled."""
        try:
            while True:
                await self._changed.wait()
                await anyio.sleep(max(_COALESCE_S, self._limiter.pause_s(anyio.current_time())))
                self._changed = anyio.Event()
                has_notified = False
                states: dict[tuple[str, Grant, str], Mapping[ListKind, object]] = {}
                for subscriber in list(self._subscribers.values()):
                    profile, principal = subscriber.profile, subscriber.principal()
                    key = (profile, self._views.grant(principal), self._views.owner(principal))
                    if key not in states:
                        if profile in self._views.profiles:
                            # Build a large view in a thread, so that `_states` below does not block.
                            await self._views.prepared(profile, principal)
                        states[key] = _states(self._views, profile, principal)
                    has_notified = self._notify(subscriber, states[key]) or has_notified
                if has_notified:
                    self._limiter.spend(anyio.current_time())
        finally:
            self._unsubscribe()

    def _notify(self, subscriber: _Subscriber, now: Mapping[ListKind, object]) -> bool:
        before, subscriber.lists = subscriber.lists, now
        kinds: list[ListKind] = sorted(kind for kind in now if before.get(kind) != now[kind])
        if kinds:
            try:
                subscriber.listener(kinds)
            except Exception:  # boundary: one listener must not affect the others
                log.exception("change listener failed")
        return bool(kinds)


def _states(views: ProfileViews, profile: str, principal: Principal | None) -> Mapping[ListKind, object]:
    """Return, for each list, a value that changes whenever the list changes; empty if the profile was removed."""
    if profile not in views.profiles:
        return {}
    view = views.view(profile, principal)
    digests = view.catalog.prompts_and_resources.digests
    return {
        "tools": view.digest,
        "prompts": (digests.get("prompts"), view.grant.opens("prompts")),
        # Changed skills are announced as changed resources: MCP has no notification for skills, and skill files are
        # resources.
        "resources": (digests.get("resources"), digests.get("resourceTemplates"), digests.get("skills")),
    }
