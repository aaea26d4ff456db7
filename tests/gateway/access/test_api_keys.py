"""API keys: lookup, expiry and strength."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from gateway.access.credentials import ApiKeys
from gateway.config.auth_config import ApiKey
from gateway.config.load import parse
from gateway.protocol.gateway_errors import ConfigError
from gateway.serving.listen import check_exposure

HASH = "sha256:" + hashlib.sha256(b"the key").hexdigest()


def key(**members: Any) -> ApiKey:
    return ApiKey.model_validate({"name": "ann", **members})


def keys(text: str) -> str:
    """A configuration with these keys, in YAML."""
    return f"gateway:\n  profiles: {{sec: {{}}}}\n  auth:\n    apiKeys: {text}\n"


def test_key_is_found_in_plain_text_or_by_its_hash() -> None:
    for entry in (key(key="the key"), key(keyHash=HASH)):
        known = ApiKeys([entry])
        found = known.principal("Bearer the key")
        assert found is not None
        assert found.name == "ann"
        for wrong in (None, "", "Bearer", "Bearer the  key", f"Bearer {HASH}", "Basic the key", "Bearer \u20ac"):
            assert known.principal(wrong) is None, wrong


def test_two_keys_with_one_name_are_one_caller() -> None:
    known = ApiKeys([key(key="old"), key(key="new")])
    old, new = known.principal("Bearer old"), known.principal("bearer new")
    assert old == new
    assert old is not None
    known.replace([key(key="new")])
    assert known.principal("Bearer old") is None
    assert known.knows(old)


async def test_key_is_valid_until_it_expires_and_holders_are_notified() -> None:
    end_s = datetime(2027, 1, 31, 23, 59, 59, 999999, UTC).timestamp()
    now_s = end_s - 1
    known = ApiKeys([key(key="k", expires="2027-01-31"), key(name="bob", key="b")], clock=lambda: now_s, poll_s=0.005)
    ann = known.principal("Bearer k")
    assert ann is not None
    expired = anyio.Event()
    known.on_change(expired.set)
    async with anyio.create_task_group() as group:
        group.start_soon(known.run)
        await anyio.sleep(0.02)
        assert not expired.is_set()
        now_s = end_s + 1
        with anyio.fail_after(25):
            await expired.wait()
        group.cancel_scope.cancel()
    assert known.principal("Bearer k") is None
    assert not known.knows(ann)
    assert known.required
    assert known.principal("Bearer b") is not None


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("2027-01-31", "2027-01-31T23:59:59.999999+00:00"),
        ('"2027-01-31T12:00:00"', "2027-01-31T12:00:00+00:00"),
        ("2027-01-31T12:00:00+02:00", "2027-01-31T12:00:00+02:00"),
        ("2027-01-31 12:00:00Z", "2027-01-31T12:00:00+00:00"),
    ],
)
def test_key_expiry_is_a_date_or_time_with_or_without_quotes(written: str, moment: str) -> None:
    (entry,) = parse(keys(f"[{{name: a, key: k, expires: {written}}}]"), environ={}).gateway.auth.api_keys
    assert entry.expires == datetime.fromisoformat(moment)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("[{name: a}]", "gateway.auth.apiKeys[0].key: is missing; expected either key or keyHash"),
        (f"[{{name: a, key: k, keyHash: '{HASH}'}}]", "gateway.auth.apiKeys[0].key: cannot be combined with keyHash"),
        ("[{name: a, keyHash: 'sha256:12'}]", "gateway.auth.apiKeys[0].keyHash: is not the hash of a key"),
        ("[{name: a, key: k, scopes: [metrics, tool]}]", "apiKeys[0].scopes[1]: is not a scope (tool); expected tools"),
        ("[{name: a, key: k, profiles: [sce]}]", "apiKeys[0].profiles: names an unknown profile (sce); expected sec"),
        ("[{name: a, key: k, expires: soon}]", "gateway.auth.apiKeys[0].expires: is not a date"),
        ("[{name: a, key: k, expires: 7}]", "gateway.auth.apiKeys[0].expires: is not a date"),
        ("[{name: a, key: k, profile: [sec]}]", "gateway.auth.apiKeys[0].profile: "),
        ("[{name: a, key: k}, {name: a, key: l, groups: [g]}]", "gives the name a to keys with different"),
        ("[{name: a, key: k}, {name: b, key: k}]", "gateway.auth.apiKeys: has the same key twice"),
    ],
)  # fmt: skip
def test_invalid_key_entry_stops_the_start_naming_its_location(written: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(keys(written), environ={})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "strong"),
    [("0123456789abcdef" * 2, True), ("0123456789abcdef" * 2 + "0", True), ("0123456789abcdef0123456789abcde", False),
     ("correct horse", False), ("1" * 38, False), ("1" * 39, True), ("Zz9" * 8, True), ("Zz9" * 7, False)],
)  # fmt: skip
def test_weak_key_is_refused_on_the_network_and_warned_about_on_loopback(
    text: str, strong: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = parse(keys(f"[{{name: a, key: '{text}'}}]"), environ={})
    check_exposure(config, host="127.0.0.1", insecure=False)
    assert ("typegate key new" in caplog.text) == (not strong)
    if strong:
        check_exposure(config, host="0.0.0.0", insecure=False)
        return
    with pytest.raises(ConfigError, match=r"gateway\.auth\.apiKeys\[0\]\.key: the key of a has at most"):
        check_exposure(config, host="0.0.0.0", insecure=False)
    check_exposure(config, host="0.0.0.0", insecure=True)
    assert text not in caplog.text
