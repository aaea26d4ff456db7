"""Durations at a collector: whole at each sending, or what is new, as it is wanted; and bounded."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from opentelemetry.sdk.resources import Resource
from support.collector import Collector, collector

from gateway.config.telemetry import TelemetryConfig
from gateway.instruments.conventions import SERVER_DURATION
from gateway.instruments.duration_export import DurationExport
from gateway.instruments.durations import MAX_NAMED_TOOLS, OTHER, Durations, Key
from gateway.instruments.otel_environment import exporter_of

ECHO = Key("server", "tools/call", "up", "echo")


def export_to(received: Collector, durations: Durations) -> DurationExport:
    exporter = exporter_of(TelemetryConfig(endpoint=received.url), "metrics")
    return DurationExport(durations, exporter, Resource.create({"service.name": "t"}), interval_s=0.05)


async def until(received: Collector, sendings: int) -> list[Any]:
    with anyio.fail_after(15):
        while len(received.points[SERVER_DURATION]) < sendings:
            await anyio.sleep(0.01)
    return received.points[SERVER_DURATION]


async def counts_of_two_sendings(received: Collector) -> list[int]:
    """Two durations before the first one, and one more later."""
    durations = Durations()
    durations.of(*ECHO).record(0.015)
    durations.of(*ECHO).record(400.0)
    export = export_to(received, durations)
    async with anyio.create_task_group() as group:
        group.start_soon(export.run)
        [first] = (await until(received, 1))[0]
        assert (list(first.bucket_counts)[1], list(first.bucket_counts)[-1]) == (1, 1)
        assert (round(first.sum, 3), len(first.explicit_bounds) + 1) == (400.015, len(first.bucket_counts))
        named = {one.key: one.value.string_value for one in first.attributes}
        assert named == {"mcp.method.name": "tools/call", "typegate.server": "up", "gen_ai.tool.name": "echo"}
        group.cancel_scope.cancel()
    durations.of(*ECHO).record(0.015)
    export.close()
    last = received.points[SERVER_DURATION][-1][0]
    assert last.time_unix_nano > first.time_unix_nano
    assert (last.start_time_unix_nano == first.start_time_unix_nano) == (last.count == 3)
    return [first.count, last.count]


async def test_each_sending_has_everything_and_the_last_one_what_came_since() -> None:
    with collector() as received:
        assert await counts_of_two_sendings(received) == [2, 3]


async def test_a_collector_that_wants_differences_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    with collector() as received:
        assert await counts_of_two_sendings(received) == [2, 1]


async def test_tools_beyond_the_busiest_share_one_series_at_the_collector_too() -> None:
    durations = Durations()
    for number in range(MAX_NAMED_TOOLS + 50):
        durations.of(*ECHO._replace(tool=f"t{number}")).record(0.1)
    with collector() as received:
        export_to(received, durations).close()
    [points] = received.points[SERVER_DURATION]
    tools = [one.value.string_value for point in points for one in point.attributes if one.key == "gen_ai.tool.name"]
    assert len(tools) == MAX_NAMED_TOOLS + 1
    assert tools.count(OTHER) == 1
