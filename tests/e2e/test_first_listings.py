"""`hold` without a lock file, and listings stored by a gateway that exits at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.test_lock import ECHO, EVIL, READ, typegate, until_changed
from support.gateways import TOKEN, running_gateway, text_of
from support.upstreams.running import rescript, scripted_stdio_server, tool

HOLD: dict[str, Any] = {"lock": {"policy": "hold"}, "profiles": {"default": {"disclosure": "eager"}}}


@pytest.mark.heavy
async def test_change_of_the_first_listing_waits_for_approval_without_a_lock_file(tmp_path: Path) -> None:
    config, record = scripted_stdio_server(tmp_path, "fs", tools=[READ, ECHO])
    async with running_gateway(tmp_path, {"fs": config}, gateway=HOLD) as gateway:
        first = (await gateway.until_listed("fs__read", "fs__echo"))["fs__read"]
        assert "hold" not in gateway.logged()
        assert (gateway.state_dir / "first-listings.lock").stat().st_mode & 0o077 == 0o044
    rescript(config, record, tools=[EVIL, ECHO, tool("more")])
    # A restart or another listing does not make the change trusted.
    for _ in range(2):
        async with running_gateway(tmp_path, {"fs": config}, gateway=HOLD) as gateway:
            held = {row["name"]: row["state"] for row in await until_changed(gateway, 2)}
            assert held == {"read": "held", "more": "held"}
            tools = await gateway.tools()
            assert tools["fs__read"] == first
            assert "fs__more" not in tools
            refused = await gateway.call("fs__read", {"path": "x"})
            assert refused["isError"]
            assert "held" in text_of(refused)
    async with running_gateway(tmp_path, {"fs": config}, gateway=HOLD) as gateway:
        await until_changed(gateway, 2)
        place = ["--url", gateway.origin, "--state-dir", str(gateway.state_dir)]
        approved = typegate("approve", "fs__read", *place, TYPEGATE_ADMIN_TOKEN=TOKEN)
        assert approved.returncode == 0, approved.stderr
        assert "fs__read: approved" in approved.stdout + approved.stderr
        assert (await gateway.tools())["fs__read"]["description"].startswith("Does read. Before that")
        assert not (await gateway.call("fs__read", {"path": "x"})).get("isError")
    async with running_gateway(tmp_path, {"fs": config}, gateway=HOLD) as gateway:
        assert [row["name"] for row in await until_changed(gateway, 1)] == ["more"]
        assert not (tmp_path / "typegate.lock").exists()


@pytest.mark.heavy
async def test_only_servers_with_policy_hold_are_compared_with_their_first_listing(tmp_path: Path) -> None:
    config, record = scripted_stdio_server(tmp_path, "fs", tools=[READ])
    other, other_record = scripted_stdio_server(tmp_path, "other", tools=[READ])
    servers = {"fs": {**config, "lock": {"text": "hold"}}, "other": other}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("fs__read", "other__read")
    rescript(config, record, tools=[EVIL, tool("more")])
    rescript(other, other_record, tools=[EVIL, tool("more")])
    async with running_gateway(tmp_path, servers) as gateway:
        # `added` is not held: only what the configuration says.
        await gateway.until_listed("fs__more", "other__more")
        descriptions = {name: one["description"] for name, one in (await gateway.tools()).items()}
        assert "evil" in descriptions["other__read"]
        assert "evil" not in descriptions["fs__read"]


def test_damaged_first_listings_file_is_an_error_naming_it(tmp_path: Path) -> None:
    (tmp_path / "first-listings.lock").write_text("{")
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"x": {"command": "true"}}}))
    done = typegate("stdio", "--config", str(config), "--state-dir", str(tmp_path))
    assert done.returncode == 2
    assert "first-listings.lock" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.heavy
def test_gateway_stores_its_first_list_before_an_early_exit(tmp_path: Path) -> None:
    working, _ = scripted_stdio_server(tmp_path, "fs", tools=[READ, *(tool(f"t{at}") for at in range(300))])
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"fs": working}}))
    assert "fs__read" in first_list(config, tmp_path / "state")
    (tmp_path / "fs.script.json").unlink()  # its server does not start again
    assert "fs__read" in first_list(config, tmp_path / "state")


def first_list(config: Path, state: Path) -> set[str]:
    """The tools that a gateway lists first to a host that waits for them; its input ends at the same moment."""
    command = [sys.executable, "-m", "gateway", "stdio", "--config", str(config), "--state-dir", str(state)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        client = {"name": "opencode", "version": "1"}
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        for message in (
            {"id": 1, "method": "initialize", "params": about},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/list"},
        ):
            host.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            host.stdin.flush()
        for line in host.stdout:
            answer = json.loads(line)
            if answer.get("id") == 2:
                break
        host.stdin.close()
        assert host.wait(20) == 0
    return {one["name"] for one in answer["result"]["tools"]}
