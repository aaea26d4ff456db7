"""Run the official conformance suite against an address, and return the scenarios that passed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
from support.clients.installed import node22, npm

STABLE = "0.1.16"
NEXT = "0.2.0-alpha.12"  # this version has no tag of its own; it is the first that knows 2026-07-28


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The results of a run of the suite."""

    passed: dict[str, bool]
    failures: dict[str, list[str]]  # scenario -> one line for each failed check
    statuses: dict[str, dict[str, str]]  # scenario -> id of a check -> how it ended
    output: str


def _program(version: str) -> list[str]:
    modules = npm("conformance", (f"@modelcontextprotocol/conformance@{version}",))
    return [str(node22()), str(modules / "@modelcontextprotocol/conformance/dist/index.js")]


def _read(results: Path) -> tuple[dict[str, bool], dict[str, list[str]], dict[str, dict[str, str]]]:
    passed: dict[str, bool] = {}
    statuses: dict[str, dict[str, str]] = {}
    failures: dict[str, list[str]] = {}
    for file in sorted(results.glob("**/checks.json")):
        # The directory is server-<scenario>-<year>-<month>-<day>T<…>Z
        scenario = file.parent.name.removeprefix("server-").rpartition("T")[0].rsplit("-", 3)[0]
        checks = json.loads(file.read_text(encoding="utf-8"))
        wrong = [f"{one['id']}: {one.get('errorMessage')}" for one in checks if one["status"] == "FAILURE"]
        good = any(one["status"] in ("SUCCESS", "WARNING") for one in checks)
        statuses[scenario] = {one["id"]: one["status"] for one in checks}
        passed[scenario] = good and not wrong
        if wrong:
            failures[scenario] = wrong
    return passed, failures, statuses


async def run_suite(
    url: str,
    *,
    version: str = STABLE,
    options: Sequence[str] = (),
    deadline_s: float = 300,
) -> Outcome:
    """Run the server scenarios of one version of the suite.

    A scenario passed when it made a check and none failed: one that only skipped did not.

    Args:
        url: The Streamable HTTP endpoint.
        version: `STABLE` or `NEXT`.
        options: More options of the suite, such as `--scenario tools-list`, `--suite all` or
            `--requirements 2026-07-28`.
        deadline_s: The time for the whole run.
    """
    program = await anyio.to_thread.run_sync(_program, version)
    with tempfile.TemporaryDirectory() as results:
        command = [*program, "server", "--url", url, "--output-dir", results, *options]
        with anyio.fail_after(deadline_s):
            done = await anyio.run_process(command, check=False, cwd=results)
        passed, failures, statuses = _read(Path(results))
    output = (done.stdout + done.stderr).decode(errors="replace")
    if not passed:
        raise AssertionError(f"the suite made no check: {output[-4000:]}")
    return Outcome(passed=passed, failures=failures, statuses=statuses, output=output)
