"""The authorization server used by other tests works as they expect."""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
import pytest
from support.issuer import MACHINE, RunningIssuer, running_issuer

RESOURCE = "https://gateway.example.test/mcp"
CALLBACK = "http://127.0.0.1:9/oauth/callback"
VERIFIER = "v" * 64

pytestmark = pytest.mark.heavy


async def registered(issuer: RunningIssuer, **members: Any) -> dict[str, Any]:
    body = {
        "redirect_uris": [CALLBACK], "token_endpoint_auth_method": "none", "application_type": "native",
        "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"], **members,
    }  # fmt: skip
    response = await issuer.client.post(f"{issuer.url}/reg", json=body)
    assert response.status_code == 201, response.text
    client: dict[str, Any] = response.json()
    return client


async def signed_in(issuer: RunningIssuer, client_id: str) -> dict[str, Any]:
    """Tokens by an authorization code with PKCE."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
    request = {
        "client_id": client_id, "redirect_uri": CALLBACK, "response_type": "code", "scope": "mcp tools",
        "resource": RESOURCE, "state": "s", "code_challenge": challenge, "code_challenge_method": "S256",
    }  # fmt: skip
    back = await issuer.approve(f"{issuer.url}/auth?{urlencode(request)}")
    answer = parse_qs(urlsplit(back).query)
    assert back.startswith(CALLBACK), back
    assert answer["state"] == ["s"], back
    assert answer["iss"] == [issuer.url]
    form = {
        "grant_type": "authorization_code", "code": answer["code"][0], "redirect_uri": CALLBACK,
        "code_verifier": VERIFIER, "client_id": client_id, "resource": RESOURCE,
    }  # fmt: skip
    response = await issuer.client.post(f"{issuer.url}/token", data=form)
    assert response.status_code == 200, response.text
    tokens: dict[str, Any] = response.json()
    return tokens


async def refreshed(issuer: RunningIssuer, client_id: str, refresh_token: str) -> Any:
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": client_id}
    return await issuer.client.post(f"{issuer.url}/token", data=form)


async def test_registered_client_gets_a_signed_token_and_refreshes_it_once() -> None:
    async with running_issuer(account="bob", groups=["robots"]) as issuer:
        client_id = (await registered(issuer))["client_id"]
        tokens = await signed_in(issuer, client_id)
        keys = jwt.PyJWKSet.from_dict((await issuer.client.get((await issuer.metadata())["jwks_uri"])).json())
        head = jwt.get_unverified_header(tokens["access_token"])
        claims = jwt.decode(tokens["access_token"], keys[head["kid"]].key, ["RS256"], audience=RESOURCE)
        assert (claims["sub"], claims["groups"], claims["iss"]) == ("bob", ["robots"], issuer.url)
        assert claims["client_id"] == client_id
        assert sorted(claims["scope"].split()) == ["mcp", "tools"]
        second = await refreshed(issuer, client_id, tokens["refresh_token"])
        assert second.json()["refresh_token"] != tokens["refresh_token"]
        assert (await refreshed(issuer, client_id, tokens["refresh_token"])).json()["error"] == "invalid_grant"
        seen = await issuer.configure()
        assert [(grant["grant_type"], grant["ok"]) for grant in seen["grants"]] == [
            ("authorization_code", True), ("refresh_token", True), ("refresh_token", False),
        ]  # fmt: skip
        assert "POST /reg" in seen["requests"]


async def test_keys_rotate_and_endpoints_fail_on_request() -> None:
    async with running_issuer(algorithm="ES256") as issuer:
        first = jwt.get_unverified_header(await issuer.token(resource=RESOURCE))
        await issuer.configure(rotate="keep")
        second = jwt.get_unverified_header(await issuer.token(resource=RESOURCE))
        assert (first["alg"], second["alg"]) == ("ES256", "ES256")
        assert first["kid"] != second["kid"]
        published = {key["kid"] for key in (await issuer.client.get(f"{issuer.url}/jwks")).json()["keys"]}
        assert {first["kid"], second["kid"]} <= published
        await issuer.configure(rotate=True, fail={"/token": 503})
        published = {key["kid"] for key in (await issuer.client.get(f"{issuer.url}/jwks")).json()["keys"]}
        assert not {first["kid"], second["kid"]} & published
        assert (await issuer.client.post(f"{issuer.url}/token")).status_code == 503


async def test_opaque_tokens_are_introspected_and_revoked() -> None:
    async with running_issuer(opaque=True) as issuer:
        token = await issuer.token(resource=RESOURCE, scope="mcp tools")
        assert "." not in token
        who = (MACHINE["client_id"], MACHINE["client_secret"])
        found = (await issuer.client.post(f"{issuer.url}/token/introspection", data={"token": token}, auth=who)).json()
        assert found["active"] is True
        assert found["aud"] == RESOURCE
        await issuer.client.post(f"{issuer.url}/token/revocation", data={"token": token}, auth=who)
        found = (await issuer.client.post(f"{issuer.url}/token/introspection", data={"token": token}, auth=who)).json()
        assert found == {"active": False}


async def test_client_is_identified_by_its_metadata_document() -> None:
    client_id = "https://gateway.example.test/oauth/client.json"
    document = {
        "client_id": client_id, "client_name": "gateway", "redirect_uris": [CALLBACK], "application_type": "native",
        "token_endpoint_auth_method": "none", "grant_types": ["authorization_code", "refresh_token"],
    }  # fmt: skip
    async with running_issuer(documents={client_id: document}, registration=False) as issuer:
        metadata = await issuer.metadata()
        assert metadata["client_id_metadata_document_supported"] is True
        assert "registration_endpoint" not in metadata
        assert (await signed_in(issuer, client_id))["refresh_token"]
