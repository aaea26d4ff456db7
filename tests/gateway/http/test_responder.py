"""Complete responses, event streams and ASGI applications on the wire, and what follows on their connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from support.wires import Line, SingleHandler, connect

from gateway.http.http_request import Fields, RequestHead, RequestRefused
from gateway.http.responder import (
    HEADERS,
    MAX_UNSENT_BYTES,
    PING,
    PING_S,
    RESUMABLE_S,
    AsgiHandler,
    Receive,
    Responder,
    Scope,
    Send,
    event,
    send_json,
)

OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"content-type: application/json\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
CLOSE = b"connection: close\r\n"
KIB = 1024


@dataclass
class Connection:
    """Keeps what a responder does with its connection."""

    transport: Line = field(default_factory=Line)
    events: list[Any] = field(default_factory=list)
    is_drained: bool = True

    def response_ended(self) -> None:
        self.events.append("ended")

    def close_after_response(self) -> None:
        self.events.append("close")

    def record_write(self, size_bytes: int) -> None:
        self.events.append(size_bytes)

    async def drain(self) -> None:
        self.events.append("drain")


@pytest.fixture
def connection() -> Connection:
    return Connection()


def responder_of(
    connection: Connection, method: bytes = b"GET", *, version: str = "1.1", keep_alive: bool = True
) -> Responder:
    head = RequestHead(method, b"/a", [], version=version, keep_alive=keep_alive)
    return Responder.for_request(head, connection, asyncio.get_running_loop())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize(
    ("data", "options", "text"),
    [
        (b"{}", {}, b"event: message\ndata: {}\n\n"),
        ([b"[", memoryview(b"1]")], {"event_id": 0}, b"event: message\nid: 0\ndata: [1]\n\n"),
        (b"{}", {"event_id": "a-1", "retry_ms": 0}, b"event: message\nid: a-1\nretry: 0\ndata: {}\n\n"),
        ('"é\u2028\u2029\x85"'.encode(), {}, 'event: message\ndata: "é\\u2028\\u2029\\u0085"\n\n'.encode()),
    ],
)
def test_event_is_encoded_on_one_line(data: Any, options: dict[str, Any], text: bytes) -> None:
    assert event(data, **options) == text


@pytest.mark.parametrize(
    ("given", "head", "body"),
    [
        ((200, (b"{}",)), OK + JSON + b"content-length: 2\r\n", b"{}"),
        ((200, (b"",)), OK + JSON + b"content-length: 0\r\n", b""),
        ((201, (b"{}",)), b"HTTP/1.1 201 Created\r\n" + JSON + b"content-length: 2\r\n", b"{}"),
        ((404, (b"{}",)), b"HTTP/1.1 404 Not Found\r\n" + JSON + b"content-length: 2\r\n", b"{}"),
        ((200, (b"[1,", memoryview(b"2]"))), OK + JSON + b"content-length: 5\r\n", b"[1,2]"),
        ((200, (b"{}",), [(b"a", b"b")]), OK + JSON + b"content-length: 2\r\na: b\r\n", b"{}"),
        ((200,), OK + b"content-length: 0\r\n", b""),
        ((204, (), [(b"a", b"b")]), b"HTTP/1.1 204 No Content\r\na: b\r\n", b""),
    ],
)
async def test_complete_response(given: Any, head: bytes, body: bytes, connection: Connection) -> None:
    line = connection.transport
    responder = responder_of(connection)
    assert (responder.started, responder.ended) == (False, False)
    responder.respond(*given)
    assert (line.take(), connection.events) == (head + b"\r\n" + body, ["ended"])
    assert (responder.started, responder.ended, responder.task) == (True, True, None)
    responder.respond(*given)
    assert (line.take(), connection.events) == (b"", ["ended"]), "one response for one request"
    # The same for a caller that has disconnected, for HEAD, for a page, and at the end of a connection.
    responder = responder_of(connection)
    responder.disconnect()
    responder.respond(*given)
    assert (line.take(), responder.started, connection.events) == (b"", False, ["ended"])
    responder_of(connection, b"HEAD").respond(*given)
    assert line.take() == head + b"\r\n"
    responder = responder_of(connection)
    responder.cross_origin = b"c: d\r\n"
    responder.respond(*given)
    assert line.take() == head + b"c: d\r\n\r\n" + body
    connection.events.clear()
    for closing in (responder_of(connection, version="1.0"), responder_of(connection, keep_alive=False)):
        closing.respond(*given)
        assert line.take() == head + CLOSE + b"\r\n" + body
    assert connection.events == ["close", "ended"] * 2


@pytest.mark.parametrize("more_bytes", [0, 1])
async def test_large_response_is_recorded(more_bytes: int, connection: Connection) -> None:
    size_bytes = 64 * KIB + more_bytes
    recorded = [size_bytes] * more_bytes
    for pieces in ((b"x" * size_bytes,), (b"x", b"x" * (size_bytes - 1))):
        responder_of(connection).respond(200, pieces)
        assert connection.events == [*recorded, "ended"]
        assert connection.transport.take().endswith(b"\r\n\r\n" + b"x" * size_bytes)
        connection.events.clear()
    responder = responder_of(connection)
    responder.start(200, [(b"Content-Length", b"%d" % size_bytes)])
    responder.write(b"x" * size_bytes)
    assert connection.events == recorded


@pytest.mark.parametrize(
    "field", [(b"a", b"b\nc"), (b"a", b"b\rc"), (b"a\nb", b"c"), (b"a\rb", b"c"), (b"a\r\nb", b"")]
)
async def test_header_with_a_line_break_is_not_sent(field: tuple[bytes, bytes], connection: Connection) -> None:
    for send in (
        lambda responder: responder.respond(200, (b"{}",), [field]),
        lambda responder: responder.start(200, [(b"x", b"y"), field]),
    ):
        with pytest.raises(ValueError, match="line break"):
            send(responder_of(connection))
    assert connection.transport.take() == b""


@pytest.mark.parametrize("closes", [True, False])
async def test_refusal_replaces_the_response_unless_it_has_started(closes: bool, connection: Connection) -> None:
    refused = RequestRefused(403, "no", [(b"a", b"b")], body=b"{}", close=closes)
    head = b"HTTP/1.1 403 Forbidden\r\n" + JSON + b"content-length: 2\r\na: b\r\n"
    responder = responder_of(connection)
    responder.refuse(refused)
    assert connection.transport.take() == head + CLOSE * closes + b"\r\n{}"
    assert connection.events == ["close"] * closes + ["ended"]
    responder_of(connection, keep_alive=False).refuse(refused)
    assert CLOSE in connection.transport.take()
    connection.events.clear()
    responder = responder_of(connection)
    responder.emit({})
    connection.transport.take()
    responder.refuse(refused)
    assert (connection.transport.take(), connection.events) == (b"0\r\n\r\n", ["ended"])


STREAM_HEAD = OK + HEADERS + CHUNKED + b"\r\n"
FIRST, LAST = b'event: message\nid: 7\ndata: {"n":1}\n\n', b"event: message\ndata: {}\n\n"


async def test_event_stream_has_chunks_and_an_end(connection: Connection) -> None:
    responder, begun = responder_of(connection), list[bytes]()
    responder.report_to(on_disconnect=lambda: None, on_stream=lambda: begun.append(connection.transport.take()))
    assert not responder.streaming
    responder.emit({"n": 1}, 7)
    assert begun == [STREAM_HEAD]
    assert (responder.streaming, responder.started, responder.ended) == (True, True, False)
    assert connection.transport.take() == chunk(FIRST)
    responder.begin_stream()
    responder.ping()
    assert connection.transport.take() == chunk(PING)
    responder.finish(200, (b"{}",))
    assert (connection.transport.take(), connection.events) == (chunk(LAST) + b"0\r\n\r\n", ["ended"])
    for send in (responder.ping, responder.end, responder.begin_stream, lambda: responder.write(b"x")):
        send()
    assert (connection.transport.take(), connection.events, len(begun)) == (b"", ["ended"], 1)


async def test_event_stream_may_end_without_a_last_event(connection: Connection) -> None:
    responder = responder_of(connection)
    responder.begin_stream()
    responder.finish(200, ())
    assert connection.transport.take() == STREAM_HEAD + b"0\r\n\r\n"


async def test_event_stream_for_head_and_http_1_0_has_no_chunks(connection: Connection) -> None:
    responder = responder_of(connection, b"HEAD")
    responder.emit({})
    responder.finish(200, (b"{}",))
    assert (connection.transport.take(), connection.events) == (OK + HEADERS + b"\r\n", ["ended"])
    responder = responder_of(connection, version="1.0")
    responder.emit({"n": 1}, 7)
    responder.finish(200, (b"{}",))
    assert connection.transport.take() == OK + HEADERS + CLOSE + b"\r\n" + FIRST + LAST
    assert connection.events[1:] == ["close", "ended"]


async def test_caller_that_disconnects_gets_nothing_more(connection: Connection) -> None:
    responder = responder_of(connection)
    responder.emit({})
    connection.transport.take()
    responder.disconnect()
    for send in (
        responder.ping,
        responder.end,
        responder.fail,
        responder.begin_stream,
        lambda: responder.write(b"x"),
        lambda: responder.finish(200, (b"{}",)),
    ):
        send()
    other = responder_of(connection)
    other.disconnect()
    other.ping()
    other.start(200, [])
    assert (connection.transport.take(), connection.events, other.streaming) == (b"", [], False)


async def test_caller_decides_the_form_of_the_response(connection: Connection) -> None:
    line = connection.transport
    responder = responder_of(connection)
    responder.accept(can_stream=False, wants_stream=False)
    responder.emit({"n": 1})
    responder.ping()
    responder.begin_stream()
    assert (line.take(), responder.streaming) == (b"", False)
    responder.finish(200, (b"{}",), [(b"a", b"b")])
    assert line.take() == OK + JSON + b"content-length: 2\r\na: b\r\n\r\n{}"
    plain, end = OK + JSON + b"content-length: 2\r\n\r\n{}", chunk(LAST) + b"0\r\n\r\n"
    for wants_stream, given, written in (
        (True, (200, (b"{}",), [(b"a", b"b")]), OK + HEADERS + b"a: b\r\n" + CHUNKED + b"\r\n" + end),
        (True, (200, (b"{}",)), STREAM_HEAD + end),
        (True, (400, (b"{}",)), plain.replace(b"200 OK", b"400 Bad Request")),
        (True, (200, ()), OK + b"content-length: 0\r\n\r\n"),
        (False, (200, (b"{}",)), plain),
    ):
        responder = responder_of(connection)
        responder.accept(can_stream=True, wants_stream=wants_stream)
        responder.finish(*given)
        assert line.take() == written
        assert responder.ended


@pytest.mark.parametrize("resumable", [True, False])
async def test_silent_response_becomes_a_stream(resumable: bool, connection: Connection) -> None:
    responder, line = responder_of(connection), connection.transport
    loop = asyncio.get_running_loop()
    first_s = RESUMABLE_S if resumable else PING_S
    responder.ping_if_silent(1.0)
    responder.ping_if_silent(1.0 + PING_S)
    assert line.take() == b"", "nothing runs"
    responder.run(anyio.sleep_forever())
    if resumable:
        responder.report_to(on_disconnect=responder.cancel, on_stream=lambda: None)
    for after_s, is_due in ((0.0, False), (first_s - 0.5, False), (first_s, True)):
        responder.ping_if_silent(1_000.0 + after_s)
        assert (line.take() == STREAM_HEAD + chunk(PING)) is is_due
    # The interval begins again with each event.
    now_s = loop.time()
    responder.ping_if_silent(now_s + PING_S - 1)
    assert line.take() == b""
    responder.ping_if_silent(now_s + PING_S + 1)
    assert line.take() == chunk(PING)
    responder.omit_pings()
    responder.ping_if_silent(now_s + 10 * PING_S)
    assert line.take() == b""
    responder.cancel()


@pytest.mark.parametrize(("unread_bytes", "is_cancelled"), [(MAX_UNSENT_BYTES, False), (MAX_UNSENT_BYTES + 1, True)])
async def test_stream_of_a_caller_that_does_not_read_is_cancelled(
    unread_bytes: int, is_cancelled: bool, connection: Connection
) -> None:
    responder = responder_of(connection)
    responder.emit({})
    assert not responder.ended, "without a task, too"
    responder.run(anyio.sleep_forever())
    task = responder.task
    assert task is not None
    connection.transport.unread_bytes = unread_bytes
    responder.emit({})
    assert task.cancelling() == is_cancelled
    task.cancel()


async def test_end_of_the_task_is_reported(connection: Connection) -> None:
    responder, ended, go = responder_of(connection), list[str](), asyncio.Event()

    async def answer() -> None:
        await go.wait()

    responder.add_done_callback(lambda: ended.append("no task"))
    responder.run(answer())
    responder.add_done_callback(lambda: ended.append("task"))
    await asyncio.sleep(0)
    assert ended == ["no task"]
    go.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ended == ["no task", "task"]


async def test_disconnect_calls_back_or_cancels_the_task(connection: Connection) -> None:
    gone: list[str] = []
    responder = responder_of(connection)
    responder.run(anyio.sleep_forever())
    assert (task := responder.task) is not None
    responder.report_to(on_disconnect=lambda: gone.append("gone"), on_stream=lambda: gone.append("stream"))
    responder.disconnect()
    assert (gone, task.cancelling(), responder.disconnected) == (["gone"], 0, True)
    responder.cancel()
    responder = responder_of(connection)
    responder.run(anyio.sleep_forever())
    assert (task := responder.task) is not None
    responder.disconnect()
    assert task.cancelling() == 1
    responder = responder_of(connection)
    responder.report_to(on_disconnect=lambda: gone.append("after the end"))
    responder.respond(200)
    responder.disconnect()
    assert gone == ["gone"]


@pytest.mark.parametrize(
    ("status", "fields", "head", "is_chunked"),
    [
        (200, [(b"a", b"b")], OK + b"a: b\r\n" + CHUNKED, True),
        (200, [(b"Content-Length", b"3")], OK + b"Content-Length: 3\r\n", False),
        (204, [], b"HTTP/1.1 204 No Content\r\n", False),
        (304, [(b"a", b"b")], b"HTTP/1.1 304 Not Modified\r\na: b\r\n", False),
        (299, [], b"HTTP/1.1 299 \r\n" + CHUNKED, True),
    ],
)
async def test_response_in_parts(
    status: int, fields: Fields, head: bytes, is_chunked: bool, connection: Connection
) -> None:
    responder, line = responder_of(connection), connection.transport
    responder.cross_origin = b"c: d\r\n"
    responder.start(status, fields)
    framing = CHUNKED * is_chunked
    assert line.take() == head.removesuffix(framing) + b"c: d\r\n" + framing + b"\r\n"
    responder.start(status, fields)
    responder.write(b"")
    assert line.take() == b"", "an empty chunk would end the body"
    responder.write(b"abc")
    assert line.take() == (chunk(b"abc") if is_chunked else b"abc")
    await responder.drain()
    responder.end()
    assert line.take() == b"0\r\n\r\n" * is_chunked
    assert connection.events == ["drain", "ended"]


async def test_response_in_parts_may_end_the_connection(connection: Connection) -> None:
    responder = responder_of(connection)
    responder.close_after()
    responder.start(200, [])
    responder.write(b"abc")
    responder.end()
    assert connection.transport.take() == OK + CHUNKED + CLOSE + b"\r\n" + chunk(b"abc") + b"0\r\n\r\n"
    assert connection.events == ["close", "ended"]
    responder = responder_of(connection, b"HEAD")
    responder.start(200, [])
    responder.write(b"abc")
    responder.end()
    assert connection.transport.take() == OK + b"\r\n"


async def test_failure_is_an_error_or_truncates_the_response(connection: Connection) -> None:
    responder = responder_of(connection)
    responder.fail()
    written = connection.transport.take()
    assert written.startswith(b"HTTP/1.1 500 ")
    assert written.endswith(b'{"error":"internal error"}')
    responder.fail()
    assert (connection.transport.take(), connection.events) == (b"", ["ended"])
    responder = responder_of(connection)
    responder.start(200, [])
    connection.transport.take()
    responder.fail()
    assert (connection.transport.take(), connection.events) == (b"", ["ended", "close", "ended"])


POST = b"POST /a%20b?c=d HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody"


async def turns(count: int = 20) -> None:
    """Let the tasks proceed."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_application_gets_the_request_and_the_end_of_its_response() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend((dict(scope), await receive()))
        await send_json(send, 201, b"{}", [(b"a", b"b")])
        seen.append(await receive())

    protocol, line = connect(SingleHandler(AsgiHandler(app, max_body_bytes=4)))
    protocol.data_received(POST)
    await turns()
    assert line.take() == b"HTTP/1.1 201 Created\r\n" + JSON + b"content-length: 2\r\na: b\r\n\r\n{}"
    assert seen == [
        {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/a b",
            "raw_path": b"/a%20b",
            "query_string": b"c=d",
            "root_path": "",
            "headers": [(b"host", b"x"), (b"content-length", b"4")],
            "client": ("10.0.0.1", 9),
            "server": None,
            "state": {},
        },
        {"type": "http.request", "body": b"body", "more_body": False},
        {"type": "http.disconnect"},
    ]


async def test_application_waits_for_a_reader_and_is_not_pinged() -> None:
    done: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        done.append(str(scope["client"]))
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        done.append("a")
        await send({"type": "http.response.body"})
        done.append("end")

    protocol, line = connect(SingleHandler(AsgiHandler(app, max_body_bytes=4)), line=Line(peer=""))
    protocol.pause_writing()
    protocol.data_received(POST)
    await turns()
    assert (done, line.take()) == (["None"], OK + CHUNKED + b"\r\n" + chunk(b"a"))
    now_s = asyncio.get_running_loop().time()
    for after_s in (0, 20, 40):
        protocol.check_deadlines(now_s + after_s)
    assert line.take() == b""
    protocol.resume_writing()
    await turns()
    assert (done[1:], line.take()) == (["a", "end"], b"0\r\n\r\n")


async def test_application_is_checked_before_its_body_and_must_respond() -> None:
    calls: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        calls.append("app")

    def check(head: RequestHead, peer: str) -> None:
        calls.append(peer)
        if head.raw(b"x-refused") is not None:
            raise RequestRefused(401, "no")

    protocol, line = connect(SingleHandler(AsgiHandler(app, max_body_bytes=4, check=check)))
    protocol.data_received(POST.replace(b"host: x", b"host: x\r\nx-refused: y")[:-1])
    assert line.take().startswith(b"HTTP/1.1 401 ")
    protocol.data_received(b"y")
    protocol.data_received(POST)
    await turns()
    assert line.take().startswith(b"HTTP/1.1 500 ")
    assert calls == ["10.0.0.1:9", "10.0.0.1:9", "app"]
