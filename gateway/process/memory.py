"""Tune garbage collection and the memory allocator for a long-lived process.

*Frozen* objects are those in the permanent generation of the garbage collector (`gc.freeze`), which collections skip.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import anyio
import anyio.to_thread

from registry.catalog.catalog import CatalogChange
from registry.catalog.registry import Registry

SETTLE_S: Final = 2.0
"""Seconds to wait after a change of the catalog: at startup or after a reload, upstreams list their tools within this
time of each other."""
THOROUGH_S: Final = 300.0
"""Minimum seconds between collections that include frozen objects. Each ended session leaves a few KiB of garbage among
frozen objects; a collection takes 20 ms."""
_CHECK_S: Final = 5.0
"""Seconds between checks for garbage. A busy gateway produces at most a few MB in this time."""
# Allocations before a collection of the youngest generation. With the default of 700, the collector would repeatedly
# traverse the objects of two dozen concurrent calls, which takes 2 % of their time. Fewer collections are sufficient,
# because only failed calls may leave reference cycles.
_YOUNG: Final = 2_000
# Collections of the second generation after which the interpreter would run a full collection.
_FULL_AFTER: Final = 10
# Disables automatic full collections; `Collector` decides when to run one.
_NEVER: Final = 1_000_000_000
# Minimum number of objects, including strings and numbers, of a large gateway, which has several hundred tools. An
# empty gateway has 290,000 objects. Traversing so many objects takes about 20 ms, so a large gateway runs full
# collections only when idle.
_LARGE_OBJECTS: Final = 330_000
# Number of new objects at which a large gateway freezes or collects them. The collector traverses about a third of the
# new objects, which takes about 10 ms.
_LARGE_NEW_OBJECTS: Final = 40_000
# A large gateway that is never idle collects frozen objects less often by this factor: four times a day.
_BUSY_FACTOR: Final = 72
# Number of new objects (about 300 MB) after which frozen objects are collected even if the gateway is busy, because a
# peer could create reference cycles to fill the memory.
_MOST_UNSEEN: Final = 3_000_000
# The gateway counts as idle if its main thread runs for less than this fraction of the time. Timers alone need less.
_IDLE: Final = 0.01
# If a collection takes longer than this many seconds, there are many sessions, and the surviving objects are frozen.
_LONG_S: Final = 0.01
# M_ARENA_MAX from glibc's <malloc.h>.
_M_ARENA_MAX: Final = -8


class Collector:
    """Keeps garbage collections short: small amounts of new objects at a time, and frozen objects only when idle.

    With Python's defaults, the collector would traverse every tool repeatedly and block all calls for at least 20 ms
    each time (0.1 s with 10,000 tools). With 100 callers, these pauses would define the 99th percentile of the latency.
    """

    def __init__(self, thorough_s: float = THOROUGH_S, *, most_unseen: int = _MOST_UNSEEN) -> None:
        """Start counting new objects.

        Args:
            thorough_s: Minimum seconds between collections that include frozen objects.
            most_unseen: The number of new objects after which frozen objects are collected in any case.
        """
        self._thorough_s = thorough_s
        self._most_unseen = most_unseen
        self._thorough_at_s = self._looked_at_s = time.monotonic()
        self._worked_s = time.thread_time()
        self._frozen = False
        self._known_blocks = self._thorough_blocks = sys.getallocatedblocks()

    def collect_if_due(self) -> None:
        """Collect new objects if there are many, and frozen objects if they are due and the gateway is idle."""
        is_idle = self._is_idle()
        if gc.get_count()[2] >= _FULL_AFTER or self._has_many_new():
            self.settle(freeze=False)
        is_due = is_idle and time.monotonic() - self._thorough_at_s >= self._thorough_s
        # Only a thorough collection frees reference cycles among frozen objects.
        if self._frozen and (is_due or sys.getallocatedblocks() - self._thorough_blocks > self._most_unseen):
            self._collect_thoroughly()

    def settle(self, *, freeze: bool = True) -> None:
        """Collect new objects, or freeze them without a collection if there are many.

        Args:
            freeze: Whether to freeze surviving objects too, or to collect all objects if a thorough collection is due.
        """
        since_s = time.monotonic() - self._thorough_at_s
        interval_factor = 1 if sys.getallocatedblocks() < _LARGE_OBJECTS else _BUSY_FACTOR
        if freeze and since_s >= interval_factor * self._thorough_s:
            self._collect_thoroughly()
            return
        if self._has_many_new():
            gc.freeze()
            self._frozen = True
        # If the new objects were frozen, nearly nothing is left to collect, but this resets the collector's counters.
        began_s = time.monotonic()
        gc.collect()
        if freeze or time.monotonic() - began_s > _LONG_S:
            gc.freeze()
            self._frozen = True
        self._known_blocks = sys.getallocatedblocks()

    def _collect_thoroughly(self) -> None:
        self._thorough_at_s = time.monotonic()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._known_blocks = self._thorough_blocks = sys.getallocatedblocks()

    def _has_many_new(self) -> bool:
        allocated = sys.getallocatedblocks()
        return allocated - self._known_blocks > (
            _LARGE_NEW_OBJECTS if allocated >= _LARGE_OBJECTS else 2 * _LARGE_NEW_OBJECTS
        )

    def _is_idle(self) -> bool:
        now_s, worked_s = time.monotonic(), time.thread_time()
        busy_fraction = (worked_s - self._worked_s) / max(now_s - self._looked_at_s, 1e-9)
        self._looked_at_s, self._worked_s = now_s, worked_s
        return busy_fraction < _IDLE


def use_one_heap() -> None:
    """Make all threads share one glibc heap. Call this at the start of a process.

    By default each thread gets its own heap to avoid contention, but the GIL lets only one thread run anyway.
    `return_memory` cannot trim the heaps of threads, so they would permanently waste 30 MB after listing 10,000 tools.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_memory() -> None:
    """Return free pages to the operating system (glibc only). This takes several milliseconds, so call it rarely.

    A long list or a large result leaves holes between small surviving objects, and glibc by itself returns only the
    free space at the end of its heap.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


async def freeze_settled(
    registry: Registry,
    *,
    settle_s: float = SETTLE_S,
    thorough_s: float = THOROUGH_S,
    return_free: Callable[[], None] = return_memory,
) -> None:
    """Freeze long-lived objects for the garbage collector, now and after each change of the catalog.

    Args:
        settle_s: Seconds to wait for a burst of changes to end.
        thorough_s: Minimum seconds between collections that include frozen objects, such as those of ended sessions.
        return_free: Returns free memory to the operating system, in a thread.
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
            with anyio.move_on_after(_CHECK_S):
                await changed.wait()
            if not changed.is_set():
                collector.collect_if_due()
                continue
            # Wait, because changes come in bursts, such as at startup, and thousands of new tools may still be written
            # to disk. Changes that arrive during the wait are handled in the next round, after another wait.
            changed = anyio.Event()
            await anyio.sleep(settle_s)
            collector.settle()
            await anyio.to_thread.run_sync(return_free)
    finally:
        gc.set_threshold(*usual)
        unsubscribe()
