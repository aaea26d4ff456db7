"""Detached tasks, work in threads, and signals as a stream.

When a caller disconnects, cancels, times out or ends its session, its task is cancelled with `asyncio.Task.cancel()`,
which ignores the anyio shields of the task. Work that must not be interrupted therefore runs in a *detached* task of
another task group. When no caller waits for the work any more, the cancel scope of the detached task is cancelled,
which respects shields.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from types import FrameType
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from gateway.protocol.gateway_errors import GatewayError

log = logging.getLogger(__name__)

# Polling interval for signals on Windows, in seconds. On Windows, a signal does not wake the event loop.
_POLL_S: Final = 0.2

HANGUP: Final = getattr(signal, "SIGHUP", None)
"""The signal that reloads the configuration; None on Windows, which lacks this signal."""


@contextmanager
def open_signals(*numbers: signal.Signals) -> Iterator[AsyncIterator[int]]:
    """Replace the default action of these signals, and yield a stream with the number of each received signal."""
    if sys.platform != "win32":
        with anyio.open_signal_receiver(*numbers) as received:
            yield received
    else:
        with _interpreter_signals(*numbers) as noted:
            yield noted


@contextmanager
def _interpreter_signals(*numbers: signal.Signals) -> Iterator[AsyncIterator[int]]:
    """Implement `open_signals` for Windows, with handlers of the `signal` module."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    async def received() -> AsyncIterator[int]:
        while True:
            while seen:
                yield seen.pop(0)
            await anyio.sleep(_POLL_S)

    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


T = TypeVar("T")

# The switch interval of the interpreter while threads are busy. The event loop releases the GIL at each system call,
# and regains it from a busy thread only after this interval. With the default of 5 ms, a tool call of a dozen steps
# would take 0.1 s longer.
_SWITCH_S: Final = 0.0005
_lock = Lock()
_working = 0
_usual_s = 0.005  # the default of CPython; read again before each change


async def run_in_thread(work: Callable[[], T], *, limiter: anyio.CapacityLimiter | None = None) -> T:
    """Run a function that takes more than a few milliseconds in a thread, and return its result.

    Args:
        limiter: Limits the number of concurrent threads; None for anyio's default limiter.
    """
    return await anyio.to_thread.run_sync(_run, work, limiter=limiter)


def _run(work: Callable[[], T]) -> T:
    global _working, _usual_s
    # The interval is process-wide: the first busy thread shortens it, and the last one restores it.
    with _lock:
        if _working == 0:
            _usual_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_SWITCH_S, _usual_s))
        _working += 1
    try:
        return work()
    finally:
        with _lock:
            _working -= 1
            if _working == 0:
                sys.setswitchinterval(_usual_s)


_SHUTTING_DOWN: Final = "the gateway is shutting down"


@dataclass(slots=True, eq=False)
class _Task:
    waiting: int = 0
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    result: Any = None
    error: Exception | None = None


class OwnedTasks:
    """Runs work in detached tasks of a task group that outlives the callers."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._shared: dict[Hashable, _Task] = {}

    async def run(self, work: Callable[[], Awaitable[T]], *, key: Hashable = None, shield: bool = False) -> T:
        """Run `work` in a detached task and return its result.

        When every caller that waited for the result has been cancelled, the cancel scope of `work` is cancelled.
        Shielded parts of `work` still finish.

        Args:
            key: Concurrent callers with the same key share one run of `work`; None for a separate run.
            shield: Let `work` finish even if all callers are cancelled. `work` must then end within a bounded time.

        Raises:
            GatewayError: The gateway is shutting down, and `work` was cancelled.
            Exception: The error that `work` raised.
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
        # The error for the callers if `work` is cancelled. A result or another error replaces it.
        task.error = GatewayError(_SHUTTING_DOWN)
        try:
            with task.scope, anyio.CancelScope(shield=shield):
                task.result = await work()
                task.error = None
        except Exception as error:  # noqa: BLE001 - boundary: the error belongs to the callers, not to the task group
            task.error = error
            if not task.waiting:
                log.warning("detached work failed: %s", error)
        finally:
            self._forget(task, key)
            task.ended.set()

    def _forget(self, task: _Task, key: Hashable) -> None:
        if self._shared.get(key) is task:
            del self._shared[key]
