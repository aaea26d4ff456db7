"""Durations as metrics, sent to a collector; calls pay nothing for it, since what is sent has been counted anyway."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final

import anyio

from gateway.instruments import conventions
from gateway.instruments.durations import Cell, Durations, Key

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint, MetricExporter, MetricsData
    from opentelemetry.sdk.resources import Resource

log = logging.getLogger(__name__)

_NAMES: Final = {"server": conventions.SERVER_DURATION, "client": conventions.CLIENT_DURATION}


class DurationExport:
    """Sends the durations that were counted, as histograms."""

    def __init__(
        self, durations: Durations, exporter: MetricExporter, resource: Resource, *, interval_s: float
    ) -> None:
        """Prepare it; nothing is sent before `run`.

        Args:
            durations: What is sent.
            exporter: Sends it.
            resource: What the collector knows this process as.
            interval_s: How often.
        """
        self._durations = durations
        self._resource = resource
        self._interval_s = interval_s
        self._exporter = exporter
        # As the exporter reads it for instruments of the SDK.
        wanted = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").strip().upper()
        self._delta = wanted in ("DELTA", "LOWMEMORY")
        self._began_ns = time.time_ns()
        # What was sent before, where only the difference is sent.
        self._sent: dict[Key, tuple[list[int], float]] = {}

    async def run(self) -> None:
        """Send until cancelled."""
        sending: threading.Thread | None = None
        while True:
            await anyio.sleep(self._interval_s)
            # One at a time: the exporter tries again for ten seconds, and logs what fails.
            if sending is None or not sending.is_alive():
                # A daemon, which ends with the process; a worker thread would hold up its end.
                sending = threading.Thread(target=self._send, args=(self._data(),), daemon=True)
                sending.start()

    def close(self) -> None:
        """Send what is left, bounded, and stop."""
        self._send(self._data())
        self._exporter.shutdown()

    def _send(self, data: MetricsData) -> None:
        try:
            self._exporter.export(data)
        except Exception:  # boundary: whatever a collector does, the gateway serves on
            log.exception("metrics could not be sent")

    def _data(self) -> MetricsData:
        from opentelemetry.sdk.metrics import export
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        now_ns = time.time_ns()
        points: dict[str, list[HistogramDataPoint]] = {name: [] for name in _NAMES.values()}
        for key, cell in self._durations.series():
            counts, total_s = self._unsent(key, cell) if self._delta else (list(cell.counts), cell.total_s)
            if any(counts):
                points[_NAMES[key.side]].append(
                    export.HistogramDataPoint(
                        attributes=_attributes_of(key),
                        start_time_unix_nano=self._began_ns,
                        time_unix_nano=now_ns,
                        count=sum(counts),
                        sum=total_s,
                        bucket_counts=counts,
                        explicit_bounds=conventions.BUCKETS_S,
                        # Optional in the protocol, and not counted.
                        min=None,  # type: ignore[arg-type] # declared as a float
                        max=None,  # type: ignore[arg-type] # as above
                    )
                )
        if self._delta:
            self._began_ns = now_ns
        temporality = export.AggregationTemporality
        metrics = [
            export.Metric(
                name=name,
                description="",
                unit="s",
                data=export.Histogram(
                    data_points=found,
                    aggregation_temporality=temporality.DELTA if self._delta else temporality.CUMULATIVE,
                ),
            )
            for name, found in points.items()
            if found
        ]
        scope = export.ScopeMetrics(scope=InstrumentationScope("typegate"), metrics=metrics, schema_url="")
        return export.MetricsData(
            resource_metrics=[export.ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")]
        )

    def _unsent(self, key: Key, cell: Cell) -> tuple[list[int], float]:
        counts, total_s = list(cell.counts), cell.total_s
        sent = self._sent.get(key)
        self._sent[key] = (counts, total_s)
        if sent is None:
            return counts, total_s
        return [now - before for now, before in zip(counts, sent[0], strict=True)], total_s - sent[1]


def _attributes_of(key: Key) -> dict[str, str]:
    named = {
        conventions.METHOD: key.method, conventions.SERVER: key.server, conventions.TOOL: key.tool,
        conventions.ERROR_TYPE: key.error,
    }  # fmt: skip
    return {name: value for name, value in named.items() if value}
