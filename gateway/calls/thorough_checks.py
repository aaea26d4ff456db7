"""Checks of arguments that could take long, in processes of their own, with a deadline."""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

import gateway
from gateway.calls.check_process import LENGTH, LENGTHS, CheckJob, JobPart
from gateway.owned_tasks import OwnedTasks
from gateway.wire import MalformedJson
from registry.arguments.prepare import Prepared, fill_defaults, refused
from registry.arguments.problems import unchecked_problem
from registry.errors import NotChecked
from registry.schema.check_cost import too_many_values

log = logging.getLogger(__name__)

# Arguments of a megabyte take some tens of milliseconds, and errors in all of their parts less than a second.
CHECK_S: Final = 2.0
# One process for each of two calls: while one caller keeps the first busy, others have the second.
_MAX_PROCESSES: Final = 2
# Calls that wait for a process, of one caller: more than a host sends at once.
_MAX_WAITING: Final = 16
# As long as the deadlines of all that one caller may have waiting before a call, in the usual case that they are
# met; a call that waits longer is better refused.
_QUEUE_S: Final = 10.0
# Time for an interpreter to start on a loaded machine.
_START_S: Final = 10.0
# What an interpreter needs to start, also where it belongs to a virtual environment or is not in the usual place.
_ENVIRONMENT: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG")
# What is tried of a job, one after the other, until something ends in time.
_PARTS: Final[tuple[JobPart, ...]] = ("whole", "cheap")
# Outcomes hold the repaired arguments and little else.
_MAX_OUTCOME: Final = 1 << 28


class _ProcessEnded(Exception):
    """The process ended before it had an outcome."""


class ThoroughChecks:
    """Prepares the arguments of calls where that may take longer than the event loop can wait.

    One call of a caller is prepared at a time, so that nobody's calls keep all processes busy.

    Args:
        tasks: Runs the checks, so that a process that was started is ended or used again when its caller leaves.
    """

    def __init__(self, tasks: OwnedTasks) -> None:
        self._tasks = tasks
        self._idle: list[_CheckProcess] = []
        self._places = anyio.CapacityLimiter(_MAX_PROCESSES)
        self._turns: dict[str, anyio.Lock] = {}
        self._waiting: Counter[str] = Counter()
        self._closed = False

    async def run(self) -> None:
        """End the processes when cancelled."""
        try:
            await anyio.sleep_forever()
        finally:
            self._closed = True
            idle, self._idle = self._idle, []
            for process in idle:
                await process.end()

    async def prepare(self, job: CheckJob, who: str, doubt: NotChecked) -> Prepared:
        """Prepare the arguments of one call; those that cannot be checked in time are refused, or pass as configured.

        Args:
            job: The call.
            who: On whose behalf.
            doubt: Why it was not done on the loop.
        """
        return await self._tasks.run(partial(self._prepare_in_turn, job, who, doubt))

    async def _prepare_in_turn(self, job: CheckJob, who: str, doubt: NotChecked) -> Prepared:
        if self._waiting[who] >= _MAX_WAITING:
            return _unchecked(job, NotChecked(doubt.path, f"{_MAX_WAITING} other large calls are being checked"))
        self._waiting[who] += 1
        turn = self._turns.setdefault(who, anyio.Lock())
        try:
            with anyio.move_on_after(_QUEUE_S) as queued:
                async with turn, self._places:
                    queued.deadline = float("inf")  # from here on the deadline of the check holds
                    return await self._prepare(job, doubt)
            return _unchecked(job, NotChecked(doubt.path, "other large calls are being checked"), within_s=_QUEUE_S)
        finally:
            self._waiting[who] -= 1
            if not self._waiting[who]:
                del self._waiting[who], self._turns[who]

    async def _prepare(self, job: CheckJob, doubt: NotChecked) -> Prepared:
        """Prepare arguments: with a whole check, else by the cheap parts of it, else without."""
        spent_s: float | None = None
        attempt = job
        for part in _PARTS if job.names is None else (*_PARTS, "mapped"):
            if part != "whole":
                attempt = replace(job, doubt=_located(job, doubt), part=part, spent_s=spent_s)
            try:
                packed = attempt.packed()
            except MalformedJson:
                return _unchecked(job, NotChecked(doubt.path, "the arguments are nested too deeply"))
            outcome = await self._outcome(packed)
            if isinstance(outcome, Prepared):
                return job.received(outcome)
            if outcome is None:
                spent_s = CHECK_S
            else:
                doubt = outcome
            if job.validation == "strict" or doubt.invalid:
                break
        return _unchecked(job, doubt, within_s=spent_s)

    async def _outcome(self, parts: tuple[bytes, bytes]) -> Prepared | NotChecked | None:
        """Return the outcome of a job; None if there is none in time."""
        while self._idle:
            try:
                return await self._run_in(self._idle.pop(), parts)
            except _ProcessEnded:
                continue  # it had been idle for too long
        try:
            return await self._run_in(await _CheckProcess.start(), parts)
        except _ProcessEnded:
            log.warning("a process that checks arguments ended without an answer; memory may be short")
            return None

    async def _run_in(self, process: _CheckProcess, parts: tuple[bytes, bytes]) -> Prepared | NotChecked | None:
        done = False
        try:
            with anyio.move_on_after(CHECK_S):
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
    """One process, which runs one job at a time."""

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
            _ProcessEnded: It could not be started.
        """
        command = [sys.executable, "-P", "-m", "gateway.calls.check_process"]
        # It checks only: it gets none of the secrets that the gateway's environment may hold.
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        root = str(Path(gateway.__file__).parents[1])
        if Path(root).name not in ("site-packages", "dist-packages"):
            # A checkout that is run without being installed.
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
        try:
            with anyio.CancelScope(shield=True):
                # Shielded: a process that was started and not noted would be left behind.
                started = cls(await anyio.open_process(command, stderr=None, env=environment, start_new_session=True))
        except OSError as error:
            raise _ProcessEnded from error
        ready = False
        try:
            with anyio.move_on_after(_START_S):
                await started._receive()
                ready = True
        finally:
            if not ready:
                await started.end()
        if not ready:
            raise _ProcessEnded
        return started

    async def run(self, parts: tuple[bytes, bytes]) -> Prepared | NotChecked:
        """Run one job.

        Raises:
            _ProcessEnded: There is no outcome.
        """
        try:
            await self._jobs.send(LENGTHS.pack(*map(len, parts)) + parts[0])
            await self._jobs.send(parts[1])
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise _ProcessEnded from None
        outcome: Prepared | NotChecked = pickle.loads(await self._receive())
        return outcome

    async def end(self) -> None:
        """End the process, whatever it does."""
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


def _located(job: CheckJob, doubt: NotChecked) -> NotChecked:
    return too_many_values({} if job.arguments is None else job.arguments) if doubt.unlocated else doubt


def _unchecked(job: CheckJob, doubt: NotChecked, *, within_s: float | None = None) -> Prepared:
    arguments = {} if job.arguments is None else job.arguments
    doubt = _located(job, doubt)
    # What is known to be invalid is refused whatever the configuration says, and names that callers see instead of the
    # upstream's cannot be sent to it.
    if job.validation == "strict" or doubt.invalid or job.names is not None or not isinstance(arguments, dict):
        names = {old: new for new, old in (job.names or {}).items()}
        return refused(job.arguments, doubt, names, within_s=within_s)
    filled = fill_defaults(job.schema, arguments, job.defaults)
    added = tuple(name for name in filled if name not in arguments)
    unchecked = unchecked_problem(doubt, within_s=within_s)
    return Prepared(arguments=filled, filled=added, understood=arguments, unchecked=(unchecked,))
