"""Features that a platform lacks are not needed before they are used, and their replacements work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from gateway.downstream.stdio_server import _Input, _ThreadReader
from gateway.process.tasks import _interpreter_signals

ROOT = Path(__file__).parents[2]
# Remove the modules that Windows lacks; asyncio is imported before, in the version of this platform.
LACKING = """
import asyncio, os, pkgutil, signal, socket, subprocess, sys, importlib
import anyio, multiprocessing, uvicorn, watchfiles, zoneinfo, mcp.server.stdio, rich.console, tempfile, ctypes
import gateway, registry
from concurrent.futures import process
for module, names in (
    (signal, ("SIGHUP", "SIGKILL", "SIGALRM", "alarm", "pthread_sigmask")),
    (os, ("killpg", "geteuid", "getuid", "fork", "fchmod", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "setsid")),
    (socket, ("AF_UNIX", "SO_REUSEPORT")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for name in ("resource", "fcntl", "pwd", "grp", "termios", "uvloop"):
    sys.modules[name] = None
sys.platform = "win32"
optional = {"graphql", "cpex", "redact", "embeddings", "carriers"}
for package in (gateway, registry):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not optional & set(found.name.split(".")) and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
print("imported")
"""


@pytest.mark.heavy
def test_every_module_imports_without_signals_groups_and_unix_sockets() -> None:
    done = subprocess.run([sys.executable, "-c", LACKING], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "imported\n", done.stderr


async def test_interpreter_signal_handler_works_without_loop_support() -> None:
    with anyio.fail_after(25), _interpreter_signals(signal.SIGTERM) as received:
        os.kill(os.getpid(), signal.SIGTERM)
        assert await anext(received) == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("last", [b"", b"\n"])
async def test_reader_thread_delivers_lines_without_loop_support(last: bytes) -> None:
    read, write = os.pipe()
    lines = _Input()
    reader = _ThreadReader(asyncio.get_running_loop(), lines, os.fdopen(read, "rb", buffering=0))
    os.write(write, b"one\ntwo" + last)
    os.close(write)
    with anyio.fail_after(25):
        while not lines.ended:
            lines.arrived.clear()
            await lines.arrived.wait()
    assert [line for line in lines.waiting if line] == [b"one", *([b"two"] if last else [])]
    reader.close()
