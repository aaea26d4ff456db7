"""A local server cannot read or signal the gateway or its siblings, and leaves no process behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.gateways import RunningGateway, brief_pause, running_gateway, text_of
from support.kernels import LANDLOCK

# One tool, which runs the Python code that it is given and answers with what it prints.
SERVER = r"""
import contextlib, io, json, os, signal, subprocess, sys, time
def reply(message, result):
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
TOOL = {"name": "run", "inputSchema": {"type": "object", "properties": {"code": {"type": "string"}}}}
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "initialize":
        reply(message, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                        "serverInfo": {"name": "run", "version": "1"}})
    elif method == "tools/list":
        reply(message, {"tools": [TOOL]})
    elif method == "tools/call":
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(message["params"]["arguments"]["code"])
        reply(message, {"content": [{"type": "text", "text": out.getvalue()}]})
    elif "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}}),
              flush=True)
"""
ATTEMPTS = r"""
import ctypes
found = {}
def attempt(name, action):
    try:
        found[name] = repr(action())[:40]
    except OSError:
        pass
for who, pid in (("gateway", os.getppid()), ("sibling", SIBLING)):
    place = f"/proc/{pid}/"
    for file in ("environ", "mem", "maps", "auxv", "stack"):
        attempt(f"{who} {file}", lambda: open(place + file, "rb").read(1))
    for link in ("cwd", "exe", "fd/0", "fd/1"):
        attempt(f"{who} {link}", lambda: os.readlink(place + link))
    for sign in (0, signal.SIGCONT, signal.SIGURG):
        attempt(f"{who} signal {sign}", lambda: os.kill(pid, sign))
    # Attaching stops a process, so that the gateway would not answer any more.
    if not UNCONFINED and ctypes.CDLL(None).ptrace(16, pid, None, None) == 0:
        found[f"{who} ptrace"] = "attached"
own = subprocess.Popen(["sleep", "60"])
own.terminate()
found["own child"] = own.wait()
print(json.dumps(found))
"""
DAEMON = r"""
import pathlib
note = pathlib.Path(NOTE)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        if IGNORES:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        written = note.with_suffix(".new")
        written.write_text(str(os.getpid()))
        written.rename(note)
        time.sleep(120)
    os._exit(0)
while not note.exists():
    time.sleep(0.01)
"""


separates = pytest.mark.skipif(LANDLOCK < 6, reason="the kernel has no Landlock ABI 6")


def entry(**members: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-c", SERVER], **members}


async def run(gateway: RunningGateway, server: str, code: str, **values: object) -> str:
    assignments = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    result = await gateway.call(f"{server}__run", {"code": assignments + code})
    assert not result.get("isError"), result
    return text_of(result)


async def attempts(
    gateway: RunningGateway, server: str, sibling: str, *, unconfined: bool = False
) -> Mapping[str, Any]:
    pid = int(await run(gateway, sibling, "print(os.getpid())"))
    found: dict[str, Any] = json.loads(await run(gateway, server, ATTEMPTS, SIBLING=pid, UNCONFINED=unconfined))
    assert found.pop("own child") == -signal.SIGTERM
    return found


def is_running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@separates
async def test_server_cannot_read_or_signal_the_gateway_or_its_sibling(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {"one": entry(), "two": entry()}) as gateway:
        await gateway.until_listed("one__run", "two__run")
        assert await attempts(gateway, "one", "two") == {}
        assert await attempts(gateway, "two", "one") == {}
        assert (await gateway.server("one"))["sandbox"] == "separate"


@separates
async def test_descendants_of_a_server_share_its_sandbox(tmp_path: Path) -> None:
    code = "print(subprocess.run([sys.executable, '-c', CODE], capture_output=True, text=True).stdout)"
    inner = "import os; pid = {}; os.kill(pid, 0); print('signalled')"
    async with running_gateway(tmp_path, {"one": entry(), "two": entry()}) as gateway:
        await gateway.until_listed("one__run", "two__run")
        own, other = [int(await run(gateway, name, "print(os.getpid())")) for name in ("one", "two")]
        assert "signalled" in await run(gateway, "one", code, CODE=inner.format(own))
        assert "signalled" not in await run(gateway, "one", code, CODE=inner.format(other))


async def test_server_without_a_sandbox_may_read_and_signal(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {"one": entry(sandbox=False), "two": entry(sandbox=False)}) as gateway:
        await gateway.until_listed("one__run", "two__run")
        found = await attempts(gateway, "one", "two", unconfined=True)
        assert {"sibling environ", "sibling signal 0", "gateway signal 0"} <= set(found)
        assert (await gateway.server("one"))["sandbox"] == "unconfined"


@separates
@pytest.mark.parametrize("ignores", [False, True], ids=["ends at SIGTERM", "ignores SIGTERM"])
async def test_daemonized_process_ends_with_the_gateway(ignores: bool, tmp_path: Path) -> None:
    note = tmp_path / "daemon"
    async with running_gateway(tmp_path, {"one": entry()}) as gateway:
        await gateway.until_listed("one__run")
        await run(gateway, "one", DAEMON, NOTE=str(note), IGNORES=ignores)
        pid = int(note.read_text())
        assert is_running(pid)
        assert await gateway.stop() == 0
    assert not is_running(pid)


@pytest.mark.heavy
@separates
async def test_orphan_of_a_server_is_reaped_when_it_ends(tmp_path: Path) -> None:
    note = tmp_path / "daemon"
    async with running_gateway(tmp_path, {"one": entry()}) as gateway:
        await gateway.until_listed("one__run")
        await run(gateway, "one", DAEMON, NOTE=str(note), IGNORES=False)
        pid = int(note.read_text())
        os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(30):
            while await anyio.Path(f"/proc/{pid}").exists():
                await brief_pause()
        assert await run(gateway, "one", "print('still here')") == "still here\n"


@separates
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
async def test_gateway_without_capabilities_is_protected_too(tmp_path: Path) -> None:
    plain = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all")
    async with running_gateway(tmp_path, {"one": entry(), "two": entry()}, through=plain) as gateway:
        await gateway.until_listed("one__run", "two__run")
        assert await attempts(gateway, "one", "two") == {}
