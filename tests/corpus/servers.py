"""Schemas of real servers at pinned versions: installed, asked once over stdio, kept outside the repository."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
from e2e.processes import raw_stdio
from support.clients import installed

SCOPE = "@modelcontextprotocol/server-"
NODE: Mapping[str, str] = {
    "everything": f"{SCOPE}everything@2026.8.31",
    "filesystem": f"{SCOPE}filesystem@2026.8.31",
    "memory": f"{SCOPE}memory@2026.8.31",
    "thinking": f"{SCOPE}sequential-thinking@2026.8.31",
    "github": f"{SCOPE}github@2025.4.8",
    "gitlab": f"{SCOPE}gitlab@2025.4.25",
    "slack": f"{SCOPE}slack@2025.4.25",
    "maps": f"{SCOPE}google-maps@0.6.2",
    "notion": "@notionhq/notion-mcp-server@2.5.2",
    "playwright": "@playwright/mcp@0.0.83",
}
# These need the SDK's first generation.
PYTHON: Mapping[str, str] = {
    "fetch": "mcp-server-fetch==2026.10.10",
    "sqlite": "mcp-server-sqlite==2025.4.25",
    "calculator": "mcp-server-calculator==0.2.1",
    "obsidian": "mcp-obsidian==0.2.3",
    "duckduckgo": "duckduckgo-mcp-server==0.6.1",
}
# Nothing is called, so nobody looks at them.
_CREDENTIALS = {
    "GITHUB_PERSONAL_ACCESS_TOKEN": "none",
    "GITLAB_PERSONAL_ACCESS_TOKEN": "none",
    "SLACK_BOT_TOKEN": "none",
    "SLACK_TEAM_ID": "none",
    "GOOGLE_MAPS_API_KEY": "none",
    "NOTION_TOKEN": "none",
    "OBSIDIAN_API_KEY": "none",
}
_DEADLINE_S = 60


def commands(scratch: Path) -> dict[str, dict[str, Any]]:
    """Return what starts each server; its files go to a directory that is thrown away."""
    arguments = {"everything": ["stdio"], "filesystem": [str(scratch)]}
    node, modules = str(installed.node()), installed.npm("corpus", tuple(NODE.values()))
    commands: dict[str, list[str]] = {}
    for server, package in NODE.items():
        place = modules / package.rpartition("@")[0]
        programs = json.loads((place / "package.json").read_text(encoding="utf-8"))["bin"]
        program = programs if isinstance(programs, str) else next(iter(programs.values()))
        commands[server] = [node, str(place / program), *arguments.get(server, [])]
    binaries = installed.venv("corpus", (*PYTHON.values(), *installed.SDK1)).parent
    for server in PYTHON:
        program = {"obsidian": "mcp-obsidian", "duckduckgo": "duckduckgo-mcp-server"}.get(server)
        commands[server] = [str(binaries / (program or f"mcp-server-{server}"))]
    commands["sqlite"] += ["--db-path", str(scratch / "corpus.db")]
    described = {server: {"command": line[0], "args": line[1:]} for server, line in commands.items()}
    described |= {"time": installed.time_server(), "git": installed.git_server(scratch)}
    del described["git"]["args"][2:]  # a repository is wanted only by calls
    return {server: {**one, "env": _CREDENTIALS, "cwd": str(scratch)} for server, one in described.items()}


async def ask_all(commands: Mapping[str, Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return what each of these servers lists, asked a few at a time."""
    said: dict[str, list[dict[str, Any]]] = {}
    turns = anyio.CapacityLimiter(4)

    async def ask(server: str, config: Mapping[str, Any]) -> None:
        async with turns, raw_stdio(config) as process:
            await process.initialize("2025-06-18")
            said[server] = await process.tools()

    with anyio.fail_after(_DEADLINE_S):
        async with anyio.create_task_group() as group:
            for server, config in commands.items():
                group.start_soon(ask, server, config)
    return dict(sorted(said.items()))


@functools.cache
def listings() -> dict[str, list[dict[str, Any]]]:
    """Return the tools of every server as it gave them; what cannot be had skips the test."""

    def install(place: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            said = anyio.run(ask_all, commands(Path(scratch)))
        (place / "listings.json").write_text(json.dumps(said), encoding="utf-8")

    versions = (*NODE.values(), *PYTHON.values(), *installed.SERVERS, *installed.SDK1)
    kept = installed.kept("listings", versions, install)
    loaded: dict[str, list[dict[str, Any]]] = json.loads((kept / "listings.json").read_text(encoding="utf-8"))
    return loaded
