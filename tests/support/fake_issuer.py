"""A misbehaving issuer: it signs any token for a test, and publishes its keys late, in huge documents, or not."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "https://gateway.example.test/mcp"
# Making one takes long; no test depends on its being fresh.
_RSA = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]
_KINDS = (
    (ec.EllipticCurvePrivateKey, ECAlgorithm),
    (ed25519.Ed25519PrivateKey, OKPAlgorithm),
    (ed448.Ed448PrivateKey, OKPAlgorithm),
)
# RFC 9864, and those of COSE.
_NEW_NAMES = {
    "Ed25519": OKPAlgorithm(),
    "Ed448": OKPAlgorithm(),
    "ESP256": ECAlgorithm(ECAlgorithm.SHA256),
    "ESP384": ECAlgorithm(ECAlgorithm.SHA384),
}
Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class SigningKey:
    """One key of an issuer."""

    id: str
    key: PrivateKeyTypes = field(default_factory=lambda: _RSA[0])

    @property
    def public(self) -> dict[str, Any]:
        """Return the published form of the key."""
        kind = next((kind for base, kind in _KINDS if isinstance(self.key, base)), RSAAlgorithm)
        made: dict[str, Any] = json.loads(kind.to_jwk(self.key.public_key()))  # type: ignore[arg-type] # of its own kind
        return {**made, "kid": self.id, "use": "sig"}


def other_key(key_id: str = "other") -> SigningKey:
    """Return a key of another issuer."""
    return SigningKey(key_id, _RSA[1])


@dataclass(slots=True)
class FakeIssuer:
    """One issuer on loopback.

    Attributes:
        url: The issuer identifier.
        keys: The keys that are published; the first one signs by default.
        requests: The paths that were asked for.
        documents: The responses by path; those of an issuer unless the test replaces them.
        behaviour: Instead of an answer, by path.
        active: The introspection response for each opaque token.
    """

    url: str = ""
    keys: list[SigningKey] = field(default_factory=lambda: [SigningKey("first")])
    requests: list[str] = field(default_factory=list)
    documents: dict[str, Any] = field(default_factory=dict)
    behaviour: dict[str, Behaviour] = field(default_factory=dict)
    active: dict[str, dict[str, Any]] = field(default_factory=dict)

    def config(self, **members: Any) -> dict[str, Any]:
        """Return the entry of this issuer in `gateway.auth.oauth.issuers`."""
        return {"issuer": self.url, "audiences": [AUDIENCE], **members}

    def claims(self, **claims: Any) -> dict[str, Any]:
        """Return the claims of a valid token with some replaced; None removes a claim."""
        now_s = int(time.time())
        usual = {
            "iss": self.url, "aud": AUDIENCE, "sub": "ann", "iat": now_s, "exp": now_s + 300, "client_id": "host",
            "scope": "mcp", "jti": str(now_s),
        }  # fmt: skip
        return {name: value for name, value in {**usual, **claims}.items() if value is not None}

    def token(
        self,
        *,
        key: SigningKey | None = None,
        algorithm: str = "RS256",
        header: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """Return a token that is valid except for the given changes."""
        key = key or self.keys[0]
        head = {"typ": "at+jwt", "kid": key.id, **(header or {})}
        head = {name: value for name, value in head.items() if value is not None}
        signer = jwt.PyJWS()
        for name, known in _NEW_NAMES.items():
            signer.register_algorithm(name, known)
        payload = json.dumps(self.claims(**claims)).encode()
        return signer.encode(payload, key.key, algorithm, headers=head)  # type: ignore[arg-type] # of the algorithm's kind

    def count(self, path: str) -> int:
        """Return how often a path was requested."""
        return self.requests.count(path)

    def _document(self, path: str, form: bytes) -> Any:
        if path in self.documents:
            return self.documents[path]
        if path == "/.well-known/oauth-authorization-server":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"}
        if path == "/jwks":
            return {"keys": [key.public for key in self.keys]}
        if path == "/introspect":
            return self.active.get(parse_qs(form.decode())["token"][0], {"active": False})
        return None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [line for line in head.split("\r\n") if line.lower().startswith("content-length:")]
                form = await reader.readexactly(int(lengths[0].split(":")[1])) if lengths else b""
                path = head.split(" ")[1]
                self.requests.append(path)
                if path in self.behaviour:
                    await self.behaviour[path](writer)
                    break
                document = self._document(path, form)
                writer.write(answer(document))
                await writer.drain()
        writer.close()


def answer(document: Any, status: str | None = None, *fields: str) -> bytes:
    """Return a JSON document as an HTTP response; None stands for 404."""
    body = json.dumps(document).encode()
    status = status or ("404 Not Found" if document is None else "200 OK")
    more = "".join(f"{one}\r\n" for one in fields)
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def part(value: Any) -> str:
    """Return a part of a token."""
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@asynccontextmanager
async def fake_issuer() -> AsyncIterator[FakeIssuer]:
    """Start one; it ends with the block."""
    issuer = FakeIssuer()
    server = await asyncio.start_server(issuer.serve, "127.0.0.1", 0)
    issuer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield issuer
    finally:
        server.close()
