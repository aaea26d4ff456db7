"""What a platform lacks is not needed before it is used, and what stands in for it works."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from gateway.downstream.standard_streams import _Input, _ThreadReader
from gateway.signals import _handlers

ROOT = Path(__file__).parents[2]
# What the interpreter of Windows has not; asyncio itself is loaded before, as that of this platform.
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


def test_every_module_is_imported_where_signals_groups_and_unix_sockets_are_lacking() -> None:
    done = subprocess.run([sys.executable, "-c", LACKING], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "imported\n", done.stderr


async def test_a_handler_of_the_interpreter_receives_what_the_loop_cannot() -> None:
    with anyio.fail_after(5), _handlers(signal.SIGTERM) as received:
        os.kill(os.getpid(), signal.SIGTERM)
        assert await anext(received) == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("last", [b"", b"\n"])
async def test_a_thread_reads_lines_where_the_loop_cannot_wait_for_them(last: bytes) -> None:
    read, write = os.pipe()
    lines = _Input()
    reader = _ThreadReader(asyncio.get_running_loop(), lines, os.fdopen(read, "rb", buffering=0))
    os.write(write, b"one\ntwo" + last)
    os.close(write)
    with anyio.fail_after(5):
        while not lines.ended:
            lines.arrived.clear()
            await lines.arrived.wait()
    assert [line for line in lines.waiting if line] == [b"one", *([b"two"] if last else [])]
    reader.close()
