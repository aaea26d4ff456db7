"""The process in which arguments are checked that could take long: `python -m gateway.calls.check_process`.

It reads one job after the other from its standard input and writes each outcome to its standard output, both as a
length and that many bytes of pickle, which nobody but parent and child can reach. What takes too long is ended with
the whole process, because the validator cannot be interrupted.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import IO, Any, Final

from registry.arguments.prepare import Prepared, prepare
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName, ToolName, WrapperName
from registry.catalog.shape import RepairLevel, Validation
from registry.dialects.definitions import LoweredDefinition
from registry.errors import NotChecked
from registry.schema.effort import THOROUGH, effort_of
from registry.schema.references import SchemaDocument

LENGTH: Final = struct.Struct("!Q")
# Large calls come in bursts; a process that is not needed for so long gives its memory back, and the next one takes a
# fifth of a second to start.
_IDLE_S: Final = 60
# The parent's deadline is far shorter; this one is for a parent that was killed.
_MAX_JOB_S: Final = 30
# Checking takes some ten times the size of the arguments, of which a request has a few megabytes.
_MAX_MEMORY: Final = 1 << 29


class Unsent(Enum):
    """Stands for the arguments of the job in what comes back, so that they are not sent twice."""

    SAME = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckJob:
    """What `registry.arguments.prepare` needs, in a form that can be sent to another process.

    Attributes:
        names: New names of renamed properties, each with its original; None if the caller was shown the very schema.
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

    def run(self) -> Prepared:
        """Prepare the arguments, without bounds on time."""
        wrapper = ToolWrapper(
            name=WrapperName(self.wrapper),
            server=ServerName(self.server),
            tool=ToolName(self.tool),
            epoch=0,
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
            prepared = prepare(
                wrapper, self.arguments, level=self.level, defaults=self.defaults, lowered=lowered,
                validation=self.validation,
            )  # fmt: skip
        # What came from the parent need not go back.
        return replace(
            prepared,
            arguments=Unsent.SAME if prepared.arguments is self.arguments else prepared.arguments,
            understood=Unsent.SAME if prepared.understood is self.arguments else prepared.understood,
        )


def main() -> None:
    """Run jobs until standard input ends, or nothing has come for a while."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the parent, which ends its children itself
    if hasattr(os, "nice"):  # not on Windows
        os.nice(5)  # calls of others come first
    _limit_memory()
    jobs, outcomes = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may come between outcomes
    _write(outcomes, b"")
    while True:
        _end_after(_IDLE_S)
        head = jobs.read(LENGTH.size)
        if len(head) < LENGTH.size:
            return
        [length] = LENGTH.unpack(head)
        body = jobs.read(length)
        if len(body) < length:
            return
        # Even where the validator is at work, and the parent is no longer there to end it.
        _end_after(_MAX_JOB_S)
        job: CheckJob = pickle.loads(body)
        try:
            outcome: Prepared | NotChecked = job.run()
        except NotChecked as unchecked:
            outcome = unchecked
        _write(outcomes, pickle.dumps(outcome))


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
