"""Proofs of possession: what is signed for each request, and what a server may ask to be repeated."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import jwt
import pytest

from gateway.upstream.oauth.challenges import token_challenge
from gateway.upstream.oauth.discovery import read_resource_metadata
from gateway.upstream.oauth.proof import ProofKey, new_key
from gateway.upstream.oauth.tokens import TokenRefused, Tokens, read_tokens


def read(proof: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The head and the claims of a proof whose signature its own key verifies."""
    head = jwt.get_unverified_header(proof)
    claims: dict[str, Any] = jwt.decode(proof, jwt.PyJWK(head["jwk"], "ES256").key, ["ES256"])
    return head, claims


def test_each_request_has_a_proof_of_its_own() -> None:
    key = ProofKey(new_key())
    head, claims = read(key.proof("POST", "https://mcp.example.test/mcp?a=b#c", token="t"))
    assert (head["typ"], head["alg"]) == ("dpop+jwt", "ES256")
    assert sorted(head["jwk"]) == ["crv", "kty", "x", "y"]
    assert (claims["htm"], claims["htu"]) == ("POST", "https://mcp.example.test/mcp")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"t").digest()).rstrip(b"=").decode()
    assert claims["ath"] == digest
    _, again = read(key.proof("POST", "https://mcp.example.test/mcp", token="t"))
    assert again["jti"] != claims["jti"]
    assert "ath" not in read(key.proof("POST", "https://issuer.example.test/token"))[1]


def test_a_nonce_is_repeated_until_there_is_another() -> None:
    key = ProofKey(new_key())
    assert key.take_nonce("first")
    assert not key.take_nonce("first")
    assert not key.take_nonce("")
    assert not key.take_nonce("x" * 5_000)
    assert read(key.proof("GET", "https://mcp.example.test/"))[1]["nonce"] == "first"


def test_a_bound_token_is_taken_only_where_it_was_asked_for_with_a_proof() -> None:
    answer = {"access_token": "t", "token_type": "DPoP"}
    tokens = read_tokens(200, answer, now_s=0.0, proven=True)
    assert tokens.scheme == "DPoP"
    assert Tokens.of_document(json.loads(json.dumps(tokens.document()))) == tokens
    with pytest.raises(TokenRefused):
        read_tokens(200, answer, now_s=0.0)
    assert read_tokens(200, {"access_token": "t"}, now_s=0.0, proven=True).scheme == "Bearer"


def test_a_server_says_by_its_challenge_or_its_metadata_that_it_wants_proofs() -> None:
    url = "https://mcp.example.test/mcp"
    challenge = token_challenge('DPoP algs="ES256", resource_metadata="https://mcp.example.test/x"')
    assert challenge is not None
    assert challenge.wants_proof
    either = token_challenge('DPoP algs="ES256", Bearer scope="mcp"')
    assert either is not None
    assert not either.wants_proof
    document = {"resource": url, "authorization_servers": ["https://issuer.example.test"]}
    assert not read_resource_metadata(document, url).wants_proof
    assert read_resource_metadata({**document, "dpop_bound_access_tokens_required": True}, url).wants_proof
