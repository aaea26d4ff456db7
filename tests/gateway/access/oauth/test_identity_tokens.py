"""An identity token names its subject only if it is for this gateway, this sign-in and this time."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from support.fake_issuer import SigningKey, other_key
from support.offline_issuer import START_S, Issuer, config_of, running, token_of_length
from support.virtual_time import in_virtual_time

from gateway.access.oauth.claims import MAX_TOKEN_BYTES, SKEW_S, Rejected, name_in
from gateway.access.oauth.key_set import KeySet


def keys_of(issuer: Issuer, **members: Any) -> KeySet:
    return KeySet(config_of(issuer, **members).issuers[0], issuer.fetch, clock=lambda: issuer.now_s)


def identity_token(issuer: Issuer, *, key: SigningKey | None = None, **changes: Any) -> str:
    """Return an identity token that is valid except for these changes; None removes a claim."""
    return issuer.token(key=key, header={"typ": "JWT"}, **{"aud": "gateway", "nonce": "n", **changes})


async def name(issuer: Issuer, token: str, keys: KeySet | None = None) -> str:
    if keys is None:
        keys = keys_of(issuer)
        await keys.refresh()
    return await name_in(token, keys, client_id="gateway", nonce="n", clock=lambda: issuer.now_s)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aud": ["other", "gateway"], "azp": "gateway"},
        {"exp": START_S - SKEW_S + 1},
        {"exp": START_S + 0.5},
        {"scope": None, "client_id": None},
    ],
)
async def test_valid_identity_token_names_its_subject(changes: dict[str, Any]) -> None:
    issuer = Issuer()
    assert await name(issuer, identity_token(issuer, **changes)) == "ann@id.example.test"


async def test_subject_is_read_from_the_configured_claim() -> None:
    issuer = Issuer()
    keys = keys_of(issuer, claims={"subject": "email"})
    await keys.refresh()
    assert await name(issuer, identity_token(issuer, email="a@b"), keys) == "a@b@id.example.test"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"iss": "https://other.test"}, "of its own"),
        ({"iss": None}, "of its own"),
        ({"aud": "other"}, "for another client"),
        ({"aud": ["other"]}, "for another client"),
        ({"aud": "a gateway"}, "for another client"),
        ({"aud": {"gateway": 1}}, "for another client"),
        ({"aud": None}, "for another client"),
        ({"aud": ["other", "gateway"], "azp": "other"}, "for another client"),
        ({"nonce": "m"}, "another sign-in"),
        ({"nonce": ["n"]}, "another sign-in"),
        ({"nonce": None}, "another sign-in"),
        ({"exp": START_S - SKEW_S}, "has expired"),
        ({"exp": True}, "has expired"),
        ({"exp": "2000000000"}, "has expired"),
        ({"exp": None}, "has expired"),
        ({"sub": None}, "does not identify its subject"),
        ({"key": other_key("first")}, "cannot be verified"),
    ],
)
async def test_identity_token_for_another_purpose_is_rejected(changes: dict[str, Any], problem: str) -> None:
    issuer = Issuer()
    with pytest.raises(Rejected, match=problem):
        await name(issuer, identity_token(issuer, **changes))


async def test_identity_token_with_an_algorithm_that_is_not_accepted_is_rejected() -> None:
    issuer = Issuer()
    keys = keys_of(issuer, algorithms=["ES256"])
    await keys.refresh()
    with pytest.raises(Rejected, match="not accepted \\(RS256\\)"):
        await name(issuer, identity_token(issuer), keys)


async def test_opaque_or_too_long_identity_token_is_rejected() -> None:
    issuer = Issuer()
    claims = {"typ": "JWT", "aud": "gateway", "nonce": "n"}
    longest = token_of_length(issuer, MAX_TOKEN_BYTES, **claims)
    assert await name(issuer, longest) == "ann@id.example.test"
    for token in (token_of_length(issuer, MAX_TOKEN_BYTES + 1, **claims), "opaque", ""):
        with pytest.raises(Rejected, match="of its own"):
            await name(issuer, token)


@in_virtual_time
async def test_identity_token_is_rejected_after_seconds_if_no_keys_arrive() -> None:
    issuer = Issuer()
    began_s = anyio.current_time()
    with pytest.raises(Rejected, match="cannot be verified"):
        await name(issuer, identity_token(issuer), keys_of(issuer))  # nothing runs that could fetch them
    assert anyio.current_time() - began_s == pytest.approx(6, abs=0.1)


@in_virtual_time
async def test_new_key_of_the_issuer_is_fetched_for_an_identity_token() -> None:
    issuer = Issuer()
    keys = keys_of(issuer)
    async with running(keys.run):
        assert await name(issuer, identity_token(issuer), keys) == "ann@id.example.test"
        issuer.keys = [other_key("second")]
        assert await name(issuer, identity_token(issuer), keys) == "ann@id.example.test"
        assert issuer.count("/jwks") == 2
        # Another unknown key within a minute causes no request.
        with pytest.raises(Rejected, match="cannot be verified"):
            await name(issuer, identity_token(issuer, key=SigningKey("third")), keys)
        assert issuer.count("/jwks") == 2
