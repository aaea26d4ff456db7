"""Speak MCP over a channel: find the era by probing, list every page, call, hear of changes."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import anyio

from gateway import __version__
from gateway.config.model import ServerConfig
from gateway.eras import HANDSHAKE_VERSIONS, MODERN_VERSIONS, SERVER_INFO_KEY, envelope, header_value
from gateway.errors import ConnectionLost, GatewayError, HttpStatusError, RpcError, SessionForgotten, innermost
from gateway.upstream.channel import Channel, OnProgress
from gateway.upstream.channels import HttpChannel, open_http, open_stdio
from gateway.upstream.http import HttpClient
from gateway.upstream.sse import open_sse

log = logging.getLogger(__name__)

MODERN: Final = MODERN_VERSIONS[-1]
CLIENT_INFO: Final = {"name": "typegate", "version": __version__}
_ENVELOPE: Final = envelope(CLIENT_INFO)
MAX_PAGES: Final = 64
MAX_TOOLS: Final = 20_000
# What clients hold at most; beyond 2**53 a strict parser would refuse the whole list.
MAX_TTL_MS: Final = 24 * 60 * 60 * 1000
_PROBE_S: Final = 3.0
_RELISTEN_S: Final = 0.3

Era = Literal["modern", "handshake"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawListing:
    """What an upstream said to `tools/list`, all pages, unchecked."""

    tools: list[Any]
    ttl_ms: int | None
    scope: Literal["public", "private"]


@dataclass(slots=True, kw_only=True)
class UpstreamSession:
    """One negotiated connection. `closed` is for its owner; calls may come from any task."""

    server: str
    channel: Channel
    era: Era
    version: str
    capabilities: dict[str, Any]
    server_info: dict[str, Any]
    instructions: str | None
    changed: anyio.Event = field(default_factory=anyio.Event)
    watched: bool = False
    epoch: int = 0

    async def list_tools(self) -> RawListing:
        """Every page, within bounds; a repeated cursor ends the list.

        Raises:
            RpcError, ConnectionLost, SessionForgotten, HttpStatusError: As `Channel.request`.
        """
        tools: list[Any] = []
        seen: set[str] = set()
        ttls: list[int] = []
        public = True
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            page = await self.request("tools/list", params)
            if not isinstance(page, dict) or not isinstance(page.get("tools"), list):
                raise RpcError(-32603, "the answer to tools/list holds no list of tools")
            tools += page["tools"][: MAX_TOOLS - len(tools)]
            ttl = page.get("ttlMs")
            if isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl >= 0:
                ttls.append(int(min(ttl, MAX_TTL_MS)))
            public = public and page.get("cacheScope") == "public"
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or cursor in seen or len(tools) >= MAX_TOOLS:
                break
            seen.add(cursor)
            params = {"cursor": cursor}
        return RawListing(tools=tools, ttl_ms=min(ttls, default=None), scope="public" if public else "private")

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        on_progress: OnProgress | None = None,
        param_headers: dict[str, str] | None = None,
    ) -> Any:
        """Send any request with what this era wants around it: envelope and headers."""
        headers: dict[str, str] | None = None
        if self.era == "modern":
            meta = {**params.get("_meta", {}), **_ENVELOPE}
            params = {**params, "_meta": meta}
            if isinstance(self.channel, HttpChannel):
                headers = {"mcp-protocol-version": self.version, "mcp-method": method}
                name = params.get("name", params.get("uri"))
                if isinstance(name, str):
                    headers["mcp-name"] = header_value(name)
                if param_headers:
                    headers.update(param_headers)
        return await self.channel.request(method, params, on_progress=on_progress, headers=headers)

    async def watch(self) -> None:
        """Listen for changes while the connection lives; return where there is nothing to listen to."""
        tools = self.capabilities.get("tools")
        announces = isinstance(tools, dict) and tools.get("listChanged") is True
        if self.era == "modern":
            if announces:
                await self._listen(self._subscribe)
        elif isinstance(self.channel, HttpChannel):
            if announces:
                await self._listen(self._follow_stream)
        else:
            self.watched = announces

    def note_change(self, method: str, params: dict[str, Any]) -> None:
        """Hear a notification; a storm of them is one change."""
        if method == "notifications/tools/list_changed":
            self.changed.set()

    async def _listen(self, follow: Callable[[HttpChannel | None], Any]) -> None:
        http = self.channel if isinstance(self.channel, HttpChannel) else None
        failures = 0
        while failures < 3:
            try:
                await follow(http)
                failures = 0
            except (RpcError, HttpStatusError):
                self.watched = False
                return
            except SessionForgotten:
                if http is not None:
                    http.fail("the upstream has forgotten the session")
                return
            except ConnectionLost as error:
                failures += 1
                if not error.sent and http is not None:
                    http.fail(str(error))
                    return
            # What changed while nobody listened is found by listing again.
            self.changed.set()
            await anyio.sleep(_RELISTEN_S)
        if http is not None:
            http.fail("the stream of notifications keeps ending")

    async def _subscribe(self, http: HttpChannel | None) -> None:
        self.watched = True
        await self.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})

    async def _follow_stream(self, http: HttpChannel | None) -> None:
        assert http is not None
        async with http.listen_get() as messages:
            self.watched = True
            async for message in messages:
                http.receive(message)


async def _negotiate(server: str, channel: Channel, *, probe: bool) -> UpstreamSession:
    if probe:
        session = await _discover(server, channel)
        if session is not None:
            return session
    params = {"protocolVersion": HANDSHAKE_VERSIONS[-1], "capabilities": {}, "clientInfo": CLIENT_INFO}
    result = await channel.request("initialize", params)
    if not isinstance(result, dict) or result.get("protocolVersion") not in HANDSHAKE_VERSIONS:
        raise RpcError(-32603, "the upstream negotiates no protocol version that is known here")
    version = str(result["protocolVersion"])
    if isinstance(channel, HttpChannel) and version >= "2025-06-18":
        channel.headers["mcp-protocol-version"] = version
    await channel.notify("notifications/initialized")
    return _session(server, channel, "handshake", version, result, result.get("serverInfo"))


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
    server: str, channel: Channel, era: Era, version: str, result: dict[str, Any], info: Any
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
    )


class McpConnector:
    """Opens sessions to one configured upstream; remembers what its probes taught it."""

    def __init__(self, server: str, config: ServerConfig, client: HttpClient) -> None:
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

        def hear(method: str, params: dict[str, Any]) -> None:
            if holder:
                holder[0].note_change(method, params)

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

    async def _connect(self, stack: AsyncExitStack, hear: Callable[[str, dict[str, Any]], None]) -> UpstreamSession:
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
                    on_notification=hear,
                )
            )
            try:
                return await _negotiate(self._server, channel, probe=self._probe)
            except ConnectionLost:
                # Some old servers exit at a method they do not know: next time without the probe.
                self._probe = not self._probe
                raise
        assert config.url is not None
        if self._legacy_sse:
            return await self._connect_sse(stack, hear)
        channel = await stack.enter_async_context(
            open_http(self._server, config.url, headers=config.headers, client=self._client, on_notification=hear)
        )
        try:
            return await _negotiate(self._server, channel, probe=True)
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

    async def _connect_sse(self, stack: AsyncExitStack, hear: Callable[[str, dict[str, Any]], None]) -> UpstreamSession:
        assert self._config.url is not None
        channel = await stack.enter_async_context(
            open_sse(
                self._server,
                self._config.url,
                headers=self._config.headers,
                client=self._client,
                on_notification=hear,
            )
        )
        return await _negotiate(self._server, channel, probe=False)
