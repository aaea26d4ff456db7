"""Validate arguments, and select parts of large results, with a deadline in separate processes (`check_process`)."""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

import gateway
from gateway.calls.check_process import LENGTH, LENGTHS, CheckJob, JobPart, JobUnfinished
from gateway.calls.result_shaping import ValueJob
from gateway.calls.selection import SelectionRefused
from gateway.process.tasks import OwnedTasks
from gateway.protocol.json_bytes import MalformedJson
from registry.arguments.prepare import Prepared
from registry.errors import NotChecked

log = logging.getLogger(__name__)

T = TypeVar("T")

# Deadline of a job. Checking a megabyte takes tens of milliseconds, or up to a second if all of its parts are invalid.
CHECK_S: Final = 2.0
# Two processes are enough to keep a caller from blocking others, because each caller may use only one at a time.
_MAX_PROCESSES: Final = 2
# Maximum number of jobs that run or wait per caller: more than a host sends concurrently.
_MAX_WAITING: Final = 16
# Time for which a job may wait for other jobs before it is refused: five times the deadline of a job.
_QUEUE_S: Final = 10.0
# Time limit for starting an interpreter on a loaded machine.
_START_S: Final = 10.0
# Variables that an interpreter needs to start, including one in a virtual environment or an unusual location.
_ENVIRONMENT: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG")
# The extents of a check, tried in this order until one ends in time.
_PARTS: Final[tuple[JobPart, ...]] = ("whole", "cheap")
# Maximum bytes of an outcome, which consists mostly of the repaired arguments.
_MAX_OUTCOME: Final = 1 << 28


class _ProcessEnded(Exception):
    """The process ended before returning an outcome."""


class ThoroughChecks:
    """Runs jobs in separate processes if they could block the event loop for too long.

    A job repairs and checks the arguments of a call, or selects parts of a result. Only one job per caller runs at a
    time, so that no caller can occupy all processes.

    Args:
        tasks: Runs the jobs in tasks that do not belong to a request, so that a process is ended or reused even if the
            caller disconnects.
        check_s: The time limit of one attempt to do a job; it may be changed at any time.
    """

    def __init__(self, tasks: OwnedTasks, *, check_s: float = CHECK_S) -> None:
        self._tasks = tasks
        self.check_s = check_s
        self._idle: list[_CheckProcess] = []
        self._places = anyio.CapacityLimiter(_MAX_PROCESSES)
        self._turns: dict[str, anyio.Lock] = {}
        self._waiting: Counter[str] = Counter()
        self._closed = False

    async def run(self) -> None:
        """Wait until cancelled, then end the idle processes."""
        try:
            await anyio.sleep_forever()
        finally:
            self._closed = True
            idle, self._idle = self._idle, []
            for process in idle:
                await process.end()

    async def prepare(self, job: CheckJob, who: str, doubt: NotChecked) -> Prepared:
        """Repair and check the arguments of one call. If this takes too long, refuse them or leave them unchecked.

        Args:
            who: The caller. Only one job of each caller runs at a time.
            doubt: The reason why the arguments were not checked on the event loop.
        """
        return await self._tasks.run(partial(self._prepare_in_turn, job, who, doubt))

    async def run_job(self, job: ValueJob, text: bytes, who: str) -> Any:
        """Run a job on a large value in a process, and return its outcome.

        Args:
            text: The value as JSON.
            who: The caller. Only one job of each caller runs at a time.

        Raises:
            JobUnfinished: The job did not end in time.
            SelectionRefused: The job does not fit the value.
            MalformedJson: The value is nested too deeply.
        """
        work = partial(self._outcome, (pickle.dumps(job), text))
        outcome = await self._tasks.run(partial(self._in_turn, who, work))
        if isinstance(outcome, SelectionRefused | MalformedJson):
            raise outcome
        if outcome is None:
            raise JobUnfinished
        return outcome

    async def _prepare_in_turn(self, job: CheckJob, who: str, doubt: NotChecked) -> Prepared:
        try:
            return await self._in_turn(who, partial(self._prepare, job, doubt))
        except JobUnfinished as full:
            return job.unchecked(NotChecked(doubt.path, str(full)), within_s=full.waited_s)

    async def _in_turn(self, who: str, work: Callable[[], Awaitable[T]]) -> T:
        """Await `work` once a process is free and no other job of the caller runs.

        Raises:
            JobUnfinished: Too many jobs of the caller are waiting, or the work could not start within `_QUEUE_S`.
        """
        if self._waiting[who] >= _MAX_WAITING:
            raise JobUnfinished(f"{_MAX_WAITING} other large calls are being checked")
        self._waiting[who] += 1
        turn = self._turns.setdefault(who, anyio.Lock())
        try:
            with anyio.move_on_after(_QUEUE_S) as queued:
                async with turn, self._places:
                    queued.deadline = float("inf")  # from here on the deadline of the work applies
                    return await work()
            raise JobUnfinished("other large calls are being checked", waited_s=_QUEUE_S)
        finally:
            self._waiting[who] -= 1
            if not self._waiting[who]:
                del self._waiting[who], self._turns[who]

    async def _prepare(self, job: CheckJob, doubt: NotChecked) -> Prepared:
        """Try a complete check of the arguments, then cheap checks only; if neither ends in time, give up checking."""
        spent_s: float | None = None
        attempt = job
        for part in _PARTS if job.names is None else (*_PARTS, "mapped"):
            if part != "whole":
                attempt = replace(job, doubt=job.located(doubt), part=part, spent_s=spent_s)
            try:
                packed = attempt.packed()
            except MalformedJson:
                return job.unchecked(NotChecked(doubt.path, "the arguments are nested too deeply"))
            outcome = await self._outcome(packed)
            if isinstance(outcome, Prepared):
                return job.received(outcome)
            if outcome is None:
                spent_s = self.check_s
            else:
                doubt = outcome
            if job.validation == "strict" or doubt.invalid:
                break
        return job.unchecked(doubt, within_s=spent_s)

    async def _outcome(self, parts: tuple[bytes, bytes]) -> Any:
        """Return the outcome of a job; None if the job did not end in time or its process ended."""
        while self._idle:
            try:
                return await self._run_in(self._idle.pop(), parts)
            except _ProcessEnded:
                continue  # an idle process exits after a while
        try:
            return await self._run_in(await _CheckProcess.start(), parts)
        except _ProcessEnded:
            log.warning("check process ended without an outcome; memory may be low")
            return None

    async def _run_in(self, process: _CheckProcess, parts: tuple[bytes, bytes]) -> Any:
        done = False
        try:
            with anyio.move_on_after(self.check_s):
                outcome = await process.run(parts)
                done = True
                return outcome
            return None
        finally:
            if done and not self._closed:
                self._idle.append(process)
            else:
                await process.end()


class _CheckProcess:
    """A process that runs one job at a time."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._jobs = process.stdin
        self._outcomes = BufferedByteReceiveStream(process.stdout)

    @classmethod
    async def start(cls) -> _CheckProcess:
        """Start a process and wait until it is ready.

        Raises:
            _ProcessEnded: The process could not be started.
        """
        command = [sys.executable, "-P", "-m", "gateway.calls.check_process"]
        # Pass a minimal environment, because the process does not need the secrets in the gateway's environment.
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        root = str(Path(gateway.__file__).parents[1])
        if Path(root).name not in ("site-packages", "dist-packages"):
            # The gateway runs from a checkout without being installed.
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
        try:
            with anyio.CancelScope(shield=True):
                # Shielded: after a cancellation between start and assignment, nothing would end the process.
                started = cls(await anyio.open_process(command, stderr=None, env=environment, start_new_session=True))
        except OSError as error:
            raise _ProcessEnded from error
        try:
            with anyio.fail_after(_START_S):
                await started._receive()
        except BaseException as error:
            await started.end()
            if isinstance(error, TimeoutError):
                raise _ProcessEnded from None
            raise
        return started

    async def run(self, parts: tuple[bytes, bytes]) -> Any:
        """Run one job.

        Raises:
            _ProcessEnded: The process ended without an outcome.
        """
        try:
            await self._jobs.send(LENGTHS.pack(*map(len, parts)) + parts[0])
            await self._jobs.send(parts[1])
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise _ProcessEnded from None
        return pickle.loads(await self._receive())

    async def end(self) -> None:
        """Kill the process."""
        with anyio.CancelScope(shield=True):
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.aclose()

    async def _receive(self) -> bytes:
        try:
            [length] = LENGTH.unpack(await self._outcomes.receive_exactly(LENGTH.size))
            if length > _MAX_OUTCOME:
                raise _ProcessEnded
            return await self._outcomes.receive_exactly(length)
        except (anyio.IncompleteRead, anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream):
            raise _ProcessEnded from None
