"""Servers from images: the command line of the container engine, with a program in its place."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import anyio
import pytest
from e2e.processes import descendants_of
from e2e.test_server_sandbox import SERVER, is_running
from support.gateways import brief_pause, running_gateway, text_of

from gateway.config.load import parse
from gateway.protocol.gateway_errors import ConfigError

# Notes its command line and the variable, then is the server of the image.
ENGINE = f"""#!{sys.executable}
import json, os, pathlib, sys
pathlib.Path(__file__).with_suffix(".json").write_text(json.dumps([sys.argv[1:], os.environ.get("NOTES_TOKEN")]))
{SERVER}
"""


async def test_container_is_started_with_the_documented_command_line(tmp_path: Path) -> None:
    engine = tmp_path / "podman"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    server = {
        "container": {
            "image": "ghcr.io/example/notes:1.4",
            "engine": "podman",
            "mounts": ["data:/data:ro", f"{tmp_path}/cache:/cache"],
            "network": False,
            "memory": 512,
            "options": ["--user=1000"],
        },
        "args": ["--folder", "/data"],
        "env": {"NOTES_TOKEN": "secret-of-notes", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        "sandbox": {"required": True},
    }
    async with running_gateway(tmp_path, {"notes": server}) as gateway:
        await gateway.until_listed("notes__run")
        assert text_of(await gateway.call("notes__run", {"code": "print('well')"})).strip() == "well"
        line, token = json.loads(engine.with_suffix(".json").read_text())
    assert token == "secret-of-notes"
    assert line == [
        *("run", "--rm", "--interactive", "--init", "--cap-drop=ALL", "--security-opt=no-new-privileges"),
        *("--network=none", "--memory=512m"),
        f"--mount=type=bind,source={tmp_path}/data,target=/data,readonly",
        f"--mount=type=bind,source={tmp_path}/cache,target=/cache",
        *("--env=NOTES_TOKEN", "--env=PATH", "--user=1000", "ghcr.io/example/notes:1.4", "--folder", "/data"),
    ]


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"container": {"image": "--privileged"}}, "container.image"),
        ({"container": {"image": "a"}, "command": "python"}, "container"),
        ({"container": {"image": "a", "mounts": ["/data"]}}, "container.mounts"),
        ({"container": {"image": "a", "mounts": ["/data,readonly=false:/data"]}}, "container.mounts"),
        ({"container": {"image": "a", "privileged": True}}, "container.privileged"),
        ({"container": {}}, "container.image"),
    ],
)
def test_container_with_an_error_is_refused_by_its_key(entry: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(json.dumps({"mcpServers": {"notes": entry}}))
    assert f"mcpServers.notes.{key}" in str(caught.value)


# An engine that starts the server as a container does: in a session of its own, below another parent. It passes
# signals and input on. The container ignores the end of its input.
DETACHING_ENGINE = f"""#!{sys.executable}
import os, pathlib, signal, subprocess, sys
CONTAINER = '''
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
{SERVER.replace(chr(92), chr(92) * 2).replace("'''", "")}
time.sleep(120)
'''
container = subprocess.Popen([sys.executable, "-c", CONTAINER], start_new_session=True)
pathlib.Path(__file__).with_suffix(".pid").write_text(str(container.pid))
signal.signal(signal.SIGTERM, lambda *_: container.terminate())
sys.exit(container.wait())
"""


@pytest.mark.heavy
async def test_container_ends_when_its_gateway_is_killed(tmp_path: Path) -> None:
    engine = tmp_path / "docker"
    engine.write_text(DETACHING_ENGINE)
    engine.chmod(0o755)
    env = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    servers = {"notes": {"container": {"image": "notes"}, "env": env}}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("notes__run")
        pids = [int(engine.with_suffix(".pid").read_text()), *descendants_of(gateway.process.pid)]
        assert all(map(is_running, pids))
        gateway.process.send_signal(signal.SIGKILL)
        await gateway.process.wait()
        with anyio.fail_after(60):
            while any(map(is_running, pids)):
                await brief_pause()
