"""A program that `confine` starts may use only what the options permit."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kernels import LANDLOCK, WITHOUT_LANDLOCK, require_landlock

if sys.platform != "linux":
    pytest.skip("the sandbox exists on Linux only", allow_module_level=True)

from gateway.process.confine import file_rights, landlock_version

_SOURCE = Path(__file__).parents[3] / "gateway" / "process"
_START = (os.path.realpath(sys.executable), "-I", "-S", "-B", "-c")
_CONFINE = f"import sys; sys.path.append({str(_SOURCE)!r}); import confine; "
_MAIN = (*_START, _CONFINE + "confine.main(sys.argv[1:])")
# Runs each line of code, and prints what the line printed, or its error.
_ATTEMPT = """
import ctypes, errno, fcntl, os, resource, socket, subprocess, sys
def system_call(*arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
for line in sys.argv[1].splitlines():
    try:
        exec(line)
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
# What Python needs to start.
_SYSTEM = ["/usr", "/lib", "/lib64", "/etc", "/proc", sys.base_prefix]
# Restricts access as on a kernel with another version of Landlock. System calls are not filtered.
_RESTRICT = f"""
{_CONFINE}
assert confine._LIBC.prctl(38, 1, 0, 0, 0) == 0
paths = {{"read": {_SYSTEM!r}, "write": [sys.argv[4]], "devices": []}}
confine._restrict_access(paths, sys.argv[2], int(sys.argv[3]))
{_ATTEMPT}
"""
_MIB = 1024 * 1024


def options_of(**values: object) -> list[str]:
    """Return options; those of a list are repeated."""
    pairs = [(name, each) for name, value in values.items() for each in (value if isinstance(value, list) else [value])]
    return [text for name, each in pairs for text in (f"--{name}", str(each))]


def run(*line: str, status: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, cwd=cwd)
    assert done.returncode == status, done.stderr
    return done


def confined(code: str, **options: object) -> list[str]:
    """Return the command line that runs code in a confined process."""
    return [*_MAIN, *options_of(**options), *options_of(read=_SYSTEM), "--", *_START, _ATTEMPT, code]


def attempt(code: str, *, cwd: Path | None = None, **options: Any) -> str:
    """Run code in a confined process, and return what it printed, or its error."""
    return run(*confined(code, **options), cwd=cwd).stdout.strip()


@pytest.fixture
def landlock() -> None:
    require_landlock()


# files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("readable", "writable/inner", "hidden"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("text")
        shutil.copy("/bin/true", tmp_path / name / "tool")
    for name in ("readable.txt", "writable.txt"):
        (tmp_path / name).write_text("text")
    (tmp_path / "writable" / "other").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


# What a process may do that may read `readable`, write `writable` and /dev/full, and use the device /dev/null.
FILES = {
    "print(open('readable/file').read())": "text",
    "print(sorted(os.listdir('readable')))": "['file', 'tool']",
    "print(subprocess.run(['readable/tool']).returncode)": "0",
    "print(open('readable.txt').read())": "text",
    "os.listdir('.')": "EACCES",
    "open('hidden/file')": "EACCES",
    "os.listdir('hidden')": "EACCES",
    "subprocess.run(['hidden/tool'])": "EACCES",
    "open('hidden/new', 'w')": "EACCES",
    "open('readable/file', 'a')": "EACCES",
    "os.truncate('readable/file', 0)": "EACCES",
    "os.unlink('readable/file')": "EACCES",
    "open('readable.txt', 'a')": "EACCES",
    "os.truncate('readable.txt', 0)": "EACCES",
    "os.unlink('readable.txt')": "EACCES",
    "open('readable/new', 'w')": "EACCES",
    "os.mkdir('readable/new')": "EACCES",
    "os.symlink('file', 'readable/new')": "EACCES",
    "os.rename('readable/file', 'writable/new1')": "EACCES",
    "print(open('writable.txt', 'a').write('more'))": "4",
    "print(open('writable.txt', 'w').write('more'))": "4",
    "print(open('writable.txt').read())": "more",
    "open('writable/new2', 'w'); print(sorted(os.listdir('writable')))": "['inner', 'new2', 'other']",
    "os.mkdir('writable/new3'); os.rmdir('writable/new3'); print('done')": "done",
    "os.symlink('inner', 'writable/new4'); os.unlink('writable/new4'); print('done')": "done",
    "os.rename('writable/inner/file', 'writable/other/file'); print('done')": "done",
    "os.mkfifo('writable/new5'); print('done')": "done",
    "socket.socket(socket.AF_UNIX).bind('writable/new6'); print('done')": "done",
    "print(subprocess.run(['writable/inner/tool']).returncode)": "0",
    "print(os.write(os.open('pipe', os.O_RDWR), b'x'))": "1",
    # A new device would give access to the hardware. 0o020000 is a character device, 0o060000 a block device.
    "os.mknod('writable/new7', 0o020600, os.makedev(1, 3))": "EACCES",
    "os.mknod('writable/new8', 0o060600, os.makedev(7, 0))": "EACCES",
    "print(open('/dev/null', 'w').write('x'), open('/dev/null').read() == '')": "1 True",
    "open('/dev/zero')": "EACCES",
    "print(open('/dev/full').read(1) == '\\0')": "True",
}


@pytest.mark.usefixtures("landlock")
def test_files(tree: Path) -> None:
    read = [tree / "missing", tree / "readable", tree / "readable.txt"]
    write = [tree / "writable", tree / "writable.txt", tree / "pipe", "/dev/full"]
    found = attempt("\n".join(FILES), cwd=tree, read=read, write=write, devices=["/dev/null"]).splitlines()
    assert dict(zip(FILES, found, strict=True)) == FILES


@pytest.mark.parametrize(("option", "outcome"), [("devices", "ENOTTY"), ("write", "EACCES"), ("read", "EACCES")])
def test_commands_to_devices_are_permitted_by_their_own_option(option: str, outcome: str) -> None:
    require_landlock(5)
    # The command TCGETS, which no device except a terminal knows.
    options: dict[str, Any] = {option: ["/dev/null"]}
    assert attempt("fcntl.ioctl(open('/dev/null'), 0x5401)", **options) == outcome


@pytest.mark.usefixtures("landlock")
def test_rules_exceed_the_limit_of_open_files(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(40)]
    for file in files:
        file.touch()
    line = confined("print(open(sys.argv[2]).read() == '')", read=[*files])
    assert run("/bin/sh", "-c", 'ulimit -n 20; exec "$@"', "sh", *line, str(files[-1])).stdout == "True\n"


@pytest.mark.parametrize(
    ("version", "rights"),
    [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (6, 16), (7, 16)],
)
def test_rights_of_each_version(version: int, rights: int) -> None:
    assert file_rights(version) == 2**rights - 1


def test_version_is_that_of_the_kernel() -> None:
    assert landlock_version() == LANDLOCK


# network


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


LISTEN = "socket.create_server(('127.0.0.1', 0)).close(); print('listens')"
CONNECT = "socket.create_connection(('127.0.0.1', int(sys.argv[2]))).close(); print('connected')"


@pytest.mark.parametrize(
    ("network", "listens", "connects"),
    [
        ([], "listens", "connected"),
        (["all"], "listens", "connected"),
        (["outbound"], "EACCES", "connected"),
        (["none"], "EACCES", "EACCES"),
    ],
)
def test_tcp(port: int, network: list[str], listens: str, connects: str) -> None:
    require_landlock(4)
    assert attempt(LISTEN, network=network) == listens
    assert run(*confined(CONNECT, network=network), str(port)).stdout.strip() == connects


@pytest.mark.parametrize(
    ("version", "network", "listens", "connects"),
    [
        (3, "none", "listens", "connected"),
        (4, "all", "listens", "connected"),
        (4, "outbound", "EACCES", "connected"),
        (4, "none", "EACCES", "EACCES"),
        (7, "none", "EACCES", "EACCES"),
    ],
)
def test_tcp_on_each_kernel(port: int, tmp_path: Path, version: int, network: str, listens: str, connects: str) -> None:
    require_landlock(min(version, 6))
    for code, outcome in ((LISTEN, listens), (CONNECT.replace("sys.argv[2]", str(port)), connects)):
        done = run(*_START, _RESTRICT, code, network, str(version), str(tmp_path))
        assert done.stdout.strip() == outcome


def test_no_sockets_to_other_machines_without_a_network() -> None:
    names = [(family, kind) for family in ("INET", "INET6", "PACKET", "VSOCK") for kind in ("STREAM", "DGRAM")]
    code = "\n".join(f"print(socket.socket(socket.AF_{family}, socket.SOCK_{kind}).type)" for family, kind in names)
    assert attempt(code, network="none").split() == ["EACCES"] * len(names)
    assert "EACCES" not in attempt(code, network="outbound")


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("socket.socket(socket.AF_UNIX).close(); print('done')", "done"),
        ("print(len(socket.socketpair()))", "2"),
        ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close(); print('done')", "done"),
        # io_uring could create sockets without the system call that is filtered.
        ("system_call(425, 1, None)", "ENOSYS"),
    ],
)
def test_calls_without_a_network(code: str, outcome: str) -> None:
    assert attempt(code, network="none") == outcome


def test_protocols_that_use_tcp_ports_are_restricted_like_tcp() -> None:
    numbers = {"TCP": 6, "SMC": 256, "MPTCP": 262}
    code = "\n".join(f"print(socket.socket(2, 1, {number}).proto)" for number in numbers.values())
    assert attempt(code, network="outbound").split() == ["6", "EPROTONOSUPPORT", "EPROTONOSUPPORT"]
    assert attempt(code, network="none").split() == ["EACCES"] * 3
    unrestricted = run(*_START, _ATTEMPT, code).stdout
    assert attempt(code, network="all") == unrestricted.strip()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has the calls of x32")
@pytest.mark.parametrize("number", [0, 41])
def test_x32_calls_are_refused_without_a_network(number: int) -> None:
    assert attempt(f"system_call({0x40000000 + number}, 2, 1, 0)", network="none") == "EACCES"


# The system call `socket(AF_INET, SOCK_STREAM, 0)` of a 32-bit process, whose number differs.
_SOCKET_OF_I386 = """
import ctypes, errno, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("53 b867010000 bb02000000 b901000000 31d2 cd80 5b c3"))
result = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("socket" if result > 0 else errno.errorcode[-result])
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has the calls of i386")
def test_calls_of_another_architecture_are_refused_without_a_network() -> None:
    line = [*_START, _SOCKET_OF_I386]
    if subprocess.run(line, capture_output=True, timeout=60).stdout != b"socket\n":
        pytest.skip("the kernel has no calls of i386")
    for network, outcome in (("none", "EACCES"), ("outbound", "socket")):
        assert run(*_MAIN, *options_of(read=_SYSTEM, network=network), "--", *line).stdout.strip() == outcome


# other processes


@pytest.mark.parametrize(("version", "outcome"), [(5, "done"), (6, "EPERM"), (7, "EPERM")])
@pytest.mark.parametrize(
    "code", ["os.kill(os.getppid(), 0)", "socket.socket(socket.AF_UNIX).connect(sys.argv[5])"], ids=["signal", "socket"]
)
def test_processes_outside_on_each_kernel(tmp_path: Path, code: str, version: int, outcome: str) -> None:
    require_landlock(6)
    name = f"\0typegate-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        code = code.replace("sys.argv[5]", repr(name)) + "; print('done')"
        done = run(*_START, _RESTRICT, code, "all", str(version), str(tmp_path))
    assert done.stdout.strip() == outcome


def test_privileges_cannot_be_gained() -> None:
    status = dict(line.split(":\t", 1) for line in attempt("print(open('/proc/self/status').read())").splitlines())
    assert status["NoNewPrivs"] == "1"
    if os.geteuid() == 0:
        # CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_RESOURCE, CAP_PERFMON
        assert [bit for bit in (19, 21, 24, 38) if int(status["CapBnd"], 16) >> bit & 1] == []


# limits


def limits(*through: str, **options: object) -> list[tuple[int, int]]:
    names = ("RLIMIT_DATA", "RLIMIT_NPROC", "RLIMIT_CPU")
    code = f"print([resource.getrlimit(getattr(resource, name)) for name in {names}])"
    return list(eval(run(*through, *confined(code, **options)).stdout))


def test_limits() -> None:
    unlimited = limits()
    memory = 300 * _MIB
    assert limits(memory=memory)[0] == (memory, memory)
    assert limits(memory=memory)[1:] == unlimited[1:]
    assert limits(tasks=5_000)[1] == (5_000, 5_000)
    assert limits(cpu=30)[2] == (30, 35)


def test_lower_limits_remain() -> None:
    memory = 300 * _MIB
    through = [*_MAIN, *options_of(read=["/"], memory=memory, tasks=5_000, cpu=30), "--"]
    assert limits(*through, memory=2 * memory, tasks=9_000, cpu=32) == [(memory, memory), (5_000, 5_000), (32, 35)]
    assert limits(*through, memory=memory - 4096, tasks=4_000, cpu=20) == [
        (memory - 4096, memory - 4096), (4_000, 4_000), (20, 25),
    ]  # fmt: skip


# start


def test_program_gets_its_arguments_and_the_rest_of_the_environment() -> None:
    line = [*_MAIN, *options_of(read=_SYSTEM), "--", *_START, "import sys; print(sys.argv[1:])", "--read", "--", "a b"]
    assert run(*line).stdout == "['--read', '--', 'a b']\n"


def test_program_that_cannot_start_is_named(tmp_path: Path) -> None:
    line = [*_MAIN, "--read", str(tmp_path), "--", str(tmp_path / "missing")]
    done = run(*line, status=126)
    assert done.stderr == f"typegate: cannot start {tmp_path}/missing: No such file or directory\n"


@pytest.mark.usefixtures("landlock")
def test_program_does_not_start_if_a_rule_cannot_be_applied() -> None:
    # The kernel permits 16 layers of rules.
    layers = 17 * [*_MAIN, "--read", "/", "--"]
    done = run(*layers, "/bin/echo", "started", status=126)
    assert done.stderr == "typegate: the sandbox could not be set up: [Errno 7] landlock: Argument list too long\n"
    assert done.stdout == ""


def test_other_restrictions_hold_without_landlock(tmp_path: Path) -> None:
    through = [*_START, WITHOUT_LANDLOCK]
    code = "import confine; print(confine.landlock_version())"
    assert run(*through, *_START, _CONFINE + code).stdout == "0\n"
    code = "print(open('/proc/self/status').read().count('NoNewPrivs:\\t1')); socket.socket()"
    line = [*_MAIN, "--network", "none", "--memory", str(300 * _MIB), "--", *_START, _ATTEMPT, code]
    assert run(*through, *line).stdout == "1\nEACCES\n"
    assert limits(*through, memory=300 * _MIB)[0] == (300 * _MIB, 300 * _MIB)
