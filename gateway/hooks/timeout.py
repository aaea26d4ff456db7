"""Await a foreign coroutine no longer than a time-out, whatever it does when it is cancelled.

A cancel scope around each hook would cost eight microseconds, and could not abandon a coroutine that swallows its
cancellation. Here a coroutine that never suspends costs nothing more, the timer is set only once it suspends, and
one that does not end soon after it was cancelled is abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

# What a cancelled coroutine gets to close its files and connections: closing takes milliseconds, and its caller waits.
GRACE_S: Final = 0.5
# An anyio scope that is over cancels in every turn of the loop. A coroutine that awaits in a few `finally` blocks needs
# one turn for each; one that survives a hundred swallows cancellations.
MAX_CANCELLATIONS: Final = 100
# A coroutine may yield anything, None among it.
NOT_BEGUN: Final = object()


class TimedOut(Exception):
    """The time-out passed first. Not `TimeoutError`: the coroutine may raise that itself."""


class BaseExceptionRaised(Exception):
    """The coroutine raised a `BaseException` that is no `Exception`: a cancellation, an exit, an interrupt."""


class TimedRun(Awaitable[T]):
    """Awaits a coroutine in the current task, no longer than the time-out.

    Raises:
        TimedOut: The time-out passed; the coroutine was cancelled, and abandoned if it did not end.
        BaseExceptionRaised: It raised a `BaseException` that is no `Exception`.
        CancelledError: The task itself is cancelled.
    """

    __slots__ = ("_cancelled_by_us", "_coroutine", "_task", "_timeout_s", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, T], timeout_s: float, waits_for: object = NOT_BEGUN) -> None:
        """Take a coroutine.

        Args:
            coroutine: The coroutine.
            timeout_s: How long it may take from now on.
            waits_for: What its first step in this task has yielded, where somebody else has run that.
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
            return end.value  # type: ignore[no-any-return] # what it returned, of which the iterator knows no type
        except Exception:
            raise
        except BaseException as error:  # noqa: BLE001 - boundary: it may raise what it likes
            raise BaseExceptionRaised(type(error).__name__) from None
        return (yield from self._step_until_done(waits_for))

    def _step_until_done(self, waits_for: Any) -> Generator[Any, Any, T]:
        """Step the coroutine, passing on what it waits for and what it gets, until it ends or is abandoned."""
        coroutine, loop = self._coroutine, asyncio.get_running_loop()
        self._task = task = asyncio.current_task()
        assert task is not None
        requested = task.cancelling()
        timer = loop.call_later(self._timeout_s, self._time_out)
        timed_out, cancellations = False, 0
        # The last cancellation that was not ours: it comes from a scope inside the coroutine, or from outside.
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
                        # Taken back at once: whoever looks at the task later must not take it for cancelled.
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
                except BaseException as error:  # noqa: BLE001 - it is passed on to the coroutine
                    thrown = error
                try:
                    waits_for = coroutine.send(sent) if thrown is None else coroutine.throw(thrown)
                except BaseException as error:
                    # Scopes inside the coroutine have taken back what they requested; what is left is for the task.
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
        with suppress(BaseException):  # boundary: it refuses to end, and nobody steps it any longer
            self._coroutine.close()
