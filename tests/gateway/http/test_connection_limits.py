"""The connections of a server: which of them are served, closed to make room, or dropped for unread data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import anyio
import pytest

from gateway.http.server_connections import MAX_UNREAD_BYTES, STALLED_S, Connections

MIB = 2**20
NOW_S = 1_000.0


@dataclass(eq=False)
class Caller:
    """A connection whose state the test sets."""

    address: str = "a"
    is_waiting: bool = False
    held_mib: int = 0
    taken_s: float = NOW_S
    deadline_s: float = 0.0
    unread: Iterator[int] = field(default_factory=lambda: iter([]))
    is_cut: bool = False
    cuts: int = 0
    checks: list[float] = field(default_factory=list)

    @property
    def unread_bytes(self) -> int:
        return next(self.unread, 0)

    @property
    def held_bytes(self) -> int:
        return self.held_mib * MIB

    def check_deadlines(self, now_s: float) -> None:
        self.checks.append(now_s)

    def cut(self) -> None:
        self.is_cut, self.cuts = True, self.cuts + 1


def cut(*callers: Caller) -> list[int]:
    """Return the numbers of the callers whose connections were aborted, each of them once."""
    assert all(caller.cuts <= 1 for caller in callers)
    return [number for number, caller in enumerate(callers) if caller.is_cut]


def added(connections: Connections, *callers: Caller) -> list[tuple[bool, bool]]:
    return [connections.add(caller) for caller in callers]


def test_five_percent_more_connections_than_are_served_get_an_answer() -> None:
    connections = Connections(most=20)
    assert added(connections, *(Caller() for _ in range(22))) == [(True, True)] * 20 + [(True, False), (False, False)]
    assert connections.open == 22


def test_connections_of_one_address_are_limited() -> None:
    connections = Connections(most=20, per_address=2)
    a, b, unix = ([Caller(address=address) for _ in range(3)] for address in ("a", "b", ""))
    for callers in (a, b):
        assert added(connections, *callers) == [(True, True), (True, True), (True, False)]
    assert added(connections, *unix) == [(True, True)] * 3, "a Unix socket has no address"
    connections.remove(a[0])
    connections.remove(a[0])
    assert connections.add(Caller(address="a")) == (True, False)
    for caller in a[1:]:
        connections.remove(caller)
    assert connections.add(a[0]) == (True, True)
    assert connections.open == 8


def test_closed_connections_leave_no_trace() -> None:
    connections = Connections(most=20, per_address=2)
    callers = [Caller(address=address) for address in "aab"]
    added(connections, *callers)
    for caller in callers:
        connections.paused(caller)
        connections.remove(caller)
    assert (connections.open, connections._by_address, connections._paused) == (0, {}, set())


@pytest.mark.parametrize(("most", "closed"), [(5, [1]), (20, [1]), (39, [1]), (40, [1, 2])])
def test_connections_without_a_request_make_room(most: int, closed: list[int]) -> None:
    connections = Connections(most=most)
    waiting = [Caller(address="a", is_waiting=True, deadline_s=deadline_s) for deadline_s in (3.0, 1.0, 2.0)]
    other = Caller(address="b", is_waiting=True, deadline_s=0.0)
    busy = [Caller(address="a") for _ in range(most - 4)]
    added(connections, *waiting, other, *busy)
    assert cut(*waiting, other, *busy) == []
    assert connections.add(Caller()) == (True, True)
    # All are of the address with the most connections without a request, and would time out first.
    assert cut(*waiting, other, *busy) == closed
    assert connections.open == most + 1 - len(closed)


def test_no_room_is_made_below_the_limit_or_while_all_are_busy() -> None:
    connections = Connections(most=3)
    callers = [Caller(is_waiting=True), Caller(is_waiting=True)]
    added(connections, *callers, Caller())
    assert cut(*callers) == []
    connections = Connections(most=1)
    assert added(connections, Caller(), Caller()) == [(True, True), (False, False)]


def test_room_at_the_limit_of_an_address_is_made_by_this_address() -> None:
    connections = Connections(most=20, per_address=2)
    callers = [Caller("a", True, deadline_s=1.0), Caller("a"), Caller("b", True), Caller("", True)]
    assert added(connections, *callers, Caller("a")) == [(True, True)] * 5
    assert cut(*callers) == [0]
    assert connections.open == 4


def test_closing_of_connections_is_logged_once_per_check(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(most=2, per_address=2)
    for _ in range(3):
        connections.add(Caller(is_waiting=True))
    for _ in range(2):
        connections._sweep(NOW_S)
    assert caplog.messages == ["idle connections closed to make room: 1"]


def test_client_that_reads_nothing_is_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(most=9)
    callers = [Caller(taken_s=NOW_S - STALLED_S + early_s) for early_s in (0.0, 0.1, -1.0)]
    added(connections, *callers)
    for now_s in (NOW_S - STALLED_S, NOW_S):
        connections._sweep(now_s)
        assert cut(*callers) == ([0, 2] if now_s == NOW_S else [])
    connections._sweep(NOW_S)
    assert cut(*callers) == [0, 2], "an aborted connection is not aborted again"
    assert callers[0].checks == [NOW_S - STALLED_S, NOW_S, NOW_S]
    assert caplog.messages == ["slow callers disconnected: 2"]


@pytest.mark.parametrize("at_sweep", [True, False])
def test_unread_data_of_all_clients_is_limited(at_sweep: bool, caplog: pytest.LogCaptureFixture) -> None:
    assert MAX_UNREAD_BYTES == 128 * MIB
    connections = Connections(most=9)
    callers = [
        Caller(held_mib=78, taken_s=NOW_S + 2),
        Caller(held_mib=40, taken_s=NOW_S + 1),
        Caller(held_mib=50, taken_s=NOW_S + 1),
    ]
    added(connections, *callers)
    more = Caller(held_mib=10, taken_s=NOW_S)
    for caller in callers[:2]:
        connections.paused(caller)
    assert cut(*callers) == []
    if at_sweep:
        connections._sweep(NOW_S)
    else:
        connections.paused(callers[2])
    # Of the two that have not read for longest, the larger one. The others hold 118 MiB.
    assert cut(*callers) == [2]
    connections.add(more)
    connections.paused(more)
    assert cut(*callers, more) == [2], "exactly 128 MiB"
    more.held_mib = 11
    connections.paused(more)
    assert cut(*callers, more) == [2, 3]
    connections._sweep(NOW_S)
    connections._sweep(NOW_S)
    assert sum(int(message.rpartition(": ")[2]) for message in caplog.messages) == 2
    assert all(message.startswith("callers disconnected, over 128 MiB unread: ") for message in caplog.messages)


def test_as_many_clients_are_disconnected_as_needed() -> None:
    connections = Connections(most=9)
    callers = [Caller(held_mib=64, taken_s=NOW_S + number) for number in range(5)]
    added(connections, *callers)
    connections._sweep(NOW_S)
    # Exactly the limit remains.
    assert cut(*callers) == [0, 1, 2]


def test_connection_that_was_read_or_closed_no_longer_counts() -> None:
    connections = Connections(most=9)
    callers = [Caller(held_mib=100) for _ in range(3)]
    added(connections, *callers)
    connections.paused(callers[0])
    connections.resumed(callers[0])
    connections.paused(callers[1])
    connections.remove(callers[1])
    connections.paused(callers[2])
    assert cut(*callers) == []


def test_leaving_server_says_so() -> None:
    connections = Connections(most=1)
    assert not connections.leaving
    connections.leave()
    assert connections.leaving


async def test_clients_are_awaited_while_they_read() -> None:
    connections = Connections(most=9)
    # What one client still has to read at each check; the other client has read everything.
    unread = iter([9, 9, 8, 8, 7, 1, 0])
    added(connections, Caller(unread=unread), Caller())
    with anyio.fail_after(25):
        await connections.wait_until_read()
    assert list(unread) == []


async def test_clients_that_stopped_reading_are_not_awaited() -> None:
    connections = Connections(most=9)
    connections.add(Caller(unread=itertools.repeat(5)))
    with anyio.fail_after(25):
        await connections.wait_until_read()
