"""Tools hidden by a host's file are neither listed nor called, whether the file is served or imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.gateways import RunningGateway, serving
from support.upstreams.running import scripted_stdio_server, tool

from gateway.cli import main

RESTRICTED: dict[str, dict[str, Any]] = {
    "litellm": {"disallowed_tools": ["delete_repo"]},
    "goose": {"available_tools": ["list_repos"]},
    "copilot": {"type": "local", "tools": ["list_repos"]},
    "mcphub": {"tools": {"mcphub-delete_repo": {"enabled": False}}},
    "proxy": {"options": {"toolFilter": {"mode": "block", "list": ["delete_repo"]}}},
    "gemini": {"includeTools": ["list_repos(owner)"]},
    "names": {"tool_names": ["list_repos"]},
    "prefixed": {"disabledTools": ["mcp__prefixed__delete_repo"]},
    "claude": {},
}
UNREADABLE: dict[str, dict[str, Any]] = {
    "text": {"blockedTools": "delete_repo"},
    "params": {"allowed_params": {"delete_repo": []}},
    "regex": {"excludeTools": ["delete_.*"]},
}
ROOT = {"permissions": {"deny": ["mcp__claude__delete_repo"]}, "excludeMCPServers": ["off"]}


async def check(gateway: RunningGateway) -> None:
    """Check that the gateway shows one of the two tools of each server, and calls no other."""
    await gateway.until_listed(*(f"{name}__list_repos" for name in RESTRICTED), "open__delete_repo", within_s=30)
    assert set(await gateway.tools()) == {
        *(f"{name}__list_repos" for name in RESTRICTED), "open__list_repos", "open__delete_repo",
    }  # fmt: skip
    for name in (*RESTRICTED, *UNREADABLE, "off"):
        answer = await gateway.rpc("tools/call", {"name": f"{name}__delete_repo", "arguments": {}})
        assert "error" in answer or answer["result"]["isError"] is True


@pytest.mark.parametrize("way", ["served", "imported"])
@pytest.mark.heavy
async def test_tools_hidden_by_a_host_file_stay_hidden(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    up, record = scripted_stdio_server(tmp_path, "up", tools=[tool("list_repos"), tool("delete_repo")])
    entries = {name: {**up, **more} for name, more in {**RESTRICTED, **UNREADABLE, "off": {}, "open": {}}.items()}
    source, config = tmp_path / "theirs.json", tmp_path / "ours.json"
    source.write_text(json.dumps({"mcpServers": entries, **ROOT}))
    if way == "imported":
        state = ["--state-dir", str(tmp_path / "state")]
        assert main(["import", str(source), "--config", str(config), "--no-check", "--yes", *state]) == 0
        printed = capsys.readouterr().err
        assert "text: left out, blockedTools: is not a list of names" in printed
        assert "params: left out, allowed_params: may restrict something" in printed
        assert "off: is disabled by excludeMCPServers" in printed
        assert json.loads(config.read_text())["mcpServers"]["off"]["disabled"] is True
    async with serving(config if way == "imported" else source, tmp_path) as gateway:
        await check(gateway)
        if way == "served":
            assert "blockedTools: is not a list of names" in (await gateway.server("text"))["lastError"]
    assert not record.calls()
