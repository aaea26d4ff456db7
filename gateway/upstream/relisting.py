"""When a connected server is listed again, and which of its lists: decisions alone, the link waits and asks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from gateway.upstream.backoff import delay_s
from gateway.upstream.session import ALL_KINDS, RawListing
from registry.catalog.catalog import ListKind

# Where a server announces no changes and gives no time to live: what hosts take for a list's usual age.
POLL_S: Final = 60.0
# The shortest pause between two polls, whatever time to live a server names.
_MIN_POLL_S: Final = 1.0
# Polls of several gateways that were started together drift apart by a fifth to either side.
_POLL_JITTER: Final = 0.2


class Relisting:
    """What is due of one connection. Times are those of one clock, in seconds."""

    def __init__(self, listing: RawListing, *, failed: bool, now_s: float, chance: Callable[[], float]) -> None:
        """Begin after the first listing.

        Args:
            listing: It.
            failed: There was none, and the one of another connection is in use.
            now_s: When that was.
            chance: Random numbers in [0, 1).
        """
        self._chance = chance
        self._failed = failed
        self._missing = listing.failed
        self._failures = int(failed or bool(listing.failed))
        self._plan_poll(listing.ttl_ms, now_s)

    def wait_s(self, now_s: float, *, announced: bool) -> float | None:
        """How long to wait for a change to be announced; None for however long that takes.

        Args:
            now_s: The time.
            announced: Whether the server announces changes.
        """
        due_s = self._due_s - now_s if self._polls(announced) else None
        if not self._failures:
            return due_s
        # What could not be listed is tried again by itself: nobody announces it a second time.
        again_s = delay_s(self._failures, self._chance())
        return again_s if due_s is None or self._failed else min(again_s, due_s)

    def kinds(self, stale: Collection[ListKind], now_s: float, *, announced: bool) -> frozenset[ListKind]:
        """Which lists to ask for.

        Args:
            stale: Those of which a change was announced.
            now_s: The time.
            announced: Whether the server announces changes.
        """
        if self._polls(announced) and now_s >= self._due_s:
            return ALL_KINDS
        return self._missing.union(stale) or ALL_KINDS

    def succeeded(self, listing: RawListing, kinds: frozenset[ListKind], now_s: float) -> None:
        """These lists were asked for, and this was the answer."""
        self._failed, self._missing = False, listing.failed
        self._failures = self._failures + 1 if listing.failed else 0
        if kinds == ALL_KINDS:
            self._plan_poll(listing.ttl_ms, now_s)

    def failed(self) -> None:
        """There was no answer that could be used."""
        self._failed = True
        self._failures += 1

    def _polls(self, announced: bool) -> bool:
        return self._ttl_ms is not None or not announced

    def _plan_poll(self, ttl_ms: int | None, now_s: float) -> None:
        self._ttl_ms = ttl_ms
        # A hint of 0 means "do not cache", which for a live list means polling at leisure.
        hint_s = ttl_ms / 1000 if ttl_ms else POLL_S
        self._due_s = now_s + max(_MIN_POLL_S, hint_s) * (1 + _POLL_JITTER * (2 * self._chance() - 1))
