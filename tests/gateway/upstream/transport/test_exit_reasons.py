"""The line of a child's output that explains its exit becomes the reason."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from support.gateways import brief_pause

from gateway.protocol.gateway_errors import ConnectionLost
from gateway.upstream.transport.process_start import ProcessStart
from gateway.upstream.transport.stderr_log import StderrLog
from gateway.upstream.transport.stdio_transport import ChildProcess, open_stdio

NODE = """\
node:internal/modules/cjs/loader:1228
  throw err;
  ^

Error: Cannot find module '/x.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1225:15)
    at node:internal/main/run_main_module:28:49 {
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}

Node.js v20.1.0
"""


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("Traceback\n  File x\nValueError: no key\n", "ValueError: no key"),
        ("no line break", "no line break"),
        ("\x1b[31mred\x1b[0m\n\n", "red"),
        (NODE, "Error: Cannot find module '/x.js'"),
        ("npm error 404 not found\nnpm error A complete log of this run is in: /x\n", "npm error 404 not found"),
        ("error: no such package\nhint: try another\n", "error: no such package"),
        ("at home\n", "at home"),
        ("x" * 5000 + "\nend\n", "end"),
        ("", ""),
    ],
)
async def test_explaining_stderr_line_becomes_the_reason(stderr: str, reason: str) -> None:
    child = ChildProcess("s", ProcessStart(60), StderrLog("s"))
    code = f"import sys; sys.stderr.write({stderr!r}); sys.exit(3)"
    ignore = lambda line: None  # noqa: E731 - no more than its beginning
    with anyio.fail_after(25):
        async with child.running(sys.executable, ["-c", code], env={}, cwd=None, on_line=ignore, on_skipped=ignore):
            await child.wait_ended()
    assert child.end_reason() == "the process exited with code 3" + (f": {reason}" if reason else "")
    with pytest.raises(ConnectionLost, match="exited with code 3"):
        child.write_line(b"{}")


HESITANT = """
import os, sys, time
from pathlib import Path
os.close(1)
Path(sys.argv[1]).touch()
while not Path(sys.argv[2]).exists():
    time.sleep(0.01)
os.write(2, b"no key")
os._exit(3)
"""


@pytest.mark.parametrize("asks", [True, False])
async def test_child_ended_before_the_first_request_has_the_same_reason(asks: bool, tmp_path: Path) -> None:
    ended, speak = tmp_path / "ended", tmp_path / "speak"
    arguments = ["-c", HESITANT, str(ended), str(speak)]
    ignore = lambda message, reply: None  # noqa: E731 - it sends nothing
    start, log = ProcessStart(60), StderrLog("s")
    async with open_stdio(
        "s", sys.executable, arguments, env={}, cwd=None, on_message=ignore, start=start, stderr_log=log
    ) as transport:
        with anyio.fail_after(25):
            while not ended.exists():
                await brief_pause()
            # It says why once the end of its output was noticed.
            for _ in range(3):
                await checkpoint()
            speak.touch()
            with pytest.raises(ConnectionLost, match=r"^the process exited with code 3: no key$") as lost:
                await (transport.request("initialize", {}) if asks else transport.notify("initialized"))
    assert not lost.value.sent
