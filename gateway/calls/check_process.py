"""The process that validates arguments whose validation may be slow, and selects parts of large results.

The process reads jobs from standard input, one at a time, and writes each outcome to standard output. A message
contains lengths and a pickle, and a job also contains the arguments or the result as JSON. Pickles are safe here,
because only the parent and this process can access the pipes. The validator cannot be interrupted, so the parent kills
the process if a job takes too long.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import IO, Any, Final, Literal

import orjson

from gateway.calls.result_shaping import ValueJob
from gateway.calls.selection import SelectionRefused
from gateway.protocol import json_bytes
from registry.arguments.prepare import (
    Prepared,
    UnfinishedCheck,
    fill_defaults,
    prepare,
    prepare_with_cheap_checks,
    refuse_unchecked,
)
from registry.arguments.problems import unchecked_problem
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName, ToolName, WrapperName
from registry.catalog.shape import RepairLevel, Validation
from registry.dialects.definitions import LoweredDefinition
from registry.errors import NotChecked
from registry.schema.check_cost import THOROUGH, too_many_values_error, use_effort
from registry.schema.references import SchemaDocument

LENGTHS: Final = struct.Struct("!QQ")
"""Precedes a job: the length of its pickle, and the length of its arguments or result."""
LENGTH: Final = struct.Struct("!Q")
"""Precedes an outcome: the length of the outcome."""
# An idle process exits after this time to free its memory. Large calls come in bursts, and starting a process takes
# 0.2 s.
_IDLE_S: Final = 60
# Deadline of a job in case the parent was killed; the parent's own deadline is far shorter.
_MAX_JOB_S: Final = 30
# Memory limit of the process, in bytes. Checking takes about ten times the size of the arguments, which have at most a
# few megabytes.
_MAX_MEMORY: Final = 1 << 29
# Jobs after which reference cycles are collected even if another job waits. Exceptions and dropped schemas leave
# cycles.
_MOST_UNCOLLECTED: Final = 20
# One of this many collections also examines frozen objects, such as dropped schemas, which takes 0.1 s.
_FULL_COLLECTION_EVERY: Final = 50
# Time to wait for another job: longer than the parent needs to send a job that is already waiting.
_NEXT_JOB_S: Final = 0.05


JobPart = Literal["whole", "cheap", "mapped"]


class JobUnfinished(Exception):
    """A job did not end or start in time, or too many jobs were waiting.

    Attributes:
        waited_s: Seconds for which the job has waited to start; None if it did not wait.
    """

    def __init__(self, message: str = "", *, waited_s: float | None = None) -> None:
        super().__init__(message)
        self.waited_s = waited_s


class OwnArguments(Enum):
    """Stands for the job's own arguments in an outcome, so that they are not sent back to the parent."""

    SAME = "same"


@dataclass(frozen=True, slots=True)
class OtherArguments:
    """Contains changed arguments in an outcome as JSON, which is several times faster to read than a pickle."""

    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckJob:
    """The inputs of `registry.arguments.prepare`, in a form that can be sent to another process.

    Attributes:
        wrapper, server, tool: The name of the wrapper, the alias of its server, and the server's name of the tool.
        names: The original name of each renamed property; None if the caller was shown the unmodified schema.
        doubt: The reason why an earlier job could not check the arguments; None in the first job.
        part: The extent of the check: `whole`; `cheap`, which skips expensive checks; or `mapped`, which only restores
            original names and adds defaults.
        spent_s: The time after which the earlier job was ended; None if it ended by itself.
        text: The arguments as serialized by `orjson`. Set only in the process that runs the job: in the parent, waiting
            jobs would need memory for the text in addition to the arguments.
    """

    wrapper: str
    server: str
    tool: str
    schema: Any
    schema_digest: str
    arguments: Any
    level: RepairLevel
    defaults: dict[str, Any]
    validation: Validation
    names: dict[str, str] | None
    null_means_omitted: bool
    doubt: NotChecked | None = None
    part: JobPart = "whole"
    spent_s: float | None = None
    text: bytes | None = None

    @classmethod
    def for_call(
        cls,
        wrapper: ToolWrapper,
        arguments: Any,
        *,
        level: RepairLevel,
        defaults: Mapping[str, Any],
        lowered: LoweredDefinition | None,
        validation: Validation,
    ) -> CheckJob:
        """Return the job that prepares the arguments of a call."""
        return cls(
            wrapper=wrapper.name,
            server=wrapper.server,
            tool=wrapper.tool,
            schema=wrapper.checked_schema,
            schema_digest=wrapper.schema_digest,
            arguments=arguments,
            level=level,
            defaults=dict(defaults),
            validation=validation,
            names=dict(lowered.original_names) if lowered is not None and lowered.document is not None else None,
            null_means_omitted=lowered is not None and lowered.null_means_omitted,
        )

    def packed(self) -> tuple[bytes, bytes]:
        """Return the job in two parts for another process: a pickle without the arguments, and the arguments as JSON.

        Raises:
            MalformedJson: The arguments are nested too deeply.
        """
        try:
            text, is_usual = orjson.dumps(self.arguments), True
        except TypeError:  # an integer or string that orjson does not support, or too many levels
            text, is_usual = json_bytes.dumps(self.arguments), False
        return pickle.dumps((replace(self, arguments=None), is_usual)), text

    @staticmethod
    def unpacked(head: tuple[CheckJob, bool], text: bytes) -> CheckJob:
        """Return the job from the two parts that `packed` has returned, after the first part was unpickled."""
        job, is_usual = head
        unpacked: CheckJob = replace(job, arguments=json_bytes.loads(text), text=text if is_usual else None)
        return unpacked

    def run(self) -> Prepared:
        """Repair and check the arguments, without a time limit."""
        wrapper = ToolWrapper(
            name=WrapperName(self.wrapper),
            server=ServerName(self.server),
            tool=ToolName(self.tool),
            definition={"name": self.wrapper, "inputSchema": self.schema},
            digest="",
            schema_digest=self.schema_digest,
        )
        lowered = None
        if self.names is not None:
            lowered = LoweredDefinition(
                definition={},
                original_names=self.names,
                null_means_omitted=self.null_means_omitted,
                original=self.schema,
                document=SchemaDocument(self.schema),
            )
        with use_effort(THOROUGH):
            if self.doubt is not None:
                prepared = prepare_with_cheap_checks(
                    wrapper,
                    self.arguments,
                    UnfinishedCheck(doubt=self.doubt, checks_cheaply=self.part == "cheap", within_s=self.spent_s),
                    level=self.level,
                    defaults=self.defaults,
                    lowered=lowered,
                )
            else:
                prepared = prepare(
                    wrapper,
                    self.arguments,
                    level=self.level,
                    defaults=self.defaults,
                    lowered=lowered,
                    validation=self.validation,
                    text=self.text,
                )
        # Unchanged arguments are not sent back to the parent, nor are the arguments of a refused call.
        refused = bool(prepared.problems)
        return replace(
            prepared,
            arguments=OwnArguments.SAME if refused else self._packed_value(prepared.arguments),
            checked=self._packed_value(prepared.checked),
        )

    def _packed_value(self, value: Any) -> Any:
        if value is self.arguments:
            return OwnArguments.SAME
        return OtherArguments(json_bytes.dumps(value)) if isinstance(value, dict | list) else value

    def received(self, outcome: Prepared) -> Prepared:
        """Restore, in the parent, the arguments of an outcome of `run`, and return the outcome."""
        return replace(
            outcome,
            arguments=self._received_value(outcome.arguments),
            checked=self._received_value(outcome.checked),
        )

    def located(self, doubt: NotChecked) -> NotChecked:
        """Return the reason why the arguments are not checked. If `doubt` has no path, return a reason with a path."""
        return too_many_values_error({} if self.arguments is None else self.arguments) if doubt.unlocated else doubt

    def unchecked(self, doubt: NotChecked, *, within_s: float | None = None) -> Prepared:
        """Return the outcome for arguments that cannot be checked: refused or sent unchecked, as configured.

        Args:
            doubt: The reason why the arguments cannot be checked.
            within_s: The time limit that was exceeded; None if there was another reason.
        """
        arguments = {} if self.arguments is None else self.arguments
        doubt = self.located(doubt)
        # Whatever the configuration says, arguments that are known to be invalid are refused. So are arguments with
        # renamed properties, because the upstream does not know these names.
        is_renamed = self.names is not None
        if self.validation == "strict" or doubt.invalid or is_renamed or not isinstance(arguments, dict):
            names = {old: new for new, old in (self.names or {}).items()}
            return refuse_unchecked(self.arguments, doubt, names, within_s=within_s)
        filled = fill_defaults(self.schema, arguments, self.defaults)
        added = tuple(name for name in filled if name not in arguments)
        unchecked = unchecked_problem(doubt, within_s=within_s)
        return Prepared(arguments=filled, filled=added, checked=arguments, unchecked=(unchecked,))

    def _received_value(self, value: Any) -> Any:
        if value is OwnArguments.SAME:
            return self.arguments
        return json_bytes.loads(value.text) if isinstance(value, OtherArguments) else value


def main() -> None:
    """Run jobs until standard input is closed or no job has arrived for a while."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and ends its children
    if hasattr(os, "nice"):  # not on Windows
        os.nice(5)  # other processes take precedence
    _limit_memory()
    jobs, outcomes = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # keep other output out of the stream of outcomes
    _write(outcomes, b"")  # tells the parent that this process is ready
    # The automatic collector is disabled: JSON values contain no cycles, and examining a million values takes longer
    # than checking them.
    gc.disable()
    gc.freeze()
    uncollected = collections = 0
    while True:
        _end_after(_IDLE_S)
        head = jobs.read(LENGTHS.size)
        if len(head) < LENGTHS.size:
            return
        lengths = LENGTHS.unpack(head)
        [head, text] = [jobs.read(length) for length in lengths]
        if len(text) < lengths[1]:
            return
        # If the parent has ended, it cannot kill this process. SIGALRM then ends it even if the validator hangs.
        _end_after(_MAX_JOB_S)
        _write(outcomes, _outcome_of(head, text))
        del text  # freed now, after the outcome is written, because freeing takes time
        uncollected += 1
        # Collect only when no job is waiting, or after many jobs.
        if uncollected >= _MOST_UNCOLLECTED or not _job_follows(jobs):
            collections += 1
            _collect(thoroughly=collections % _FULL_COLLECTION_EVERY == 0)
            uncollected = 0


def _outcome_of(head: bytes, text: bytes) -> bytes:
    packed = pickle.loads(head)
    try:
        if isinstance(packed, tuple):
            return pickle.dumps(CheckJob.unpacked(packed, text).run())
        job: ValueJob = packed
        return pickle.dumps(job.run(text))
    except (NotChecked, SelectionRefused, json_bytes.MalformedJson) as refused:
        return pickle.dumps(refused)


def _collect(*, thoroughly: bool) -> None:
    """Collect cycles, then freeze all objects that remain, such as compiled schemas, which are used by many jobs.

    Frozen objects are not examined again, except if `thoroughly` is true.
    """
    if thoroughly:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def _job_follows(jobs: IO[bytes]) -> bool:
    """Return whether another job arrives within `_NEXT_JOB_S`."""
    if sys.platform == "win32":  # on Windows, select does not support pipes
        return False
    return bool(select.select([jobs], [], [], _NEXT_JOB_S)[0])


def _write(stream: IO[bytes], body: bytes) -> None:
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


def _end_after(seconds: int) -> None:
    # Windows has no SIGALRM. On Windows, the process ends at its next read, if the parent has closed the pipe.
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:
        return  # not on this system
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))


if __name__ == "__main__":
    main()
