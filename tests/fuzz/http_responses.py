"""Our reader of upstreams' answers: what it makes of them is a matter neither of packets nor of what was read before,
on this connection or on others.

And what h11 reads, too, has the same meaning.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, NamedTuple, cast

import h11

from gateway.http.client_connection import RESPONSE_HEADERS, HttpConnection
from gateway.http.event_stream import media_type
from tests.fuzz.http_requests import Wire, parted
from tests.fuzz.mutation import mutated, pieces

_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
# Heads that come again are known from then on; what is nearly the same may be taken for them.
REPEATED = (
    _JSON + b"Content-Length: 2\r\n\r\n{}",
    _JSON + b"Content-Length: 0\r\n\r\n",
    _JSON + b"Content-Length: 13\r\nX-A: b\r\n\r\n[1,2,3,4,5,6]",
    b"HTTP/1.1 200 OK\r\ndate: Sun, 22 Nov 2026 08:00:00 GMT\r\ncontent-type: application/json\r\n"
    b"content-length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nDate: Sun, 22 Nov 2026 08:00:00 GMT\r\n\r\n{}",
)
SEEDS = (
    *REPEATED,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\nup to the end",
    b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://other.test/\r\nContent-Length: 0\r\n\r\n",
    _JSON + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}",
)
# Fields that no reader uses in a complete response.
_NOT_LOOKED_AT = ("content-length", "date")


class Answer(NamedTuple):
    """The parts of a response on which all readers have to agree."""

    status: int
    headers: dict[str, str]
    body: bytes


async def compare(data: bytes, rng: random.Random) -> None:
    """Read the same bytes, and nearly the same; raises AssertionError where what they mean differs."""
    for one in (data, mutated(rng, (data,)), mutated(rng, (data,))):
        RESPONSE_HEADERS._heads.clear()
        ours = read([one])
        require_same(ours, of_h11(one))
        for sound in REPEATED:
            read([sound])
        # The first packet is parsed; the second is found in the cache.
        for packets in ([one], [one], pieces(rng, one), parted(rng, one)):
            again = read(packets)
            assert again == ours, f"the result depends on the packets: {packets}\n{ours}\n{again}"
            before = rng.choice(SEEDS)
            connection = connected()
            read([before], connection)
            if connection.end() and connection.is_usable(60):
                again = read(packets, connection)
                assert again == ours, f"it is a matter of {before!r} before: {packets}\n{ours}\n{again}"


def connected() -> HttpConnection:
    """A connection of which the other end can be seen."""
    connection = HttpConnection(asyncio.get_running_loop(), "http://127.0.0.1")
    connection.connection_made(Wire())
    return connection


def read(packets: list[bytes], connection: HttpConnection | None = None) -> Answer | None:
    """Return what a connection reads from these packets and the end after them; None if it gives up."""
    connection = connection or connected()
    connection.write(b"as if it were a request")
    body = b""
    for packet in packets:
        if connection.lost is not None or connection.complete:
            break
        connection.data_received(packet)
        body += connection.read_body()
    if not connection.complete:
        connection.eof_received()
        connection.connection_lost(None)
    assert connection.complete or connection.lost is not None, "neither whole nor lost"
    if not connection.complete:
        return None
    headers = {name: value for name, value in connection.headers.items() if name not in _NOT_LOOKED_AT}
    if connection.plain is not None:
        assert media_type(headers.get("content-type", "")) == "application/json", "it does not say that it is JSON"
        assert connection.plain, "nothing is no JSON"
    return Answer(connection.status, headers, body)


def of_h11(data: bytes) -> Answer | None:
    """Return what h11 reads from the bytes; None if it refuses them, or if they end too early."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 17)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "a"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    head: h11.Response | None = None
    body, is_at_end = b"", False
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return None
        if isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            break
        elif event is h11.NEED_DATA and not is_at_end:
            connection.receive_data(b"")
            is_at_end = True
        elif not isinstance(event, h11.InformationalResponse):
            return None
    assert head is not None
    fields = [(name.decode(), value.decode("latin-1")) for name, value in cast(Any, head.headers)]
    return Answer(head.status_code, {name: value for name, value in fields if name not in _NOT_LOOKED_AT}, body)


def require_same(ours: Answer | None, theirs: Answer | None) -> None:
    """Raise AssertionError where both have an answer, and not the same one."""
    if ours is not None and theirs is not None:
        assert (ours.status, ours.body) == (theirs.status, theirs.body), f"h11 reads another answer:\n{ours}\n{theirs}"
