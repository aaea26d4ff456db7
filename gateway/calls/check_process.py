"""The process in which arguments are checked that could take long: `python -m gateway.calls.check_process`.

It reads one job after the other from its standard input and writes each outcome to its standard output, as lengths and
so many bytes of pickle, which nobody but parent and child can reach; arguments are the JSON that would be sent. What
takes too long is ended with the whole process, because the validator cannot be interrupted.
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

from gateway import wire
from registry.arguments.prepare import Prepared, prepare, prepare_partly
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName, ToolName, WrapperName
from registry.catalog.shape import RepairLevel, Validation
from registry.dialects.definitions import LoweredDefinition
from registry.errors import NotChecked
from registry.schema.effort import THOROUGH, effort_of
from registry.schema.references import SchemaDocument

LENGTHS: Final = struct.Struct("!QQ")
"""Before a job: of all but its arguments, and of these."""
LENGTH: Final = struct.Struct("!Q")
"""Before an outcome."""
# Large calls come in bursts; a process that is not needed for so long gives its memory back, and the next one takes a
# fifth of a second to start.
_IDLE_S: Final = 60
# The parent's deadline is far shorter; this one is for a parent that was killed.
_MAX_JOB_S: Final = 30
# Checking takes some ten times the size of the arguments, of which a request has a few megabytes.
_MAX_MEMORY: Final = 1 << 29
# Jobs after which cycles are looked for even if the next one is there: exceptions and a schema that is no longer known.
_MOST_UNCOLLECTED: Final = 20
# Collections after which schemas are looked through as well that are no longer known: that takes a tenth of a second.
_THOROUGHLY: Final = 50
# Longer than it takes a parent to send what it has waiting.
_MOMENT_S: Final = 0.05


JobPart = Literal["whole", "cheap", "mapped"]


class Unsent(Enum):
    """Stands for the arguments of the job in what comes back, so that they are not sent twice."""

    SAME = "same"


@dataclass(frozen=True, slots=True)
class Written:
    """Stands for other arguments in what comes back: their JSON is read several times as fast as a pickle of them."""

    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckJob:
    """What `registry.arguments.prepare` needs, in a form that can be sent to another process.

    Attributes:
        names: New names of renamed properties, each with its original; None if the caller was shown the very schema.
        doubt: Why the arguments cannot be checked, where an earlier job has shown that.
        part: `whole`; `cheap`, without what is costly to check; or `mapped`, without a check: names are mapped back and
            defaults added.
        spent_s: The time that the earlier job was given.
        text: What `orjson` makes of the arguments, known to whoever runs the job: jobs that wait for their turn would
            keep it beside the arguments.
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
    def of(
        cls,
        wrapper: ToolWrapper,
        arguments: Any,
        *,
        level: RepairLevel,
        defaults: Mapping[str, Any],
        lowered: LoweredDefinition | None,
        validation: Validation,
    ) -> CheckJob:
        """Return the job of preparing arguments."""
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
        """Return the job for another process: without its arguments, and these as JSON.

        Raises:
            MalformedJson: They are nested too deeply.
        """
        try:
            text, is_usual = orjson.dumps(self.arguments), True
        except TypeError:  # numbers and texts that other languages lack, too many levels
            text, is_usual = wire.dumps(self.arguments), False
        return pickle.dumps((replace(self, arguments=None), is_usual)), text

    @staticmethod
    def unpacked(head: bytes, text: bytes) -> CheckJob:
        """Return the job that was packed."""
        job, is_usual = pickle.loads(head)
        unpacked: CheckJob = replace(job, arguments=wire.loads(text), text=text if is_usual else None)
        return unpacked

    def run(self) -> Prepared:
        """Prepare the arguments, without bounds on time."""
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
        with effort_of(THOROUGH):
            if self.doubt is not None:
                prepared = prepare_partly(
                    wrapper, self.arguments, self.doubt, level=self.level, defaults=self.defaults, lowered=lowered,
                    checked=self.part == "cheap", within_s=self.spent_s,
                )  # fmt: skip
            else:
                prepared = prepare(
                    wrapper, self.arguments, level=self.level, defaults=self.defaults, lowered=lowered,
                    validation=self.validation, text=self.text,
                )  # fmt: skip
        # What came from the parent need not go back, and what is not sent on is of no use there.
        refused = bool(prepared.problems)
        return replace(
            prepared,
            arguments=Unsent.SAME if refused else self._packed_value(prepared.arguments),
            understood=self._packed_value(prepared.understood),
        )

    def _packed_value(self, value: Any) -> Any:
        if value is self.arguments:
            return Unsent.SAME
        return Written(wire.dumps(value)) if isinstance(value, dict | list) else value

    def received(self, outcome: Prepared) -> Prepared:
        """Return an outcome of `run` with the arguments in it."""
        return replace(
            outcome,
            arguments=self._received_value(outcome.arguments),
            understood=self._received_value(outcome.understood),
        )

    def _received_value(self, value: Any) -> Any:
        if value is Unsent.SAME:
            return self.arguments
        return wire.loads(value.text) if isinstance(value, Written) else value


def main() -> None:
    """Run jobs until standard input ends, or nothing has come for a while."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the parent, which ends its children itself
    if hasattr(os, "nice"):  # not on Windows
        os.nice(5)  # calls of others come first
    _limit_memory()
    jobs, outcomes = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may come between outcomes
    _write(outcomes, b"")
    # JSON has no cycles: looking for some among a million values takes longer than to check them.
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
        # Even where the validator is at work, and the parent is no longer there to end it.
        _end_after(_MAX_JOB_S)
        job = CheckJob.unpacked(head, text)
        _write(outcomes, _outcome_of(job))
        del job  # which takes a while, too
        uncollected += 1
        # Only where nobody waits for it.
        if uncollected >= _MOST_UNCOLLECTED or not _comes(jobs):
            collections += 1
            _collect(thoroughly=collections % _THOROUGHLY == 0)
            uncollected = 0


def _outcome_of(job: CheckJob) -> bytes:
    try:
        return pickle.dumps(job.run())
    except NotChecked as unchecked:
        return pickle.dumps(unchecked)


def _collect(*, thoroughly: bool) -> None:
    """Collect cycles of late, or all of them; what is left are schemas, compiled, that stay for many jobs."""
    if thoroughly:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def _comes(jobs: IO[bytes]) -> bool:
    """Return whether another job comes in a moment."""
    if sys.platform == "win32":  # where pipes cannot be waited for
        return False
    return bool(select.select([jobs], [], [], _MOMENT_S)[0])


def _write(stream: IO[bytes], body: bytes) -> None:
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


def _end_after(seconds: int) -> None:
    # Windows has no such signal: there the end of the parent's pipe ends this process once it waits again.
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
