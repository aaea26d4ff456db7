"""Drive a coroutine of somebody else's to its end or to its time-out, whatever it does with its cancellation.

A cancel scope around each hook would cost eight microseconds, and could not leave a coroutine that swallows its
cancellation. Here its first step is free, the timer is set only if it waits, and what does not end soon after it
was cancelled is left where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Final, TypeVar

T = TypeVar("T")

GRACE_S: Final = 0.5
"""For closing what it holds, a coroutine that is cancelled gets so long."""
MAX_CANCELLATIONS: Final = 100
"""A coroutine that lives through more of them is left: a scope that is over cancels in every turn of the loop."""


class Late(Exception):
    """The time-out passed first."""


class Interfered(Exception):
    """The coroutine raised what only its caller may: a cancellation, an exit, an interrupt."""


class Driven(Awaitable[T]):
    """The outcome of a coroutine, awaited in this task and no longer than the time-out.

    Raises:
        Late: The time-out passed; the coroutine was cancelled.
        Interfered: It raised a `BaseException` that is no `Exception`.
        CancelledError: The task itself is cancelled.
    """

    __slots__ = ("_coroutine", "_ours", "_task", "_timeout_s")

    def __init__(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> None:
        self._coroutine = coroutine
        self._timeout_s = timeout_s
        self._task: asyncio.Task[Any] | None = None
        self._ours = False

    def __await__(self) -> Generator[Any, Any, T]:
        try:
            waited = self._coroutine.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return] # what it returned, of which the iterator knows no type
        except Exception:
            raise
        except BaseException as error:  # noqa: BLE001 - boundary: it may raise what it likes
            raise Interfered(type(error).__name__) from None
        return (yield from self._waiting(waited))

    def _waiting(self, waited: Any) -> Generator[Any, Any, T]:
        coroutine, loop = self._coroutine, asyncio.get_running_loop()
        self._task = task = asyncio.current_task()
        assert task is not None
        requested = task.cancelling()
        timer = loop.call_later(self._timeout_s, self._end)
        told, cancellations = False, 0
        cancelled: asyncio.CancelledError | None = None
        try:
            while True:
                thrown: BaseException | None = None
                try:
                    sent = yield waited
                except asyncio.CancelledError as error:
                    thrown, over = error, False
                    if self._ours:
                        self._ours, over = False, told
                        told = True
                        task.uncancel()
                        timer = loop.call_later(GRACE_S, self._end)
                    else:
                        cancelled = error
                    cancellations += 1
                    if over or cancellations > MAX_CANCELLATIONS:
                        self._abandon()
                        if cancelled is not None and task.cancelling() > requested:
                            raise cancelled from None
                        raise Late from None
                except BaseException as error:  # noqa: BLE001 - it is handed on
                    thrown = error
                try:
                    waited = coroutine.send(sent) if thrown is None else coroutine.throw(thrown)
                except BaseException as error:
                    # Scopes of its own have taken back what they asked for; what is left is the whole task's.
                    if cancelled is not None and task.cancelling() > requested:
                        raise cancelled from None
                    if told:
                        raise Late from None
                    if isinstance(error, StopIteration):
                        return error.value  # type: ignore[no-any-return] # what it returned, of which the iterator knows no type
                    if isinstance(error, Exception):
                        raise
                    raise Interfered(type(error).__name__) from None
        finally:
            timer.cancel()

    def _end(self) -> None:
        assert self._task is not None
        self._ours = True
        self._task.cancel()

    def _abandon(self) -> None:
        try:
            self._coroutine.close()
        except BaseException:  # noqa: BLE001 - boundary: it clings to its life, and nobody drives it any longer
            return
