"""Memory that was freed goes back to the system, where the allocator would keep it for want of a reason."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress


def give_back() -> None:
    """Return free pages to the system, with glibc; some milliseconds, for rare occasions only.

    Large answers that were never read leave holes between small things that live on: glibc returns only what is
    free at the end of its heap.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
