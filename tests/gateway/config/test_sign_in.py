"""`auth` of a server: required settings of each type, and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config.load import parse
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.protocol.gateway_errors import ConfigError
from gateway.serving.listen import check_exposure


def entry(auth: Any = None, **members: Any) -> HttpConfig:
    given = {"url": "https://mcp.example.test/mcp", **members, **({} if auth is None else {"auth": auth})}
    config = parse(json.dumps({"mcpServers": {"s": given}}), strict=True).servers["s"]
    assert isinstance(config, HttpConfig)
    return config


def test_server_uses_sign_in_unless_its_entry_has_credentials() -> None:
    assert entry().sign_in is not None
    assert entry("oauth").sign_in is not None
    assert entry(headers={"X-Other": "1"}).sign_in is not None
    assert entry(headers={"authorization": "Bearer x"}).sign_in is None
    assert entry({"type": "none"}).sign_in is None
    assert entry(headersCommand="print-headers").sign_in is None


def test_scopes_are_a_list_or_a_string() -> None:
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
        ({"clientSecret": "x"}, "auth.clientId: is missing, but clientSecret"),
        ({"type": "clientCredentials"}, "auth.clientId: is missing, and clientCredentials needs it"),
        ({"type": "clientCredentials", "clientId": "x"}, "auth.clientSecret: is missing"),
        ({"type": "tokenExchange", "clientId": "x"}, "auth: exchanges the tokens of callers"),
        ({"type": "enterprise", "clientId": "x"}, "auth.idpTokenEndpoint: is missing"),
        ({"type": "jwtBearer"}, "auth.assertion: is missing"),
        ({"assertion": "x"}, "auth.assertion: has no effect for oauth"),
        (
            {"clientId": "x", "clientSecret": "y", "privateKey": "z"},
            "privateKey: cannot be combined with clientSecret",
        ),
        ({"issuer": "auth.example.test"}, "auth.issuer: is not an absolute"),
        ({"scopes": 1}, "auth.scopes"),
    ],
)
def test_sign_in_mistake_is_one_message_with_its_key(auth: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        entry(auth)
    assert reason in str(error.value)


def test_two_credentials_for_one_server_are_refused() -> None:
    with pytest.raises(ConfigError, match="conflicts with auth"):
        entry({}, headers={"Authorization": "Bearer x"})
    with pytest.raises(ConfigError, match="cannot be combined with auth"):
        entry({}, headersCommand="x")
    with pytest.raises(ConfigError, match="headersCommand"):
        entry(headersCommand=" ")


def test_client_secret_is_hidden_and_client_id_shown() -> None:
    auth = {"clientId": "0oa1b2c3d4e5f6g7h8i9", "clientSecret": "9i8h7g6f5e4d3c2b1a0o"}
    config = entry(auth)
    assert config.secrets() == {"9i8h7g6f5e4d3c2b1a0o"}
    assert "9i8h7g6f5e4d3c2b1a0o" not in repr(config)
    assert entry(headersCommand=["vault", "read"]).local_keys == ("headersCommand",)


def test_changed_sign_in_needs_a_new_connection_to_the_same_server() -> None:
    assert entry({}).connection_key() != entry({"scopes": "a"}).connection_key()
    assert entry({}).identity_key() == entry({"scopes": "a"}).identity_key()


def test_public_url_must_be_a_valid_url() -> None:
    def public(url: str) -> Any:
        return parse(json.dumps({"mcpServers": {}, "gateway": {"publicUrl": url}})).gateway.public_url

    assert public("https://gateway.example.test") == "https://gateway.example.test"
    for wrong in ("gateway.example.test", "https://a@b.test", "https://a.test/?x=1", "ftp://a.test"):
        with pytest.raises(ConfigError, match=r"gateway\.publicUrl"):
            public(wrong)


def test_per_user_sign_in_requires_distinguishable_callers() -> None:
    server = {"url": "https://mcp.example.test/mcp", "auth": {"perUser": True}}
    keys = {"auth": {"apiKeys": [{"name": "a", "key": "a key that is long enough, and was made by nobody"}]}}
    told_apart = parse(json.dumps({"mcpServers": {"s": server}, "gateway": keys}))
    assert told_apart.servers["s"].per_user
    check_exposure(told_apart, host="0.0.0.0", insecure=False)
    mixed = parse(json.dumps({"mcpServers": {"s": server}}))
    check_exposure(mixed, host="127.0.0.1", insecure=False)
    with pytest.raises(ConfigError, match=r"s\.auth\.perUser: requires authenticated callers"):
        check_exposure(mixed, host="0.0.0.0", insecure=True)


def test_token_exchange_requires_callers_with_tokens() -> None:
    exchange = {"type": "tokenExchange", "clientId": "gateway", "clientSecret": "s"}
    server = {"url": "https://mcp.example.test/mcp", "auth": exchange}
    with pytest.raises(
        ConfigError, match=r"mcpServers\.s\.auth: exchanges the tokens of callers, but callers have no tokens"
    ):
        parse(json.dumps({"mcpServers": {"s": server}}))
    issuer = {"issuer": "https://issuer.example.test", "audiences": ["https://gateway.example.test/mcp"]}
    parsed = parse(json.dumps({"mcpServers": {"s": server}, "gateway": {"auth": {"oauth": {"issuers": [issuer]}}}}))
    assert parsed.servers["s"].per_user
    given = {**exchange, "subjectToken": "t"}
    assert not entry(given).per_user
    with pytest.raises(ConfigError, match=r"subjectToken: cannot be combined with perUser"):
        entry({**given, "perUser": True})
