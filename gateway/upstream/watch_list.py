"""What of an upstream somebody watches: resources and tasks."""

from __future__ import annotations

from typing import Literal

import anyio

WatchedKind = Literal["resourceSubscriptions", "taskIds"]
"""As `subscriptions/listen` names them. Source: MCP 2026-07-28, "Subscriptions"."""


class WatchList:
    """The URIs and ids that somebody watches; it outlives the connections of its upstream."""

    def __init__(self) -> None:
        self.keys: dict[WatchedKind, set[str]] = {"resourceSubscriptions": set(), "taskIds": set()}
        self.changed = anyio.Event()
        self.version = 0
        self._applied_version = 0
        self._applied = anyio.Event()

    def add(self, kind: WatchedKind, key: str) -> None:
        """Watch one more."""
        self.keys[kind].add(key)
        self._change()

    def remove(self, kind: WatchedKind, key: str) -> None:
        """Watch one less."""
        self.keys[kind].discard(key)
        self._change()

    def applied(self, version: int) -> None:
        """The upstream has been told of this version of the list."""
        # A slower connection may report an older version after a newer one.
        self._applied_version = max(self._applied_version, version)
        self._applied.set()
        self._applied = anyio.Event()

    async def settled(self) -> None:
        """Wait until the upstream has been told of the list as it is now."""
        wanted = self.version
        while self._applied_version < wanted:
            await self._applied.wait()

    def __bool__(self) -> bool:
        return any(self.keys.values())

    def _change(self) -> None:
        self.version += 1
        # A new event each time: everyone who waits sees this change, and can wait for the next one.
        self.changed.set()
        self.changed = anyio.Event()
