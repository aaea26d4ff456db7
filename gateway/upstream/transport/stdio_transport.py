"""The stdio transport: a child process that exchanges lines of limited length with the gateway.

Source: MCP 2026-07-28, "Transports", "stdio".
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

import anyio
import anyio.to_thread

from gateway.config.operation_config import SandboxConfig, Sandboxing
from gateway.http.event_stream import MAX_MESSAGE_BYTES
from gateway.process.files import LineSplitter
from gateway.protocol.gateway_errors import ConnectionLost, TooManyCalls
from gateway.upstream.sandbox import Sandbox, limit_processes, prepare_sandbox, processes_of
from gateway.upstream.transport.jsonrpc_transport import OnMessage
from gateway.upstream.transport.process_start import (
    ProcessStart,
    can_separate,
    child_environment,
    is_snap,
    note_ended,
    note_started,
    prepare_child,
    prepare_separate_child,
    protect_this_process,
    start_guard,
)
from gateway.upstream.transport.stderr_log import STDERR_LINE_BYTES, StderrLog, reports_error
from gateway.upstream.transport.stream_transport import StreamTransport

log = logging.getLogger(__name__)

# How many bytes to buffer for a child that does not read its input: enough for two messages of the maximum size.
MAX_UNSENT_BYTES: Final = 2 * MAX_MESSAGE_BYTES
# How long a server may take to exit after its input ends, and how long after SIGTERM. Most servers need a few
# milliseconds, and interpreters need a few hundred. Together, the two waits are shorter than the 5 s after which a host
# kills a gateway that it is stopping.
_CLOSE_GRACE_S: Final = 1.0
_TERM_GRACE_S: Final = 1.0
# How long to wait after SIGKILL. Do not wait longer for a process that is stuck in an uninterruptible system call.
_KILL_GRACE_S: Final = 2.0
# How long to wait for the exit code and the last lines of standard error after the child has closed its output.
_EXIT_CODE_S: Final = 0.2
# How long a child may take to clean up after SIGTERM if its start is abandoned while the gateway keeps running. npm
# needs this time to roll back a partial installation, which would otherwise prevent every later start of the server.
_GIVE_UP_GRACE_S: Final = 30.0
# How often to check whether a process group has ended. The gateway has to poll, because it is not notified when a
# grandchild exits.
_POLL_S: Final = 0.1
# The pause between attempts to kill processes that may start other processes in the meantime.
_KILL_AGAIN_S: Final = 0.02
# How many bytes of a standard error line are searched for accesses that the sandbox denied.
_SEARCHED_BYTES: Final = 500
# The variables that name the folder for temporary files.
_TEMPORARY: Final = ("TMPDIR", "TEMP", "TMP")
# How many file descriptors the start of a process needs: three pairs for the standard streams, and another pair that
# reports whether the program could be started.
_SPAWN_DESCRIPTORS: Final = 8
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL


class ChildProcess(asyncio.SubprocessProtocol):
    """A child process that reads and writes lines.

    If the child has not responded to the handshake yet, it gets more time to shut down than a running server.
    """

    def __init__(
        self, server: str, start: ProcessStart, stderr_log: StderrLog, *, sandbox: Sandboxing | None = None
    ) -> None:
        """Prepare to run a child.

        Args:
            start: Tracks the progress of the start.
            stderr_log: Receives the standard error of the child.
            sandbox: The settings of the child's sandbox, or True for the default settings. With None, the child is only
                isolated from other processes of this user, if the system supports this. With False, it is not isolated.
        """
        self._start = start
        self._server, self._settings = server, sandbox
        self._sandbox: Sandbox | None = None
        self._limit_reason = ""
        self._stderr_log = stderr_log
        self._exited = asyncio.Event()
        self._ended = asyncio.Event()
        self._silent = asyncio.Event()

    @asynccontextmanager
    async def running(
        self,
        command: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str | None],
        cwd: str | None,
        on_line: Callable[[bytes], None],
        on_skipped: Callable[[bytes], None],
    ) -> AsyncIterator[None]:
        """Start the child; on exit, stop the child and all its descendants.

        Args:
            command: The program, searched for on the child's own PATH.
            env: Variables to add to the inherited variables; None removes an inherited variable.
            on_line: Called with each line of the child's output.
            on_skipped: Called with the first and last bytes of each line that is too long.

        Raises:
            ConnectionLost: The command cannot be started.
        """
        environment = child_environment(env, os.environ)
        self._given_variables = env
        # Check the program and folder here, because event loops report a missing program or folder in different ways.
        path = _program(command, environment.get("PATH"), cwd)
        line = [path, *args]
        await start_guard()
        await self._confine(line, environment, cwd)
        is_confined = self._sandbox is not None and bool(self._sandbox.arguments)
        is_separate = not is_confined and self._settings is not False and can_separate(path)
        self._on_line = on_line
        self._stdout = LineSplitter(MAX_MESSAGE_BYTES, on_skipped)
        self._stderr = LineSplitter(STDERR_LINE_BYTES)
        self._stderr_log.reset()
        try:
            _require_descriptors()
            protect_this_process()
            # Shielded: if the start were cancelled halfway, the child could run without a reference to stop it.
            with anyio.CancelScope(shield=True):
                await asyncio.get_running_loop().subprocess_exec(
                    lambda: self,
                    *line,
                    env=environment,
                    cwd=cwd,
                    start_new_session=True,  # also creates a process group, which is used to stop all descendants
                    preexec_fn=_preparation(is_separate),
                )
        except OSError as error:
            reason = error.strerror or error
            if isinstance(error, FileNotFoundError):
                reason = f"{path} names an interpreter in its first line that does not exist"
            raise ConnectionLost(f"cannot start {command}: {reason}", sent=False) from None
        self._start.mark_running(
            last_line=self._last_line,
            explanation=lambda: self._stderr_log.explanation() or self._last_line(),
            printed=self._stderr_log.recent_lines,
            pid=self._pid,
            confinement="separate" if is_separate else self._sandbox.state if self._sandbox else "unconfined",
        )
        try:
            yield
        finally:
            try:
                if self._start.under_way and not self._exited.is_set():
                    await self._give_up()
            finally:
                # Shielded: a child that is not stopped would keep using files, ports and memory.
                with anyio.CancelScope(shield=True):
                    await self._end()
                    await self._remove_folder()
                self._stderr_log.end(failed=self._start.under_way)

    async def _confine(self, line: list[str], environment: dict[str, str], cwd: str | None) -> None:
        """Prepend the confining program to the command line `line`, and set the child's temporary folder.

        Raises:
            ConnectionLost: The sandbox is required but not available, or its rules cannot be applied.
        """
        config = SandboxConfig() if self._settings is True else self._settings
        if not isinstance(config, SandboxConfig):
            return
        if is_snap(line[0]):
            if config.required:
                raise ConnectionLost("not started: programs of snap packages cannot run in a sandbox", sent=False)
            log.warning("sandbox not applied: snap package", extra={"server": self._server})
            return
        sandbox = await prepare_sandbox(
            config,
            line,
            environment=environment,
            cwd=cwd,
            server=self._server,
            denials=self._stderr_log.denials,
        )
        self._sandbox = sandbox
        line[:0] = sandbox.arguments
        if sandbox.folder:
            environment.update({name: sandbox.folder for name in _TEMPORARY if name not in self._given_variables})

    async def _remove_folder(self) -> None:
        if self._sandbox is not None:
            await anyio.to_thread.run_sync(self._sandbox.remove_folder)

    async def keep_within_limits(self) -> None:
        """Kill the child and its descendants once their number exceeds the process limit of the sandbox."""
        config = self._sandbox.config if self._sandbox is not None else None
        if config is None or not config.processes or sys.platform != "linux":
            return
        count = await limit_processes(self._pid, config.processes)
        self._limit_reason = f"it ran {count} processes, more than sandbox.processes ({config.processes})"
        # Kill repeatedly, because a single attempt misses processes that are being started.
        while remaining := [pid for pid in processes_of(self._pid) if pid != self._pid or not self._exited.is_set()]:
            for pid in remaining:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, _KILL)
            self._signal_group(_KILL)
            await anyio.sleep(_KILL_AGAIN_S)

    # asyncio.SubprocessProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The event loop calls this method before any data arrives, so the gateway can respond even to the first line.
        # The casts are needed because uvloop's transports do not derive from asyncio's classes.
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        self._pid = self._transport.get_pid()
        note_started(self._pid)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        # Descriptor 0 is never read, so any descriptor except 1 is standard error.
        if fd == 1:
            for line in self._stdout.feed(data):
                self._on_line(line)
        else:
            for line in self._stderr.feed(data):
                self._stderr_log.add(line)
                if self._sandbox is not None:
                    self._sandbox.note_output(line[:_SEARCHED_BYTES].decode("utf-8", "replace"))

    def pipe_connection_lost(self, fd: int, error: Exception | None) -> None:
        # A server that closed its output can no longer respond, even if it is still running.
        if fd == 1:
            self._ended.set()
        elif fd == 2:
            # Complete the last line, which may contain the reason for the end.
            self.pipe_data_received(fd, b"\n")
            self._silent.set()

    def process_exited(self) -> None:
        self._exited.set()
        self._ended.set()

    # used by the transport

    def write_line(self, line: bytes) -> None:
        """Send one line.

        Raises:
            ConnectionLost: The child has ended.
            TooManyCalls: The child reads so slowly that the output buffer is full.
        """
        if self._ended.is_set() or self._stdin.is_closing():
            raise ConnectionLost(self.end_reason(), sent=False)
        if self._stdin.get_write_buffer_size() > MAX_UNSENT_BYTES:
            raise TooManyCalls("the process does not read its input")
        self._stdin.write(line + b"\n")

    async def wait_ended(self) -> None:
        """Wait until the child has exited or closed its output."""
        await self._ended.wait()
        with anyio.move_on_after(_EXIT_CODE_S):
            await self._exited.wait()
            # A descendant may keep standard error open, so this wait may end only with the timeout.
            await self._silent.wait()

    def end_reason(self) -> str:
        """Return the exit status of the child, and the line of its output that explains the exit."""
        if self._limit_reason:
            return f"the process was killed: {self._limit_reason}"
        reason = self._exit_reason()
        return self._sandbox.explained(reason) if self._sandbox is not None else reason

    def _exit_reason(self) -> str:
        reason = _describe_exit(self._transport.get_returncode())
        cause = self._stderr_log.explanation()
        if cause:
            reason += f": {cause}"
        unfinished = self._unfinished_line()
        if self._start.under_way:
            # Some programs print usage information or a question to standard output instead of JSON-RPC.
            if noise := self._stderr_log.noise(unfinished):
                error = self._stderr_log.error_in_noise(unfinished)
                more = f" … {error}" if error and not reports_error(noise) else ""
                reason += f"; its standard output is not JSON-RPC: {noise}{more}"
        elif not cause and (error := self._stderr_log.error_in_noise(unfinished)):
            # Quote only errors, because other lines may have been printed long before the exit.
            reason += f"; its standard output is not JSON-RPC: {error}"
        return reason

    def _unfinished_line(self) -> bytes:
        """Return the start of an unfinished output line that is not a message, such as a question of `npx`."""
        line = self._stdout.held
        return b"" if line.lstrip()[:1] in (b"{", b"[") else line

    def _last_line(self) -> str:
        return self._stderr_log.last_line() or self._stderr_log.noise(self._unfinished_line())

    async def _give_up(self) -> None:
        """Ask a child that has not responded to the handshake to exit, and wait until its process group has ended.

        The child needs time to clean up: if `npx` is killed during an installation, the next run mistakes the remaining
        folder for a complete installation. If the gateway is stopping, the wait is cancelled.
        """
        self._stdin.close()
        self._signal_group(signal.SIGTERM)
        with anyio.move_on_after(_GIVE_UP_GRACE_S):
            # Wait for the whole group: a program that a shell has started may outlive the shell briefly.
            while not self._exited.is_set() or self._is_group_alive():
                await anyio.sleep(_POLL_S)

    async def _end(self) -> None:
        """Close the child's input. If the child does not exit, terminate it, then kill it. Finally kill its group.

        Source: MCP 2025-11-25, "Lifecycle", "Shutdown", "stdio".
        """
        self._stdin.close()
        # A child that is still starting has already received SIGTERM from `_give_up`, so do not send it again.
        first = signal.SIGTERM if not self._start.under_way else None
        # Send each signal only if the previous step had no effect.
        for grace_s, sign in ((_CLOSE_GRACE_S, first), (_TERM_GRACE_S, _KILL)):
            with anyio.move_on_after(grace_s):
                await self._exited.wait()
            if self._exited.is_set():
                break
            if sign is not None:
                self._signal_group(sign)
        with anyio.move_on_after(_KILL_GRACE_S):
            await self._exited.wait()
        # Descendants may outlive the child. All processes of the group are descendants of the child, so kill the group.
        self._signal_group(_KILL)
        self._transport.close()
        if self._exited.is_set():
            note_ended(self._pid)

    def _is_group_alive(self) -> bool:
        if sys.platform == "win32":
            return False
        try:
            os.killpg(self._pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _signal_group(self, sign: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                # Windows has no process groups, so kill only the process itself.
                self._transport.kill()
            else:
                os.killpg(self._pid, sign)


def _program(command: str, path: str | None, cwd: str | None) -> str:
    """Return the absolute path of the program that a command names.

    Raises:
        ConnectionLost: The program or its working directory does not exist.
    """
    if cwd is not None and (defect := _defect_of_folder(cwd)) is not None:
        raise ConnectionLost(f"cannot start {command}: the working directory {cwd} {defect} (cwd)", sent=False)
    # As for `execvp`, a path with a slash is relative to the child's working directory.
    is_relative = os.path.dirname(command) != "" and not os.path.isabs(command)
    program = shutil.which(os.path.abspath(os.path.join(cwd, command))) if is_relative and cwd is not None else None
    program = program or shutil.which(command, path=path)
    if program is not None:
        return os.path.abspath(program)
    # The command may be copied from a host that accepts a whole shell command line.
    alone = shutil.which(command.split(maxsplit=1)[0], path=path) if " " in command.strip() else None
    hint = " (expected the program alone; its arguments belong in args)" if alone is not None else ""
    if not hint and os.path.dirname(command) and os.path.isfile(os.path.join(cwd or "", command)):
        hint = " (the file exists, but is not executable)"
    raise ConnectionLost(f"command not found: {command}{hint}", sent=False)


def _defect_of_folder(path: str) -> str | None:
    """Return the reason why a process cannot start in a folder, or None if it can start in this folder."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except (OSError, ValueError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    return None if os.access(path, os.X_OK) else "cannot be entered by the user of this process"


def _preparation(is_separate: bool) -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    return prepare_separate_child if is_separate else prepare_child


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "the process closed its output"
    if code < 0:
        with suppress(ValueError):
            return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process exited with code {code}"


def _require_descriptors() -> None:
    """Raise `OSError` if too many files are open. uvloop would report this failure without the reason."""
    descriptors: list[int] = []
    try:
        for _ in range(_SPAWN_DESCRIPTORS):
            descriptors.append(os.dup(2))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@asynccontextmanager
async def open_stdio(
    server: str,
    command: str,
    args: Sequence[str],
    *,
    env: Mapping[str, str | None],
    cwd: str | None,
    on_message: OnMessage,
    start: ProcessStart,
    stderr_log: StderrLog,
    sandbox: Sandboxing | None = None,
) -> AsyncIterator[StreamTransport]:
    """Start a child process, and yield a transport that is connected to the child.

    Args:
        server: The alias of the server.
        command, args, env, cwd: See `ChildProcess.running`.
        on_message: Called with each message that is not a response.
        start, stderr_log, sandbox: See `ChildProcess`.

    Raises:
        ConnectionLost: The command cannot be started.
    """
    child = ChildProcess(server, start, stderr_log, sandbox=sandbox)
    transport = StreamTransport(server, on_message, child.write_line, on_noise=stderr_log.add_noise)

    async def close_at_end() -> None:
        await child.wait_ended()
        transport.close(child.end_reason())

    async with (
        child.running(command, args, env=env, cwd=cwd, on_line=transport.receive, on_skipped=transport.skip),
        anyio.create_task_group() as group,
    ):
        group.start_soon(close_at_end)
        group.start_soon(child.keep_within_limits)
        try:
            yield transport
        finally:
            transport.close("the connection is being closed")
            group.cancel_scope.cancel()
