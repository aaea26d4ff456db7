"""Run third-party functions and coroutines so that hanging code does not block anything else.

A cancel scope around each hook would cost 8 µs and could not abandon a coroutine that swallows its cancellation.
`TimedRun` adds no cost to a coroutine that never suspends, starts its timer only at the first suspension, and abandons
a coroutine that does not end soon after its cancellation.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

# The maximum number of threads per hook, which the manual in `hook` documents. They are enough for hooks that wait for
# a disk or a database, and the threads of a dozen hooks use little memory.
MAX_THREADS: Final = 8
# The maximum number of calls that wait for a thread. With the default timeout of 5 s, further calls would not get a
# thread in time.
MAX_WAITING_JOBS: Final = 256


class ThreadsBusy(Exception):
    """All threads are busy, and too many calls are already waiting for one."""


class DaemonThreads:
    """A pool of daemon threads for one hook, each started on demand.

    `anyio.to_thread` is unsuitable: its threads keep the process alive, and hanging hooks would use up the threads that
    the rest of the gateway needs, too.
    """

    def __init__(self, name: str, limit: int = MAX_THREADS) -> None:
        self._name = name
        self._limit = limit
        # The queue itself is unbounded; `run` rejects a job before there are more than MAX_WAITING_JOBS.
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started = 0
        self._unfinished = 0

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function and return its result. If this is cancelled, the function continues and its result is dropped.

        Raises:
            ThreadsBusy: Too many calls are waiting for a thread; the function was not run.
        """
        if self._unfinished >= self._limit + MAX_WAITING_JOBS:
            raise ThreadsBusy
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def finished(value: T | None, error: BaseException | None) -> None:
            self._unfinished -= 1
            if outcome.done():  # the call was cancelled in the meantime
                return
            if error is None:
                outcome.set_result(value)  # type: ignore[arg-type] # None only where T is None
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                outcome.set_exception(error)
            else:  # a future rejects StopIteration, and the loop would act on SystemExit
                outcome.set_exception(RuntimeError(f"raised {type(error).__name__}"))

        def job() -> None:
            value: T | None = None
            failed: BaseException | None = None
            if not outcome.done():  # the caller may have given up while the job was queued
                try:
                    value = function(*arguments)
                except BaseException as error:  # noqa: BLE001 - boundary: any exception belongs to the call
                    failed = error
            with suppress(RuntimeError):  # the loop may have been closed
                loop.call_soon_threadsafe(finished, value, failed)

        self._unfinished += 1
        if self._unfinished > self._started and self._started < self._limit:
            self._started += 1
            threading.Thread(target=self._work, name=f"hook {self._name}", daemon=True).start()
        self._jobs.put(job)
        return await outcome

    def close(self) -> None:
        """Let the threads exit after the queued functions have run."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


# How long a cancelled coroutine may take to close files and connections while the caller waits. Closing them takes a
# few milliseconds.
GRACE_S: Final = 0.5
# The maximum number of cancellations before a coroutine is abandoned. An expired anyio scope in the coroutine cancels
# it in every iteration of the event loop. A coroutine that awaits in several `finally` blocks needs an iteration for
# each block. A coroutine that survives a hundred cancellations is swallowing them.
MAX_CANCELLATIONS: Final = 100
# A sentinel, because a coroutine may yield any value, including None.
NOT_BEGUN: Final = object()


class TimedOut(Exception):
    """The timeout expired. This is not a `TimeoutError`, because the coroutine itself may raise `TimeoutError`."""


class BaseExceptionRaised(Exception):
    """The coroutine raised a `BaseException` other than `Exception`: a cancellation, exit or interrupt."""


class TimedRun(Awaitable[T]):
    """Awaits a coroutine in the current task with a timeout.

    Raises:
        TimedOut: The timeout expired. The coroutine was cancelled, and abandoned if the cancellation did not end it.
        BaseExceptionRaised: The coroutine raised a `BaseException` that is not an `Exception`.
        CancelledError: The task itself was cancelled.
    """

    __slots__ = ("_cancelled_by_us", "_coroutine", "_task", "_timeout_s", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, T], timeout_s: float, waits_for: object = NOT_BEGUN) -> None:
        """Wrap a coroutine.

        Args:
            timeout_s: Time limit, counted from the first suspension.
            waits_for: The value yielded by the coroutine's first step, if the caller has already run that step.
        """
        self._coroutine = coroutine
        self._timeout_s = timeout_s
        self._waits_for = waits_for
        self._task: asyncio.Task[Any] | None = None
        self._cancelled_by_us = False

    def __await__(self) -> Generator[Any, Any, T]:
        if self._waits_for is not NOT_BEGUN:
            return (yield from self._step_until_done(self._waits_for))
        try:
            waits_for = self._coroutine.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return] # the return value, untyped in StopIteration
        except Exception:
            raise
        except BaseException as error:  # noqa: BLE001 - boundary: the coroutine may raise anything
            raise BaseExceptionRaised(type(error).__name__) from None
        return (yield from self._step_until_done(waits_for))

    def _step_until_done(self, waits_for: Any) -> Generator[Any, Any, T]:
        """Resume the coroutine repeatedly, relaying yielded and sent values, until it ends or is abandoned."""
        coroutine, loop = self._coroutine, asyncio.get_running_loop()
        self._task = task = asyncio.current_task()
        assert task is not None
        requested = task.cancelling()
        timer = loop.call_later(self._timeout_s, self._time_out)
        timed_out, cancellations = False, 0
        # The latest cancellation that did not come from the timer: from a scope in the coroutine, or from another task.
        cancelled: asyncio.CancelledError | None = None
        try:
            while True:
                thrown: BaseException | None = None
                try:
                    sent = yield waits_for
                except asyncio.CancelledError as error:
                    thrown, grace_is_over = error, False
                    if self._cancelled_by_us:
                        self._cancelled_by_us, grace_is_over = False, timed_out
                        timed_out = True
                        # Undo the task's cancellation immediately, so that the task does not appear cancelled to other
                        # code.
                        task.uncancel()
                        timer = loop.call_later(GRACE_S, self._time_out)
                    else:
                        cancelled = error
                    cancellations += 1
                    if grace_is_over or cancellations > MAX_CANCELLATIONS:
                        self._abandon()
                        if cancelled is not None and task.cancelling() > requested:
                            raise cancelled from None
                        raise TimedOut from None
                except BaseException as error:  # noqa: BLE001 - relayed to the coroutine
                    thrown = error
                try:
                    waits_for = coroutine.send(sent) if thrown is None else coroutine.throw(thrown)
                except BaseException as error:
                    # Scopes inside the coroutine have undone their own cancellations. Any remaining cancellation was
                    # requested for the task itself.
                    if cancelled is not None and task.cancelling() > requested:
                        raise cancelled from None
                    if timed_out:
                        raise TimedOut from None
                    if isinstance(error, StopIteration):
                        return error.value  # type: ignore[no-any-return] # as above
                    if isinstance(error, Exception):
                        raise
                    raise BaseExceptionRaised(type(error).__name__) from None
        finally:
            timer.cancel()

    def _time_out(self) -> None:
        assert self._task is not None
        self._cancelled_by_us = True
        self._task.cancel()

    def _abandon(self) -> None:
        with suppress(BaseException):  # boundary: the coroutine refuses to end and will not be resumed
            self._coroutine.close()
