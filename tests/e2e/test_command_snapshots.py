"""Commands that start servers store a snapshot, from which `serve` and `stdio` answer the first list."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from e2e.processes import raw_stdio, typegate
from support.gateways import running_gateway
from support.upstreams.running import rescript, scripted_stdio_server, tool

_ROOT = Path(__file__).parents[2]


def run(*line: str, cwd: Path, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(_ROOT)} | ({"HOME": str(home)} if home is not None else {})
    command = [sys.executable, "-m", "gateway", *line]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env, cwd=cwd)


async def first_names(config: Path, state: Path) -> set[str]:
    """Return the names in the first list of a gateway over stdio."""
    async with raw_stdio(typegate("stdio", "--config", str(config), "--state-dir", str(state))) as gateway:
        await gateway.initialize()
        return {one["name"] for one in await gateway.tools()}


@pytest.mark.parametrize(
    "command",
    ["check", "add", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("lock", "import", "install"))],
)
@pytest.mark.heavy
async def test_first_list_after_a_command_is_complete_though_no_server_answers(tmp_path: Path, command: str) -> None:
    one, record = scripted_stdio_server(tmp_path, "one", tools=[tool("t")])
    config, state, host = tmp_path / "mcp.json", tmp_path / "state", tmp_path / "host.json"
    entry: dict[str, Any] = {"mcpServers": {"one": one}}
    if command == "add":
        config.write_text(json.dumps({"mcpServers": {}}))
        bundle = _bundle(tmp_path, one)
        line = ["add", str(bundle), "--config", str(config), "--name", "one", "--yes"]
    elif command == "import":
        host.write_text(json.dumps(entry))
        line = ["import", str(host), "--config", str(config), "--yes"]
    else:
        config.write_text(json.dumps(entry))
        line = {
            "check": ["check", "--config", str(config)],
            "lock": ["lock", "--config", str(config)],
            "install": ["install", "cursor", "--file", str(host), "--config", str(config), "--yes"],
        }[command]
    done = run(*line, "--state-dir", str(state), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rescript(one, record, faults={"silent": True})
    assert "one__t" in await first_names(config, state)
    if command == "install":
        # The host starts it with the same state.
        [ours] = json.loads(host.read_text())["mcpServers"].values()
        assert ours["args"][-2:] == ["--state-dir", str(state)]


def _bundle(tmp_path: Path, entry: dict[str, Any]) -> Path:
    path = tmp_path / "one.mcpb"
    config = {"command": "python3", "args": entry["args"], "env": {"PYTHONPATH": os.pathsep.join(sys.path)}}
    manifest = {
        "manifest_version": "0.3", "name": "one", "version": "1.0.0", "description": "d", "author": {"name": "a"},
        "server": {"type": "python", "entry_point": "server.py", "mcp_config": config},
    }  # fmt: skip
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("manifest.json", json.dumps(manifest))
        bundle.writestr("server.py", "")
    return path


@pytest.mark.heavy
def test_check_keeps_snapshots_of_unreachable_servers(tmp_path: Path) -> None:
    one, record = scripted_stdio_server(tmp_path, "one", tools=[tool("t")])
    two, _ = scripted_stdio_server(tmp_path, "two", tools=[tool("u")])
    config, state = tmp_path / "mcp.json", tmp_path / "state"
    config.write_text(json.dumps({"mcpServers": {"one": one}}))
    assert run("check", "--config", str(config), "--state-dir", str(state), cwd=tmp_path).returncode == 0
    rescript(one, record, faults={"exit_at_start": 1})
    config.write_text(json.dumps({"mcpServers": {"one": one, "two": two}}))
    done = run("check", "--config", str(config), "--state-dir", str(state), "--json", cwd=tmp_path)
    # The command shows the current state and not the snapshot.
    assert done.returncode == 1
    assert {row["name"] for row in json.loads(done.stdout)["wrappers"]} == {"two__u"}
    stored = (state / "snapshot.json").read_text()
    assert '"t"' in stored
    assert '"u"' in stored


@pytest.mark.heavy
async def test_import_of_failing_servers_reports_them_and_succeeds(tmp_path: Path) -> None:
    host, config, state = tmp_path / "host.json", tmp_path / "mcp.json", tmp_path / "state"
    entries = {
        "dead": {"command": sys.executable, "args": ["-c", "import sys; sys.exit('no key')"]},
        "none": {"command": "no-such"},
    }
    host.write_text(json.dumps({"mcpServers": entries}))
    done = run("import", str(host), "--config", str(config), "--state-dir", str(state), "--yes", cwd=tmp_path)
    assert done.returncode == 0
    assert "dead: the process exited with code 1: no key; the gateway will start it again" in done.stderr
    assert "none: command not found: no-such; the gateway will start it again" in done.stderr
    assert list(json.loads(config.read_text())["mcpServers"]) == ["dead", "none"]
    quiet = run(
        "import", str(host), "--config", str(tmp_path / "other.json"), "--state-dir", str(state), "--yes", "--no-check",
        cwd=tmp_path,
    )  # fmt: skip
    assert "no key" not in quiet.stderr


async def test_list_received_just_before_shutdown_is_stored(tmp_path: Path) -> None:
    one, _ = scripted_stdio_server(tmp_path, "one", tools=[tool("t")])
    async with running_gateway(tmp_path, {"one": one}) as gateway:
        await gateway.until_listed("one__t")
        assert await gateway.stop() == 0
        assert '"t"' in (gateway.state_dir / "snapshot.json").read_text()
