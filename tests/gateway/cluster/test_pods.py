"""What one gateway believes of another: ids, certificates, addresses, and how soon it gives up."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.peer_credentials import PROTOCOL, PeerCredentials
from gateway.cluster.pods import PeerRouter, Pods
from gateway.config.cluster import PeersConfig
from gateway.downstream.http.connections import Connections
from gateway.downstream.http.protocol import HttpProtocol
from gateway.downstream.http.request import RequestHead
from gateway.downstream.http.responder import Responder

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


def pods(port: int, *, credentials: PeerCredentials = OTHER, asked: list[str] | None = None) -> Pods:
    """The other gateways as one knows them whose look-ups all lead to this port."""

    async def resolve(host: str, _: int) -> Sequence[tuple[str, int]]:
        if asked is not None:
            asked.append(host)
        return [("127.0.0.1", port)]

    config = PeersConfig.model_validate(
        {"listen": "127.0.0.1:1", "secret": SECRET, "name": "typegate-1", "discovery": {"dns": "gates.tools.svc"}}
    )
    return Pods(config, credentials, resolve=resolve)


async def carried(through: Pods, owner: str = "typegate-0", *fields: tuple[bytes, bytes]) -> Carried:
    head = RequestHead(b"POST", b"/mcp/dev", [(b"host", b"x"), *fields], version="1.1", keep_alive=True)
    caller = Carried()
    await through.carry(owner, head, b"{}", Responder.of(head, caller, asyncio.get_running_loop()))
    return caller


def test_an_id_tells_its_owner_to_every_gateway_and_nobody_else_can_make_one_up() -> None:
    found = OWNER.new_session_id()
    assert OTHER.owner_of(found) == OWNER.owner_of(found) == "typegate-0"
    assert STRANGER.owner_of(found) is None
    assert OTHER.owner_of(STRANGER.new_session_id()) is None
    assert OTHER.owner_of(found.replace("typegate-0", "typegate-2")) is None
    assert OTHER.owner_of(found.upper()) is None
    assert OTHER.owner_of(found + " ") is None


@given(st.text(max_size=140))
def test_no_text_is_taken_for_an_id(text: str) -> None:
    assert OTHER.owner_of(text) is None


async def test_a_request_is_carried_to_the_name_under_the_headless_service() -> None:
    asked: list[str] = []
    async with listening(OWNER) as port:
        through = pods(port, asked=asked)
        caller = await carried(through)
        through.close()
    assert asked == ["typegate-0.gates.tools.svc"]
    assert caller.status == 200
    assert caller.bytes.endswith(b'{"path":"/mcp/dev","size":2}')
    assert through.outcomes["answered"] == 1


async def test_who_has_another_secret_or_another_name_is_told_nothing() -> None:
    async with listening(STRANGER) as port:
        assert (await carried(pods(port))).status == 404
    async with listening(OWNER) as port:
        # The address of typegate-2 leads to typegate-0.
        assert (await carried(pods(port), "typegate-2")).status == 404
        impostor = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        impostor.check_hostname, impostor.verify_mode = False, ssl.CERT_NONE
        for context in (None, impostor, STRANGER.caller_context):
            reader, writer = None, None
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=context, server_hostname="typegate-0" if context else None
                )
                writer.write(b"POST /mcp HTTP/1.1\r\nhost: x\r\ntypegate-peer: 1\r\ncontent-length: 0\r\n\r\n")
                said = await reader.read()
            except OSError:
                said = b""
            if writer is not None:
                writer.close()
            assert b"HTTP" not in said


async def test_a_gateway_of_another_version_is_not_asked_to_run_anything() -> None:
    async with listening(OWNER) as port:
        through = pods(port)
        through._lines = b"typegate-peer: %b9\r\n" % PROTOCOL
        caller = await carried(through, "typegate-0", (b"typegate-peer", PROTOCOL))
        through.close()
    assert caller.status == 404


async def test_a_gateway_that_is_about_to_end_has_no_sessions_any_more() -> None:
    async with listening(OWNER, draining=True) as port:
        through = pods(port)
        assert (await carried(through)).status == 404
        through.close()


async def test_a_gateway_that_is_gone_is_looked_for_once_a_second() -> None:
    asked: list[str] = []
    async with listening(OWNER) as port:
        pass
    through = pods(port, asked=asked)
    began_s = time.monotonic()
    for _ in range(20):
        assert (await carried(through)).status == 404
    assert len(asked) == 1
    assert time.monotonic() - began_s < 1
