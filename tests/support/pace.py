"""How fast the machine is at present, for tests of how long something takes."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

# A limit is at least this many imports of the gateway, which are most of a start. A longer delay has another cause.
_STARTS = 4
# The processor time of `_reference_s` on a machine that does nothing else.
_IDLE_S = 0.01


async def limit_now(limit_s: float) -> float:
    """This limit; more, where a bare start of the gateway takes so long at present that it could not be kept."""
    began_s = time.monotonic()
    await anyio.run_process([sys.executable, "-c", "import gateway.serving.app"], stderr=subprocess.DEVNULL)
    return max(limit_s, _STARTS * (time.monotonic() - began_s))


@contextmanager
def limited_work(limit_s: float) -> Iterator[None]:
    """Fail if a block needs more than this processor time on an idle machine.

    On a machine whose processors are shared, the same work needs several times as much processor time as on an idle
    one. So the limit is as many times as long as it takes now to build and sort a list of texts.
    """
    before = slowness()
    # The time of a garbage collection depends on the objects of all other tests.
    gc.disable()
    try:
        began_s = time.process_time()
        yield
        took_s = time.process_time() - began_s
    finally:
        gc.enable()
    slow = max(before, slowness())
    assert took_s < limit_s * slow, f"{took_s:.3f} s of {limit_s} s, on a machine {slow:.1f} times as slow"


def slowness() -> float:
    """How many times as much processor time as on an idle machine the same work needs now; at least 1."""
    return max(1.0, _reference_s() / _IDLE_S)


def _reference_s() -> float:
    began_s = time.process_time()
    for _ in range(3):
        sorted(f"{number * 7919 % 10_007}" for number in range(7_000))
    return time.process_time() - began_s
