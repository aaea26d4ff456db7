"""Delays between attempts, and the circuit breaker."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.breaker import FAILURES_TO_OPEN, FIRST_S, LONGEST_S, OPEN_S, Breaker, delay_s

CHANCES = st.floats(min_value=0, max_value=1, exclude_max=True)
TIMES = st.floats(min_value=0, max_value=1e6)


@given(st.integers(min_value=0, max_value=10_000), CHANCES)
def test_delay_is_jittered_growing_and_bounded(attempt: int, chance: float) -> None:
    assert FIRST_S / 2 <= delay_s(attempt, chance) <= LONGEST_S
    assert delay_s(attempt, chance) <= delay_s(attempt + 1, chance)
    assert delay_s(attempt, 0) <= delay_s(attempt, chance) <= 2 * delay_s(attempt, 0)


@given(st.lists(CHANCES, min_size=8, max_size=8))
def test_crash_loop_starts_at_most_eight_times_in_eight_seconds(chances: list[float]) -> None:
    assert sum(delay_s(attempt, chance) for attempt, chance in enumerate(chances)) > 8


@given(TIMES, st.lists(CHANCES, min_size=FAILURES_TO_OPEN, max_size=FAILURES_TO_OPEN))
def test_consecutive_failures_open_the_breaker(now_s: float, chances: list[float]) -> None:
    breaker = Breaker()
    for chance in chances:
        assert breaker.admits(now_s)
        breaker = breaker.failed(now_s, chance, began_s=now_s)
    assert not breaker.admits(now_s)
    assert not breaker.admits(now_s + OPEN_S * 0.49)
    assert breaker.admits(now_s + OPEN_S)
    assert breaker.succeeded().admits(now_s)


@given(TIMES, CHANCES)
def test_open_breaker_admits_one_probe(now_s: float, chance: float) -> None:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        breaker = breaker.failed(now_s, chance, began_s=now_s)
    later_s = now_s + OPEN_S
    assert breaker.admits(later_s)
    breaker = breaker.probing(later_s)
    assert not breaker.admits(later_s)
    assert not breaker.failed(later_s, chance, began_s=later_s).admits(later_s)
    assert breaker.succeeded() == Breaker()


@given(TIMES, st.lists(st.booleans(), max_size=30))
def test_success_keeps_the_breaker_closed(now_s: float, outcomes: list[bool]) -> None:
    breaker, in_a_row = Breaker(), 0
    for failed in outcomes:
        breaker = breaker.failed(now_s, 0.5, began_s=now_s) if failed else breaker.succeeded()
        in_a_row = in_a_row + 1 if failed else 0
        assert breaker.admits(now_s) == (in_a_row < FAILURES_TO_OPEN)


@given(TIMES, CHANCES, st.integers(min_value=1, max_value=100))
def test_calls_lost_together_count_as_one_failure(now_s: float, chance: float, together: int) -> None:
    breaker = Breaker()
    for _ in range(together):
        breaker = breaker.failed(now_s + 1, chance, began_s=now_s)
    assert breaker.failures == 1


@given(TIMES, CHANCES, st.integers(min_value=0, max_value=FAILURES_TO_OPEN + 2))
def test_new_connection_admits_one_probe(now_s: float, chance: float, failures: int) -> None:
    breaker = Breaker()
    for _ in range(failures):
        breaker = breaker.failed(now_s, chance, began_s=now_s)
    breaker = breaker.reconnected(now_s)
    assert breaker.failures == failures
    assert breaker.admits(now_s)
    assert breaker.probing(now_s).admits(now_s) == (failures < FAILURES_TO_OPEN)
    assert breaker.failed(now_s, chance, began_s=now_s).admits(now_s) == (failures + 1 < FAILURES_TO_OPEN)
