"""Files written by real hosts are imported, installed into, read by the host, and restored byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.clients import installed

from gateway.config.load import load

pytestmark = pytest.mark.heavy

_ROOT = Path(__file__).parents[2]
SECRET = "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
BANK = [sys.executable, "-m", "gateway.demo.bank"]
URL = "https://docs.example.test/mcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class RealHost:
    """A host from npm, and what makes it write its file.

    Attributes:
        package: With its version; each is installed apart, as its users have it.
        program: The name of its command.
        process: Adds a server that is a process, by the words after the program.
        remote: The same for one that has an address.
        shows: Lists what its file has; None where that wants a terminal.
    """

    package: str
    program: str
    process: Sequence[str]
    remote: Sequence[str]
    shows: Sequence[str]


HOSTS = {
    "claude-code": RealHost(
        package="@anthropic-ai/claude-code@2.1.330",
        program="claude",
        process=["mcp", "add", "--scope", "user", "bank", "--env", f"API_KEY={SECRET}", "--", *BANK],
        remote=["mcp", "add", "--scope", "user", "--transport", "http", "docs", URL, "--header", "X-Region: eu"],
        shows=["mcp", "get", "typegate"],
    ),
    "codex": RealHost(
        package="@openai/codex@0.169.0",
        program="codex",
        process=["mcp", "add", "bank", "--env", f"API_KEY={SECRET}", "--", *BANK],
        remote=["mcp", "add", "docs", "--url", URL],
        shows=["mcp", "get", "typegate"],
    ),
    "gemini": RealHost(
        package="@google/gemini-cli@0.61.0",
        program="gemini",
        process=["mcp", "add", "-s", "user", "-e", f"API_KEY={SECRET}", "bank", BANK[0], "--", *BANK[1:]],
        remote=["mcp", "add", "-s", "user", "-t", "http", "-H", "X-Region: eu", "docs", URL],
        shows=["mcp", "list"],
    ),
    "qwen": RealHost(
        package="@qwen-code/qwen-code@0.24.4",
        program="qwen",
        process=["mcp", "add", "-s", "user", "-e", f"API_KEY={SECRET}", "bank", BANK[0], "--", *BANK[1:]],
        remote=["mcp", "add", "-s", "user", "-t", "http", "-H", "X-Region: eu", "docs", URL],
        shows=["mcp", "list"],
    ),
    "opencode": RealHost(
        package="opencode-ai@1.18.33",
        program="opencode",
        process=["mcp", "add", "bank", "--env", f"API_KEY={SECRET}", "--", *BANK],
        remote=["mcp", "add", "docs", "--url", URL, "--header", "X-Region=eu"],
        shows=["mcp", "list"],
    ),
}
FILES = {
    "claude-code": ".claude.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
    "qwen": ".qwen/settings.json",
    "opencode": ".config/opencode/opencode.jsonc",
}


def run(command: Sequence[str], home: Path, node: Path) -> str:
    """Run a command in the home directory of a user without other files, and return its output."""
    environment = {
        "HOME": str(home), "PATH": f"{node.parent}:{os.environ['PATH']}", "CI": "1", "NO_COLOR": "1",
        "PYTHONPATH": str(_ROOT), "TYPEGATE_STATE_DIR": str(home / "state"),
        # Without these, hosts would send telemetry, or look for a newer version.
        "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1",
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", HOSTS)
def test_file_made_by_a_host_is_imported_installed_and_restored(name: str, tmp_path: Path) -> None:
    host, home, node = HOSTS[name], tmp_path / "home", installed.node22()
    home.mkdir()
    program = str(installed.npm(f"host-{name}", (host.package,)) / ".bin" / host.program)
    config = tmp_path / "gateway.json"
    for words in (host.process, host.remote):
        run([program, *words], home, node)
    path = home / FILES[name]
    before = path.read_bytes()
    assert SECRET.encode() in before, "the host has written it itself"

    typegate = [sys.executable, "-m", "gateway"]
    run([*typegate, "import", name, "--config", str(config), "--yes"], home, node)
    assert path.read_bytes() == before
    assert SECRET not in config.read_text(encoding="utf-8")
    loaded: Any = load(config, strict=True).servers
    assert set(loaded) == {"bank", "docs"}
    assert [loaded["bank"].command, *loaded["bank"].args] == BANK
    assert loaded["bank"].env == {"API_KEY": SECRET}
    assert (loaded["docs"].type, loaded["docs"].url) == ("http", URL)
    if name != "codex":  # the command of Codex has no option for headers
        assert loaded["docs"].headers == {"X-Region": "eu"}

    printed = run([*typegate, "install", name, "--config", str(config), "--yes"], home, node)
    assert SECRET not in printed
    changed = path.read_bytes()
    assert SECRET.encode() not in changed
    assert b"gateway.demo.bank" not in changed
    assert "typegate" in run([program, *host.shows], home, node), "the host reads what we have written"
    path.write_bytes(changed)  # some hosts count their starts in the same file
    run([*typegate, "uninstall", name], home, node)
    assert path.read_bytes() == before
