"""Client assertions, signed with keys of each type."""

from __future__ import annotations

from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt.algorithms import OKPAlgorithm

from gateway.upstream.oauth.client_registration import Client, ClientAssertionFailed, _assertion

NOW_S = 1_900_000_000.0
EDWARDS, LARGE_EDWARDS = ed25519.Ed25519PrivateKey.generate(), ed448.Ed448PrivateKey.generate()
CURVE = ec.generate_private_key(ec.SECP384R1())


@pytest.mark.parametrize(
    ("key", "configured", "offered", "signed_with"),
    [
        (EDWARDS, None, (), "EdDSA"),
        (EDWARDS, None, ("EdDSA", "Ed25519"), "EdDSA"),
        (EDWARDS, None, ("ES256", "Ed25519"), "Ed25519"),
        (EDWARDS, "Ed25519", (), "Ed25519"),
        (LARGE_EDWARDS, None, (), "EdDSA"),
        (LARGE_EDWARDS, None, ("Ed448",), "Ed448"),
        (CURVE, None, ("ES256",), "ES384"),
    ],
)
def test_assertion_names_its_algorithm_as_the_server_does(
    key: Any, configured: str | None, offered: tuple[str, ...], signed_with: str
) -> None:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    client = Client(
        client_id="us", origin="configured", method="private_key_jwt", private_key=pem, key_id="k", algorithm=configured
    )
    assertion = _assertion(client, "https://id.example.test", offered, NOW_S)
    assert jwt.get_unverified_header(assertion) == {"alg": signed_with, "kid": "k", "typ": "JWT"}
    verifier = jwt.PyJWS()
    for name in ("Ed25519", "Ed448"):
        verifier.register_algorithm(name, OKPAlgorithm())
    assert b'"sub":"us"' in verifier.decode(assertion, key.public_key(), algorithms=[signed_with])


def test_key_of_another_type_than_the_algorithm_is_refused_without_its_text() -> None:
    pem = EDWARDS.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    client = Client(client_id="us", origin="configured", method="private_key_jwt", private_key=pem, algorithm="ES256")
    with pytest.raises(ClientAssertionFailed, match="cannot sign") as refused:
        _assertion(client, "https://id.example.test", (), NOW_S)
    assert pem.split("\n")[1] not in str(refused.value)
