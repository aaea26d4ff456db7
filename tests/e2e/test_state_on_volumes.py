"""State on a volume with an `fsGroup` survives what the kubelet does to it at each mount."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from support.callers import call_of, hello
from support.clusters import running_store
from support.gateways import TOKEN, RunningGateway, answer_of, running_gateway, serving
from support.upstreams.running import builtin_tools, scripted_http_server

from gateway.access.administrators import FILE_NAME


def mount_again(state: Path) -> None:
    """Give every file to a group, with the right to write it, as the kubelet does for a volume with an `fsGroup`."""
    for root, _, files in os.walk(state):
        for path in [Path(root), *(Path(root) / name for name in files)]:
            mode = stat.S_IMODE(path.stat().st_mode)
            if os.geteuid() == 0:
                os.chown(path, -1, 2000)
            path.chmod(mode | (0o2070 if path.is_dir() else 0o060))


async def is_as_it_was(gateway: RunningGateway) -> None:
    await gateway.until_listed("up__sleep")
    tools = await gateway.tools()
    assert "up__echo" not in tools
    assert "slow" in tools["up__sleep"]["description"]
    refused = answer_of(await gateway.post(call_of("up__echo", {"text": "x"})))
    assert "result" not in refused or refused["result"].get("isError")


@pytest.mark.parametrize("token", ["of the environment", "of the gateway"])
async def test_admin_changes_notes_and_token_survive_a_remount(tmp_path: Path, token: str) -> None:
    environment = {"TYPEGATE_ADMIN_TOKEN": ""} if token == "of the gateway" else {}
    async with scripted_http_server(tmp_path, "up", tools=builtin_tools("echo", "sleep")) as up:
        async with running_gateway(tmp_path, {"up": up.config}, environment=environment) as gateway:
            await gateway.until_listed("up__echo")
            admin_token = (gateway.state_dir / FILE_NAME).read_text().strip() if environment else TOKEN
            disabled = await gateway.admin("wrappers/up__echo/disable", "POST", {}, token=admin_token)
            assert disabled.status_code == 200
            note = {"wrapper": "up__sleep", "text": "slow"}
            assert (await gateway.admin("notes", "POST", note, token=admin_token)).status_code == 201
        mount_again(gateway.state_dir)
        async with serving(gateway.config, tmp_path, environment=environment) as again:
            await is_as_it_was(again)
            assert (await again.admin("overlay", token=admin_token)).status_code == 200
            assert "is open to other users" not in again.logged()
            for path in (again.state_dir, *again.state_dir.rglob("*")):
                if path.is_dir() or path.name == FILE_NAME or path.parent.name == "overlays":
                    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.heavy
async def test_replica_state_is_read_after_a_remount(tmp_path: Path) -> None:
    keys = {"apiKeys": [{"name": "ada", "key": "k-ada"}, {"name": "bob", "key": "k-bob"}]}
    async with (
        running_store(tmp_path) as store,
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up,
    ):
        cluster = {"store": {"url": store.url}, "signingKey": "a key that all replicas of the test have"}
        settings = {"auth": keys, "cluster": cluster}
        async with running_gateway(tmp_path, {"up": up.config}, gateway=settings) as gateway:
            # The file of a pod cannot be changed.
            document = json.loads(gateway.config.read_text())
            assert (await gateway.admin("keys/ada", "DELETE")).status_code == 200
            gateway.config.write_text(json.dumps(document))
        await store.stop()
        mount_again(gateway.state_dir)
        async with serving(gateway.config, tmp_path) as again:
            for key, status in (("k-ada", 401), ("k-bob", 200)):
                headers = {"authorization": f"Bearer {key}"}
                assert (await again.post(hello(), headers)).status_code == status
