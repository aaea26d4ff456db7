"""Cached response headers equal what the parser reads."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.raw_http import Peer, serving

from gateway.http.client_connection import MAX_KNOWN_BYTES, ResponseHeaderBlock, ResponseHeaderCache
from gateway.http.http_client import HttpClient
from gateway.protocol.gateway_errors import ConnectionLost

HEAD = b"HTTP/1.1 200 OK\r\ndate: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
DATE, LATER = b"Sun, 22 Nov 2026 08:00:00 GMT", b"Sun, 22 Nov 2026 08:00:01 GMT"


class Reader:
    """Reads whole responses with a separate parser."""

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


def learnt(data: bytes) -> ResponseHeaderCache:
    known = ResponseHeaderCache()
    found = read(data)
    if found is not None:
        known.learn(data, found[0], is_kept=found[2])
    return known


def whole_in(known: ResponseHeaderCache, data: bytes) -> tuple[ResponseHeaderBlock, bytes] | None:
    """Return the cached header block and the body of a complete response."""
    head = known.find(data)
    found = head.split(data) if head is not None else None
    return (head, found[1]) if head is not None and found is not None and found[0] == len(found[1]) else None


def test_same_header_block_with_another_body_and_date_is_recognized() -> None:
    known = learnt(HEAD % (DATE, 2, b"{}"))
    data = HEAD % (LATER, 7, b'{"a":1}')
    found = whole_in(known, data)
    assert found is not None
    assert (found[0].headers, found[0].is_json, found[1]) == ({"content-type": "application/json"}, True, b'{"a":1}')
    for other in (data[:-1], data + b"x", data.replace(b"200 OK", b"404 No"), data.replace(b"/json", b"/text"), b""):
        assert whole_in(known, other) is None
    assert found[0].split(data[:-1]) == (7, b'{"a":1')
    assert found[0].split(data + b"x") is None


def test_incomplete_header_block_is_not_a_response_without_a_body() -> None:
    head = learnt(HEAD % (DATE, 2, b"{}")).find(HEAD % (DATE, 0, b""))
    assert head is not None
    for date in (DATE, LATER):
        data = HEAD % (date, 0, b"")
        assert head.split(data) == (0, b"")
        for cut in range(1, len(data)):
            assert head.split(data[:-cut]) is None


def test_pattern_is_built_only_for_a_repeated_header_block() -> None:
    known = ResponseHeaderCache()
    for number in range(20):
        data = HEAD.replace(b"content-type", b"x-request-id: %d\r\ncontent-type" % number) % (DATE, 2, b"{}")
        found = read(data)
        assert found is not None
        known.learn(data, found[0], is_kept=True)
    assert [head._pattern for head in known._heads.values()] == [None] * 20
    assert whole_in(known, data) is not None
    assert not any(head._pattern for head in known._heads.values())
    for date in (LATER, DATE, LATER, LATER):
        assert whole_in(known, data.replace(DATE, date)) is not None
    [head] = [head for head in known._heads.values() if head._pattern is not None]
    assert LATER in head._before + head._after  # which the next answers are compared with


def test_oversized_header_block_is_not_cached() -> None:
    data = HEAD.replace(b"content-type", b"x: %b\r\ncontent-type" % (b"x" * MAX_KNOWN_BYTES)) % (DATE, 2, b"{}")
    assert learnt(data).find(data) is None


def test_date_and_length_may_be_in_either_order() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\ndate: %b\r\n\r\n%b"
    known = learnt(head % (2, DATE, b"{}"))
    found = whole_in(known, head % (7, LATER, b'{"a":1}'))
    assert found is not None
    assert found[1] == b'{"a":1}'


def test_responses_with_special_framing_are_not_cached() -> None:
    for line in (b"connection: close", b"transfer-encoding: chunked", b"content-encoding: gzip", b"content-length: 2"):
        data = HEAD.replace(b"content-type", line + b"\r\ncontent-type") % (DATE, 2, b"{}")
        assert whole_in(learnt(data), data) is None
    stream = HEAD.replace(b"application/json", b"text/event-stream") % (DATE, 2, b"{}")
    assert whole_in(learnt(stream), stream) is None


@pytest.mark.parametrize(
    "names", [(b"date", b"content-length"), (b"Date", b"Content-Length"), (b"X", b"content-length")]
)
@pytest.mark.parametrize("first", [0, 1], ids=["date first", "length first"])
async def test_header_block_is_recognized_in_both_usual_spellings(names: tuple[bytes, bytes], first: int) -> None:
    lines = (names[0] + b": %(date)b", names[1] + b": %(length)d")
    head = b"\r\n".join((b"HTTP/1.1 200 OK", lines[first], b"content-type: text/x; a=b", lines[1 - first], b"", b""))
    known = learnt(head % {b"date": DATE, b"length": 2} + b"{}")
    other_date = DATE if names[0] == b"X" else LATER
    for length, body in ((2, b"{}"), (7, b"{"), (1_234_567, b""), (0, b"")):
        data = head % {b"date": other_date, b"length": length} + body
        block = known.find(data)
        assert block is not None
        assert (block.split(data), block.is_json) == ((length, body), False)
        assert block.headers == {"content-type": "text/x; a=b"} | ({"x": DATE.decode()} if names[0] == b"X" else {})
    # Longer bodies arrive in many reads.
    assert block.split(head % {b"date": other_date, b"length": 12_345_678}) is None
    assert block.split(head % {b"date": b"tomorrow", b"length": 2} + b"{}") is None


def test_header_block_is_cached_up_to_the_limit_of_its_size() -> None:
    for more_bytes, is_cached in ((0, True), (1, False)):
        lines_bytes = len((HEAD % (DATE, 2, b"{}")).partition(b"\r\n\r\n")[0]) + len(b"x: \r\n")
        line = b"x: %b\r\n" % (b"x" * (MAX_KNOWN_BYTES + more_bytes - lines_bytes))
        data = HEAD.replace(b"content-type", line + b"content-type") % (DATE, 2, b"{}")
        assert (learnt(data).find(data) is not None) is is_cached


def test_cache_is_emptied_when_it_is_full() -> None:
    known = ResponseHeaderCache()
    blocks = [HEAD.replace(b"/json", b"/%d" % number) % (DATE, 2, b"{}") for number in range(513)]
    for number, data in enumerate(blocks):
        assert number != 512 or known.find(blocks[0]) is not None
        found = read(data)
        assert found is not None
        known.learn(data, found[0], is_kept=True)
    assert [known.find(blocks[number]) is not None for number in (0, 511, 512)] == [False, False, True]


def test_header_block_that_differs_from_what_was_parsed_is_not_cached() -> None:
    data = HEAD.replace(b"\r\n\r\n", b"\r\nx: and-more\r\n\r\n") % (DATE, 2, b"{}")
    found = read(data)
    assert found is not None
    headers, body, _ = found
    lines = data[: -len(body)].removesuffix(b"\r\n\r\n")
    end = b"\r\n\r\n"
    for first_bytes in (
        lines[:-5],  # without the end of the last header
        lines.replace(b"\r\nx", b"\nx") + end,
        lines.replace(b"\r\nx", b"\r\n y\r\nx") + end,
        lines.replace(b"length: 2", b"length: 3") + end,
        lines.replace(b"content-length: 2", b"content-lengti: 2") + end,
        lines.replace(DATE, b"tomorrow") + end,
        lines.replace(DATE, DATE[:-3] + b"UTC") + end,
        lines.replace(b"date: " + DATE, b"date: x\r\ny: zzzzzzzzzzzzzzzz GMT") + end,
        lines.replace(b"200 OK", b"201 Created") + end,
        lines.replace(b"HTTP/1.1", b"HTTP/1.0") + end,
    ):
        known = ResponseHeaderCache()
        known.learn(first_bytes, headers, is_kept=True)
        assert known._heads == {}, first_bytes
    for kind in ("text/event-stream", " Text/Event-Stream; a=b"):
        known.learn(data, headers | {"content-type": kind}, is_kept=True)
    for name in ("transfer-encoding", "content-encoding", "upgrade", "trailer", "set-cookie"):
        known.learn(data.replace(b"x: ", name.encode() + b": "), headers | {name: "and-more"}, is_kept=True)
    known.learn(data, headers, is_kept=False)
    assert known._heads == {}
    known.learn(data, headers, is_kept=True)
    assert known.find(data) is not None


async def test_consecutive_responses_are_separate() -> None:
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
                assert response.content_type == "application/json"
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
def test_cached_headers_equal_what_the_parser_reads(first: bytes, others: list[bytes], at: int, byte: bytes) -> None:
    known = learnt(first)
    at %= len(first)
    flipped = first[:at] + byte + first[at + 1 :]
    latest = known.find(first)
    for data in (first, flipped, *others):
        # As a connection asks: of the head that came last on it, then of all.
        for head in filter(None, (latest, known.find(data))):
            found = head.split(data)
            if found is None or found[0] != len(found[1]):
                continue
            body, wanted = found[1], read(data)
            assert wanted is not None
            fields = {name: value for name, value in wanted[0].items() if name not in ("date", "content-length")}
            assert (head.headers, body) == (fields, wanted[1])


async def test_response_with_cached_headers_is_read_alike_in_any_split() -> None:
    body = b'{"n":"' + b"x" * 40 + b'"}'
    cuts = list(range(1, len(HEAD % (DATE, len(body), body)), 5))

    async def peer(peer: Peer) -> None:
        for cut in (0, 0, *cuts):
            await peer.request()
            data = HEAD % (LATER, len(body), body)
            await peer.say_apart(data[:cut])
            peer.say(data[cut:])
        await peer.request()
        peer.say((HEAD % (LATER, len(body), body))[:-3])
        await peer.writer.drain()
        peer.writer.close()

    async with serving(peer) as site:
        client = HttpClient()
        for _ in (0, 0, *cuts):
            async with client.send("POST", site.url, {}, b"{}") as response:
                assert response.length == str(len(body))
                assert await response.read() == body
        assert len(site.peers) == 1
        with pytest.raises(ConnectionLost):
            async with client.send("POST", site.url, {}, b"{}") as response:
                await response.read()
        client.close()


async def test_bytes_after_a_response_close_the_connection() -> None:
    async def peer(peer: Peer) -> None:
        for _ in range(2):
            await peer.request()
            peer.say(HEAD % (DATE, 2, b"{}"))
        await peer.request()
        await peer.say_apart((HEAD % (DATE, 2, b"{}"))[:-1])
        peer.say(b"}{}")
        await peer.reader.read()

    async with serving(peer) as site:
        client = HttpClient()
        for _ in range(4):
            async with client.send("POST", site.url, {}, b"{}") as response:
                assert await response.read() == b"{}"
        assert len(site.peers) == 2
        client.close()
