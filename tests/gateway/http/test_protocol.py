"""One server connection over a real socket: parsing, refusals, and the order of responses."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest
from anyio.lowlevel import checkpoint

from gateway.http.http_request import RequestHead, RequestRefused
from gateway.http.origins import HostCheck
from gateway.http.request_reader import MAX_FIELDS, MAX_HEAD_BYTES
from gateway.http.responder import PING_S, AsgiHandler, Receive, Responder, Scope, Send
from gateway.http.server_connection import BODY_S, HEAD_S, KEEP_ALIVE_S, HttpProtocol
from gateway.http.server_connections import SILENT_S, Connections, Handler

GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"


@dataclass
class Site:
    """Answers every request with its method, path and body; a few paths behave differently."""

    max_body_bytes: int = 1000
    seen: list[tuple[RequestHead, bytes]] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    proceed: asyncio.Event = field(default_factory=asyncio.Event)
    protocols: list[Counting] = field(default_factory=list)
    check: Callable[[RequestHead], None] = lambda head: None

    def route(self, head: RequestHead) -> Handler:
        self.check(head)
        return self

    def admit(self, head: RequestHead, peer: str) -> None:
        if head.path == b"/refused":
            raise RequestRefused(403, "no")

    def answer(self, head: RequestHead, admitted: object, body: bytes, responder: Responder, peer: str) -> None:
        self.seen.append((head, body))
        if head.path == b"/slow":
            responder.run(self._slow(responder))
        elif head.path == b"/broken":
            raise ValueError("a defect of the handler")
        elif head.path == b"/stream":
            responder.emit({"n": 1}, 7)
            responder.finish(200, (b"{}",))
        else:
            responder.respond(200, (b'"%b %b %b"' % (head.method, head.path, body),))

    async def _slow(self, responder: Responder) -> None:
        try:
            await self.proceed.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            return
        responder.finish(200, (b'"slow"',))


async def every_turn(holds: Callable[[], object]) -> None:
    """Look in each iteration of the event loop until something is found."""
    with anyio.fail_after(25):
        while not holds():
            await checkpoint()


class Counting(HttpProtocol):
    """Counts the bytes that it has received."""

    received_bytes = 0

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        super().data_received(data)


@dataclass(slots=True)
class Client:
    """The other end of one connection.

    Attributes:
        protocols: The server's protocol, once the server has accepted the connection.
        sent_bytes: The number of bytes that were sent.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    protocols: list[Counting]
    sent_bytes: int = 0

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        self.sent_bytes += len(data)
        await self.writer.drain()

    async def send_apart(self, data: bytes) -> bool:
        """Send data that the server parses before any more; return whether the server has answered at once."""
        await self.send(data)
        await every_turn(lambda: self.protocols)
        [protocol] = self.protocols
        await every_turn(lambda: protocol.received_bytes == self.sent_bytes or protocol.transport.is_closing())
        # The answer is read in the next iteration. The buffer is its only sign.
        for _ in range(2):
            await checkpoint()
        return bool(self.reader._buffer)  # type: ignore[attr-defined]

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """Return the next response that has a length."""
        with anyio.fail_after(25):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines[1:] if line)
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
            return int(lines[0].split(" ")[1]), headers, body

    async def rest(self) -> bytes:
        """Return everything up to the end of the connection."""
        with anyio.fail_after(25):
            return await self.reader.read()


@asynccontextmanager
async def served(site: Handler | Site, *, most: int = 10) -> AsyncIterator[Client]:
    """Yield a connection to a server of this site."""
    connections = Connections(most=most)
    router = site if isinstance(site, Site) else _SingleHandler(site)
    protocols: list[Counting] = site.protocols if isinstance(site, Site) else []

    def protocol() -> HttpProtocol:
        made = Counting(connections, router)
        protocols.append(made)
        return made

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    try:
        yield Client(reader, writer, protocols)
    finally:
        writer.close()
        server.close()


@dataclass
class _SingleHandler:
    handler: Handler

    def route(self, head: RequestHead) -> Handler:
        return self.handler


def post(path: str, body: bytes, *lines: str) -> tuple[bytes, bytes]:
    """Return the header block and the body of a POST."""
    head = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *lines]
    return ("\r\n".join(head) + "\r\n\r\n").encode(), body


@pytest.mark.parametrize(
    "wish",
    [
        ("connection: upgrade", "upgrade: x"),
        ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABk"),
        ("connection: keep-alive, upgrade", "upgrade: websocket", "sec-websocket-version: 13"),
    ],
    ids=["unknown", "h2c", "websocket"],
)
@pytest.mark.parametrize("together", [True, False])
async def test_upgrade_is_ignored_and_the_body_is_not_parsed_as_a_request(
    wish: tuple[str, ...], together: bool
) -> None:
    hidden = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
    site = Site()
    async with served(site) as client:
        head, body = post("/a", hidden, *wish)
        if together:
            await client.send(head + body + GET)
        else:
            await client.send_apart(head)
            await client.send(body)
            await client.send(GET)
        assert (await client.response())[2] == b'"POST /a %b"' % hidden
        assert (await client.response())[2] == b'"GET /a "'
    assert [head.path for head, _ in site.seen] == [b"/a", b"/a"]


async def test_upgrade_in_http_1_0_does_not_change_the_protocol() -> None:
    site = Site()
    async with served(site) as client:
        await client.send(b"GET /a HTTP/1.0\r\nupgrade: x\r\nconnection: keep-alive, upgrade\r\n\r\n")
        assert (await client.response())[2] == b'"GET /a "'
        # The server closes the connection after a response to HTTP/1.0.
        assert await client.rest() == b""
    assert [head.version for head, _ in site.seen] == ["1.0"]


@pytest.mark.parametrize("wish", [b"", b"connection: upgrade\r\nupgrade: x\r\n"])
async def test_many_pipelined_upgrades_are_answered(wish: bytes) -> None:
    site = Site()
    request = GET[:-2] + wish + b"\r\n"
    async with served(site) as client:
        await client.send(request * 2_000)
        for _ in range(2_000):
            assert (await client.response())[2] == b'"GET /a "'
    assert len(site.seen) == 2_000


CHUNKED = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"


@pytest.mark.parametrize(
    ("start", "continuation"),
    [
        (b"0\r\n", b"x: y\r\n" * 100),
        (b"0\r\n", b"x: " + b"y" * 1_000 + b"\r\n"),
        (b"0\r\nx: ", b"y" * 1_000),
        (b"0\r\n", b"y" * 1_000),
        (b"2;x=", b"y" * 1_000),
        (b"2\r\nok\r\n0\r\nx: ", b"y" * 60_000),
    ],
    ids=["many", "long", "a value without end", "a name without end", "a chunk extension without end", "large pieces"],
)
async def test_trailers_over_the_header_limits_are_refused(start: bytes, continuation: bytes) -> None:
    site = Site()
    async with served(site) as client:
        await client.send(CHUNKED + start)
        for _ in range(80):
            # Further writes could lose the answer.
            if await client.send_apart(continuation):
                break
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")
    assert site.seen == []


async def test_connect_is_refused_and_nothing_after_it_is_read() -> None:
    site = Site()
    async with served(site) as client:
        await client.send(b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n" + GET)
        assert (await client.rest()).startswith(b"HTTP/1.1 501 ")
    assert site.seen == []


@pytest.mark.parametrize(
    "head",
    [
        b"GET /a HTTP/1.1\r\nhost: x\r\nfield: " + b"x" * MAX_HEAD_BYTES,
        b"GET /" + b"a" * (MAX_HEAD_BYTES + 1),
        b"GET /a HTTP/1.1\r\n" + b"a: b\r\n" * (MAX_FIELDS + 1),
        b"GET /a HTTP/1.1\r\n" + (b"a: " + b"b" * 1000 + b"\r\n") * 70,
    ],
    ids=["one field", "the target", "many fields", "all together"],
)
@pytest.mark.parametrize("piece_bytes", [1 << 20, 1000])
async def test_oversized_header_block_is_refused_and_the_connection_closed(head: bytes, piece_bytes: int) -> None:
    site = Site()
    async with served(site) as client:
        # Send more than the header block, because an endless field is refused only at the limit.
        pieces = [head[start : start + piece_bytes] for start in range(0, len(head), piece_bytes)]
        for piece in [*pieces, *[b"x" * 1000] * 70, b"\r\n\r\n"]:
            # Further writes could lose the answer.
            if await client.send_apart(piece):
                break
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")
    assert site.seen == []


def _head_of(size_bytes: int) -> bytes:
    """Return a header block whose target, names and values have this size together."""
    return b"GET /a HTTP/1.1\r\nhost: x\r\nfield: " + b"x" * (size_bytes - len("/ahostxfield")) + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /a HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * (MAX_FIELDS - 1) + b"\r\n", 200),
        (b"GET /a HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * MAX_FIELDS + b"\r\n", 431),
        (_head_of(MAX_HEAD_BYTES), 200),
        (_head_of(MAX_HEAD_BYTES + 1), 431),
        (b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nhost: x\r\n\r\n", 431),
    ],
    ids=["most fields", "a field more", "most bytes", "a byte more", "a long target"],
)
async def test_header_block_is_accepted_up_to_its_limits(head: bytes, status: int) -> None:
    site = Site()
    async with served(site) as client:
        await client.send(head)
        assert (await client.response())[0] == status
    assert len(site.seen) == (status == 200)


@pytest.mark.parametrize("beginning", [b"GET /a HTTP/1.1\r\nhost: x\r\nfield: ", b"GET /"], ids=["field", "target"])
async def test_endless_header_block_is_refused_at_its_limit(beginning: bytes) -> None:
    site = Site()
    async with served(site) as client:
        await client.send(beginning)
        for _ in range(70):
            # Further writes could lose the answer.
            if await client.send_apart(b"x" * 1000):
                break
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")
    assert site.seen == []


async def test_large_body_after_split_headers_is_not_counted_as_headers() -> None:
    site = Site(max_body_bytes=1 << 20)
    async with served(site) as client:
        head, body = post("/a", b"x" * 300_000)
        await client.send_apart(head[:20])
        await client.send(head[20:] + body + head[:20])
        assert (await client.response())[0] == 200
        await client.send(head[20:] + body)
        assert (await client.response())[0] == 200


async def test_expect_continue_is_answered_and_other_expectations_refused() -> None:
    async with served(Site()) as client:
        head, body = post("/a", b"body", "expect: 100-continue")
        await client.send(head)
        with anyio.fail_after(25):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body)
        assert (await client.response())[2] == b'"POST /a body"'
        head, body = post("/a", b"body", "expect: a miracle")
        await client.send(head + body + GET)
        assert [(await client.response())[0] for _ in range(2)] == [417, 200]


async def test_body_of_a_refused_request_is_not_awaited() -> None:
    async with served(Site()) as client:
        head, body = post("/refused", b"body", "expect: 100-continue")
        await client.send(head)
        assert (await client.response())[0] == 403
        await client.send(body + GET)
        assert (await client.response())[2] == b'"GET /a "'


@pytest.mark.parametrize("early", [True, False], ids=["answered first", "sent first"])
@pytest.mark.parametrize("size_bytes", [4, 4_000_000])
async def test_sender_of_a_refused_body_can_finish_and_read_the_answer(size_bytes: int, early: bool) -> None:
    site = Site(max_body_bytes=size_bytes)
    async with served(site) as client:
        head, body = post("/refused", b"x" * size_bytes, "connection: close")
        await client.send(head)
        if early:
            assert (await client.response())[0] == 403
        for start in range(0, size_bytes, 65_536):
            await client.send(body[start : start + 65_536])
        if not early:
            assert (await client.response())[0] == 403
        assert await client.rest() == b""
        await every_turn(site.protocols[0].transport.is_closing)


async def test_pipelined_requests_are_answered_in_order_until_an_invalid_one() -> None:
    site = Site()
    async with served(site) as client:
        slow, refused = GET.replace(b"/a", b"/slow"), GET.replace(b"/a", b"/refused")
        await client.send_apart(slow + GET + refused + GET + b"\x00 nonsense\r\n\r\n")
        assert len(site.seen) == 1
        site.proceed.set()
        answers = [await client.response() for _ in range(5)]
        assert [status for status, _, _ in answers] == [200, 200, 403, 200, 400]
        assert answers[0][2] == b'"slow"'
        assert await client.rest() == b""


@pytest.mark.parametrize("refused", [b"/refused", b"/misrouted"])
async def test_refused_request_is_not_answered_in_place_of_the_next(refused: bytes) -> None:
    def check(head: RequestHead) -> None:
        if head.path == b"/misrouted":
            raise RequestRefused(421, "no")

    site = Site(check=check)
    post = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\n%b"
    async with served(site) as client:
        # The second request has arrived completely, and the third one only in part.
        await client.send(GET.replace(b"/a", b"/slow") + post % (refused, b"secret") + post % (b"/b", b"12"))
        await every_turn(lambda: site.seen)
        site.proceed.set()
        assert (await client.response())[2] == b'"slow"'
        assert (await client.response())[0] in (403, 421)
        await client.send(b"3456")
        assert (await client.response())[2] == b'"POST /b 123456"'
    assert [head.path for head, _ in site.seen] == [b"/slow", b"/b"]


async def test_body_arriving_during_another_answer_is_read_in_turn() -> None:
    site = Site()
    async with served(site) as client:
        head, body = post("/a", b"0123456789")
        await client.send_apart(GET.replace(b"/a", b"/slow") + head + body[:4])
        site.proceed.set()
        assert (await client.response())[2] == b'"slow"'
        await client.send(body[4:])
        assert (await client.response())[2] == b'"POST /a 0123456789"'


async def test_too_many_pipelined_requests_close_the_connection() -> None:
    site = Site()
    async with served(site) as client:
        await client.send(GET.replace(b"/a", b"/slow") + GET * 100)
        with pytest.raises(ConnectionResetError):
            await client.rest()
        await asyncio.wait_for(site.cancelled.wait(), 5)


async def test_disconnected_caller_cancels_its_request() -> None:
    site = Site()
    async with served(site) as client:
        await client.send(GET.replace(b"/a", b"/slow"))
        await every_turn(lambda: site.seen)
        client.writer.close()
        await asyncio.wait_for(site.cancelled.wait(), 5)


async def test_trailers_do_not_change_the_headers() -> None:
    site = Site()
    async with served(site) as client:
        head = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntrailer: host\r\n\r\n"
        await client.send(head + b"2\r\nab\r\n0\r\nhost: other\r\nauthorization: Bearer x\r\n\r\n")
        assert (await client.response())[2] == b'"POST /a ab"'
    assert site.seen[0][0].raw(b"authorization") is None
    assert site.seen[0][0].raw(b"host") == b"x"


async def test_oversized_body_is_refused_and_its_rest_discarded() -> None:
    site = Site(max_body_bytes=10)
    async with served(site) as client:
        head, body = post("/a", b"x" * 100_000)
        await client.send(head + body + GET)
        assert (await client.response())[0] == 413
        assert (await client.response())[2] == b'"GET /a "'
        await client.send(
            b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"8\r\n12345678\r\n" * 3
        )
        status, headers, _ = await client.response()
        assert (status, headers["connection"]) == (413, "close")
        assert await client.rest() == b""
    assert [body for _, body in site.seen] == [b""]


async def test_data_after_connection_close_is_not_read() -> None:
    site = Site()
    async with served(site) as client:
        await client.send(b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" + GET)
        answer = await client.rest()
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer
    assert len(site.seen) == 1


async def test_http_1_0_gets_no_chunks_and_head_no_body() -> None:
    async with served(Site()) as client:
        await client.send(GET.replace(b"GET", b"HEAD"))
        with anyio.fail_after(25):
            assert b"content-length: 10\r\n" in await client.reader.readuntil(b"\r\n\r\n")
        await client.send(b"GET /stream HTTP/1.0\r\nhost: x\r\n\r\n")
        answer = await client.rest()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert body == b'event: message\nid: 7\ndata: {"n":1}\n\nevent: message\ndata: {}\n\n'


async def test_slow_answer_becomes_a_stream_with_keep_alives() -> None:
    site = Site()
    async with served(site) as client:
        await client.send(GET.replace(b"/a", b"/slow"))
        await every_turn(lambda: site.seen)
        [protocol] = site.protocols
        now_s = asyncio.get_running_loop().time()
        protocol.check_deadlines(now_s)
        protocol.check_deadlines(now_s + PING_S - 1)
        protocol.check_deadlines(now_s + PING_S)
        # The stream has just sent a ping, so the next ping is due one interval from the current time.
        protocol.check_deadlines(now_s + PING_S - 1)
        protocol.check_deadlines(now_s + PING_S + 1)
        site.proceed.set()
        with anyio.fail_after(25):
            received = await client.reader.readuntil(b"0\r\n\r\n")
    assert b"content-type: text/event-stream" in received
    assert received.count(b": ping\n\n") == 2


async def test_handler_error_is_a_500_and_the_connection_continues(caplog: pytest.LogCaptureFixture) -> None:
    async with served(Site()) as client:
        await client.send(GET.replace(b"/a", b"/broken") + GET)
        assert [(await client.response())[0] for _ in range(2)] == [500, 200]
    assert "request failed" in caplog.text


async def test_connections_over_the_limit_get_503() -> None:
    async with served(Site(), most=0) as client:
        assert (await client.rest()).startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize(
    "sent", [b"", b"GET /a HTTP/1.1\r\nhos", post("/a", b"body")[0] + b"bo", GET, GET[:-2] + b"connection: upgrade\r\n"]
)
async def test_closed_connection_is_freed_without_the_collector(sent: bytes) -> None:
    site = Site()
    gc.collect()
    gc.disable()
    try:
        async with served(site) as client:
            await client.send_apart(sent)
            left = weakref.ref(site.protocols.pop())
            client.writer.close()
            await every_turn(lambda: left() is None)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("sent", "within_s", "answer"),
    [
        (b"", SILENT_S, b""),
        (b"GET /a HTTP/1.1\r\nhos", HEAD_S, b""),
        (post("/a", b"body")[0] + b"bo", BODY_S, b"HTTP/1.1 408 "),
        (GET, KEEP_ALIVE_S, b"HTTP/1.1 200 "),
    ],
    ids=["nothing", "half a head", "half a body", "idle"],
)
async def test_slow_peer_is_disconnected_after_its_timeout(sent: bytes, within_s: float, answer: bytes) -> None:
    site = Site()
    async with served(site) as client:
        await client.send_apart(sent)
        [protocol] = site.protocols
        now_s = asyncio.get_running_loop().time()
        protocol.check_deadlines(now_s + within_s - 1)
        assert not protocol.transport.is_closing()
        protocol.check_deadlines(now_s + within_s + 1)
        try:
            assert (await client.rest()).startswith(answer)
        except ConnectionResetError:
            assert answer == b""


@pytest.mark.parametrize(
    ("target", "host"),
    [("http://evil.test/a", b"evil.test"), ("HTTP://x:80", b"x:80"), ("/a", b"x")],
    ids=["another host", "no path", "origin form"],
)
async def test_authority_of_an_absolute_target_is_the_host(target: str, host: bytes) -> None:
    site = Site()
    async with served(site) as client:
        await client.send(GET.replace(b"/a", target.encode()))
        assert (await client.response())[0] == 200
    assert site.seen[0][0].raw(b"host") == host


@pytest.mark.parametrize("hosts", [b"", b"host: x\r\nhost: x\r\n"], ids=["none", "two"])
@pytest.mark.parametrize("target", [b"/a", b"http://x/a"])
async def test_request_without_exactly_one_host_is_refused(hosts: bytes, target: bytes) -> None:
    site = Site()
    check = HostCheck(None, frozenset())
    site.check = check.check
    async with served(site) as client:
        await client.send(b"GET /a HTTP/1.0\r\n\r\n")
        assert b"200 OK" in await client.rest()
    async with served(site) as client:
        await client.send(b"GET %b HTTP/1.1\r\n%b\r\n" % (target, hosts))
        assert (await client.response())[0] == 400
    assert len(site.seen) == 1


@pytest.mark.parametrize(
    ("line", "status"),
    [(b"GET /a", 505), (b"POST /aHTTP/1.1", 505), (b"GET /a HTTP/2.0", 505), (b"GET /a HTTP/1.2", 400)],
)
@pytest.mark.parametrize("wish", [b"", b"connection: upgrade\r\nupgrade: x\r\n"])
async def test_unsupported_http_version_is_refused(line: bytes, status: int, wish: bytes) -> None:
    site = Site()
    async with served(site) as client:
        await client.send(b"%b\r\nhost: x\r\n%b\r\n" % (line, wish))
        assert (await client.response())[0] == status
        assert await client.rest() == b""
    assert site.seen == []


@pytest.mark.parametrize("coding", [b",chunked", b"chunked, chunked", b"gzip, chunked", b"identity, chunked"])
async def test_ambiguous_transfer_encoding_is_refused(coding: bytes) -> None:
    site = Site()
    async with served(site) as client:
        await client.send(b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: %b\r\n\r\n" % coding)
        assert (await client.response())[0] in (400, 501)
        assert await client.rest() == b""
    assert site.seen == []


async def test_application_gets_the_whole_body_and_the_disconnect() -> None:
    left = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-path", scope["path"].encode())]})
        await send({"type": "http.response.body", "body": message["body"], "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async with served(AsgiHandler(app, max_body_bytes=100)) as client:
        head, body = post("/a%20b?c=d", b"body")
        await client.send(head + body)
        with anyio.fail_after(25):
            answer = await client.reader.readuntil(b"4\r\nbody\r\n")
        assert b"x-path: /a b\r\n" in answer
        client.writer.close()
        await asyncio.wait_for(left.wait(), 5)


async def test_application_that_writes_faster_than_the_reader_waits() -> None:
    written = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal written
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            written += 1
        await send({"type": "http.response.body", "body": b""})

    async with served(AsgiHandler(app, max_body_bytes=0)) as client:
        await client.send(GET)
        await every_turn(lambda: written)
        before = 0
        with anyio.fail_after(25):
            while written > before:
                before = written
                for _ in range(100):
                    await checkpoint()
        assert written < 500


@pytest.mark.parametrize("broken", ["before", "after"])
async def test_failing_application_ends_only_its_own_response(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if broken == "after":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        raise ValueError("a defect of the application")

    async with served(AsgiHandler(app, max_body_bytes=0)) as client:
        await client.send(GET)
        if broken == "before":
            assert (await client.response())[0] == 500
        else:
            assert (await client.rest()).endswith(b"\r\n\r\n")
    assert "application failed" in caplog.text


class CachingSite(Site):
    """A site whose accepted header blocks are cached."""

    def admit(self, head: RequestHead, peer: str) -> None:
        super().admit(head, peer)
        head.judged = "by its handler"


KNOWN = b"".join(post("/a", b"known"))


async def _cache_known_request(client: Client) -> None:
    """Send the known request twice: the first is parsed, and the second uses the cached header block."""
    for _ in range(2):
        await client.send(KNOWN)
        assert (await client.response())[2] == b'"POST /a known"'


@pytest.mark.parametrize(("path", "status", "ran"), [("/b", 200, [b"/b"]), ("/refused", 403, [])])
async def test_body_that_looks_like_a_cached_request_is_a_body(path: str, status: int, ran: list[bytes]) -> None:
    site = CachingSite()
    async with served(site) as client:
        await _cache_known_request(client)
        head, body = post(path, b"".join(post("/a", b"smuggled")))
        await client.send(head)
        await every_turn(lambda: site.protocols[0]._reader.head is not None)
        await client.send(body)
        await every_turn(lambda: site.protocols[0]._reader.head is None)
        assert (await client.response())[0] == status
        await _cache_known_request(client)
    assert [head.path for head, _ in site.seen] == [b"/a", b"/a", *ran, b"/a", b"/a"]
    assert b"smuggled" not in [body for _, body in site.seen]


async def test_header_that_looks_like_a_cached_request_is_refused() -> None:
    site = CachingSite()
    async with served(site) as client:
        await _cache_known_request(client)
        await client.send(b"GET /b HTTP/1.1\r\nhost: x\r\n")
        await every_turn(lambda: site.protocols[0]._reader.in_head)
        await client.send(KNOWN)
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")
    assert [head.path for head, _ in site.seen] == [b"/a", b"/a"]


async def test_cached_requests_wait_their_turn() -> None:
    site = CachingSite()
    async with served(site) as client:
        await _cache_known_request(client)
        await client.send(b"".join(post("/slow", b"")))
        await every_turn(lambda: len(site.seen) == 3)
        for _ in range(2):
            await client.send_apart(KNOWN)
        assert [head.path for head, _ in site.seen] == [b"/a", b"/a", b"/slow"]
        site.proceed.set()
        answers = [(await client.response())[2] for _ in range(3)]
    assert answers == [b'"slow"', b'"POST /a known"', b'"POST /a known"']


async def test_cached_request_does_not_overtake_an_earlier_one() -> None:
    site = CachingSite()
    async with served(site) as client:
        await _cache_known_request(client)
        protocol = site.protocols[0]
        await client.send(b"".join((*post("/slow", b""), *post("/b", b""))))
        await every_turn(lambda: protocol._waiting)
        site.proceed.set()
        # Wait until the first request is answered. The second is handled in the next iteration of the loop, so the
        # known request arrives before that.
        await every_turn(lambda: protocol._responder is None)
        assert protocol._waiting
        protocol.data_received(KNOWN)
        answers = [(await client.response())[2] for _ in range(3)]
    assert answers == [b'"slow"', b'"POST /b "', b'"POST /a known"']


async def test_slow_answer_is_awaited_and_a_refused_body_leaves_the_connection_idle() -> None:
    site = CachingSite()
    async with served(site) as client:
        await client.send(b"".join(post("/slow", b"body")))
        await every_turn(lambda: site.seen)
        [protocol] = site.protocols
        protocol.check_deadlines(asyncio.get_running_loop().time() + 10 * BODY_S)
        site.proceed.set()
        assert (await client.response())[2] == b'"slow"'
        head, body = post("/refused", b"body")
        await client.send(head + body[:2])
        assert (await client.response())[0] == 403
        await client.send(body[2:])
        await _cache_known_request(client)
        await client.send(head + body[:2])
        assert (await client.response())[0] == 403
        await client.send(body[2:])
        await every_turn(lambda: protocol._reader.head is None)
        protocol.check_deadlines(asyncio.get_running_loop().time() + KEEP_ALIVE_S + 1)
        assert await client.rest() == b""


async def _send_known_head(client: Client, site: Site, body: bytes = b"known") -> bytes:
    """Send a cached header block without its body, and return the body."""
    head, body = post("/a", body)
    await client.send(head)
    await every_turn(lambda: site.protocols[0]._heads.ahead)
    return body


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        ((b"12345", b""), [b"12345"]),
        ((b"1", b"2", b"345"), [b"12345"]),
        ((b"12345" + KNOWN,), [b"12345", b"known"]),
        ((b"12345", KNOWN[:-5], b"known", KNOWN), [b"12345", b"known", b"known"]),
        ((b"123", b"45" + KNOWN[:-3], b"own"), [b"12345", b"known"]),
        ((KNOWN[:5],), [KNOWN[:5]]),
    ],
    ids=["apart", "in pieces", "with another", "again and again", "across", "a body that looks like a request"],
)
async def test_cached_header_block_may_precede_its_body(pieces: tuple[bytes, ...], wanted: list[bytes]) -> None:
    site = CachingSite()
    async with served(site) as client:
        await _cache_known_request(client)
        await _send_known_head(client, site, b"12345")
        for piece in pieces:
            await client.send_apart(piece)
        assert [(await client.response())[2] for _ in wanted] == [b'"POST /a %b"' % body for body in wanted]
    assert len(site.seen) == 2 + len(wanted)
    assert all(head is site.seen[0][0] for head, _ in site.seen[1:2])


async def test_cached_header_block_without_its_body_times_out() -> None:
    site = CachingSite()
    async with served(site) as client:
        await _cache_known_request(client)
        await _send_known_head(client, site)
        [protocol] = site.protocols
        now_s = asyncio.get_running_loop().time()
        protocol.check_deadlines(now_s + BODY_S - 1)
        assert not protocol.transport.is_closing()
        protocol.check_deadlines(now_s + BODY_S + 1)
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")


async def test_cached_header_block_refused_meanwhile_is_refused_without_its_body() -> None:
    site = CachingSite()
    async with served(site) as client:
        await _cache_known_request(client)
        body = await _send_known_head(client, site)

        def refuse(head: RequestHead) -> None:
            raise RequestRefused(421, "not here any more")

        site.check = refuse
        site.protocols[0].check_deadlines(asyncio.get_running_loop().time() + BODY_S + 1)
        assert (await client.response())[0] == 421
        site.check = lambda head: None
        await client.send(body)
        await _cache_known_request(client)


async def test_request_with_cached_headers_is_answered_during_shutdown() -> None:
    site = CachingSite()
    async with served(site) as client:
        await _cache_known_request(client)
        body = await _send_known_head(client, site)
        site.protocols[0].shutdown()
        await client.send(body)
        assert b'"POST /a known"' in await client.rest()


async def test_disconnect_after_a_cached_header_block_leaves_no_state() -> None:
    site = CachingSite()
    async with served(site) as client:
        await _cache_known_request(client)
        await _send_known_head(client, site)
        client.writer.close()
        await every_turn(lambda: not site.protocols[0]._heads.ahead)
    assert len(site.seen) == 2
