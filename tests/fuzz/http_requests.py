"""Our HTTP protocol against h11: what h11 refuses is refused, and what both take has the same meaning."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass, field
from typing import Any, cast

import h11

from gateway.http.http_request import RequestHead, RequestRefused
from gateway.http.origins import HostCheck
from gateway.http.responder import Responder
from gateway.http.server_connection import HttpProtocol
from gateway.http.server_connections import Connections, Handler
from tests.fuzz.mutation import mutated, pieces

SEEDS = (
    b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /mcp HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: v\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nokGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nokGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"POST / HTTP/1.0\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /u HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 4\r\n\r\nbody",
    b"DELETE /mcp HTTP/1.1\r\nhost: a\r\nmcp-session-id: 1\r\naccept: a\r\naccept: b\r\n\r\n",
    b"GET http://a/b?c=d HTTP/1.1\r\nHost: a\r\nX: \t y \t\r\n\r\n",
    b"POST /e HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
)


# Requests that a server has read before. Once they are cached, nearly equal requests could be mistaken for them.
REPEATED = tuple(
    b"POST /mcp HTTP/1.%d\r\nHost: a\r\n%bContent-Length: %d\r\n%b\r\n%b" % (minor, before, len(body), after, body)
    for before, after, body in (
        (b"", b"", b"hello"),
        (b"", b"", b""),
        (b"Accept: a\r\n", b"", b"{}"),
        (b"", b"Accept: a\r\n", b"{}"),
        (b"X-Refused: a\r\n", b"", b"{}"),
        (b"Accept: a\r\n", b"Mcp-Method: b\r\n", b"[1]"),
        (b"", b"Connection: keep-alive\r\n", b"{}"),
    )
    for minor in (1, 0)
)
ALL_SEEDS = (*SEEDS, *REPEATED)
# The share of requests whose body comes in a separate packet.
_PARTED = 0.5


# An empty line before a request is to be ignored (RFC 9112, section 2.2 "Message Parsing"), and words of a request
# line may be parted by more than one space (section 3 "Request Line"); the length of a chunk may have any number of
# zeros before it (section 7.1 "Chunked Transfer Coding"): h11 accepts none of them.
_STRICTER = (
    "no request line received",
    "illegal request line: more than one space",
    "illegal chunk header: many zeros",
)
_MANY_ZEROS = re.compile(r"illegal chunk header: bytearray\(b'0{10}")


@dataclass(frozen=True, slots=True)
class Request:
    """The parts of a request on which all parsers have to agree."""

    method: bytes
    target: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass(slots=True)
class Recorder:
    """Answers every request at once, and remembers it; None stands for one that was refused."""

    max_body_bytes: int = 1 << 20
    host_check: HostCheck = field(default_factory=lambda: HostCheck(None, frozenset()))
    requests: list[Request | None] = field(default_factory=list)

    def route(self, head: RequestHead) -> Handler:
        """Answer everything that names its host properly."""
        self.requests.append(None)
        self.host_check.check(head)
        return self

    def admit(self, head: RequestHead, peer: str) -> None:
        """Take everything but what says that it is not to be; the heads of what is taken are known from then on."""
        head.judged = self
        if head.raw(b"x-refused") is not None:
            raise RequestRefused(403, "as it says")

    def answer(self, head: RequestHead, admitted: object, body: bytes, responder: Responder, peer: str) -> None:
        """Remember it."""
        # The length of a cached header block is that of its first body, so replace it.
        fields = tuple(
            (name, value.strip(b" \t") if name != b"content-length" else b"%d" % len(body))
            for name, value in head.fields
        )
        self.requests[-1] = Request(head.method, head.target, fields, body)
        responder.respond(200, (b"{}",))


class Wire(asyncio.Transport):
    """The other end: takes what is written, and closes when asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        if not self.closed:
            self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """End what is sent; the other direction stays open."""

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


async def compare(data: bytes, rng: random.Random) -> None:
    """Have both parse the same bytes; raises AssertionError where they differ in what matters.

    Later connections know the header blocks of earlier ones. Equal and nearly equal requests must mean the same as to
    a server with empty caches, however they are split into packets.
    """
    connections = Connections(most=10)
    for sound in REPEATED:
        await taken_by_ours([sound], connections)
    for one in (data, data, mutated(rng, (data,)), mutated(rng, (data,))):
        ours, answers = await taken_by_ours([one], Connections(most=10))
        require_same(ours, *requests_of_h11(one))
        for packets in ([one], rng.choice((pieces, parted))(rng, one)):
            again, answers_again = await taken_by_ours(packets, connections)
            assert ended(again) == ended(ours), f"it is a matter of packets: {packets}\n{ours}\n{again}"
            if ours and ours[-1] is not None:
                assert answers_again == answers, f"it is answered otherwise: {packets}\n{answers!r}\n{answers_again!r}"


def ended(requests: list[Request | None]) -> list[Request | None]:
    """Those before the last one that may be waiting for its body, judged or not."""
    return requests[:-1] if requests and requests[-1] is None else requests


def parted(rng: random.Random, data: bytes) -> list[bytes]:
    """Heads, most of them, in packets of their own."""
    packets = [b""]
    for part in re.split(rb"(?<=\r\n\r\n)", data):
        packets[-1] += part
        if rng.random() < _PARTED:
            packets.append(b"")
    return [packet for packet in packets if packet]


async def taken_by_ours(packets: list[bytes], connections: Connections) -> tuple[list[Request | None], bytes]:
    """Return the requests that the gateway reads from these packets, None for refused ones, and its responses."""
    recorder, wire = Recorder(), Wire()
    protocol = HttpProtocol(connections, recorder)
    protocol.connection_made(wire)
    for packet in packets:
        if wire.closed:
            break
        protocol.data_received(packet)
    for _ in range(200):  # each pipelined request takes one turn of the loop
        await asyncio.sleep(0)
        if not protocol._waiting:
            break
    protocol.connection_lost(None)
    answers = bytes(wire.written).count(b"HTTP/1.1 200")
    assert answers == sum(request is not None for request in recorder.requests), "not as many answers as requests"
    return recorder.requests, bytes(wire.written)


def require_same(ours: list[Request | None], taken: list[Request], refused: str) -> None:
    """Raise AssertionError where requests differ from those that h11 takes before it refuses one."""
    for number, request in enumerate(ours):
        if number == len(taken) and (request is None or refused.startswith(_STRICTER)):
            return  # h11 reads no further than here
        if request is None:
            continue
        if number < len(taken):
            assert equal(request, taken[number]), f"request {number} differs:\n{request}\n{taken[number]}"
        else:
            # A request that h11 refuses or has not completely received must not have run.
            raise AssertionError(f"request {number} was taken, and h11 {refused or 'waits for more'}: {request}")


def equal(ours: Request, theirs: Request) -> bool:
    """Return whether both requests mean the same.

    An upgrade is removed before a request is read again, and ignored in both cases; the authority of an absolute
    target replaces Host.
    """
    left_out = {b"connection", b"upgrade", b"http2-settings"}
    if not ours.target.startswith(b"/"):
        left_out.add(b"host")
    kept = [
        [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in one.fields]
        for one in (ours, theirs)
    ]
    first, second = ([field for field in fields if field[0] not in left_out] for fields in kept)
    return (ours.method, ours.target, ours.body, first) == (theirs.method, theirs.target, theirs.body, second)


def requests_of_h11(data: bytes) -> tuple[list[Request], str]:
    """Return the requests that h11 reads from the bytes, and why it refuses the next."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 17)
    connection.receive_data(data)
    taken: list[Request] = []
    head: h11.Request | None = None
    body = b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            line = str(error).partition("(")[2]
            spaced = str(error).startswith("illegal request line") and ("  " in line or "b'\\r" in line)
            if spaced:
                return taken, _STRICTER[1]
            return taken, _STRICTER[2] if _MANY_ZEROS.match(str(error)) else str(error)
        if isinstance(event, h11.Request):
            head, body = event, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            fields = tuple(
                (bytes(name), bytes(value) if name != b"content-length" else b"%d" % len(body))
                for name, value in cast(Any, head.headers)
            )
            taken.append(Request(bytes(head.method), bytes(head.target), fields, body))
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is not h11.DONE:
                return taken, "must close"
            connection.start_next_cycle()
        else:
            return taken, ""
