"""A protected server whose refresh tokens can be used once; a second use revokes all tokens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import anyio
import httpx2
from support.gateways import RunningGateway, brief_pause
from support.lying import Lying, lying_server


@dataclass(slots=True)
class Rotating:
    """The server.

    Attributes:
        lying: The server that answers its requests.
        good: The access token that is accepted.
        refresh: The refresh token that has not been used.
        spent: Refresh tokens that were used.
        revoked: Whether one of these was used again.
        arrived: Set when a refresh has reached the issuer.
        release: Lets the issuer answer refreshes.
        life_s: How long further access tokens are valid, as the issuer states.
    """

    lying: Lying
    good: str = ""
    refresh: str = ""
    spent: list[str] = field(default_factory=list)
    revoked: bool = False
    arrived: anyio.Event = field(default_factory=anyio.Event)
    release: anyio.Event = field(default_factory=anyio.Event)
    life_s: float = 3600
    _count: int = 0

    def pair(self) -> dict[str, Any]:
        """Make a new pair of tokens; only the new ones are good."""
        self._count += 1
        self.good, self.refresh = f"access-{self._count}", f"refresh-{self._count}"
        tokens = {"access_token": self.good, "refresh_token": self.refresh}
        return {**tokens, "token_type": "Bearer", "expires_in": self.life_s}

    async def token(self, _: object) -> Any:
        """Answer at the token endpoint."""
        form = {name: values[0] for name, values in parse_qs(self.lying.latest[1].decode()).items()}
        if form["grant_type"] == "authorization_code":
            return self.pair()
        if form["refresh_token"] != self.refresh:
            self.revoked, self.good = True, ""
            return (400, {"error": "invalid_grant"})
        # The token is used up when it arrives, even if the client does not wait for the answer.
        self.spent.append(form["refresh_token"])
        answer = self.pair()
        self.arrived.set()
        await self.release.wait()
        return answer

    async def mcp(self, _: object) -> Any:
        """Answer at the MCP endpoint."""
        head, body = self.lying.latest
        if not self.good or f"authorization: bearer {self.good}\r\n" not in head:
            return (401, {}, {"www-authenticate": 'Bearer scope="mcp"'})
        if head.startswith("get "):
            return (405, {})
        message = json.loads(body or b"{}")
        results = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "shop", "version": "1"},
            },
            "tools/list": {
                "tools": [{"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}]
            },
            "tools/call": {"content": [{"type": "text", "text": "seen"}]},
        }
        if "id" not in message:
            return (202, {})
        if message["method"] not in results:
            return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "unknown"}}
        return {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}

    def refuse_present_token(self) -> None:
        """Accept the present access token no longer: the gateway has to refresh."""
        self.good = f"not {self.good}"


@asynccontextmanager
async def rotating_server() -> AsyncIterator[Rotating]:
    """Serve on loopback until the block ends."""
    async with lying_server() as lying:
        lying.tell_the_truth()
        server = Rotating(lying)
        lying.paths |= {"/token": server.token, "/mcp": server.mcp}
        yield server
        server.release.set()


async def sign_in_to(gateway: RunningGateway, name: str = "shop") -> None:
    """Sign in as an administrator, and wait until the tools are listed."""
    with anyio.fail_after(25):
        while (await gateway.server(name))["state"] != "signInNeeded":
            await brief_pause()
    link = (await gateway.admin(f"servers/{name}/sign-in", "POST")).json()["url"]
    state = parse_qs(link.partition("?")[2])["state"][0]
    async with httpx2.AsyncClient(timeout=30) as browser:
        page = await browser.get(f"{gateway.origin}/oauth/callback?code=abc&state={state}")
    assert page.status_code == 200, page.text
    await gateway.until_listed(f"{name}__look")
