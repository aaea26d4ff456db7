"""The deadline of one wait, which can be moved and held."""

from __future__ import annotations

import asyncio
import math
from threading import get_ident
from types import TracebackType
from typing import Final, Self

from msgspec import Struct

_OUTSIDE_TASK: Final = "a deadline is entered inside the task that it bounds"


class _Alarm:
    """The one timer of a loop, which is set to the first of all deadlines: to set one for each call costs more."""

    __slots__ = ("_timer", "due_s", "loop", "set_to_s", "thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = get_ident()
        # Whoever is taken out leaves the timer as it is: what it finds when it rings is for it to see.
        self.due_s: dict[Deadline, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.set_to_s = math.inf

    def set(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.set_to_s = self.loop.call_at(at_s, self._ring), at_s

    def _ring(self) -> None:
        self._timer, self.set_to_s = None, math.inf
        now_s = self.loop.time()
        over = [deadline for deadline, due_s in self.due_s.items() if due_s <= now_s]
        for deadline in over:
            del self.due_s[deadline]
            deadline.expire()
        if self.due_s:
            self.set(min(self.due_s.values()))


# Of the loop that was seen last; a process serves with one.
_alarm: _Alarm | None = None


class Deadline(Struct, eq=False):
    """Cancels what its task waits for once time is over; leaving raises `TimeoutError` then.

    It does what `anyio.CancelScope` would, at a tenth of the cost: every call has one.

    Args:
        seconds: From now, and again from each `extend`.

    Raises:
        TimeoutError: On leaving, if the time was over and nothing else had cancelled the task.
    """

    _seconds: float
    _alarm: _Alarm | None = None
    _task: asyncio.Task[object] | None = None
    _cancelling: int = 0
    _held: int = 0
    _expired: bool = False

    def __enter__(self) -> Self:
        global _alarm
        # Read once: another thread may have a loop of its own. To ask which loop runs is a system call in Python 3.11.
        alarm = _alarm
        if alarm is None or alarm.thread != get_ident() or (task := asyncio.current_task(alarm.loop)) is None:
            alarm = _alarm = _Alarm(asyncio.get_running_loop())
            task = asyncio.current_task(alarm.loop)
            assert task is not None, _OUTSIDE_TASK
        self._alarm, self._task = alarm, task
        # Cancellations of others that are on their way already, to distinguish them from ours on leaving.
        if cancelling := task.cancelling():
            self._cancelling = cancelling
        if not self._held:
            self._start(alarm)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        task, alarm, self._task = self._task, self._alarm, None
        if alarm is not None:
            alarm.due_s.pop(self, None)
        if not self._expired or task is None:
            return
        # As in `asyncio.timeout`: a cancellation that is also somebody else's goes on.
        if task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    def extend(self) -> None:
        """Start anew: the upstream has reported progress."""
        # Before it is entered there is nothing to move; after it has expired it is too late.
        if self._task is not None and self._alarm is not None and not self._expired and not self._held:
            self._start(self._alarm)

    def hold(self) -> None:
        """Stop the clock, until it was released as often."""
        self._held += 1
        if self._alarm is not None:
            self._alarm.due_s.pop(self, None)

    def release(self) -> None:
        """Let the clock run again, from the beginning."""
        # Several questions may be asked at once: the last one that is answered starts the clock.
        self._held = max(0, self._held - 1)
        self.extend()

    def expire(self) -> None:
        """End the wait: its time is over."""
        self._expired = True
        if self._task is not None:
            self._task.cancel()

    def _start(self, alarm: _Alarm) -> None:
        due_s = alarm.due_s[self] = alarm.loop.time() + self._seconds
        if due_s < alarm.set_to_s:
            alarm.set(due_s)
