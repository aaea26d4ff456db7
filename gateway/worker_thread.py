"""Long work in a thread, while the event loop stays quick."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Lock
from typing import Final, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")

# The loop releases the interpreter at each system call, and gets it back from a busy thread only after this time:
# with the usual 5 ms a call of a dozen steps takes a tenth of a second longer.
_SWITCH_S: Final = 0.0005
_lock = Lock()
_working = 0
_usual_s = 0.005  # of CPython; read anew before it is changed


async def run_in_thread(work: Callable[[], T], *, limiter: anyio.CapacityLimiter | None = None) -> T:
    """Run work of more than some milliseconds, and return what it gives.

    Args:
        work: It.
        limiter: Bounds how many threads work at the same time; None for the usual bound.
    """
    return await anyio.to_thread.run_sync(_run, work, limiter=limiter)


def _run(work: Callable[[], T]) -> T:
    global _working, _usual_s
    # The interval is of the whole process: the first one in shortens it, the last one out restores it.
    with _lock:
        if _working == 0:
            _usual_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_SWITCH_S, _usual_s))
        _working += 1
    try:
        return work()
    finally:
        with _lock:
            _working -= 1
            if _working == 0:
                sys.setswitchinterval(_usual_s)
