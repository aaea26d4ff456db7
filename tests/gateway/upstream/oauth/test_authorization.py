"""The browser's way there and back."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from gateway.upstream.oauth.authorization import (
    AnswerRefused,
    authorization_url,
    challenge_of,
    check_issuer,
    code_of,
    new_verifier,
    read_return,
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


def test_an_authorization_request_has_pkce_a_state_and_the_resource() -> None:
    found = made()
    assert found["code_challenge"] == [challenge_of("v" * 43)]
    assert found["code_challenge_method"] == ["S256"]
    assert found["resource"] == ["https://mcp.example.test/mcp"]
    assert found["state"] == ["s"]
    assert found["tenant"] == ["1"]
    assert "scope" not in found


def test_consent_is_asked_for_where_a_refresh_token_is() -> None:
    found = made(f"{ISSUER}/authorize", "mcp", "offline_access")
    assert (found["scope"], found["prompt"]) == (["mcp offline_access"], ["consent"])
    assert "prompt" not in made(f"{ISSUER}/authorize", "mcp")
    assert "prompt" not in made(f"{ISSUER}/authorize", "offline_access", consent=False)


def test_the_challenge_is_that_of_the_specification() -> None:
    # RFC 7636, appendix B.
    assert challenge_of("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk") == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
    assert new_verifier() != new_verifier()
    assert 43 <= len(new_verifier()) <= 128


@pytest.mark.parametrize(
    "query", ["", "code=1", "state=", "state=a&state=b&code=1", "state=a&code=1&code=2", "state=a&iss=x&iss=y"]
)
def test_an_answer_that_can_be_read_in_two_ways_is_refused(query: str) -> None:
    with pytest.raises(AnswerRefused):
        read_return(query)


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
def test_who_answers_is_compared_with_who_was_asked_byte_for_byte(query: str, named: bool, good: bool) -> None:
    returned = read_return(query)
    if good:
        check_issuer(returned, issuer=ISSUER, named=named)
    else:
        with pytest.raises(AnswerRefused):
            check_issuer(returned, issuer=ISSUER, named=named)


def test_a_refusal_is_told_in_words_on_one_line() -> None:
    with pytest.raises(AnswerRefused, match=r"refused \(access_denied: nobody therex\)"):
        code_of(read_return("state=s&error=access_denied&error_description=nobody+there%0ax"))
    with pytest.raises(AnswerRefused, match="no code"):
        code_of(read_return("state=s&code="))
