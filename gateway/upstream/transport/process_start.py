"""The start of a local server: how far it is, when it is given up, and how many processes start at the same time."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
from anyio.lowlevel import RunVar

from gateway.errors import ConnectionLost

# A start that is still under way after this time mostly waits for the network, or hangs: the next one may begin.
_PLACE_S: Final = 10.0
_CPU_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
_places: RunVar[anyio.Semaphore] = RunVar("typegate_process_starts")


class ProcessStart:
    """One start of a process, from its place in the queue to its answer to the handshake.

    Attributes:
        under_way: The process has not answered the handshake yet.
        began_s: When the process was started, by the monotonic clock; None while the start waits for its turn.
        last_line: Returns what the process has printed last, for people.
        explanation: Returns the line that the process has printed and that says why it does not answer.
        is_separate: Whether the process runs in a domain of its own (see `separation`); None before it is started.
    """

    def __init__(self, limit_s: float) -> None:
        """Begin.

        Args:
            limit_s: After how many seconds of the process the start is given up.
        """
        self.under_way = True
        self.began_s: float | None = None
        self.last_line: Callable[[], str] = str
        self.explanation: Callable[[], str] = str
        self.is_separate: bool | None = None
        self._limit_s = limit_s
        self._scope = anyio.CancelScope()
        self._stopped = False

    @property
    def took_s(self) -> float:
        """For how many seconds the process has been starting."""
        return time.monotonic() - self.began_s if self.began_s is not None else 0.0

    @property
    def limit_s(self) -> float:
        """After how many seconds of the process the start is given up; it can be changed during the start."""
        return self._limit_s

    @limit_s.setter
    def limit_s(self, limit_s: float) -> None:
        self._limit_s = limit_s
        if self.began_s is not None:
            self._scope.deadline = anyio.current_time() + limit_s - self.took_s

    @property
    def left_s(self) -> float:
        """How many seconds are left of the limit."""
        return max(0.0, self._limit_s - self.took_s)

    def describe(self) -> str:
        """Return how far it is: `starting (18 s): npm warn deprecated …`."""
        if self.began_s is None:
            return "waiting for its turn to start"
        line = self.last_line()
        return f"starting ({self.took_s:.0f} s){f': {line}' if line else ''}"

    def stop(self) -> None:
        """Give the start up: the server is not wanted any more."""
        self._stopped = True
        self._scope.cancel()

    @asynccontextmanager
    async def within_limit(self) -> AsyncIterator[None]:
        """Bound what is waited for of the process by the limit.

        Raises:
            ConnectionLost: The limit has passed, or `stop` was called.
        """
        # Left by an exception and not by a cancellation: the process has time to clean up (see `ChildProcess`).
        with self._scope:
            if self.began_s is not None:
                self._scope.deadline = anyio.current_time() + self.left_s
            yield
        if self._scope.cancelled_caught:
            line = self.explanation()
            reason = f"no answer to the handshake within {self._limit_s:g} s{f': {line}' if line else ''}"
            raise ConnectionLost("the server was taken out" if self._stopped else reason, sent=False)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until few enough other processes are starting, and take up one of these places.

        A place is given back when this is left, or after some seconds: a start that hangs must not block the others.

        Raises:
            ConnectionLost: `stop` was called.
        """
        places = _start_places()
        with anyio.CancelScope() as self._scope:
            await places.acquire()
        if self._scope.cancelled_caught:
            raise ConnectionLost("the server was taken out", sent=False)
        self._scope = anyio.CancelScope()
        taken = True

        def give_back() -> None:
            nonlocal taken
            if taken:
                taken = False
                places.release()

        timer = asyncio.get_running_loop().call_later(_PLACE_S, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()


def _start_places() -> anyio.Semaphore:
    """The places of this process: the cores are those of the machine, whichever gateway uses them."""
    try:
        return _places.get()
    except LookupError:
        # One more than there are cores, as a start also waits for disk and network.
        places = anyio.Semaphore(cores() + 1)
        _places.set(places)
        return places


def cores() -> int:
    """Return how many cores this process may use: as its affinity and the quota of its container say."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        return min(found, max(1, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # there is no such file, or it says `max`
        return found
