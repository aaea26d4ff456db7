"""Duration histograms: counts, names, and monotonicity."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.call_stats import Durations
from gateway.telemetry.trace_context import BUCKETS_S, MAX_NAMED_TOOLS, OTHER, Key


def of(tool: str, **members: str) -> Key:
    return Key("server", "tools/call", "up", tool, **members)


def test_duration_is_counted_in_the_smallest_fitting_bucket() -> None:
    durations = Durations()
    for seconds in (0.0, 0.01, 0.011, 300.0, 301.0):
        durations.histogram(*of("a")).record(seconds)
    [(_, cell)] = durations.series()
    assert (cell.counts[0], cell.counts[1], cell.counts[-2], cell.counts[-1]) == (2, 1, 1, 1)
    assert len(cell.counts) == len(BUCKETS_S) + 1
    assert round(cell.total_s, 3) == 601.021


def test_busiest_tools_have_own_series_and_the_rest_share_one() -> None:
    durations = Durations()
    for number in range(MAX_NAMED_TOOLS + 50):
        for _ in range(2 if number >= 50 else 1):
            durations.histogram(*of(f"t{number}")).record(0.1)
    series = {key.tool: sum(cell.counts) for key, cell in durations.series()}
    assert len(series) == MAX_NAMED_TOOLS + 1
    assert series[OTHER] == 50
    assert "t0" not in series
    # One that has become busy later stays where its calls were counted so far.
    for _ in range(100):
        durations.histogram(*of("t0")).record(0.1)
    assert {key.tool: sum(cell.counts) for key, cell in durations.series()}[OTHER] == 150


@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from(["", "tool_error"]), st.booleans()), max_size=60))
def test_counts_never_decrease_and_none_is_lost(steps: list[tuple[int, str, bool]]) -> None:
    durations, seen = Durations(), dict[Key, int]()
    for count, (number, error, looks) in enumerate(steps, 1):
        durations.histogram(*of(f"t{number}", error=error)).record(0.1)
        if looks:
            now = {key: sum(cell.counts) for key, cell in durations.series()}
            assert all(now[key] >= before for key, before in seen.items())
            assert sum(now.values()) == count
            seen = now
