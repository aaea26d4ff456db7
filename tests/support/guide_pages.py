"""The pages of the manual as tests read them: code blocks, sections, tables, and what commands print."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread
import pytest
from support.gateways import RunningGateway

from gateway.cli import main

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "deploy/guide"
# The address of a gateway in every example.
ORIGIN = "http://127.0.0.1:8765"


def page(name: str) -> str:
    return (GUIDE / f"{name}.md").read_text(encoding="utf-8")


def code_blocks(name: str, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page(name), re.MULTILINE | re.DOTALL)


def section(name: str, title: str) -> str:
    """Return the text below a heading, up to the next heading."""
    [found] = re.findall(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", page(name), re.MULTILINE | re.DOTALL)
    return found


def table(text: str) -> list[list[str]]:
    """Return the cells of the first table in a text, without its header."""
    rows = re.findall(r"^\| (.*) \|$", re.split(r"\n\n(?=\|)", text, maxsplit=1)[-1].partition("\n\n")[0], re.MULTILINE)
    return [row.split(" | ") for row in rows[1:]]


def shown_outputs(name: str) -> Iterator[tuple[list[str], str]]:
    """Yield the arguments of each `typegate` command whose output the page shows, and that output."""
    # One paragraph may separate the two.
    pattern = r"^```console\n([^`]*)^```\n\n(?:(?:[^`#\n].*\n)+\n)?```text\n((?:.*\n)*?)```"
    for commands, output in re.findall(pattern, page(name), re.MULTILINE):
        line = commands.rstrip().splitlines()[-1].rpartition("&& ")[2]
        yield shlex.split(line)[1:], output


def local_config(config: str, tmp_path: Path) -> Path:
    """Write a configuration of a page, with the interpreter of the tests instead of the reader's."""
    path = tmp_path / "mcp.yaml"
    path.write_text(config.replace(".venv/bin/python", sys.executable).replace("port: 8765", "port: 0"))
    return path


async def run(*arguments: str) -> int:
    return await anyio.to_thread.run_sync(main, arguments)


async def check_calls(gateway: RunningGateway, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run each call of a page whose output the page shows, and compare. An ellipsis replaces what a page leaves out."""
    calls = [(arguments, output) for arguments, output in shown_outputs(name) if arguments[0] == "call"]
    assert calls
    for arguments, output in calls:
        await gateway.until_listed(arguments[1])
        failed = "Not called" in output or "Blocked by hook" in output
        assert await run(*arguments, "--url", gateway.url) == int(failed)
        printed = " ".join(capsys.readouterr().out.split())
        assert all(" ".join(part.split()) in printed for part in output.split("…")), printed


def shown_rows(name: str) -> list[list[str]]:
    """Return the cells of the table on a page that is shown as on a terminal."""
    rows = re.findall(r"^│ (.*) │$", page(name), re.MULTILINE)
    return [re.split(r" *│ *", row.strip()) for row in rows]


def symptoms(name: str) -> list[str]:
    """Return the messages in the table of what can go wrong."""
    return [row[0].strip("`") for row in table(section(name, "Troubleshooting"))]
