"""Start local servers, track their progress, limit concurrent starts, and isolate the servers from each other.

Local servers run as the same user as the gateway. Without isolation, each server can read the environment and memory of
the gateway and of other servers, and can send signals to these processes. Two kernel mechanisms prevent this:

- Each server runs in its own Landlock domain, which restricts only signals and tracing across domains. This requires
  Landlock ABI 6 (Linux 6.12). Source: Linux, "Landlock: unprivileged access control", "IPC scoping" and "Ptrace
  restrictions".
- The gateway is not dumpable, so that only root can trace the gateway. Source: prctl(2), PR_SET_DUMPABLE.

Two further mechanisms end all processes of a server when the gateway ends:

- Orphaned processes of a server become children of the gateway, and the gateway ends these children. Source: prctl(2),
  PR_SET_CHILD_SUBREAPER.
- If the gateway is killed, each server receives SIGTERM (PR_SET_PDEATHSIG). A shell, called the guard,
  outlives the gateway and then kills the process groups that are still running.

The file system is restricted only for servers with a `sandbox`; see `gateway.upstream.sandbox`.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import math
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from gateway.process.secrets import SECRETS, secrets_in
from gateway.protocol.gateway_errors import ConnectionLost

log = logging.getLogger(__name__)

# Variables that programs usually need. Servers inherit these and `_NETWORK`; other variables have to be configured.
_SAFE: Final = (
    "HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "TZ",
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROGRAMDATA", "PROGRAMFILES",
    "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
)  # fmt: skip
# `npx` and `uvx` download the server that they start, so they need the proxy settings and the trusted certificates.
# Programs read the names of the proxy variables in upper or lower case.
_PROXIES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
_NETWORK: Final = (
    *_PROXIES, "NO_PROXY", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip


def child_environment(variables: Mapping[str, str | None], ours: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child, which contains some of the gateway's variables and the configured variables.

    Args:
        variables: The configured variables of the server; None removes a variable.
        ours: The environment of the gateway.
    """
    configured = {key.upper() for key in variables}
    environment = {key: ours[key] for key in _SAFE if key in ours}
    # Compare in upper case, so that a child does not get both an inherited `HTTP_PROXY` and a configured `http_proxy`.
    environment |= {key: ours[key] for key in _NETWORK if key in ours and key.upper() not in configured}
    # A proxy URL may contain a password, which the child may print when it fails.
    SECRETS.hide(_credentials([environment[key] for key in _PROXIES if key in environment]))
    environment.update({key: value for key, value in variables.items() if value is not None})
    return {key: value for key, value in environment.items() if variables.get(key, "") is not None}


def _credentials(proxies: list[str]) -> set[str]:
    return secrets_in({"proxies": [url if "://" in url else f"http://{url}" for url in proxies]})


# After this time, a start no longer counts towards the limit of concurrent starts. A start that takes this long usually
# waits for the network or hangs, and should not delay the next start.
_PLACE_S: Final = 10.0
_CPU_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
_places: RunVar[anyio.Semaphore] = RunVar("typegate_process_starts")


class PrintedLine(NamedTuple):
    """A line of standard error.

    Attributes:
        at: When the line was printed, in seconds since 1970.
        text: The line.
    """

    at: float
    text: str


class ProcessStart:
    """The start of a process. It begins in the queue, and ends when the process responds to the handshake.

    Attributes:
        under_way: Whether the process has not responded to the handshake yet.
        began_s: When the process was started, by the monotonic clock; None while the start is queued.
        last_line: Returns the last line that the process printed.
        explanation: Returns the printed line that explains why the process does not respond.
        printed: Returns the last lines of standard error of this process and of earlier processes of the server.
        pid: The id of the process; None before the process is started.
        confinement: How the process is confined: `confined` or `partial` (by a sandbox), `separate` (only in its own
            Landlock domain) or `unconfined`; None before the process is started.
        denials: Returns the accesses that the sandbox has denied to the server's processes.
    """

    def __init__(self, limit_s: float, *, denials: Callable[[], list[str]] = list) -> None:
        """Prepare a start.

        Args:
            limit_s: Seconds after which the start is abandoned, counted from the start of the process.
            denials: See the attribute `denials`.
        """
        self.under_way = True
        self.began_s: float | None = None
        self.last_line: Callable[[], str] = str
        self.explanation: Callable[[], str] = str
        self.printed: Callable[[], list[PrintedLine]] = list
        self.pid: int | None = None
        self.confinement: str | None = None
        self.denials = denials
        self._limit_s = limit_s
        self._scope = anyio.CancelScope()
        self._stopped = False

    @property
    def took_s(self) -> float:
        """The number of seconds since the process was started."""
        return time.monotonic() - self.began_s if self.began_s is not None else 0.0

    def limit(self, limit_s: float) -> None:
        """Abandon the start after this number of seconds, counted from the start of the process."""
        self._limit_s = limit_s
        if self.began_s is not None:
            self._scope.deadline = anyio.current_time() + limit_s - self.took_s

    def mark_running(
        self,
        *,
        last_line: Callable[[], str],
        explanation: Callable[[], str],
        printed: Callable[[], list[PrintedLine]],
        confinement: str,
        pid: int,
    ) -> None:
        """Note that the process has been started. See the attributes of the class for the arguments."""
        self.began_s = time.monotonic()
        self.printed, self.pid = printed, pid
        self.last_line, self.explanation, self.confinement = last_line, explanation, confinement

    def end(self) -> None:
        """Note that the process has responded to the handshake."""
        self.under_way = False

    @property
    def left_s(self) -> float:
        """The number of seconds left until the limit."""
        return max(0.0, self._limit_s - self.took_s)

    def describe(self) -> str:
        """Return the progress of the start, such as `starting (18 s): npm warn deprecated …`."""
        if self.began_s is None:
            return "waiting for its turn to start"
        line = self.last_line()
        return f"starting ({self.took_s:.0f} s){f': {line}' if line else ''}"

    def stop(self) -> None:
        """Abandon the start, because the server is no longer needed."""
        self._stopped = True
        self._scope.cancel()

    @asynccontextmanager
    async def within_limit(self) -> AsyncIterator[None]:
        """End the block with an error once the limit has passed or `stop` was called.

        Raises:
            ConnectionLost: The limit has passed, or `stop` was called.
        """
        # Raise an exception instead of propagating the cancellation, so that `ChildProcess` can wait until the process
        # has cleaned up.
        with self._scope:
            if self.began_s is not None:
                self._scope.deadline = anyio.current_time() + self.left_s
            yield
        if self._scope.cancelled_caught:
            line = self.explanation()
            reason = f"no answer to the handshake within {self._limit_s:g} s{f': {line}' if line else ''}"
            raise ConnectionLost(
                "the server was removed, or its entry changed" if self._stopped else reason, sent=False
            )

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Limit concurrent starts: wait for a free place, and occupy the place while the block runs.

        The place is released after at most 10 s, so that a start that hangs does not block other starts.

        Raises:
            ConnectionLost: `stop` was called.
        """
        places = _start_places()
        with anyio.CancelScope() as self._scope:
            await places.acquire()
        if self._scope.cancelled_caught:
            raise ConnectionLost("the server was removed, or its entry changed", sent=False)
        self._scope = anyio.CancelScope()
        is_held = True

        def release_place() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                places.release()

        timer = asyncio.get_running_loop().call_later(_PLACE_S, release_place)
        try:
            yield
        finally:
            timer.cancel()
            release_place()


def _start_places() -> anyio.Semaphore:
    """Return the semaphore that limits concurrent starts; all gateways in this event loop share the semaphore."""
    try:
        return _places.get()
    except LookupError:
        # One more than the number of cores, because a start also waits for disk and network.
        places = anyio.Semaphore(cores() + 1)
        _places.set(places)
        return places


def cores() -> int:
    """Return how many cores this process may use, according to its CPU affinity and the CPU quota of its container."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        return min(available, max(1, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # the file is missing or contains `max`
        return available


# The library is loaded on import, because loading a library between fork and exec is not safe.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_CLOSE_RANGE = getattr(_LIBC, "close_range", None)
# The flag is from <linux/close_range.h>. The range contains all descriptors except those of the standard streams.
_CLOSE_RANGE_CLOEXEC: Final = 4
_FIRST_OTHER: Final = 3
_LAST_DESCRIPTOR: Final = 2**31 - 1
# From <linux/prctl.h>.
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
# From <asm-generic/unistd.h>. The numbers are the same on every Linux architecture that Python supports, except alpha.
_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_RESTRICT_SELF: Final = 446
# From <linux/landlock.h>: `handled_access_fs`, `handled_access_net` and `scoped` of a ruleset.
_RULESET: Final = struct.pack("QQQ", 0, 0, 1 << 1)  # LANDLOCK_SCOPE_SIGNAL
# From <linux/capability.h>: CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_PERFMON, which allow reading any process's memory.
_TRACING: Final = (19, 21, 38)
# Programs of snap packages are started by a program with elevated privileges, which cannot run in a Landlock domain.
_SNAP: Final = "/snap/"
_SNAP_PROGRAM: Final = "/usr/bin/snap"
# The interval at which the exit codes of orphans are collected; until then, each orphan occupies a slot of the process
# table.
_REAP_EVERY_S: Final = 10.0
# How long orphans may take to end after each signal. Together with the shutdown of the servers, this is less than the
# 5 s after which hosts kill a gateway that they are stopping.
_TERM_GRACE_S: Final = 0.5
_KILL_GRACE_S: Final = 1.0
_POLL_S: Final = 0.05

# The process ids of running servers. The event loop collects the exit codes of these processes.
_servers: set[int] = set()

# The guard reads lines until the gateway ends. Each line lists the process groups of all servers. The guard then waits
# for a second, because servers may end by themselves once their input has ended and they have received SIGTERM. Finally
# it kills the groups in the last line. The guard runs in the background of a shell that ends at once, so that the guard
# does not stay a child of the gateway.
_GUARD: Final = """
exec 3<&0
(
trap '' INT TERM HUP
groups=
while read -r line; do groups=$line; done <&3
[ -n "$groups" ] || exit 0
sleep 1
for group in $groups; do kill -s KILL -- "-$group"; done
) &
"""
_SHELL: Final = "/bin/sh"
_GUARD_START_S: Final = 2.0


class _Guard:
    """The shell that kills the servers of a gateway that was killed."""

    def __init__(self) -> None:
        self._input: BinaryIO | None = None
        self._owner = 0
        self._starting = threading.Lock()

    @property
    def is_running(self) -> bool:
        """True if this process started the shell; false in a fork of the process that started the shell."""
        return self._input is not None and self._owner == os.getpid()

    def start(self) -> None:
        """Start the shell, or wait until another thread has started it."""
        with self._starting, suppress(OSError, subprocess.TimeoutExpired):
            if not self.is_running:
                self._input = _start_guard()
                self._owner = os.getpid()

    def update(self, pids: set[int]) -> None:
        """Send the shell the process ids of all running servers. Each id is also the id of a process group."""
        if self._input is None or not self.is_running:
            return
        with suppress(OSError):
            self._input.write(" ".join(map(str, sorted(pids))).encode() + b"\n")

    def end(self) -> None:
        """End the shell without killing anything, after all servers have ended."""
        guard, self._input = self._input, None
        if guard is None or self._owner != os.getpid():
            return
        with suppress(OSError):
            guard.write(b"\n")
            guard.close()


def _start_guard() -> BinaryIO:
    """Start the shell and return its input.

    Raises:
        OSError: The shell cannot be started.
        subprocess.TimeoutExpired: The shell has not moved to the background in time.
    """
    # Pause the adoption of orphans, so that init adopts the shell. No server runs yet, so no orphan can be missed.
    _adopt_orphans(0)
    try:
        starter = subprocess.Popen(
            [_SHELL, "-c", _GUARD],
            env={"PATH": os.defpath},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        starter.wait(_GUARD_START_S)
    finally:
        _adopt_orphans(1)
    assert starter.stdin is not None
    return cast(BinaryIO, starter.stdin)


def _adopt_orphans(adopts: int) -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, adopts, 0, 0, 0)


_guard = _Guard()


@lru_cache(1)
def _ruleset() -> int | None:
    """Return the descriptor of the Landlock ruleset, or None if the kernel does not support such a ruleset."""
    if _LIBC is None:
        return None
    descriptor = int(_LIBC.syscall(_LANDLOCK_CREATE_RULESET, ctypes.create_string_buffer(_RULESET), len(_RULESET), 0))
    if descriptor < 0:
        log.info(
            "process isolation unavailable: %s (requires Landlock ABI 6, Linux 6.12)",
            os.strerror(ctypes.get_errno()),
        )
        return None
    return descriptor


@lru_cache(1)
def protect_this_process() -> None:
    """Prevent other processes of this user from tracing the gateway, and make the gateway adopt orphans of servers."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    _adopt_orphans(1)


def can_separate(program: str) -> bool:
    """Return whether the program at a path can run in its own Landlock domain on this machine."""
    return _ruleset() is not None and not is_snap(program)


def is_snap(program: str) -> bool:
    """Return whether the program at a path belongs to a snap package."""
    real = os.path.realpath(program)
    return real == _SNAP_PROGRAM or real.startswith(_SNAP)


def prepare_child() -> None:
    """Prepare a child between fork and exec, so that it ends with the gateway and inherits only standard streams."""
    if _LIBC is not None:
        # A gateway that is killed cannot stop its children, so the kernel then sends this signal to the children.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # uvloop passes two descriptors of each pipe to the child. If the second descriptor stayed open, the gateway
        # would not notice that the child has closed its output.
        if _CLOSE_RANGE is not None:
            _CLOSE_RANGE(_FIRST_OTHER, _LAST_DESCRIPTOR, _CLOSE_RANGE_CLOEXEC)


def prepare_separate_child() -> None:
    """Prepare a child like `prepare_child`, and move it into its own Landlock domain."""
    prepare_child()
    ruleset = _ruleset()
    if _LIBC is not None and ruleset is not None:
        # Landlock requires this, because otherwise a setuid program could do things that the domain denies.
        _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _LIBC.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
        # These capabilities, which usually only root has, allow reading memory across domains.
        for capability in _TRACING:
            _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


async def start_guard() -> None:
    """Start the guard in a thread if it is not running. Call this function before the first server is started."""
    if sys.platform == "linux" and not _guard.is_running:
        await anyio.to_thread.run_sync(_guard.start)


def note_started(pid: int) -> None:
    """Add the process id of a server to the running servers, and update the guard."""
    _servers.add(pid)
    _guard.update(_servers)


def note_ended(pid: int) -> None:
    """Remove the process id of a server that has ended from the running servers, and update the guard."""
    _servers.discard(pid)
    _guard.update(_servers)


async def reap_left_processes() -> None:
    """Collect the exit codes of orphaned processes until cancelled."""
    while True:
        await anyio.sleep(_REAP_EVERY_S)
        _left_processes()


async def end_left_processes() -> None:
    """Terminate orphaned processes, after the servers themselves have ended."""
    for sign, grace_s in ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, _KILL_GRACE_S)):
        with anyio.move_on_after(grace_s):
            while orphans := _left_processes():
                for pid in orphans:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, sign)
                await anyio.sleep(_POLL_S)
            break
    if not _servers:
        _guard.end()


def _left_processes() -> list[int]:
    """Return the orphaned processes that are still running, and collect the exit codes of orphans that have ended."""
    if _LIBC is None or _has_no_new_privileges("self"):
        # Orphans of servers are identified by the flag `no_new_privs`. If the gateway itself has the flag, as in
        # containers, all its children have it; orphans then end with the container.
        return []
    try:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    except OSError:  # the process has ended, or the kernel lacks this file
        return []
    orphans = []
    for pid in map(int, children):
        # Skip servers. Also skip processes that hooks have started, which do not have the flag.
        if pid in _servers or not _has_no_new_privileges(str(pid)):
            continue
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                orphans.append(pid)
    return orphans


def _has_no_new_privileges(pid: str) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    return "\nNoNewPrivs:\t1\n" in status
