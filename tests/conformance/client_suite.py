"""Runs the official conformance suite's client side with the whole gateway as the client."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from conformance.suite import NEXT
from ruamel.yaml import YAML
from support.clients.installed import node22, npm

_CLIENT = Path(__file__).with_name("signing_in.py")
# Each scenario is a gateway and a few servers of Node: more at a time only wait for each other.
_AT_A_TIME = 2
_SCENARIO_S = 60


def _package() -> Path:
    modules = npm("conformance", (f"@modelcontextprotocol/conformance@{NEXT}",))
    return Path(modules) / "@modelcontextprotocol/conformance"


async def _requirements(version: str) -> dict[str, Any]:
    package = await anyio.to_thread.run_sync(_package)
    text = (package / f"requirements/{version}.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = YAML(typ="safe").load(text)
    return found


async def required_scenarios(version: str) -> list[str]:
    """The scenarios of authorization that a revision requires of clients."""
    return [name for name in (await _requirements(version))["client"] if name.startswith("auth/")]


async def extension_scenarios(version: str) -> list[str]:
    """Those of extensions, which no revision requires."""
    rows = (await _requirements(version))["not_scored"]
    return [row["scenario"] for row in rows if row["leg"] == "client" and row["reason"] == "extension"]


def _checks(results: Path) -> list[dict[str, Any]]:
    return [check for file in results.glob("**/checks.json") for check in json.loads(file.read_text())]


async def run_scenarios(scenarios: Sequence[str], *, version: str | None) -> dict[str, list[str]]:
    """Run scenarios; returns what failed in each that did not pass: one that checked nothing has not."""
    package = await anyio.to_thread.run_sync(_package)
    failures: dict[str, list[str]] = {}
    places = anyio.CapacityLimiter(_AT_A_TIME)

    async def run(name: str) -> None:
        async with places:
            with tempfile.TemporaryDirectory() as results:
                command = [str(node22()), str(package / "dist/index.js"), "client", "--scenario", name]
                command += ["--command", f"{sys.executable} {_CLIENT}", "--output-dir", results]
                command += ["--timeout", str(_SCENARIO_S * 1000), *(["--spec-version", version] if version else [])]
                with anyio.fail_after(_SCENARIO_S + 10):
                    done = await anyio.run_process(command, check=False, cwd=results)
                checks = await anyio.to_thread.run_sync(_checks, Path(results))
            wrong = [
                f"{one['id']}: {one.get('errorMessage')}" for one in checks if one["status"] in ("FAILURE", "WARNING")
            ]
            if wrong or not any(one["status"] == "SUCCESS" for one in checks):
                output = (done.stdout + done.stderr).decode(errors="replace")
                failures[name] = [*wrong, output[-3000:]]

    async with anyio.create_task_group() as group:
        for name in scenarios:
            group.start_soon(run, name)
    return failures
