"""The stdio transport: a child process in a process group of its own, with bounded lines and a clean end.

Source: MCP 2026-07-28, "Transports", "stdio".
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import shutil
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

import anyio

from gateway.errors import Congested, ConnectionLost
from gateway.lines import LineSplitter
from gateway.upstream.transport.bounds import MAX_MESSAGE_BYTES
from gateway.upstream.transport.child_environment import child_environment
from gateway.upstream.transport.jsonrpc import OnMessage
from gateway.upstream.transport.stream_transport import StreamTransport
from registry.schema.display_text import excerpt

log = logging.getLogger(__name__)

# What may wait in our memory for a child that does not read: two of the largest messages.
MAX_UNSENT_BYTES: Final = 2 * MAX_MESSAGE_BYTES
# Log lines are for people: a longer one is data, and a traceback still fits into a second's worth of lines.
_STDERR_LINE_BYTES: Final = 2000
_STDERR_LINES_PER_S: Final = 50
# A server that ends at the end of its input needs some milliseconds, one with an interpreter to unwind some hundred.
# Both waits together stay below the 5 s after which hosts kill a gateway that they end.
_CLOSE_GRACE_S: Final = 1.0
_TERM_GRACE_S: Final = 1.0
# After SIGKILL only the system is waited for; a process in an uninterruptible call is left to it.
_KILL_GRACE_S: Final = 2.0
# The output of a child that exits is closed a moment before its exit code, and the rest of what it said, is known.
_EXIT_CODE_S: Final = 0.2
# The end of a stack trace, in which the line that says why stands above where.
_LAST_LINES: Final = 40
# Of that line in the reason for which a server is not connected: it stands in a table, and in texts for models.
_MAX_LAST_LINE: Final = 300
# What programs write after the line that says why: frames and brackets of Node, its version, the advice of npm and uv.
_TRAILER: Final = re.compile(
    r"\s*(?:at\s.*|[{}\[\]()^~]*,?|Node\.js v\S+|npm (?:error|ERR!|notice|warn)\s*(?:A complete log.*|\S*_logs\S*)?"
    r"|(?:code|requireStack|errno|syscall|path|hint|help|note): .*)"
)
# Three pairs of pipes, and one that reports whether the program could be started.
_SPAWN_DESCRIPTORS: Final = 8
# Windows has none that cannot be caught; there the process is ended in another way.
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
# Of <linux/prctl.h>.
_PR_SET_PDEATHSIG: Final = 1
# Loaded here: between fork and exec nothing may be loaded.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class ChildProcess(asyncio.SubprocessProtocol):
    """A child that takes lines and writes lines."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._exited = asyncio.Event()
        self._ended = asyncio.Event()
        self._silent = asyncio.Event()

    @asynccontextmanager
    async def running(
        self,
        command: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        on_line: Callable[[bytes], None],
        on_skipped: Callable[[bytes], None],
    ) -> AsyncIterator[None]:
        """Start it; it has ended, with all its descendants, when this is left.

        Args:
            command: The program, looked for on the child's own PATH.
            args: Its arguments.
            env: Variables in addition to those of ours that it gets.
            cwd: Where it starts.
            on_line: Takes each line of its output.
            on_skipped: Takes the two ends of each line that was too long.

        Raises:
            ConnectionLost: The command cannot be started.
        """
        environment = child_environment(env, os.environ)
        # Found here: the loops report a missing program in different ways, or not before the child has failed.
        path = shutil.which(command, path=environment.get("PATH"))
        if path is None:
            # A whole line of a shell, as other programs take it.
            alone = shutil.which(command.split(maxsplit=1)[0], path=environment.get("PATH")) if " " in command else None
            hint = " (expected the program alone; its arguments belong in args)" if alone is not None else ""
            raise ConnectionLost(f"command not found: {command}{hint}", sent=False)
        self._on_line = on_line
        self._stdout = LineSplitter(MAX_MESSAGE_BYTES, on_skipped)
        self._stderr = LineSplitter(_STDERR_LINE_BYTES)
        self._stderr_log = _StderrLog(self._server)
        try:
            _require_descriptors()
            # Whole or not at all: a child that was started and is not held would be ended by nobody.
            with anyio.CancelScope(shield=True):
                await asyncio.get_running_loop().subprocess_exec(
                    lambda: self,
                    path,
                    *args,
                    env=environment,
                    cwd=cwd,
                    start_new_session=True,  # a group of its own: it is ended with its descendants
                    preexec_fn=_die_with_parent if _LIBC is not None else None,
                )
        except OSError as error:
            raise ConnectionLost(f"cannot start {command}: {error.strerror or error}", sent=False) from None
        try:
            yield
        finally:
            # However this is left: an orphan would hold files, ports and memory.
            with anyio.CancelScope(shield=True):
                await self._end()
            self._stderr_log.close()

    # asyncio.SubprocessProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Before any data: what a child writes at once can be answered. uvloop's transports derive from none of
        # asyncio's classes.
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        self._pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        # Of 0 nothing can be read; everything but 1 is standard error.
        if fd == 1:
            for line in self._stdout.feed(data):
                self._on_line(line)
        else:
            for line in self._stderr.feed(data):
                self._stderr_log.line(line)

    def pipe_connection_lost(self, fd: int, error: Exception | None) -> None:
        # A server that closed its output can answer nothing any more, running or not.
        if fd == 1:
            self._ended.set()
        elif fd == 2:
            # Whoever dies in mid-line has said why all the same.
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

    async def wait_ended(self) -> str:
        """Return the reason once the child has exited or closed its output."""
        await self._ended.wait()
        with anyio.move_on_after(_EXIT_CODE_S):
            await self._exited.wait()
            # A descendant may hold it open: whoever has died itself has said what it had to say.
            await self._silent.wait()
        return self.end_reason()

    def end_reason(self) -> str:
        """How the child ended, in words: the system's, and its own."""
        told = _how(self._transport.get_returncode())
        last = self._stderr_log.last_line()
        return f"{told}: {excerpt(last, _MAX_LAST_LINE)}" if last else told

    async def _end(self) -> None:
        """Close its input, wait, terminate, kill; leave nobody of its group behind.

        Source: MCP 2025-11-25, "Lifecycle", "Shutdown", "stdio".
        """
        self._stdin.close()
        # Each signal only where what went before was of no use.
        for grace_s, sign in ((_CLOSE_GRACE_S, signal.SIGTERM), (_TERM_GRACE_S, _KILL)):
            with anyio.move_on_after(grace_s):
                await self._exited.wait()
            if self._exited.is_set():
                break
            self._signal_group(sign)
        with anyio.move_on_after(_KILL_GRACE_S):
            await self._exited.wait()
        # Its descendants may live on after the leader: the group is ours alone.
        self._signal_group(_KILL)
        self._transport.close()

    def _signal_group(self, sign: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                # There are no groups: the process alone is ended, and at once.
                self._transport.kill()
            else:
                os.killpg(self._pid, sign)


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


def _die_with_parent() -> None:
    # A gateway that is killed outright can end nobody; on Linux the kernel does it then.
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@asynccontextmanager
async def open_stdio(
    server: str,
    command: str,
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    on_message: OnMessage,
) -> AsyncIterator[StreamTransport]:
    """Start a child and talk to it.

    Raises:
        ConnectionLost: The command cannot be started.
    """
    child = ChildProcess(server)
    transport = StreamTransport(server, on_message, child.write_line)

    async def close_at_end() -> None:
        transport.close(await child.wait_ended())

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


class _StderrLog:
    """A child's standard error in our log: labelled, cut, and at most so many lines a second."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._second = 0
        self._count = 0
        self._dropped = 0
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)

    def line(self, line: bytes) -> None:
        self._last.append(line)
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self.close()
            self._second, self._count = second, 0
        self._count += 1
        if self._count > _STDERR_LINES_PER_S:
            self._dropped += 1
            return
        if clean := _clean(line):
            log.info("stderr: %s", clean, extra={"server": self._server})

    def last_line(self) -> str:
        """The last line that says something; empty where there is none."""
        lines = [line for line in map(_clean, reversed(self._last)) if line.strip()]
        return next((line for line in lines if not _TRAILER.fullmatch(line)), lines[0] if lines else "").strip()

    def close(self) -> None:
        if self._dropped:
            log.info("stderr: %d lines dropped", self._dropped, extra={"server": self._server})
            self._dropped = 0


def _clean(line: bytes) -> str:
    """A line without what moves the cursor of a terminal or feigns another line of the log."""
    text = _COLOUR.sub("", line.decode("utf-8", "replace")).rstrip()
    return "".join(character if character.isprintable() or character == "\t" else "?" for character in text)
