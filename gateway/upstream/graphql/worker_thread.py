"""Long work in a thread beside the loop, which stays quick meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Lock
from typing import Final, TypeVar

import anyio.to_thread

T = TypeVar("T")

# The loop gives the interpreter away at each system call, and gets it back from a busy thread only after this
# time: with the usual 5 ms a call of a dozen steps takes a tenth of a second longer.
_SWITCH_S: Final = 0.0005
_lock = Lock()
_working = 0
_usual_s = 0.005


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run work of more than some milliseconds, and return what it gives."""
    return await anyio.to_thread.run_sync(_run, work)


def _run(work: Callable[[], T]) -> T:
    global _working, _usual_s
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
