"""Failed logins delay further attempts from the same address, within bounded memory."""

from __future__ import annotations

import logging

import pytest

from gateway.access.administrators import FREE_ATTEMPTS, FailedLogins, source_address


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def failing(logins: FailedLogins, peer: str, times: int) -> None:
    for _ in range(times):
        logins.failed(peer)


def test_wait_grows_with_each_failed_login_up_to_a_minute() -> None:
    clock = Clock()
    logins = FailedLogins(clock)
    failing(logins, "192.0.2.1:1000", FREE_ATTEMPTS - 1)
    assert logins.wait_s("192.0.2.1:1001") == 0
    waits = []
    for port in range(10):
        logins.failed(f"192.0.2.1:{port}")
        waits.append(logins.wait_s("192.0.2.1:7"))
        clock.now_s += waits[-1]
        assert logins.wait_s("192.0.2.1:7") == 0
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert logins.wait_s("192.0.2.2:7") == 0


def test_success_or_a_long_pause_resets_the_count() -> None:
    clock = Clock()
    logins = FailedLogins(clock)
    failing(logins, "192.0.2.1:1", 20)
    logins.succeeded("192.0.2.1:2")
    assert logins.wait_s("192.0.2.1:1") == 0
    assert len(logins) == 0
    logins.succeeded("192.0.2.1:2")


def test_count_is_forgotten_after_a_quarter_of_an_hour_without_a_failure() -> None:
    for pause_s, wait_s in ((15 * 60, 60), (15 * 60 + 1, 0)):
        clock = Clock()
        logins = FailedLogins(clock)
        failing(logins, "192.0.2.1:1", 20)
        clock.now_s += pause_s
        logins.failed("192.0.2.1:1")
        assert logins.wait_s("192.0.2.1:1") == wait_s


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("192.0.2.1:1000", "192.0.2.1"),
        ("[2001:db8::1]:1000", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::1:1000", "2001:db8::/64"),
        ("[::ffff:192.0.2.1]:1000", "192.0.2.1"),
        ("[fe80::1%eth0]:1000", "fe80::/64"),
        ("gateway.internal:1000", "gateway.internal"),
        ("", "a local socket"),
        (":1000", "a local socket"),
    ],
)
def test_address_under_which_a_peer_is_counted(peer: str, address: str) -> None:
    assert source_address(peer) == address


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2001:db8::1:1000", "2001:db8::ffff:1", True),  # one network of a customer
        ("2001:db8:0:1::1:1000", "2001:db8:0:2::1:1000", False),
        ("::ffff:192.0.2.1:1000", "192.0.2.1:9", True),
        ("fe80::1%eth0:1000", "fe80::2%eth1:1", True),
        ("", "", True),
        ("", "192.0.2.1:1", False),
    ],
)
def test_addresses_are_compared_by_the_prefix_their_owner_controls(first: str, second: str, same: bool) -> None:
    logins = FailedLogins(Clock())
    failing(logins, first, 20)
    assert (logins.wait_s(second) > 0) is same


def test_number_of_tracked_addresses_is_bounded() -> None:
    logins = FailedLogins(Clock())
    for number in range(1_100):
        failing(logins, f"10.0.{number // 256}.{number % 256}:1", 1)
    assert len(logins) == 1024
    failing(logins, "10.0.4.75:1", FREE_ATTEMPTS - 1)
    assert logins.wait_s("10.0.4.75:1") > 0


def test_failed_login_is_logged_with_address_and_count(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    failing(FailedLogins(Clock()), "192.0.2.1:1", 2)
    assert [record.getMessage() for record in caplog.records] == [
        "a log-in to the admin API failed: 192.0.2.1, 1 in a row",
        "a log-in to the admin API failed: 192.0.2.1, 2 in a row",
    ]
