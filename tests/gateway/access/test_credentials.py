"""API keys and access tokens together: which credentials authenticate whom, and when streams have to close."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from support.offline_issuer import START_S, Issuer, config_of, running
from support.virtual_time import in_virtual_time

from gateway.access.credentials import ApiKeys, Credentials
from gateway.access.oauth.access_tokens import Tokens
from gateway.access.principal import LOCAL, Principal, Refusal
from gateway.config.active_config import ConfigChange
from gateway.config.auth_config import ApiKey, AuthConfig
from gateway.config.load import parse
from gateway.config.model import Config

NO_KEY = Refusal(description="a valid API key is needed")
NO_TOKEN = Refusal(description="an access token is needed", bearer_of_token=True)


def key(text: str, name: str = "ann", **members: Any) -> ApiKey:
    return ApiKey.model_validate({"name": name, "key": text, **members})


def credentials(*keys: ApiKey, issuer: Issuer | None = None) -> Credentials:
    oauth = config_of(issuer) if issuer is not None else None
    now = issuer or Issuer()
    return Credentials(ApiKeys(keys, clock=lambda: now.now_s), Tokens(oauth, now.fetch, clock=lambda: now.now_s))


@pytest.mark.parametrize("authorization", [None, "", "Bearer anything", "Basic x"])
def test_without_configured_credentials_every_caller_is_local(authorization: str | None) -> None:
    found = credentials()
    assert found.principal(authorization) is LOCAL
    assert (found.required, found.accepts_tokens, found.knows(LOCAL), found.may_finish(LOCAL)) == (
        False, False, True, True,
    )  # fmt: skip
    assert not found.knows(Principal(name="ann"))


@pytest.mark.parametrize("authorization", ["Bearer secret", "bearer secret", "BEARER   secret\t", "Bearer secret "])
def test_key_identifies_its_owner(authorization: str) -> None:
    for issuer in (None, Issuer()):
        found = credentials(key("secret", groups=["staff"]), key("other", "bob"), issuer=issuer)
        assert found.required
        for _ in range(2):
            who = found.principal(authorization)
            assert who == Principal(name="ann", groups=frozenset({"staff"}))
        assert isinstance(who, Principal)
        assert found.knows(who)
        assert found.may_finish(who)


@pytest.mark.parametrize("text", ["schlüssel", "voilà", "schlüssel…", "鍵" * 10])
def test_key_with_other_characters_is_sent_in_utf_8(text: str) -> None:
    header = f"Bearer {text}".encode().decode("latin-1")
    assert isinstance(credentials(key(text)).principal(header), Principal)


def test_long_key_is_found_each_time() -> None:
    for length in (4_089, 4_090, 5_000):
        found = credentials(key("k" * length))
        for _ in range(2):
            assert isinstance(found.principal(f"Bearer {'k' * length}"), Principal)
            assert found.principal(f"Bearer {'k' * (length - 1)}") == NO_KEY


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Basic secret", "Bearer wrong", "secret"])
def test_wrong_credentials_are_refused_with_what_is_needed(authorization: str | None) -> None:
    found = credentials(key("secret"))
    for _ in range(2):
        assert found.principal(authorization) == NO_KEY
    both = credentials(key("secret"), issuer=Issuer())
    refused = both.principal(authorization)
    if authorization in ("Bearer", "Bearer wrong"):
        assert isinstance(refused, Refusal)
        assert (refused.error, refused.bearer_of_token) == ("invalid_token", True)
    else:
        assert refused == NO_TOKEN


async def test_token_identifies_its_caller_beside_keys() -> None:
    issuer = Issuer()
    found = credentials(key("secret"), issuer=issuer)
    assert found.accepts_tokens
    async with running(found.run):
        await anyio.wait_all_tasks_blocked()
        token = issuer.token()
        who = found.principal(f"Bearer  {token} ")
        assert isinstance(who, Principal)
        assert (who.name, found.knows(who), found.may_finish(who)) == ("ann@id.example.test", True, True)
        issuer.now_s += 310
        # An expired token does not end requests that run.
        assert (found.knows(who), found.may_finish(who)) == (False, True)


def test_only_tokens_are_needed_without_keys() -> None:
    found = credentials(issuer=Issuer())
    assert found.required
    assert found.principal(None) == NO_TOKEN
    assert not found.knows(LOCAL)
    assert not found.may_finish(LOCAL)


def test_replaced_key_is_refused_for_the_same_header() -> None:
    found = credentials(key("secret"), key("other", "bob"))
    header = "Bearer secret"
    who = found.principal(header)
    assert isinstance(who, Principal)
    changes: list[int] = []
    found.on_change(lambda: changes.append(1))
    found.replace(AuthConfig(api_keys=[key("other", "bob")]), issuers_changed=False)
    assert found.principal(header) == NO_KEY
    assert not found.knows(who)
    assert changes == [1]


def configured(key_text: str, **issuer: Any) -> Config:
    settings = {
        "auth": {"oauth": {"issuers": [Issuer().config(**issuer)]}, "apiKeys": [{"name": "ci", "key": key_text}]}
    }
    return parse(json.dumps({"mcpServers": {}, "gateway": settings}))


@pytest.mark.parametrize("is_changed", [True, False])
async def test_change_of_the_configuration_replaces_keys_and_issuers_only_if_they_changed(is_changed: bool) -> None:
    issuer = Issuer()
    before = configured("old" * 20)
    after = configured("new" * 20, **({"requiredScopes": ["new"]} if is_changed else {}))
    auth = before.gateway.auth
    found = Credentials(ApiKeys(auth.api_keys), Tokens(auth.oauth, issuer.fetch, clock=lambda: issuer.now_s))
    changes: list[int] = []
    found.tokens.on_change(lambda: changes.append(1))
    apply = await found.validate(ConfigChange(before=before, after=after))
    assert isinstance(found.principal(f"Bearer {'old' * 20}"), Principal)
    apply()
    assert isinstance(found.principal(f"Bearer {'new' * 20}"), Principal)
    assert isinstance(found.principal(f"Bearer {'old' * 20}"), Refusal)
    keys = found.tokens.keys_of(issuer.url)
    assert keys is not None
    assert (keys.issuer.required_scopes, changes) == ((["new"], [1]) if is_changed else ([], []))


def test_withheld_key_is_refused_for_now_and_other_credentials_as_usual() -> None:
    found = credentials(key("secret"), issuer=Issuer())
    found.keys.withhold()
    refused = found.principal("Bearer secret")
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.retry_after_s) == (503, 2)
    other = found.principal("Bearer other")
    assert isinstance(other, Refusal)
    assert other.status == 401
    found.keys.accept()
    assert isinstance(found.principal("Bearer secret"), Principal)
    found.keys.revoke([hashlib.sha256(b"secret").hexdigest()])
    refused = found.principal("Bearer secret")
    assert isinstance(refused, Refusal)
    assert refused.status == 401


@in_virtual_time
async def test_holders_of_keys_and_of_tokens_are_notified_of_expiry() -> None:
    issuer = Issuer()
    expires = datetime.fromtimestamp(START_S + 100, UTC)
    found = credentials(key("secret", expires=expires.isoformat()), issuer=issuer)
    changes: list[float] = []
    found.on_change(lambda: changes.append(issuer.now_s - START_S))
    async with running(found.run):
        await anyio.sleep(1)
        assert isinstance(found.principal(f"Bearer {issuer.token(exp=START_S + 200)}"), Principal)
        for passed_s in (99, 100, 101, 199, 200, 201):
            issuer.now_s = START_S + passed_s
            await anyio.sleep(2.5)
    assert changes == [100, 200]
