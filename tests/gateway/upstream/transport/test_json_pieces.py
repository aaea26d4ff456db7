"""Arrays that arrive in pieces: whatever the pieces, what is given back is the text, and nothing that is not JSON."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import wire
from gateway.upstream.transport.json_pieces import ArrayPieces, start_of

# Whatever could be taken for the end of something.
ODD = ['"', "\\", "\\\\", '\\"', '","type":"text', "[{", "]}", "\x00", "\ud83d"]
TEXTS = st.text(max_size=200) | st.sampled_from([*ODD, "a" * 300, "\\n" * 90, "é" * 200, "𝄞" * 120])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
LONG = "x" * 100


def read(text: bytes, cuts: list[int]) -> tuple[ArrayPieces, bytes, int]:
    """Everything that is given back for a text that arrives so, and how much of it before the end."""
    pieces, given_back = ArrayPieces(), b""
    offsets = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for begin, end in pairwise(offsets):
        given_back += pieces.feed(text[begin:end])
    early = len(given_back)
    return pieces, given_back + pieces.finish(), early


def written(value: Any, *, ascii_only: bool, indent: int | None) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")


@given(
    st.lists(VALUES, max_size=5),
    st.lists(st.integers(min_value=0, max_value=10_000), max_size=8),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([b"", b',"isError":false}}', b"]", b" "]),
)
def test_an_array_comes_back_as_it_was_written(
    value: list[Any], cuts: list[int], indent: int | None, after: bytes
) -> None:
    text = written(value, ascii_only=True, indent=indent)
    pieces, given_back, _ = read(text + after, cuts)
    assert given_back + b"]" == text
    assert pieces.ended
    assert b"".join(pieces.after) == after


@given(
    st.lists(st.dictionaries(TEXTS, TEXTS, max_size=3) | TEXTS, max_size=4).filter(
        lambda value: "\\ud" not in json.dumps(value) or "𝄞" in json.dumps(value, ensure_ascii=False)
    ),
    st.lists(st.integers(min_value=0, max_value=10_000), max_size=8),
)
def test_characters_of_several_bytes_are_cut_nowhere(value: list[Any], cuts: list[int]) -> None:
    try:
        text = json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return  # a half of a character, which has no bytes
    _, given_back, _ = read(text, cuts)
    assert given_back + b"]" == text


@given(
    st.lists(VALUES, min_size=1, max_size=4),
    st.integers(min_value=0, max_value=5_000),
    st.sampled_from([b"", b'"', b"\\", b"\n", b"}", b"]", b"[", b",", b"\xff", b"NaN", b"\x01", b"\\x", b"0"]),
    st.integers(min_value=0, max_value=2),
    st.lists(st.integers(min_value=0, max_value=10_000), max_size=8),
)
def test_what_is_no_json_is_refused_and_what_is_json_is_not(
    value: list[Any], at: int, put: bytes, taken: int, cuts: list[int]
) -> None:
    text = written([*value, LONG], ascii_only=True, indent=None)
    at %= len(text)
    changed = text[:at] + put + text[at + taken :]
    try:
        wire.checked_items(changed)
        valid = True
    except wire.MalformedJson:
        valid = False
    try:
        pieces, given_back, _ = read(changed, cuts)
    except wire.MalformedJson:
        assert not valid
        return
    # What comes after the array is the reader's business.
    after = b"".join(pieces.after)
    assert given_back + b"]" + after == changed
    assert valid or after
    wire.checked_items(given_back + b"]")


def test_a_long_text_is_given_back_as_it_comes() -> None:
    text = json.dumps(
        [{"type": "text", "text": 'a "quoted" line\n' * 20_000}, {"type": "image", "data": "A" * 99}]
    ).encode()
    pieces, sizes = ArrayPieces(), []
    for at in range(0, len(text), 8_192):
        sizes.append(len(pieces.feed(text[at : at + 8_192])))
        assert pieces.kept_bytes < 200
    assert min(sizes[:-1]) > 8_000
    assert pieces.types == {b"text", b"image"}


def test_only_the_types_of_items_count() -> None:
    value = [
        {"type": "resource", "resource": {"type": "text", "text": "a"}},
        ["type", "text"],
        {"a": "type", "b": "text"},
    ]
    pieces = ArrayPieces()
    pieces.feed(json.dumps(value).encode())
    assert pieces.types == {b"resource"}


def test_an_array_without_texts_is_kept_and_read_once() -> None:
    text = json.dumps([[number] for number in range(100_000)]).encode()
    pieces = ArrayPieces()
    given_back = b"".join(pieces.feed(text[at : at + 4_096]) for at in range(0, len(text), 4_096))
    assert given_back == b""
    assert pieces.finish() + b"]" == text


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'[{"a":' * 50_000, b'["a"', b'["a",', b"[1", b'["' + b"a" * 99, b"["]
)
def test_what_never_ends_is_refused(text: bytes) -> None:
    with pytest.raises(wire.MalformedJson):
        read(text, [])


def test_memory_does_not_grow_with_types() -> None:
    pieces = ArrayPieces()
    pieces.feed(json.dumps([{"type": f"kind {number}"} for number in range(1_000)]).encode())
    assert len(pieces.types) == 16


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"result":{"content":[{"type":"te', b'[{"type":"te'),
        (b'{"jsonrpc":"2.0","id":1,"result":{"_meta":{"content":[1]},"content" : [2', b"[2"),
        (b'{"result":{"content":"result"},"content":[', b'"result"},"content":['),
        (b'{"content":[1],"result":{"a":{"b":[{}]},"content":[2', b"[2"),
        (b'{"a":{"result":{"content":[1]}},"result":{"content":[2', b"[2"),
        (b'{"result":{"content', None),
        (b'{"result":[{"content":[1]}]}', None),
        (b'{"result":{"a":1},"content":[1]}', None),
        (b'{"error":{"content":[1]}}', None),
        (b'[{"result":{"content":[1]}}]', None),
        (b'{"result":{"a\\"content":[1],"content":[2', b"[2"),
        (b'{"result":{' + b'"a":1,' * 10_000 + b'"content":[2', None),
        (b"", None),
    ],
)
def test_a_member_is_found_by_its_path_alone(text: bytes, expected: bytes | None) -> None:
    at = start_of(text, (b"result", b"content"))
    assert (None if at is None else text[at:]) == expected
