"""Memory of a long-lived process: what stays is frozen for the collector, what is free goes back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from contextlib import suppress
from typing import Final

import anyio
import anyio.to_thread

from registry.catalog.catalog import CatalogChange
from registry.catalog.store import Registry

SETTLE_S: Final = 2.0
"""Upstreams that connect at a start, or a reload, list within this time of each other."""
THOROUGH_S: Final = 300.0
"""Sessions that ended since hold a few KiB each: to look for them costs 20 ms and more."""
_LOOK_S: Final = 5.0
"""How often it is looked whether there is anything to collect: in this time a busy gateway makes a few MB at most."""
# New objects before the youngest are looked through: with the usual 700 two dozens of calls in flight have them looked
# through again and again, for a fiftieth of all that calls take. Calls leave no cycles; what fails may.
_YOUNG: Final = 2_000
# Collections of the second generation after which the interpreter would collect all by itself.
_USUAL_FULL: Final = 10
# More than there will ever be: to collect everything is decided here.
_NEVER: Final = 1_000_000_000
# Objects, texts and numbers among them, of a gateway of some hundred tools: 290,000 are there before the first one. All
# are traversed within some 20 ms; more take longer than a caller should wait, so that it is done when nobody calls.
_MANY: Final = 330_000
# Of those, what may have come since: a third of it is traversed, within some 10 ms.
_MANY_NEW: Final = 40_000
# Frozen objects of a large gateway that is never idle are looked through after so many times as long: four times a day.
_BUSY_FACTOR: Final = 72
# What may stay unseen between two thorough looks, in objects: some 300 MB. Somebody may make cycles on purpose.
_MOST_UNSEEN: Final = 3_000_000
# Of its time that the thread of an idle gateway works: its own timers.
_IDLE: Final = 0.01
# Survivors that take longer than this to traverse are many sessions; they are frozen too.
_LONG_S: Final = 0.01
# Of glibc's <malloc.h>.
_M_ARENA_MAX: Final = -8


class Collector:
    """Collects within bounds of time: what is new and not too much, or what is frozen in an idle moment.

    It would traverse every tool again and again otherwise, and block all calls for 20 ms and more each time: with
    a hundred callers that is the 99th percentile of their latency, and with ten thousand tools a tenth of a second.
    """

    def __init__(self, thorough_s: float = THOROUGH_S, *, most_unseen: int = _MOST_UNSEEN) -> None:
        """Begin with what is there.

        Args:
            thorough_s: How often at most frozen objects are collected too.
            most_unseen: By how many objects a process may grow until they are collected in any case.
        """
        self._thorough_s = thorough_s
        self._most_unseen = most_unseen
        self._thorough_at_s = self._looked_at_s = time.monotonic()
        self._worked_s = time.thread_time()
        self._frozen = False
        self._known = self._at_last = sys.getallocatedblocks()

    def look(self) -> None:
        """Collect where there is reason to."""
        is_idle = self._is_idle()
        if gc.get_count()[2] >= _USUAL_FULL or self._has_many_new():
            self.settle(freeze=False)
        is_due = is_idle and time.monotonic() - self._thorough_at_s >= self._thorough_s
        # Frozen cycles are never freed otherwise.
        if self._frozen and (is_due or sys.getallocatedblocks() - self._at_last > self._most_unseen):
            self._collect_thoroughly()

    def settle(self, *, freeze: bool = True) -> None:
        """Collect what is new, or freeze it unseen where it is much; freeze what is left if that is wanted."""
        since_s = time.monotonic() - self._thorough_at_s
        patience = 1 if sys.getallocatedblocks() < _MANY else _BUSY_FACTOR
        if freeze and since_s >= patience * self._thorough_s:
            self._collect_thoroughly()
            return
        if self._has_many_new():
            gc.freeze()
            self._frozen = True
        # Of what is not frozen, which is next to nothing now, so that the collector begins to count anew.
        began_s = time.monotonic()
        gc.collect()
        if freeze or time.monotonic() - began_s > _LONG_S:
            gc.freeze()
            self._frozen = True
        self._known = sys.getallocatedblocks()

    def _collect_thoroughly(self) -> None:
        self._thorough_at_s = time.monotonic()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._known = self._at_last = sys.getallocatedblocks()

    def _has_many_new(self) -> bool:
        known = sys.getallocatedblocks()
        return known - self._known > (_MANY_NEW if known >= _MANY else 2 * _MANY_NEW)

    def _is_idle(self) -> bool:
        now_s, worked_s = time.monotonic(), time.thread_time()
        part = (worked_s - self._worked_s) / max(now_s - self._looked_at_s, 1e-9)
        self._looked_at_s, self._worked_s = now_s, worked_s
        return part < _IDLE


def use_one_heap() -> None:
    """Have all threads share one heap from now on, with glibc; for the beginning of a process.

    It would give each thread a heap of its own, so that none waits for another; the interpreter lets only one of them
    work anyway. What is free at the end of such a heap `give_back` does not reach: after ten thousand tools are listed
    that would be 30 MB for as long as the process lives.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


async def keep_settled(registry: Registry, *, settle_s: float = SETTLE_S, thorough_s: float = THOROUGH_S) -> None:
    """Freeze long-lived objects for the garbage collector, now and after each change of the catalog.

    Args:
        registry: Its changes are waited for.
        settle_s: How long a burst of changes may last.
        thorough_s: How often at most frozen objects are collected too: sessions are frozen with the rest, and end.
    """
    changed = anyio.Event()
    changed.set()

    def on_change(change: CatalogChange) -> None:
        changed.set()

    usual = gc.get_threshold()
    gc.set_threshold(_YOUNG, usual[1], _NEVER)
    collector = Collector(thorough_s)
    unsubscribe = registry.subscribe(on_change)
    try:
        while True:
            with anyio.move_on_after(_LOOK_S):
                await changed.wait()
            if not changed.is_set():
                collector.look()
                continue
            # Changes come in bursts, as at the start. What comes meanwhile is waited for as long: thousands of
            # tools that have just been listed are still being written to disk.
            changed = anyio.Event()
            await anyio.sleep(settle_s)
            collector.settle()
            await anyio.to_thread.run_sync(give_back)
    finally:
        gc.set_threshold(*usual)
        unsubscribe()


def give_back() -> None:
    """Return free pages to the system, with glibc; it takes some milliseconds, so only on rare occasions.

    A long list or a large result leaves holes between small objects that live on, and glibc by itself returns only
    what is free at the end of its heap.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
