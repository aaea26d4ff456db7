"""Definitions of the packages in `training/packages.txt`: installed apart, asked over stdio, kept outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import IO, Any

import pytest
from corpus.packages import Listings, node_program
from support.clients import installed

_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+\b")
# Prints the programs of a package.
_PROGRAMS = """
import importlib.metadata, sys
points = importlib.metadata.distribution(sys.argv[1]).entry_points
print(*(point.name for point in points if point.group == "console_scripts"))
"""
# A server that has not answered within this time waits for something else.
_DEADLINE_S = 40
# Each names what it still wants before it ends; some name one variable at a time.
_ATTEMPTS = 5


def training_listings(packages: Sequence[Sequence[str]]) -> Listings:
    """Return the tools of each package that can be asked, by the name of its server.

    Args:
        packages: For each the name of its server, `npm` or `pip`, the package with its version, and its arguments.
    """
    return {server: tools for server, *package in packages if (tools := _listing(server, *package))}


def _listing(server: str, registry: str, package: str, *arguments: str) -> list[dict[str, Any]]:
    """Return the tools of a package; none where it does not start, since the others are enough."""

    def install(place: Path) -> None:
        tools: list[dict[str, Any]] = []
        try:
            tools = _tools_of([*_program(server, registry, package), *arguments])
        except (OSError, LookupError, ValueError, pytest.skip.Exception) as error:
            print(f"{server}: {type(error).__name__}: {error}", flush=True)
        (place / "tools.json").write_text(json.dumps(tools), encoding="utf-8")

    kept = installed.kept(f"training-tools-{server}", [registry, package, *arguments], install)
    tools: list[dict[str, Any]] = json.loads((kept / "tools.json").read_text(encoding="utf-8"))
    return tools


def _program(server: str, registry: str, package: str) -> list[str]:
    if registry == "npm":
        modules = installed.npm(f"training-{server}", (package,), scripts=False)
        return [str(installed.node22()), str(node_program(modules, package))]
    # Most of them need the first generation of the SDK, and do not say so; some need the second.
    try:
        python = installed.venv(f"training-{server}", (package, "mcp<2"))
    except pytest.skip.Exception:
        python = installed.venv(f"training-{server}", (package,))
    name = package.partition("==")[0]
    programs = subprocess.run(
        [python, "-c", _PROGRAMS, name], capture_output=True, check=True, text=True
    ).stdout.split()
    return [str(python.parent / min(programs, key=lambda one: (one != name, "mcp" not in one, len(one))))]


def _tools_of(command: Sequence[str]) -> list[dict[str, Any]]:
    """Return the tools of a server; what it wants from its environment is made up, once it has said so."""
    environment: dict[str, str] = {}
    for _ in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as complaint:
            tools = _tools(command, {**os.environ, "HOME": scratch, **environment}, scratch, complaint)
            if tools:
                return tools
            complaint.seek(0)
            wanted = set(_VARIABLE.findall(complaint.read().decode("utf-8", "replace"))) - environment.keys()
        if not wanted:
            break
        environment |= {name: _made_up(name) for name in wanted}
    raise LookupError("lists no tools")


def _tools(
    command: Sequence[str], environment: Mapping[str, str], folder: str, complaint: IO[bytes]
) -> list[dict[str, Any]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=complaint, env=environment, cwd=folder) as process:
        watchdog = Timer(_DEADLINE_S, process.kill)
        watchdog.start()
        try:
            return _listed(process)
        except (OSError, LookupError):
            return []  # it has ended, or does not list tools
        finally:
            watchdog.cancel()
            process.kill()


def _listed(process: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    client = {"name": "bench", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    _answer(process, 0, "initialize", hello)
    _send(process, {"method": "notifications/initialized"})
    tools: list[dict[str, Any]] = []
    page: Mapping[str, Any] = {"nextCursor": None}
    while "nextCursor" in page:
        cursor = page["nextCursor"]
        page = _answer(process, len(tools) + 1, "tools/list", {"cursor": cursor} if cursor else {})
        tools += page["tools"]
    return tools


def _answer(process: subprocess.Popen[bytes], number: int, method: str, params: Mapping[str, Any]) -> Any:
    assert process.stdout is not None
    _send(process, {"id": number, "method": method, "params": params})
    for line in process.stdout:
        try:
            message = json.loads(line)
        except ValueError:
            continue  # some greet on the stream of their messages
        if isinstance(message, dict) and message.get("id") == number and "method" not in message:
            return message["result"]
    raise LookupError("ended")


def _send(process: subprocess.Popen[bytes], message: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    process.stdin.flush()


def _made_up(name: str) -> str:
    if any(part in name for part in ("URL", "HOST", "ENDPOINT", "DOMAIN")):
        return "https://none.example"
    return "8080" if "PORT" in name else "a@example.test" if "EMAIL" in name else "none-12345"
