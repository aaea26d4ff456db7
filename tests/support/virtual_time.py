"""Run coroutines whose timers end at once: the clock of the event loop skips every wait."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")


class _SkippingSelector(selectors.DefaultSelector):
    """Adds up the time that the event loop would wait for its next timer."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None:
            self.skipped_s += timeout
        return ready


class _SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return super().time() + self._skipping.skipped_s


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test that waits only for timers and for its own tasks."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=_SkippingLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
