"""Open sessions with MCP servers, and detect the protocol version that a server speaks.

Version 2026-07-28 has no handshake; earlier versions begin with a handshake. The gateway therefore first sends a
probe, the request `server/discover`, and performs the handshake if the server does not answer the probe.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any, Final, Generic, TypeVar

import anyio

from gateway.config.server import ServerConfig
from gateway.config.upstream_types.http_config import CredentialsConfig, UrlConfig
from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.http.http_client import HttpClient
from gateway.process.secrets import SECRETS
from gateway.protocol import json_bytes
from gateway.protocol.extensions import AS_CLIENT, with_apps
from gateway.protocol.gateway_errors import (
    INTERNAL_ERROR,
    ConnectionLost,
    GatewayError,
    HttpStatusError,
    RpcError,
    innermost,
)
from gateway.protocol.versions import HANDSHAKE_VERSIONS, MODERN_VERSIONS, SERVER_INFO_KEY, envelope
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.mcp_session import CLIENT_INFO, McpSession
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.session import HostSession, SessionPorts, UpstreamSession
from gateway.upstream.transport.http_sse import open_sse
from gateway.upstream.transport.jsonrpc_transport import Transport
from gateway.upstream.transport.process_start import ProcessStart, child_environment
from gateway.upstream.transport.stderr_log import StderrLog
from gateway.upstream.transport.stdio_transport import open_stdio
from gateway.upstream.transport.streamable_http import open_streamable_http
from gateway.upstream.upstream_credentials import Credentials, SubjectToken

log = logging.getLogger(__name__)


def credentials_of(
    server: str, config: ServerConfig, sign_ins: SignIns, *, user: str = "", subject: SubjectToken | None = None
) -> Credentials | None:
    """Return the credentials that may change during a connection; None if the upstream has only fixed headers.

    Args:
        user: The caller who owns the connection, as returned by `user_of`; empty if callers share the connection.
        subject: Returns the caller's own token, which may be exchanged for a token of the upstream.
    """
    if isinstance(config, CredentialsConfig) and config.headers_command is not None:
        return HeadersCommand(server, config.headers_command, config.headers_env)
    return sign_ins.get(server, config, user=user, subject=subject)


MODERN: Final = MODERN_VERSIONS[-1]
_ENVELOPE: Final = envelope(CLIENT_INFO, {"extensions": AS_CLIENT})
# The timeout of the probe. It is short, because some older servers never answer an unknown method, and the handshake
# has to end within `connectTimeout` too. A process that takes longer to start reads both requests later, and answers
# the request that it supports.
_PROBE_S: Final = 3.0
# A second probe is sent if the credentials were renewed during the first probe.
_MAX_PROBES: Final = 2
# The client capabilities that the gateway declares on the shared connection to a server with `elicitation: true`, so
# that the server lists all its tools. Calls use separate connections, which declare the capabilities of the host.
_ASKABLE: Final[dict[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {"listChanged": True},
}
Config = TypeVar("Config", bound=ServerConfig)


class _McpConnector(ABC, Generic[Config]):
    """Opens a transport and negotiates the protocol version; implements `Connector`."""

    def __init__(
        self,
        server: str,
        config: Config,
        client: HttpClient,
        *,
        host: HostSession | None = None,
        credentials: Credentials | None = None,
        probe_s: float = _PROBE_S,
    ) -> None:
        self._probe_s = probe_s
        self._server = server
        self._config = config
        self._client = client
        self._host = host
        self._credentials = credentials

    @asynccontextmanager
    async def open(self, ports: SessionPorts) -> AsyncIterator[UpstreamSession]:
        limit_s = self._limit_s
        # This scope is entered before the scopes of the connection, because scopes must be exited in reverse order.
        with anyio.CancelScope(deadline=anyio.current_time() + limit_s) as scope:
            async with anyio.create_task_group() as group, AsyncExitStack() as stack:
                session = await self._connect(stack, InboundMessages(group, ports, self._host, server=self._server))
                scope.deadline = math.inf
                if self._credentials is not None:
                    group.start_soon(self._keep_credentials, self._credentials, session)
                try:
                    yield session
                finally:
                    # Cancel open input requests to the caller before the transport is closed.
                    group.cancel_scope.cancel()
        if scope.cancelled_caught:
            raise ConnectionLost(f"no answer to the handshake within {limit_s:g} s", sent=False)

    @property
    def _limit_s(self) -> float:
        """The timeout of the handshake in seconds."""
        return self._config.connect_timeout

    async def _keep_credentials(self, credentials: Credentials, session: McpSession) -> None:
        if not credentials.headers:
            return  # the upstream has not required credentials so far
        await credentials.renew_while_connected()
        # The credentials were revoked, so this connection, which was opened with them, must not be used any longer.
        session.fail("the credentials have expired or were revoked")

    @abstractmethod
    async def _connect(self, stack: AsyncExitStack, inbound: InboundMessages) -> McpSession:
        """Open a transport, push its cleanup to `stack`, and negotiate the protocol version."""

    async def _negotiate(self, transport: Transport, inbound: InboundMessages, *, probe: bool) -> McpSession:
        """Return a session with the newest protocol version that the server speaks."""
        # A host has a separate connection so that the server can send requests to the host during a call. Only versions
        # with a handshake have such requests, so do not probe for a version without a handshake.
        if probe and self._host is None:
            session = await self._discover(transport, inbound)
            if session is not None:
                return session
            try:
                return await self._initialize(transport, inbound)
            except RpcError as refusal:
                # Probe again: a server of version 2026-07-28 rejects the handshake. If it was still starting, its
                # answer to the first probe may have come too late.
                try:
                    session = await self._discover(transport, inbound)
                except GatewayError:
                    session = None
                if session is None:
                    # The error of the handshake describes the problem better than the error of the probe.
                    raise refusal
                return session
        return await self._initialize(transport, inbound)

    async def _discover(self, transport: Transport, inbound: InboundMessages) -> McpSession | None:
        """Probe for protocol version 2026-07-28; return None if the server does not speak this version.

        Source: MCP 2026-07-28, "Discovery".
        """
        headers = {"mcp-protocol-version": MODERN, "mcp-method": "server/discover"}
        result: Any = None
        for _ in range(_MAX_PROBES):
            version = self._credentials.version if self._credentials is not None else 0
            with anyio.move_on_after(self._probe_s):
                try:
                    result = await transport.request("server/discover", {"_meta": _ENVELOPE}, headers=headers)
                except RpcError:
                    return None
                except HttpStatusError as error:
                    # For 401 and 403, the server would refuse the handshake too, but give a less specific reason.
                    if error.status in (401, 403):
                        raise
                    return None
            if result is not None or self._credentials is None:
                break
            # If the credentials were being renewed during the probe, a timeout says nothing about the server.
            await self._credentials.wait_for_renewal()
            if self._credentials.version == version:
                break
        # After a timeout, `result` is None. The server is probably an old server that ignores unknown methods.
        versions = result.get("supportedVersions") if isinstance(result, dict) else None
        if not isinstance(versions, list) or MODERN not in versions:
            return None
        meta = result.get("_meta")
        stamp = meta.get(SERVER_INFO_KEY) if isinstance(meta, dict) else None
        return McpSession(self._server, transport, inbound, MODERN, result, stamp or result.get("serverInfo"))

    async def _initialize(self, transport: Transport, inbound: InboundMessages) -> McpSession:
        """Perform the handshake. Source: MCP 2025-11-25, "Lifecycle", "Initialization"."""
        host = self._host
        declared = host.capabilities if host else _ASKABLE if self._config.elicitation else {}
        params = {
            "protocolVersion": host.version if host else HANDSHAKE_VERSIONS[-1],
            # Declare the same extensions on all connections, because the offered tools may depend on the extensions.
            "capabilities": with_apps(declared),
            # Hosts may omit their name, but servers must not get an empty object.
            "clientInfo": (host.client_info if host else None) or CLIENT_INFO,
        }
        result = await transport.request("initialize", params)
        if not isinstance(result, dict) or result.get("protocolVersion") not in HANDSHAKE_VERSIONS:
            raise RpcError(INTERNAL_ERROR, "the upstream negotiated a protocol version that the gateway does not know")
        version = str(result["protocolVersion"])
        transport.use_version(version)
        await transport.notify("notifications/initialized")
        return McpSession(self._server, transport, inbound, version, result, result.get("serverInfo"))


class StdioConnector(_McpConnector[StdioConfig]):
    """Starts an MCP server as a process."""

    _probe = True

    def __init__(
        self,
        server: str,
        config: StdioConfig,
        client: HttpClient,
        *,
        host: HostSession | None = None,
        credentials: Credentials | None = None,
        probe_s: float = _PROBE_S,
    ) -> None:
        super().__init__(server, config, client, host=host, credentials=credentials, probe_s=probe_s)
        self._stderr_log = StderrLog(server)

    @property
    def _limit_s(self) -> float:
        """Infinite, because `ProcessStart` limits the start; its limit does not include the time in the queue."""
        return math.inf

    async def _connect(self, stack: AsyncExitStack, inbound: InboundMessages) -> McpSession:
        config = self._config
        command, args = config.line
        start = ProcessStart(config.start_timeout, denials=lambda: list(self._stderr_log.denials))
        inbound.ports.on_start(start)
        # A process for the shared connection waits in the queue. A process for the connection of one host starts at
        # once, because a caller is waiting.
        async with start.turn() if self._host is None else nullcontext():
            transport = await stack.enter_async_context(
                open_stdio(
                    self._server,
                    command,
                    args,
                    env=config.env,
                    cwd=config.cwd,
                    on_message=inbound.receive,
                    start=start,
                    stderr_log=self._stderr_log,
                    # A container engine is not sandboxed, because it needs privileged helpers such as `newuidmap`.
                    sandbox=config.sandbox if config.container is None else False,
                )
            )
            try:
                async with start.within_limit():
                    session = await self._negotiate(transport, inbound, probe=self._probe)
            except ConnectionLost:
                # Some old servers exit on an unknown method, so toggle the probe for the next attempt.
                self._probe = not self._probe
                raise
            start.end()
            return session


class SseConnector(_McpConnector[UrlConfig]):
    """Connects over HTTP+SSE."""

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
        # Do not probe: servers with this transport are older than the version that the probe detects.
        return await self._negotiate(transport, inbound, probe=False)


class HttpConnector(SseConnector):
    """Connects over Streamable HTTP, or over HTTP+SSE to a server that supports only HTTP+SSE."""

    _only_sse = False

    async def _connect(self, stack: AsyncExitStack, inbound: InboundMessages) -> McpSession:
        if self._only_sse:
            return await super()._connect(stack, inbound)
        config = self._config
        if self._credentials is not None and not self._credentials.ready:
            # Prepare the credentials before the first request, so that the server does not reject the first request.
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
            log.info("Streamable HTTP not supported, trying HTTP+SSE", extra={"server": self._server})
            try:
                session = await super()._connect(stack, inbound)
            except Exception as second:  # boundary: the error over Streamable HTTP describes the problem better
                if isinstance(innermost(second), GatewayError):
                    raise error from None
                raise
            # Set this only after a success, because a server that is still starting may answer 404 too.
            self._only_sse = True
            return session


# The timeout of the command. It suffices for a vault lookup over the network, and leaves enough of `connectTimeout` for
# the handshake.
_RUN_S: Final = 5.0
# The limit of the command's output. Servers usually accept only a few kilobytes of headers.
_MAX_BYTES: Final = 64 * 1024
# The minimum interval between two runs after refusals. Without the interval, a server that rejects every request would
# cause a run for each request.
_MIN_INTERVAL_S: Final = 2.0


class HeadersCommand:
    """Credentials printed by the `headersCommand` of an upstream."""

    def __init__(self, server: str, command: str | Sequence[str], env: Mapping[str, str | None]) -> None:
        self._env = env
        self._server = server
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        self._run_lock = anyio.Lock()
        self._ran_at_s = 0.0
        self.headers: Mapping[str, str] = {}
        self.version = 0
        self.ready = self.needs_proof = self.anonymous = False

    async def prepare(self) -> None:
        async with self._run_lock:
            if not self.ready:
                await self._run()

    def proof(self, method: str, url: str) -> None:
        """Return None: the printed headers need no proof."""

    async def handle_refusal(self, status: int, challenge: str, version: int, nonce: str = "") -> bool:
        """Run the command again after a 401, but not after a 403: new headers would have the same permissions."""
        if status != 401:
            return False
        async with self._run_lock:
            if version != self.version:
                return True
            if time.monotonic() - self._ran_at_s < _MIN_INTERVAL_S:
                return False
            await self._run()
            return version != self.version

    async def wait_for_renewal(self) -> None:
        async with self._run_lock:
            pass

    def note_accepted(self, version: int) -> None:
        """Do nothing: the command needs no confirmation."""

    async def renew_while_connected(self) -> None:
        """Wait forever: the gateway does not know when the printed headers expire."""
        await anyio.sleep_forever()

    async def _run(self) -> None:
        """Run the command, then note the time. A cancellation stops the command, and the time is not noted."""
        try:
            await self._read_printed()
        except ConnectionLost:
            self._ran_at_s = time.monotonic()
            raise
        self._ran_at_s = time.monotonic()

    async def _read_printed(self) -> None:
        printed: bytes | None = None
        try:
            with anyio.move_on_after(_RUN_S):
                # Discard standard error, which may contain the credentials.
                completed = await anyio.run_process(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=False,
                    env=child_environment(self._env, os.environ),
                )
                if completed.returncode != 0:
                    what = f"headersCommand ended with exit code {completed.returncode}"
                    raise ConnectionLost(f"{what}; its environment has only the variables in headersEnv", sent=False)
                printed = completed.stdout
        except OSError as error:
            raise ConnectionLost(f"headersCommand cannot be run ({error.strerror})", sent=False) from None
        if printed is None:
            raise ConnectionLost(f"headersCommand did not end within {_RUN_S:g} s", sent=False)
        headers = read_headers(printed)
        values = [*headers.values(), *(value.rpartition(" ")[2] for value in headers.values())]
        SECRETS.hide_latest(f"headers {self._server}", values)
        if headers != self.headers:
            self.headers = headers
            self.version += 1
        self.ready = True


def read_headers(printed: bytes) -> dict[str, str]:
    """Parse the output of a command: a JSON object, or lines of `Name: value`; names are lower-cased.

    Raises:
        ConnectionLost: The output has neither form, is too large, or contains an invalid header.
    """
    malformed = ConnectionLost(
        "the output of headersCommand has no headers; expected a JSON object, or lines of Name: value", sent=False
    )
    if len(printed) > _MAX_BYTES:
        raise malformed
    headers: dict[str, str] = {}
    try:
        document = json_bytes.loads(printed)
        pairs = list(document.items()) if isinstance(document, dict) else []
    except json_bytes.MalformedJson:
        lines = [line for line in printed.decode("utf-8", "replace").splitlines() if line.strip()]
        pairs = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    for name, value in pairs:
        is_valid = isinstance(value, str) and value.isascii() and value.isprintable() and bool(value)
        if (
            not is_valid
            or not name.isascii()
            or not name.strip()
            or any(c.isspace() or c in ':"(),/;<=>?@[\\]{}' for c in name)
        ):
            raise malformed
        headers[name.lower()] = value
    if not headers:
        raise malformed
    return headers
