"""JSON keeps every value; large answers are passed on without being read, and are JSON all the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import wire

BIG = "x" * wire.SPLICED_BYTES

_texts = st.text(st.characters(), max_size=20)
_leaves = st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False, allow_infinity=False)
_values: st.SearchStrategy[Any] = st.recursive(
    _leaves | _texts, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4)
)


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is not 1.0, and true is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@given(_values)
def test_values_survive_both_ways(value: Any) -> None:
    assert same(wire.loads(json.dumps(value).encode()), value)
    assert same(wire.loads(wire.dumps(value)), value)


@given(st.dictionaries(_texts, _values | st.just(BIG), max_size=5), st.booleans())
def test_a_large_answer_leaves_with_the_values_that_it_came_with(result: dict[str, Any], ascii_only: bool) -> None:
    answer = {"jsonrpc": "2.0", "id": 7, "result": {**result, "content": [{"type": "text", "text": BIG}]}}
    try:
        raw = json.dumps(answer, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8
        raw = json.dumps(answer).encode()
    read = wire.loads_answer(raw)
    assert same(wire.loads(wire.dumps(read)), answer)
    assert same({**read, "result": wire.whole(read["result"])}, answer)


def test_what_is_large_is_left_unparsed_unless_somebody_looks() -> None:
    answer = {"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": BIG}], "isError": False}}
    raw = json.dumps(answer).encode()
    result = wire.loads_answer(raw)["result"]
    assert type(result["content"]) is wire.Unparsed
    assert result["isError"] is False
    assert wire.has_item(result["content"], "text")
    assert not wire.has_item(result["content"], "image")
    assert wire.loads_answer(raw, lambda request_id: request_id != 7) == answer
    # A line break would end a line, or an event, in the middle.
    assert wire.loads_answer(json.dumps(answer, indent=1).encode()) == answer
    meta = {**answer, "result": {"_meta": {"text": BIG}, "content": []}}
    assert wire.loads_answer(json.dumps(meta).encode()) == meta


@pytest.mark.parametrize(
    "inside", [b'"\xff"', b"[1,]", b"01", b"NaN", b'"\x01"', b'"\\q"', b"[" * 100_000 + b"]" * 100_000]
)
def test_what_is_no_json_is_refused_however_large(inside: bytes) -> None:
    with pytest.raises(wire.MalformedJson):
        wire.loads(inside)
    with pytest.raises(wire.MalformedJson):
        wire.loads_answer(b'{"jsonrpc":"2.0","id":1,"result":{"content":[' + inside + b',"' + BIG.encode() + b'"]}}')


@pytest.mark.parametrize(
    "raw", [b"", b"\xff\xfe1\x00", b"1e999", b'"\\ud800', b'["\\ud800",1e999]', b'["\\ud800",NaN]']
)
def test_odd_texts_are_malformed(raw: bytes) -> None:
    with pytest.raises(wire.MalformedJson):
        wire.loads(raw)


def test_items_of_no_kind_are_no_items() -> None:
    for items in ([1, None, {"type": 3}, [], "text"], {"type": "text"}, None, "text"):
        assert not wire.has_item(items, "text")
        assert not wire.has_item(wire.Unparsed(json.dumps(items).encode()), "text")
    assert wire.has_item([1, {"type": "text"}], "text")
    assert wire.has_item(wire.Unparsed(b'[1, {"type": "text"}]'), "text")
