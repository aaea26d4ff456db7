"""Third-party hosts sign in at a real authorization server after a 401, and call."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from support.clients.installed import signed_in_report
from support.gateways import RunningGateway, running_gateway
from support.issuer import RunningIssuer, running_issuer
from support.upstreams.running import builtin_tools, scripted_stdio_server
from support.waiting import until

pytestmark = pytest.mark.heavy
CALL = {"name": "up__echo", "arguments": {"text": "hello"}}
CALLBACK = "http://127.0.0.1:9/callback"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def guarded(
    tmp_path: Path, issuer: RunningIssuer, *arguments: str, introspected: bool = False
) -> AsyncIterator[RunningGateway]:
    """A gateway that takes tokens of a real issuer for itself, as this machine sees it."""
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    server["copies"] = True
    port = free_port()
    address = f"http://127.0.0.1:{port}/mcp"
    entry: dict[str, Any] = {
        "issuer": issuer.url, "audiences": [address, f"{address}/sec"], "requiredScopes": ["mcp"],
    }  # fmt: skip
    if introspected:
        client = {"clientId": "machine", "clientSecret": "the secret of the machine"}
        entry["introspection"] = {"endpoint": f"{issuer.url}/token/introspection", **client}
    settings = {"auth": {"oauth": {"issuers": [entry]}}, "profiles": {"sec": {}}}
    given = ("--port", str(port), *arguments)
    async with running_gateway(tmp_path, {"up": server}, gateway=settings, arguments=given) as gateway:
        yield gateway


class Storage:
    """The stored data of a host's sign-in."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def python_host(url: str, issuer: RunningIssuer, mode: str) -> tuple[list[str], Any]:
    """Sign in and call with the Python SDK's own OAuth client."""
    back: list[str] = []

    async def redirect(url: str) -> None:
        back.append(await issuer.approve(url))

    async def callback() -> AuthorizationCodeResult:
        answer = parse_qs(urlsplit(back[-1]).query)
        return AuthorizationCodeResult(code=answer["code"][0], state=answer["state"][0], iss=answer["iss"][0])

    metadata = OAuthClientMetadata.model_validate(
        {"client_name": "a host", "redirect_uris": [CALLBACK], "grant_types": ["authorization_code", "refresh_token"]}
    )
    provider = OAuthClientProvider(url, metadata, Storage(), redirect, callback)
    with anyio.fail_after(60):
        async with (
            httpx2.AsyncClient(auth=provider, timeout=30) as web,
            Client(streamable_http_client(url, http_client=web), mode=mode) as client,
        ):
            tools = [tool.name for tool in (await client.list_tools()).tools]
            return tools, await client.call_tool(CALL["name"], CALL["arguments"])  # type: ignore[arg-type] # values of one dict


@pytest.mark.parametrize("path", ["", "/sec"])
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_python_sdk_signs_in_and_calls(tmp_path: Path, mode: str, path: str) -> None:
    async with running_issuer() as issuer, guarded(tmp_path, issuer) as gateway:
        tools, result = await python_host(gateway.url + path, issuer, mode)
        assert "up__echo" in tools
        assert "hello" in str(result.content)
        (grant,) = (await issuer.configure())["grants"]
        assert (grant["resource"], grant["ok"]) == (gateway.url + path, True)


@pytest.mark.parametrize("path", ["", "/sec"])
async def test_typescript_sdk_signs_in_and_calls(tmp_path: Path, path: str) -> None:
    async with running_issuer(algorithm="ES256") as issuer, guarded(tmp_path, issuer) as gateway:
        report = await signed_in_report(gateway.url + path, CALL)
        assert "up__echo" in report["tools"]
        assert "hello" in str(report["result"])
        assert (report["asked"]["scope"], report["asked"]["resource"]) == ("mcp", gateway.url + path)


async def test_host_with_opaque_tokens_calls_through_two_workers(tmp_path: Path) -> None:
    async with (
        running_issuer(opaque=True) as issuer,
        guarded(tmp_path, issuer, "--workers", "2", introspected=True) as gateway,
    ):
        for mode in ("legacy", "2026-07-28"):
            tools, result = await python_host(gateway.url, issuer, mode)
            assert "up__echo" in tools
            assert "hello" in str(result.content)


async def test_key_rotation_under_load_fails_no_call(tmp_path: Path) -> None:
    async with running_issuer() as issuer, guarded(tmp_path, issuer, "--workers", "2") as gateway:
        statuses: list[tuple[int, str]] = []
        done = anyio.Event()

        async def load() -> None:
            token, calls = await issuer.token(resource=gateway.url), 0
            while not done.is_set():
                calls += 1
                if calls % 10 == 0:
                    token = await issuer.token(resource=gateway.url)
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**CALL}}
                body["params"]["_meta"] = {  # type: ignore[index] # values of one dict
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientCapabilities": {},
                }
                response = await gateway.post(body, {"authorization": f"Bearer {token}"})
                statuses.append((response.status_code, response.headers.get("www-authenticate", "")))

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(load)
            await until(lambda: len(statuses) >= 100)
            await issuer.configure(rotate=True)  # the old keys are withdrawn while tokens signed with them are in use
            # Every task gets more than one new token.
            before = len(statuses)
            await until(lambda: len(statuses) >= before + 200)
            done.set()
        assert set(statuses) == {(200, "")}
        # Each worker asked once in advance, and once for the new key.
        assert (await issuer.configure())["requests"].count("GET /jwks") <= 4
