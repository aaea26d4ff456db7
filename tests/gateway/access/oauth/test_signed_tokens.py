"""Signed tokens: verification, caches at their limits, and what a change of keys or of the configuration revokes."""

from __future__ import annotations

import base64
import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from support.fake_issuer import other_key, part
from support.offline_issuer import START_S, Issuer, at_once, config_of, known, look, running, token_of_length
from support.virtual_time import in_virtual_time

from gateway.access.oauth.access_tokens import Tokens
from gateway.access.oauth.claims import MAX_TOKEN_BYTES
from gateway.access.oauth.key_set import REFRESH_S, Fetched
from gateway.access.principal import Principal, Refusal

JWKS = {"jwksUri": "https://id.example.test/jwks"}


def refusal(outcome: Principal | Refusal | None) -> Refusal:
    assert isinstance(outcome, Refusal)
    return outcome


def principal(outcome: Principal | Refusal | None) -> Principal:
    assert isinstance(outcome, Principal)
    return outcome


async def test_token_of_the_maximum_size_is_accepted() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        principal(await look(found, token_of_length(issuer, MAX_TOKEN_BYTES)))
        refused = refusal(at_once(found, token_of_length(issuer, MAX_TOKEN_BYTES + 1)))
        assert refused.description == "the token is too long"


async def test_text_of_a_token_is_known_while_it_is_cached() -> None:
    issuer = Issuer()
    async with known(issuer, {"most_good": 1}) as found:
        first, second = issuer.token(), issuer.token(sub="bob")
        who = principal(await look(found, first))
        assert found.text_of(who) == first
        bob = principal(at_once(found, second))
        assert (found.text_of(who), found.text_of(bob)) == (None, second)
        # Without introspection the principal alone shows how long the token is valid.
        assert found.knows(who)


async def test_keys_are_given_only_for_accepted_issuers() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        keys = found.keys_of(issuer.url)
        assert keys is not None
        assert keys.issuer.issuer == issuer.url
        assert found.keys_of("https://other.test") is None


@pytest.mark.parametrize(
    ("claims", "problem"),
    [({"iss": "https://other.test"}, "an issuer that is not accepted"), ({"aud": "other"}, "another service")],
)
async def test_token_for_others_is_refused_without_a_request(claims: dict[str, Any], problem: str) -> None:
    issuer = Issuer()
    tokens = Tokens(config_of(issuer), issuer.fetch, clock=lambda: issuer.now_s)
    refused = refusal(at_once(tokens, issuer.token(**claims)))
    assert problem in refused.description
    assert (refused.status, refused.bearer_of_token) == (401, True)
    assert issuer.requests == []


async def test_missing_scope_is_reported_only_for_a_valid_signature() -> None:
    issuer = Issuer()
    async with known(issuer, requiredScopes=["new"]) as found:
        assert refusal(await look(found, issuer.token())).status == 403
        forged = refusal(await look(found, issuer.token(key=other_key("first"))))
        assert (forged.status, forged.description) == (401, "the signature of the token is wrong")
        assert issuer.count("/jwks") == 1


async def test_token_without_a_key_id_is_tried_with_a_limited_number_of_keys() -> None:
    issuer = Issuer()
    own, strange = issuer.keys[0].public, other_key().public
    for place, is_found in ((7, True), (8, False)):
        issuer.documents["/jwks"] = {"keys": [{**strange, "kid": f"k{number}"} for number in range(place)] + [own]}
        async with known(issuer) as found:
            outcome = await look(found, issuer.token(header={"kid": None}))
            assert isinstance(outcome, Principal) is is_found


@pytest.mark.parametrize(
    ("published_id", "token_id", "problem", "fetches"),
    [
        ("first", "first", "signature of the token is wrong", 1),
        ("first", "second", "does not publish", 2),
        ("first", None, "does not publish", 2),
        (None, "first", "does not publish", 2),
        (None, None, "does not publish", 2),
    ],
)
async def test_wrong_signature_causes_a_fetch_only_if_another_key_could_fit(
    published_id: str | None, token_id: str | None, problem: str, fetches: int
) -> None:
    issuer = Issuer()
    issuer.documents["/jwks"] = {"keys": [{**issuer.keys[0].public, "kid": published_id}]}
    async with known(issuer) as found:
        principal(await look(found, issuer.token()))
        refused = refusal(await look(found, issuer.token(key=other_key("x"), header={"kid": token_id})))
        assert problem in refused.description
        assert issuer.count("/jwks") == fetches


async def test_refusal_of_an_unknown_key_is_not_cached() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        principal(await look(found, issuer.token()))
        token = issuer.token(key=other_key("second"))
        assert "does not publish" in refusal(await look(found, token)).description
        issuer.keys = [other_key("second")]
        assert isinstance(at_once(found, token), Refusal)
        issuer.now_s += 60
        principal(await look(found, token))


async def test_refusal_is_cached_for_half_a_minute() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        principal(await look(found, issuer.token()))
        early = issuer.token(nbf=START_S + 61)
        refused = refusal(at_once(found, early))
        issuer.now_s += 29.9
        assert at_once(found, early) is refused
        issuer.now_s += 0.1
        principal(at_once(found, early))


async def test_only_the_oldest_refusals_are_dropped() -> None:
    issuer = Issuer()
    tokens = Tokens(config_of(issuer), issuer.fetch, clock=lambda: issuer.now_s, most_bad=2)
    refused = [at_once(tokens, f"garbage {number}") for number in range(3)]
    assert at_once(tokens, "garbage 2") is refused[2]
    assert at_once(tokens, "garbage 1") is refused[1]
    assert at_once(tokens, "garbage 0") is not refused[0]


async def test_oldest_valid_token_is_dropped_and_a_full_cache_keeps_the_others() -> None:
    issuer = Issuer()
    async with known(issuer, {"most_good": 2}) as found:
        tokens = [issuer.token(sub=f"s{number}") for number in range(3)]
        seen = [principal(await look(found, token)) for token in tokens]
        assert [found.text_of(who) for who in seen] == [None, *tokens[1:]]
        assert at_once(found, tokens[2]) is seen[2]
        assert at_once(found, tokens[1]) is seen[1]


async def test_principal_is_known_until_its_token_expires() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        token = issuer.token(exp=START_S + 100)
        who = principal(await look(found, token))
        issuer.now_s = START_S + 99.9
        assert found.knows(who)
        issuer.now_s = START_S + 100
        assert not found.knows(who)
        assert found.may_finish(who)
        # New requests may still use the token for a minute.
        issuer.now_s = START_S + 159.9
        assert at_once(found, token) is who
        issuer.now_s = START_S + 160
        assert "expired" in refusal(at_once(found, token)).description


async def test_principal_of_another_issuer_is_not_known() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        stranger = Principal(name="ann@other.test", issuer="https://other.test")
        assert (found.knows(stranger), found.may_finish(stranger)) == (False, False)


@in_virtual_time
async def test_holders_are_notified_once_when_a_token_expires_and_it_is_dropped_later() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        who = principal(await look(found, issuer.token(exp=START_S + 100)))
        changes: list[float] = []
        found.on_change(lambda: changes.append(issuer.now_s))
        for now_s in (50, 99.9, 100, 100.1, 159.9):
            issuer.now_s = START_S + now_s
            await anyio.sleep(2.5)
            assert found.text_of(who) is not None
        assert changes == [START_S + 100]
        issuer.now_s = START_S + 160
        await anyio.sleep(2.5)
        assert found.text_of(who) is None
        assert changes == [START_S + 100]
        # What the caller has begun may end.
        assert (found.knows(who), found.may_finish(who)) == (False, True)


@in_virtual_time
async def test_tokens_of_a_withdrawn_key_are_revoked_when_its_time_ends() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        old = issuer.keys[0]
        who = principal(await look(found, issuer.token(key=old, exp=START_S + 9000)))
        issuer.keys = [other_key("second")]
        bob = principal(await look(found, issuer.token(sub="bob", exp=START_S + 9000)))
        changes: list[float] = []
        found.on_change(lambda: changes.append(issuer.now_s))
        for passed_s, is_known in ((REFRESH_S - 0.1, True), (REFRESH_S, False)):
            issuer.now_s = START_S + passed_s
            await anyio.sleep(2.5)
            assert (found.knows(who), found.may_finish(who), found.knows(bob)) == (is_known, is_known, True)
        assert changes == [START_S + REFRESH_S]


async def test_new_configuration_clears_refusals_and_notifies_holders() -> None:
    issuer = Issuer()
    async with known(issuer, requiredScopes=["new"]) as found:
        token = issuer.token()
        assert refusal(await look(found, token)).status == 403
        changes: list[int] = []
        found.on_change(lambda: changes.append(1))
        found.replace(config_of(issuer))
        assert changes == [1]
        who = principal(await look(found, token))
        assert found.text_of(who) == token


async def test_token_is_revoked_if_a_new_configuration_maps_it_to_other_rights_and_back() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        token = issuer.token(groups=["a"], roles=["b"])
        who = principal(await look(found, token))
        found.replace(config_of(issuer, claims={"groups": "roles"}))
        assert (found.knows(who), found.may_finish(who)) == (False, False)
        other = principal(await look(found, token))
        assert other.groups == {"b"}
        # The same token is valid with its new rights.
        assert found.knows(other)


async def test_keys_are_kept_by_a_new_configuration_unless_their_url_changes() -> None:
    issuer = Issuer()
    issuer.documents["/moved"] = {"keys": [other_key("second").public]}
    tokens = Tokens(config_of(issuer, **JWKS), issuer.fetch, clock=lambda: issuer.now_s)
    async with running(tokens.run):
        who = principal(await look(tokens, issuer.token()))
        keys = tokens.keys_of(issuer.url)
        tokens.replace(config_of(issuer, **JWKS, requiredScopes=["mcp"]))
        assert tokens.keys_of(issuer.url) is keys
        assert keys is not None
        assert keys.issuer.required_scopes == ["mcp"]
        principal(at_once(tokens, issuer.token(sub="bob")))
        assert tokens.knows(who)
        tokens.replace(config_of(issuer, jwksUri="https://id.example.test/moved"))
        assert not tokens.may_finish(who)
        principal(await look(tokens, issuer.token(key=other_key("second"))))


async def test_keys_of_a_new_issuer_are_fetched_at_once_and_those_of_a_removed_one_no_longer() -> None:
    issuer = Issuer()
    tokens = Tokens(None, issuer.fetch, clock=lambda: issuer.now_s)
    assert not tokens.accepted
    async with running(tokens.run):
        await anyio.wait_all_tasks_blocked()
        assert issuer.requests == []
        tokens.replace(config_of(issuer, **JWKS))
        assert tokens.accepted
        await anyio.wait_all_tasks_blocked()
        assert issuer.requests == ["/jwks"]
        principal(at_once(tokens, issuer.token()))
        keys = tokens.keys_of(issuer.url)
        tokens.replace(None)
        await anyio.wait_all_tasks_blocked()
        assert keys is not None
        with anyio.move_on_after(0):
            await keys.request_fetch()
        await anyio.wait_all_tasks_blocked()
        assert issuer.requests == ["/jwks"]


@pytest.mark.parametrize("has_keys", [True, False])
@in_virtual_time
async def test_second_fetch_finds_a_key_that_the_fetch_in_progress_misses(has_keys: bool) -> None:
    issuer = Issuer()
    is_open = anyio.Event()

    async def slow(method: str, url: str, headers: Any, body: bytes, *, limit_bytes: int) -> Fetched:
        answer = await issuer.fetch(method, url, headers, body, limit_bytes=limit_bytes)
        await is_open.wait()
        return answer

    tokens = Tokens(config_of(issuer, **JWKS), slow, clock=lambda: issuer.now_s)
    async with running(tokens.run):
        await anyio.wait_all_tasks_blocked()
        if has_keys:
            is_open.set()
            await anyio.sleep(1)
            is_open = anyio.Event()
            await anyio.sleep(REFRESH_S)
        fetched = issuer.count("/jwks")
        issuer.keys = [other_key("second")]
        outcomes = []

        async def ask() -> None:
            outcomes.append(await look(tokens, issuer.token()))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            is_open.set()
        principal(outcomes[0])
        assert issuer.count("/jwks") == fetched + 1


@in_virtual_time
async def test_caller_is_refused_after_seconds_if_no_keys_arrive() -> None:
    issuer = Issuer()
    tokens = Tokens(config_of(issuer), issuer.fetch, clock=lambda: issuer.now_s)
    began_s = anyio.current_time()
    refused = refusal(await look(tokens, issuer.token()))  # `run` fetches nothing
    assert (refused.status, refused.retry_after_s, refused.bearer_of_token) == (503, 2, True)
    assert refused.description == f"the keys of {issuer.url} cannot be fetched"
    assert anyio.current_time() - began_s == pytest.approx(12, abs=0.5)


@in_virtual_time
async def test_failing_issuer_gets_few_requests_and_its_callers_can_retry() -> None:
    issuer = Issuer(down=True)
    async with known(issuer, **JWKS) as found:
        refused = refusal(await look(found, issuer.token()))
        assert (refused.status, refused.description) == (503, f"the keys of {issuer.url} cannot be fetched")
        for number in range(10):
            assert refusal(at_once(found, issuer.token(sub=f"s{number}"))).status == 503
        assert issuer.count("/jwks") == 1
        issuer.down = False
        issuer.now_s += 2
        principal(await look(found, issuer.token()))


async def test_changed_signature_is_refused_for_every_position() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        good = issuer.token()
        principal(await look(found, good))
        head, claims, signature = good.split(".")
        raw = bytearray(base64.urlsafe_b64decode(signature + "=="))
        for at in (0, len(raw) // 2, len(raw) - 1):
            changed = bytes([*raw[:at], raw[at] ^ 1, *raw[at + 1 :]])
            assert isinstance(await look(found, f"{head}.{claims}.{part(changed)}"), Refusal)
        body = json.loads(base64.urlsafe_b64decode(claims + "=="))
        assert isinstance(await look(found, f"{head}.{part({**body, 'sub': 'eve'})}.{signature}"), Refusal)
        assert isinstance(await look(found, f"{head}.{claims}."), Refusal)


@pytest.mark.parametrize("is_new", [True, False])
async def test_omitted_groups_are_logged_once_for_a_token(is_new: bool, caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        token = issuer.token(hasgroups=True) if is_new else issuer.token()
        await look(found, token)
        at_once(found, token)
    assert len([record for record in caplog.records if "omits groups" in record.message]) == is_new


async def test_key_of_another_type_with_the_same_id_is_passed_over() -> None:
    issuer = Issuer()
    own = issuer.keys[0].public
    issuer.documents["/jwks"] = {"keys": [{"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ", "kid": "first"}, own]}
    async with known(issuer) as found:
        principal(await look(found, issuer.token()))
