"""The official conformance suite, through the gateway and directly, against a baseline that may only shrink."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from conformance.suite import NEXT, STABLE, run_suite
from support.gateways import running_gateway, terminate
from support.worker_groups import ready, running_workers

# Minutes, most of them the suite's own waits.
pytestmark = pytest.mark.heavy

_HERE = Path(__file__).parent
_PROGRAM = [sys.executable, str(_HERE / "upstream.py")]
_BASELINE: dict[str, dict[str, str]] = json.loads((_HERE / "baseline.json").read_text())
_RUNS: list[tuple[str, tuple[str, ...]]] = [(STABLE, ()), (NEXT, ()), (NEXT, ("--requirements", "2026-07-28"))]


def known_of(version: str, options: tuple[str, ...]) -> set[str]:
    """The scenarios on the baseline of one run."""
    return set(_BASELINE[" ".join([version, *options])])


@asynccontextmanager
async def upstream_over_http() -> AsyncIterator[str]:
    """Run the upstream without a gateway; yields its address."""
    process = await anyio.open_process([*_PROGRAM, "--port", "0"], stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        with anyio.fail_after(20):
            port = int(await process.stdout.receive())
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        await terminate(process)


@pytest.mark.parametrize(("version", "options"), _RUNS)
async def test_exactly_the_baseline_scenarios_fail(tmp_path: Path, version: str, options: tuple[str, ...]) -> None:
    # It may ask the user in the handshake era too: over HTTP, for a process for each session would take its time.
    shared = {"prefix": "none", "elicitation": True}
    async with upstream_over_http() as url:
        stdio = {"command": _PROGRAM[0], "args": _PROGRAM[1:], **shared}
        upstream = stdio if "--requirements" in options else {"type": "http", "url": url, **shared}
        async with running_gateway(tmp_path, {"conformance": upstream}) as gateway:
            # A suite can "pass" scenarios with unknown tools: they have to be there first.
            await gateway.until_listed("test_simple_text", "test_image_content", "slow_compute")
            outcome = await run_suite(gateway.url, version=version, options=options)
    failed = {scenario for scenario, passed in outcome.passed.items() if not passed}
    known = known_of(version, options)
    assert failed - known == set(), {name: outcome.failures.get(name) for name in failed - known}
    assert known - failed == set(), "these pass now: take them off the baseline"


@pytest.mark.parametrize("version", [STABLE, NEXT])
async def test_two_workers_fail_the_same_scenarios_as_one(tmp_path: Path, version: str) -> None:
    async with (
        upstream_over_http() as url,
        running_workers(
            tmp_path, {"conformance": {"type": "http", "url": url, "prefix": "none", "elicitation": True}}
        ) as gateway,
    ):
        await ready(gateway)
        outcome = await run_suite(gateway.url, version=version, options=())
    failed = {scenario for scenario, passed in outcome.passed.items() if not passed}
    assert failed == known_of(version, ()), {name: outcome.failures.get(name) for name in failed}


@pytest.mark.parametrize(("version", "options"), [run for run in _RUNS if known_of(*run)])
async def test_baseline_scenarios_fail_without_the_gateway_too(version: str, options: tuple[str, ...]) -> None:
    async with upstream_over_http() as url:
        outcome = await run_suite(url, version=version, options=options)
    failed = {scenario for scenario, passed in outcome.passed.items() if not passed}
    assert known_of(version, options) - failed == set(), f"they fail only behind the gateway; directly: {failed}"


@pytest.mark.parametrize("through_gateway", [False, True], ids=["directly", "through the gateway"])
async def test_stream_closed_by_the_server_during_a_call_is_resumed(tmp_path: Path, through_gateway: bool) -> None:
    options = ("--scenario", "server-sse-polling", "--spec-version", "2025-11-25")
    async with upstream_over_http() as url:
        if through_gateway:
            upstream = {"type": "http", "url": url, "prefix": "none", "elicitation": True}
            async with running_gateway(tmp_path, {"conformance": upstream}) as gateway:
                await gateway.until_listed("test_reconnection")
                outcome = await run_suite(gateway.url, version=NEXT, options=options)
        else:
            outcome = await run_suite(url, version=NEXT, options=options)
    checks = outcome.statuses["server-sse-polling"]
    wanted = {"server-sse-priming-event", "server-sse-retry-field", "server-sse-disconnect-resume"}
    assert {name: checks.get(name) for name in wanted} == dict.fromkeys(wanted, "SUCCESS"), outcome.output
