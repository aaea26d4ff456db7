"""What a process that stays does about its memory: it keeps quiet about what stays, and gives back what is free."""

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
THOROUGH_S: Final = 300.0


async def keep_settled(registry: Registry, *, settle_s: float = SETTLE_S, thorough_s: float = THOROUGH_S) -> None:
    """Take what is there to stay out of the garbage collector's rounds, now and after each change of the catalog.

    It would look at every definition again and again, and hold up all calls for 20 ms and more each time; with a
    hundred callers that is what the slowest one in a hundred waits for.

    Args:
        registry: Whose changes are meant.
        settle_s: How long a burst of changes may last.
        thorough_s: So often at most, what was taken out is looked at once more: sessions are there to stay too, and
            end one day.
    """
    changed = anyio.Event()
    thorough_at_s = time.monotonic()

    def hear(change: CatalogChange) -> None:
        changed.set()

    unsubscribe = registry.subscribe(hear)
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
    """Return free pages to the system, with glibc; some milliseconds, for rare occasions only.

    A long list that was read, or a large answer that was not, leaves holes between small things that live on: glibc
    returns only what is free at the end of its heap.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
