"""A server in a sandbox reaches only what it needs, denied access is reported, and other servers continue."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.processes import descendants_of
from e2e.test_processes_on_demand import until_state
from e2e.test_server_sandbox import entry, is_running, run, separates
from support.gateways import TOKEN, RunningGateway, brief_pause, running_gateway, text_of

# Each member is what happened: what was read, or the number of the error.
ATTEMPTS = r"""
import pathlib, socket, tempfile
found = {}
def attempt(name, action):
    try:
        found[name] = action()
    except OSError as error:
        found[name] = error.errno
def listen():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
    return "opened"
def connect():
    with socket.create_connection(("127.0.0.1", PORT)):
        return "connected"
def shown(descriptor):
    return os.readlink(f"/proc/self/fd/{descriptor}")
attempt("state", lambda: os.listdir(STATE))
attempt("token", lambda: open(f"{STATE}/admin-token").read())
attempt("configuration", lambda: open(CONFIG).read())
attempt("home", lambda: os.listdir(os.path.expanduser("~/.ssh")))
attempt("key", lambda: open(os.path.expanduser("~/.ssh/authorized_keys"), "a").close())
attempt("write", lambda: open(f"{FOLDER}/new", "w").close())
attempt("temporary", lambda: tempfile.NamedTemporaryFile().write(b"x"))
attempt("system", lambda: len(open("/etc/passwd").read()) > 0)
attempt("null", lambda: open("/dev/null", "w").write("x"))
attempt("child", lambda: subprocess.run([sys.executable, "-c", f"open({CONFIG!r})"], capture_output=True).returncode)
attempt("listen", listen)
attempt("connect", connect)
attempt("datagram", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close())
attempt("local", lambda: socket.socket(socket.AF_UNIX).close())
# Everything but the standard streams, and what Python has opened itself: the folder that is read right here.
attempt("descriptors", lambda: [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 3])
found["tokens"] = [name for name, value in os.environ.items() if TOKEN in value]
print(json.dumps(found))
"""
EACCES = 13


async def attempts(gateway: RunningGateway, server: str, folder: Path) -> dict[str, Any]:
    port = int(gateway.origin.rpartition(":")[2])
    values = {"STATE": str(gateway.state_dir), "CONFIG": str(gateway.config), "FOLDER": str(folder), "PORT": port}
    found: dict[str, Any] = json.loads(await run(gateway, server, ATTEMPTS, TOKEN=TOKEN, **values))
    return found


@separates
async def test_a_sandbox_permits_what_a_server_needs_and_nothing_else(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    env = {"HOME": str(home)}
    servers = {
        "default": entry(sandbox=True, env=env),
        "offline": entry(sandbox={"network": False, "write": [str(own), str(tmp_path)]}, env=env),
        "open": entry(env=env),
    }
    _store_token(tmp_path)
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed(*(f"{name}__run" for name in servers))
        always = {"temporary": 1, "system": True, "null": 1, "child": 1, "local": None, "descriptors": [], "tokens": []}
        denied = dict.fromkeys(("state", "token", "configuration", "home", "key"), EACCES)
        assert await attempts(gateway, "default", own) == {
            **always,
            **denied,
            "write": EACCES,
            "listen": EACCES,
            "connect": "connected",
            "datagram": None,
        }
        (own / "new").unlink(missing_ok=True)
        # Permission for a folder does not include what is private in it.
        offline = await attempts(gateway, "offline", own)
        assert {name: offline[name] for name in (*denied, "listen", "connect", "datagram")} == {
            **denied,
            **dict.fromkeys(("listen", "connect", "datagram"), EACCES),
        }
        assert (own / "new").exists()
        assert {name: offline[name] for name in always} == always
        rows = {name: await gateway.server(name) for name in servers}
        assert {name: row["sandbox"] for name, row in rows.items()} == {
            "default": "confined",
            "offline": "confined",
            "open": "separate",
        }
        assert (await attempts(gateway, "open", own))["state"] != EACCES
        folder = await run(gateway, "default", "import tempfile; print(tempfile.gettempdir())")
        assert await anyio.Path(folder.strip()).is_dir()
    assert not await anyio.Path(folder.strip()).exists()


def _store_token(tmp_path: Path) -> None:
    """Store a token where a gateway without a configured one does."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "admin-token").write_text("x")


@separates
async def test_what_a_sandbox_has_denied_is_shown(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    cases = {
        "writes": ("open(os.path.expanduser('~/.ssh/authorized_keys'), 'a')", f"{home}/.ssh/authorized_keys"),
        "reads": (f"open({str(tmp_path / 'state' / 'admin-token')!r})", "admin-token (neither in sandbox.read"),
        "opens": ("__import__('socket').create_server(('127.0.0.1', 0))", "sandbox.network: outbound"),
        "grows": ("bytearray(2_000_000_000)", "sandbox.memory (512 MiB)"),
    }
    settings = {"memory": 512}
    servers = {
        name: {"command": sys.executable, "args": ["-c", f"import os; {code}"], "env": {"HOME": str(home)}}
        for name, (code, _) in cases.items()
    }
    servers["sibling"] = entry()
    _store_token(tmp_path)
    async with running_gateway(tmp_path, servers, gateway={"processes": {"sandbox": settings}}) as gateway:
        await gateway.until_listed("sibling__run")
        for name, (_, reason) in cases.items():
            with anyio.fail_after(60):
                while not (row := await gateway.server(name))["lastError"]:
                    await brief_pause()
            assert "denied by the sandbox: " in row["lastError"], row
            assert reason in row["lastError"]
            assert row["denied"], row
        assert text_of(await gateway.call("sibling__run", {"code": "print('well')"})).strip() == "well"


@separates
@pytest.mark.heavy
async def test_a_fork_bomb_is_killed_and_its_siblings_go_on(tmp_path: Path) -> None:
    # Bounded, so that a failure of this test does not end the machine.
    bomb = """
for _ in range(400):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    time.sleep(0.002)
time.sleep(60)
"""
    servers = {"bomb": entry(sandbox={"processes": 40}, idleTimeout=0), "sibling": entry(sandbox=True)}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("bomb__run", "sibling__run")
        pid = int(await run(gateway, "bomb", "print(os.getpid())"))
        result = await gateway.call("bomb__run", {"code": bomb}, timeout_s=60)
        assert "sandbox.processes (40)" in text_of(result)
        assert _processes_of_session(pid) == []
        assert (await run(gateway, "sibling", "print('well')")).strip() == "well"
        await until_state(gateway, "bomb", "ready")
        assert "sandbox.processes (40)" in (await gateway.server("bomb"))["lastLost"]


def _processes_of_session(pid: int) -> list[str]:
    return [each for each in os.listdir("/proc") if each.isdigit() and _session_of(Path("/proc") / each) == pid]


def _session_of(folder: Path) -> int | None:
    try:
        state, *_, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return None
    return int(session) if state != "Z" else None


async def test_a_required_sandbox_that_is_not_available_prevents_the_start(tmp_path: Path) -> None:
    if not separates.args[0]:
        pytest.skip("the kernel has Landlock ABI 6")
    async with running_gateway(tmp_path, {"one": entry(sandbox={"required": True})}) as gateway:
        with anyio.fail_after(60):
            while "required: true" not in ((await gateway.server("one"))["lastError"] or ""):
                await brief_pause()


@pytest.mark.heavy
async def test_a_gateway_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    # One ends with its input, the other ignores that and SIGTERM, and so does its child.
    stubborn = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
"""
    args = ["-c", f"{stubborn}\n{entry()['args'][1]}\nimport time; time.sleep(120)"]
    servers = {"plain": entry(), "stubborn": entry(args=args), "confined": entry(args=args, sandbox=True)}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed(*(f"{name}__run" for name in servers))
        pids = descendants_of(gateway.process.pid)
        assert len(pids) >= 5
        gateway.process.send_signal(signal.SIGKILL)
        await gateway.process.wait()
        with anyio.fail_after(60):
            while any(map(is_running, pids)):
                await brief_pause()
