"""DPoP proofs: signed claims, and repetition with a nonce."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import jwt
import pytest

from gateway.upstream.oauth.metadata_discovery import read_resource_metadata, token_challenge
from gateway.upstream.oauth.token_endpoint import DpopKey, TokenRequestFailed, Tokens, new_dpop_key, read_tokens


def read(proof: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The head and the claims of a proof whose signature its own key verifies."""
    head = jwt.get_unverified_header(proof)
    claims: dict[str, Any] = jwt.decode(proof, jwt.PyJWK(head["jwk"], "ES256").key, ["ES256"])
    return head, claims


def test_each_request_has_its_own_proof() -> None:
    key = DpopKey(new_dpop_key())
    head, claims = read(key.proof("POST", "https://mcp.example.test/mcp?a=b#c", token="t"))
    assert (head["typ"], head["alg"]) == ("dpop+jwt", "ES256")
    assert sorted(head["jwk"]) == ["crv", "kty", "x", "y"]
    assert (claims["htm"], claims["htu"]) == ("POST", "https://mcp.example.test/mcp")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"t").digest()).rstrip(b"=").decode()
    assert claims["ath"] == digest
    _, again = read(key.proof("POST", "https://mcp.example.test/mcp", token="t"))
    assert again["jti"] != claims["jti"]
    assert "ath" not in read(key.proof("POST", "https://issuer.example.test/token"))[1]


def test_nonce_is_reused_until_a_new_one_arrives() -> None:
    key = DpopKey(new_dpop_key())
    assert key.use_nonce("first")
    assert not key.use_nonce("first")
    assert not key.use_nonce("")
    assert not key.use_nonce("x" * 5_000)
    assert read(key.proof("GET", "https://mcp.example.test/"))[1]["nonce"] == "first"


def test_bound_token_is_accepted_only_after_a_proof() -> None:
    answer = {"access_token": "t", "token_type": "DPoP"}
    tokens = read_tokens(200, answer, now_s=0.0, proven=True)
    assert tokens.scheme == "DPoP"
    assert Tokens.from_document(json.loads(json.dumps(tokens.document()))) == tokens
    with pytest.raises(TokenRequestFailed):
        read_tokens(200, answer, now_s=0.0)
    assert read_tokens(200, {"access_token": "t"}, now_s=0.0, proven=True).scheme == "Bearer"


def test_proofs_are_required_by_challenge_or_metadata() -> None:
    url = "https://mcp.example.test/mcp"
    challenge = token_challenge('DPoP algs="ES256", resource_metadata="https://mcp.example.test/x"')
    assert challenge is not None
    assert challenge.requires_proof
    either = token_challenge('DPoP algs="ES256", Bearer scope="mcp"')
    assert either is not None
    assert not either.requires_proof
    document = {"resource": url, "authorization_servers": ["https://issuer.example.test"]}
    assert not read_resource_metadata(document, url).requires_proof
    assert read_resource_metadata({**document, "dpop_bound_access_tokens_required": True}, url).requires_proof
