"""Which traces are recorded, decided once where they begin, by whoever is configured to decide."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.collector import collector

from gateway.config.telemetry import TelemetryConfig
from gateway.instruments.current import CURRENT
from gateway.instruments.durations import Durations, Key
from gateway.instruments.trace_context import parents_of
from gateway.instruments.tracing import Span, Tracing, UnrecordedSpan

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-2] + "00"
HALF = 1 << 63


@contextmanager
def tracing(**settings: Any) -> Iterator[Tracing]:
    with collector() as received:
        made = Tracing(TelemetryConfig(endpoint=received.url, **settings), Durations(), instance="i")
        try:
            yield made
        finally:
            made.close()


def begun(made: Tracing, parent: str | None = None) -> Span | UnrecordedSpan:
    """The span of one request."""
    parents = parents_of({"traceparent": parent} if parent is not None else None, {})
    return made.unrecorded(parents) or made.of_caller("tools/call", parents, {})


def lower_part(span: Span | UnrecordedSpan) -> int:
    return int(span.trace_id[16:], 16)


def test_of_traces_that_begin_here_a_part_is_recorded_and_others_can_tell_by_the_id() -> None:
    with tracing(sample_ratio=0.5) as made:
        spans = [begun(made) for _ in range(400)]
    recorded = [span for span in spans if span.recorded]
    # Nine standard deviations of 400 throws.
    assert 110 < len(recorded) < 290
    assert all((lower_part(span) < HALF) == span.recorded for span in spans)
    assert len({span.trace_id for span in spans}) == 400


@pytest.mark.parametrize(("ratio", "recorded"), [(0.0, False), (1.0, True)])
def test_none_and_all_are_recorded_where_that_is_asked_for(ratio: float, recorded: bool) -> None:
    with tracing(sample_ratio=ratio) as made:
        assert {begun(made).recorded for _ in range(50)} == {recorded}


def test_a_trace_of_a_caller_is_recorded_where_the_caller_records_it() -> None:
    with tracing(sample_ratio=0.0) as made:
        assert begun(made, PARENT).recorded
        assert begun(made, PARENT).trace_id == PARENT[3:35]
    with tracing(sample_ratio=1.0) as made:
        span = begun(made, UNSAMPLED)
        assert not span.recorded
        # Nothing is added: the caller's own goes on, and lines of the log name its trace.
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
def test_samplers_of_the_environment_decide_unless_the_file_does(
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


def test_without_the_sdk_at_all_ids_are_passed_on_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with tracing() as made:
        span = begun(made)
        assert not span.recorded
        assert int(span.trace_id, 16)


def test_a_collector_that_is_gone_does_not_hold_up_the_end() -> None:
    with collector() as gone:
        pass
    durations = Durations()
    durations.of(*Key("server", "tools/call")).record(0.1)
    made = Tracing(TelemetryConfig(endpoint=gone.url), durations, instance="i")
    with begun(made):
        pass
    began_s = time.monotonic()
    made.close()
    # Left alone, spans and metrics are tried again for ten seconds each.
    assert time.monotonic() - began_s < 4
