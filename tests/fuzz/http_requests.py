"""Our HTTP protocol against h11: what h11 refuses is refused, and what both take has the same meaning."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, cast

import h11

from gateway.downstream.http.connections import Connections
from gateway.downstream.http.handler import Handler
from gateway.downstream.http.host_check import HostCheck
from gateway.downstream.http.protocol import HttpProtocol
from gateway.downstream.http.request import RequestHead
from gateway.downstream.http.responder import Responder
from tests.fuzz.mutation import pieces

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


# An empty line before a request is to be ignored (RFC 9112, section 2.2 "Message Parsing"), and words of a request
# line may be parted by more than one space (section 3 "Request Line"): h11 takes neither.
_STRICTER = ("no request line received", "illegal request line: more than one space")


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be the same, whoever parses it."""

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
        """Take everything."""

    def answer(self, head: RequestHead, admitted: object, body: bytes, responder: Responder, peer: str) -> None:
        """Remember it."""
        fields = tuple((name, value.strip(b" \t")) for name, value in head.fields)
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

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


async def compare(data: bytes, rng: random.Random) -> None:
    """Have both parse the same bytes; raises AssertionError where they differ in what matters."""
    recorder, wire = Recorder(), Wire()
    protocol = HttpProtocol(Connections(most=10), recorder)
    protocol.connection_made(wire)
    for piece in pieces(rng, data):
        if wire.closed:
            break
        protocol.data_received(piece)
    for _ in range(200):  # each turn of a row of requests is one of the loop
        await asyncio.sleep(0)
        if not protocol._waiting:
            break
    protocol.connection_lost(None)
    taken, refused = requests_of_h11(data)
    ours = recorder.requests
    answers = bytes(wire.written).count(b"HTTP/1.1 200")
    assert answers == sum(request is not None for request in ours), "not as many answers as requests"
    for number, request in enumerate(ours):
        if number == len(taken) and (request is None or refused.startswith(_STRICTER)):
            return  # h11 reads no further than here
        if request is None:
            continue
        if number < len(taken):
            assert equal(request, taken[number]), f"request {number} differs:\n{request}\n{taken[number]}"
        else:
            # What h11 has refused, or waits for the rest of, must not have been run.
            raise AssertionError(f"request {number} was taken, and h11 {refused or 'waits for more'}: {request}")


def equal(ours: Request, theirs: Request) -> bool:
    """Whether both mean the same.

    A wish to upgrade is left out before a request is read again, and ignored either way; the authority of an absolute
    target stands in the place of Host.
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
    """What h11 makes of the bytes: the requests that it takes, and why it refuses the next."""
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
            return taken, _STRICTER[1] if spaced else str(error)
        if isinstance(event, h11.Request):
            head, body = event, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            fields = tuple((bytes(name), bytes(value)) for name, value in cast(Any, head.headers))
            taken.append(Request(bytes(head.method), bytes(head.target), fields, body))
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is not h11.DONE:
                return taken, "must close"
            connection.start_next_cycle()
        else:
            return taken, ""
