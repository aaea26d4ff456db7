"""Issuers whose tokens are accepted: every mistake that would open something stops the start, with its place."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.issuers import profile_of_audience
from gateway.config.load import parse
from gateway.errors import ConfigError
from gateway.serving.listen import check_reach

GOOD = "{issuer: https://id.test, audiences: [https://g.test/mcp]}"


def written(oauth: str, more: str = "") -> Any:
    text = f"gateway:\n  profiles: {{sec: {{}}}}\n  auth:\n    oauth: {oauth}\n{more}"
    return parse(text, environ={})


def one(members: str) -> str:
    return f"{{issuers: [{{issuer: https://id.test, audiences: [a], {members}}}]}}"


@pytest.mark.parametrize(
    ("oauth", "said"),
    [
        ("{}", "oauth.issuers: is missing; expected a list of issuers"),
        ("{issuers: []}", "oauth.issuers: is missing"),
        ("{issuers: [{issuer: https://id.test}]}", "oauth.issuers[0].audiences: names no audience"),
        ("{issuers: [{issuer: https://id.test, audiences: []}]}", "issuers[0].audiences: names no audience"),
        ("{issuers: [{issuer: https://id.test, audiences: [' ']}]}", "issuers[0].audiences: names no audience"),
        ("{issuers: [{issuer: https://id.test, audiences: ['*']}]}", "issuers[0].audiences: names no audience"),
        ("{issuers: [{issuer: https://id.test, audience: [a]}]}", "audiences (did you mean it?)"),
        ("{issuers: [{issuer: http://id.test, audiences: [a]}]}", "issuers[0].issuer: is no issuer; expected an https"),
        ("{issuers: [{issuer: 'https://id.test?x', audiences: [a]}]}", "issuers[0].issuer: is no issuer"),
        ("{issuers: [{issuer: 'https://me@id.test', audiences: [a]}]}", "issuers[0].issuer: is no issuer"),
        ("{issuers: [{issuer: id.test, audiences: [a]}]}", "issuers[0].issuer: is no issuer"),
        (one("algorithms: [none]"), "issuers[0].algorithms[0]: is forged by anybody (none)"),
        (one("algorithms: [RS256, HS256]"), "issuers[0].algorithms[1]: is forged by anybody (HS256)"),
        (one("algorithms: [RS25]"), "algorithms[0]: is no algorithm (RS25); expected RS256 (did you mean it?)"),
        (one("algorithms: []"), "issuers[0].algorithms: is empty"),
        (one("jwksUri: http://id.test/jwks"), "issuers[0].jwksUri: is no address for keys"),
        (one("jwksUri: file:///etc/passwd"), "issuers[0].jwksUri: is no address for keys"),
        (one("requiredScopes: ['a b']"), "issuers[0].requiredScopes[0]: is no scope"),
        (one("requiredScopes: [offline_access]"), "requiredScopes[0]: is no scope of a resource (offline_access)"),
        (one("introspection: {endpoint: http://id.test, clientId: a, clientSecret: b}"), "is no address for a secret"),
        (one("introspection: {endpoint: https://id.test/i, clientId: a}"), "issuers[0].introspection.clientSecret"),
        (f"{{issuers: [{GOOD}, {GOOD}]}}", "issuers[1].issuer: is there twice (id.test)"),
        (f"{{issuers: [{GOOD}, {{issuer: https://ID.test/, audiences: [a]}}]}}", "issuers[1].issuer: is there twice"),
        (f"{{resource: http://g.test, issuers: [{GOOD}]}}", "oauth.resource: is no address of a gateway"),
        (f"{{resource: 'https://g.test?x=1', issuers: [{GOOD}]}}", "oauth.resource: is no address of a gateway"),
        (f"{{ressource: https://g.test, issuers: [{GOOD}]}}", "resource (did you mean it?)"),
        ("{issuers: [{issuer: https://id.test, audiences: [https://g.test/mcp/sce]}]}", "names no profile (sce)"),
    ],
)  # fmt: skip
def test_a_mistake_stops_the_start_with_its_place(oauth: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        written(oauth)
    assert said in str(refused.value)


def test_only_one_issuer_is_asked_about_opaque_tokens() -> None:
    asked = "introspection: {endpoint: https://id.test/i, clientId: a, clientSecret: the-secret}"
    entries = [f"{{issuer: https://id{number}.test, audiences: [a], {asked}}}" for number in range(2)]
    with pytest.raises(ConfigError) as refused:
        written(f"{{issuers: [{', '.join(entries)}]}}")
    assert "issuers[1].introspection: is there for a second issuer" in str(refused.value)
    assert "the-secret" not in str(refused.value)


def test_a_key_is_never_named_as_somebody_who_signs_in() -> None:
    with pytest.raises(ConfigError, match=r"apiKeys\[0\]\.name: is named as callers of https://id\.test are"):
        written(f"{{issuers: [{GOOD}]}}", "    apiKeys: [{name: ann@id.test, key: k}]")
    with pytest.raises(ConfigError, match=r"apiKeys\[0\]\.name: holds a character that cannot be shown"):
        parse('gateway: {auth: {apiKeys: [{name: "a\\nb", key: k}]}}', environ={})


def test_on_the_network_the_address_that_callers_see_has_to_be_given() -> None:
    config = written(f"{{issuers: [{GOOD}]}}")
    check_reach(config, host="127.0.0.1", insecure=False)
    with pytest.raises(ConfigError, match=r"gateway\.auth\.oauth\.resource: is missing"):
        check_reach(config, host="0.0.0.0", insecure=True)
    check_reach(written(f"{{resource: https://g.test, issuers: [{GOOD}]}}"), host="0.0.0.0", insecure=False)


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
def test_the_audience_that_is_the_address_of_a_profile_is_known(
    audience: str, resource: str | None, profile: str | None
) -> None:
    assert profile_of_audience(audience, resource) == profile
