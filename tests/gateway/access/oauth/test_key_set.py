"""Keys of an issuer: where they are found, how long they are trusted, and when they are fetched again."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import anyio
import pytest
from support.fake_issuer import SigningKey, other_key, part
from support.offline_issuer import START_S, Issuer, config_of, running
from support.virtual_time import in_virtual_time

from gateway.access.oauth.key_set import (
    GRACE_S,
    MAX_DOCUMENT_BYTES,
    REFRESH_S,
    UNKNOWN_KEY_S,
    Fetched,
    FetchFailed,
    Key,
    KeySet,
    fetch_object,
    find_jwks_uri,
    metadata_urls,
)
from gateway.protocol.gateway_errors import ConnectionLost

URL = "https://id.example.test"
KEY = SigningKey("first").public


def key_set(issuer: Issuer, **members: Any) -> KeySet:
    return KeySet(config_of(issuer, **members).issuers[0], issuer.fetch, clock=lambda: issuer.now_s)


class Site:
    """Responds with documents by URL, and records the requests."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self.documents = documents
        self.requests: list[tuple[str, str, Mapping[str, str], bytes, int]] = []

    async def fetch(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, limit_bytes: int
    ) -> Fetched:
        self.requests.append((method, url, headers, body, limit_bytes))
        answer = self.documents.get(url, 404)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return Fetched(status=answer, body=b"{}")
        return Fetched(status=200, body=answer if isinstance(answer, bytes) else json.dumps(answer).encode())


async def test_object_is_fetched_by_get_or_sent_as_a_form() -> None:
    site = Site({URL: {"a": 1}})
    assert await fetch_object(site.fetch, URL) == {"a": 1}
    assert await fetch_object(site.fetch, URL, headers={"authorization": "Basic x"}, form=b"token=t") == {"a": 1}
    json_only = {"accept": "application/json"}
    form = {**json_only, "authorization": "Basic x", "content-type": "application/x-www-form-urlencoded"}
    assert site.requests == [
        ("GET", URL, json_only, b"", MAX_DOCUMENT_BYTES),
        ("POST", URL, form, b"token=t", MAX_DOCUMENT_BYTES),
    ]


@pytest.mark.parametrize("body", [b'\xef\xbb\xbf{"a": 1}', b'{"a": 1}'])
async def test_byte_order_mark_before_an_object_is_ignored(body: bytes) -> None:
    assert await fetch_object(Site({URL: body}).fetch, URL) == {"a": 1}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (404, "HTTP 404"),
        (201, "HTTP 201"),
        (199, "HTTP 199"),
        (b"<p>", "is not JSON"),
        ([], "is not a JSON object"),
        (ConnectionLost("it is down", sent=False), "it is down"),
        (TimeoutError("too slow"), "too slow"),
        (ValueError("no such host"), "no such host"),
    ],
)
async def test_other_responses_than_an_object_are_failures(answer: Any, problem: str) -> None:
    with pytest.raises(FetchFailed, match=f"^{URL}: .*{problem}$"):
        await fetch_object(Site({URL: answer}).fetch, URL)


@pytest.mark.parametrize("at", range(3))
async def test_first_valid_metadata_counts(at: int) -> None:
    issuer = f"{URL}/realm"
    urls = metadata_urls(issuer)
    documents: dict[str, Any] = dict(zip(urls, (404, {"issuer": "https://other.test"}), strict=False))
    documents[urls[at]] = {"issuer": issuer, "jwks_uri": f"{URL}/jwks-{at}"}
    site = Site(documents)
    assert await find_jwks_uri(site.fetch, issuer) == f"{URL}/jwks-{at}"
    assert [request[1] for request in site.requests] == list(urls[: at + 1])


async def test_every_problem_of_the_metadata_is_reported() -> None:
    issuer = f"{URL}/realm"
    first, second, third = metadata_urls(issuer)
    wrong = {"issuer": "https://other.test", "jwks_uri": f"{URL}/jwks"}
    with pytest.raises(FetchFailed) as failed:
        await find_jwks_uri(Site({second: wrong, third: {"issuer": issuer, "jwks_uri": 7}}).fetch, issuer)
    expected = f"{first}: HTTP 404; {second}: the metadata is for another issuer; {third}: jwks_uri is not an https URL"
    assert str(failed.value) == expected


@pytest.mark.parametrize(
    ("issuer", "jwks_uri", "is_trusted"),
    [
        (URL, "https://keys.example.test/jwks", True),
        (URL, "http://keys.example.test/jwks", False),
        (URL, "http://127.0.0.1/jwks", False),
        ("http://127.0.0.1:9", "http://127.0.0.1:9/jwks", True),
        ("http://127.0.0.1:9", "https://keys.example.test/jwks", True),
        ("http://127.0.0.1:9", "http://192.0.2.1/jwks", False),
        (URL, "file:///etc/passwd", False),
        (URL, None, False),
    ],
)
async def test_keys_are_fetched_only_over_a_connection_as_safe_as_the_issuer(
    issuer: str, jwks_uri: Any, is_trusted: bool
) -> None:
    metadata = {"issuer": issuer, "jwks_uri": jwks_uri}
    site = Site(dict.fromkeys(metadata_urls(issuer), metadata))
    if is_trusted:
        assert await find_jwks_uri(site.fetch, issuer) == jwks_uri
    else:
        with pytest.raises(FetchFailed, match="jwks_uri is not an https URL"):
            await find_jwks_uri(site.fetch, issuer)


RSA = {"RS256", "PS256"}
ED25519 = {"kty": "OKP", "crv": "Ed25519"}


@pytest.mark.parametrize(
    ("members", "algorithms", "is_for"),
    [
        ({}, RSA, True),
        ({}, {"ES256"}, False),
        ({}, {"ES256", "RS256"}, True),
        ({"use": "sig"}, RSA, True),
        ({"use": "enc"}, RSA, False),
        ({"use": ["sig"]}, RSA, False),
        ({"key_ops": ["sign", "verify"]}, RSA, True),
        ({"key_ops": "verify"}, RSA, True),
        ({"key_ops": ["sign"]}, RSA, False),
        ({"key_ops": "verifying"}, RSA, False),
        ({"alg": "RS256"}, RSA, True),
        ({"alg": "RS512"}, RSA, False),
        ({"alg": "ES256"}, {"ES256"}, False),
        ({"alg": ["RS256"]}, RSA, False),
        (ED25519, {"Ed25519"}, True),
        (ED25519, {"Ed448"}, False),
        ({**ED25519, "alg": "EdDSA"}, {"Ed25519"}, True),
        ({**ED25519, "alg": "EdDSA"}, {"Ed448"}, False),
        ({"kty": "EC", "crv": "P-256"}, {"ES256"}, True),
        ({"kty": "EC", "crv": "P-384"}, {"ES256"}, False),
        ({"kty": "EC", "crv": "Ed25519"}, {"Ed25519"}, False),
        ({"kty": "EC"}, {"ES256"}, False),
    ],
)
def test_key_is_for_the_algorithms_that_its_members_permit(
    members: dict[str, Any], algorithms: set[str], is_for: bool
) -> None:
    assert Key({"kty": "RSA", **members}, 0.0).is_for(algorithms) is is_for


def test_key_id_is_a_text() -> None:
    assert [Key({"kid": each}, 0.0).id for each in ("k", "", 7, None)] == ["k", "", None, None]


def test_key_object_is_created_once_for_each_algorithm() -> None:
    key = Key(KEY, 0.0)
    assert key.for_algorithm("RS256") is key.for_algorithm("RS256")
    with pytest.raises(ValueError, match="malformed"):
        key.for_algorithm("ES256")


def rsa_key(*, bits: int, exponent: int = 65537) -> Key:
    modulus = (1 << (bits - 1)) + 1
    numbers = {
        "n": part(modulus.to_bytes((bits + 7) // 8, "big")),
        "e": part(exponent.to_bytes(8, "big").lstrip(b"\0")),
    }
    return Key({"kty": "RSA", **numbers}, 0.0)


@pytest.mark.parametrize(
    ("bits", "exponent", "is_usable"),
    [
        (2047, 65537, False),
        (2048, 65537, True),
        (8192, 65537, True),
        (8193, 65537, False),
        (2048, 2**32 - 1, True),
        (2048, 2**32 + 1, False),
    ],
)
def test_rsa_key_is_neither_weak_nor_expensive(bits: int, exponent: int, is_usable: bool) -> None:
    key = rsa_key(bits=bits, exponent=exponent)
    if is_usable:
        assert key.for_algorithm("RS256").key_size == bits
    else:
        with pytest.raises(ValueError, match="too short or too expensive"):
            key.for_algorithm("RS256")


def test_key_is_the_same_only_with_equal_members() -> None:
    assert Key(KEY, 0.0).is_same(dict(KEY))
    assert not Key(KEY, 0.0).is_same({**KEY, "alg": "RS256"})


def ids(keys: KeySet, key_id: str | None, algorithms: frozenset[str] = frozenset({"RS256"})) -> list[str | None]:
    return [key.id for key in keys.candidates(key_id, algorithms)]


async def test_candidates_have_the_id_of_the_token_or_none() -> None:
    issuer = Issuer()
    without_id = {name: value for name, value in KEY.items() if name != "kid"}
    published = [{**KEY, "kid": "a"}, {**KEY, "kid": "b"}, without_id, {**ED25519, "kid": "a", "x": "AQ"}]
    issuer.documents["/jwks"] = {"keys": published}
    keys = key_set(issuer)
    assert ids(keys, None) == []
    await keys.refresh()
    assert ids(keys, None) == ["a", "b", None]
    assert ids(keys, "b") == ["b"]
    assert ids(keys, "unknown") == [None]
    assert ids(keys, "a", frozenset({"Ed25519"})) == ["a"]
    assert ids(keys, "b", frozenset({"Ed25519"})) == []


@pytest.mark.parametrize(
    ("published", "problem"),
    [
        ({}, "has no keys"),
        ({"keys": {}}, "has no keys"),
        ({"keys": []}, "has no usable key"),
        ({"keys": [{**KEY, "d": "AQ"}, {"kty": "oct", "k": "AQ"}, None]}, "has no usable key"),
        ({"keys": [KEY] * 101}, "has more than 100 keys"),
        ({"keys": [*[KEY] * 100, {"kty": "oct", "k": "AQ"}]}, ""),
        ({"keys": [{**KEY, "d": None, "alg": None}]}, ""),
    ],
)
async def test_key_set_needs_a_usable_key_and_not_too_many(published: Any, problem: str) -> None:
    issuer = Issuer()
    issuer.documents["/jwks"] = published
    keys = key_set(issuer)
    assert "not been fetched" in keys.problem
    await keys.refresh()
    assert keys.available is (not problem)
    assert keys.problem == (f"{issuer.url}/jwks: the key set {problem}" if problem else "")


async def test_fetched_keys_are_trusted_for_hours_without_another_fetch() -> None:
    issuer = Issuer()
    keys = key_set(issuer)
    await keys.refresh()
    issuer.down = True
    issuer.now_s = START_S + GRACE_S - 1
    await keys.refresh()
    assert "it is down" in keys.problem
    assert keys.available
    assert ids(keys, "first") == ["first"]
    issuer.now_s = START_S + GRACE_S
    assert not keys.available
    assert ids(keys, "first") == []


async def test_each_fetch_extends_the_trust_in_a_key() -> None:
    issuer = Issuer()
    keys = key_set(issuer)
    await keys.refresh()
    (key,) = keys.candidates("first", {"RS256"})
    issuer.now_s += GRACE_S - 1
    await keys.refresh()
    issuer.now_s += GRACE_S - 1
    # It is the same object, so that tokens that it has verified stay valid with it.
    assert keys.candidates("first", {"RS256"}) == [key]
    assert key.good_until_s == issuer.now_s + 1


async def test_withdrawn_key_is_trusted_a_little_longer_and_never_longer_than_before() -> None:
    issuer = Issuer()
    keys = key_set(issuer)
    await keys.refresh()
    issuer.keys = [other_key("second")]
    issuer.now_s += 10
    await keys.refresh()
    assert ids(keys, None) == ["second", "first"]
    # A later fetch does not extend the time of the withdrawn key.
    issuer.now_s += REFRESH_S - 1
    await keys.refresh()
    assert ids(keys, None) == ["second", "first"]
    issuer.now_s += 1
    assert ids(keys, None) == ["second"]
    await keys.refresh()
    assert ids(keys, None) == ["second"]

    late = Issuer()
    keys = key_set(late)
    await keys.refresh()
    late.now_s += GRACE_S - 1
    late.keys = [other_key("second")]
    await keys.refresh()
    late.now_s += 1
    assert ids(keys, None) == ["second"]


async def test_key_that_returns_after_its_withdrawal_is_trusted_again() -> None:
    issuer = Issuer()
    own = issuer.keys
    keys = key_set(issuer)
    for published in (own, [other_key("second")], own):
        issuer.keys = published
        await keys.refresh()
    issuer.now_s += REFRESH_S
    assert ids(keys, None) == ["first"]


async def test_most_recently_withdrawn_keys_stay_trusted_within_a_limit() -> None:
    issuer = Issuer()
    keys = key_set(issuer)
    for name, count in (("a", 50), ("b", 100), ("c", 1)):
        issuer.documents["/jwks"] = {"keys": [{**KEY, "kid": f"{name}{number}"} for number in range(count)]}
        await keys.refresh()
    assert ids(keys, None) == ["c0", *(f"b{number}" for number in range(100))]


async def test_key_url_is_looked_up_again_after_a_failure() -> None:
    issuer = Issuer()
    keys = key_set(issuer)
    await keys.refresh()
    await keys.refresh()
    well_known = "/.well-known/oauth-authorization-server"
    assert issuer.requests == [well_known, "/jwks", "/jwks"]
    issuer.documents |= {"/jwks": None, "/moved": {"keys": [KEY]}}
    issuer.documents[well_known] = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/moved"}
    await keys.refresh()
    await keys.refresh()
    assert issuer.requests[3:] == ["/jwks", well_known, "/moved"]
    assert keys.problem == ""


async def test_configured_key_url_is_kept_after_a_failure() -> None:
    issuer = Issuer()
    keys = key_set(issuer, jwksUri=f"{URL}/jwks")
    issuer.down = True
    await keys.refresh()
    issuer.down = False
    await keys.refresh()
    assert issuer.requests == ["/jwks", "/jwks"]
    assert keys.available


async def test_only_the_first_of_consecutive_failures_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    issuer = Issuer()
    keys = key_set(issuer)
    counts = []
    for is_down in (False, True, True, True, False, False, True):
        issuer.down = is_down
        await keys.refresh()
        counts.append(len(caplog.records))
    assert counts == [0, 1, 1, 1, 2, 2, 3]


async def test_unknown_key_may_cause_a_fetch_once_a_minute() -> None:
    issuer = Issuer()
    keys = key_set(issuer)
    assert keys.may_request_fetch
    await keys.refresh()
    assert keys.may_request_fetch
    async with anyio.create_task_group() as group:
        group.start_soon(keys.request_fetch)
        await anyio.lowlevel.checkpoint()
        # Other tokens may wait for the requested fetch.
        assert keys.may_request_fetch
        group.start_soon(keys.run)
        while issuer.count("/jwks") < 2:
            await anyio.lowlevel.checkpoint()
        assert keys.may_request_fetch  # during the fetch
        await anyio.wait_all_tasks_blocked()
        assert not keys.may_request_fetch
        issuer.now_s += UNKNOWN_KEY_S - 1
        assert not keys.may_request_fetch
        issuer.now_s += 1
        assert keys.may_request_fetch
        group.cancel_scope.cancel()


async def test_without_keys_every_token_may_cause_a_fetch_after_a_short_pause() -> None:
    issuer = Issuer(down=True)
    keys = key_set(issuer)
    await keys.refresh()
    assert not keys.may_request_fetch
    issuer.now_s += 1.5
    assert not keys.may_request_fetch
    issuer.now_s += 0.5
    assert keys.may_request_fetch
    await keys.refresh()
    assert not keys.may_request_fetch


@in_virtual_time
async def test_keys_are_fetched_periodically_and_sooner_after_a_failure() -> None:
    issuer = Issuer()
    keys = key_set(issuer)
    began_s = anyio.current_time()
    at_s: list[float] = []

    async def fetches() -> None:
        count = 0
        while True:
            if issuer.count("/jwks") > count:
                count = issuer.count("/jwks")
                at_s.append(anyio.current_time() - began_s)
            await anyio.sleep(1)

    async with running(keys.run), running(fetches):
        await anyio.sleep(REFRESH_S + 50)
        assert at_s == pytest.approx([0, REFRESH_S], abs=2)
        issuer.documents["/jwks"] = {}
        await anyio.sleep(REFRESH_S)
        issuer.documents.clear()
        await anyio.sleep(20)
        assert keys.problem == ""
        pauses = [later - earlier for earlier, later in pairwise(at_s)]
        assert pauses == pytest.approx([REFRESH_S, REFRESH_S, 15, 15, 15, 15], abs=2)


@in_virtual_time
async def test_caller_waits_for_a_fetch_only_for_seconds() -> None:
    keys = key_set(Issuer())
    began_s = anyio.current_time()
    await keys.request_fetch()  # nothing runs that could fetch
    assert anyio.current_time() - began_s == pytest.approx(6, abs=0.1)


@in_virtual_time
async def test_all_waiting_callers_share_a_fetch_and_its_end() -> None:
    issuer = Issuer()
    keys = key_set(issuer)
    began_s = anyio.current_time()
    async with running(keys.run):
        for _ in range(2):
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(keys.request_fetch)
    assert issuer.count("/jwks") == 2
    assert anyio.current_time() - began_s < 1


@in_virtual_time
async def test_requested_fetch_looks_up_the_key_url_again() -> None:
    issuer = Issuer()
    keys = key_set(issuer)
    async with running(keys.run):
        await keys.request_fetch()
        issuer.documents |= {
            "/.well-known/oauth-authorization-server": {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/moved"},
            "/moved": {"keys": [other_key("second").public]},
        }
        await keys.request_fetch()
        assert ids(keys, "second") == ["second"]


@in_virtual_time
async def test_slow_issuer_is_given_up_after_seconds() -> None:
    async def never(*_: Any, **__: Any) -> Fetched:
        await anyio.sleep_forever()
        raise AssertionError

    issuer = Issuer()
    keys = KeySet(config_of(issuer).issuers[0], never)
    began_s = anyio.current_time()
    await keys.refresh()
    assert keys.problem == "no keys within 12 s"
    assert anyio.current_time() - began_s == pytest.approx(12, abs=0.1)
