"""One connection to a server, without a socket: what completes a response, and what is buffered, limited and reused."""

from __future__ import annotations

import asyncio

import pytest
from support.wires import Line

from gateway.http.client_connection import MAX_HEAD_BYTES, MAX_HEAD_LINES, RESPONSE_HEADERS, HttpConnection
from gateway.http.event_stream import PAUSE_BYTES
from gateway.protocol.gateway_errors import ConnectionLost

OK = b"HTTP/1.1 200 OK\r\n"
JSON = OK + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
TEXT = OK + b"content-type: text/plain\r\ncontent-length: %d\r\n\r\n%b"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
EVENTS = OK + b"content-type: Text/Event-Stream\r\n\r\n"
REQUEST = b"GET / HTTP/1.1\r\n\r\n"
UNSOLICITED = "the peer sent data without a request"


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    RESPONSE_HEADERS._heads.clear()


def connected() -> tuple[HttpConnection, Line]:
    """Return a connection that has sent a request."""
    connection, line = HttpConnection(asyncio.get_running_loop(), "http://a.test"), Line()
    connection.connection_made(line)
    connection.write(REQUEST)
    assert line.take() == REQUEST
    return connection, line


def received(connection: HttpConnection, *packets: bytes) -> bytes:
    """Return the body after these packets."""
    for packet in packets:
        connection.data_received(packet)
    return connection.read_body()


@pytest.mark.parametrize("form", [JSON, TEXT], ids=["json", "text"])
@pytest.mark.parametrize("body", [b"", b"1", b"{}", b"x" * 1000])
async def test_repeated_response_is_read_like_the_first(form: bytes, body: bytes) -> None:
    connection, line = connected()
    data = form % (len(body), body)
    for number in range(4):
        # The first response is parsed, the others are found in the cache. The first and the last arrive in two parts.
        waiter = connection.wait_change()
        for part in (data,) if number in (1, 2) else (data[:-1], data[-1:]):
            assert (waiter.done(), connection.complete, connection.plain) == (False, False, None)
            connection.data_received(part)
        assert (waiter.done(), connection.complete, connection.status, connection.lost) == (True, True, 200, None)
        is_whole = form == JSON and body and (number in (1, 2) or len(body) == 1)
        assert connection.plain == (body if is_whole else None)
        in_cache = number in (1, 2) and bool(is_whole)
        assert connection.headers.get("content-length") == (None if in_cache else str(len(body)))
        assert connection.headers["content-type"] == ("application/json" if form == JSON else "text/plain")
        assert connection.read_body() == body
        assert connection.end()
        assert connection.plain is None
        connection.write(REQUEST)
    assert not line.closed


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
        OK + b"content-type: application/json\r\ncontent-encoding: identity\r\ncontent-length: 2\r\n\r\n{}",
        OK + b"content-length: 2\r\n\r\n{}",
        OK + b"content-type: text/json\r\ncontent-length: 2\r\n\r\n{}",
        OK + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
    ],
    ids=["another status", "encoded", "no type", "another type", "in pieces"],
)
async def test_other_responses_are_not_plain(data: bytes) -> None:
    connection, _ = connected()
    connection.data_received(data)
    assert (connection.complete, connection.plain, connection.read_body()) == (True, None, b"{}")


async def test_parsed_response_is_not_plain_if_reading_was_paused() -> None:
    connection, line = connected()
    connection.data_received(JSON % (PAUSE_BYTES, b"x" * PAUSE_BYTES))
    assert (connection.complete, connection.plain, line.pauses) == (True, None, [True])


@pytest.mark.parametrize("data", [b"x", b"\r\n", JSON % (2, b"{}")])
async def test_data_without_a_request_ends_the_connection(data: bytes) -> None:
    connection, line = connected()
    connection.data_received(JSON % (2, b"{}"))
    assert connection.end()
    connection.data_received(data)
    assert (connection.lost, line.is_aborted, connection.is_usable(60)) == (UNSOLICITED, True, False)
    with pytest.raises(ConnectionLost, match=UNSOLICITED) as lost:
        connection.write(REQUEST)
    assert not lost.value.sent
    assert line.take() == b""


async def test_data_after_a_known_response_ends_the_connection() -> None:
    for cut in (0, 1):
        connection, line = connected()
        received(connection, JSON % (2, b"{}"))
        assert connection.end()
        connection.write(REQUEST)
        data = JSON % (2, b"{}") + b"x"
        if cut:
            connection.data_received(data[: -cut - 1])
        connection.data_received(data[-cut - 1 :] if cut else data)
        assert (connection.complete, connection.read_body()) == (True, b"{}")
        assert (connection.end(), line.is_aborted) == (False, True)


@pytest.mark.parametrize("lose", ["closing", "lost", "never made"])
async def test_request_is_not_sent_on_a_closed_connection(lose: str) -> None:
    connection, line = connected()
    received(connection, JSON % (2, b"{}"))
    if lose == "closing":
        line.close()
    elif lose == "lost":
        connection.connection_lost(None)
    else:
        connection = HttpConnection(asyncio.get_running_loop(), "http://a.test")
        connection.abort()
    assert not connection.is_usable(60)
    with pytest.raises(ConnectionLost) as lost:
        connection.write(REQUEST)
    assert (lost.value.sent, line.take()) == (False, b"")


@pytest.mark.parametrize(
    ("data", "error", "body"),
    [
        (OK + b"\r\nabc", None, b"abc"),
        (b"HTTP/1.0 200 OK\r\n\r\n", None, b""),
        (OK + b"transfer-encoding: gzip\r\n\r\nabc", None, b"abc"),
        (OK + b"\r\nabc", OSError("reset"), None),
        (OK, None, None),
        (b"", None, None),
        (OK + b"content-length: 4\r\n\r\nabc", None, None),
        (CHUNKED + b"3\r\nabc\r\n", None, None),
    ],
)
async def test_end_of_the_connection_completes_only_a_body_without_length(
    data: bytes, error: Exception | None, body: bytes | None
) -> None:
    connection, _ = connected()
    connection.data_received(data)
    waiter = connection.wait_change()
    assert connection.eof_received() is False
    connection.connection_lost(error)
    assert (waiter.done(), connection.complete) == (True, body is not None)
    assert connection.lost == ("the connection was lost (reset)" if error else "the peer closed the connection")
    assert body is None or connection.read_body() == body
    assert not connection.end()


async def test_first_reason_of_a_loss_is_kept() -> None:
    connection, line = connected()
    connection.fail("first")
    connection.fail("second")
    connection.connection_lost(None)
    assert (connection.lost, line.is_aborted) == ("first", True)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"garbage\r\n\r\n", "the answer is not HTTP"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
            "the peer switched protocols",
        ),
    ],
)
async def test_other_protocols_are_not_accepted(data: bytes, reason: str) -> None:
    connection, line = connected()
    waiter = connection.wait_change()
    connection.data_received(data)
    assert (waiter.done(), line.is_aborted) == (True, True)
    assert (connection.lost or "").startswith(reason)


def with_header(size_bytes: int, status: bytes = b"204 No Content") -> bytes:
    """Return a response with one header of this size, with its separators."""
    return b"HTTP/1.1 %b\r\nx: %b\r\n\r\n" % (status, b"y" * (size_bytes - len("x: \r\n")))


async def test_header_block_is_accepted_up_to_its_limits() -> None:
    lines = b"HTTP/1.1 204 No Content\r\n%b\r\n"
    for data, is_accepted in (
        (with_header(MAX_HEAD_BYTES), True),
        (with_header(MAX_HEAD_BYTES + 1), False),
        (lines % (b"x: y\r\n" * MAX_HEAD_LINES), True),
        (lines % (b"x: y\r\n" * (MAX_HEAD_LINES + 1)), False),
        # Informational responses count, too.
        (b"HTTP/1.1 100 Continue\r\n\r\n" + with_header(MAX_HEAD_BYTES - len("HTTP/1.1 100 \r\n")), True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + with_header(MAX_HEAD_BYTES - len("HTTP/1.1 100 \r\n") + 1), False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + lines % (b"x: y\r\n" * (MAX_HEAD_LINES - 1)), True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + lines % (b"x: y\r\n" * MAX_HEAD_LINES), False),
    ):
        connection, line = connected()
        # The limits apply to each response.
        for _ in range(2):
            connection.data_received(data)
            assert (connection.lost is None, line.is_aborted) == (is_accepted, not is_accepted)
            if not is_accepted:
                assert (connection.lost or "").startswith("the headers of the answer are too large")
                break
            assert connection.end()
            connection.write(REQUEST)


@pytest.mark.parametrize("begun", [b"", CHUNKED + b"2\r\nok\r\n"], ids=["headers", "trailers"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first response", "later response"])
async def test_input_that_completes_nothing_is_limited(begun: bytes, is_first: bool) -> None:
    connection, _ = connected()
    if not is_first:
        connection.data_received(OK + b"set-cookie: x\r\ncontent-length: 0\r\n\r\n")
        assert connection.end()
        connection.write(REQUEST)
    if begun:
        connection.data_received(begun)
    start = b"0\r\nx: " if begun else OK + b"x: "
    connection.data_received(start + b"y" * (MAX_HEAD_BYTES - len(start)))
    assert connection.lost is None
    connection.data_received(b"y")
    assert (connection.lost or "").startswith("the headers of the answer are too large")


async def test_reader_is_woken_for_each_part_of_an_event_stream_only() -> None:
    for head, is_woken in ((EVENTS, True), (OK + b"\r\n", False), (CHUNKED, False)):
        connection, _ = connected()
        connection.data_received(head)
        waiter = connection.wait_change()
        connection.data_received(b"3\r\nabc\r\n")
        assert waiter.done() is is_woken
        assert connection.pieces == 1
        connection.fail("lost")
        connection.connection_lost(None)
        assert waiter.done()
    connection, _ = connected()
    connection.wait_change().cancel()
    connection.data_received(EVENTS + b"data: x\n\n")
    assert connection.read_body() == b"data: x\n\n"


@pytest.mark.parametrize("is_known", [True, False], ids=["cached", "parsed"])
async def test_reading_pauses_while_much_is_buffered(is_known: bool) -> None:
    connection, line = connected()
    head = TEXT % (2 * PAUSE_BYTES, b"")
    if is_known:
        received(connection, TEXT % (2, b"{}"))
        assert connection.end()
        connection.write(REQUEST)
    connection.data_received(head)
    connection.data_received(b"x" * (PAUSE_BYTES - 1))
    waiter = connection.wait_change()
    assert (line.pauses, waiter.done()) == ([], False)
    connection.data_received(b"x")
    assert (line.pauses, waiter.done(), connection.pieces) == ([True], True, 2)
    connection.data_received(b"x")
    assert line.pauses == [True]
    parts = [b"before"]
    assert connection.read_body_into(parts) == PAUSE_BYTES + 1
    assert parts == [b"before", b"x" * (PAUSE_BYTES + 1)]
    assert (line.pauses, connection.pieces) == ([True, False], 0)
    assert (connection.read_body_into(parts), len(parts)) == (0, 2)
    connection.data_received(b"x" * (PAUSE_BYTES - 1))
    assert (connection.complete, line.pauses) == (True, [True, False])
    assert connection.read_body() == b"x" * (PAUSE_BYTES - 1)
    assert connection.end()


async def test_reading_pauses_for_many_tiny_pieces() -> None:
    connection, line = connected()
    connection.data_received(CHUNKED + b"1\r\nx\r\n" * 2_047)
    assert line.pauses == []
    connection.data_received(b"1\r\nx\r\n")
    assert line.pauses == [True]
    line.close()
    assert connection.read_body() == b"x" * 2_048
    assert line.pauses == [True], "a closing transport cannot resume"


async def test_unread_body_is_dropped_with_its_exchange() -> None:
    connection, line = connected()
    for size_bytes in (3, PAUSE_BYTES, 3):
        # Not cached, because each header block is another one.
        connection.data_received(OK + b"x: %d\r\n" % size_bytes * 2 + b"content-length: %d\r\n\r\n" % size_bytes)
        connection.data_received(b"x" * size_bytes)
        assert connection.end()
        assert (connection.pieces, line.pauses[-1:]) == (0, [False] if len(line.pauses) else [])
        connection.write(REQUEST)
    assert received(connection, TEXT % (1, b"y")) == b"y"
    assert line.pauses == [True, False]


async def test_connection_is_reused_only_after_a_whole_response_that_keeps_it() -> None:
    for data, is_reusable in (
        (TEXT % (2, b"ok"), True),
        (TEXT % (3, b"ok"), False),
        (OK + b"connection: close\r\ncontent-length: 2\r\n\r\nok", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", False),
        (CHUNKED + b"2\r\nok\r\n0\r\n\r\n", True),
        (CHUNKED + b"2\r\nok\r\n0\r\n\r\nHTTP/1.1", False),
    ):
        connection, _ = connected()
        connection.data_received(data)
        assert connection.end() is is_reusable, data
        assert not is_reusable or connection.is_usable(60)
    assert not connection.is_usable(0)


async def test_cookies_belong_to_their_response() -> None:
    connection, _ = connected()
    for lines, cookies in (
        (b"set-cookie: a=1\r\n", ["a=1"]),
        (b"x: y\r\n", []),
        (b"Set-Cookie: a=1\r\nset-cookie: b=2\r\n", ["a=1", "b=2"]),
        (b"x: 1\r\nx: 2\r\n", []),
    ):
        connection.data_received(OK + lines + b"content-length: 0\r\n\r\n")
        assert connection.set_cookies == cookies
        assert connection.end()
        connection.write(REQUEST)
