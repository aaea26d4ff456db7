"""Introspection of opaque tokens: requests, accepted responses, limits, and open streams."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import anyio
import anyio.lowlevel
import pytest
from support.offline_issuer import START_S, Issuer, at_once, config_of, known, look
from support.virtual_time import in_virtual_time

from gateway.access.oauth.access_tokens import Introspector, Tokens
from gateway.access.oauth.key_set import Fetched, FetchFailed
from gateway.access.principal import Principal, Refusal
from gateway.config.auth_config import Introspection

ENDPOINT = "https://id.example.test/introspect"
INTROSPECTION = {"introspection": {"endpoint": ENDPOINT, "clientId": "gateway", "clientSecret": "a secret"}}
CONFIG = Introspection.model_validate({"endpoint": ENDPOINT, "clientId": "a:b", "clientSecret": "c d&é"})


class Endpoint:
    """Responds to introspection requests, while it is open."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer
        self.open = anyio.Event()
        self.requests: list[tuple[str, str, Mapping[str, str], bytes]] = []

    async def fetch(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, limit_bytes: int
    ) -> Fetched:
        self.requests.append((method, url, headers, body))
        await self.open.wait()
        return Fetched(status=200, body=json.dumps(self.answer).encode())


async def claims(**answer: Any) -> dict[str, Any] | None:
    endpoint = Endpoint(**answer)
    endpoint.open.set()
    return await Introspector(CONFIG, endpoint.fetch).claims("t")


async def test_token_and_credentials_are_sent_as_the_standards_require() -> None:
    endpoint = Endpoint(active=True)
    endpoint.open.set()
    assert await Introspector(CONFIG, endpoint.fetch).claims("a+b&c") == {"active": True}
    ((method, url, headers, body),) = endpoint.requests
    assert (method, url) == ("POST", ENDPOINT)
    assert parse_qs(body.decode()) == {"token": ["a+b&c"], "token_type_hint": ["access_token"]}
    assert base64.b64decode(headers["authorization"].removeprefix("Basic ")) == b"a%3Ab:c+d%26%C3%A9"


@pytest.mark.parametrize("kind", ["Bearer", "bearer", "access_token", "at+jwt", "AT+JWT"])
async def test_bearer_tokens_are_accepted(kind: str) -> None:
    assert await claims(active=True, token_type=kind) == {"active": True, "token_type": kind}


@pytest.mark.parametrize("kind", ["refresh_token", "DPoP", "mac", "", 7, ["Bearer"], None])
async def test_tokens_of_other_types_are_not(kind: Any) -> None:
    assert await claims(active=True, token_type=kind) is None


@pytest.mark.parametrize("active", [False, "true", 1, None, []])
async def test_token_is_active_only_with_the_boolean(active: Any) -> None:
    assert await claims(active=active) is None


@in_virtual_time
async def test_number_of_concurrent_requests_is_limited() -> None:
    endpoint = Endpoint(active=True)
    introspector = Introspector(CONFIG, endpoint.fetch)
    found = []

    async def ask() -> None:
        found.append(await introspector.claims("t"))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert len(endpoint.requests) == 16
        endpoint.open.set()
    assert (len(endpoint.requests), len(found)) == (20, 20)


@in_virtual_time
async def test_requests_beyond_the_queue_fail_at_once_and_those_in_it_after_seconds() -> None:
    endpoint = Endpoint(active=True)
    introspector = Introspector(CONFIG, endpoint.fetch)
    failed_at_s = []
    began_s = anyio.current_time()

    async def ask() -> None:
        try:
            await introspector.claims("t")
        except FetchFailed:
            failed_at_s.append(anyio.current_time() - began_s)

    async with anyio.create_task_group() as group:
        for _ in range(16 + 512 + 3):
            group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert len(failed_at_s) == 3
        await anyio.sleep(6)
        assert len(failed_at_s) == 3 + 512
        assert failed_at_s[3:] == pytest.approx([5] * 512, abs=0.5)
        # The requests that failed in the queue do not count any more.
        for _ in range(4):
            group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        endpoint.open.set()
    assert len(failed_at_s) == 3 + 512
    assert len(endpoint.requests) == 20


async def test_failed_requests_leave_their_places_to_others() -> None:
    endpoint = Endpoint()
    endpoint.open.set()

    async def fails(*_: Any, **__: Any) -> Fetched:
        raise TimeoutError

    introspector = Introspector(CONFIG, fails)
    for _ in range(20):
        with pytest.raises(FetchFailed, match=ENDPOINT):
            await introspector.claims("t")


async def test_result_is_used_for_a_minute() -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        issuer.active["opaque"] = {"active": True, **issuer.claims()}
        who = await look(found, "opaque")
        assert isinstance(who, Principal)
        assert found.text_of(who) == "opaque"
        issuer.now_s += 59
        assert at_once(found, "opaque") is who
        issuer.now_s += 1
        assert at_once(found, "opaque") is None
        assert await look(found, "opaque") is who
        assert issuer.count("/introspect") == 2


async def test_result_is_used_no_longer_than_the_token_is_valid() -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        issuer.active["opaque"] = {"active": True, **issuer.claims(exp=START_S - 30)}
        who = await look(found, "opaque")
        assert isinstance(who, Principal)
        issuer.now_s += 29
        assert at_once(found, "opaque") is who
        issuer.now_s += 1
        assert at_once(found, "opaque") is None
        refused = await look(found, "opaque")
        assert isinstance(refused, Refusal)
        assert "expired" in refused.description


async def test_token_without_an_expiry_is_valid_as_long_as_it_is_active() -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        issuer.active["opaque"] = {"active": True, **issuer.claims(exp=None, iss=None)}
        who = await look(found, "opaque")
        assert isinstance(who, Principal)
        issuer.now_s += 1e6
        assert found.knows(who)
        assert await look(found, "opaque") is who


async def test_changed_rights_of_an_opaque_token_are_applied() -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        issuer.active["opaque"] = {"active": True, **issuer.claims(groups=["a"])}
        assert isinstance(await look(found, "opaque"), Principal)
        issuer.active["opaque"]["groups"] = ["b"]
        issuer.now_s += 60
        who = await look(found, "opaque")
        assert isinstance(who, Principal)
        assert who.groups == {"b"}


async def test_empty_token_is_refused_without_a_request() -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        assert isinstance(at_once(found, ""), Refusal)
    async with known(issuer) as found:
        assert isinstance(at_once(found, "opaque"), Refusal)
    assert issuer.count("/introspect") == 0


async def test_unreachable_issuer_neither_refuses_nor_revokes_for_good() -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        issuer.active["opaque"] = {"active": True, **issuer.claims()}
        who = await look(found, "opaque")
        assert isinstance(who, Principal)
        issuer.now_s += 60
        issuer.down = True
        expected = Refusal(
            status=503, description="the issuer of the token cannot be reached", bearer_of_token=True, retry_after_s=2
        )
        assert await look(found, "opaque") == expected
        assert found.knows(who)
        issuer.down = False
        assert await look(found, "opaque") is who


async def test_made_up_tokens_do_not_displace_revoked_ones() -> None:
    issuer = Issuer()
    async with known(issuer, {"most_revoked": 2}, **INTROSPECTION) as found:
        holders = []
        for name in ("first", "second", "third"):
            issuer.active[name] = {"active": True, **issuer.claims(sub=name)}
            who = await look(found, name)
            assert isinstance(who, Principal)
            holders.append(who)
        first, second, third = holders
        issuer.active.clear()
        issuer.now_s += 60
        assert [isinstance(await look(found, name), Refusal) for name in ("first", "second")] == [True, True]
        for number in range(5):
            assert isinstance(await look(found, f"made up {number}"), Refusal)
        assert [found.may_finish(who) for who in holders] == [False, False, True]
        # Only the oldest revocations are forgotten beyond the limit.
        assert isinstance(await look(found, "third"), Refusal)
        assert not found.may_finish(second)
        assert not found.may_finish(third)
        assert found.may_finish(first)
        assert found.text_of(first) is None


async def test_reactivated_token_is_no_longer_revoked() -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        issuer.active["opaque"] = answer = {"active": True, **issuer.claims()}
        who = await look(found, "opaque")
        assert isinstance(who, Principal)
        issuer.active.clear()
        issuer.now_s += 60
        assert isinstance(await look(found, "opaque"), Refusal)
        assert not found.knows(who)
        issuer.active["opaque"] = answer
        issuer.now_s += 30
        again = await look(found, "opaque")
        assert again == who
        assert found.knows(who)


async def test_concurrent_introspections_of_a_token_share_a_request_and_its_result() -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        issuer.active["good"] = {"active": True, **issuer.claims()}
        for token in ("good", "bad"):
            outcomes: list[Principal | Refusal] = []

            async def ask(token: str, outcomes: list[Principal | Refusal]) -> None:
                outcomes.append(await look(found, token))

            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(ask, token, outcomes)
            assert len(outcomes) == 5
            assert all(outcome is outcomes[0] for outcome in outcomes)
            assert isinstance(outcomes[0], Principal) is (token == "good")
        assert issuer.count("/introspect") == 2


async def test_cancelled_introspection_does_not_affect_others_that_wait_for_it() -> None:
    endpoint = Endpoint(active=True, **Issuer().claims())
    tokens = Tokens(config_of(Issuer(), **INTROSPECTION), endpoint.fetch, clock=lambda: START_S)
    outcomes = []

    async def ask() -> None:
        outcomes.append(await look(tokens, "opaque"))

    async with anyio.create_task_group() as group:
        async with anyio.create_task_group() as cancelled:
            cancelled.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert len(endpoint.requests) == 1
            cancelled.cancel_scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert len(endpoint.requests) == 2
        endpoint.open.set()
    assert [isinstance(outcome, Principal) for outcome in outcomes] == [True]


@pytest.mark.parametrize("has_introspection", [True, False])
async def test_result_for_an_earlier_configuration_is_not_used(has_introspection: bool) -> None:
    issuer = Issuer()
    endpoint = Endpoint(active=True, **issuer.claims())
    tokens = Tokens(config_of(issuer, **INTROSPECTION), endpoint.fetch, clock=lambda: START_S)
    pending = tokens.principal("opaque", b"digest")
    assert not isinstance(pending, Principal | Refusal)
    outcomes = []

    async def ask() -> None:
        outcomes.append(await pending.verify())

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        tokens.replace(config_of(issuer, **(INTROSPECTION if has_introspection else {})))
        endpoint.open.set()
    refused = outcomes[0]
    assert isinstance(refused, Refusal)
    assert refused.status == 503
    if has_introspection:
        assert isinstance(await pending.verify(), Principal)
    else:
        refused = await pending.verify()
        assert isinstance(refused, Refusal)
        assert (refused.status, refused.description) == (401, "the token is malformed")


@pytest.mark.parametrize(
    ("after", "is_kept"),
    [(INTROSPECTION, True), ({**INTROSPECTION, "requiredScopes": ["mcp"]}, True), ({}, False), (None, False)],
)
async def test_new_configuration_introspects_cached_tokens_again_or_revokes_them(after: Any, is_kept: bool) -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        issuer.active["opaque"] = {"active": True, **issuer.claims()}
        who = await look(found, "opaque")
        assert isinstance(who, Principal)
        found.replace(None if after is None else config_of(issuer, **after))
        assert found.knows(who) is is_kept
        assert found.may_finish(who) is is_kept
        if is_kept:
            assert at_once(found, "opaque") is None
            assert await look(found, "opaque") == who
            assert issuer.count("/introspect") == 2


async def test_tokens_of_another_introspecting_issuer_are_revoked() -> None:
    issuer, other = Issuer(), Issuer(url="https://other.example.test")
    before, after = config_of(issuer, **INTROSPECTION), config_of(issuer)
    other_config = config_of(other, **INTROSPECTION)
    tokens = Tokens(before, issuer.fetch, clock=lambda: issuer.now_s)
    issuer.active["opaque"] = {"active": True, **issuer.claims()}
    who = await look(tokens, "opaque")
    assert isinstance(who, Principal)
    tokens.replace(before.model_copy(update={"issuers": [*after.issuers, *other_config.issuers]}))
    assert not tokens.may_finish(who)


async def test_evicted_opaque_token_no_longer_keeps_a_stream_open() -> None:
    issuer = Issuer()
    async with known(issuer, {"most_good": 1}, **INTROSPECTION) as found:
        for name in ("first", "second"):
            issuer.active[name] = {"active": True, **issuer.claims(sub=name)}
        first = await look(found, "first")
        assert isinstance(first, Principal)
        assert found.knows(first)
        second = await look(found, "second")
        assert isinstance(second, Principal)
        assert (found.knows(first), found.may_finish(first), found.knows(second)) == (False, True, True)


class Streams:
    """Open streams, which ask about their principals whenever credentials may have changed."""

    def __init__(self, found: Tokens) -> None:
        self.open: list[Principal] = []
        self.calls = 0
        self._found = found
        found.on_change(self._changed)

    def _changed(self) -> None:
        self.calls += 1
        self.open = [who for who in self.open if self._found.knows(who)]


async def polled(issuer: Issuer, by_s: float) -> None:
    """Let this much time pass for the tokens, and wait until the next poll has ended."""
    issuer.now_s += by_s
    await anyio.sleep(2.5)


async def streams_of(issuer: Issuer, found: Tokens, count: int) -> Streams:
    streams = Streams(found)
    for number in range(count):
        issuer.active[f"opaque-{number}"] = {"active": True, **issuer.claims(sub=f"user-{number}")}
        who = await look(found, f"opaque-{number}")
        assert isinstance(who, Principal)
        streams.open.append(who)
    return streams


@in_virtual_time
async def test_tokens_of_open_streams_are_introspected_again_after_seconds() -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        streams = await streams_of(issuer, found, 2)
        await polled(issuer, 4.5)
        assert issuer.count("/introspect") == 2
        await polled(issuer, 0.5)
        assert issuer.count("/introspect") == 4
        # A closed stream's token is not introspected any more.
        streams.open.pop()
        await polled(issuer, 5)
        assert issuer.count("/introspect") == 5
        await polled(issuer, 4.5)
        assert issuer.count("/introspect") == 5
        await polled(issuer, 0.5)
        assert issuer.count("/introspect") == 6


@in_virtual_time
async def test_stream_is_closed_after_its_token_was_revoked() -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        streams = await streams_of(issuer, found, 2)
        first, second = streams.open
        await polled(issuer, 5)
        assert (streams.open, streams.calls) == ([first, second], 1)
        issuer.active["opaque-0"] = {"active": False}
        await polled(issuer, 5)
        assert (streams.open, streams.calls) == ([second], 3)
        await polled(issuer, 5)
        assert (streams.open, streams.calls) == ([second], 4)


@in_virtual_time
async def test_streams_of_signed_tokens_cause_no_introspection() -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        streams = Streams(found)
        who = await look(found, issuer.token())
        assert isinstance(who, Principal)
        streams.open.append(who)
        await polled(issuer, 6)
        assert streams.open == [who]
        assert issuer.count("/introspect") == 0


@pytest.mark.parametrize(("passed_s", "introspected"), [(50, 32), (50.5, 40)])
@in_virtual_time
async def test_more_tokens_than_usual_are_introspected_if_their_results_expire(
    passed_s: float, introspected: int
) -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        streams = await streams_of(issuer, found, 40)
        await polled(issuer, passed_s)
        assert issuer.count("/introspect") == 40 + introspected
        assert len(streams.open) == 40


@in_virtual_time
async def test_oldest_results_are_renewed_first() -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        streams = await streams_of(issuer, found, 40)
        for _ in range(2):
            await polled(issuer, 5)
        issuer.active.clear()
        # The first round renewed 0 to 31, the second one 32 to 39 and 0 to 23, and the third one finds 24 to 31 first.
        await polled(issuer, 5)
        assert [who.name for who in streams.open] == [f"user-{number}@id.example.test" for number in range(32, 40)]


@in_virtual_time
async def test_token_that_a_caller_introspects_already_is_not_introspected_twice() -> None:
    issuer = Issuer()
    endpoint = Endpoint(active=True, **issuer.claims())
    tokens = Tokens(config_of(issuer, **INTROSPECTION), endpoint.fetch, clock=lambda: issuer.now_s)
    endpoint.open.set()
    streams = Streams(tokens)
    who = await look(tokens, "opaque")
    assert isinstance(who, Principal)
    streams.open.append(who)
    issuer.now_s += 60
    endpoint.open = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(look, tokens, "opaque")
        group.start_soon(tokens.run)
        await anyio.wait_all_tasks_blocked()
        issuer.now_s += 6
        await anyio.sleep(2.5)
        requests = [request for request in endpoint.requests if request[0] == "POST"]
        assert len(requests) == 2
        endpoint.open.set()
        await anyio.wait_all_tasks_blocked()
        assert streams.open == [who]
        group.cancel_scope.cancel()
