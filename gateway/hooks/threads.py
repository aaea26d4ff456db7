"""A few daemon threads for blocking functions of somebody else's: what hangs there never holds the process."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

MAX_THREADS: Final = 8
MAX_WAITING: Final = 256


class Busy(Exception):
    """Every thread is taken and too many wait already."""


class Threads:
    """Runs functions one after the other in each thread; threads are started as they are needed."""

    def __init__(self, name: str, limit: int = MAX_THREADS) -> None:
        self._name = name
        self._limit = limit
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started = 0
        self._unfinished = 0

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what the function returns; when this is cancelled it runs on, and nobody hears of it.

        Raises:
            Busy: It was not run.
        """
        if self._unfinished >= self._limit + MAX_WAITING:
            raise Busy
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def finished(value: T | None, error: BaseException | None) -> None:
            self._unfinished -= 1
            if outcome.done():
                return
            if error is None:
                outcome.set_result(value)  # type: ignore[arg-type] # None only where T is None
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                outcome.set_exception(error)
            else:
                outcome.set_exception(RuntimeError(f"raised {type(error).__name__}"))

        def job() -> None:
            value: T | None = None
            failed: BaseException | None = None
            if not outcome.done():
                try:
                    value = function(*arguments)
                except BaseException as error:  # noqa: BLE001 - boundary: whatever it raises belongs to its call
                    failed = error
            try:
                loop.call_soon_threadsafe(finished, value, failed)
            except RuntimeError:
                return  # the loop has ended meanwhile

        self._unfinished += 1
        if self._unfinished > self._started and self._started < self._limit:
            self._started += 1
            threading.Thread(target=self._work, name=f"hook {self._name}", daemon=True).start()
        self._jobs.put(job)
        return await outcome

    def close(self) -> None:
        """Let every thread end after its function."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
