"""Responses that are not strict JSON are recovered as far as possible."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pace import slowness

from gateway.process.files import LineSplitter
from gateway.upstream.transport.jsonrpc_transport import answered_id, truncated_at_depth

ORDERS = st.permutations(["jsonrpc", "id", "answer"])
NUMBERS = st.integers(min_value=0, max_value=10**15)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just(float("nan")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.just("id"), inner, max_size=4),
    max_leaves=20,
)


@given(NUMBERS, VALUES, st.sampled_from(["result", "error"]), ORDERS, st.booleans())
def test_answer_id_is_found_in_any_position(number: int, value: Any, kind: str, order: list[str], spaced: bool) -> None:
    members = {"jsonrpc": "2.0", "id": number, "answer": value}
    message = {kind if key == "answer" else key: members[key] for key in order}
    line = json.dumps(message, separators=None if spaced else (",", ":"), ensure_ascii=False).encode()
    # Braces within texts may make the id uncertain, and then no request is answered.
    assert answered_id(line) in ((number,) if line.count(b"{") == line.count(b"}") else (number, None))


@given(NUMBERS, VALUES.filter(lambda value: not set(json.dumps(value)) & set("{}")), st.booleans(), st.data())
def test_truncated_answer_yields_only_its_own_id(number: int, inner: Any, first: bool, data: st.DataObject) -> None:
    value = {"content": {"x": inner, "id": 7}, "id": 8}
    answer = {"id": number, "result": value} if first else {"result": value, "id": number}
    line = json.dumps(answer, separators=(",", ":")).encode()
    cut = line[: data.draw(st.integers(0, len(line) - 1))]
    assert answered_id(cut) in ((number, None) if first else (None,))


@given(NUMBERS, st.sampled_from(["result", "error"]), ORDERS, st.integers(1, 4_000))
def test_both_ends_of_a_long_answer_yield_its_id(number: int, kind: str, order: list[str], size: int) -> None:
    skipped: list[bytes] = []
    lines = LineSplitter(2_000, skipped.append)
    members = {"jsonrpc": "2.0", "id": number, "answer": {"x": "}" * 3_000, "id": 1}}
    line = json.dumps({kind if key == "answer" else key: members[key] for key in order}).encode()
    whole = line + b"\nshort\n"
    given = [one for at in range(0, len(whole), size) for one in lines.feed(whole[at : at + size])]
    assert given == [b"short"]
    assert [answered_id(ends, ends=True) for ends in skipped] == [number]


@given(st.binary(max_size=300))
def test_text_that_is_not_an_answer_has_no_id(noise: bytes) -> None:
    assert answered_id(noise) is None
    truncated_at_depth(noise)


def test_requests_and_notifications_are_not_answers() -> None:
    for line in (
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":NaN}',
        b'{"jsonrpc":"2.0","method":"x","params":{"id":1,"result":NaN}}',
        b'{"jsonrpc":"2.0","id":"a","result":NaN}',
        b'{"jsonrpc":"2.0","id":1.5,"result":NaN}',
        b'{"id":1,"result":NaN}',
        b'{"jsonrpc":"2.0","id":12',
        b'[{"jsonrpc":"2.0","id":1,"result":NaN}]',
    ):
        assert answered_id(line) is None, line


@given(VALUES.filter(lambda value: value == value))
def test_value_within_the_depth_limit_is_unchanged(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert truncated_at_depth(text) == text


@given(st.lists(st.sampled_from(["[", '{"]":', '["}",']), min_size=245, max_size=600), VALUES)
def test_deep_value_stays_valid_json_cut_at_the_limit(openings: list[str], value: Any) -> None:
    closings = ["}" if one.startswith("{") else "]" for one in reversed(openings)]
    text = "".join(openings) + json.dumps(value) + "".join(closings)
    kept = json.loads(truncated_at_depth(f"[{text},{json.dumps('last')}]".encode()))
    assert kept[1] == "last"
    depth, level = 0, [kept]
    while level := [child for node in level if isinstance(node, dict | list) for child in _children(node)]:
        depth += 1
    assert depth <= 250


def _children(node: dict[str, Any] | list[Any]) -> list[Any]:
    return list(node.values()) if isinstance(node, dict) else node


@pytest.mark.heavy
def test_scanning_time_is_linear() -> None:
    for hostile in (b'{"a":', b"[", b'\\"', b'"\\', b"[]", b'{"":""},', b'{"id":1,', b' "id":1 '):
        line = b'{"jsonrpc":"2.0",' + hostile * (2_000_000 // len(hostile))
        began_s = time.process_time()
        answered_id(line)
        assert time.process_time() - began_s < 0.2 * slowness(), hostile
        truncated_at_depth(line)
        assert time.process_time() - began_s < 5, hostile
