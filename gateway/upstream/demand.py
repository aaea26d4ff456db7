"""Decide when a server's process has to run: calls start the process, and the process ends when it is idle.

In three cases the process of a working server does not run: the server has `start: onDemand` and was not called yet,
the process was started only to list its tools, or `idleTimeout` has passed. In each case, the link is idle until a
call or an administrator needs the process. Health checks, reconnects, polls and subscriptions do not start a process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio

from gateway.config.server import ServerConfig
from gateway.upstream.session import UpstreamCall

# How often to check whether a subscription or task still needs the process. The check is needed because the link is not
# notified when a subscription or task ends.
_CHECK_S: Final = 5.0
# A task keeps the process running for at most this long, in case the caller never requests its result.
_LONGEST_TASK_S: Final = 3_600.0
# The maximum number of tasks to track, because callers can start any number of tasks.
_MAX_TASKS: Final = 1_000
_ENDED: Final = frozenset({"completed", "failed", "cancelled"})


class Demand:
    """Tracks whether calls, tasks or administrators need the process of one link.

    Attributes:
        on_demand: Whether the first call starts the process.
        waiting: The number of calls that wait for a connection.
    """

    def __init__(self, *, is_needed: bool) -> None:
        """Create the tracker.

        Args:
            is_needed: Whether to start the process without waiting for a call; true if a call has created the link.
        """
        self.on_demand = False
        self.waiting = 0
        self._idle_s = 0.0
        self._is_needed = is_needed
        self._has_rested = False
        self._is_called = is_needed
        self._used_s = time.monotonic()
        self._tasks: dict[str, float] = {}
        self._changed = anyio.Event()
        self._is_ending = False

    def use(self, config: ServerConfig) -> None:
        """Apply the settings of a configuration entry."""
        self.on_demand, self._idle_s = config.starts_on_demand, config.idle_s
        if not self._idle_s and not self.on_demand:
            self._has_rested = False
        # Wake `wait_idle`, because the timeout may have become shorter.
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    @property
    def tracks(self) -> bool:
        """True if the process runs only while it is needed; false if it always runs."""
        return self.on_demand or self._idle_s > 0

    @property
    def starts_for_call(self) -> bool:
        """True if the process runs only while it is needed, and a call started it."""
        return self.tracks and self._is_called

    def is_needed(self, *, is_listed: bool) -> bool:
        """Return whether the process has to run now.

        Args:
            is_listed: Whether the gateway already has the server's tools; if not, the process has to run to list them.
        """
        if self.waiting or self._is_needed:
            return True
        return not (is_listed and (self.on_demand or self._has_rested))

    def begin_start(self) -> None:
        """Reset the state, because an attempt to connect begins."""
        self._is_needed = self._is_ending = False
        self._is_called = self._is_called or bool(self.waiting) or not self.on_demand
        self._has_rested = False
        self._tasks.clear()

    def request_start(self) -> None:
        """Make `is_needed` return true although no call needs the process, so that the tools are listed again."""
        self._is_needed = True

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Count a call that waits for the connection."""
        self.waiting += 1
        self._is_called = True
        try:
            yield
        finally:
            self.waiting -= 1
            self._used_s = time.monotonic()

    def note_result(self, call: UpstreamCall, result: Any) -> None:
        """Note the end of a call, and track the task that the call has started or ended."""
        self._is_called, self._used_s = True, time.monotonic()
        if type(result) is not dict or not isinstance(task_id := result.get("taskId"), str):
            return
        if result.get("status") in _ENDED or call.method == "tasks/cancel":
            self._tasks.pop(task_id, None)
        elif result.get("resultType") == "task" and len(self._tasks) < _MAX_TASKS:
            ttl_ms = result.get("ttlMs")
            ttl_s = ttl_ms / 1000 if isinstance(ttl_ms, int | float) and ttl_ms > 0 else _LONGEST_TASK_S
            self._tasks[task_id] = self._used_s + min(ttl_s, _LONGEST_TASK_S)

    async def wait_idle(self, is_busy: Callable[[], bool], *, is_listed: Callable[[], bool]) -> None:
        """Return once the process is no longer needed.

        There is no await between the last check and the return, so no call can begin in the meantime.

        Args:
            is_busy: Returns whether a call is in flight or a subscription is open.
            is_listed: Returns whether all lists of the server have been fetched.
        """
        self._used_s = time.monotonic()
        while True:
            if not self.tracks:
                await self._changed.wait()
                continue
            now_s = time.monotonic()
            limit_s = self._idle_s
            if not self._is_called and self.on_demand and is_listed():
                limit_s = 0.0  # the process was started only to list its tools
            elif not limit_s:
                limit_s = float("inf")
            self._tasks = {task_id: until_s for task_id, until_s in self._tasks.items() if until_s > now_s}
            if self.waiting or self._tasks or is_busy():
                self._is_called, self._used_s, left_s = True, now_s, min(self._idle_s or _CHECK_S, _CHECK_S)
            elif (left_s := self._used_s + limit_s - now_s) <= 0:
                break
            elif not self._is_called:
                left_s = min(left_s, _CHECK_S)
            with anyio.move_on_after(max(left_s, 0.01)):
                await self._changed.wait()
        self._is_ending, self._has_rested, self._is_called = True, True, False

    def has_ended(self) -> bool:
        """Return whether the connection was closed because the process was idle, and reset that state."""
        was_ending, self._is_ending = self._is_ending, False
        return was_ending
