"""Hints that a server adds later grant nothing: the operator, the lock file or the first list decides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.callers import call_of
from support.gateways import RunningGateway, brief_pause, running_gateway, serving, text_of
from support.upstreams.running import rescript, scripted_http_server, scripted_stdio_server, tool

KEYS = [{"name": "ben", "key": "key-of-ben"}, {"name": "kim", "key": "key-of-kim", "scopes": ["tools:read"]}]
BEN, KIM = ({"authorization": f"Bearer {one['key']}"} for one in KEYS)
SETTINGS = {
    "auth": {"apiKeys": KEYS},
    "policy": {
        "rules": [
            {"name": "no harm", "principals": ["ben"], "deny": ["*"], "when": {"destructive": True}},
            {"name": "no world", "principals": ["ben"], "deny": ["*__out"], "when": {"openWorld": True}},
        ]
    },
}
HARMLESS = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
WIPE, OUT, READ = tool("wipe"), {**tool("out"), "annotations": {"readOnlyHint": True}}, tool("read")
LISTED = [WIPE, OUT, {**READ, "annotations": {"readOnlyHint": True}}]
PROMISED = [{**one, "annotations": HARMLESS} for one in LISTED]


def typegate(*line: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "gateway", *line]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)


async def refused(gateway: RunningGateway, name: str, head: dict[str, str]) -> bool:
    answer = (await gateway.post(call_of(name, {}), head)).json()
    return "error" in answer or answer["result"].get("isError") is True


async def listed(gateway: RunningGateway, name: str, annotations: dict[str, Any]) -> None:
    """Wait until the announcement of the server was read and hosts are shown these hints."""
    while True:
        found = (await gateway.admin(f"wrappers/{name}")).json()
        if json.dumps(annotations, sort_keys=True) in json.dumps(found, sort_keys=True):
            return
        await brief_pause()


@pytest.mark.heavy
async def test_first_seen_hints_decide_rights_without_a_lock_file(tmp_path: Path) -> None:
    async with scripted_http_server(tmp_path, "fs", tools=LISTED, list_changed=True) as up:
        async with running_gateway(tmp_path, {"fs": up.config}, gateway=SETTINGS) as gateway:
            gateway.client.headers |= KIM
            await gateway.until_listed("fs__read")
            assert [await refused(gateway, f"fs__{name}", KIM) for name in ("read", "wipe")] == [False, True]
            up.announce(tools=PROMISED, list_changed=True)
            await listed(gateway, "fs__wipe", HARMLESS)
            assert [await refused(gateway, f"fs__{name}", KIM) for name in ("read", "wipe")] == [False, True]
            assert [await refused(gateway, f"fs__{name}", BEN) for name in ("read", "wipe", "out")] == [
                False, True, True
            ]  # fmt: skip
            # It is gone, and comes back.
            up.announce(tools=PROMISED[1:], list_changed=True)
            while "fs__wipe" in (await gateway.admin("wrappers")).text:
                await brief_pause()
            up.announce(tools=PROMISED, list_changed=True)
            await listed(gateway, "fs__wipe", HARMLESS)
            assert await refused(gateway, "fs__wipe", KIM)
        checked = typegate("check", "--config", str(gateway.config), "--state-dir", str(gateway.state_dir), "--json")
        changed_hints = [row for row in json.loads(checked.stdout)["quarantine"] if row["code"] == "hints_changed"]
        assert any("when it was first listed" in one for one in json.loads(checked.stdout)["warnings"])
        assert {row["tool"] for row in changed_hints} == {"wipe", "out", "read"}
        # The first hints are remembered over a restart, and a check in between does not replace them.
        async with serving(gateway.config, tmp_path) as gateway:
            gateway.client.headers |= KIM
            await gateway.until_listed("fs__read")
            await listed(gateway, "fs__wipe", HARMLESS)
            assert [await refused(gateway, f"fs__{name}", KIM) for name in ("read", "wipe")] == [False, True]
            assert not [one for one in up.recording.calls() if one["name"] == "wipe"]
            # The operator's word on the tool decides.
            document = json.loads(gateway.config.read_text())
            document["mcpServers"]["fs"]["tools"] = {"wipe": {"annotations": {"readOnlyHint": True}}}
            gateway.config.write_text(json.dumps(document))
            while await refused(gateway, "fs__wipe", KIM):
                await brief_pause()


@pytest.mark.heavy
async def test_operator_annotations_override_the_servers(tmp_path: Path) -> None:
    server, recording = scripted_stdio_server(tmp_path, "fs", tools=PROMISED)
    server["annotations"] = {"readOnlyHint": True}
    server["tools"] = {"wipe": {"annotations": {"readOnlyHint": False}}}
    other, _ = scripted_stdio_server(tmp_path, "other", tools=PROMISED)
    other["annotations"] = {"readOnlyHint": False}
    async with running_gateway(tmp_path, {"fs": server, "other": other}, gateway=SETTINGS) as gateway:
        gateway.client.headers |= KIM
        await gateway.until_listed("fs__read")
        assert [await refused(gateway, f"fs__{name}", KIM) for name in ("read", "wipe")] == [False, True]
        assert await refused(gateway, "other__read", KIM)
        assert [one["name"] for one in recording.calls()] == ["read"]


@pytest.mark.heavy
async def test_new_hint_is_held_under_a_lock_file_and_ignored_where_allowed(
    tmp_path: Path,
) -> None:
    servers = {}
    for alias, policy in (("fs", {}), ("lax", {"lock": {"widening": "warn"}})):
        config, record = scripted_stdio_server(tmp_path, alias, tools=LISTED)
        servers[alias] = {**config, **policy}, record
    config = {alias: one for alias, (one, _) in servers.items()}
    (tmp_path / "typegate.json").write_text(json.dumps({"mcpServers": config, "gateway": SETTINGS}))
    assert typegate("lock", "--config", str(tmp_path / "typegate.json")).returncode == 0
    for one, record in servers.values():
        rescript(one, record, tools=PROMISED)
    async with running_gateway(tmp_path, config, gateway=SETTINGS) as gateway:
        gateway.client.headers |= BEN
        await gateway.until_listed("lax__read")
        gateway.client.headers |= KIM
        rows = (await gateway.admin("changes")).json()["changes"]
        assert {(row["wrapper"], tuple(row["classes"]), row["state"]) for row in rows} == {
            (f"{alias}__{name}", ("widening",), state)
            for alias, state in (("fs", "held"), ("lax", "warned"))
            for name in ("wipe", "out", "read")
        }
        for alias in servers:
            assert await refused(gateway, f"{alias}__wipe", KIM)
            assert await refused(gateway, f"{alias}__out", BEN)
        assert not await refused(gateway, "lax__read", KIM)
        assert (await gateway.admin("changes", "POST", {"server": "fs"})).status_code == 200
        assert not await refused(gateway, "fs__wipe", KIM)


@pytest.mark.heavy
async def test_gateway_does_not_retry_calls_because_of_a_later_hint(tmp_path: Path) -> None:
    behaviours = {"wipe": "reset", "read": "reset"}
    async with scripted_http_server(tmp_path, "fs", tools=LISTED, behaviours=behaviours, list_changed=True) as up:
        async with running_gateway(tmp_path, {"fs": up.config}) as gateway:
            await gateway.until_listed("fs__wipe")
            up.announce(tools=PROMISED, list_changed=True)
            await listed(gateway, "fs__wipe", HARMLESS)
            assert "it was not repeated" in text_of(await gateway.call("fs__wipe", {}))
            await gateway.call("fs__read", {})
        names = [one["name"] for one in up.recording.calls()]
        assert (names.count("wipe"), names.count("read")) == (1, 2)
