"""What a process that stays does about its memory: it keeps quiet about what stays, and gives back what is free."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from typing import Final

import anyio

from registry.catalog import CatalogChange
from registry.store import Registry

SETTLE_S: Final = 2.0


async def keep_settled(registry: Registry) -> None:
    """Take what is there to stay out of the garbage collector's rounds, now and after each change of the catalog.

    It would look at every definition again and again, and hold up all calls for 20 ms and more each time; with a
    hundred callers that is what the slowest one in a hundred waits for.
    """
    changed = anyio.Event()

    def hear(change: CatalogChange) -> None:
        changed.set()

    unsubscribe = registry.subscribe(hear)
    try:
        while True:
            # Changes come in bursts, as at the start.
            await anyio.sleep(SETTLE_S)
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
