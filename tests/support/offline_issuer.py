"""An issuer without a socket, and the tokens of a gateway that accepts it, with a clock controlled by the test."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
from support.fake_issuer import FakeIssuer

from gateway.access.oauth.access_tokens import Tokens
from gateway.access.oauth.key_set import Fetched
from gateway.access.principal import Principal, Refusal
from gateway.config.auth_config import OAuthConfig
from gateway.protocol.gateway_errors import ConnectionLost

START_S = 1_900_000_000.0


@dataclass
class Issuer(FakeIssuer):
    """An issuer without a socket: what it publishes is handed out."""

    url: str = "https://id.example.test"
    now_s: float = START_S
    down: bool = False

    async def fetch(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, limit_bytes: int
    ) -> Fetched:
        path = url.removeprefix(self.url)
        self.requests.append(path)
        await anyio.lowlevel.checkpoint()
        if self.down:
            raise ConnectionLost("it is down", sent=False)
        document = self._document(path, body)
        return Fetched(status=404 if document is None else 200, body=json.dumps(document).encode())

    def claims(self, **claims: Any) -> dict[str, Any]:
        return FakeIssuer.claims(self, **{"iat": int(self.now_s), "exp": int(self.now_s) + 300, **claims})


def config_of(issuer: FakeIssuer, **members: Any) -> OAuthConfig:
    return OAuthConfig.model_validate({"issuers": [issuer.config(**members)]})


@asynccontextmanager
async def known(issuer: Issuer, bounds: Mapping[str, Any] | None = None, **members: Any) -> AsyncIterator[Tokens]:
    """The tokens of an issuer, kept up to date within these bounds."""
    found = Tokens(config_of(issuer, **members), issuer.fetch, clock=lambda: issuer.now_s, **(bounds or {}))
    async with running(found.run):
        yield found


@asynccontextmanager
async def running(function: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run a function beside the block, and cancel it at the end of the block."""
    async with anyio.create_task_group() as group:
        group.start_soon(function)
        yield
        group.cancel_scope.cancel()


async def look(found: Tokens, token: str) -> Principal | Refusal:
    """Return the principal of a token, with a request to the issuer if needed."""
    seen = found.principal(token, hashlib.sha256(token.encode()).digest())
    if isinstance(seen, Principal | Refusal):
        return seen
    with anyio.fail_after(20):
        return await seen.verify()


def at_once(found: Tokens, token: str) -> Principal | Refusal | None:
    """Return the principal without a request to the issuer; None if a request would be needed."""
    seen = found.principal(token, hashlib.sha256(token.encode()).digest())
    return seen if isinstance(seen, Principal | Refusal) else None


def token_of_length(issuer: Issuer, length: int, *, typ: str = "at+jwt", **claims: Any) -> str:
    """Return a valid token with exactly this number of characters."""
    missing = length - len(issuer.token(header={"typ": typ, "x": ""}, x="", **claims))
    for in_header in range(3):  # not every length is reached by a longer claim alone
        for in_claim in range(missing * 3 // 4 - 4, missing * 3 // 4 + 1):
            token = issuer.token(header={"typ": typ, "x": "x" * in_header}, x="x" * in_claim, **claims)
            if len(token) == length:
                return token
    raise AssertionError(f"no token has {length} characters")
