"""An answer whose head was read before is taken as the parser would take it."""

from __future__ import annotations

from typing import Any

import httptools
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.raw_http import Peer, serving

from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.transport.known_heads import KnownHeads

HEAD = b"HTTP/1.1 200 OK\r\ndate: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
DATE, LATER = b"Sun, 22 Nov 2026 08:00:00 GMT", b"Sun, 22 Nov 2026 08:00:01 GMT"


class Reader:
    """Reads whole answers with a parser of its own."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = 0
        self.kept = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended += 1
        self.kept = self.parser.should_keep_alive()


def read(data: bytes) -> tuple[dict[str, str], bytes, bool] | None:
    """Fields, body, and whether the connection is kept; None where these bytes are not one whole answer."""
    reader = Reader()
    try:
        reader.parser.feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    if reader.ended != 1:
        return None
    return reader.headers, reader.body, reader.kept


def learnt(data: bytes) -> KnownHeads:
    known = KnownHeads()
    found = read(data)
    if found is not None:
        known.learn(data, found[0], is_kept=found[2])
    return known


def test_the_same_head_with_another_body_and_date_is_known_and_any_other_is_not() -> None:
    known = learnt(HEAD % (DATE, 2, b"{}"))
    data = HEAD % (LATER, 7, b'{"a":1}')
    assert known.find(data) == (
        {"content-type": "application/json", "content-length": "7"},
        b'{"a":1}',
    )
    for other in (data[:-1], data + b"x", data.replace(b"200 OK", b"404 No"), data.replace(b"/json", b"/text"), b""):
        assert known.find(other) is None


def test_date_and_length_may_stand_in_either_order() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\ndate: %b\r\n\r\n%b"
    known = learnt(head % (2, DATE, b"{}"))
    found = known.find(head % (7, LATER, b'{"a":1}'))
    assert found is not None
    assert found[1] == b'{"a":1}'


def test_answers_that_are_more_than_a_head_and_a_body_are_not_learnt() -> None:
    for line in (b"connection: close", b"transfer-encoding: chunked", b"content-encoding: gzip", b"content-length: 2"):
        data = HEAD.replace(b"content-type", line + b"\r\ncontent-type") % (DATE, 2, b"{}")
        assert learnt(data).find(data) is None
    stream = HEAD.replace(b"application/json", b"text/event-stream") % (DATE, 2, b"{}")
    assert learnt(stream).find(stream) is None


async def test_answers_one_after_the_other_are_each_their_own() -> None:
    async def peer(peer: Peer) -> None:
        for number in range(12):
            await peer.request()
            body = b'{"n":%d}' % number
            peer.say(HEAD % (DATE if number < 6 else LATER, len(body), body))

    async with serving(peer) as site:
        client = HttpClient()
        for number in range(12):
            async with client.send("POST", site.url, {}, b"{}") as response:
                assert await response.read() == b'{"n":%d}' % number
                assert response.headers["content-length"] == str(len(b'{"n":%d}' % number))
        client.close()


LINES = st.sampled_from([
    b"content-length: 2", b"Content-Length: 5", b"content-length:2", b"content-length: 02", b"date: " + DATE,
    b"Date: x", b"transfer-encoding: chunked", b"x: a\r\n b", b"x: a\n", b"x: a\r", b"x", b": x",
    b"content-length: 2\r\n 3", b"connection: close", b"content-encoding: gzip", b"x: content-length: 3",
])  # fmt: skip
BODIES = st.sampled_from([b"", b"{}", b"hello", b"HTTP/1.1 200 OK\r\n\r\n", b"2\r\n{}"])


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    lines = [b"HTTP/1.1 200 OK", *draw(st.lists(LINES, max_size=4))]
    end = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
    return end.join(lines) + end * 2 + draw(BODIES)


@settings(deadline=None)
@given(answers(), st.lists(answers(), min_size=1, max_size=4), st.integers(0, 200), st.binary(min_size=1, max_size=1))
@example(HEAD % (DATE, 2, b"{}"), [HEAD % (LATER, 5, b"hello")], 60, b"9")
def test_whatever_is_known_is_what_the_parser_reads(first: bytes, others: list[bytes], at: int, byte: bytes) -> None:
    known = learnt(first)
    at %= len(first)
    flipped = first[:at] + byte + first[at + 1 :]
    for data in (first, flipped, *others):
        found: Any = known.find(data)
        if found is not None:
            wanted = read(data)
            assert wanted is not None
            fields = {name: value for name, value in wanted[0].items() if name != "date"}
            assert found == (fields, wanted[1])
