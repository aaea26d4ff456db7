"""Accepted issuers: every mistake that would open access stops the start, naming its location."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.auth_config import profile_of_audience
from gateway.config.load import parse
from gateway.protocol.gateway_errors import ConfigError
from gateway.serving.listen import check_exposure

GOOD = "{issuer: https://id.test, audiences: [https://g.test/mcp]}"


def written(oauth: str, more: str = "") -> Any:
    text = f"gateway:\n  profiles: {{sec: {{}}}}\n  auth:\n    oauth: {oauth}\n{more}"
    return parse(text, environ={})


def one(members: str) -> str:
    return f"{{issuers: [{{issuer: https://id.test, audiences: [a], {members}}}]}}"


@pytest.mark.parametrize(
    ("oauth", "message"),
    [
        ("{}", "oauth.issuers: is missing; expected a list of issuers"),
        ("{issuers: []}", "oauth.issuers: is missing"),
        ("{issuers: [{issuer: https://id.test}]}", "oauth.issuers[0].audiences: names no audience"),
        ("{issuers: [{issuer: https://id.test, audiences: []}]}", "issuers[0].audiences: names no audience"),
        ("{issuers: [{issuer: https://id.test, audiences: [' ']}]}", "issuers[0].audiences: names no audience"),
        ("{issuers: [{issuer: https://id.test, audiences: ['*']}]}", "issuers[0].audiences: names no audience"),
        ("{issuers: [{issuer: https://id.test, audience: [a]}]}", "audiences (did you mean it?)"),
        ("{issuers: [{issuer: http://id.test, audiences: [a]}]}", "issuers[0].issuer: is not a valid issuer; expected"),
        ("{issuers: [{issuer: 'https://id.test?x', audiences: [a]}]}", "issuers[0].issuer: is not a valid issuer"),
        ("{issuers: [{issuer: 'https://me@id.test', audiences: [a]}]}", "issuers[0].issuer: is not a valid issuer"),
        ("{issuers: [{issuer: id.test, audiences: [a]}]}", "issuers[0].issuer: is not a valid issuer"),
        (one("algorithms: [none]"), "issuers[0].algorithms[0]: allows forged tokens (none)"),
        (one("algorithms: [RS256, HS256]"), "issuers[0].algorithms[1]: allows forged tokens (HS256)"),
        (one("algorithms: [RS25]"), "is not a known algorithm (RS25); expected RS256 (did you mean it?)"),
        (one("algorithms: []"), "issuers[0].algorithms: is empty"),
        (one("jwksUri: http://id.test/jwks"), "issuers[0].jwksUri: is not a URL for signing keys"),
        (one("jwksUri: file:///etc/passwd"), "issuers[0].jwksUri: is not a URL for signing keys"),
        (one("requiredScopes: ['a b']"), "issuers[0].requiredScopes[0]: is not a valid scope"),
        (one("requiredScopes: [offline_access]"), "requiredScopes[0]: is not a scope of a resource (offline_access)"),
        (one("introspection: {endpoint: http://id.test, clientId: a, clientSecret: b}"), "not a URL that may receive"),
        (one("introspection: {endpoint: https://id.test/i, clientId: a}"), "issuers[0].introspection.clientSecret"),
        (f"{{issuers: [{GOOD}, {GOOD}]}}", "issuers[1].issuer: is given twice (id.test)"),
        (f"{{issuers: [{GOOD}, {{issuer: https://ID.test/, audiences: [a]}}]}}", "issuers[1].issuer: is given twice"),
        (f"{{resource: http://g.test, issuers: [{GOOD}]}}", "oauth.resource: is not the URL of a gateway"),
        (f"{{resource: 'https://g.test?x=1', issuers: [{GOOD}]}}", "oauth.resource: is not the URL of a gateway"),
        (f"{{ressource: https://g.test, issuers: [{GOOD}]}}", "resource (did you mean it?)"),
        ("{issuers: [{issuer: https://id.test, audiences: [https://g.test/mcp/sce]}]}", "an unknown profile (sce)"),
    ],
)  # fmt: skip
def test_mistake_stops_the_start_naming_its_location(oauth: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        written(oauth)
    assert message in str(refused.value)


def test_only_one_issuer_may_use_introspection() -> None:
    introspection = "introspection: {endpoint: https://id.test/i, clientId: a, clientSecret: the-secret}"
    entries = [f"{{issuer: https://id{number}.test, audiences: [a], {introspection}}}" for number in range(2)]
    with pytest.raises(ConfigError) as refused:
        written(f"{{issuers: [{', '.join(entries)}]}}")
    assert "issuers[1].introspection: is given for a second issuer" in str(refused.value)
    assert "the-secret" not in str(refused.value)


def test_key_name_that_looks_like_a_token_caller_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"apiKeys\[0\]\.name: could be the name of a caller of https://id\.test"):
        written(f"{{issuers: [{GOOD}]}}", "    apiKeys: [{name: ann@id.test, key: k}]")
    with pytest.raises(ConfigError, match=r"apiKeys\[0\]\.name: has a character that cannot be printed"):
        parse('gateway: {auth: {apiKeys: [{name: "a\\nb", key: k}]}}', environ={})


def test_network_listener_requires_the_public_resource_url() -> None:
    config = written(f"{{issuers: [{GOOD}]}}")
    check_exposure(config, host="127.0.0.1", insecure=False)
    with pytest.raises(ConfigError, match=r"gateway\.auth\.oauth\.resource: is missing"):
        check_exposure(config, host="0.0.0.0", insecure=True)
    check_exposure(written(f"{{resource: https://g.test, issuers: [{GOOD}]}}"), host="0.0.0.0", insecure=False)


@pytest.mark.parametrize(
    ("audience", "resource", "profile"),
    [
        ("https://g.test/mcp/sec", None, "sec"),
        ("https://g.test/mcp", None, None),
        ("api://gateway/mcp/sec", None, None),
        ("https://g.test/mcp/sec", "https://g.test", "sec"),
        ("https://g.test/mcp/sec", "https://g.test/mcp/", "sec"),
        ("https://g.test/mcp/sec/", "https://g.test", "sec"),
        ("https://g.test/mcp/sec/", None, "sec"),
        ("https://g.test/mcp/", "https://g.test", None),
        ("https://g.test/mcp//", "https://g.test", None),
        ("https://g.test/mcp/sec/x", "https://g.test", None),
        ("https://other.test/mcp/v2", "https://g.test", None),
    ],
)
def test_audience_of_a_profile_address_is_recognized(audience: str, resource: str | None, profile: str | None) -> None:
    assert profile_of_audience(audience, resource) == profile
