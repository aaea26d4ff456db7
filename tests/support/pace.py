"""How fast the machine is at present, for tests of how long a start takes."""

from __future__ import annotations

import subprocess
import sys
import time

import anyio

# A limit is at least this many imports of the gateway, which are most of a start. A longer delay has another cause.
_STARTS = 4


async def limit_now(limit_s: float) -> float:
    """This limit; more, where a bare start of the gateway takes so long at present that it could not be kept."""
    began_s = time.monotonic()
    await anyio.run_process([sys.executable, "-c", "import gateway.serving.app"], stderr=subprocess.DEVNULL)
    return max(limit_s, _STARTS * (time.monotonic() - began_s))
