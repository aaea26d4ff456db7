"""What limits a caller has: those that are given, and none where the file says null."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.access.principal import LOCAL, Principal
from gateway.access.quotas import Quotas
from gateway.config.load import parse
from gateway.errors import ConfigError, QuotaExceeded

KEYS = [{"name": "ci", "keyHash": f"sha256:{'1' * 64}", "groups": ["robots"]}]
CI = Principal(name="ci", groups=frozenset({"robots"}))


def quotas(quotas: Any) -> Quotas:
    settings = {"auth": {"apiKeys": KEYS}, "quotas": quotas}
    return Quotas(parse(json.dumps({"mcpServers": {"bank": {"command": "bank"}}, "gateway": settings})).gateway.quotas)


def requests_in_flight(quotas: Quotas, principal: Principal, most: int = 5_000) -> int:
    account = quotas.account(principal)
    for count in range(most):
        try:
            account.begin("tools/list")
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
def test_null_means_no_limit_and_absent_the_default(given: Any, most: int) -> None:
    assert requests_in_flight(quotas(given), CI) == most


def test_callers_without_keys_have_as_many_requests_as_the_machine_bears() -> None:
    assert requests_in_flight(quotas({}), LOCAL) == 5_000
    assert requests_in_flight(quotas({"default": {"inFlight": 3}}), LOCAL) == 3


def test_null_for_calls_a_minute_lifts_the_limit_of_a_group() -> None:
    account = quotas({"default": {"callsPerMinute": 1}, "groups": {"robots": {"callsPerMinute": None}}}).account(CI)
    for _ in range(100):
        account.begin("tools/call")
        account.end("tools/call")


@pytest.mark.parametrize("key", ["sessions", "streams", "privateConnections", "heldMebibytes"])
@pytest.mark.parametrize("place", ["default", "groups.robots"])
def test_a_limit_that_nothing_works_without_is_not_lifted(key: str, place: str) -> None:
    limits = {key: None}
    with pytest.raises(ConfigError) as raised:
        quotas({"default": limits} if place == "default" else {"groups": {"robots": limits}})
    words = f"gateway.quotas.{place}.{key}: is null, but cannot be without a limit; expected a number"
    assert words in str(raised.value)


def test_other_limits_hold_at_once_for_whoever_is_there() -> None:
    known = quotas({"default": {"inFlight": 3}})
    account = known.account(CI)
    account.begin("tools/list")
    known.replace(quotas({"default": {"inFlight": 2, "callsPerMinute": 1}})._config)
    account.begin("tools/call")
    with pytest.raises(QuotaExceeded, match="2 requests in flight"):
        account.begin("tools/list")
    account.end("tools/call")
    with pytest.raises(QuotaExceeded, match="1 calls within a minute"):
        account.begin("tools/call")
    known.replace(quotas({"default": {"inFlight": None}})._config)
    assert requests_in_flight(known, CI) == 5_000
