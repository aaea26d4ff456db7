"""Subscriptions of callers to resources and tasks: one upstream subscription for any number of callers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import anyio

from gateway.upstream.link import UpstreamLink
from gateway.upstream.watch_list import WatchedKind

log = logging.getLogger(__name__)

# How long an acknowledgement waits for the upstream's: a round trip to a slow server; updates come in any case.
SETTLE_S: Final = 3.0

OnUpdate = Callable[[dict[str, Any]], None]
_Key = tuple[str, WatchedKind, str]


class UpstreamSubscriptions:
    """Shares upstream subscriptions among callers; an `OnUpdate` is synchronous and quick."""

    def __init__(self, link_of: Callable[[str], UpstreamLink | None]) -> None:
        """Subscribe on these links.

        Args:
            link_of: The link of a server by its alias, or by what `UserLinks.key_of` says for a caller of its own.
        """
        self._link_of = link_of
        self._listeners: dict[_Key, dict[object, OnUpdate]] = {}

    def add(self, server: str, kind: WatchedKind, key: str, on_update: OnUpdate) -> Callable[[], None]:
        """Subscribe to something of a server; returns a function that ends the subscription."""
        listeners = self._listeners.setdefault((server, kind, key), {})
        token = object()  # one function may subscribe twice, so it cannot be the key itself
        listeners[token] = on_update
        link = self._link_of(server)
        # The first subscriber subscribes upstream, the last one to leave unsubscribes.
        if len(listeners) == 1 and link is not None:
            link.watch_list.add(kind, key)

        def remove() -> None:
            known = self._listeners.get((server, kind, key), {})
            # It may be called twice, and while others are still subscribed.
            if known.pop(token, None) is None or known:
                return
            del self._listeners[server, kind, key]
            link = self._link_of(server)
            if link is not None:
                link.watch_list.remove(kind, key)

        return remove

    async def settled(self, server: str) -> None:
        """Wait, bounded, until a connected upstream has acknowledged all subscriptions."""
        link = self._link_of(server)
        if link is not None and link.session is not None:
            with anyio.move_on_after(SETTLE_S):
                await link.watch_list.settled()

    def note(self, server: str, kind: WatchedKind, key: str, params: dict[str, Any]) -> None:
        """Pass the params of an update on to all subscribers."""
        # A copy: a subscriber may unsubscribe while it is called.
        for listener in list(self._listeners.get((server, kind, key), {}).values()):
            try:
                listener(params)
            except Exception:  # boundary: one listener spoils nothing for the others
                log.exception("a subscriber of updates failed")

    def restore(self, server: str, link: UpstreamLink) -> None:
        """Subscribe on the new link of a reconfigured server to everything that callers are still subscribed to."""
        for owner, kind, key in self._listeners:
            if owner == server:
                link.watch_list.add(kind, key)
