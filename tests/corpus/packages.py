"""Servers that are packages of registries, at pinned versions: installed, asked once over stdio, kept outside."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from e2e.processes import raw_stdio
from support.clients import installed

Listings = dict[str, list[dict[str, Any]]]
Commands = Mapping[str, Mapping[str, Any]]
# About thirty servers start, a few at a time; one that has not answered within this time never will.
_DEADLINE_S = 60


def node_program(modules: Path, package: str) -> Path:
    """Return the program of a package, which is named with its version."""
    place = modules / package.rpartition("@")[0]
    programs = json.loads((place / "package.json").read_text(encoding="utf-8"))["bin"]
    return place / (programs if isinstance(programs, str) else next(iter(programs.values())))


def lines_apart(
    kind: str, node: Mapping[str, str], python: Mapping[str, str], programs: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the command line of each server, every package installed apart.

    Together they are given one version of what they share, with which not all of them run.

    Args:
        kind: Part of the names of the installations.
        node: Packages of npm, by server.
        python: Packages of PyPI, by server.
        programs: The names of the programs of the PyPI packages.
    """
    lines: dict[str, list[str]] = {}
    for server, package in node.items():
        modules = installed.npm(f"{kind}-{server}", (package,), scripts=False)
        lines[server] = [str(installed.node22()), str(node_program(modules, package))]
    for server, package in python.items():
        lines[server] = [str(installed.venv(f"{kind}-{server}", (package,)).parent / programs[server])]
    return lines


def described(lines: Mapping[str, Sequence[str]], environment: Mapping[str, str], scratch: Path) -> Commands:
    """Return command lines as servers of a configuration."""
    return {
        server: {"command": line[0], "args": list(line[1:]), "env": dict(environment), "cwd": str(scratch)}
        for server, line in lines.items()
    }


def kept_listings(kind: str, versions: Sequence[str], commands: Callable[[Path], Commands]) -> Listings:
    """Return the tools of these servers as they gave them; what cannot be had skips the test.

    Args:
        kind: Part of the name of what is kept.
        versions: The packages with their versions.
        commands: Returns the command of each server, with a temporary working directory.
    """

    def install(place: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            listings = anyio.run(_ask_all, commands(Path(scratch)))
        (place / "listings.json").write_text(json.dumps(listings), encoding="utf-8")

    kept = installed.kept(kind, versions, install)
    loaded: Listings = json.loads((kept / "listings.json").read_text(encoding="utf-8"))
    return loaded


async def _ask_all(commands: Commands) -> Listings:
    listings: Listings = {}
    turns = anyio.CapacityLimiter(4)

    async def ask(server: str, config: Mapping[str, Any]) -> None:
        async with turns, raw_stdio(config) as process:
            await process.initialize("2025-06-18")
            listings[server] = await process.tools()

    with anyio.fail_after(_DEADLINE_S):
        async with anyio.create_task_group() as group:
            for server, config in commands.items():
                group.start_soon(ask, server, config)
    return dict(sorted(listings.items()))
