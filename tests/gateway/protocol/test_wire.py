"""JSON keeps every value; large answers are forwarded without being parsed, and stay valid."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol import json_bytes

BIG = "x" * json_bytes.SPLICED_BYTES

_texts = st.text(st.characters(), max_size=20)
_leaves = st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False, allow_infinity=False)
_values: st.SearchStrategy[Any] = st.recursive(
    _leaves | _texts, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4)
)


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is not 1.0, and true is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@given(_values)
def test_values_round_trip(value: Any) -> None:
    assert same(json_bytes.loads(json.dumps(value).encode()), value)
    assert same(json_bytes.loads(json_bytes.dumps(value)), value)


@given(st.dictionaries(_texts, _values | st.just(BIG), max_size=5), st.booleans())
def test_large_answer_is_forwarded_with_equal_values(result: dict[str, Any], ascii_only: bool) -> None:
    answer = {"jsonrpc": "2.0", "id": 7, "result": {**result, "content": [{"type": "text", "text": BIG}]}}
    try:
        raw = json.dumps(answer, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8
        raw = json.dumps(answer).encode()
    read = json_bytes.loads_answer(raw)
    assert same(json_bytes.loads(json_bytes.dumps(read)), answer)
    assert same({**read, "result": json_bytes.parse_members(read["result"])}, answer)


def test_large_content_is_not_parsed_unless_accessed() -> None:
    answer = {"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": BIG}], "isError": False}}
    raw = json.dumps(answer).encode()
    result = json_bytes.loads_answer(raw)["result"]
    assert type(result["content"]) is json_bytes.UnparsedJson
    assert result["isError"] is False
    assert json_bytes.has_item(result["content"], "text")
    assert not json_bytes.has_item(result["content"], "image")
    assert json_bytes.loads_answer(raw, lambda request_id: request_id != 7) == answer
    # A line break would end a line, or an event, in the middle.
    assert json_bytes.loads_answer(json.dumps(answer, indent=1).encode()) == answer
    meta = {**answer, "result": {"_meta": {"text": BIG}, "content": []}}
    assert json_bytes.loads_answer(json.dumps(meta).encode()) == meta


@pytest.mark.parametrize(
    "inside", [b'"\xff"', b"[1,]", b"01", b"NaN", b'"\x01"', b'"\\q"', b"[" * 100_000 + b"]" * 100_000]
)
def test_invalid_json_is_refused_at_any_size(inside: bytes) -> None:
    with pytest.raises(json_bytes.MalformedJson):
        json_bytes.loads(inside)
    with pytest.raises(json_bytes.MalformedJson):
        json_bytes.loads_answer(
            b'{"jsonrpc":"2.0","id":1,"result":{"content":[' + inside + b',"' + BIG.encode() + b'"]}}'
        )


@pytest.mark.parametrize(
    "raw", [b"", b"\xff\xfe1\x00", b"1e999", b'"\\ud800', b'["\\ud800",1e999]', b'["\\ud800",NaN]']
)
def test_malformed_texts_are_refused(raw: bytes) -> None:
    with pytest.raises(json_bytes.MalformedJson):
        json_bytes.loads(raw)


def test_invalid_content_items_are_not_found() -> None:
    for items in ([1, None, {"type": 3}, [], "text"], {"type": "text"}, None, "text"):
        assert not json_bytes.has_item(items, "text")
        assert not json_bytes.has_item(json_bytes.UnparsedJson(json.dumps(items).encode()), "text")
    assert json_bytes.has_item([1, {"type": "text"}], "text")
    assert json_bytes.has_item(json_bytes.UnparsedJson(b'[1, {"type": "text"}]'), "text")
