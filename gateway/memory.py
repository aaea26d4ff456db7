"""Memory of a long-lived process: what stays is frozen for the collector, what is free goes back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from contextlib import suppress
from typing import Final

import anyio

from registry.catalog.catalog import CatalogChange
from registry.catalog.store import Registry

SETTLE_S: Final = 2.0
"""Upstreams that connect at a start, or a reload, list within this time of each other."""
THOROUGH_S: Final = 300.0
"""Sessions that ended since hold a few KiB each: to look for them costs 20 ms and more."""


async def keep_settled(registry: Registry, *, settle_s: float = SETTLE_S, thorough_s: float = THOROUGH_S) -> None:
    """Freeze long-lived objects for the garbage collector, now and after each change of the catalog.

    It would traverse every definition again and again, and block all calls for 20 ms and more each time: with a
    hundred callers that is the 99th percentile of their latency.

    Args:
        registry: Its changes are waited for.
        settle_s: How long a burst of changes may last.
        thorough_s: How often at most frozen objects are collected too: sessions are frozen with the rest, and end.
    """
    changed = anyio.Event()
    thorough_at_s = time.monotonic()

    def on_change(change: CatalogChange) -> None:
        changed.set()

    unsubscribe = registry.subscribe(on_change)
    try:
        while True:
            # Changes come in bursts, as at the start.
            await anyio.sleep(settle_s)
            if time.monotonic() - thorough_at_s >= thorough_s:
                thorough_at_s = time.monotonic()
                gc.unfreeze()
            gc.collect()
            gc.freeze()
            give_back()
            await changed.wait()
            changed = anyio.Event()
    finally:
        unsubscribe()


def give_back() -> None:
    """Return free pages to the system, with glibc; it takes some milliseconds, so only on rare occasions.

    A long list or a large result leaves holes between small objects that live on, and glibc by itself returns only
    what is free at the end of its heap.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
