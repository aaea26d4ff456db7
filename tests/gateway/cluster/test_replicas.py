"""Trust between replicas: ids, certificates, addresses and timeouts."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.replicas import PROTOCOL, PeerCredentials, PeerRouter, Replicas
from gateway.config.cluster_config import PeersConfig
from gateway.http.http_request import RequestHead
from gateway.http.responder import Responder
from gateway.http.server_connection import HttpProtocol
from gateway.http.server_connections import Connections

SECRET = "a secret of all gateways, long enough"
OWNER, OTHER = PeerCredentials(SECRET, "typegate-0"), PeerCredentials(SECRET, "typegate-1")
STRANGER = PeerCredentials("the secret of somebody else entirely", "typegate-0")


class Endpoint:
    """Answers with the profile of the path and the size of the body."""

    max_body_bytes = 1024 * 1024

    def admit(self, head: RequestHead, peer: str) -> None:
        return None

    def answer(self, head: RequestHead, admitted: Any, body: bytes, responder: Responder, peer: str) -> None:
        responder.respond(200, (b'{"path":"%b","size":%d}' % (head.path, len(body)),))


class Carried:
    """Stands for the connection of a caller; `bytes` is what it read."""

    def __init__(self) -> None:
        self.bytes = b""
        self.transport: Any = self

    def write(self, data: bytes) -> None:
        self.bytes += data

    def close(self) -> None: ...

    def response_ended(self) -> None: ...

    async def drain(self) -> None: ...

    @property
    def status(self) -> int:
        return int(self.bytes.split(b" ", 2)[1])


@asynccontextmanager
async def listening(credentials: PeerCredentials, *, draining: bool = False) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    router, connections = PeerRouter(Endpoint(), lambda: draining), Connections(most=100)
    server = await loop.create_server(
        lambda: HttpProtocol(connections, router), "127.0.0.1", 0, ssl=credentials.listener_context
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def replicas(port: int, *, credentials: PeerCredentials = OTHER, hosts: list[str] | None = None) -> Replicas:
    """Return the other gateways, as seen by a gateway that resolves all of them to this port."""

    async def resolve(host: str, _: int) -> Sequence[tuple[str, int]]:
        if hosts is not None:
            hosts.append(host)
        return [("127.0.0.1", port)]

    config = PeersConfig.model_validate(
        {"listen": "127.0.0.1:1", "secret": SECRET, "name": "typegate-1", "discovery": {"dns": "gates.tools.svc"}}
    )
    return Replicas(config, credentials, resolve=resolve)


async def carried(through: Replicas, owner: str = "typegate-0", *fields: tuple[bytes, bytes]) -> Carried:
    head = RequestHead(b"POST", b"/mcp/dev", [(b"host", b"x"), *fields], version="1.1", keep_alive=True)
    caller = Carried()
    await through.forward(owner, head, b"{}", Responder.for_request(head, caller, asyncio.get_running_loop()))
    return caller


def test_session_id_names_its_owner_and_cannot_be_forged() -> None:
    found = OWNER.new_session_id()
    assert OTHER.owner_of(found) == OWNER.owner_of(found) == "typegate-0"
    assert STRANGER.owner_of(found) is None
    assert OTHER.owner_of(STRANGER.new_session_id()) is None
    assert OTHER.owner_of(found.replace("typegate-0", "typegate-2")) is None
    assert OTHER.owner_of(found.upper()) is None
    assert OTHER.owner_of(found + " ") is None


@given(st.text(max_size=140))
def test_text_that_is_not_a_session_id_has_no_owner(text: str) -> None:
    assert OTHER.owner_of(text) is None


async def test_request_is_forwarded_to_the_replicas_headless_service_name() -> None:
    hosts: list[str] = []
    async with listening(OWNER) as port:
        through = replicas(port, hosts=hosts)
        caller = await carried(through)
        through.close()
    assert hosts == ["typegate-0.gates.tools.svc"]
    assert caller.status == 200
    assert caller.bytes.endswith(b'{"path":"/mcp/dev","size":2}')
    assert through.outcomes["answered"] == 1


async def test_replica_with_another_secret_or_name_is_refused() -> None:
    async with listening(STRANGER) as port:
        assert (await carried(replicas(port))).status == 404
    async with listening(OWNER) as port:
        # The address of typegate-2 resolves to typegate-0.
        assert (await carried(replicas(port), "typegate-2")).status == 404
        impostor = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        impostor.check_hostname, impostor.verify_mode = False, ssl.CERT_NONE
        for context in (None, impostor, STRANGER.caller_context):
            reader, writer = None, None
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=context, server_hostname="typegate-0" if context else None
                )
                writer.write(b"POST /mcp HTTP/1.1\r\nhost: x\r\ntypegate-peer: 1\r\ncontent-length: 0\r\n\r\n")
                answer = await reader.read()
            except OSError:
                answer = b""
            if writer is not None:
                writer.close()
            assert b"HTTP" not in answer


async def test_replica_of_another_version_receives_no_request() -> None:
    async with listening(OWNER) as port:
        through = replicas(port)
        through._lines = b"typegate-peer: %b9\r\n" % PROTOCOL
        caller = await carried(through, "typegate-0", (b"typegate-peer", PROTOCOL))
        through.close()
    assert caller.status == 404


async def test_draining_replica_has_no_sessions() -> None:
    async with listening(OWNER, draining=True) as port:
        through = replicas(port)
        assert (await carried(through)).status == 404
        through.close()


async def test_missing_replica_is_looked_up_once_a_second() -> None:
    hosts: list[str] = []
    async with listening(OWNER) as port:
        pass
    through = replicas(port, hosts=hosts)
    began_s = time.monotonic()
    for _ in range(20):
        assert (await carried(through)).status == 404
    assert 1 <= len(hosts) <= 1 + int(time.monotonic() - began_s)
