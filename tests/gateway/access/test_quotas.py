"""Counters of one caller: calls, running requests, streams, connections and memory, alone and with other workers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.access.principal import LOCAL, Principal
from gateway.access.quotas import (
    MAX_HELD_BYTES,
    MIB,
    Account,
    Ledger,
    Quotas,
    RunningLedger,
    Sharing,
    independent_account,
)
from gateway.config.active_config import ConfigChange
from gateway.config.auth_config import QuotasConfig
from gateway.config.load import parse
from gateway.protocol.gateway_errors import QuotaExceeded

ANN = Principal(name="ann")
CALL, LIST, LISTEN = "tools/call", "tools/list", "subscriptions/listen"


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def quotas(clock: Clock | None = None, sharing: Sharing | None = None, **settings: Any) -> Quotas:
    return Quotas(QuotasConfig.model_validate(settings), clock=clock or Clock(), sharing=sharing)


def account(clock: Clock | None = None, sharing: Sharing | None = None, **limits: Any) -> Account:
    return quotas(clock, sharing, default=limits).account(ANN)


def run(each: Account, method: str = CALL) -> None:
    """Make one request that ends at once."""
    assert each.start_request(method)
    each.end_request(method)


def test_calls_of_a_minute_may_be_made_at_once() -> None:
    clock = Clock()
    ann = account(clock, callsPerMinute=3)
    for _ in range(3):
        run(ann)
    with pytest.raises(QuotaExceeded, match=r"ann has made 3 calls within a minute.*Try again in 20 s") as exceeded:
        run(ann)
    assert (exceeded.value.retry_after_s, exceeded.value.own) == (20, True)
    assert ann.in_flight == 0
    clock.now_s += 19
    with pytest.raises(QuotaExceeded, match="Try again in 1 s"):
        run(ann)
    clock.now_s += 1
    run(ann)
    with pytest.raises(QuotaExceeded):
        run(ann)
    clock.now_s += 10_000
    for _ in range(3):
        run(ann)
    with pytest.raises(QuotaExceeded, match="Try again in 20 s"):
        run(ann)


@pytest.mark.parametrize("per_minute", [1, 7, 49, 1000])
def test_last_call_of_a_burst_is_not_lost_to_rounding(per_minute: int) -> None:
    clock = Clock()
    clock.now_s = 1e6 / 3
    ann = account(clock, callsPerMinute=per_minute)
    for _ in range(per_minute):
        run(ann)
    with pytest.raises(QuotaExceeded):
        run(ann)


def test_shortest_wait_is_a_second() -> None:
    clock = Clock()
    ann = account(clock, callsPerMinute=600)
    for _ in range(600):
        run(ann)
    with pytest.raises(QuotaExceeded, match="Try again in 1 s") as exceeded:
        run(ann)
    assert exceeded.value.retry_after_s == 1


@pytest.mark.parametrize(
    ("method", "is_counted"),
    [
        (CALL, True), ("prompts/get", True), ("resources/read", True), ("completion/complete", True),
        ("resources/subscribe", True), (LISTEN, True), ("tasks/get", True), ("tasks/update", True),
        (LIST, False), ("ping", False), ("resources/unsubscribe", False), ("tasks/cancel", False),
    ],
)  # fmt: skip
def test_requests_that_cause_work_are_counted_as_calls(method: str, is_counted: bool) -> None:
    ann = account(callsPerMinute=1)
    run(ann, method)
    if is_counted:
        with pytest.raises(QuotaExceeded, match="within a minute"):
            run(ann, method)
    else:
        run(ann, method)
        run(ann, CALL)


def test_running_requests_are_limited() -> None:
    ann = account(inFlight=2)
    for count in (1, 2):
        assert ann.start_request(LIST)
        assert ann.in_flight == count
    with pytest.raises(QuotaExceeded, match="ann has 2 requests in flight"):
        ann.start_request(LIST)
    assert ann.in_flight == 2
    ann.end_request(LIST)
    assert ann.start_request(CALL)


def test_refused_request_is_not_counted_as_a_call() -> None:
    ann = account(inFlight=1, callsPerMinute=1)
    assert ann.start_request(LIST)
    with pytest.raises(QuotaExceeded, match="in flight"):
        ann.start_request(CALL)
    ann.end_request(LIST)
    run(ann)


def test_streams_are_limited_apart_from_running_requests() -> None:
    ann = account(streams=2, inFlight=1)
    for count in (1, 2):
        assert ann.start_request(LISTEN)
        assert (ann.streams, ann.in_flight) == (count, 0)
    with pytest.raises(QuotaExceeded, match="ann has 2 streams open, the most that its quota allows"):
        ann.start_request(LISTEN)
    ann.end_request(LISTEN)
    assert (ann.streams, ann.in_flight) == (1, 0)
    ann.open_stream()
    with pytest.raises(QuotaExceeded):
        ann.open_stream()
    ann.close_stream()
    assert ann.streams == 1


def test_stream_beyond_the_calls_of_a_minute_is_not_open() -> None:
    ann = account(callsPerMinute=1)
    assert ann.start_request(LISTEN)
    with pytest.raises(QuotaExceeded, match="within a minute"):
        ann.start_request(LISTEN)
    assert ann.streams == 1
    with pytest.raises(QuotaExceeded, match="within a minute"):
        run(ann)


def test_private_connections_are_limited() -> None:
    ann = account(privateConnections=2)
    for count in (1, 2):
        ann.open_private_connection()
        assert ann.private_connections == count
    with pytest.raises(QuotaExceeded, match=r"ann has 2 connections .* that its quota allows"):
        ann.open_private_connection()
    ann.close_private_connection()
    assert ann.private_connections == 1
    ann.open_private_connection()


def test_sessions_are_counted() -> None:
    ann = account()
    ann.open_session()
    ann.open_session()
    ann.close_session()
    assert ann.sessions == 1


def test_memory_of_requests_is_limited() -> None:
    whole = quotas(default={"heldMebibytes": 10})
    ann, bob = whole.account(ANN), whole.account(Principal(name="bob"))
    ann.hold(4 * MIB)
    ann.hold(6 * MIB)
    with pytest.raises(QuotaExceeded, match=r"the requests of ann .* its quota of 10 MiB") as exceeded:
        ann.hold(1)
    assert exceeded.value.own
    bob.hold(10 * MIB)
    assert (ann.held_bytes, bob.held_bytes, whole.held_bytes) == (10 * MIB, 10 * MIB, 20 * MIB)
    ann.release(6 * MIB)
    assert (ann.held_bytes, whole.held_bytes) == (4 * MIB, 14 * MIB)
    with pytest.raises(QuotaExceeded):
        ann.hold(6 * MIB + 1)
    ann.hold(6 * MIB)


def test_memory_of_all_callers_together_is_limited() -> None:
    whole = quotas(default={"heldMebibytes": 96})
    for name in ("ann", "bob"):
        whole.account(Principal(name=name)).hold(96 * MIB - 1)
    eve = whole.account(Principal(name="eve"))
    assert whole.held_bytes == MAX_HELD_BYTES - 2
    with pytest.raises(QuotaExceeded, match="busy with large requests") as exceeded:
        eve.hold(3)
    assert not exceeded.value.own
    assert (eve.held_bytes, whole.held_bytes) == (0, MAX_HELD_BYTES - 2)
    eve.hold(2)
    with pytest.raises(QuotaExceeded, match="busy"):
        eve.hold(1)


def test_caller_without_credentials_has_little_memory() -> None:
    anonymous = quotas().anonymous
    anonymous.hold(32 * MIB)
    with pytest.raises(QuotaExceeded, match="a caller without credentials"):
        anonymous.hold(1)


USES = {
    "in_flight": lambda each: each.start_request(LIST),
    "sessions": lambda each: each.open_session(),
    "streams": lambda each: each.open_stream(),
    "private_connections": lambda each: each.open_private_connection(),
    "held_bytes": lambda each: each.hold(1),
}


@pytest.mark.parametrize("use", USES)
def test_account_in_use_is_not_unused(use: str) -> None:
    ann = account()
    assert ann.unused
    USES[use](ann)
    assert getattr(ann, use) == 1
    assert not ann.unused


def test_account_is_unused_when_its_calls_are_restored() -> None:
    clock = Clock()
    ann = account(clock, callsPerMinute=6)
    run(ann)
    clock.now_s += 9.9
    assert not ann.unused
    clock.now_s += 0.1
    assert ann.unused


def others(whole: Quotas, count: int) -> None:
    for number in range(count):
        whole.account(Principal(name=f"other {number}"))


def test_only_unused_accounts_are_dropped_and_only_beyond_a_limit() -> None:
    whole = quotas()
    ann, bob = whole.account(ANN), whole.account(Principal(name="bob"))
    ann.open_session()
    others(whole, 9_998)
    assert whole.dropped == 0
    assert whole.account(Principal(name="bob")) is bob
    whole.account(Principal(name="one more"))
    assert whole.dropped == 1
    assert whole.account(ANN) is ann
    assert whole.account(Principal(name="bob")) is not bob


def test_account_is_shared_by_all_principals_of_a_name() -> None:
    whole = quotas(groups={"a": {"inFlight": 1}, "b": {"inFlight": 2}})
    in_a, in_b = frozenset({"a"}), frozenset({"b"})
    found = whole.account(Principal(name="ann", groups=in_a))
    assert found.limits.in_flight == 1
    assert whole.account(Principal(name="ann", groups=in_b)) is found
    assert (found.limits.in_flight, found.groups) == (2, in_b)
    assert whole.account(Principal(name="ann", groups=in_b, knows_groups=False)) is found
    assert (found.limits.in_flight, found.knows_groups) == (1, False)
    assert whole.account(Principal(name="ann", groups=in_b)) is found
    assert found.limits.in_flight == 2


def test_equal_groups_leave_the_limits_unchanged() -> None:
    whole = quotas()
    found = whole.account(Principal(name="ann", groups=frozenset({"a"})))
    limits = found.limits
    assert whole.account(Principal(name="ann", groups=frozenset(["a"]))).limits is limits


@pytest.mark.parametrize(("before", "after", "left"), [(4, 2, 0), (4, 3, 1), (2, 4, 3), (None, 2, 2), (2, None, 100)])
def test_changed_limit_counts_the_calls_made_before(before: Any, after: Any, left: int) -> None:
    clock = Clock()
    whole = quotas(clock, default={"callsPerMinute": before})
    ann = whole.account(ANN)
    for _ in range((before or 4) // 2):
        run(ann)
    whole.replace(QuotasConfig.model_validate({"default": {"callsPerMinute": after}}))
    for count in range(100):
        try:
            run(ann)
        except QuotaExceeded:
            assert count == left
            break
    else:
        assert left == 100


def test_changed_limit_does_not_count_restored_calls() -> None:
    clock = Clock()
    whole = quotas(clock, default={"callsPerMinute": 2})
    ann = whole.account(ANN)
    run(ann)
    clock.now_s += 1000
    whole.replace(QuotasConfig.model_validate({"default": {"callsPerMinute": 1}}))
    run(ann)
    with pytest.raises(QuotaExceeded):
        run(ann)


@pytest.mark.parametrize(
    ("settings", "groups", "knows_groups", "expected"),
    [
        ({}, (), True, (None, 256)),
        ({"default": {"inFlight": 3}}, (), True, (None, 3)),
        ({"groups": {"a": {"callsPerMinute": 5}}}, ("a",), True, (5, 256)),
        ({"groups": {"a": {"callsPerMinute": 5}}}, ("b",), True, (None, 256)),
        # The most generous of several groups applies, even if it is smaller than the default.
        ({"groups": {"a": {"inFlight": 5}, "b": {"inFlight": 7}}}, ("a", "b"), True, (None, 7)),
        ({"groups": {"a": {"inFlight": 5}, "b": {"inFlight": None}}}, ("a", "b"), True, (None, None)),
        ({"default": {"inFlight": 9}, "groups": {"a": {"inFlight": 5}}}, ("a",), True, (None, 5)),
        # If the groups are unknown, the smallest limit applies.
        ({"groups": {"a": {"inFlight": 5}, "b": {"inFlight": 7}}}, ("b",), False, (None, 5)),
        ({"groups": {"a": {"inFlight": 500}}}, (), False, (None, 256)),
        ({"default": {"inFlight": 3}, "groups": {"a": {"inFlight": 5}}}, (), False, (None, 3)),
        ({"groups": {"a": {"callsPerMinute": 5}, "b": {"callsPerMinute": None}}}, (), False, (5, 256)),
        ({"default": {"inFlight": None}, "groups": {"a": {"inFlight": None}}}, (), False, (None, None)),
    ],
)
def test_limits_are_those_of_the_groups(
    settings: dict[str, Any], groups: tuple[str, ...], knows_groups: bool, expected: Any
) -> None:
    who = Principal(name="ann", groups=frozenset(groups), knows_groups=knows_groups)
    limits = quotas(**settings).account(who).limits
    assert (limits.calls_per_minute, limits.in_flight) == expected


def test_local_callers_have_high_limits() -> None:
    limits = quotas(groups={"a": {"sessions": 1}}).account(LOCAL).limits
    assert (limits.in_flight, limits.sessions, limits.streams, limits.private_connections, limits.held_mebibytes) == (
        None, 10_000, 4_096, 128, MAX_HELD_BYTES // MIB,
    )  # fmt: skip
    assert quotas(default={"sessions": 3}).account(LOCAL).limits.sessions == 3


def test_independent_account_belongs_to_no_other_quotas() -> None:
    one, other = independent_account(), independent_account()
    one.hold(MIB)
    assert (one.name, other.held_bytes, other.unused) == ("local", 0, True)


async def test_change_of_the_configuration_applies_new_limits() -> None:
    before, after = (
        parse(json.dumps({"mcpServers": {}, "gateway": {"quotas": {"default": {"inFlight": most}}}})) for most in (1, 2)
    )
    whole = Quotas(before.gateway.quotas)
    ann = whole.account(ANN)
    apply = await whole.validate(ConfigChange(before=before, after=after))
    assert ann.limits.in_flight == 1
    apply()
    assert ann.limits.in_flight == 2
    assert whole.account(Principal(name="bob")).limits.in_flight == 2


@dataclass
class Calls(Ledger):
    """A counter that other workers share: this process may make `own` calls without asking."""

    own: int = 0
    answer: float | None = 0.0
    asked: int = 0
    counted: int = 0
    slack_s: float = 5.0

    def may_pass(self, account: Account, per_minute: int) -> bool:
        return self.counted < self.own

    def count(self, account: Account, per_minute: int) -> None:
        self.counted += 1

    async def request_call(self, account: Account, per_minute: int) -> float | None:
        self.asked += 1
        return self.answer


@dataclass
class Running(RunningLedger):
    """A counter of running requests that other workers share."""

    allowance: int = 1
    answer: bool | None = True
    asked: list[tuple[int, int]] = field(default_factory=list)
    ends: int = 0

    def local_allowance(self, most: int) -> int:
        return min(self.allowance, most)

    async def request_run(self, account: Account, most: int) -> bool | None:
        self.asked.append((account.in_flight, most))
        return self.answer

    def ended(self, account: Account) -> None:
        self.ends += 1


async def test_calls_beyond_the_own_share_are_asked_about() -> None:
    calls = Calls(own=2)
    ann = account(sharing=Sharing(ledger=calls, workers=2), callsPerMinute=10)
    for _ in range(2):
        run(ann)
    assert (calls.counted, calls.asked) == (2, 0)
    assert not ann.start_request(CALL)
    assert ann.in_flight == 0
    await ann.start_asked_request(CALL)
    assert (ann.in_flight, calls.asked, calls.counted) == (1, 1, 2)
    ann.end_request(CALL)
    # What is not a call, or has no limit, needs no answer.
    run(ann, LIST)
    await ann.start_asked_request(LIST)
    assert (ann.in_flight, calls.asked) == (1, 1)


async def test_call_is_counted_here_if_the_share_has_grown_in_the_meantime() -> None:
    calls = Calls(own=0)
    ann = account(sharing=Sharing(ledger=calls), callsPerMinute=10)
    assert not ann.start_request(CALL)
    calls.own = 1
    await ann.start_asked_request(CALL)
    assert (ann.in_flight, calls.asked, calls.counted) == (1, 0, 1)


@pytest.mark.parametrize(("answer", "retry_after_s"), [(0.0, None), (0.2, 1), (1.0, 1), (3.5, 4)])
async def test_other_processes_decide_how_long_a_call_waits(answer: float, retry_after_s: int | None) -> None:
    ann = account(sharing=Sharing(ledger=Calls(answer=answer)), callsPerMinute=10)
    if retry_after_s is None:
        await ann.start_asked_request(CALL)
        assert ann.in_flight == 1
        return
    with pytest.raises(QuotaExceeded, match="has made 10 calls within a minute") as exceeded:
        await ann.start_asked_request(CALL)
    assert exceeded.value.retry_after_s == retry_after_s
    assert ann.in_flight == 0


async def test_call_is_counted_here_if_other_processes_do_not_respond() -> None:
    clock = Clock()
    calls = Calls(answer=None)
    ann = account(clock, sharing=Sharing(ledger=calls), callsPerMinute=6)
    for _ in range(6):
        await ann.start_asked_request(CALL)
        ann.end_request(CALL)
    with pytest.raises(QuotaExceeded):
        await ann.start_asked_request(CALL)
    assert (ann.in_flight, calls.asked) == (0, 6)


def test_calls_that_are_counted_late_by_others_are_tolerated() -> None:
    clock = Clock()
    ann = account(clock, sharing=Sharing(ledger=Calls(own=100)), callsPerMinute=60)
    for _ in range(65):
        run(ann)
    with pytest.raises(QuotaExceeded, match="Try again in 6 s"):
        run(ann)


def test_listen_requests_are_counted_in_this_process_alone() -> None:
    calls = Calls(own=0)
    ann = account(sharing=Sharing(ledger=calls), callsPerMinute=60)
    assert ann.start_request(LISTEN)
    assert (ann.streams, calls.counted, calls.asked) == (1, 0, 0)


def test_state_from_another_process_restricts_calls() -> None:
    clock = Clock()
    ann = account(clock, callsPerMinute=60)
    ann.set_full_at(clock.now_s + 59)
    run(ann)
    with pytest.raises(QuotaExceeded):
        run(ann)


async def test_running_requests_beyond_the_allowance_are_asked_about() -> None:
    running = Running(allowance=2)
    ann = account(sharing=Sharing(running=running, workers=2), inFlight=3)
    assert ann.start_request(CALL)
    assert ann.start_request(CALL)
    assert running.asked == []
    assert not ann.start_request(CALL)
    assert ann.in_flight == 2
    await ann.start_asked_request(CALL)
    assert (ann.in_flight, running.asked) == (3, [(3, 3)])
    with pytest.raises(QuotaExceeded, match="ann has 3 requests in flight"):
        ann.start_request(CALL)
    for ends in (1, 1, 1):
        ann.end_request(CALL)
        assert running.ends == ends
    assert ann.in_flight == 0


async def test_request_within_the_allowance_is_not_asked_about() -> None:
    running = Running(allowance=2)
    ann = account(sharing=Sharing(ledger=Calls(), running=running), callsPerMinute=10)
    for count in (1, 2):
        assert not ann.start_request(CALL)
        await ann.start_asked_request(CALL)
        assert (ann.in_flight, running.asked) == (count, [])
    ann.end_request(CALL)
    assert (ann.in_flight, running.ends) == (1, 0)


@pytest.mark.parametrize(
    ("answer", "in_flight", "may_run"),
    [(True, 2, True), (True, 9, True), (False, 2, False), (None, 2, True), (None, 3, True), (None, 4, False)],
)
async def test_other_processes_decide_about_running_requests(
    answer: bool | None, in_flight: int, may_run: bool
) -> None:
    running = Running(allowance=1)
    ann = account(sharing=Sharing(running=running), inFlight=3)
    for _ in range(in_flight - 1):
        running.answer = True
        await ann.start_asked_request(LIST)
    running.answer = answer
    if may_run:
        await ann.start_asked_request(LIST)
        assert (ann.in_flight, running.ends) == (in_flight, 0)
        return
    with pytest.raises(QuotaExceeded, match="ann has 3 requests in flight"):
        await ann.start_asked_request(LIST)
    assert (ann.in_flight, running.ends) == (in_flight - 1, 1)


async def test_unlimited_running_requests_are_not_asked_about() -> None:
    running = Running(allowance=0)
    ann = account(sharing=Sharing(running=running), inFlight=None)
    for _ in range(300):
        assert ann.start_request(LIST)
    await ann.start_asked_request(LIST)
    ann.end_request(LIST)
    assert (ann.in_flight, running.asked, running.ends) == (300, [], 0)


async def test_new_limit_of_running_requests_changes_the_allowance() -> None:
    running = Running(allowance=5)
    whole = quotas(sharing=Sharing(running=running), default={"inFlight": 1})
    ann = whole.account(ANN)
    assert ann.start_request(LIST)
    whole.replace(QuotasConfig.model_validate({"default": {"inFlight": 9}}))
    for _ in range(4):
        assert ann.start_request(LIST)
    assert not ann.start_request(LIST)


@pytest.mark.parametrize(("workers", "shares"), [(1, (10, 7, 4)), (2, (5, 4, 2)), (3, (4, 3, 2)), (20, (1, 1, 1))])
def test_workers_divide_the_limits_that_they_do_not_share(workers: int, shares: tuple[int, ...]) -> None:
    default = {"sessions": 10, "streams": 7, "privateConnections": 4, "inFlight": 9, "callsPerMinute": 8}
    ann = account(sharing=Sharing(workers=workers), **default)
    limits = ann.limits
    assert (limits.sessions, limits.streams, limits.private_connections) == shares
    assert (limits.in_flight, limits.calls_per_minute) == (9, 8)
    assert ann.share == ("its quota" if workers == 1 else f"its share of its quota at one of {workers} workers")


def test_request_may_exceed_a_workers_share_of_the_memory_if_the_rest_does_not() -> None:
    for held_mib, is_held in ((5, True), (6, False)):
        ann = account(sharing=Sharing(workers=2), heldMebibytes=10)
        ann.hold(held_mib * MIB)
        if is_held:
            ann.hold(5 * MIB)
            continue
        with pytest.raises(QuotaExceeded, match="its share of its quota at one of 2 workers of 10 MiB"):
            ann.hold(1)
    with pytest.raises(QuotaExceeded):
        account(sharing=Sharing(workers=2), heldMebibytes=10).hold(10 * MIB + 1)
