"""The other gateways of a cluster: found by name, and talked to over connections that prove who is at each end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import anyio

from gateway.cluster.carrying import NotCarried, answer_gone, carry
from gateway.cluster.peer_credentials import PROTOCOL, PeerCredentials
from gateway.config.cluster import DiscoveryConfig, PeersConfig, host_and_port
from gateway.downstream.http.handler import Handler
from gateway.downstream.http.request import RequestHead, RequestRefused
from gateway.downstream.http.responder import PING_S, Responder
from gateway.errors import GatewayError
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.transport.http_connection import HttpConnection

log = logging.getLogger(__name__)

Resolve = Callable[[str, int], Awaitable[Sequence[tuple[str, int]]]]
"""Finds addresses and ports of a host; raises `OSError` where it has none."""

# Within one cluster a gateway that lives is connected to in a millisecond; a look-up and a busy machine take longer.
_CONNECT_S: Final = 2.0
# The owner gives a sign of life at least this often: after three that were missed its machine is taken for lost.
_SILENCE_S: Final = 3 * PING_S
# One that could not be reached is not tried again for so long: many callers ask for its sessions at once.
_GONE_S: Final = 1.0
_MAX_CLIENTS: Final = 1_000
"""More names than replicas that a cluster ever had: only names that gateways of ours gave out are counted."""
_ANOTHER_VERSION: Final = 505
# A replica that starts does not wait longer than this for those that run, which answer within milliseconds.
_ASK_ALL_S: Final = 1.0
_CHANGES: Final = b"/changes"


class Pods:
    """The other gateways; a `Carrier`.

    Attributes:
        outcomes: How many requests were answered, lost on their way, and found their session gone.
    """

    def __init__(self, config: PeersConfig, credentials: PeerCredentials, *, resolve: Resolve | None = None) -> None:
        """Know these.

        Args:
            config: Where they are.
            credentials: What this gateway can prove.
            resolve: Looks a host up; by default as the system does.
        """
        self._name = credentials.name
        self._credentials = credentials
        self._discovery: DiscoveryConfig = config.discovery
        self._port = config.discovery.port or host_and_port(config.listen)[1]
        self._resolve = resolve if resolve is not None else _resolve
        self._clients: dict[str, HttpClient] = {}
        self._gone_until_s: dict[str, float] = {}
        self._lines = b"typegate-peer: %b\r\n" % PROTOCOL
        self.outcomes: Counter[str] = Counter()

    def close(self) -> None:
        """Drop every idle connection."""
        for client in self._clients.values():
            client.close()

    def owner(self, session_id: str | None) -> str | None:
        """Which other gateway has the session."""
        if session_id is None or session_id.startswith(f"{self._name}."):
            return None
        return self._credentials.owner_of(session_id)

    async def carry(self, owner: str, head: RequestHead, body: bytes, responder: Responder) -> None:
        """Have another gateway answer a caller's request, and pass its response on as it comes."""
        if self._gone_until_s.get(owner, 0.0) > time.monotonic():
            self.outcomes["gone"] += 1
            answer_gone(responder)
            return
        lost = await carry(
            self._client(owner), f"http://{owner}", head, body, responder,
            lines=self._lines, silence_s=_SILENCE_S, refused_status=_ANOTHER_VERSION,
        )  # fmt: skip
        if lost is None:
            self.outcomes["answered"] += 1
        elif lost.sent:
            self.outcomes["lost"] += 1
            log.warning("a request was lost on its way to %s: %s", owner, lost)
        else:
            self.outcomes["gone"] += 1
            self._gone_until_s[owner] = time.monotonic() + _GONE_S
            log.log(logging.WARNING if isinstance(lost, NotCarried) else logging.INFO, "%s: %s", owner, lost)

    async def ask_all(self) -> list[str]:
        """Return what the replicas that answer within a second hold, each as `SharedChanges.document` has made it."""
        found: list[str] = []

        async def ask(host: str, port: int) -> None:
            async def dial(make: Callable[[], HttpConnection]) -> HttpConnection:
                # Any replica will do: the certificate has to be that of one, whatever its name is.
                context = self._credentials.any_replica_context
                _, made = await asyncio.get_running_loop().create_connection(make, host, port, ssl=context)
                return made

            client = HttpClient(connect_timeout_s=_ASK_ALL_S, dial=dial)
            try:
                response = await client.exchange("GET", f"http://{host}{_CHANGES.decode()}", self._lines, b"")
                if response.status == 200:
                    found.append((await response.read()).decode("ascii"))
            except (GatewayError, OSError, ValueError) as error:
                log.debug("%s:%d does not tell what it holds: %s", host, port, error)
            finally:
                client.close()

        with anyio.move_on_after(_ASK_ALL_S):
            async with anyio.create_task_group() as group:
                for host, port in await self._all_addresses():
                    group.start_soon(ask, host, port)
        return found

    async def _all_addresses(self) -> Sequence[tuple[str, int]]:
        discovery = self._discovery
        if discovery.dns is None:
            return [host_and_port(each) for name, each in discovery.addresses.items() if name != self._name]
        try:
            # A headless Service has the addresses of all its pods.
            return sorted(set(await self._resolve(discovery.dns, self._port)))
        except OSError:
            return []

    def _client(self, name: str) -> HttpClient:
        client = self._clients.get(name)
        if client is None:
            if len(self._clients) >= _MAX_CLIENTS:
                oldest = next(iter(self._clients))
                self._clients.pop(oldest).close()
                self._gone_until_s.pop(oldest, None)

            async def dial(make: Callable[[], HttpConnection]) -> HttpConnection:
                return await self._dial(name, make)

            client = self._clients[name] = HttpClient(connect_timeout_s=_CONNECT_S, dial=dial)
        return client

    async def _dial(self, name: str, make: Callable[[], HttpConnection]) -> HttpConnection:
        loop = asyncio.get_running_loop()
        failed: OSError = OSError("it has no address")
        for host, port in await self._addresses(name):
            try:
                _, made = await loop.create_connection(
                    make, host, port, ssl=self._credentials.caller_context, server_hostname=name
                )
                return made
            except OSError as error:
                failed = error
        raise failed

    async def _addresses(self, name: str) -> Sequence[tuple[str, int]]:
        discovery = self._discovery
        if discovery.dns is not None:
            return await self._resolve(f"{name}.{discovery.dns}", self._port)
        address = discovery.addresses.get(name)
        return [] if address is None else [host_and_port(address)]


class PeerRouter:
    """Answers other gateways on a port of its own, on which nobody else can speak.

    Args:
        endpoint: Answers requests of sessions that live here.
        draining: Whether this gateway is about to end, and its sessions with it.
        changes: Makes the document for a replica that starts, or None; absent where nothing is shared.
    """

    def __init__(
        self, endpoint: Handler, draining: Callable[[], bool], changes: Callable[[], str | None] | None = None
    ) -> None:
        self._endpoint = endpoint
        self._draining = draining
        self._changes = _Changes(changes) if changes is not None else None

    def route(self, head: RequestHead) -> Handler:
        """The handler of a carried request.

        Raises:
            RequestRefused: It says what this version does not understand, or its session is about to end.
        """
        if head.raw(b"typegate-peer") != PROTOCOL:
            raise RequestRefused(_ANOTHER_VERSION, "another version of the protocol between gateways")
        if head.path == _CHANGES and self._changes is not None:
            return self._changes
        if not (head.path == b"/mcp" or head.path.startswith(b"/mcp/")):
            raise RequestRefused(404, "there is nothing here")
        if self._draining():
            # Not 503: whoever tries again would not find it then either, and can open a session elsewhere now.
            raise RequestRefused(404, "Session not found")
        return self._endpoint


class _Changes:
    """Tells a replica that starts what this one holds (a `Handler`)."""

    max_body_bytes: Final = 0

    def __init__(self, document: Callable[[], str | None]) -> None:
        self._document = document

    def admit(self, head: RequestHead, peer: str) -> None:
        """Accept every request: only replicas can connect."""

    def answer(self, head: RequestHead, admitted: Any, body: bytes, responder: Responder, peer: str) -> None:
        """Respond with the document."""
        document = self._document()
        responder.respond(503 if document is None else 200, ((document or "").encode("ascii"),))


async def _resolve(host: str, port: int) -> Sequence[tuple[str, int]]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=1)
    return [(str(address[0]), port) for *_, address in found]
