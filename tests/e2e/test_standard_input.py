"""`typegate stdio` with a standard input that is not a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.gateways import envelope
from support.upstreams.running import scripted_stdio_server, tool

_ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, redirect: str, *, servers: object = {}) -> subprocess.CompletedProcess[str]:
    config = tmp_path / "gw.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    line = f'"{sys.executable}" -m gateway stdio --config {config} --state-dir {tmp_path}/state {redirect}'
    return subprocess.run(["sh", "-c", line], cwd=_ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.heavy
def test_every_request_in_a_file_is_answered_without_a_final_newline(tmp_path: Path) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "f", "version": "1"}}
    messages = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": 3, "method": "tools/call", "params": {"name": "s__t", "arguments": {}}},
        {"id": 4, "method": "tools/list", "params": {"_meta": envelope()}},
    ]
    requests = tmp_path / "requests"
    requests.write_text("\n".join(json.dumps({"jsonrpc": "2.0", **one}) for one in messages))
    server, _ = scripted_stdio_server(tmp_path, "s", tools=[tool("t")])
    done = run(tmp_path, f"< {requests}", servers={"s": server})
    assert done.returncode == 0, done.stderr
    answers = {one["id"]: one for one in map(json.loads, done.stdout.splitlines()) if "id" in one}
    assert set(answers) == {1, 2, 3, 4}
    assert all("result" in one for one in answers.values()), answers
    assert not answers[3]["result"].get("isError")


@pytest.mark.parametrize("redirect", ["< /dev/null", "<&-", "<&- >&-", "<&- 2>&-", "< /dev/null > /dev/null"])
def test_empty_standard_input_exits_cleanly(tmp_path: Path, redirect: str) -> None:
    done = run(tmp_path, redirect)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Traceback" not in done.stderr
