"""Standard error of a child in the log: readable, rate-limited, and once per reason."""

from __future__ import annotations

import asyncio
import logging

import pytest
from support.pace import limited_work

from gateway.upstream.transport.stderr_log import _LINES_PER_S, StderrLog, explanation


class Clock:
    """The time of the loop, as the test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now_s)


async def test_logged_lines_per_second_are_limited_and_the_rest_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with monkeypatch.context() as patched:
        clock = Clock(patched)
        log = StderrLog("s")
        for second in range(2):
            clock.now_s = 100.5 + second
            for number in range(_LINES_PER_S + 7):
                log.add(b"line %d" % number)
        log.close()
    messages = [record.getMessage() for record in caplog.records]
    shown = [f"stderr: line {number}" for number in range(_LINES_PER_S)]
    assert messages == [*shown, "stderr: 7 lines dropped"] * 2
    assert log.last_line() == f"line {_LINES_PER_S + 6}"


async def test_repeated_lines_of_a_failing_process_are_not_logged_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with monkeypatch.context() as patched:
        clock = Clock(patched)
        log = StderrLog("s")
        # The pauses between them grow to minutes, and a start may take long.
        for process, (lived_s, failed) in enumerate(((1, True), (400, True), (5, False), (3_600, False), (1, True))):
            clock.now_s += 120
            log.reset()
            log.add(b"[12:00:0%d] pid 1%d, /tmp/%dxyz: no key" % (process, process, process))
            if process == 2:
                log.add(b"and no disk")
            clock.now_s += lived_s
            log.end(failed=failed)
    messages = [record.getMessage().replace(", /tmp/", " ") for record in caplog.records]
    # The last process has followed one that ran for an hour: it did not fail at its start.
    assert messages == [
        "stderr: [12:00:00] pid 10 0xyz: no key",
        "stderr: and no disk",
        "stderr: [12:00:04] pid 14 4xyz: no key",
    ]


@pytest.mark.parametrize("line", ["- " * 1_000, "1234 " * 400, "│ " + "─" * 1_990, "╭" + "─ " * 990, "Error: " * 280])
def test_searching_a_reason_in_any_line_is_fast(line: str) -> None:
    with limited_work(0.5):
        explanation([line] * 20)


async def test_last_line_is_shown_without_control_sequences() -> None:
    log = StderrLog("s")
    log.reset()
    log.add(b"\x1b[2K\x1b[1G10 %\r50 %\r\x1b[32m90 %\x1b[0m")
    log.add(b"  ")
    assert log.last_line() == "90 %"


NPM = """\
npm warn deprecated inflight@1.0.6: This module is not supported
npm error code E404
npm error 404 Not Found - GET https://registry.example.test/no-such-server
npm error 404
npm error 404  The requested resource 'no-such-server@*' could not be found or you do not have permission to access it.
npm error 404
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git folder.
npm notice New major version of npm available! 10.8.2 -> 11.0.0
npm error A complete log of this run can be found in: /root/.npm/_logs/2026-01-01-debug-0.log
"""
NPM_9 = """\
npm ERR! code EACCES
npm ERR! syscall mkdir
npm ERR! path /x
npm ERR! errno -13
npm ERR! Error: EACCES: permission denied, mkdir '/x'
npm ERR!     at async mkdir (node:internal/fs/promises:858:10)
npm ERR!   errno: -13,
npm ERR! A complete log of this run can be found in:
npm ERR!     /home/x/.npm/_logs/2026-01-01-debug-0.log
"""
PIP = """\
ERROR: Could not find a version that satisfies the requirement no-such-server (from versions: none)
ERROR: No matching distribution found for no-such-server

[notice] A new release of pip is available: 23.0 -> 24.0
[notice] To update, run: pip install --upgrade pip
"""
UV = """\
Downloading cryptography (4.5MiB)
 Downloaded cryptography
error: No solution found when resolving tool dependencies
  cause: Because no-such-server was not found in the package registry, your requirements are unsatisfiable.
"""
UV_OLD = """\
  × No solution found when resolving tool dependencies:
  ╰─▶ Because no-such-server was not found, your requirements are unsatisfiable.
"""
UVX_COMMAND = """\
Installed 31 packages in 17ms
An executable named `no-such` is not provided by package `mcp-server-time`.
The following executables are available:
- mcp-server-time
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "server.py", line 5, in <module>
  |     anyio.run(main)
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "server.py", line 2, in connect
    |     raise RuntimeError("no database")
    |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    | RuntimeError: no database
    +------------------------------------
"""
CHAINED = """\
Traceback (most recent call last):
  File "server.py", line 2, in <module>
    os.environ["KEY"]
KeyError: 'KEY'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "server.py", line 4, in <module>
    raise SettingsError("set the variable KEY")
settings.SettingsError: set the variable KEY
sys:1: RuntimeWarning: coroutine 'main' was never awaited
"""
PYDANTIC = """\
Traceback (most recent call last):
  File "server.py", line 4, in <module>
    Settings()
pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings
api_key
  Field required [type=missing, input_value={}, input_type=dict]
"""
NODE_FATAL = """\
(node:71) [DEP0040] DeprecationWarning: The `punycode` module is deprecated.
(Use `node --trace-deprecation ...` to show where the warning was created)
Fatal error running server: Error: Missing API_KEY
    at main (file:///srv/index.js:46:9)
    at process.processTicksAndRejections (node:internal/process/task_queues:95:5)
"""
NODE_LISTEN = """\
node:events:497
      throw er; // Unhandled 'error' event
      ^

Error: listen EADDRINUSE: address already in use :::3000
    at Server.setupListenHandle [as _listen2] (node:net:1817:16) {
  code: 'EADDRINUSE',
  errno: -98,
  syscall: 'listen',
  address: '::',
  port: 3000
}

Node.js v20.11.0
"""
ZOD = 'ZodError: [\n  {\n    "code": "invalid_type",\n    "path": ["API_KEY"],\n    "message": "Required"\n  }\n]\n'
RUST = (
    "thread 'main' panicked at src/main.rs:5:5:\nno config given\nnote: run with `RUST_BACKTRACE=1` for a backtrace\n"
)
GO = (
    "panic: open /x: no such file or directory\n\ngoroutine 1 [running]:\nmain.main()\n\t/x.go:5 +0x3c\nexit status 2\n"
)
JAVA = (
    'Exception in thread "main" java.lang.RuntimeException: failed\n\tat Main.main(Main.java:5)\n'
    "Caused by: java.io.IOException: no disk\n\tat Main.read(Main.java:2)\n\t... 1 more\n"
)
DOCKER = """\
Unable to find image 'mcp/none:latest' locally
docker: Error response from daemon: pull access denied for mcp/none, repository does not exist.

Run 'docker run --help' for more information
"""
USAGE = """\
Usage: mcp-server-filesystem [allowed-directory]
Note: Allowed directories can be provided via:
  1. Command-line arguments
  2. MCP roots protocol
At least one directory must be provided by EITHER method for the server to operate.
"""


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (NPM, "npm error 404 Not Found - GET https://registry.example.test/no-such-server"),
        (NPM_9, "npm ERR! Error: EACCES: permission denied, mkdir '/x'"),
        ("npm error could not determine executable to run\n", "npm error could not determine executable to run"),
        (PIP, "ERROR: No matching distribution found for no-such-server"),
        (
            UV,
            "error: No solution found when resolving tool dependencies: Because no-such-server was not found in the "
            "package registry, your requirements are unsatisfiable.",
        ),
        (
            UV_OLD,
            "× No solution found when resolving tool dependencies: Because no-such-server was not found, your "
            "requirements are unsatisfiable.",
        ),
        (UVX_COMMAND, "An executable named `no-such` is not provided by package `mcp-server-time`."),
        (GROUP, "RuntimeError: no database"),
        (CHAINED, "settings.SettingsError: set the variable KEY"),
        (
            PYDANTIC,
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings api_key Field required "
            "[type=missing, input_value={}, input_type=dict]",
        ),
        (NODE_FATAL, "Fatal error running server: Error: Missing API_KEY"),
        (NODE_LISTEN, "Error: listen EADDRINUSE: address already in use :::3000"),
        (ZOD, 'ZodError: [ { "code": "invalid_type", "path": ["API_KEY"], "message": "Required"'),
        (RUST, "thread 'main' panicked at src/main.rs:5:5: no config given"),
        (GO, "panic: open /x: no such file or directory"),
        (JAVA, "Caused by: java.io.IOException: no disk"),
        (DOCKER, "docker: Error response from daemon: pull access denied for mcp/none, repository does not exist."),
        (USAGE, "At least one directory must be provided by EITHER method for the server to operate."),
        ("[eval]:1\nthrow 'no key'\n^\nno key\n(Use `node --trace-uncaught ...` to show where)\n", "no key"),
        ("usage: srv [-h] --dir DIR\nsrv: error: --dir is required\n", "srv: error: --dir is required"),
        ('{"level":"info","msg":"up"}\n{"level":"error","msg":"no key"}\n{"level":"info","msg":"down"}\n',
         '{"level":"error","msg":"no key"}'),
        ("2025-01-01 12:00:00,1 ERROR no key\n2025-01-01 12:00:00,2 INFO error handler stopped\n",
         "2025-01-01 12:00:00,1 ERROR no key"),
        ("sh: 1: mcp-server-none: not found\n", "sh: 1: mcp-server-none: not found"),
        ("Starting...\nListening on stdio\nKilled\n", "Killed"),
        # Notices and warnings are not reasons.
        ("/x.py:3: UserWarning: pkg_resources is deprecated\n  import pkg_resources\n", ""),
        ("npm warn exec The following package was not found and will be installed: x@1.0.0\n", ""),
        ("[notice] A new release of pip is available: 23.0 -> 24.0\n", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_explaining_line_is_found(stderr: str, reason: str) -> None:
    assert explanation(stderr.splitlines()) == reason


def test_long_word_is_searched_in_less_than_quadratic_time() -> None:
    # It takes 10 s with an expression that is tried at each character.
    with limited_work(2):
        log = StderrLog("s")
        for _ in range(500):
            log._was_printed("e" * 2_000)
