"""When a connected server is listed again, and which of its lists: decisions alone, the link waits and asks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import anyio

from gateway.upstream.backoff import Damping, delay_s
from gateway.upstream.session import ALL_KINDS, RawListing
from registry.catalog.catalog import ListKind

# Where a server announces no changes and gives no time to live: what hosts take for a list's usual age.
POLL_S: Final = 60.0
# The shortest pause between two polls, whatever time to live a server names.
_MIN_POLL_S: Final = 1.0
# Polls of several gateways that were started together drift apart by a fifth to either side.
_POLL_JITTER: Final = 0.2
# Servers announce each of a row of changes: what comes within this time is listed once.
_GATHER_S: Final = 0.05
# A server may change what it lists with each of some calls in a row; one that keeps announcing is listed once a second.
_BURST: Final = 10
_INTERVAL_S: Final = 1.0
# Where nothing had changed, as where listing itself causes the announcement, each time costs twice as much as before,
# up to so many intervals.
_LONGEST_UNCHANGED: Final = 10


class Relisting:
    """What is due of one connection. Times are those of one clock, in seconds.

    Attributes:
        left_out: Lists that are not asked for.
        has_listed: There was an answer that could be used, on this connection.
        stale: Set once a change is announced, and where it may not be announced any more.
    """

    def __init__(self, *, chance: Callable[[], float], universe: frozenset[ListKind] = ALL_KINDS) -> None:
        """Begin before the first listing.

        Args:
            chance: Random numbers in [0, 1).
            universe: The lists that are looked after.
        """
        self._chance = chance
        self._universe = universe
        self.left_out: frozenset[ListKind] = frozenset()
        self._failed = self.has_listed = False
        self._missing: frozenset[ListKind] = frozenset()
        self._failures = 0
        self._stale_kinds: set[ListKind] = set()
        self.stale = anyio.Event()
        self._damping = Damping(burst=_BURST, interval_s=_INTERVAL_S)
        self._unchanged = 0

    @property
    def universe(self) -> frozenset[ListKind]:
        """The lists that are looked after."""
        return self._universe - self.left_out

    def begin(self, listing: RawListing, *, failed: bool, now_s: float) -> None:
        """Go on from the first listing.

        Args:
            listing: It.
            failed: There was none, and the one of another connection is in use.
            now_s: When that was.
        """
        self._failed, self.has_listed = failed, not failed
        self._missing = listing.failed & self.universe
        self._failures = int(failed or bool(self._missing))
        self._plan_poll(listing.ttl_ms, now_s)

    def mark_stale(self, kinds: Collection[ListKind]) -> None:
        """Note that these lists have changed; none of them where only somebody has to look whether to poll."""
        mine = self.universe.intersection(kinds)
        self._stale_kinds |= mine
        if mine or not kinds:
            self.stale.set()

    def take_stale(self) -> frozenset[ListKind]:
        """Return the lists of which a change was announced; from now on further changes are gathered."""
        stale, self._stale_kinds, self.stale = frozenset(self._stale_kinds), set(), anyio.Event()
        return stale

    def gather_s(self, now_s: float) -> float:
        """Return how long to gather announcements before the lists are asked for."""
        return max(_GATHER_S, self._damping.pause_s(now_s)) if self._stale_kinds else _GATHER_S

    def settle(self, stale: Collection[ListKind], now_s: float, *, changed: bool) -> None:
        """Count a listing that followed an announcement, which may have changed nothing."""
        if stale:
            self._unchanged = 0 if changed else min(self._unchanged + 1, _LONGEST_UNCHANGED)
            cost = min(2.0 ** max(0, self._unchanged - 1), _LONGEST_UNCHANGED)
            self._damping.spend(now_s, cost)

    def wait_s(self, now_s: float, *, announced: bool) -> float | None:
        """How long to wait for a change to be announced; None for however long that takes.

        Args:
            now_s: The time.
            announced: Whether the server announces changes.
        """
        if not self.universe:
            return None
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
            return self.universe
        return self._missing.union(stale) or self.universe

    def succeeded(self, listing: RawListing, kinds: frozenset[ListKind], now_s: float) -> None:
        """These lists were asked for, and this was the answer."""
        self._failed, self.has_listed = False, True
        self._missing = listing.failed & self.universe
        self._failures = self._failures + 1 if self._missing else 0
        if kinds == self.universe:
            self._plan_poll(listing.ttl_ms, now_s)

    def failed(self, stale: Collection[ListKind], now_s: float) -> None:
        """There was no answer that could be used; what was announced is asked for the next time."""
        self._failed = True
        self._failures += 1
        self._stale_kinds.update(stale)
        self.settle(stale, now_s, changed=False)

    def _polls(self, announced: bool) -> bool:
        return self._ttl_ms is not None or not announced

    def _plan_poll(self, ttl_ms: int | None, now_s: float) -> None:
        self._ttl_ms = ttl_ms
        # A hint of 0 means "do not cache", which for a live list means polling at leisure.
        hint_s = ttl_ms / 1000 if ttl_ms else POLL_S
        self._due_s = now_s + max(_MIN_POLL_S, hint_s) * (1 + _POLL_JITTER * (2 * self._chance() - 1))
