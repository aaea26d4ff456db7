"""`auth` of a server: what each type needs, and what is said of mistakes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config.load import parse
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.errors import ConfigError
from gateway.serving.listen import check_reach


def entry(auth: Any = None, **members: Any) -> HttpConfig:
    given = {"url": "https://mcp.example.test/mcp", **members, **({} if auth is None else {"auth": auth})}
    config = parse(json.dumps({"mcpServers": {"s": given}}), strict=True).servers["s"]
    assert isinstance(config, HttpConfig)
    return config


def test_a_server_is_signed_in_to_where_it_asks_for_it_unless_its_entry_says_otherwise() -> None:
    assert entry().sign_in is not None
    assert entry("oauth").sign_in is not None
    assert entry(headers={"X-Other": "1"}).sign_in is not None
    assert entry(headers={"authorization": "Bearer x"}).sign_in is None
    assert entry({"type": "none"}).sign_in is None
    assert entry(headersCommand="print-headers").sign_in is None


def test_scopes_are_a_list_or_words() -> None:
    for scopes in ("read write", ["read", "write"]):
        found = entry({"scopes": scopes}).sign_in
        assert found is not None
        assert found.scopes == ["read", "write"]


@pytest.mark.parametrize(
    ("auth", "reason"),
    [
        ({"type": "oauht"}, "auth.type"),
        ("oauht", "auth.type"),
        ({"clientID": "x"}, "clientId (did you mean it?)"),
        ({"clientSecret": "x"}, "auth.clientId: is missing beside clientSecret"),
        ({"type": "clientCredentials"}, "auth.clientId: is missing, and clientCredentials needs it"),
        ({"type": "clientCredentials", "clientId": "x"}, "auth.clientSecret: is missing"),
        ({"type": "tokenExchange", "clientId": "x"}, "auth: exchanges the tokens of callers"),
        ({"type": "enterprise", "clientId": "x"}, "auth.idpTokenEndpoint: is missing"),
        ({"type": "jwtBearer"}, "auth.assertion: is missing"),
        ({"assertion": "x"}, "auth.assertion: means nothing for oauth"),
        ({"clientId": "x", "clientSecret": "y", "privateKey": "z"}, "auth.privateKey: stands beside clientSecret"),
        ({"issuer": "auth.example.test"}, "auth.issuer: is no absolute"),
        ({"scopes": 1}, "auth.scopes"),
    ],
)
def test_a_mistake_is_one_message_with_its_key(auth: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        entry(auth)
    assert reason in str(error.value)


def test_two_ways_to_prove_oneself_are_a_mistake() -> None:
    with pytest.raises(ConfigError, match="stands beside auth"):
        entry({}, headers={"Authorization": "Bearer x"})
    with pytest.raises(ConfigError, match="stands beside auth"):
        entry({}, headersCommand="x")
    with pytest.raises(ConfigError, match="headersCommand"):
        entry(headersCommand=" ")


def test_secrets_are_hidden_and_ids_are_shown() -> None:
    auth = {"clientId": "0oa1b2c3d4e5f6g7h8i9", "clientSecret": "9i8h7g6f5e4d3c2b1a0o"}
    config = entry(auth)
    assert config.secrets() == {"9i8h7g6f5e4d3c2b1a0o"}
    assert "9i8h7g6f5e4d3c2b1a0o" not in repr(config)
    assert entry(headersCommand=["vault", "read"]).local_keys == ("headersCommand",)


def test_another_sign_in_needs_another_connection() -> None:
    assert entry({}).reach_key() != entry({"scopes": "a"}).reach_key()
    assert entry({}).identity_key() == entry({"scopes": "a"}).identity_key()


def test_the_public_address_of_a_gateway_is_a_url() -> None:
    def public(url: str) -> Any:
        return parse(json.dumps({"mcpServers": {}, "gateway": {"publicUrl": url}})).gateway.public_url

    assert public("https://gateway.example.test") == "https://gateway.example.test"
    for wrong in ("gateway.example.test", "https://a@b.test", "https://a.test/?x=1", "ftp://a.test"):
        with pytest.raises(ConfigError, match=r"gateway\.publicUrl"):
            public(wrong)


def test_callers_that_cannot_be_told_apart_are_not_given_one_sign_in() -> None:
    server = {"url": "https://mcp.example.test/mcp", "auth": {"perUser": True}}
    keys = {"auth": {"apiKeys": [{"name": "a", "key": "a key that is long enough, and was made by nobody"}]}}
    told_apart = parse(json.dumps({"mcpServers": {"s": server}, "gateway": keys}))
    assert told_apart.servers["s"].per_user
    check_reach(told_apart, host="0.0.0.0", insecure=False)
    mixed = parse(json.dumps({"mcpServers": {"s": server}}))
    check_reach(mixed, host="127.0.0.1", insecure=False)
    with pytest.raises(ConfigError, match=r"s\.auth\.perUser: needs callers who can be told apart"):
        check_reach(mixed, host="0.0.0.0", insecure=True)


def test_tokens_of_callers_are_exchanged_only_where_callers_have_some() -> None:
    exchange = {"type": "tokenExchange", "clientId": "gateway", "clientSecret": "s"}
    server = {"url": "https://mcp.example.test/mcp", "auth": exchange}
    with pytest.raises(ConfigError, match=r"mcpServers\.s\.auth: exchanges the tokens of callers, who have none"):
        parse(json.dumps({"mcpServers": {"s": server}}))
    issuer = {"issuer": "https://issuer.example.test", "audiences": ["https://gateway.example.test/mcp"]}
    parsed = parse(json.dumps({"mcpServers": {"s": server}, "gateway": {"auth": {"oauth": {"issuers": [issuer]}}}}))
    assert parsed.servers["s"].per_user
    given = {**exchange, "subjectToken": "t"}
    assert not entry(given).per_user
    with pytest.raises(ConfigError, match=r"subjectToken: stands beside perUser"):
        entry({**given, "perUser": True})
