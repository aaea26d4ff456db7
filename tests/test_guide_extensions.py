"""The page about extensions: its examples are run with the published servers that they name."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from ruamel.yaml import YAML
from support.clients import installed
from support.gateways import serving
from support.guide_pages import code_blocks, local_config
from support.waiting import brief_pause

PAGE = "extensions"
SIZE, LOAD, USER = (f"anthropic/{key}" for key in ("maxResultSizeChars", "alwaysLoad", "requiresUserInteraction"))


def example(number: int) -> str:
    """Return one of the configurations of the page: the start, apps, skills, hints."""
    return code_blocks(PAGE, "yaml")[number]


async def test_hints_of_the_example_are_in_the_list(tmp_path: Path) -> None:
    async with serving(local_config(example(3), tmp_path), tmp_path) as gateway:
        tools = await gateway.until_listed("bank__get_bank_balance")
        hints = tools["bank__get_bank_balance"]["_meta"]
        assert {key: hints[key] for key in (SIZE, LOAD, USER)} == {SIZE: 100_000, LOAD: True, USER: True}


@pytest.mark.heavy
async def test_apps_of_the_example_are_listed(tmp_path: Path) -> None:
    config = YAML(typ="safe").load(example(1))
    for entry in config["mcpServers"].values():
        [package] = [part for part in entry["args"] if part.startswith("@")]
        assert package in installed.APPS
        name = package.partition("/server-")[2].partition("@")[0]
        entry |= await anyio.to_thread.run_sync(installed.app_server, name)
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    async with serving(path, tmp_path) as gateway:
        tools = await gateway.until_listed("clock-app__get-time", "monitor__get-system-info", within_s=60)
        assert tools["clock-app__get-time"]["_meta"]["ui"]["resourceUri"] == "ui://get-time/mcp-app.html"
        assert tools["monitor__poll-system-stats"]["_meta"]["ui"]["visibility"] == ["app"]


@pytest.mark.heavy
async def test_skills_of_the_example_are_listed(tmp_path: Path) -> None:
    [program] = code_blocks(PAGE, "python")
    (tmp_path / "skills.py").write_text(program, encoding="utf-8")
    config = YAML(typ="safe").load(example(2))
    [_, _, package, _] = config["mcpServers"]["review-skills"]["args"]
    python = await anyio.to_thread.run_sync(installed.venv, "fastmcp", (package,))
    config["mcpServers"]["review-skills"] = {"command": str(python), "args": [str(tmp_path / "skills.py")]}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    async with serving(path, tmp_path) as gateway:
        with anyio.fail_after(60):
            while (await gateway.server("review-skills"))["skills"] != 1:
                await brief_pause()
        skills = (await gateway.rpc("skills/list"))["result"]["skills"]
        assert [skill["uri"] for skill in skills] == ["skill://code-review/SKILL.md"]
