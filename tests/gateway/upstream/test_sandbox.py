"""What a sandbox can restrict here, what it has denied, and how many processes run in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.kernels import WITHOUT_LANDLOCK, require_landlock

from gateway.config.operation_config import SandboxConfig
from gateway.upstream.sandbox import (
    CountSchedule,
    Sandbox,
    confinement_of,
    limit_processes,
    prepare_sandbox,
    processes_of,
)

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox exists on Linux only")


def sandbox(**config: Any) -> Sandbox:
    read, write = frozenset({"/usr"}), frozenset({"/tmp/own"})
    return Sandbox(config=SandboxConfig(**config), arguments=["confine"], read=read, write=write)


# what the kernel supports


@pytest.mark.parametrize(
    ("version", "network", "state", "missing"),
    [
        (0, "outbound", "unconfined", ["files", "TCP ports", "signals"]),
        (0, True, "unconfined", ["files", "signals"]),
        (1, "outbound", "partial", ["TCP ports", "signals"]),
        (3, False, "partial", ["TCP ports", "signals"]),
        (3, True, "partial", ["signals"]),
        (4, "outbound", "partial", ["signals"]),
        (5, False, "partial", ["signals"]),
        (6, False, "confined", []),
        (7, "outbound", "confined", []),
    ],
)
def test_state_on_each_kernel(version: int, network: object, state: str, missing: list[str]) -> None:
    assert confinement_of(SandboxConfig.model_validate({"network": network}), version) == (state, missing)


@pytest.mark.parametrize(("network", "missing"), [(False, ["UDP"]), ("outbound", []), (True, [])])
def test_state_on_an_architecture_whose_calls_cannot_be_filtered(network: object, missing: list[str]) -> None:
    config = SandboxConfig.model_validate({"network": network})
    state = "partial" if missing else "confined"
    assert confinement_of(config, 7, can_filter_calls=False) == (state, missing)


@on_linux
def test_prepared_sandbox_confines_a_process(tmp_path: Path) -> None:
    require_landlock(6)
    file, denials = tmp_path / "file", dict[str, None]()
    file.write_text("text")

    async def prepare() -> Sandbox:
        return await prepare_sandbox(
            SandboxConfig(read=[str(file), "/missing"], required=True),
            [sys.executable, "-c", "pass"],
            environment={"HOME": "/nonexistent", "PATH": ""},
            cwd="/usr/share",
            server="one",
            denials=denials,
        )

    found = anyio.run(prepare)
    try:
        assert found.state == "confined"
        assert found.denials is denials
        assert denials == {"/missing (it does not exist: create it before the start)": None}
        assert {str(file), "/usr/share"} <= found.read
        assert found.folder in found.write
        code = "import os, sys; print(open(sys.argv[1]).read()); open(sys.argv[2], 'w'); os.listdir(sys.argv[3])"
        line = [*found.arguments, sys.executable, "-c", code, str(file), f"{found.folder}/new", str(tmp_path)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert done.stdout == "text\n"
        assert os.listdir(found.folder) == ["new"]
        assert found.find_denial(done.stderr) == f"{tmp_path} (neither in sandbox.read nor in sandbox.write)"
    finally:
        found.remove_folder()
    assert not os.path.exists(found.folder)
    found.remove_folder()


# Prints the state of a sandbox, or why it is refused.
_PREPARE = """
import anyio, sys
from gateway.config.operation_config import SandboxConfig
from gateway.protocol.gateway_errors import ConnectionLost
from gateway.upstream.sandbox import prepare_sandbox
async def prepare(required):
    config = SandboxConfig(required=required)
    found = await prepare_sandbox(config, ["/bin/true"], environment={}, cwd=None, server="one", denials={})
    print(found.state, bool(found.arguments))
    found.remove_folder()
anyio.run(prepare, False)
try:
    anyio.run(prepare, True)
except ConnectionLost as error:
    print(error)
"""


@on_linux
def test_required_sandbox_is_refused_without_landlock() -> None:
    line = [sys.executable, "-c", WITHOUT_LANDLOCK, sys.executable, "-c", _PREPARE]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=env)
    state, refusal = done.stdout.splitlines()
    assert state == "unconfined True"
    assert refusal.startswith("not started: the sandbox cannot restrict files, TCP ports, signals on this system")
    assert refusal.endswith("and its entry says `required: true`")


def test_folder_of_an_unconfined_process_need_not_be_removed() -> None:
    Sandbox(config=SandboxConfig()).remove_folder()


# denials


@pytest.mark.parametrize(
    ("line", "config", "denial"),
    [
        ("MemoryError", {"memory": 64}, "more memory than sandbox.memory (64 MiB)"),
        ("fatal: Out of memory", {"memory": 64}, "more memory than sandbox.memory (64 MiB)"),
        ("MemoryError", {}, None),
        ("killed by SIGXCPU", {"cpu": 9}, "more processor time than sandbox.cpu (9 s)"),
        ("killed by SIGXCPU", {}, None),
        ("killed by SIGTERM", {"cpu": 9}, None),
        ("cannot find /home/x", {}, None),
        ("permission denied", {}, None),
        ("Error: listen EACCES: permission denied 0.0.0.0:3000", {}, "the network (sandbox.network: outbound)"),
        ("PermissionError: [Errno 13] connect", {"network": False}, "the network (sandbox.network: false)"),
        ("Error: listen EACCES: permission denied 0.0.0.0:80", {"network": True}, None),
        ("EACCES: /home/x", {}, "/home/x (neither in sandbox.read nor in sandbox.write)"),
        ("/usr/bin/python: cannot read '/home/x': EPERM", {}, "/home/x (neither in sandbox.read nor in sandbox.write)"),
        ("EACCES: /tmp/own/file", {}, None),
        ("EACCES: /usr/new", {}, "writing /usr/new (not in sandbox.write)"),
        ("EACCES: /tmp/own/file or /usr/new", {}, "writing /usr/new (not in sandbox.write)"),
        ("EACCES: https://host/home/x", {}, None),
    ],
)
def test_denial_in_a_line_of_output(line: str, config: dict[str, Any], denial: str | None) -> None:
    assert sandbox(**config).find_denial(line) == denial
    assert Sandbox(config=SandboxConfig(**config)).find_denial(line) is None


def test_file_that_could_be_written_without_the_sandbox_was_denied_by_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    found = Sandbox(config=SandboxConfig(), arguments=["confine"], read=frozenset({os.path.realpath(tmp_path)}))
    assert found.find_denial(f"EACCES: {file}") == f"writing {file} (not in sandbox.write)"
    if os.geteuid():
        file.chmod(0o400)
        assert found.find_denial(f"EACCES: {file}") is None


def test_links_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/usr")
    assert sandbox().find_denial(f"EACCES: {tmp_path}/link/x") == f"writing {tmp_path}/link/x (not in sandbox.write)"


def test_denials_are_collected_up_to_a_limit() -> None:
    found = sandbox()
    found.note_output("all is well")
    assert (found.denials, found.latest) == ({}, None)
    for number in [*range(21), 20, 0]:
        found.note_output(f"EACCES: /home/{number}")
    expected = [f"/home/{number} (neither in sandbox.read nor in sandbox.write)" for number in range(20)]
    assert list(found.denials) == expected
    assert found.latest == expected[0]


def test_reason_of_an_end_names_the_denial() -> None:
    found = sandbox()
    assert found.explained("it exited") == "it exited"
    found.note_output("EACCES: /home/x")
    denied = "/home/x (neither in sandbox.read nor in sandbox.write)"
    assert found.explained("it exited") == f"it exited (denied by the sandbox: {denied})"
    own = "EACCES: /home/y"
    assert found.explained(own) == f"{own} (denied by the sandbox: {denied.replace('/x', '/y')})"


# processes

# Starts a child for each line of its input, and prints the child's id.
_PARENT = """
import os, subprocess, sys, threading
def start():
    print(subprocess.Popen(["sleep", "300"]).pid, flush=True)
def start_in_thread():
    start()
    threading.Event().wait()
for line in sys.stdin:
    if line.strip() == "thread":
        threading.Thread(target=start_in_thread).start()
    else:
        start()
"""
# Adopts orphans as the gateway does, and prints the processes of a server that has left two of them, one of which has
# moved to a session of its own.
_ADOPTING = """
import ctypes, json, os, subprocess, sys
from gateway.upstream.sandbox import processes_of
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
server = '''
import subprocess, sys
leave = "import subprocess, sys; print(subprocess.Popen(['sleep', '300'], start_new_session=sys.argv[1] == 'own').pid)"
for session in ("own", "server"):
    subprocess.run([sys.executable, "-c", leave, session], check=True)
print("done", flush=True)
sys.stdin.read()
'''
started = subprocess.Popen([sys.executable, "-c", server], start_new_session=True, stdin=-1, stdout=-1, text=True)
child = subprocess.Popen(["sleep", "300"])
moved, orphan, _ = (started.stdout.readline() for _ in range(3))
moved, orphan = int(moved), int(orphan)
print(processes_of(started.pid) == [started.pid, orphan], moved in processes_of(os.getpid()))
for pid in (moved, orphan, child.pid, started.pid):
    os.kill(pid, 9)
"""


class Family:
    """A process that starts children."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self.process.pid

    def grow(self, how: str = "child") -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(how, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def end(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def family() -> Iterator[Family]:
    started = Family()
    yield started
    started.end()


@on_linux
def test_descendants_of_a_process(family: Family) -> None:
    assert processes_of(family.pid) == [family.pid]
    children = [family.grow(), family.grow("thread"), family.grow()]
    assert sorted(processes_of(family.pid)) == sorted([family.pid, *children])
    assert processes_of(children[0]) == [children[0]]
    assert {family.pid, *children} < {*processes_of(os.getpid())}


@on_linux
def test_orphans_in_the_session_of_a_process_belong_to_it() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", _ADOPTING], capture_output=True, text=True, timeout=60, env=env)
    assert (done.stdout, done.stderr) == ("True True\n", "")


@on_linux
async def test_growing_number_of_processes_reaches_the_limit(family: Family) -> None:
    found = list[int]()

    async def limit() -> None:
        found.append(await limit_processes(family.pid, 3))

    family.grow()
    family.grow()
    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            group.start_soon(limit)
            await anyio.wait_all_tasks_blocked()
            assert found == []
            family.grow()
        assert found == [4]
        assert await limit_processes(family.pid, 1) == 4


def test_processes_are_counted_when_they_may_be_too_many() -> None:
    schedule = CountSchedule(5)
    assert schedule.is_due(100)
    schedule.note_count(100, 3)
    assert [schedule.is_due(tasks) for tasks in (90, 101, 102, 103)] == [False, False, True, True]
    schedule.note_count(103, 5)
    assert [schedule.is_due(tasks) for tasks in (102, 103)] == [False, True]


def test_processes_are_counted_from_time_to_time_anyway() -> None:
    schedule = CountSchedule(5)
    for _ in range(2):
        schedule.note_count(100, 3)
        assert [schedule.is_due(90) for _ in range(21)] == [False] * 19 + [True] * 2
