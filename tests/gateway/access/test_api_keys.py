"""Keys of callers: which are found, for how long, and which are too weak."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from gateway.access.api_keys import ApiKeys
from gateway.config.auth import ApiKey
from gateway.config.load import parse
from gateway.errors import ConfigError
from gateway.serving.listen import check_reach

HASH = "sha256:" + hashlib.sha256(b"the key").hexdigest()


def key(**members: Any) -> ApiKey:
    return ApiKey.model_validate({"name": "ann", **members})


def keys(text: str) -> str:
    """A configuration with these keys, in YAML."""
    return f"gateway:\n  profiles: {{sec: {{}}}}\n  auth:\n    apiKeys: {text}\n"


def test_a_key_is_found_by_itself_or_by_its_hash_and_no_other_is() -> None:
    for entry in (key(key="the key"), key(keyHash=HASH)):
        known = ApiKeys([entry])
        found = known.principal("Bearer the key")
        assert found is not None
        assert found.name == "ann"
        for wrong in (None, "", "Bearer", "Bearer the  key", f"Bearer {HASH}", "Basic the key", "Bearer \u20ac"):
            assert known.principal(wrong) is None, wrong


def test_two_keys_of_one_name_are_one_caller_while_both_are_good() -> None:
    known = ApiKeys([key(key="old"), key(key="new")])
    old, new = known.principal("Bearer old"), known.principal("bearer new")
    assert old == new
    assert old is not None
    known.replace([key(key="new")])
    assert known.principal("Bearer old") is None
    assert known.knows(old)


async def test_a_key_is_good_until_it_expires_and_its_holders_are_told() -> None:
    end_s = datetime(2027, 1, 31, 23, 59, 59, 999999, UTC).timestamp()
    now_s = end_s - 1
    known = ApiKeys([key(key="k", expires="2027-01-31"), key(name="bob", key="b")], clock=lambda: now_s, poll_s=0.005)
    ann = known.principal("Bearer k")
    assert ann is not None
    told = anyio.Event()
    known.on_change(told.set)
    async with anyio.create_task_group() as group:
        group.start_soon(known.run)
        await anyio.sleep(0.02)
        assert not told.is_set()
        now_s = end_s + 1
        with anyio.fail_after(2):
            await told.wait()
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
def test_the_end_of_a_key_is_a_date_or_a_time_with_or_without_quotes(written: str, moment: str) -> None:
    (entry,) = parse(keys(f"[{{name: a, key: k, expires: {written}}}]"), environ={}).gateway.auth.api_keys
    assert entry.expires == datetime.fromisoformat(moment)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("[{name: a}]", "gateway.auth.apiKeys[0].key: is missing; expected either key or keyHash"),
        (f"[{{name: a, key: k, keyHash: '{HASH}'}}]", "gateway.auth.apiKeys[0].key: stands beside keyHash"),
        ("[{name: a, keyHash: 'sha256:12'}]", "gateway.auth.apiKeys[0].keyHash: is no hash of a key"),
        ("[{name: a, key: k, scopes: [metrics, tool]}]", "apiKeys[0].scopes[1]: is no scope (tool); expected tools"),
        ("[{name: a, key: k, profiles: [sce]}]", "apiKeys[0].profiles: names no profile (sce); expected sec"),
        ("[{name: a, key: k, expires: soon}]", "gateway.auth.apiKeys[0].expires: is no date"),
        ("[{name: a, key: k, expires: 7}]", "gateway.auth.apiKeys[0].expires: is no date"),
        ("[{name: a, key: k, profile: [sec]}]", "gateway.auth.apiKeys[0].profile: "),
        ("[{name: a, key: k}, {name: a, key: l, groups: [g]}]", "apiKeys[1].name: gives the name a to keys with other"),
        ("[{name: a, key: k}, {name: b, key: k}]", "gateway.auth.apiKeys: gives one key twice"),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_meant_stops_the_start_with_its_place(written: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(keys(written), environ={})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "strong"),
    [("0123456789abcdef" * 2, True), ("0123456789abcdef" * 2 + "0", True), ("0123456789abcdef0123456789abcde", False),
     ("correct horse", False), ("1" * 38, False), ("1" * 39, True), ("Zz9" * 8, True), ("Zz9" * 7, False)],
)  # fmt: skip
def test_a_key_that_can_be_guessed_is_refused_on_the_network_and_warned_of_on_this_machine(
    text: str, strong: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = parse(keys(f"[{{name: a, key: '{text}'}}]"), environ={})
    check_reach(config, host="127.0.0.1", insecure=False)
    assert ("typegate key new" in caplog.text) == (not strong)
    if strong:
        check_reach(config, host="0.0.0.0", insecure=False)
        return
    with pytest.raises(ConfigError, match=r"gateway\.auth\.apiKeys\[0\]\.key: the key of a has at most"):
        check_reach(config, host="0.0.0.0", insecure=False)
    check_reach(config, host="0.0.0.0", insecure=True)
    assert text not in caplog.text
