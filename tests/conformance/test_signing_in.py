"""The client scenarios of the conformance suite, with the gateway as the client."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conformance.client_suite import extension_scenarios, required_scenarios, run_scenarios
from conformance.suite import NEXT

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(sys.platform != "linux", reason="Node of Linux is installed for it"),
]

BASELINE = json.loads(Path(__file__).with_name("baseline.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("version", "count"), [("2025-11-25", 14), ("2026-07-28", 25)])
async def test_every_required_authorization_scenario_passes(version: str, count: int) -> None:
    scenarios = await required_scenarios(version)
    assert len(scenarios) == count
    failures = await run_scenarios(scenarios, version=version)
    assert failures == {}


async def test_extension_scenarios_match_the_baseline() -> None:
    expected = set(BASELINE[f"{NEXT} client extensions"])
    scenarios = await extension_scenarios("2026-07-28")
    assert expected < set(scenarios)
    failures = await run_scenarios(scenarios, version=None)
    assert set(failures) == expected, failures
