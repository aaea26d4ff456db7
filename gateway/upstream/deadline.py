"""The deadline of one wait, which can be moved and held."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Final, Self

from msgspec import Struct, field

_OUTSIDE_TASK: Final = "a deadline is entered inside the task that it bounds"


class _Alarm:
    """The one timer of a loop, which is set to the first of all deadlines: to set one for each call costs more."""

    __slots__ = ("_due_s", "_set_to_s", "_timer", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._due_s: dict[Deadline, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._set_to_s = math.inf

    def add(self, deadline: Deadline, seconds: float) -> None:
        due_s = self._due_s[deadline] = self.loop.time() + seconds
        if due_s < self._set_to_s:
            self._set(due_s)

    def discard(self, deadline: Deadline) -> None:
        # The timer stays as it is: what it finds when it rings is for it to see.
        self._due_s.pop(deadline, None)

    def _set(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._set_to_s = self.loop.call_at(at_s, self._ring), at_s

    def _ring(self) -> None:
        self._timer, self._set_to_s = None, math.inf
        now_s = self.loop.time()
        over = [deadline for deadline, due_s in self._due_s.items() if due_s <= now_s]
        for deadline in over:
            del self._due_s[deadline]
            deadline.expire()
        if self._due_s:
            self._set(min(self._due_s.values()))


# Of the loop that was seen last; a process serves with one.
_alarm: _Alarm | None = None


def _alarm_of(loop: asyncio.AbstractEventLoop) -> _Alarm:
    global _alarm
    # Read once: another thread may have a loop of its own.
    alarm = _alarm
    if alarm is None or alarm.loop is not loop:
        alarm = _alarm = _Alarm(loop)
    return alarm


class Deadline(Struct, eq=False):
    """Cancels what its task waits for once time is over; leaving raises `TimeoutError` then.

    It does what `anyio.CancelScope` would, at a tenth of the cost: every call has one.

    Args:
        seconds: From now, and again from each `extend`.

    Raises:
        TimeoutError: On leaving, if the time was over and nothing else had cancelled the task.
    """

    _seconds: float
    _alarm: _Alarm = field(default_factory=lambda: _alarm_of(asyncio.get_running_loop()))
    _task: asyncio.Task[object] | None = None
    _cancelling: int = 0
    _held: int = 0
    _expired: bool = False

    def __enter__(self) -> Self:
        alarm = self._alarm
        task = self._task = asyncio.current_task(alarm.loop)
        assert task is not None, _OUTSIDE_TASK
        # Cancellations of others that are on their way already, to distinguish them from ours on leaving.
        self._cancelling = task.cancelling()
        if not self._held:
            alarm.add(self, self._seconds)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        task, self._task = self._task, None
        self._alarm.discard(self)
        if not self._expired or task is None:
            return
        # As in `asyncio.timeout`: a cancellation that is also somebody else's goes on.
        if task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    def extend(self) -> None:
        """Start anew: the upstream has reported progress."""
        # Before it is entered there is nothing to move; after it has expired it is too late.
        if self._task is not None and not self._expired and not self._held:
            self._alarm.add(self, self._seconds)

    def hold(self) -> None:
        """Stop the clock, until it was released as often."""
        self._held += 1
        self._alarm.discard(self)

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
