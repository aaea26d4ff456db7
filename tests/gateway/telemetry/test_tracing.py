"""Trace sampling, decided once at the root by the configured sampler."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.collector import collector

from gateway.calls.call_stats import Durations
from gateway.config.operation_config import TelemetryConfig
from gateway.telemetry.trace_context import CURRENT, Key, parents_of
from gateway.telemetry.tracing import Span, Tracing, UnrecordedSpan

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-2] + "00"
HALF = 1 << 63


@contextmanager
def tracing(**settings: Any) -> Iterator[Tracing]:
    with collector() as received:
        made = Tracing(TelemetryConfig(endpoint=received.url, **settings), instance="i")
        try:
            yield made
        finally:
            made.close()


def begun(made: Tracing, parent: str | None = None) -> Span | UnrecordedSpan:
    """The span of one request."""
    parents = parents_of({"traceparent": parent} if parent is not None else None, {})
    return made.unrecorded(parents) or made.start_server_span("tools/call", parents, {})


def lower_part(span: Span | UnrecordedSpan) -> int:
    return int(span.trace_id[16:], 16)


def test_root_traces_are_sampled_by_trace_id() -> None:
    with tracing(sample_ratio=0.5) as made:
        spans = [begun(made) for _ in range(400)]
    recorded = [span for span in spans if span.recorded]
    # Nine standard deviations of 400 throws.
    assert 110 < len(recorded) < 290
    assert all((lower_part(span) < HALF) == span.recorded for span in spans)
    assert len({span.trace_id for span in spans}) == 400


@pytest.mark.parametrize(("ratio", "recorded"), [(0.0, False), (1.0, True)])
def test_sample_ratios_zero_and_one_are_exact(ratio: float, recorded: bool) -> None:
    with tracing(sample_ratio=ratio) as made:
        assert {begun(made).recorded for _ in range(50)} == {recorded}


def test_sampled_parent_is_followed() -> None:
    with tracing(sample_ratio=0.0) as made:
        assert begun(made, PARENT).recorded
        assert begun(made, PARENT).trace_id == PARENT[3:35]
    with tracing(sample_ratio=1.0) as made:
        span = begun(made, UNSAMPLED)
        assert not span.recorded
        # The caller's trace context is forwarded unchanged, and lines of the log name its trace.
        assert (span.fields, span.trace_id, span.span_id) == ({}, UNSAMPLED[3:35], UNSAMPLED[36:52])
        with span:
            assert CURRENT.get() is span
        assert CURRENT.get() is None


@pytest.mark.parametrize(
    ("sampler", "argument", "root", "below_unsampled"),
    [
        ("parentbased_always_on", "", True, False),
        ("parentbased_always_off", "", False, False),
        ("parentbased_traceidratio", "0", False, False),
        ("parentbased_traceidratio", "many", True, False),
        ("always_on", "", True, True),
        ("always_off", "", False, False),
        ("traceidratio", "1", True, True),
    ],
)
def test_environment_sampler_is_used_unless_the_file_sets_one(
    monkeypatch: pytest.MonkeyPatch, sampler: str, argument: str, root: bool, below_unsampled: bool
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    with tracing() as made:
        first, second = begun(made), begun(made, UNSAMPLED)
        assert (first.recorded, second.recorded) == (root, below_unsampled)
        assert second.trace_id == UNSAMPLED[3:35]
        flag = "01" if root else "00"
        assert first.fields["traceparent"] == f"00-{first.trace_id}-{first.span_id}-{flag}"
    with tracing(sample_ratio=1.0 - root) as made:
        assert begun(made).recorded is not root


def test_trace_ids_are_propagated_without_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with tracing() as made:
        span = begun(made)
        assert not span.recorded
        assert int(span.trace_id, 16)


def test_unreachable_collector_does_not_delay_shutdown() -> None:
    with collector() as gone:
        pass
    made = Tracing(TelemetryConfig(endpoint=gone.url), instance="i")
    assert made.duration_export is not None
    Durations(made.duration_export.exporter_of).histogram(*Key("server", "tools/call")).record(0.1)
    with begun(made):
        pass
    began_s = time.monotonic()
    made.close()
    # Left alone, spans and metrics are tried again for ten seconds each.
    assert time.monotonic() - began_s < 4
