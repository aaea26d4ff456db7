"""An MCP server of the SDK that wants tokens of an issuer, on loopback; it asks the issuer about each token."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urljoin

import anyio
import httpx2
import uvicorn
from anyio.abc import Process
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp_types import Resource, Tool
from support.gateways import TOKEN, RunningGateway, terminate
from support.issuer import MACHINE, RunningIssuer


@dataclass(slots=True, kw_only=True)
class Protected:
    """One protected server.

    Attributes:
        url: The URL of the MCP endpoint.
        seen: The number of requests with each token.
        refused: Tokens that the server no longer accepts, whatever the issuer says.
        hold: The event that `slow` waits for.
    """

    url: str
    seen: Counter[str] = field(default_factory=Counter)
    refused: set[str] = field(default_factory=set)
    hold: anyio.Event = field(default_factory=anyio.Event)


class _Introspecting:
    def __init__(self, issuer: RunningIssuer, server: Protected) -> None:
        self._issuer = issuer
        self._server = server

    async def verify_token(self, token: str) -> AccessToken | None:
        self._server.seen[token] += 1
        identity = (str(MACHINE["client_id"]), str(MACHINE["client_secret"]))
        url = f"{self._issuer.url}/token/introspection"
        found = (await self._issuer.client.post(url, data={"token": token}, auth=identity)).json()
        if not found.get("active") or token in self._server.refused:
            return None
        return AccessToken(
            token=token,
            client_id=str(found["client_id"]),
            scopes=str(found.get("scope", "")).split(),
            expires_at=found.get("exp"),
            resource=found.get("aud"),
            subject=found.get("sub"),
        )


class _Personal(MCPServer):
    """Lists items of the caller alone, in addition to those for all callers."""

    async def list_tools(self) -> list[Tool]:
        tools = await super().list_tools()
        if (subject := _subject()) is None:
            return tools
        return [*tools, Tool(name=f"of_{subject}", input_schema={"type": "object"})]

    async def list_resources(self) -> list[Resource]:
        subject = _subject()
        return [Resource(name=f"notes of {subject}", uri=f"notes://{subject}")] if subject is not None else []


def _subject() -> str | None:
    token = get_access_token()
    return token.subject if token is not None else None


@asynccontextmanager
async def protected_server(
    issuer: RunningIssuer, *, scopes: Sequence[str] = ("mcp",), sse: bool = False
) -> AsyncIterator[Protected]:
    """Serve until the block ends.

    Args:
        issuer: Gives opaque tokens.
        scopes: The scopes that every request needs.
        sse: Whether the server speaks only HTTP+SSE.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = Protected(url=f"{origin}/{'sse' if sse else 'mcp'}")
    settings = AuthSettings(
        issuer_url=issuer.url,
        resource_server_url=server.url,
        required_scopes=list(scopes),
        validate_token_resource=True,
    )
    mcp = _Personal("protected", token_verifier=_Introspecting(issuer, server), auth=settings)

    @mcp.tool()
    def whoami() -> str:
        """Tell who the token speaks for."""
        token = get_access_token()
        return f"{token.subject} with {' '.join(token.scopes)}" if token is not None else "nobody"

    @mcp.resource("notes://{owner}")
    def notes(owner: str) -> str:
        """Read the notes of somebody."""
        return f"notes of {owner} for {_subject()}"

    @mcp.tool()
    async def slow() -> str:
        """Wait until the test says so."""
        await server.hold.wait()
        return "done"

    app = mcp.sse_app() if sse else mcp.streamable_http_app()
    config = uvicorn.Config(app, log_level="error", lifespan="on")
    running = uvicorn.Server(config)
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(running.serve, [listener])
        try:
            yield server
        except BaseException as error:  # noqa: BLE001 - raised below; the server ends in its order first
            failure = error
        server.hold.set()
        running.should_exit = running.force_exit = True
    listener.close()
    if failure is not None:
        raise failure


async def follow(url: str, *, cookies: httpx2.Cookies | None = None, steps: int = 40) -> httpx2.Response:
    """Follow a link through every redirect as a browser does, with its cookies, up to a page."""
    async with httpx2.AsyncClient(timeout=30, cookies=cookies) as browser:
        page = await browser.get(url)
        for _ in range(steps):
            if not page.is_redirect:
                break
            page = await browser.get(urljoin(str(page.url), page.headers["location"]))
        return page


async def browse(url: str, issuer: RunningIssuer) -> httpx2.Response:
    """Follow a link to sign in as a browser whose user agrees at once, up to the page at the end."""
    for _ in range(3):
        page = await issuer.client.get(await issuer.approve(url))
        if not page.is_redirect:
            break
        url = page.headers["location"]
    return page


@asynccontextmanager
async def command(gateway: RunningGateway, *arguments: str) -> AsyncIterator[Process]:
    """`typegate login` or another command about sign-ins, with its standard streams."""
    line = [sys.executable, "-m", "gateway", *arguments, "--state-dir", str(gateway.state_dir)]
    environment = {**os.environ, "TYPEGATE_ADMIN_TOKEN": TOKEN, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = await anyio.open_process(line, stdin=subprocess.PIPE, env=environment)
    try:
        yield process
    finally:
        await terminate(process)


async def link_of(process: Process) -> str:
    """Return the link that a command prints."""
    assert process.stdout is not None
    text = b""
    with anyio.fail_after(25):
        while not text.endswith(b"\n"):
            text += await process.stdout.receive()
    return text.decode().strip()
