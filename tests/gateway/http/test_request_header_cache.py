"""Cached request headers equal what the parser reads."""

from __future__ import annotations

from typing import Any

import httptools
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.http.http_request import RequestHead
from gateway.http.server_header_cache import MAX_KNOWN_BYTES, RequestHeaderBlock, RequestHeaderCache

HEAD = b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\nmcp-method: tools/call\r\n\r\n%b"


class Reader:
    """Reads whole requests with a separate parser."""

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.found: list[tuple[RequestHead, bytes]] = []
        self.on_message_begin()

    def on_message_begin(self) -> None:
        self.target, self.body = b"", b""
        self.fields: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        parser = self.parser
        head = RequestHead(
            parser.get_method(), self.target, self.fields,
            version=parser.get_http_version(), keep_alive=parser.should_keep_alive(),
        )  # fmt: skip
        head.judged = "by whoever answers"
        self.found.append((head, self.body))


def read(data: bytes) -> tuple[RequestHead, bytes] | None:
    """The one request that these bytes are; None where they are none, several, or a part of one."""
    reader = Reader()
    try:
        reader.parser.feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    return reader.found[0] if len(reader.found) == 1 else None


def comparable(found: tuple[RequestHead | RequestHeaderBlock, bytes] | None) -> Any:
    if found is None:
        return None
    head, body = found
    head = head.head if isinstance(head, RequestHeaderBlock) else head
    # The length is excluded, because it depends on the body.
    fields = [field for field in head.fields if field[0] != b"content-length"]
    texts = {name: text for name, text in head.texts().items() if name != "content-length"}
    return head.method, head.target, head.path, fields, head.version, head.keep_alive, texts, body


def learnt(data: bytes) -> RequestHeaderCache:
    known = RequestHeaderCache()
    found = read(data)
    if found is not None:
        known.learn(data, found[0])
    return known


def test_same_header_block_with_another_body_is_recognized() -> None:
    known = learnt(HEAD % (2, b"{}"))
    for body in (b"{}", b'{"a":1}', b"x" * 12345):
        assert comparable(known.find(HEAD % (len(body), body))) == comparable(read(HEAD % (len(body), body)))
    other = HEAD.replace(b"host: x", b"host: y") % (2, b"{}")
    for data in (other, HEAD % (3, b"{}"), HEAD % (2, b"{}{}"), HEAD % (2, b"{}") * 2, (HEAD % (2, b"{}"))[:-1], b""):
        assert known.find(data) is None


def test_content_length_is_found_in_both_usual_spellings() -> None:
    head = HEAD.replace(b"content-length", b"Content-Length")
    found = learnt(head % (2, b"{}")).find(head % (7, b'{"a":1}'))
    assert found is not None
    assert found[1] == b'{"a":1}'


def test_incomplete_header_block_or_one_without_length_is_not_recognized() -> None:
    head = b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    known = learnt(head % 2 + b"{}")
    assert known.find(head % 0) is not None
    # More digits may be on their way, or more lines.
    for data in ((head % 0)[:-4], (head % 0)[:-2], b"POST /mcp HTTP/1.1\r\nhost: x\r\n\r\n"):
        assert known.find(data) is None


def test_content_length_is_digits_only() -> None:
    known = learnt(HEAD % (2, b"{}"))
    # Other readers could interpret `02` differently.
    for length in (b"+2", b" 2", b"2 ", b"-2", b"0_2", b"02", b"\xb2", b""):
        assert known.find(HEAD.replace(b"%d", length).replace(b"%b", b"{}")) is None
    assert known.find(HEAD.replace(b"%d", b"2").replace(b"%b", b"{}")) is not None


def test_request_with_special_headers_is_parsed_each_time() -> None:
    for line in (
        b"expect: 100-continue",
        b"connection: close",
        b"content-length: 2",
        b"transfer-encoding: chunked",
        b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ):
        data = HEAD.replace(b"host: x", b"host: x\r\n" + line) % (2, b"{}")
        assert learnt(data).find(data) is None
    data = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"host: x", b"host: x\r\nconnection: keep-alive") % (2, b"{}")
    assert learnt(data).find(data) is None
    assert learnt(HEAD.replace(b"POST", b"PUT") % (2, b"{}")).find(HEAD.replace(b"POST", b"PUT") % (2, b"{}")) is None


def test_header_cache_is_bounded_in_number_and_size() -> None:
    long = HEAD.replace(b"host: x", b"host: " + b"x" * 5000) % (2, b"{}")
    assert learnt(long).find(long) is None
    known = RequestHeaderCache()
    for number in range(2000):
        data = HEAD.replace(b"host: x", b"host: %d" % number) % (2, b"{}")
        found = read(data)
        assert found is not None
        known.learn(data, found[0])
        assert known.find(data) is not None
    assert known.find(HEAD.replace(b"host: x", b"host: 3") % (2, b"{}")) is None


def test_header_block_is_cached_up_to_the_limit_of_its_size() -> None:
    for more_bytes, is_cached in ((0, True), (1, False)):
        lines_bytes = len((HEAD % (2, b"{}")).partition(b"\r\n\r\n")[0])
        name = b"x" * (MAX_KNOWN_BYTES + more_bytes - lines_bytes + 1)
        data = HEAD.replace(b"host: x", b"host: " + name) % (2, b"{}")
        assert (learnt(data).find(data) is not None) is is_cached


def test_cache_is_emptied_when_it_is_full() -> None:
    known = RequestHeaderCache()
    requests = [HEAD.replace(b"host: x", b"host: %d" % number) % (2, b"{}") for number in range(513)]
    for data in requests[:512]:
        found = read(data)
        assert found is not None
        known.learn(data, found[0])
    assert known.find(requests[0]) is not None
    found = read(requests[512])
    assert found is not None
    known.learn(requests[512], found[0])
    assert [known.find(requests[number]) is not None for number in (0, 511, 512)] == [False, False, True]


def test_header_block_that_differs_from_what_was_parsed_is_not_cached() -> None:
    data = HEAD.replace(b"tools/call", b"tools/call-and-more") % (2, b"{}")
    found = read(data)
    assert found is not None
    head, body = found
    lines = data[: -len(body)].removesuffix(b"\r\n\r\n")
    for first_bytes in (
        lines[:-9],  # without the end of the last header
        lines + b"\r\n",
        lines.replace(b"\r\nhost", b"\nhost") + b"\r\n\r\n",
        lines.replace(b"host: x", b"host: x\r\n y") + b"\r\n\r\n",
        lines.replace(b"host: x\r\n", b"") + b"\r\n\r\n",
        lines.replace(b"length: 2", b"length: 3") + b"\r\n\r\n",
        lines.replace(b"content-length: 2", b"content-lengti: 2") + b"\r\n\r\n",
    ):
        known = RequestHeaderCache()
        known.learn(first_bytes, head)
        assert known._heads == {}, first_bytes
    known.learn(data, head)
    assert known.find(data) is not None


def test_only_requests_judged_by_an_endpoint_are_cached() -> None:
    data = HEAD % (2, b"{}")
    found = read(data)
    assert found is not None
    found[0].judged = None
    known = RequestHeaderCache()
    known.learn(data, found[0])
    assert known.find(data) is None


LINES = st.sampled_from([
    b"host: x", b"Host: y", b"content-length: 2", b"Content-Length: 5", b"content-length:2", b"content-length: 02",
    b"transfer-encoding: chunked", b"x: a\r\n b", b"x: a\n", b"x: a\r", b"x", b": x", b"content-length: 2\r\n 3",
    b"connection: close", b"connection: upgrade", b"upgrade: h2c", b"expect: 100-continue", b"x: content-length: 3",
])  # fmt: skip
BODIES = st.sampled_from([b"", b"{}", b"hello", b"GET / HTTP/1.1\r\n\r\n", b"content-length: 2\r\n\r\n", b"2\r\n{}"])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    lines = [b"POST /mcp HTTP/1.1", *draw(st.lists(LINES, max_size=4))]
    end = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
    return end.join(lines) + end * 2 + draw(BODIES)


@settings(deadline=None)
@given(requests(), st.lists(requests(), min_size=1, max_size=4), st.integers(0, 200), st.binary(min_size=1, max_size=1))
@example(HEAD % (2, b"{}"), [HEAD % (5, b"hello")], 60, b"9")
def test_cached_headers_equal_what_the_parser_reads(first: bytes, others: list[bytes], at: int, byte: bytes) -> None:
    known = learnt(first)
    at %= len(first)
    flipped = first[:at] + byte + first[at + 1 :]
    latest = known.find(first)
    for data in (first, flipped, *others):
        found = known.find(data)
        if found is not None:
            assert comparable(found) == comparable(read(data))
        # As a connection asks, of the head that came last on it.
        body = latest[0].body_in(data) if latest is not None else None
        if latest is not None and body is not None:
            assert comparable((latest[0], body)) == comparable(read(data))
