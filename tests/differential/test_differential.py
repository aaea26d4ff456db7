"""Everything that works with a published server directly also works through the gateway."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from differential.comparison import Reports, compare, report_text
from differential.packages import SERVERS

# One from each registry.
_SMALL = ("filesystem", "time")


def differences(reports: Reports) -> list[str]:
    return [
        f"[{client}] {difference}"
        for report in reports.values()
        for client, tally in report.tallies.items()
        for difference in tally.differences
    ]


async def test_two_published_servers_list_and_answer_the_same_through_the_gateway(tmp_path: Path) -> None:
    small = [one for one in SERVERS if one.alias in _SMALL]
    reports = await compare(small, tmp_path, ("typescript-1",))  # the strictest client
    assert sum(tally.calls for report in reports.values() for tally in report.tallies.values()) > 15
    assert differences(reports) == []


@pytest.mark.heavy
async def test_some_published_servers_list_and_answer_the_same_through_the_gateway(tmp_path: Path) -> None:
    some = SERVERS[::24]
    assert {one.registry for one in some} == {"npm", "pypi"}
    reports = await compare(some, tmp_path)
    assert sum(tally.tools for report in reports.values() for tally in report.tallies.values()) > 60
    assert differences(reports) == []


@pytest.mark.exhaustive
async def test_all_published_servers_list_and_answer_the_same_through_the_gateway(tmp_path: Path) -> None:
    assert len(SERVERS) >= 60
    reports = await compare(SERVERS, tmp_path)
    await anyio.Path(tmp_path / "report.md").write_text(report_text(reports), encoding="utf-8")
    assert sum(tally.tools for report in reports.values() for tally in report.tallies.values()) > 3_000
    assert differences(reports) == []
