"""Keep local servers apart from the gateway and from each other (Linux).

Local servers run as the same user as the gateway. Without separation, each of them can read the environment and the
memory of the gateway and of its siblings, and can send them signals. Three mechanisms of the kernel prevent that:

- Each server runs in a Landlock domain of its own, which only restricts signals and tracing across domains. It needs
  Landlock ABI 6 (Linux 6.12). Source: Linux, "Landlock: unprivileged access control", "IPC scoping" and "Ptrace
  restrictions".
- The gateway is not dumpable, so that only root can trace it. Source: prctl(2), PR_SET_DUMPABLE.
- Processes that leave the process group of their server become children of the gateway, and end with it.
  Source: prctl(2), PR_SET_CHILD_SUBREAPER.

The file system is not restricted.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import struct
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import anyio

log = logging.getLogger(__name__)

# Loaded here: between fork and exec nothing may be loaded.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_CLOSE_RANGE = getattr(_LIBC, "close_range", None)
# Of <linux/close_range.h>; the first descriptor that is not one of the standard streams, and the last possible one.
_CLOSE_RANGE_CLOEXEC: Final = 4
_FIRST_OTHER: Final = 3
_LAST_DESCRIPTOR: Final = 2**31 - 1
# Of <linux/prctl.h>.
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
# Of <asm-generic/unistd.h>: the same numbers on every architecture that Python is built for on Linux, except alpha.
_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_RESTRICT_SELF: Final = 446
# Of <linux/landlock.h>: `handled_access_fs`, `handled_access_net` and `scoped` of a ruleset.
_RULESET: Final = struct.pack("QQQ", 0, 0, 1 << 1)  # LANDLOCK_SCOPE_SIGNAL
# Of <linux/capability.h>: CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_PERFMON, which read the memory of any process.
_TRACING: Final = (19, 21, 38)
# Programs of snap packages are started by a program with more rights, which a domain does not permit.
_SNAP: Final = "/snap/"
_SNAP_PROGRAM: Final = "/usr/bin/snap"
# A terminated process takes a place in the table of processes until its parent has collected its exit code.
_REAP_EVERY_S: Final = 10.0
# Below the 5 s after which hosts kill a gateway that they end, with what its servers themselves may take.
_TERM_GRACE_S: Final = 0.5
_KILL_GRACE_S: Final = 1.0
_POLL_S: Final = 0.05

# The processes that the event loop waits for itself.
_servers: set[int] = set()


@lru_cache(1)
def _ruleset() -> int | None:
    """Return the descriptor of the ruleset of all domains; None where the kernel has none."""
    if _LIBC is None:
        return None
    descriptor = int(_LIBC.syscall(_LANDLOCK_CREATE_RULESET, ctypes.create_string_buffer(_RULESET), len(_RULESET), 0))
    if descriptor < 0:
        log.info(
            "local servers are not separated from each other: %s (Landlock ABI 6, Linux 6.12)",
            os.strerror(ctypes.get_errno()),
        )
        return None
    return descriptor


@lru_cache(1)
def protect_this_process() -> None:
    """Let no other process of this user trace this one, and let it inherit what its servers leave behind."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def can_separate(program: str) -> bool:
    """Return whether a program, given by its path, can run in a domain of its own on this machine."""
    real = os.path.realpath(program)
    return _ruleset() is not None and real != _SNAP_PROGRAM and not real.startswith(_SNAP)


def prepare_child() -> None:
    """Prepare a child between fork and exec: it ends with the gateway, and inherits no descriptor."""
    if _LIBC is not None:
        # A gateway that is killed outright can end nobody; on Linux the kernel does it then.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # uvloop hands each pipe down twice: the end of an output that the child closes would not be noticed.
        if _CLOSE_RANGE is not None:
            _CLOSE_RANGE(_FIRST_OTHER, _LAST_DESCRIPTOR, _CLOSE_RANGE_CLOEXEC)


def prepare_separate_child() -> None:
    """Prepare a child like `prepare_child`, and put it into a domain of its own."""
    prepare_child()
    ruleset = _ruleset()
    if _LIBC is not None and ruleset is not None:
        # Without it a program with more rights (setuid) could do what the domain denies. Landlock requires it.
        _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _LIBC.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
        # Takes effect for root only: the kernel lets these capabilities read across domains.
        for capability in _TRACING:
            _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def note_started(pid: int) -> None:
    """Note a server whose exit code the event loop collects."""
    _servers.add(pid)


def note_ended(pid: int) -> None:
    """Note that a server has ended."""
    _servers.discard(pid)


async def reap_left_processes() -> None:
    """Collect the exit codes of processes that servers have left behind, until cancelled."""
    while True:
        await anyio.sleep(_REAP_EVERY_S)
        _left_processes()


async def end_left_processes() -> None:
    """End what servers have left behind; the servers themselves have ended."""
    for sign, grace_s in ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, _KILL_GRACE_S)):
        with anyio.move_on_after(grace_s):
            while left := _left_processes():
                for pid in left:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, sign)
                await anyio.sleep(_POLL_S)
            return


def _left_processes() -> list[int]:
    """Return the processes that servers have left behind and that still run; collect the exit codes of the others."""
    if _LIBC is None or _has_no_new_privileges("self"):
        # Where the gateway itself has the mark by which they are known, as in containers, they end with the container.
        return []
    try:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    except OSError:  # ended meanwhile, or a kernel without this file
        return []
    left = []
    for pid in map(int, children):
        # Hooks may have started processes too. These have not been put into a domain.
        if pid in _servers or not _has_no_new_privileges(str(pid)):
            continue
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                left.append(pid)
    return left


def _has_no_new_privileges(pid: str) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    return "\nNoNewPrivs:\t1\n" in status
