"""Who watches which resource or task: one subscription upstream for any number of callers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from gateway.upstream.link import UpstreamLink
from gateway.upstream.watch_list import WatchedKind

log = logging.getLogger(__name__)

SETTLE_S: Final = 3.0

Listener = Callable[[dict[str, Any]], None]
_Key = tuple[str, WatchedKind, str]


class Subscriptions:
    """Joins callers to what their upstreams tell; a listener is synchronous and quick."""

    def __init__(self, links: Mapping[str, UpstreamLink]) -> None:
        self._links = links
        self._listeners: dict[_Key, dict[object, Listener]] = {}

    def add(self, server: str, kind: WatchedKind, key: str, listener: Listener) -> Callable[[], None]:
        """Watch something of a server; returns what ends that."""
        listeners = self._listeners.setdefault((server, kind, key), {})
        token = object()
        listeners[token] = listener
        link = self._links.get(server)
        if len(listeners) == 1 and link is not None:
            link.watch_list.add(kind, key)

        def remove() -> None:
            known = self._listeners.get((server, kind, key), {})
            if known.pop(token, None) is None or known:
                return
            del self._listeners[server, kind, key]
            link = self._links.get(server)
            if link is not None:
                link.watch_list.remove(kind, key)

        return remove

    async def settled(self, server: str) -> None:
        """Wait, bounded, until a connected upstream knows what is watched of it."""
        link = self._links.get(server)
        if link is not None and link.session is not None:
            with anyio.move_on_after(SETTLE_S):
                await link.watch_list.settled()

    def note(self, server: str, kind: WatchedKind, key: str, params: dict[str, Any]) -> None:
        """Tell everyone who watches it."""
        for listener in list(self._listeners.get((server, kind, key), {}).values()):
            try:
                listener(params)
            except Exception:  # boundary: one listener spoils nothing for the others
                log.exception("a listener of updates failed")

    def restore(self, server: str, link: UpstreamLink) -> None:
        """Watch on a new link what is still watched of a server that was configured anew."""
        for owner, kind, key in self._listeners:
            if owner == server:
                link.watch_list.add(kind, key)
