"""Open sessions to an upstream: find its transport and its era by probing."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, Protocol

import anyio

from gateway.config.model import ServerConfig
from gateway.errors import ConnectionLost, GatewayError, HttpStatusError, RpcError, innermost
from gateway.protocol import HANDSHAKE_VERSIONS, MODERN_VERSIONS, SERVER_INFO_KEY, envelope
from gateway.upstream.callbacks import Host
from gateway.upstream.mcp_session import CLIENT_INFO, Era, UpstreamSession
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.transport.http_sse import open_sse
from gateway.upstream.transport.jsonrpc import Channel, OnMessage, Reply, refusal
from gateway.upstream.transport.streamable_http import HttpChannel, open_http, open_stdio

log = logging.getLogger(__name__)

MODERN: Final = MODERN_VERSIONS[-1]
_ENVELOPE: Final = envelope(CLIENT_INFO)
_PROBE_S: Final = 3.0
# What hosts can be asked for; said to servers that may ask, so that they list all their tools.
_ASKABLE: Final[dict[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {"listChanged": True},
}


async def _negotiate(
    server: str, channel: Channel, *, probe: bool, host: Host | None, capabilities: dict[str, Any]
) -> UpstreamSession:
    if probe and host is None:
        session = await _discover(server, channel)
        if session is not None:
            return session
    params = {
        "protocolVersion": host.version if host else HANDSHAKE_VERSIONS[-1],
        "capabilities": host.capabilities if host else capabilities,
        "clientInfo": (host.client_info if host else None) or CLIENT_INFO,
    }
    result = await channel.request("initialize", params)
    if not isinstance(result, dict) or result.get("protocolVersion") not in HANDSHAKE_VERSIONS:
        raise RpcError(-32603, "the upstream negotiates no protocol version that is known here")
    version = str(result["protocolVersion"])
    if isinstance(channel, HttpChannel) and version >= "2025-06-18":
        channel.speak(version)
    await channel.notify("notifications/initialized")
    return _session(server, channel, "handshake", version, result, result.get("serverInfo"), host=host)


async def _discover(server: str, channel: Channel) -> UpstreamSession | None:
    """Probe for the stateless era; None where the upstream does not speak it."""
    headers = {"mcp-protocol-version": MODERN, "mcp-method": "server/discover"}
    result: Any = None
    with anyio.move_on_after(_PROBE_S):
        try:
            result = await channel.request("server/discover", {"_meta": _ENVELOPE}, headers=headers)
        except RpcError:
            return None
        except HttpStatusError as error:
            if error.status in (401, 403):
                raise
            return None
    if not isinstance(result, dict):
        return None
    versions = result.get("supportedVersions")
    if not isinstance(versions, list) or MODERN not in versions:
        return None
    stamped = result.get("_meta")
    info = stamped.get(SERVER_INFO_KEY) if isinstance(stamped, dict) else None
    return _session(server, channel, "modern", MODERN, result, info or result.get("serverInfo"))


def _session(
    server: str,
    channel: Channel,
    era: Era,
    version: str,
    result: dict[str, Any],
    info: Any,
    *,
    host: Host | None = None,
) -> UpstreamSession:
    capabilities = result.get("capabilities")
    instructions = result.get("instructions")
    return UpstreamSession(
        server=server,
        channel=channel,
        era=era,
        version=version,
        capabilities=capabilities if isinstance(capabilities, dict) else {},
        server_info=info if isinstance(info, dict) else {},
        instructions=instructions if isinstance(instructions, str) else None,
        host=host,
    )


class Connector(Protocol):
    """A way to reach one upstream."""

    def open(self) -> AbstractAsyncContextManager[UpstreamSession]:
        """Connect; the session ends when this is left.

        Raises:
            GatewayError: It did not come about; the message says why.
        """


def connector_of(server: str, config: ServerConfig, client: HttpClient, *, host: Host | None = None) -> Connector:
    """The way to reach an upstream that its configuration asks for."""
    if config.type == "graphql":
        # Late: few have one, and a first answer waits for every import.
        from gateway.upstream.graphql.connector import GraphqlConnector

        return GraphqlConnector(server, config, client)
    return McpConnector(server, config, client, host=host)


class McpConnector:
    """Opens sessions to one configured upstream; remembers what its probes taught it."""

    def __init__(self, server: str, config: ServerConfig, client: HttpClient, *, host: Host | None = None) -> None:
        self._host = host
        self._capabilities: dict[str, Any] = _ASKABLE if config.elicitation else {}
        self._server = server
        self._config = config
        self._client = client
        self._probe = True
        self._legacy_sse = config.type == "sse"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[UpstreamSession]:
        """Connect and negotiate within `connectTimeout`; the session ends when this is left.

        Raises:
            GatewayError: It did not come about; the message says why.
        """
        holder: list[UpstreamSession] = []

        def hear(message: dict[str, Any], reply: Reply) -> None:
            if holder:
                holder[0].hearing.hear(message, reply)
            elif "id" in message:
                reply(refusal(message))

        limit_s = self._config.connect_timeout
        # One scope around it all: a connection's own scopes have to end before the deadline's does.
        with anyio.CancelScope(deadline=anyio.current_time() + limit_s) as scope:
            async with AsyncExitStack() as stack:
                session = await self._connect(stack, hear)
                scope.deadline = math.inf
                holder.append(session)
                yield session
        if scope.cancelled_caught:
            raise ConnectionLost(f"no answer to the handshake within {limit_s:g} s", sent=False)

    async def _negotiate(self, channel: Channel, *, probe: bool) -> UpstreamSession:
        return await _negotiate(self._server, channel, probe=probe, host=self._host, capabilities=self._capabilities)

    async def _connect(self, stack: AsyncExitStack, hear: OnMessage) -> UpstreamSession:
        config = self._config
        if config.type == "stdio":
            assert config.command is not None
            channel: Channel = await stack.enter_async_context(
                open_stdio(
                    self._server,
                    config.command,
                    config.args,
                    env=config.env,
                    cwd=config.cwd,
                    on_message=hear,
                )
            )
            try:
                return await self._negotiate(channel, probe=self._probe)
            except ConnectionLost:
                # Some old servers exit at a method they do not know: next time without the probe.
                self._probe = not self._probe
                raise
        assert config.url is not None
        if self._legacy_sse:
            return await self._connect_sse(stack, hear)
        channel = await stack.enter_async_context(
            open_http(self._server, config.url, headers=config.headers, client=self._client, on_message=hear)
        )
        try:
            return await self._negotiate(channel, probe=True)
        except HttpStatusError as error:
            if error.status not in (400, 404, 405):
                raise
            log.info("no Streamable HTTP, trying HTTP+SSE", extra={"server": self._server})
            try:
                session = await self._connect_sse(stack, hear)
            except Exception as second:
                if isinstance(innermost(second), GatewayError):
                    raise error from None
                raise
            self._legacy_sse = True
            return session

    async def _connect_sse(self, stack: AsyncExitStack, hear: OnMessage) -> UpstreamSession:
        assert self._config.url is not None
        channel = await stack.enter_async_context(
            open_sse(
                self._server,
                self._config.url,
                headers=self._config.headers,
                client=self._client,
                on_message=hear,
            )
        )
        return await self._negotiate(channel, probe=False)
