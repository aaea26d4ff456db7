"""The limits of a sandbox besides files, its state on older kernels, and what the commands show and write of it."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.test_check import check, typegate
from e2e.test_server_sandbox import SERVER, entry, run, separates
from support.gateways import brief_pause, running_gateway
from support.kernels import WITHOUT_LANDLOCK


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="seccomp exists on Linux only")
async def test_without_landlock_a_server_is_unconfined_or_refused(tmp_path: Path) -> None:
    servers = {
        "usual": entry(sandbox={"memory": 512}),
        "strict": entry(sandbox={"required": True}),
        "sibling": entry(),
    }
    through = (sys.executable, "-c", WITHOUT_LANDLOCK)
    async with running_gateway(tmp_path, servers, through=through) as gateway:
        await gateway.until_listed("usual__run", "sibling__run")
        with anyio.fail_after(60):
            while not (refused := await gateway.server("strict"))["lastError"]:
                await brief_pause()
        assert "the sandbox cannot restrict files, TCP ports, signals" in refused["lastError"]
        assert "required: true" in refused["lastError"]
        assert refused["processes"] == 0
        rows = [await gateway.server(name) for name in ("usual", "sibling")]
        assert [row["sandbox"] for row in rows] == ["unconfined", "unconfined"]
        # Limits do not depend on Landlock.
        code = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0])"
        assert int(await run(gateway, "usual", code)) == 512 * 1024 * 1024
        assert "sandbox incomplete" in gateway.logged()


@separates
@pytest.mark.heavy
async def test_process_that_computes_without_end_is_ended_by_its_limit(tmp_path: Path) -> None:
    servers = {"one": entry(sandbox={"cpu": 1}), "sibling": entry(sandbox=True)}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("one__run", "sibling__run")
        result = await gateway.call("one__run", {"code": "while True: pass"}, timeout_s=120)
        assert result["isError"], result
        with anyio.fail_after(60):
            while not (row := await gateway.server("one"))["lastLost"]:
                await brief_pause()
        assert "denied by the sandbox: more processor time than sandbox.cpu (1 s)" in row["lastLost"], row
        assert (await run(gateway, "sibling", "print('well')")).strip() == "well"


@separates
@pytest.mark.heavy
def test_check_shows_what_a_server_was_denied(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch()
    attempt = f"""
import sys
try:
    open({str(secret)!r})
except OSError as error:
    print(error, file=sys.stderr, flush=True)
"""
    missing = tmp_path / "missing"
    entry = {"command": sys.executable, "args": ["-c", attempt + SERVER], "sandbox": {"write": [str(missing)]}}
    done = check(tmp_path, {"one": entry})
    assert done.returncode == 0, done.stderr
    assert "one__run" in done.stdout
    for expected in (
        f"{secret} (neither in sandbox.read nor in sandbox.write)",
        f"{missing} (it does not exist: create it before the start)",
    ):
        assert f"one: denied by its sandbox: {expected}" in done.stderr


@separates
@pytest.mark.heavy
def test_add_writes_a_sandbox_in_which_the_server_works(tmp_path: Path) -> None:
    config, folder = tmp_path / "mcp.json", tmp_path / "notes"
    folder.mkdir()
    config.write_text(json.dumps({"mcpServers": {}}))

    def add(name: str, *more: str, arguments: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
        command = {"command": "python3", "args": ["${__dirname}/server.py", *arguments]}
        server = {"type": "python", "entry_point": "server.py", "mcp_config": command}
        about = {"name": name, "version": "1.0.0", "description": "d", "author": {"name": "a"}}
        with zipfile.ZipFile(tmp_path / f"{name}.mcpb", "w") as bundle:
            bundle.writestr("manifest.json", json.dumps({"manifest_version": "0.3", **about, "server": server}))
            bundle.writestr("server.py", SERVER)
        line = ["add", str(tmp_path / f"{name}.mcpb"), "--config", str(config), "--name", name]
        done = typegate(*line, "--state-dir", str(tmp_path / "state"), "--yes", *more)
        assert done.returncode == 0, done.stderr
        return json.loads(config.read_text())["mcpServers"][name], done.stderr + done.stdout

    plain, printed = add("plain")
    assert "sandbox" not in plain
    assert "could run in a sandbox, where it may write only its temporary files" in printed
    # The bundle is in the state directory, which no other sandbox permits.
    confined, printed = add("confined", "--sandbox", arguments=(str(folder),))
    assert confined["sandbox"] == {"write": [str(folder)]}
    assert f"sandbox: may write {folder} and its own temporary files" in printed
    assert add("bare", "--sandbox")[0]["sandbox"] is True
    # Programs of other machines have no sandbox.
    refused = typegate("add", "http://127.0.0.1:9/mcp", "--config", str(config), "--sandbox", "--yes", "--no-check")
    assert refused.returncode == 2
    assert "--sandbox is for programs of this machine" in refused.stderr
