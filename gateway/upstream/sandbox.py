"""Decide what a confined server may use: folders, network, memory and processes.

A small program (`gateway.process.confine`) applies the rules to its own process and then executes the server. By
default, a server may read the system, its own program, and the paths on its command line. It may write only its own
temporary folder and the caches of package managers. No rule permits the gateway's configuration, or any part of the
gateway's state directory except installed bundles (packaged servers).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from gateway.config.operation_config import SandboxConfig
from gateway.protocol.gateway_errors import ConnectionLost
from gateway.upstream.sandbox_rules import Rules, is_below, tasks_of_machine

log = logging.getLogger(__name__)

_MAX_DENIALS: Final = 20
# The first Landlock versions that can restrict files, TCP ports, and signals to other processes.
_FILES_SINCE, _NETWORK_SINCE, _SIGNALS_SINCE = 1, 4, 6
_REQUIREMENTS: Final = "Linux 6.12 with Landlock, on x86-64 or ARM64"


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """The confinement of one process.

    Attributes:
        config: The settings.
        arguments: The command line of the confining program, which precedes the server's own command line; empty if
            confinement is not available.
        state: `confined`, `partial` if the kernel supports only some of the restrictions, or `unconfined`.
        folder: The temporary folder of the process.
        read, write: The permitted paths.
        denials: The denials that the output of the server reports; shared by all processes of the server.
        latest: The latest denial in the output of this process.
    """

    config: SandboxConfig
    arguments: list[str] = field(default_factory=list)
    state: str = "unconfined"
    folder: str = ""
    read: frozenset[str] = frozenset()
    write: frozenset[str] = frozenset()
    denials: dict[str, None] = field(default_factory=dict)
    latest: str | None = None

    def note_output(self, line: str) -> None:
        """Record a denial if this line of output reports a denial."""
        denial = self.find_denial(line)
        if denial is not None:
            self.latest = denial
            if len(self.denials) < _MAX_DENIALS:
                self.denials[denial] = None

    def find_denial(self, line: str) -> str | None:
        """Return the denial that a line of output reports, and its setting; None if the line reports no denial."""
        if not self.arguments:
            return None
        if self.config.memory and _OUT_OF_MEMORY.search(line):
            return f"more memory than sandbox.memory ({self.config.memory} MiB)"
        if self.config.cpu and "SIGXCPU" in line:
            return f"more processor time than sandbox.cpu ({self.config.cpu} s)"
        if not _DENIED.search(line):
            return None
        if _PORT.search(line) and self.config.network != "all":
            return f"the network (sandbox.network: {_spell_network(self.config.network)})"
        paths = {path: real for path in _PATH.findall(line) if not is_below(real := os.path.realpath(path), self.write)}
        # Look for unreadable paths first. A line may begin with the path of the program. The server may not write the
        # program, so a check for unwritable paths would blame that path.
        for path, real in paths.items():
            if not is_below(real, self.read):
                return f"{path} (neither in sandbox.read nor in sandbox.write)"
        for path, real in paths.items():
            if os.access(real, os.W_OK) or not os.path.exists(real):
                return f"writing {path} (not in sandbox.write)"
        return None

    def explained(self, reason: str) -> str:
        """Return the reason why the process ended, followed by the denial that may have caused the end."""
        denial = self.find_denial(reason) or self.latest
        return f"{reason} (denied by the sandbox: {denial})" if denial is not None else reason

    def remove_folder(self) -> None:
        """Remove the temporary folder."""
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def confinement_of(config: SandboxConfig, version: int, *, can_filter_calls: bool = True) -> tuple[str, list[str]]:
    """Return the state of a sandbox, and the restrictions that the system does not support.

    Args:
        version: The Landlock version of the kernel; 0 if the kernel does not support Landlock.
        can_filter_calls: Whether the confining program knows the system calls of this architecture.
    """
    supported = {
        "files": version >= _FILES_SINCE,
        "TCP ports": version >= _NETWORK_SINCE or config.network == "all",
        "UDP": can_filter_calls or config.network != "none",
        "signals": version >= _SIGNALS_SINCE,
    }
    missing = [what for what, is_supported in supported.items() if not is_supported]
    return "unconfined" if "files" in missing else "partial" if missing else "confined", missing


_DENIED: Final = re.compile(
    r"\bE(?:ACCES|PERM|ROFS)\b|permission denied|not permitted|PermissionError|Errno 13\b|os error 13\b", re.I
)
_OUT_OF_MEMORY: Final = re.compile(r"MemoryError|out of memory|cannot allocate memory|ENOMEM|bad_alloc", re.I)
_PORT: Final = re.compile(
    r"\b(?:listen|bind|connect|socket)\b|attempting to bind|port \d|tcp|[\w.\]]:\d{2,5}\b|getaddrinfo|resolution",
    re.I,
)
_PATH: Final = re.compile(r"(?<![\w.:/])(/[^\s'\"`’”:,)\]]+)")


def _spell_network(network: str) -> str:
    return {"all": "true", "none": "false"}.get(network, network)


async def prepare_sandbox(
    config: SandboxConfig,
    line: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: str | None,
    server: str,
    denials: dict[str, None],
) -> Sandbox:
    """Return the confinement of a process that is about to start.

    Args:
        line: The path of the program, and its arguments.
        environment: The environment variables of the process.
        cwd: The working directory in the server's configuration entry.
        denials: Collects the denials of all processes of the server.

    Raises:
        ConnectionLost: The sandbox is required but not available on this machine, or its rules cannot be applied.
    """
    version, filters_calls = 0, False
    if sys.platform == "linux":
        # Imported lazily, because the module works only on Linux.
        from gateway.process.confine import can_filter_calls, landlock_version

        version, filters_calls = landlock_version(), can_filter_calls()
    state, missing = confinement_of(config, version, can_filter_calls=filters_calls)
    if missing:
        text = f"the sandbox cannot restrict {', '.join(missing)} on this system (requires {_REQUIREMENTS})"
        if config.required:
            raise ConnectionLost(f"not started: {text}, and its entry says `required: true`", sent=False)
        log.warning("sandbox incomplete: %s", text, extra={"server": server})
    if sys.platform != "linux":
        return Sandbox(config=config, denials=denials)
    rules = Rules(config, line, environment, cwd)
    # Run in a thread, so that a slow disk does not delay other callers.
    confinement = await anyio.to_thread.run_sync(rules.find)
    for path in confinement.missing:
        log.warning("its sandbox does not permit %s, which does not exist", path, extra={"server": server})
        denials[f"{path} (it does not exist: create it before the start)"] = None
    return Sandbox(
        config=config,
        arguments=confinement.arguments,
        state=state,
        folder=confinement.folder,
        read=confinement.read,
        write=confinement.write,
        denials=denials,
    )


# How often to check for new processes. A fork bomb starts a few thousand processes within this interval.
_COUNT_S: Final = 0.25
# Count the processes at least once in this many checks, even if the number of threads on the machine has hardly grown:
# threads of other programs may have ended in the meantime.
_COUNT_ANYWAY: Final = 20


@dataclass(slots=True)
class CountSchedule:
    """Decides when to count the processes of a server, which takes longer than reading the machine's thread count.

    Attributes:
        most: The maximum number of processes.
    """

    most: int
    _tasks: int = 0
    _room: int = 0
    _checks: int = 0

    def is_due(self, tasks: int) -> bool:
        """Return whether to count now, because the server may have more than `most` processes.

        `tasks` is the number of threads on the machine, to which each new process adds one. A server that could start
        N processes at the last count can only exceed the limit if the machine has at least N more threads.
        """
        self._checks += 1
        return tasks - self._tasks >= self._room or self._checks >= _COUNT_ANYWAY

    def note_count(self, tasks: int, running: int) -> None:
        """Note that the server had `running` processes when the machine had `tasks` threads."""
        self._tasks, self._room, self._checks = tasks, self.most - running, 0


async def limit_processes(pid: int, most: int) -> int:
    """Wait until a process and its descendants exceed `most` processes in total, and return their number."""
    schedule = CountSchedule(most)
    while True:
        tasks = tasks_of_machine()
        if schedule.is_due(tasks):
            running = len(processes_of(pid))
            if running > most:
                return running
            schedule.note_count(tasks, running)
        await anyio.sleep(_COUNT_S)


def processes_of(pid: int) -> list[int]:
    """Return the ids of a process, its descendants, and orphaned descendants that the gateway has adopted."""
    processes, pending = {pid}, [pid]
    while pending:
        for child in _children_of(pending.pop()):
            if child not in processes:
                processes.add(child)
                pending.append(child)
    orphans = [each for each in _children_of(os.getpid()) if each not in processes and _session_of(each) == pid]
    return [*processes, *orphans]


def _children_of(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                children += map(int, text.split())
    return children


def _session_of(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid)
    return None
