"""The authorization request and response."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from gateway.upstream.oauth.authorization import (
    InvalidAuthorizationResponse,
    authorization_code,
    authorization_url,
    check_issuer,
    code_challenge,
    new_verifier,
    parse_authorization_response,
)

ISSUER = "https://auth.example.test"


def made(
    endpoint: str = f"{ISSUER}/authorize?tenant=1&state=evil", *scopes: str, consent: bool = True
) -> dict[str, list[str]]:
    url = authorization_url(
        endpoint,
        client_id="c",
        redirect_uri="http://127.0.0.1:1/oauth/callback",
        state="s",
        verifier="v" * 43,
        resource="https://mcp.example.test/mcp",
        scopes=scopes,
        consent=consent,
    )
    return parse_qs(urlsplit(url).query)


def test_authorization_request_has_pkce_state_and_resource() -> None:
    found = made()
    assert found["code_challenge"] == [code_challenge("v" * 43)]
    assert found["code_challenge_method"] == ["S256"]
    assert found["resource"] == ["https://mcp.example.test/mcp"]
    assert found["state"] == ["s"]
    assert found["tenant"] == ["1"]
    assert "scope" not in found


def test_consent_prompt_accompanies_a_refresh_token_request() -> None:
    found = made(f"{ISSUER}/authorize", "mcp", "offline_access")
    assert (found["scope"], found["prompt"]) == (["mcp offline_access"], ["consent"])
    assert "prompt" not in made(f"{ISSUER}/authorize", "mcp")
    assert "prompt" not in made(f"{ISSUER}/authorize", "offline_access", consent=False)


def test_code_challenge_matches_the_specification() -> None:
    # RFC 7636, appendix B.
    assert (
        code_challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk") == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
    )
    assert new_verifier() != new_verifier()
    assert 43 <= len(new_verifier()) <= 128


@pytest.mark.parametrize(
    "query", ["", "code=1", "state=", "state=a&state=b&code=1", "state=a&code=1&code=2", "state=a&iss=x&iss=y"]
)
def test_ambiguous_authorization_response_is_refused(query: str) -> None:
    with pytest.raises(InvalidAuthorizationResponse):
        parse_authorization_response(query)


@pytest.mark.parametrize(
    ("query", "named", "good"),
    [
        (f"state=s&code=c&iss={ISSUER}", True, True),
        (f"state=s&code=c&iss={ISSUER}", False, True),
        ("state=s&code=c", False, True),
        ("state=s&code=c", True, False),
        (f"state=s&code=c&iss={ISSUER}/", True, False),
        ("state=s&code=c&iss=https://AUTH.example.test", True, False),
        ("state=s&code=c&iss=https://evil.example.test", False, False),
        ("state=s&code=c&iss=", False, False),
        ("state=s&error=access_denied&iss=https://evil.example.test", True, False),
    ],
)
def test_response_issuer_is_compared_byte_for_byte(query: str, named: bool, good: bool) -> None:
    response = parse_authorization_response(query)
    if good:
        check_issuer(response, issuer=ISSUER, is_required=named)
    else:
        with pytest.raises(InvalidAuthorizationResponse):
            check_issuer(response, issuer=ISSUER, is_required=named)


def test_authorization_error_is_reported_on_one_line() -> None:
    with pytest.raises(InvalidAuthorizationResponse, match=r"rejected the request \(access_denied: nobody therex\)"):
        authorization_code(
            parse_authorization_response("state=s&error=access_denied&error_description=nobody+there%0ax")
        )
    with pytest.raises(InvalidAuthorizationResponse, match="no code"):
        authorization_code(parse_authorization_response("state=s&code="))
