"""API keys: lookup, expiry and strength."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from support.virtual_time import in_virtual_time

from gateway.access.credentials import ApiKeys, key_row, principal_of
from gateway.access.principal import LOCAL, Principal
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
        found = known.find_by_text("the key")
        assert found is not None
        assert found.name == "ann"
        assert known.find_by_text(" the key\n") == found
        assert known.find_by_digest(hashlib.sha256(b"the key").digest()) == found
        assert known.has(hashlib.sha256(b"the key").digest())
        for wrong in ("", "the  key", HASH, "\u20ac", "\ud800"):
            assert known.find_by_text(wrong) is None, wrong
            assert not known.has(hashlib.sha256(wrong.encode("utf-8", "replace")).digest())


@pytest.mark.parametrize("text", ["schlüssel", "voilà", "鍵"])
def test_key_may_have_other_characters(text: str) -> None:
    assert ApiKeys([key(key=text)]).find_by_text(text) is not None


def test_without_keys_only_the_local_caller_is_known() -> None:
    known = ApiKeys([])
    assert not known.required
    assert known.knows(LOCAL)
    assert not known.knows(Principal(name="ann"))
    assert known.find_by_text("") is None
    known.replace([key(key="k")])
    assert known.required
    assert not known.knows(LOCAL)


def test_two_keys_with_one_name_are_one_caller() -> None:
    known = ApiKeys([key(key="old"), key(key="new")])
    old, new = known.find_by_text("old"), known.find_by_text("new")
    assert old == new
    assert old is not None
    known.replace([key(key="new")])
    assert known.find_by_text("old") is None
    assert known.knows(old)
    assert not known.knows(Principal(name="bob"))
    assert not known.knows(Principal(name="ann", scopes=frozenset({"tools"})))


@pytest.mark.parametrize(
    ("members", "rights"),
    [
        ({}, {}),
        ({"scopes": ["tools", "metrics"]}, {"scopes": frozenset({"tools", "metrics"})}),
        ({"groups": ["a", "b"]}, {"groups": frozenset({"a", "b"})}),
        ({"profiles": ["dev"]}, {"profiles": frozenset({"dev"})}),
        ({"profiles": []}, {"profiles": frozenset()}),
    ],
)
def test_principal_has_the_rights_of_the_key(members: dict[str, Any], rights: dict[str, Any]) -> None:
    assert principal_of(key(key="k", **members)) == Principal(name="ann", **rights)


END_S = datetime(2027, 1, 31, 23, 59, 59, 999999, UTC).timestamp()


@in_virtual_time
async def test_key_is_valid_until_it_expires_and_holders_are_notified_once() -> None:
    now_s = END_S - 1
    known = ApiKeys([key(key="k", expires="2027-01-31"), key(name="bob", key="b")], clock=lambda: now_s)
    ann, bob = known.find_by_text("k"), known.find_by_text("b")
    assert ann is not None
    assert bob is not None
    changes: list[float] = []
    known.on_change(lambda: changes.append(now_s))
    async with anyio.create_task_group() as group:
        group.start_soon(known.run)
        for now_s, is_valid in ((END_S - 0.5, True), (END_S, False), (END_S + 1, False)):  # noqa: B007
            await anyio.sleep(2.5)
            assert (known.find_by_text("k") is not None) is is_valid
            assert known.knows(ann) is is_valid
            assert known.knows(bob)
            assert known.find_by_text("b") is not None
        group.cancel_scope.cancel()
    assert changes == [END_S]
    assert known.required


@in_virtual_time
async def test_holders_of_keys_without_an_expiry_are_not_notified() -> None:
    now_s = END_S
    known = ApiKeys([key(key="k")], clock=lambda: now_s)
    changes: list[float] = []
    known.on_change(lambda: changes.append(now_s))
    async with anyio.create_task_group() as group:
        group.start_soon(known.run)
        for _ in range(3):
            now_s += 10
            await anyio.sleep(2.5)
        group.cancel_scope.cancel()
    assert changes == []


def test_revoked_keys_are_rejected_even_if_they_are_configured_again() -> None:
    known = ApiKeys([key(key="k"), key(name="bob", key="b")])
    ann = known.find_by_text("k")
    assert ann is not None
    changes: list[int] = []
    known.on_change(lambda: changes.append(1))
    digest = hashlib.sha256(b"k").hexdigest()
    known.revoke([digest])
    assert (known.find_by_text("k"), known.knows(ann), known.revoked, changes) == (None, False, {digest}, [1])
    assert known.find_by_text("b") is not None
    known.revoke([digest])
    assert changes == [1]
    known.revoke(["0" * 64])
    assert (known.revoked, changes) == ({digest, "0" * 64}, [1, 1])
    known.replace([key(key="k")])
    assert known.find_by_text("k") is None
    # Without an accepted key, nobody becomes a local caller.
    assert known.required
    assert not known.knows(LOCAL)
    assert known.has(hashlib.sha256(b"k").digest())


def test_withheld_keys_are_rejected_until_they_are_accepted() -> None:
    known = ApiKeys([key(key="k"), key(name="bob", key="b")])
    changes: list[int] = []
    known.on_change(lambda: changes.append(1))
    assert not known.withheld
    known.withhold()
    assert (known.withheld, known.find_by_text("k"), known.find_by_text("b"), changes) == (True, None, None, [1])
    known.replace([key(key="k")])
    assert known.find_by_text("k") is None
    known.revoke([hashlib.sha256(b"b").hexdigest()])
    known.accept()
    assert not known.withheld
    assert known.find_by_text("k") is not None
    assert len(changes) == 4
    known.replace([key(key="k"), key(name="bob", key="b")])
    assert known.find_by_text("b") is None


def test_row_of_a_key_shows_its_rights_but_not_the_key() -> None:
    assert key_row(key(key="the key")) == {
        "name": "ann", "hash": None, "state": "good", "profiles": "all", "scopes": "all", "groups": "", "expires": None,
    }  # fmt: skip
    members = {"profiles": ["a", "b"], "scopes": ["tools", "metrics"], "groups": ["x", "y"], "expires": "2999-01-31"}
    assert key_row(key(keyHash=HASH, **members)) == {
        "name": "ann", "hash": HASH.removeprefix("sha256:")[:12], "state": "good", "profiles": "a, b",
        "scopes": "tools, metrics", "groups": "x, y", "expires": "2999-01-31T23:59:59+00:00",
    }  # fmt: skip
    row = key_row(key(key="k", profiles=[], expires="2001-01-31"))
    assert (row["state"], row["profiles"]) == ("expired", "none")


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
