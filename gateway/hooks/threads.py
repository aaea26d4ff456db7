"""A few daemon threads for blocking functions of foreign code: one that hangs never keeps the process alive."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

# The manual in `hook` promises eight: enough for hooks that wait for a disk or a database, and few enough that
# the threads of a dozen hooks cost no memory to speak of.
MAX_THREADS: Final = 8
# Calls that may wait for a thread; at the default time-out of 5 s more could not all get their turn.
MAX_WAITING_JOBS: Final = 256


class ThreadsBusy(Exception):
    """Every thread is busy, and too many calls wait for one already."""


class DaemonThreads:
    """A pool of daemon threads, each started when it is first needed.

    `anyio.to_thread` does not fit: its threads keep the process alive, and a hook that hangs would use up the limit
    that everything else shares.
    """

    def __init__(self, name: str, limit: int = MAX_THREADS) -> None:
        self._name = name
        self._limit = limit
        # Unbounded by itself; `run` refuses a job before it would grow beyond MAX_WAITING_JOBS.
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started = 0
        self._unfinished = 0

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function and return what it returns; on cancellation it runs on, and its outcome is dropped.

        Raises:
            ThreadsBusy: It was not run.
        """
        if self._unfinished >= self._limit + MAX_WAITING_JOBS:
            raise ThreadsBusy
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def finished(value: T | None, error: BaseException | None) -> None:
            self._unfinished -= 1
            if outcome.done():  # cancelled meanwhile
                return
            if error is None:
                outcome.set_result(value)  # type: ignore[arg-type] # None only where T is None
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                outcome.set_exception(error)
            else:  # a future refuses StopIteration, and the loop would take SystemExit for its own
                outcome.set_exception(RuntimeError(f"raised {type(error).__name__}"))

        def job() -> None:
            value: T | None = None
            failed: BaseException | None = None
            if not outcome.done():  # its caller may have given up while it waited for a thread
                try:
                    value = function(*arguments)
                except BaseException as error:  # noqa: BLE001 - boundary: whatever it raises belongs to its call
                    failed = error
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(finished, value, failed)

        self._unfinished += 1
        if self._unfinished > self._started and self._started < self._limit:
            self._started += 1
            threading.Thread(target=self._work, name=f"hook {self._name}", daemon=True).start()
        self._jobs.put(job)
        return await outcome

    def close(self) -> None:
        """Let every thread end after the functions that are queued."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
