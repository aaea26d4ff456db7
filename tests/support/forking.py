"""Gateways forked from a process that has imported them: imports are most of a start, and the same each time.

Everything else is as usual: the process has its own arguments, environment, directory, log and exit code.
Where the start itself matters, or variables of the interpreter are set, another interpreter is started instead.

As a program this is the process that is forked. On its socket it is given an environment and arguments, each with
a socket of the gateway that is wanted, on which the gateway's process id is told, and its exit code once it has ended.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import anyio

_ROOT = Path(__file__).parents[2]
# Read before Python runs: one that is forked would not heed them.
_OF_INTERPRETER = ("PYTHON", "LD_", "MALLOC_", "OPENSSL_")
# An environment and arguments: the most that the system lets a program have is twice as much.
_MOST_BYTES = 1024 * 1024


def can_fork(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a forked gateway behaves like one that was started in the usual way."""
    # A parent of workers starts them as what it was started as.
    return (
        sys.platform == "linux"
        and "--workers" not in arguments
        and not any(name.startswith(_OF_INTERPRETER) for name in environment)
    )


class ForkedProcess:
    """As much of `anyio.abc.Process` as tests need of a gateway.

    Attributes:
        pid: The process id.
    """

    def __init__(self, connection: socket.socket) -> None:
        with connection.makefile("rb", buffering=0) as lines:
            self.pid = int(lines.readline())
        connection.setblocking(False)
        self._connection = connection
        self._text = b""
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        """Its exit code; None while it runs."""
        while self._code is None:
            try:
                data = self._connection.recv(64)
            except BlockingIOError:
                return None
            self._text += data
            if not data:
                # The process that waits for the gateway was killed, so the exit code is unknown.
                self._code = int(self._text or -signal.SIGKILL)
                self._connection.close()
        return self._code

    async def wait(self) -> int:
        """Return its exit code once it has ended."""
        while (code := self.returncode) is None:
            await anyio.wait_readable(self._connection)
        return code

    def send_signal(self, sign: int) -> None:
        """Send it a signal, if it still runs."""
        if self.returncode is None:
            os.kill(self.pid, sign)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    async def aclose(self) -> None:
        """End it, and wait until it has ended."""
        with anyio.CancelScope(shield=True):
            self.kill()
            await self.wait()


def fork_gateway(arguments: Sequence[str], environment: Mapping[str, str], log: int) -> ForkedProcess:
    """Run `typegate` with these arguments; what it prints goes to a descriptor."""
    ours, theirs = socket.socketpair()
    with theirs:
        wanted = {"arguments": list(arguments), "environment": dict(environment), "directory": str(Path.cwd())}
        socket.send_fds(_parent(), [json.dumps(wanted).encode()], [theirs.fileno(), log])
    return ForkedProcess(ours)


@cache
def _parent() -> socket.socket:
    """Return the socket of the process that forks, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, __file__, str(theirs.fileno())]
    with theirs:
        parent = subprocess.Popen(
            command, cwd=_ROOT, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )

    def end() -> None:
        ours.close()
        parent.wait()

    atexit.register(end)
    return ours


def _import_what_gateways_do() -> None:
    sys.path[0] = str(_ROOT)
    import uvloop  # noqa: F401

    import gateway.commands.serve
    import gateway.serving.over_http
    import gateway.upstream.mcp_connectors
    import gateway.upstream.transport.stdio_transport
    import gateway.upstream.transport.streamable_http  # noqa: F401
    from gateway.config.load import parse

    parse('{"mcpServers": {"one": {"command": "true"}}}', environ={})  # builds its models


def _next_gateway(control: socket.socket) -> dict[str, Any]:
    """Return in each gateway what it is to be."""
    # Let the kernel reap the forked processes, because this process does not wait for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        text, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 2)
        if not text:
            os._exit(0)
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    control.close()
    status_fd, log = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        os.write(status_fd, b"%d\n" % pid)
        os.close(log)
        _, status = os.waitpid(pid, 0)
        os.write(status_fd, b"%d" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    os.close(status_fd)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    wanted: dict[str, Any] = json.loads(text)
    return wanted


def _run(control: socket.socket) -> int:
    _import_what_gateways_do()
    wanted = _next_gateway(control)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["directory"])
    sys.path[0] = wanted["directory"]
    sys.argv = [str(_ROOT / "gateway" / "__main__.py"), *wanted["arguments"]]
    from gateway.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(_run(socket.socket(fileno=int(sys.argv[1]))))
