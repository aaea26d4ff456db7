"""Parsing of WWW-Authenticate challenges in every notation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pace import limited_work

from gateway.upstream.oauth.metadata_discovery import parse_challenges, token_challenge

METADATA = "https://mcp.example.test/.well-known/oauth-protected-resource"


@pytest.mark.parametrize(
    "header",
    [
        f'Bearer resource_metadata="{METADATA}", scope="a b"',
        f'bearer scope="a b",resource_metadata="{METADATA}"',
        f'Basic realm="x, y", Bearer realm="z", scope="a b", resource_metadata="{METADATA}"',
        f'Bearer resource_metadata={METADATA}, scope="a b"',
        f'Negotiate, Bearer  scope = "a b" , resource_metadata="{METADATA}", Digest qop="auth"',
        f'Bearer scope="a b", scope="c", resource_metadata="{METADATA}"',
    ],
)
def test_token_challenge_is_found_in_any_notation(header: str) -> None:
    found = token_challenge(header)
    assert found is not None
    assert (found.resource_metadata, found.scopes) == (METADATA, ("a", "b"))


def test_escapes_in_quoted_values_are_decoded() -> None:
    [found] = parse_challenges(r'Bearer error_description="say \"please\""')
    assert found.parameters["error_description"] == 'say "please"'


@pytest.mark.parametrize("header", ["", "Basic realm=x", ",,,", '"Bearer"', "=,="])
def test_header_without_a_token_challenge_yields_none(header: str) -> None:
    assert token_challenge(header) is None


def test_challenge_without_scopes_has_none() -> None:
    found = token_challenge('Bearer error="invalid_token"')
    assert found is not None
    assert found.scopes is None
    assert not found.insufficient_scope
    assert token_challenge('Bearer error="insufficient_scope"').insufficient_scope  # type: ignore[union-attr] # it is one


@given(st.text(max_size=200))
def test_any_header_is_parsed_without_an_error(header: str) -> None:
    parse_challenges(header)


@pytest.mark.parametrize("part", ["a=", "a ", '"', "a,", '\\"', "a=\\"])
def test_hostile_headers_are_parsed_in_linear_time(part: str) -> None:
    with limited_work(0.5):
        parse_challenges("Bearer " + part * 20_000)
