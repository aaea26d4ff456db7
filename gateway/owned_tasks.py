"""Work that callers wait for, in tasks that do not belong to any caller.

A caller that disconnects, cancels, times out or ends its session is ended by `asyncio.Task.cancel()`, which passes
through every anyio shield of its task. Work that must not be interrupted therefore runs in a task of its own, where the
end of the last caller arrives as the cancellation of a scope, and shields hold.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import TaskGroup

from gateway.errors import GatewayError

log = logging.getLogger(__name__)

T = TypeVar("T")
_ENDING: Final = "the gateway is shutting down"


@dataclass(slots=True, eq=False)
class _Task:
    waiting: int = 0
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    result: Any = None
    error: Exception | None = None


class OwnedTasks:
    """Runs work in a task group that outlives callers.

    Args:
        group: The task group of the gateway.
    """

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._shared: dict[Hashable, _Task] = {}

    async def run(self, work: Callable[[], Awaitable[T]], *, key: Hashable = None, shield: bool = False) -> T:
        """Run `work` in a task of its own and return its result.

        When the last caller that waits for the result leaves, `work` is cancelled as by `anyio.CancelScope.cancel()`:
        what `work` shields goes on to its end.

        Args:
            work: What to run.
            key: Callers with the same key share one run; None for a run of this caller alone.
            shield: Whether all of `work` goes on to its end; it has to be bounded in time.

        Raises:
            GatewayError: The gateway is shutting down, and `work` was cancelled.
            Exception: Whatever `work` raised.
        """
        task = self._shared.get(key) if key is not None else None
        if task is None:
            task = _Task()
            if key is not None:
                self._shared[key] = task
            self._group.start_soon(self._run, task, work, key, shield)
        task.waiting += 1
        try:
            await task.ended.wait()
        finally:
            task.waiting -= 1
            if not task.waiting and not task.ended.is_set():
                self._forget(task, key)  # a later caller must not join work that is being cancelled
                task.scope.cancel()
        if task.error is not None:
            raise task.error
        result: T = task.result
        return result

    async def _run(self, task: _Task, work: Callable[[], Awaitable[Any]], key: Hashable, shield: bool) -> None:
        # What a caller reads if neither a result nor an error replaces it.
        task.error = GatewayError(_ENDING)
        try:
            with task.scope, anyio.CancelScope(shield=shield):
                task.result = await work()
                task.error = None
        except Exception as error:  # noqa: BLE001 - boundary: the error belongs to the callers, not to the task group
            task.error = error
            if not task.waiting:
                log.warning("work failed after its last caller had left: %s", error)
        finally:
            self._forget(task, key)
            task.ended.set()

    def _forget(self, task: _Task, key: Hashable) -> None:
        if self._shared.get(key) is task:
            del self._shared[key]
