"""The stdio transport: a child process in a process group of its own, with bounded lines and a clean end.

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
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

import anyio

from gateway.errors import Congested, ConnectionLost
from gateway.lines import LineSplitter
from gateway.upstream.transport.bounds import MAX_MESSAGE_BYTES
from gateway.upstream.transport.child_environment import child_environment
from gateway.upstream.transport.jsonrpc import OnMessage
from gateway.upstream.transport.process_start import ProcessStart
from gateway.upstream.transport.separation import (
    can_separate,
    note_ended,
    note_started,
    prepare_child,
    prepare_separate_child,
    protect_this_process,
)
from gateway.upstream.transport.stderr_log import STDERR_LINE_BYTES, StderrLog, reports_error
from gateway.upstream.transport.stream_transport import StreamTransport

log = logging.getLogger(__name__)

# What may wait in our memory for a child that does not read: two of the largest messages.
MAX_UNSENT_BYTES: Final = 2 * MAX_MESSAGE_BYTES
# A server that ends at the end of its input needs some milliseconds, one with an interpreter to unwind some hundred.
# Both waits together stay below the 5 s after which hosts kill a gateway that they end.
_CLOSE_GRACE_S: Final = 1.0
_TERM_GRACE_S: Final = 1.0
# After SIGKILL only the system is waited for; a process in an uninterruptible call is left to it.
_KILL_GRACE_S: Final = 2.0
# The output of a child that exits is closed a moment before its exit code, and the rest of what it said, is known.
_EXIT_CODE_S: Final = 0.2
# A start that is given up while the gateway goes on has this long to clean up after SIGTERM: npm takes back a half
# installed package, which would otherwise keep the server from ever starting again.
_GIVE_UP_GRACE_S: Final = 30.0
# How often it is looked whether anybody of a group is left; nothing wakes us when a grandchild ends.
_POLL_S: Final = 0.1
# Three pairs of pipes, and one that reports whether the program could be started.
_SPAWN_DESCRIPTORS: Final = 8
# Windows has none that cannot be caught; there the process is ended in another way.
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)


class ChildProcess(asyncio.SubprocessProtocol):
    """A child that takes lines and writes lines.

    A child whose start is still under way is ended more gently than others; see `ProcessStart`.
    """

    def __init__(self, start: ProcessStart, stderr_log: StderrLog, *, separate: bool = True) -> None:
        """Prepare to run a child.

        Args:
            start: How far its start is.
            stderr_log: Takes its standard error.
            separate: Whether it is kept apart from other processes of this user, where the system can do that.
        """
        self._start = start
        self._separate = separate
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
        """Start it; it has ended, with all its descendants, when this is left.

        Args:
            command: The program, looked for on the child's own PATH.
            args: Its arguments.
            env: Variables in addition to those of ours that it gets; None takes one of these away.
            cwd: Where it starts.
            on_line: Takes each line of its output.
            on_skipped: Takes the two ends of each line that was too long.

        Raises:
            ConnectionLost: The command cannot be started.
        """
        environment = child_environment(env, os.environ)
        # Checked here: the loops report a missing program or folder in different ways, or not before the child fails.
        path = _program(command, environment.get("PATH"), cwd)
        is_separate = self._separate and can_separate(path)
        self._on_line = on_line
        self._stdout = LineSplitter(MAX_MESSAGE_BYTES, on_skipped)
        self._stderr = LineSplitter(STDERR_LINE_BYTES)
        self._stderr_log.begin()
        try:
            _require_descriptors()
            protect_this_process()
            # Whole or not at all: a child that was started and is not held would be ended by nobody.
            with anyio.CancelScope(shield=True):
                await asyncio.get_running_loop().subprocess_exec(
                    lambda: self,
                    path,
                    *args,
                    env=environment,
                    cwd=cwd,
                    start_new_session=True,  # a group of its own: it is ended with its descendants
                    preexec_fn=_preparation(is_separate),
                )
        except OSError as error:
            reason = error.strerror or error
            if isinstance(error, FileNotFoundError):
                reason = f"{path} names an interpreter in its first line that does not exist"
            raise ConnectionLost(f"cannot start {command}: {reason}", sent=False) from None
        self._start.is_separate = is_separate
        self._start.began_s, self._start.last_line = time.monotonic(), self._last_line
        self._start.explanation = lambda: self._stderr_log.explanation() or self._last_line()
        try:
            yield
        finally:
            try:
                if self._start.under_way and not self._exited.is_set():
                    await self._give_up()
            finally:
                # However this is left: an orphan would hold files, ports and memory.
                with anyio.CancelScope(shield=True):
                    await self._end()
                self._stderr_log.end(failed=self._start.under_way)

    # asyncio.SubprocessProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Before any data: what a child writes at once can be answered. uvloop's transports derive from none of
        # asyncio's classes.
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        self._pid = self._transport.get_pid()
        note_started(self._pid)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        # Of 0 nothing can be read; everything but 1 is standard error.
        if fd == 1:
            for line in self._stdout.feed(data):
                self._on_line(line)
        else:
            for line in self._stderr.feed(data):
                self._stderr_log.add(line)

    def pipe_connection_lost(self, fd: int, error: Exception | None) -> None:
        # A server that closed its output can answer nothing any more, running or not.
        if fd == 1:
            self._ended.set()
        elif fd == 2:
            # The reason may be in a line that the child did not finish.
            self.pipe_data_received(fd, b"\n")
            self._silent.set()

    def process_exited(self) -> None:
        self._exited.set()
        self._ended.set()

    # what a transport uses

    def write_line(self, line: bytes) -> None:
        """Send one line.

        Raises:
            ConnectionLost: The child is gone.
            Congested: It reads so slowly that too much is waiting.
        """
        if self._ended.is_set() or self._stdin.is_closing():
            raise ConnectionLost(self.end_reason(), sent=False)
        if self._stdin.get_write_buffer_size() > MAX_UNSENT_BYTES:
            raise Congested("the process does not read its input")
        self._stdin.write(line + b"\n")

    async def wait_ended(self) -> None:
        """Wait until the child has exited or closed its output."""
        await self._ended.wait()
        with anyio.move_on_after(_EXIT_CODE_S):
            await self._exited.wait()
            # Bounded: a descendant may hold its standard error open.
            await self._silent.wait()

    def end_reason(self) -> str:
        """Return how the child ended, as the system reports it, and the line of its own that says why."""
        reason = _how(self._transport.get_returncode())
        cause = self._stderr_log.explanation()
        if cause:
            reason += f": {cause}"
        unfinished = self._unfinished_line()
        if self._start.under_way:
            # Programs print their usage or a question there.
            if noise := self._stderr_log.noise(unfinished):
                error = self._stderr_log.error_in_noise(unfinished)
                more = f" … {error}" if error and not reports_error(noise) else ""
                reason += f"; its standard output is not JSON-RPC: {noise}{more}"
        elif not cause and (error := self._stderr_log.error_in_noise(unfinished)):
            # Only errors: another line may be of long ago.
            reason += f"; its standard output is not JSON-RPC: {error}"
        return reason

    def _unfinished_line(self) -> bytes:
        """Return the beginning of a line of its output that is no message: a question, as `npx` asks it."""
        line = self._stdout.held
        return b"" if line.lstrip()[:1] in (b"{", b"[") else line

    def _last_line(self) -> str:
        return self._stderr_log.last_line() or self._stderr_log.noise(self._unfinished_line())

    async def _give_up(self) -> None:
        """Ask a child that has not answered yet to end, and give it time to clean up, unless the gateway itself ends.

        An `npx` that is killed while it installs leaves a folder behind that it takes for complete the next time.
        """
        self._stdin.close()
        self._signal_group(signal.SIGTERM)
        with anyio.move_on_after(_GIVE_UP_GRACE_S):
            # The whole group: where a shell stands before it, the program lives on for a moment.
            while not self._exited.is_set() or self._is_group_alive():
                await anyio.sleep(_POLL_S)

    async def _end(self) -> None:
        """Close its input, wait, terminate, kill; leave no process of its group behind.

        Source: MCP 2025-11-25, "Lifecycle", "Shutdown", "stdio".
        """
        self._stdin.close()
        # A child that is still starting has got its SIGTERM already, and has both waits to clean up.
        first = signal.SIGTERM if not self._start.under_way else None
        # Each signal only where what went before was of no use.
        for grace_s, sign in ((_CLOSE_GRACE_S, first), (_TERM_GRACE_S, _KILL)):
            with anyio.move_on_after(grace_s):
                await self._exited.wait()
            if self._exited.is_set():
                break
            if sign is not None:
                self._signal_group(sign)
        with anyio.move_on_after(_KILL_GRACE_S):
            await self._exited.wait()
        # Its descendants may live on after the leader: the group is ours alone.
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
                # There are no groups: the process alone is ended, and at once.
                self._transport.kill()
            else:
                os.killpg(self._pid, sign)


def _program(command: str, path: str | None, cwd: str | None) -> str:
    """Return the path of the program that a command names.

    Raises:
        ConnectionLost: There is none, or the folder that it starts in does not exist.
    """
    if cwd is not None and (defect := _defect_of_folder(cwd)) is not None:
        raise ConnectionLost(f"cannot start {command}: the working directory {cwd} {defect} (cwd)", sent=False)
    # As where a process is started by `execvp`: a path with a slash is relative to the folder that it starts in.
    is_relative = os.path.dirname(command) != "" and not os.path.isabs(command)
    found = shutil.which(os.path.abspath(os.path.join(cwd, command))) if is_relative and cwd is not None else None
    found = found or shutil.which(command, path=path)
    if found is not None:
        return os.path.abspath(found)
    # A whole line of a shell, as other programs take it.
    alone = shutil.which(command.split(maxsplit=1)[0], path=path) if " " in command.strip() else None
    hint = " (expected the program alone; its arguments belong in args)" if alone is not None else ""
    if not hint and os.path.dirname(command) and os.path.isfile(os.path.join(cwd or "", command)):
        hint = " (the file is there, and is not executable)"
    raise ConnectionLost(f"command not found: {command}{hint}", sent=False)


def _defect_of_folder(path: str) -> str | None:
    """Return why no process can start in a folder; None where one can."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except (OSError, ValueError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if not stat.S_ISDIR(found.st_mode):
        return "is not a directory"
    return None if os.access(path, os.X_OK) else "cannot be entered by the user of this process"


def _preparation(is_separate: bool) -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    return prepare_separate_child if is_separate else prepare_child


def _how(code: int | None) -> str:
    if code is None:
        return "the process closed its output"
    if code < 0:
        with suppress(ValueError):
            return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process exited with code {code}"


def _require_descriptors() -> None:
    """Raise the `OSError` of too many open files, which uvloop reports without a reason."""
    taken: list[int] = []
    try:
        for _ in range(_SPAWN_DESCRIPTORS):
            taken.append(os.dup(2))
    finally:
        for descriptor in taken:
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
    separate: bool = True,
) -> AsyncIterator[StreamTransport]:
    """Start a child and talk to it.

    Args:
        server: The alias.
        command, args, env, cwd: See `ChildProcess.running`.
        on_message: Takes what is no answer.
        start, stderr_log, separate: See `ChildProcess`.

    Raises:
        ConnectionLost: The command cannot be started.
    """
    child = ChildProcess(start, stderr_log, separate=separate)
    transport = StreamTransport(server, on_message, child.write_line, on_noise=stderr_log.add_noise)

    async def close_at_end() -> None:
        await child.wait_ended()
        transport.close(child.end_reason())

    async with (
        child.running(command, args, env=env, cwd=cwd, on_line=transport.receive, on_skipped=transport.skip),
        anyio.create_task_group() as group,
    ):
        group.start_soon(close_at_end)
        try:
            yield transport
        finally:
            transport.close("the connection is being closed")
            group.cancel_scope.cancel()
