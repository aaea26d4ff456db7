"""Lanes: one host on its way to one whole server, directly or through a gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
from e2e.processes import typegate
from support.gateways import TOKEN, brief_pause, running_gateway
from support.hosts import Host
from support.hosts_connected import http_host, stdio_host
from support.upstreams.full_running import FullServer, full_http, full_stdio


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One host, one server, and how the host names what the server has."""

    host: Host
    server: FullServer
    through: bool

    def name(self, own: str) -> str:
        """How the host knows a tool or a prompt."""
        return f"{self.server.name}__{own}" if self.through else own

    def uri(self, path: str) -> str:
        """Return the URI of a resource that only this server has."""
        return f"full://{self.server.name}/{path}"

    def expected_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a request of the server as the host receives it; a gateway adds the name of the server."""
        params = request["params"]
        if not self.through or request["method"] != "elicitation/create":
            return request
        named = f"Server '{self.server.name}' asks: {params['message']}"
        return {**request, "params": {**params, "message": named}}

    async def call(self, own: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool."""
        return await self.host.call(self.name(own), arguments)

    async def begin(self, own: str, /, *, token: Any = None, **arguments: Any) -> Any:
        """Begin a call and return its id."""
        meta = {"_meta": {"progressToken": token}} if token is not None else {}
        return await self.host.begin("tools/call", {"name": self.name(own), "arguments": arguments, **meta})

    async def ready(self, within_s: float = 25) -> None:
        """Wait until the host sees the server's tools."""
        with anyio.fail_after(within_s):
            while self.name("echo") not in {tool["name"] for tool in await self.host.every("tools")}:
                await brief_pause()

    def __str__(self) -> str:
        """The mix, for a message."""
        return f"{self.host.version} → {'gateway → ' if self.through else ''}{self.server.name}"


@asynccontextmanager
async def whole_servers(tmp_path: Path) -> AsyncIterator[list[FullServer]]:
    """A whole server of each era over each transport, and those of the handshake that may ask the user."""
    asks = {"elicitation": True}
    async with AsyncExitStack() as stack:
        yield [
            full_stdio(tmp_path, "modern-stdio", modern=True),
            await stack.enter_async_context(full_http(tmp_path, "modern-http", modern=True)),
            full_stdio(tmp_path, "handshake-stdio", modern=False),
            await stack.enter_async_context(full_http(tmp_path, "handshake-http", modern=False)),
            full_stdio(tmp_path, "asking-stdio", modern=False, **asks),
            await stack.enter_async_context(full_http(tmp_path, "asking-http", modern=False, **asks)),
        ]


def entries(servers: list[FullServer]) -> dict[str, Any]:
    """The `mcpServers` block of these servers."""
    return {server.name: server.config for server in servers}


@asynccontextmanager
async def direct_lane(
    tmp_path: Path, server: FullServer, version: str, *, declared: Mapping[str, Any] | None = None
) -> AsyncIterator[Lane]:
    """Connect a host directly to a server."""
    log, capabilities = tmp_path / f"{server.name}.log", None if declared is None else dict(declared)
    async with httpx2.AsyncClient(timeout=30) as client:
        if server.over_http:
            opened: Any = http_host(server.config["url"], version, client, declared=capabilities)
        else:
            opened = stdio_host(server.config, version, log, declared=capabilities)
        async with opened as host:
            yield Lane(host=host, server=server, through=False)


@asynccontextmanager
async def gateway_lanes(
    tmp_path: Path, servers: list[FullServer], version: str, *, over_http: bool
) -> AsyncIterator[list[Lane]]:
    """A host connected to all servers through one gateway."""
    async with AsyncExitStack() as stack:
        if over_http:
            gateway = await stack.enter_async_context(running_gateway(tmp_path, entries(servers)))
            host: Host = await stack.enter_async_context(http_host(gateway.url, version, gateway.client))
        else:
            file = tmp_path / "typegate.json"
            file.write_text(json.dumps({"mcpServers": entries(servers)}))
            config = typegate("stdio", "--config", str(file), "--state-dir", str(tmp_path / "state"))
            config["env"]["TYPEGATE_ADMIN_TOKEN"] = TOKEN
            host = await stack.enter_async_context(stdio_host(config, version, tmp_path / "gateway.log"))
        lanes = [Lane(host=host, server=server, through=True) for server in servers]
        for lane in lanes:
            await lane.ready()
        yield lanes
