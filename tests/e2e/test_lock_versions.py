"""Real servers locked at one published version and started at a later one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.test_lock import typegate
from support.clients import installed

SCOPE = "@modelcontextprotocol/server-"
# Server, the version that was approved, a later one, and arguments.
VERSIONS = {
    "files": ("filesystem", "2025.3.28", "2026.8.31", ("/tmp",)),
    "memory": ("memory", "2025.4.25", "2026.8.31", ()),
    "every": ("everything", "2025.4.28", "2026.8.31", ("stdio",)),
}


def configured(tmp_path: Path, modules: Path, *, later: bool) -> str:
    """Write the configuration for one of the versions; the same command, as if it had been updated in its place."""
    place, servers = tmp_path / "servers", {}
    place.mkdir(exist_ok=True)
    for alias, (_, _, _, arguments) in VERSIONS.items():
        # By way of a file of one name, so that what is started is the same program.
        package = modules / f"{alias}-{'later' if later else 'before'}"
        started = place / f"{alias}.mjs"
        started.write_text(f"await import({json.dumps(str(package / 'dist' / 'index.js'))});")
        env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}
        servers[alias] = {"command": str(installed.node()), "args": [str(started), *arguments], "env": env}
    config = tmp_path / "gw.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    return str(config)


@pytest.mark.heavy
def test_changes_between_versions_of_three_real_servers_are_held_and_reported(tmp_path: Path) -> None:
    packages = [
        f"{alias}-{word}@npm:{SCOPE}{name}@{version}"
        for alias, (name, before, after, _) in VERSIONS.items()
        for word, version in (("before", before), ("later", after))
    ]
    modules = installed.npm("locked", tuple(packages))
    config = configured(tmp_path, modules, later=False)
    assert typegate("lock", "--config", config).returncode == 0
    assert typegate("check", "--config", config, "--frozen").returncode == 0
    configured(tmp_path, modules, later=True)
    assert typegate("check", "--config", config, "--frozen").returncode == 3
    done = typegate("diff", "--config", config, "--json")
    rows: list[dict[str, Any]] = json.loads(done.stdout)["changes"]
    by_server = {alias: [row for row in rows if row["server"] == alias] for alias in VERSIONS}
    assert all(by_server.values())
    assert {row["kind"] for row in rows} >= {"tools", "prompts", "resourceTemplates", "instructions"}
    for row in rows:
        risky = {"added", "text", "widening", "identity"} & set(row["classes"])
        assert row["state"] == ("held" if risky else "warned"), row["wrapper"]
        assert row["difference"], row["wrapper"]
        assert row["suspicion"] < 0.6
    shown = typegate("diff", "--config", config)
    assert "files__read_media_file  [added]  held" in shown.stdout
    assert typegate("lock", "--config", config).returncode == 0
    assert typegate("check", "--config", config, "--frozen").returncode == 0
