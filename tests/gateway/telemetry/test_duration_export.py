"""Exported durations: cumulative or delta temporality, and bounded."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from opentelemetry.sdk.resources import Resource
from support.collector import Collector, collector
from support.waiting import brief_pause

from gateway.calls.call_stats import Durations
from gateway.config.operation_config import TelemetryConfig
from gateway.telemetry.trace_context import MAX_NAMED_TOOLS, OTHER, SERVER_DURATION, Key
from gateway.telemetry.tracing import DurationExport, create_exporter

ECHO = Key("server", "tools/call", "up", "echo")


def export_to(received: Collector) -> DurationExport:
    exporter = create_exporter(TelemetryConfig(endpoint=received.url), "metrics")
    return DurationExport(exporter, Resource.create({"service.name": "t"}), interval_ms=200)


async def until(received: Collector, sendings: int) -> list[Any]:
    with anyio.fail_after(25):
        while len(received.points[SERVER_DURATION]) < sendings:
            await brief_pause()
    return received.points[SERVER_DURATION]


async def counts_of_two_exports(received: Collector) -> list[int]:
    """Export two durations, and a third one at the end."""
    export = export_to(received)
    durations = Durations(export.exporter_of)
    durations.histogram(*ECHO).record(0.015)
    durations.histogram(*ECHO).record(400.0)
    [first] = (await until(received, 1))[0]
    assert (list(first.bucket_counts)[1], list(first.bucket_counts)[-1]) == (1, 1)
    assert (round(first.sum, 3), len(first.explicit_bounds) + 1) == (400.015, len(first.bucket_counts))
    named = {one.key: one.value.string_value for one in first.attributes}
    assert named == {"mcp.method.name": "tools/call", "typegate.server": "up", "gen_ai.tool.name": "echo"}
    durations.histogram(*ECHO).record(0.015)
    export.close()
    last = received.points[SERVER_DURATION][-1][0]
    assert last.time_unix_nano > first.time_unix_nano
    assert (last.start_time_unix_nano == first.start_time_unix_nano) == (last.count == 3)
    return [first.count, last.count]


async def test_every_export_is_cumulative_and_the_last_one_complete() -> None:
    with collector() as received:
        assert await counts_of_two_exports(received) == [2, 3]


async def test_delta_temporality_is_honored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    with collector() as received:
        assert await counts_of_two_exports(received) == [2, 1]


async def test_tools_beyond_the_limit_share_one_series_at_the_collector() -> None:
    with collector() as received:
        export = export_to(received)
        durations = Durations(export.exporter_of)
        for number in range(MAX_NAMED_TOOLS + 50):
            durations.histogram(*ECHO._replace(tool=f"t{number}")).record(0.1)
        export.close()
    points = received.points[SERVER_DURATION][-1]
    tools = [one.value.string_value for point in points for one in point.attributes if one.key == "gen_ai.tool.name"]
    assert len(tools) == MAX_NAMED_TOOLS + 1
    assert tools.count(OTHER) == 1
    assert [point.count for point in points if OTHER in {a.value.string_value for a in point.attributes}] == [50]
