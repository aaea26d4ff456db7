"""Quota limits of callers: configured values, defaults, and none for null."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from gateway.access.principal import LOCAL, Principal
from gateway.access.quotas import Account, Quotas, Sharing
from gateway.config.load import parse
from gateway.protocol.gateway_errors import ConfigError, QuotaExceeded

KEYS = [{"name": "ci", "keyHash": f"sha256:{'1' * 64}", "groups": ["robots"]}]
CI = Principal(name="ci", groups=frozenset({"robots"}))


def quotas(quotas: Any, sharing: Sharing | None = None) -> Quotas:
    settings = {"auth": {"apiKeys": KEYS}, "quotas": quotas}
    config = parse(json.dumps({"mcpServers": {"bank": {"command": "bank"}}, "gateway": settings}))
    return Quotas(config.gateway.quotas, sharing=sharing)


def requests_in_flight(quotas: Quotas, principal: Principal, most: int = 5_000) -> int:
    account = quotas.account(principal)
    for count in range(most):
        try:
            account.start_request("tools/list")
        except QuotaExceeded:
            return count
    return most


@pytest.mark.parametrize(
    ("given", "most"),
    [
        ({}, 256),
        ({"default": {"inFlight": 3}}, 3),
        ({"default": {"inFlight": None}}, 5_000),
        ({"default": {"inFlight": 3}, "groups": {"robots": {"inFlight": None}}}, 5_000),
        ({"default": {"inFlight": None}, "groups": {"robots": {"inFlight": 7}}}, 7),
        ({"default": {"inFlight": 3}, "groups": {"robots": {"sessions": 7}}}, 3),
    ],
)
def test_null_means_no_limit_and_absence_means_the_default(given: Any, most: int) -> None:
    assert requests_in_flight(quotas(given), CI) == most


def test_local_callers_have_a_high_request_limit_by_default() -> None:
    assert requests_in_flight(quotas({}), LOCAL) == 5_000
    assert requests_in_flight(quotas({"default": {"inFlight": 3}}), LOCAL) == 3


def test_null_calls_per_minute_lifts_the_limit_of_a_group() -> None:
    account = quotas({"default": {"callsPerMinute": 1}, "groups": {"robots": {"callsPerMinute": None}}}).account(CI)
    for _ in range(100):
        account.start_request("tools/call")
        account.end_request("tools/call")


@pytest.mark.parametrize("key", ["sessions", "streams", "privateConnections", "heldMebibytes"])
@pytest.mark.parametrize("place", ["default", "groups.robots"])
def test_mandatory_limit_cannot_be_null(key: str, place: str) -> None:
    limits = {key: None}
    with pytest.raises(ConfigError) as raised:
        quotas({"default": limits} if place == "default" else {"groups": {"robots": limits}})
    words = f"gateway.quotas.{place}.{key}: is null, but a limit is required; expected a number"
    assert words in str(raised.value)


def test_changed_limits_apply_at_once_to_known_callers() -> None:
    known = quotas({"default": {"inFlight": 3}})
    account = known.account(CI)
    account.start_request("tools/list")
    known.replace(quotas({"default": {"inFlight": 2, "callsPerMinute": 1}})._config)
    account.start_request("tools/call")
    with pytest.raises(QuotaExceeded, match="2 requests in flight"):
        account.start_request("tools/list")
    account.end_request("tools/call")
    with pytest.raises(QuotaExceeded, match="1 calls within a minute"):
        account.start_request("tools/call")
    known.replace(quotas({"default": {"inFlight": None}})._config)
    assert requests_in_flight(known, CI) == 5_000


class Running:
    """The ledger of a worker that is asked about nothing."""

    def local_allowance(self, most: int) -> int:
        return most

    async def request_run(self, account: Account, most: int) -> bool | None:
        return None

    def ended(self, account: Account) -> None:
        pass


@pytest.mark.parametrize(("workers", "connections", "held"), [(1, 5, 10), (2, 3, 6), (4, 2, 3), (9, 1, 2)])
def test_workers_share_per_process_limits(workers: int, connections: int, held: int) -> None:
    """A caller gets its share of memory at each worker, and one request beyond it."""
    sharing = Sharing(running=Running(), workers=workers) if workers > 1 else None
    account = quotas({"default": {"privateConnections": 5, "heldMebibytes": 10}}, sharing).account(CI)
    for use, most in ((account.open_private_connection, connections), (partial(account.hold, 2**20), held)):
        for _ in range(most):
            use()
        with pytest.raises(QuotaExceeded, match="its quota"):
            use()
    account.release(held * 2**20)
    account.hold(10 * 2**20)
