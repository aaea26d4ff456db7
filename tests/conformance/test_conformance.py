"""The official conformance suite, through the gateway, against a baseline that may only shrink."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conformance.suite import NEXT, STABLE, run_suite
from gateways import running_gateway

_HERE = Path(__file__).parent
_BASELINE: dict[str, dict[str, str]] = json.loads((_HERE / "baseline.json").read_text())


@pytest.mark.parametrize(("version", "options"), [(STABLE, ()), (NEXT, ()), (NEXT, ("--requirements", "2026-07-28"))])
async def test_only_scenarios_of_the_baseline_fail_and_all_of_them_do(
    tmp_path: Path, version: str, options: tuple[str, ...]
) -> None:
    upstream = {"command": sys.executable, "args": [str(_HERE / "upstream.py")], "prefix": "none", "elicitation": True}
    async with running_gateway(tmp_path, {"conformance": upstream}) as gateway:
        # A suite can "pass" scenarios with unknown tools: they have to be there first.
        await gateway.until_listed("test_simple_text", "test_image_content", "test_tool_with_progress")
        outcome = await run_suite(gateway.url, version=version, options=options)
    failed = {scenario for scenario, passed in outcome.passed.items() if not passed}
    known = set(_BASELINE[" ".join([version, *options])])
    assert failed - known == set(), {name: outcome.failures.get(name) for name in failed - known}
    assert known - failed == set(), "these pass now: take them off the baseline"
