"""The process that validates arguments whose validation may be slow, and selects parts of large results.

It reads jobs from standard input, one at a time, and writes each outcome to standard output. Messages consist of
lengths followed by that many bytes of pickle, which only parent and child can access; arguments are the JSON to be
sent. The validator cannot be interrupted, so a job that takes too long is ended by killing the process.
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
"""Precedes a job: the length of everything except its arguments, and the length of the arguments."""
LENGTH: Final = struct.Struct("!Q")
"""Precedes an outcome: its length."""
# Large calls come in bursts. After this time an unused process exits to free its memory; starting another takes 0.2 s.
_IDLE_S: Final = 60
# The parent's deadline is far shorter. This one applies if the parent was killed.
_MAX_JOB_S: Final = 30
# Checking takes about ten times the size of the arguments, which is at most a few megabytes.
_MAX_MEMORY: Final = 1 << 29
# Number of jobs after which cycles are collected even while another job waits. Exceptions and dropped schemas leave
# cycles.
_MOST_UNCOLLECTED: Final = 20
# Number of collections after which frozen objects, such as dropped schemas, are included; that takes 0.1 s.
_THOROUGHLY: Final = 50
# Longer than a parent needs to send a job that is already waiting.
_MOMENT_S: Final = 0.05


JobPart = Literal["whole", "cheap", "mapped"]


class JobUnfinished(Exception):
    """Work had no outcome in time, or too much work was waiting.

    Attributes:
        waited_s: Seconds for which the work has waited; None if it was refused at once.
    """

    def __init__(self, message: str = "", *, waited_s: float | None = None) -> None:
        super().__init__(message)
        self.waited_s = waited_s


class OwnArguments(Enum):
    """Represents the job's own arguments in an outcome, to avoid sending them twice."""

    SAME = "same"


@dataclass(frozen=True, slots=True)
class OtherArguments:
    """Represents other arguments in an outcome; JSON is several times faster to read than a pickle."""

    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckJob:
    """The inputs of `registry.arguments.prepare`, in a form that can be sent to another process.

    Attributes:
        names: The original name of each renamed property; None if the caller was shown the unmodified schema.
        doubt: The reason why the arguments cannot be checked, if an earlier job has found one.
        part: `whole`; `cheap`, which skips expensive checks; or `mapped`, which only maps names back and adds defaults.
        spent_s: Time limit of the earlier job.
        text: The arguments as serialized by `orjson`. Set only in the process that runs the job, because queued jobs
            would hold the text in addition to the arguments.
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
        """Return the job for another process, as a pickle without the arguments and the arguments as JSON.

        Raises:
            MalformedJson: The arguments are nested too deeply.
        """
        try:
            text, is_usual = orjson.dumps(self.arguments), True
        except TypeError:  # integers and strings that orjson does not support, or too many levels
            text, is_usual = json_bytes.dumps(self.arguments), False
        return pickle.dumps((replace(self, arguments=None), is_usual)), text

    @staticmethod
    def unpacked(head: tuple[CheckJob, bool], text: bytes) -> CheckJob:
        """Return the job from the result of `packed`, whose first part was read."""
        job, is_usual = head
        unpacked: CheckJob = replace(job, arguments=json_bytes.loads(text), text=text if is_usual else None)
        return unpacked

    def run(self) -> Prepared:
        """Prepare the arguments without a time limit."""
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
        # The parent already has its own values, and does not need the arguments of a refused call.
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
        """Return an outcome of `run` with the arguments restored."""
        return replace(
            outcome,
            arguments=self._received_value(outcome.arguments),
            checked=self._received_value(outcome.checked),
        )

    def located(self, doubt: NotChecked) -> NotChecked:
        """Return the reason why the arguments are not checked, with a place in them."""
        return too_many_values_error({} if self.arguments is None else self.arguments) if doubt.unlocated else doubt

    def unchecked(self, doubt: NotChecked, *, within_s: float | None = None) -> Prepared:
        """Return the outcome if the arguments cannot be checked: they are refused or sent unchecked, as configured."""
        arguments = {} if self.arguments is None else self.arguments
        doubt = self.located(doubt)
        # Arguments that are known to be invalid are refused whatever the configuration says, and arguments with renamed
        # properties cannot be sent, because the upstream does not know these names.
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
    _write(outcomes, b"")
    # JSON values contain no cycles, and collecting a million values takes longer than checking them.
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
        # Effective even if the validator hangs after the parent has been killed.
        _end_after(_MAX_JOB_S)
        _write(outcomes, _outcome_of(head, text))
        del text  # freed before waiting, because freeing takes time as well
        uncollected += 1
        # Collect only when no job is waiting, or after many jobs.
        if uncollected >= _MOST_UNCOLLECTED or not _job_follows(jobs):
            collections += 1
            _collect(thoroughly=collections % _THOROUGHLY == 0)
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
    """Collect recent cycles, or all of them, and freeze the survivors: compiled schemas, which live for many jobs."""
    if thoroughly:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def _job_follows(jobs: IO[bytes]) -> bool:
    """Return whether another job arrives within `_MOMENT_S`."""
    if sys.platform == "win32":  # select does not support pipes there
        return False
    return bool(select.select([jobs], [], [], _MOMENT_S)[0])


def _write(stream: IO[bytes], body: bytes) -> None:
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


def _end_after(seconds: int) -> None:
    # Windows has no SIGALRM. There the process ends when it next reads, because the parent's pipe has been closed.
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
