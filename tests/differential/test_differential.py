"""What works when a client connects to a published server directly works through the gateway."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from differential.comparison import Reports, compare, report_text
from differential.packages import SERVERS

# Of both registries and both generations of the Python SDK, with calls on the servers themselves.
_SMALL = ("filesystem", "memory", "time", "calculator", "git", "hello")


def differences(reports: Reports) -> list[str]:
    return [
        f"[{client}] {difference}"
        for report in reports.values()
        for client, tally in report.tallies.items()
        for difference in tally.differences
    ]


async def test_lists_and_calls_of_six_published_servers_are_the_same_through_the_gateway(tmp_path: Path) -> None:
    small = [one for one in SERVERS if one.alias in _SMALL]
    reports = await compare(small, tmp_path, ("python", "typescript-1"))
    assert sum(tally.calls for report in reports.values() for tally in report.tallies.values()) > 150
    assert differences(reports) == []


@pytest.mark.heavy
async def test_lists_and_calls_of_all_published_servers_are_the_same_through_the_gateway(tmp_path: Path) -> None:
    assert len(SERVERS) >= 60
    reports = await compare(SERVERS, tmp_path)
    await anyio.Path(tmp_path / "report.md").write_text(report_text(reports), encoding="utf-8")
    assert sum(tally.tools for report in reports.values() for tally in report.tallies.values()) > 3_000
    assert differences(reports) == []
