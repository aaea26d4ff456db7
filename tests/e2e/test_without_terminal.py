"""Commands that ask for confirmation write nothing without a terminal, and exit cleanly."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
BEFORE = '{"mcpServers": {}}'
HOST_BEFORE = '{"mcpServers": {"bank": {"command": "bank"}}}'
COMMANDS = {
    "import": "import theirs.json --config ours.json --no-check",
    "install": "install cursor --file theirs.json --config ours.json --no-check",
    "add": "add http://127.0.0.1:9/mcp --name up --config ours.json --no-check",
}
# How a shell starts the command, which is `@` here. `@in` and `@out` have a terminal on one side.
WAYS = [
    "@ </dev/null", "@ <&-", "@ >&-", "@ >/dev/null", "@ 2>&-", "@ <&- >&-", "@ <&- >&- 2>&-", "@ | cat", "yes | @",
    "echo y | @", "printf 'y\\ny\\ny' | @ | tail -99", "TERM=dumb @ </dev/null", "@ </dev/full", "(@) </dev/zero",
        "@in", "@out",
]  # fmt: skip


def run(way: str, command: str, folder: Path) -> tuple[int, str]:
    """Run a command in a folder; return its exit code and everything that it said."""
    ours, theirs = pty.openpty()
    program = f"'{sys.executable}' -m gateway {command} --state-dir state"
    line = way.removesuffix("in").removesuffix("out").replace("@", program)
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "HOME": str(folder)}
    try:
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=folder,
            env=environment,
            stdin=theirs if way == "@in" else subprocess.DEVNULL,
            stdout=theirs if way == "@out" else subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    return done.returncode, ((done.stdout or b"") + done.stderr).decode()


def check(way: str, command: str, folder: Path) -> None:
    for name, text in (("ours.json", BEFORE), ("theirs.json", HOST_BEFORE)):
        (folder / name).write_text(text)
    code, printed = run(way, COMMANDS[command], folder)
    assert "Traceback" not in printed, printed
    assert (folder / "ours.json").read_text() == BEFORE
    assert (folder / "theirs.json").read_text() == HOST_BEFORE
    assert code == (0 if way.endswith(("| cat", "| tail -99")) else 1), printed
    if "2>&-" not in way:
        assert "add --yes to write it" in printed


@pytest.mark.heavy
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_written_without_a_terminal(way: str, command: str, tmp_path: Path) -> None:
    check(way, command, tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("way", WAYS)
def test_yes_option_writes_without_a_terminal(way: str, tmp_path: Path) -> None:
    (tmp_path / "ours.json").write_text(BEFORE)
    (tmp_path / "theirs.json").write_text(HOST_BEFORE)
    _, printed = run(way, f"{COMMANDS['import']} --yes", tmp_path)
    assert "Traceback" not in printed, printed
    assert json.loads((tmp_path / "ours.json").read_text())["mcpServers"] == {"bank": {"command": "bank"}}
