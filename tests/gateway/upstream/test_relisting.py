"""When a connected server is listed again, and which lists."""

from __future__ import annotations

import itertools

import pytest

from gateway.upstream.breaker import FIRST_S, LONGEST_S
from gateway.upstream.session import ALL_KINDS, RawListing
from gateway.upstream.watching import POLL_S, Relisting
from registry.catalog.catalog import ListKind

# Without jitter of polls, and three quarters of each step of the backoff.
MIDDLE = 0.5
PROMPTS: frozenset[ListKind] = frozenset({"prompts"})


def listing(*failed: ListKind, ttl_ms: int | None = None) -> RawListing:
    lists = {"tools": [], "prompts_and_resources": {}, "capabilities": {}, "scope": "public"}
    return RawListing(**lists, ttl_ms=ttl_ms, failed=frozenset(failed))  # type: ignore[arg-type] # as written above


def begun(*failed: ListKind, ttl_ms: int | None = None, whole: bool = False) -> Relisting:
    one = Relisting(chance=lambda: MIDDLE)
    one.start(listing(*failed, ttl_ms=ttl_ms), failed=whole, now_s=100)
    return one


@pytest.mark.parametrize(
    ("ttl_ms", "announced", "wait_s"),
    [
        (None, True, None),
        (None, False, POLL_S),
        (0, True, POLL_S),
        (5_000, True, 5),
        (5_000, False, 5),
        (1, True, 1),
    ],
)
def test_lists_without_announcements_or_with_a_ttl_are_polled(
    ttl_ms: int | None, announced: bool, wait_s: float | None
) -> None:
    assert begun(ttl_ms=ttl_ms).wait_s(100, announced=announced) == wait_s


def test_announced_list_is_requested_alone_until_a_poll_is_due() -> None:
    one = begun(ttl_ms=5_000)
    assert one.kinds(PROMPTS, 104, announced=True) == PROMPTS
    one.succeeded(listing(ttl_ms=5_000), PROMPTS, 104)
    # Others are as old as before.
    assert one.wait_s(104, announced=True) == 1
    assert one.kinds(PROMPTS, 105, announced=True) == ALL_KINDS
    one.succeeded(listing(ttl_ms=9_000), ALL_KINDS, 105)
    assert one.wait_s(105, announced=True) == 9


def test_missing_list_is_requested_alone_with_growing_pauses() -> None:
    one = begun("prompts")
    waits = []
    for _ in range(12):
        waits.append(one.wait_s(100, announced=True))
        assert one.kinds((), 100, announced=True) == PROMPTS
        one.succeeded(listing("prompts"), PROMPTS, 100)
    assert waits == sorted(waits)  # type: ignore[type-var] # none of them is None
    assert waits[0] == FIRST_S * 2 * 0.75
    assert waits[-1] == LONGEST_S * 0.75
    assert one.kinds({"tools"}, 100, announced=True) == {"tools", "prompts"}
    one.succeeded(listing(), PROMPTS, 100)
    assert one.wait_s(100, announced=True) is None


def test_missing_list_does_not_stop_polling_of_others() -> None:
    one = begun("prompts", ttl_ms=4_000)
    for now_s in range(100, 104):
        assert one.kinds((), now_s, announced=False) == PROMPTS
        one.succeeded(listing("prompts"), PROMPTS, now_s)
    assert one.wait_s(103.5, announced=False) == 0.5
    assert one.kinds((), 104, announced=False) == ALL_KINDS


@pytest.mark.parametrize("announced", [True, False])
def test_unlistable_server_is_retried_less_often_than_its_ttl(announced: bool) -> None:
    one = begun(ttl_ms=1, whole=True)
    for _ in range(12):
        one.failed((), 500)
    assert one.wait_s(500, announced=announced) == LONGEST_S * 0.75
    assert one.kinds((), 500, announced=announced) == ALL_KINDS
    one.succeeded(listing(ttl_ms=1), ALL_KINDS, 500)
    assert one.wait_s(500, announced=announced) == 1


def announced(one: Relisting, now_s: float, *, changed: bool) -> float:
    """Have a change announced and listed; return when that was."""
    one.mark_stale({"tools"})
    now_s += one.gather_s(now_s)
    one.settle(one.take_stale(), now_s, changed=changed)
    return now_s


def test_frequent_changes_are_listed_at_most_once_a_second() -> None:
    one, now_s = begun(), 100.0
    times = []
    for _ in range(60):
        now_s = announced(one, now_s, changed=True)
        times.append(now_s - 100)
    assert times[9] < 0.6
    assert 48 <= times[-1] <= 52
    # A calm minute later a change is listed at once again.
    assert announced(one, now_s + 60, changed=True) - now_s - 60 < 0.1


def test_announcements_without_changes_are_checked_less_often() -> None:
    one, now_s = begun(), 100.0
    times = []
    for _ in range(20):
        now_s = announced(one, now_s, changed=False)
        times.append(now_s - 100)
    assert times[3] < 0.3
    assert sum(time < 15 for time in times) <= 6
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps) <= 10.1


def test_change_announced_during_a_failure_is_listed_after_the_pause() -> None:
    one = begun()
    one.mark_stale({"prompts"})
    one.failed(one.take_stale(), 100)
    assert not one.stale.is_set()
    assert one.wait_s(100, announced=True) == FIRST_S * 2 * 0.75
    assert one.kinds(one.take_stale(), 101, announced=True) == PROMPTS


def test_excluded_lists_are_neither_polled_nor_requested() -> None:
    one = Relisting(chance=lambda: MIDDLE, universe=PROMPTS, left_out=PROMPTS)
    one.start(listing(ttl_ms=5_000), failed=False, now_s=100)
    one.mark_stale(PROMPTS)
    assert not one.stale.is_set()
    assert one.wait_s(500, announced=False) is None
