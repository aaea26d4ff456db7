"""Wait for a state that a test can only look at again, with a deadline."""

from __future__ import annotations

from typing import Any

import anyio


async def brief_pause() -> None:
    """Let other tasks and processes work before looking again at what they give no event for."""
    with anyio.move_on_after(0.02):
        await anyio.sleep_forever()


async def until(holds: Any, within_s: float = 25) -> Any:
    """Wait until a look that may be awaited finds something, and return it.

    Raises:
        TimeoutError: It has found nothing in time.
    """
    with anyio.fail_after(within_s):
        while True:
            found = holds()
            found = await found if hasattr(found, "__await__") else found
            if found:
                return found
            await brief_pause()
