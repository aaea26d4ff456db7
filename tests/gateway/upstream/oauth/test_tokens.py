"""Responses of a token endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.upstream.oauth.metadata_discovery import scopes_to_request
from gateway.upstream.oauth.token_endpoint import TokenRequestFailed, Tokens, read_tokens


def read(status: int = 200, before: Tokens | None = None, **members: Any) -> Tokens:
    document = {"access_token": "a", "token_type": "Bearer", **members}
    return read_tokens(
        status, {key: value for key, value in document.items() if value is not None}, now_s=1000, before=before
    )


@pytest.mark.parametrize(
    ("life", "expires"),
    [
        (100, 1100),
        ("100", 1100),
        (0.1, 1000.1),
        *((life, None) for life in (None, 0, -1, True, "soon", 1e30)),
    ],
)
def test_token_is_valid_for_its_declared_lifetime(life: object, expires: float | None) -> None:
    tokens = read(expires_in=life)
    assert tokens.expires_at_s == expires
    assert not tokens.is_expired(1000.05)
    assert tokens.is_expired(1101) is (expires is not None)


def test_refresh_is_due_after_four_fifths_of_the_lifetime() -> None:
    tokens = read(expires_in=100)
    assert not tokens.is_due(1079)
    assert tokens.is_due(1080)
    assert not read().is_due(1e12)


def test_refresh_keeps_values_that_are_not_sent_again() -> None:
    before = read(refresh_token="r1", scope="a b")
    after = read(before=before)
    assert (after.refresh, after.scopes) == ("r1", ("a", "b"))
    rotated = read(before=before, refresh_token="r2", scope="a")
    assert (rotated.refresh, rotated.scopes) == ("r2", ("a",))
    assert Tokens.from_document(rotated.document()) == rotated


@pytest.mark.parametrize(
    "members",
    [
        {"token_type": "DPoP"},
        {"token_type": "mac"},
        {"token_type": "N_A"},
        {"access_token": "a\r\nx: y"},
        {"access_token": "a b"},
        {"access_token": ""},
        {"access_token": 1},
        {"access_token": "é"},
        {"access_token": "a" * 100_000},
        {"refresh_token": ["r"]},
    ],
)
def test_token_that_cannot_be_sent_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(TokenRequestFailed):
        read(**members)


@pytest.mark.parametrize(
    ("status", "document", "is_temporary", "is_grant_invalid"),
    [
        (400, {"error": "invalid_grant"}, False, True),
        (401, {"error": "invalid_client"}, False, False),
        (400, {"error": "temporarily_unavailable"}, True, False),
        (429, {"error": "rate"}, True, False),
        (503, {"error": "invalid_grant"}, True, False),
        (500, None, True, False),
        (404, None, False, False),
        (200, {"error": "invalid_grant"}, False, True),
        (200, [], False, False),
    ],
)
def test_only_explicit_issuer_errors_invalidate_a_grant(
    status: int, document: object, is_temporary: bool, is_grant_invalid: bool
) -> None:
    with pytest.raises(TokenRequestFailed) as refused:
        read_tokens(status, document, now_s=0)
    assert (refused.value.is_temporary, refused.value.is_grant_invalid) == (is_temporary, is_grant_invalid)


def test_scopes_come_from_challenge_metadata_or_neither() -> None:
    def requested_scopes(**given: Any) -> tuple[str, ...]:
        return scopes_to_request(**{"configured": (), "challenged": None, "supported": None, **given})

    assert requested_scopes(challenged=("a",), supported=("b",)) == ("a",)
    assert requested_scopes(supported=("b",)) == ("b",)
    assert requested_scopes() == ()
    assert requested_scopes(configured=("c",), supported=("b",)) == ("c",)
    assert requested_scopes(requested_before=("a", "b"), challenged=("b", "c")) == ("a", "b", "c")
    assert requested_scopes(challenged=("a",), offered_by_server=("offline_access",)) == ("a", "offline_access")
    assert requested_scopes(offered_by_server=("offline_access",)) == ()


@pytest.mark.parametrize("status", [200, 201, 202, 203, 206])
@pytest.mark.parametrize("kind", ["bearer", "Bearer ", "BEARER", None, "", "user", "JWT", "urn:x"])
def test_any_successful_answer_with_a_token_is_accepted(status: int, kind: str | None) -> None:
    found = read_tokens(status, {"access_token": "t", "token_type": kind, "refresh_token": ""}, now_s=100.0)
    assert (found.access, found.scheme, found.refresh) == ("t", "Bearer", None)


@pytest.mark.parametrize(
    ("life", "ends_s"), [("3600", 3600), ("3600.0", 3600), (" 60 ", 60), (60.5, 60.5), ("soon", None)]
)
def test_lifetime_may_be_a_string(life: object, ends_s: float | None) -> None:
    found = read_tokens(200, {"access_token": "t", "expires_in": life}, now_s=100.0)
    assert found.expires_at_s == (None if ends_s is None else 100.0 + ends_s)


def test_error_with_status_200_is_an_error() -> None:
    with pytest.raises(TokenRequestFailed, match="bad_refresh_token: The refresh token") as error:
        read_tokens(200, {"error": "bad_refresh_token", "error_description": "The refresh token ..."}, now_s=100.0)
    assert error.value.is_grant_invalid
