"""The parser of requests reports what arrives, counts what it holds, and enforces the limits of header blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.http.http_request import RequestHead, RequestRefused
from gateway.http.request_reader import MAX_HEAD_BYTES, RequestReader

POST = b"POST /a HTTP/1.1\r\nHost: x\r\ncontent-length: 5\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
UPGRADE = b"POST /u HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: x\r\ncontent-length: 5\r\n\r\n"


@dataclass
class Receiver:
    """Keeps the events, and ignores further input after a refusal."""

    closing: bool = False
    events: list[Any] = field(default_factory=list)
    heads: list[RequestHead] = field(default_factory=list)

    def head_begins(self) -> None:
        self.events.append("begins")

    def head_arrived(self, head: RequestHead) -> None:
        self.heads.append(head)
        self.events.append(head.target)

    def body_grew(self, size_bytes: int) -> None:
        self.events.append(size_bytes)

    def arrived(self, head: RequestHead, body: bytes | None) -> None:
        assert head is self.heads[-1]
        self.events.append(("arrived", body))

    def refuse(self, refused: RequestRefused) -> None:
        assert refused.close
        self.events.append(refused.status)
        self.closing = True

    def take(self) -> list[Any]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def reader(receiver: Receiver) -> RequestReader:
    return RequestReader(receiver)


def test_parts_of_requests_are_reported_and_counted(reader: RequestReader, receiver: Receiver) -> None:
    assert (reader.in_head, reader.head, reader.held_bytes, reader.has_body) == (False, None, 0, False)
    for data, events, in_head, held_bytes in (
        (b"POST /", ["begins"], True, 1),
        (b"a", [], True, 2),
        (b"b HTTP/1.1\r\nhost: ", [], True, 19),
        (b"x\r\nContent-Length: 5\r\nX-A: b\r\n", [], True, 49),
        (b"\r\n12", [b"/ab", 2], False, 2),
        (b"34", [4], False, 4),
        (b"5", [5, ("arrived", b"12345")], False, 0),
        (POST + b"1", ["begins", b"/a", 1], False, 1),
    ):
        reader.feed(data)
        assert (receiver.take(), reader.in_head, reader.held_bytes) == (events, in_head, held_bytes), data
        assert (reader.head is not None, reader.has_body) == (held_bytes > 0 and not in_head,) * 2
    assert receiver.heads[0].fields == [(b"host", b"x"), (b"content-length", b"5"), (b"x-a", b"b")]


def test_requests_may_arrive_together(reader: RequestReader, receiver: Receiver) -> None:
    reader.feed(POST + b"12345" + CHUNKED + b"0\r\n\r\n" + CHUNKED + b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n")
    assert receiver.take() == [
        *("begins", b"/a", 5, ("arrived", b"12345")),
        *("begins", b"/a", ("arrived", b"")),
        *("begins", b"/a", 1, 3, ("arrived", b"abc")),
    ]


def test_rest_of_a_body_can_be_discarded(reader: RequestReader, receiver: Receiver) -> None:
    reader.feed(POST + b"1")
    reader.discard()
    assert (reader.discarding, reader.held_bytes, reader.has_body) == (True, 0, False)
    reader.feed(b"234")
    assert (reader.held_bytes, receiver.take()[-1]) == (0, 1)
    reader.feed(b"5" + POST + b"12345")
    assert receiver.take() == [("arrived", None), "begins", b"/a", 5, ("arrived", b"12345")]
    assert not reader.discarding


def test_unfinished_request_can_be_dropped(reader: RequestReader) -> None:
    reader.feed(b"GET /a")
    reader.stop()
    assert (reader.in_head, reader.held_bytes) == (False, 0)
    reader = RequestReader(Receiver())
    reader.feed(POST + b"12")
    reader.stop()
    assert (reader.has_body, reader.held_bytes) == (False, 0)


@pytest.mark.parametrize("rest", [POST + b"12345", UPGRADE + b"12345", b"garbage\r\n", b"GET /" + b"a" * 70_000])
def test_input_is_ignored_while_the_receiver_closes(rest: bytes, reader: RequestReader, receiver: Receiver) -> None:
    reader.feed(POST + b"1234")
    receiver.take()
    receiver.closing = True
    reader.feed(b"5" + rest)
    assert receiver.take() == []
    reader.close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nhost : x\r\n\r\n", 400),
        (b"GET /a HTTP/2.0\r\nhost: x\r\n\r\n", 505),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", 501),
        (b"POST /a HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n", 501),
        (b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n", 431),
    ],
)
def test_request_is_refused_and_nothing_after_it_is_read(
    data: bytes, status: int, reader: RequestReader, receiver: Receiver
) -> None:
    reader.feed(data + POST + b"12345")
    assert [event for event in receiver.take() if event != "begins"] == [status]


def test_longest_target_is_accepted(reader: RequestReader, receiver: Receiver) -> None:
    target = b"/" + b"a" * (MAX_HEAD_BYTES - 1)
    reader.feed(b"GET %b HTTP/1.1\r\n\r\n" % target)
    assert receiver.take() == ["begins", target, ("arrived", b"")]


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked"])
def test_chunked_is_the_supported_coding(coding: bytes, reader: RequestReader, receiver: Receiver) -> None:
    reader.feed(CHUNKED.replace(b"chunked", coding) + b"0\r\n\r\n")
    assert receiver.take()[-1] == ("arrived", b"")


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /a HTTP/1.1\r\nhost: ",
        CHUNKED,
        CHUNKED + b"1\r\na\r\n",
        CHUNKED + b"1\r\na\r\n0\r\n",
    ],
    ids=["a header", "a chunk size", "a later chunk size", "a trailer"],
)
def test_input_that_completes_nothing_is_limited(begun: bytes, reader: RequestReader, receiver: Receiver) -> None:
    reader.feed(begun)
    # A header or a trailer, or an extension of a chunk.
    start = b"2;x=" if begun.startswith(CHUNKED) and not begun.endswith(b"0\r\n") else b"x: "
    reader.feed(start + b"y" * (MAX_HEAD_BYTES - len(start)))
    assert not receiver.closing
    reader.feed(b"y")
    assert receiver.take()[-1] == 431


def test_body_before_a_header_block_does_not_count_as_headers(reader: RequestReader, receiver: Receiver) -> None:
    post = b"POST /a HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (2 * MAX_HEAD_BYTES)
    body = b"x" * 2 * MAX_HEAD_BYTES
    # The end of a request and the beginning of the next one arrive together.
    reader.feed(post[:20])
    for _ in range(2):
        reader.feed(post[20:] + body + post[:20])
        assert reader.in_head
    reader.feed(post[20:] + body[1:])
    reader.feed(body[:1] + post[:20])
    assert reader.in_head
    assert [event[1] for event in receiver.take() if isinstance(event, tuple)] == [body] * 3
    assert not receiver.closing


def test_upgrade_is_ignored(reader: RequestReader, receiver: Receiver) -> None:
    reader.feed(UPGRADE + b"123")
    reader.feed(b"45" + POST + b"12345")
    assert receiver.take() == [
        *("begins", "begins", b"/u", 3, 5, ("arrived", b"12345")),
        *("begins", b"/a", 5, ("arrived", b"12345")),
    ]
    assert receiver.heads[0].raw(b"upgrade") is None
