"""Parsing of server-sent events from chunks, with a size limit."""

from __future__ import annotations

import pytest

from gateway.http.event_stream import EventParser, media_type
from gateway.protocol.gateway_errors import ConnectionLost

LIMIT = 1000


def read(parser: EventParser, text: bytes) -> list[tuple[str, bytes]]:
    return [(event.event, event.data) for event in parser.feed(text)]


def test_event_has_type_id_and_all_data_lines() -> None:
    parser = EventParser()
    text = b": a comment\r\nevent: endpoint\r\ndata: one\r\ndata:two\r\nid: 7\r\nother: x\r\n\r\ndata: three\n\n"
    assert read(parser, text) == [("endpoint", b"one\ntwo"), ("message", b"three")]
    assert parser.last_id == "7"


def test_event_without_data_is_ignored() -> None:
    parser = EventParser()
    assert read(parser, b"event: endpoint\nid: 1\n\ndata: x\n\n") == [("message", b"x")]
    assert parser.last_id == "1"


def test_event_id_counts_once_the_event_is_complete() -> None:
    parser = EventParser(last_id="1")
    assert read(parser, b"id: 2\ndata: x\n") == []
    assert parser.last_id == "1"
    assert read(parser, b"\n") == [("message", b"x")]
    assert parser.last_id == "2"
    assert read(parser, b"id\n\n") == []
    assert parser.last_id is None


@pytest.mark.parametrize(
    ("given", "read_as"), [(b"250", 250), (b"999999999", 999_999_999), (b"1000000000", 5), (b"1s", 5), (b"", 5)]
)
def test_retry_field_is_read_in_milliseconds(given: bytes, read_as: int) -> None:
    parser = EventParser(retry_ms=5)
    assert read(parser, b"retry: " + given + b"\n\n") == []
    assert parser.retry_ms == read_as


LARGE = {
    "one line": b"data: " + b"x" * (LIMIT + 1),
    "many lines": b"\n".join([b"data: " + b"x" * 100] * (LIMIT // 100 + 1)),
    "exactly": b"data:" + b"x" * (LIMIT - 5),
}
EXACT_LINES = b"data: " + b"x" * (LIMIT - 100) + b"\ndata: " + b"y" * 100


@pytest.mark.parametrize("kind", LARGE)
def test_oversized_event_ends_its_stream(kind: str) -> None:
    text = LARGE[kind] + b"\n\ndata: next\n\n"
    if kind == "exactly":
        assert [data for _, data in read(EventParser(limit_bytes=LIMIT), text)] == [b"x" * (LIMIT - 5), b"next"]
        return
    with pytest.raises(ConnectionLost, match="larger than 1000 bytes") as lost:
        read(EventParser(limit_bytes=LIMIT), text)
    assert lost.value.sent


@pytest.mark.parametrize("kind", ["one line", "many lines"])
def test_oversized_event_of_a_shared_stream_is_skipped(kind: str) -> None:
    skipped: list[bytes] = []
    parser = EventParser(skip_large=True, on_skipped=skipped.append, limit_bytes=LIMIT)
    text = b"event: x\n" + LARGE[kind] + (b"\ndata: more" if kind == "many lines" else b"")
    # In pieces, as from a network.
    found = [event for at in range(0, len(text), 100) for event in read(parser, text[at : at + 100])]
    assert [*found, *read(parser, b"\n\ndata: next\n\n")] == [("message", b"next")]
    # Its ends may tell which request it answers.
    [ends] = skipped
    assert (ends.strip()[:3], ends[-4:]) == (b"xxx", b"more" if kind == "many lines" else b"xxxx")
    assert read(parser, b"data: last\n\n") == [("message", b"last")]


def test_byte_order_mark_is_removed_only_at_the_start() -> None:
    parser = EventParser()
    mark = b"\xef\xbb\xbf"
    assert read(parser, mark + b"data: a\n\n" + mark + b"data: b\n\n") == [("message", b"a")]


def test_field_without_a_known_name_is_ignored() -> None:
    parser = EventParser()
    assert read(parser, b"other: 7\ndata\n data: x\nDATA: y\n\n") == [("message", b"")]
    assert (parser.retry_ms, parser.last_id) == (None, None)


def test_size_of_each_event_counts_anew() -> None:
    parser = EventParser(limit_bytes=LIMIT)
    for text in (EXACT_LINES, b"event: without data", EXACT_LINES, b"data: " + b"x" * 100, EXACT_LINES):
        assert len(read(parser, text + b"\n\n")) == (b"data" in text.partition(b":")[0])
    with pytest.raises(ConnectionLost):
        read(parser, EXACT_LINES + b"\ndata: z\n\n")
    parser = EventParser(limit_bytes=LIMIT, skip_large=True)
    assert read(parser, EXACT_LINES + b"\ndata: z\n\n") == []
    assert read(parser, EXACT_LINES + b"\n\n") == [("message", b"x" * (LIMIT - 100) + b"\n" + b"y" * 100)]


def test_beginning_and_end_of_a_skipped_event_are_reported() -> None:
    skipped: list[bytes] = []
    parser = EventParser(limit_bytes=LIMIT, skip_large=True, on_skipped=skipped.append)
    text = b"data: " + b"a" * 600 + b"\ndata: " + b"b" * 600 + b"\ndata: c\nid: 7\ndata: " + b"d" * 500 + b"\n\n"
    assert read(parser, text * 2) == []
    assert skipped == [b"a" * 512 + b"\n" + b"b" * 9 + b"\nc\n" + b"d" * 500] * 2
    assert parser.last_id == "7"


@pytest.mark.parametrize(
    ("value", "essence"),
    [("Application/JSON ; charset=x", "application/json"), ("a/b, c/d;e", "a/b"), (" a/b ", "a/b"), ("", "")],
)
def test_media_type_is_the_first_without_parameters(value: str, essence: str) -> None:
    assert media_type(value) == essence
