"""Schemas of real servers at pinned versions: installed, asked once over stdio, kept outside the repository."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from corpus.packages import Commands, Listings, described, kept_listings, node_program
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
# No tool is called, so the credentials are never used.
_CREDENTIALS = {
    "GITHUB_PERSONAL_ACCESS_TOKEN": "none",
    "GITLAB_PERSONAL_ACCESS_TOKEN": "none",
    "SLACK_BOT_TOKEN": "none",
    "SLACK_TEAM_ID": "none",
    "GOOGLE_MAPS_API_KEY": "none",
    "NOTION_TOKEN": "none",
    "OBSIDIAN_API_KEY": "none",
}


def commands(scratch: Path) -> Commands:
    """Return what starts each server; its files go to a directory that is thrown away."""
    arguments = {"everything": ["stdio"], "filesystem": [str(scratch)]}
    node, modules = str(installed.node()), installed.npm("corpus", tuple(NODE.values()))
    lines: dict[str, list[str]] = {}
    for server, package in NODE.items():
        lines[server] = [node, str(node_program(modules, package)), *arguments.get(server, [])]
    binaries = installed.venv("corpus", (*PYTHON.values(), *installed.SDK1)).parent
    for server in PYTHON:
        program = {"obsidian": "mcp-obsidian", "duckduckgo": "duckduckgo-mcp-server"}.get(server)
        lines[server] = [str(binaries / (program or f"mcp-server-{server}"))]
    lines["sqlite"] += ["--db-path", str(scratch / "corpus.db")]
    for server, known in (("time", installed.time_server()), ("git", installed.git_server(scratch))):
        lines[server] = [known["command"], *known["args"]]
    del lines["git"][3:]  # a repository is wanted only by calls
    return described(lines, _CREDENTIALS, scratch)


@functools.cache
def listings() -> Listings:
    """Return the tools of every server as it gave them; what cannot be had skips the test."""
    return kept_listings("listings", (*NODE.values(), *PYTHON.values(), *installed.SERVERS, *installed.SDK1), commands)
