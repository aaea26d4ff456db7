"""A real authorization server for the tests: npm's `oidc-provider`, with consent that is given at once.

It issues access tokens as JWTs (or opaque ones) for any requested `resource`, requires PKCE, registers clients
dynamically, by documents and beforehand, knows client credentials, introspection and revocation, and rotates refresh
tokens.

    async with running_issuer(clients=[MACHINE]) as issuer:
        token = await issuer.token(resource="https://gateway.test/mcp", scope="mcp")
        callback = await issuer.approve(authorization_url)     # where a browser would end up, with `code` and `state`
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import anyio
import httpx2
from anyio.streams.buffered import BufferedByteReceiveStream
from support.clients.installed import beside, node22, npm
from support.gateways import terminate

OIDC_PROVIDER = ("oidc-provider@9.13.3",)
SCOPES = ("mcp", "tools", "tools:read", "prompts", "resources", "metrics", "read", "write")
# A client without a user, for client credentials and introspection.
MACHINE: Mapping[str, Any] = {
    "client_id": "machine",
    "client_secret": "the secret of the machine",
    "grant_types": ["client_credentials"],
    "redirect_uris": [],
    "response_types": [],
}
_MAX_STEPS = 10


@dataclass(slots=True, kw_only=True)
class RunningIssuer:
    """One authorization server.

    Attributes:
        url: The issuer identifier.
        client: Sends requests, without cookies.
    """

    url: str
    client: httpx2.AsyncClient

    async def configure(self, **settings: Any) -> dict[str, Any]:
        """Change the behaviour of the issuer from now on, and return what it has received.

        Args:
            settings: `account` and `groups` of the user who signs in; `rotate`: true for new keys alone, "keep" to
                publish the old ones as well; `fail`: statuses by path, as `{"/token": 503}`; `delay`: seconds by path.

        Returns:
            The settings, `requests` (`METHOD path` each), `grants`: the requests to the token endpoint, in order, and
            `subjects`: the tokens that were exchanged there.
        """
        seen: dict[str, Any] = (await self.client.post(f"{self.url}/control", json=settings)).json()
        return seen

    async def metadata(self) -> dict[str, Any]:
        """Return the metadata of the issuer."""
        found: dict[str, Any] = (await self.client.get(f"{self.url}/.well-known/openid-configuration")).json()
        return found

    async def token(self, *, resource: str, scope: str = "mcp", client: Mapping[str, Any] = MACHINE) -> str:
        """Return an access token by client credentials."""
        form = {"grant_type": "client_credentials", "resource": resource, "scope": scope}
        identity = (client["client_id"], client["client_secret"])
        response = await self.client.post(f"{self.url}/token", data=form, auth=identity)
        assert response.status_code == 200, response.text
        token: str = response.json()["access_token"]
        return token

    async def approve(self, authorization_url: str) -> str:
        """Follow an authorization request as a browser whose user agrees at once; returns where it is sent back to."""
        async with httpx2.AsyncClient(timeout=30) as browser:
            url = authorization_url
            for _ in range(_MAX_STEPS):
                response = await browser.get(url, follow_redirects=False)
                assert response.is_redirect, f"{response.status_code}: {response.text}"
                url = urljoin(url, response.headers["location"])
                if not url.startswith(f"{self.url}/"):
                    return url
        raise AssertionError("the authorization server sends its user in circles")


@asynccontextmanager
async def running_issuer(
    *,
    account: str = "ann",
    groups: Sequence[str] = ("staff",),
    clients: Sequence[Mapping[str, Any]] = (MACHINE,),
    documents: Mapping[str, Mapping[str, Any]] | None = None,
    scopes: Sequence[str] = SCOPES,
    algorithm: str = "RS256",
    opaque: bool = False,
    registration: bool = True,
    rotate_refresh_tokens: bool = True,
    access_token_s: int = 300,
    refresh_token_s: int = 3600,
    port: int = 0,
) -> AsyncIterator[RunningIssuer]:
    """Start an authorization server on loopback; it ends with the block.

    Args:
        account: The user who signs in, as `sub`.
        groups: The claim `groups` of every token.
        clients: The clients that are registered in advance, with the members of RFC 7591.
        documents: Client id metadata documents by their URL.
        scopes: The scopes of every resource.
        algorithm: Signs access tokens: RS256 or ES256.
        opaque: Access tokens are opaque, to be introspected.
        registration: Whether clients may register dynamically.
        rotate_refresh_tokens: Whether each refresh gives another refresh token, and a second use ends the grant.
        access_token_s: Life of an access token.
        refresh_token_s: Life of a refresh token.
        port: The port; 0 for any free one.
    """
    settings = {
        "account": account,
        "groups": list(groups),
        "clients": [dict(one) for one in clients],
        "documents": dict(documents or {}),
        "scopes": list(scopes),
        "algorithm": algorithm,
        "opaque": opaque,
        "registration": registration,
        "rotateRefreshTokens": rotate_refresh_tokens,
        "accessTokenSeconds": access_token_s,
        "refreshTokenSeconds": refresh_token_s,
        "port": port,
    }
    command = [*await anyio.to_thread.run_sync(_command), json.dumps(settings)]
    process = await anyio.open_process(command, stdin=subprocess.DEVNULL, stderr=None)
    try:
        assert process.stdout is not None
        with anyio.fail_after(20):
            lines = BufferedByteReceiveStream(process.stdout)
            # Its notices come first.
            while not (line := await lines.receive_until(b"\n", 4096)).startswith(b"{"):
                pass
        async with httpx2.AsyncClient(timeout=30) as client:
            yield RunningIssuer(url=json.loads(line)["issuer"], client=client)
    finally:
        await terminate(process)


def _command() -> list[str]:
    modules = npm("oidc-provider", OIDC_PROVIDER, scripts=False)
    return [str(node22()), str(beside(modules, Path(__file__).with_name("issuer.mjs")))]


async def token_of(issuer: RunningIssuer, account: str, *, resource: str, scope: str = "mcp") -> str:
    """Return the access token of a user who has signed in with another host."""
    callback, verifier = "http://127.0.0.1:9/callback", "v" * 64
    body = {"redirect_uris": [callback], "token_endpoint_auth_method": "none", "application_type": "native"}
    client_id = (await issuer.client.post(f"{issuer.url}/reg", json=body)).json()["client_id"]
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    wanted = {"client_id": client_id, "redirect_uri": callback, "response_type": "code", "scope": scope}
    wanted |= {"resource": resource, "code_challenge": challenge, "code_challenge_method": "S256", "state": "s"}
    await issuer.configure(account=account)
    back = await issuer.approve(f"{issuer.url}/auth?{urlencode(wanted)}")
    form = {"grant_type": "authorization_code", "code": parse_qs(urlsplit(back).query)["code"][0]}
    form |= {"redirect_uri": callback, "code_verifier": verifier, "client_id": client_id, "resource": resource}
    answer = await issuer.client.post(f"{issuer.url}/token", data=form)
    assert answer.status_code == 200, answer.text
    token: str = answer.json()["access_token"]
    return token
