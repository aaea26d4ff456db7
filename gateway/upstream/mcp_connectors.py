"""Open sessions to MCP servers: find what they speak by probing."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any, Final, Generic, TypeVar

import anyio

from gateway.config.server import ServerConfig
from gateway.config.upstream_types.http_config import UrlConfig
from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.errors import INTERNAL_ERROR, ConnectionLost, GatewayError, HttpStatusError, RpcError, innermost
from gateway.protocol import HANDSHAKE_VERSIONS, MODERN_VERSIONS, SERVER_INFO_KEY, envelope
from gateway.upstream.credentials import Credentials
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.mcp_session import CLIENT_INFO, McpSession
from gateway.upstream.request_callbacks import HostSession
from gateway.upstream.session import SessionPorts, UpstreamSession
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.transport.http_sse import open_sse
from gateway.upstream.transport.jsonrpc import Transport
from gateway.upstream.transport.process_start import ProcessStart
from gateway.upstream.transport.stderr_log import StderrLog
from gateway.upstream.transport.stdio import open_stdio
from gateway.upstream.transport.streamable_http import open_streamable_http

log = logging.getLogger(__name__)

MODERN: Final = MODERN_VERSIONS[-1]
_ENVELOPE: Final = envelope(CLIENT_INFO)
# Handshake-era servers that never answer an unknown method: within `connectTimeout` the handshake still has time. A
# process that is still starting finds both requests on its input, and answers the one that it knows.
_PROBE_S: Final = 3.0
# Once with each of two credentials.
_MAX_PROBES: Final = 2
# What hosts can be asked for; declared to servers that may ask, so that they list all their tools.
_ASKABLE: Final[dict[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {"listChanged": True},
}
Config = TypeVar("Config", bound=ServerConfig)


class _McpConnector(ABC, Generic[Config]):
    """Opens a transport and negotiates over it; see `Connector`."""

    def __init__(
        self,
        server: str,
        config: Config,
        client: HttpClient,
        *,
        host: HostSession | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._server = server
        self._config = config
        self._client = client
        self._host = host
        self._credentials = credentials

    @asynccontextmanager
    async def open(self, ports: SessionPorts) -> AsyncIterator[UpstreamSession]:
        """See `Connector.open`."""
        limit_s = self._limit_s
        # One scope around it all: a connection's own scopes have to end before the deadline's does.
        with anyio.CancelScope(deadline=anyio.current_time() + limit_s) as scope:
            async with anyio.create_task_group() as group, AsyncExitStack() as stack:
                session = await self._connect(stack, InboundMessages(group, ports, self._host, server=self._server))
                scope.deadline = math.inf
                if self._credentials is not None:
                    group.start_soon(self._keep_credentials, self._credentials, session)
                try:
                    yield session
                finally:
                    # Before the transport is closed: nobody is asked for a connection that has ended.
                    group.cancel_scope.cancel()
        if scope.cancelled_caught:
            raise ConnectionLost(f"no answer to the handshake within {limit_s:g} s", sent=False)

    @property
    def _limit_s(self) -> float:
        """For how long the handshake is waited for."""
        return self._config.connect_timeout

    async def _keep_credentials(self, credentials: Credentials, session: McpSession) -> None:
        if not credentials.headers:
            return  # it asks for nothing so far
        await credentials.keep()
        # Taken away: what was opened with them is not used any longer.
        session.fail("the credentials have ended")

    @abstractmethod
    async def _connect(self, stack: AsyncExitStack, inbound: InboundMessages) -> McpSession:
        """Open a transport on this stack and negotiate."""

    async def _negotiate(self, transport: Transport, inbound: InboundMessages, *, probe: bool) -> McpSession:
        """The session of what the server speaks: the newest version first, where it may be asked."""
        # A host's own connection is for what only the handshake era has: questions in the middle of a call.
        if probe and self._host is None:
            session = await self._discover(transport, inbound)
            if session is not None:
                return session
            try:
                return await self._initialize(transport, inbound)
            except RpcError as refusal:
                # It may have been starting still when it was asked: by now it has read that question first, and takes
                # no handshake after it.
                try:
                    session = await self._discover(transport, inbound)
                except GatewayError:
                    session = None
                if session is None:
                    # What it said first is the cause, whatever it says to another question.
                    raise refusal
                return session
        return await self._initialize(transport, inbound)

    async def _discover(self, transport: Transport, inbound: InboundMessages) -> McpSession | None:
        """Ask for 2026-07-28; None where the server does not speak it.

        Source: MCP 2026-07-28, "Discovery".
        """
        headers = {"mcp-protocol-version": MODERN, "mcp-method": "server/discover"}
        result: Any = None
        for _ in range(_MAX_PROBES):
            version = self._credentials.version if self._credentials is not None else 0
            with anyio.move_on_after(_PROBE_S):
                try:
                    result = await transport.request("server/discover", {"_meta": _ENVELOPE}, headers=headers)
                except RpcError:
                    return None
                except HttpStatusError as error:
                    # With these credentials the handshake would be refused too, with a less telling reason.
                    if error.status in (401, 403):
                        raise
                    return None
            if result is not None or self._credentials is None:
                break
            # Silence says nothing of the server where the time went into other credentials.
            await self._credentials.settled()
            if self._credentials.version == version:
                break
        # Silence means no, too: old servers ignore what they do not know.
        versions = result.get("supportedVersions") if isinstance(result, dict) else None
        if not isinstance(versions, list) or MODERN not in versions:
            return None
        meta = result.get("_meta")
        stamp = meta.get(SERVER_INFO_KEY) if isinstance(meta, dict) else None
        return McpSession(self._server, transport, inbound, MODERN, result, stamp or result.get("serverInfo"))

    async def _initialize(self, transport: Transport, inbound: InboundMessages) -> McpSession:
        """Shake hands. Source: MCP 2025-11-25, "Lifecycle", "Initialization"."""
        host = self._host
        params = {
            "protocolVersion": host.version if host else HANDSHAKE_VERSIONS[-1],
            "capabilities": host.capabilities if host else _ASKABLE if self._config.elicitation else {},
            # A host may leave its name out; a server must not get an empty object.
            "clientInfo": (host.client_info if host else None) or CLIENT_INFO,
        }
        result = await transport.request("initialize", params)
        if not isinstance(result, dict) or result.get("protocolVersion") not in HANDSHAKE_VERSIONS:
            raise RpcError(INTERNAL_ERROR, "the upstream negotiates no protocol version that is known here")
        version = str(result["protocolVersion"])
        transport.use_version(version)
        await transport.notify("notifications/initialized")
        return McpSession(self._server, transport, inbound, version, result, result.get("serverInfo"))


class StdioConnector(_McpConnector[StdioConfig]):
    """Starts a process."""

    _probe = True

    def __init__(
        self,
        server: str,
        config: StdioConfig,
        client: HttpClient,
        *,
        host: HostSession | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(server, config, client, host=host, credentials=credentials)
        self._stderr_log = StderrLog(server)

    @property
    def _limit_s(self) -> float:
        """See `_McpConnector`; a start has its own limit, which begins with the process."""
        return math.inf

    async def _connect(self, stack: AsyncExitStack, inbound: InboundMessages) -> McpSession:
        config = self._config
        start = ProcessStart(config.start_timeout)
        inbound.ports.on_start(start)
        # A caller waits for a connection of its own, which does not queue.
        async with start.turn() if self._host is None else nullcontext():
            transport = await stack.enter_async_context(
                open_stdio(
                    self._server,
                    config.command,
                    config.args,
                    env=config.env,
                    cwd=config.cwd,
                    on_message=inbound.receive,
                    start=start,
                    stderr_log=self._stderr_log,
                    separate=config.sandbox is not False,
                )
            )
            try:
                async with start.within_limit():
                    session = await self._negotiate(transport, inbound, probe=self._probe)
            except ConnectionLost:
                # Some old servers exit at a method they do not know: next time without the probe.
                self._probe = not self._probe
                raise
            start.under_way = False
            return session


class SseConnector(_McpConnector[UrlConfig]):
    """Opens the event stream of HTTP+SSE."""

    async def _connect(self, stack: AsyncExitStack, inbound: InboundMessages) -> McpSession:
        config = self._config
        transport = await stack.enter_async_context(
            open_sse(
                self._server,
                config.url,
                headers=config.headers,
                client=self._client,
                on_message=inbound.receive,
                credentials=self._credentials,
            )
        )
        # That transport is older than what the probe asks for.
        return await self._negotiate(transport, inbound, probe=False)


class HttpConnector(SseConnector):
    """Speaks Streamable HTTP, and HTTP+SSE from the day on which a server was found to have only that."""

    _only_sse = False

    async def _connect(self, stack: AsyncExitStack, inbound: InboundMessages) -> McpSession:
        if self._only_sse:
            return await super()._connect(stack, inbound)
        config = self._config
        if self._credentials is not None and not self._credentials.ready:
            # Before the server is asked anything: what it takes is not taken from its answer.
            await self._credentials.prepare()
        transport = await stack.enter_async_context(
            open_streamable_http(
                self._server,
                config.url,
                headers=config.headers,
                client=self._client,
                on_message=inbound.receive,
                credentials=self._credentials,
            )
        )
        try:
            return await self._negotiate(transport, inbound, probe=True)
        except HttpStatusError as error:
            # Source: MCP 2025-03-26, "Transports", "Backwards Compatibility".
            if error.status not in (400, 404, 405):
                raise
            log.info("no Streamable HTTP, trying HTTP+SSE", extra={"server": self._server})
            try:
                session = await super()._connect(stack, inbound)
            except Exception as second:  # boundary: the error of the first attempt is the better reason
                if isinstance(innermost(second), GatewayError):
                    raise error from None
                raise
            # Only once it worked: a server that is just starting answers 404 too.
            self._only_sse = True
            return session
