"""Events out of chunks, each within its bound."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ConnectionLost
from gateway.upstream.transport import event_stream
from gateway.upstream.transport.event_stream import EventParser

LIMIT = 1000


@pytest.fixture(autouse=True)
def _small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_MESSAGE_BYTES", LIMIT)


def read(parser: EventParser, text: bytes) -> list[tuple[str, bytes]]:
    return [(event.event, event.data) for event in parser.feed(text)]


def test_an_event_has_a_type_an_id_and_all_of_its_data() -> None:
    parser = EventParser()
    text = b": a comment\r\nevent: endpoint\r\ndata: one\r\ndata:two\r\nid: 7\r\nother: x\r\n\r\ndata: three\n\n"
    assert read(parser, text) == [("endpoint", b"one\ntwo"), ("message", b"three")]
    assert parser.last_id == "7"


def test_an_event_without_data_is_none_and_its_type_is_forgotten() -> None:
    parser = EventParser()
    assert read(parser, b"event: endpoint\nid: 1\n\ndata: x\n\n") == [("message", b"x")]
    assert parser.last_id == "1"


def test_the_id_of_an_event_counts_once_all_of_it_has_come() -> None:
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
def test_the_pause_before_the_next_connection_is_a_number_of_milliseconds(given: bytes, read_as: int) -> None:
    parser = EventParser(retry_ms=5)
    assert read(parser, b"retry: " + given + b"\n\n") == []
    assert parser.retry_ms == read_as


LARGE = {
    "one line": b"data: " + b"x" * (LIMIT + 1),
    "many lines": b"\n".join([b"data: " + b"x" * 100] * (LIMIT // 100 + 1)),
    "exactly": b"data:" + b"x" * (LIMIT - 5),
}


@pytest.mark.parametrize("kind", LARGE)
def test_one_answer_that_is_too_large_ends_its_own_stream(kind: str) -> None:
    text = LARGE[kind] + b"\n\ndata: next\n\n"
    if kind == "exactly":
        assert [data for _, data in read(EventParser(), text)] == [b"x" * (LIMIT - 5), b"next"]
        return
    with pytest.raises(ConnectionLost, match="larger than 1000 bytes") as lost:
        read(EventParser(), text)
    assert lost.value.sent


@pytest.mark.parametrize("kind", ["one line", "many lines"])
def test_on_a_stream_of_several_answers_only_the_large_one_is_left_out(kind: str) -> None:
    skipped: list[bytes] = []
    parser = EventParser(skip_large=True, on_skipped=skipped.append)
    text = b"event: x\n" + LARGE[kind] + (b"\ndata: more" if kind == "many lines" else b"")
    # In pieces, as from a network.
    found = [event for at in range(0, len(text), 100) for event in read(parser, text[at : at + 100])]
    assert [*found, *read(parser, b"\n\ndata: next\n\n")] == [("message", b"next")]
    # Its ends may tell which request it answers.
    [ends] = skipped
    assert (ends.strip()[:3], ends[-4:]) == (b"xxx", b"more" if kind == "many lines" else b"xxxx")
    assert read(parser, b"data: last\n\n") == [("message", b"last")]


def opening(opens_from_bytes: int) -> EventParser:
    parser = EventParser()
    parser.opens_from_bytes = opens_from_bytes
    return parser


def opened(text: bytes, cuts: list[int], *, opens_from_bytes: int) -> list[tuple[str, bytes, str | None]]:
    """The events of a text that arrives in such pieces, however their data was given out."""
    parser, found, data = opening(opens_from_bytes), [], b""
    offsets = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for begin, end in pairwise(offsets):
        for event in parser.feed(text[begin:end]):
            assert event.went_on or event.goes_on or not data
            data += event.data
            if not event.goes_on:
                found.append((event.event, data, event.id))
                data = b""
    return found


@given(
    st.lists(st.sampled_from([b"data: " + b"x" * 60, b"data:abc", b"data", b"event: a", b"event: message", b"id: 7",
                              b": " + b"c" * 60, b"other: " + b"o" * 60, b"", b""]), max_size=12),
    st.lists(st.integers(min_value=0, max_value=2_000), max_size=12),
    st.sampled_from([b"\n", b"\r\n"]),
)  # fmt: skip
def test_data_that_is_given_out_as_it_comes_is_the_same(lines: list[bytes], cuts: list[int], ends: bytes) -> None:
    text = ends.join([*lines, b"", b""])
    whole = opened(text, [], opens_from_bytes=0)
    in_pieces = opened(text, cuts, opens_from_bytes=20)
    if ends == b"\n":
        assert in_pieces == whole
    else:
        # A piece may end between the two bytes that end a line: to JSON that byte is a blank.
        assert [(kind, data.replace(b"\r", b""), id_) for kind, data, id_ in in_pieces] == whole


def test_only_large_data_of_messages_is_given_out_before_its_end() -> None:
    parser = opening(100)
    assert list(parser.feed(b"data: " + b"x" * 50)) == []
    (event,) = parser.feed(b"y" * 50)
    assert (event.data, event.goes_on) == (b"x" * 50 + b"y" * 50, True)
    (event,) = parser.feed(b"z")
    assert (event.data, event.goes_on) == (b"z", True)
    event, second = parser.feed(b"a\nevent: incomplete\n\ndata: b\n\n")
    assert (event.data, event.event, event.goes_on, event.went_on) == (b"a", "incomplete", False, True)
    assert (second.data, second.event, second.went_on) == (b"b", "message", False)
    for unusual in (b": " + b"c" * 200, b"event: endpoint\ndata: " + b"x" * 200, b"data: 1\ndata: " + b"x" * 200):
        assert list(opening(100).feed(unusual)) == []


def test_data_that_is_given_out_counts_towards_the_bound() -> None:
    parser = opening(100)
    for _ in range(9):
        list(parser.feed(b"data: " + b"x" * 100))
    with pytest.raises(ConnectionLost, match="larger than 1000 bytes"):
        list(parser.feed(b"x" * 100))
