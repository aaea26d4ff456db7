"""What a text is: a usual request is read in one step, with the same outcome as in two."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway import wire
from gateway.jsonrpc import InvalidMessage, RpcRequest, classify, read, read_result

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
MEMBERS = st.lists(
    st.tuples(st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x"]), VALUES)
    | st.sampled_from(
        [("jsonrpc", "2.0"), ("id", 1), ("id", "a"), ("method", "tools/call"), ("params", {"name": "a"})]
    ),
    max_size=7,
)


def outcome(of: Any, text: bytes) -> Any:
    try:
        message = of(text)
    except InvalidMessage as error:
        return "invalid", error.code, error.message, error.request_id
    except wire.MalformedJson:
        return "malformed"
    if isinstance(message, RpcRequest):
        return "request", message.id, type(message.id), message.method, message.params
    return message


@settings(max_examples=500, deadline=None)
@given(MEMBERS)
@example([("jsonrpc", "1.0"), ("jsonrpc", "2.0"), ("id", 1), ("method", "m")])
@example([("jsonrpc", "2.0"), ("id", True), ("method", "m")])
@example([("jsonrpc", "2.0"), ("id", 1), ("method", "m"), ("result", {})])
@example([("jsonrpc", "2.0"), ("id", 1.0), ("method", "m"), ("params", [1])])
def test_a_message_is_what_its_members_say_however_often_they_stand_there(members: list[tuple[str, Any]]) -> None:
    text = "{" + ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in members) + "}"
    data = text.encode()
    assert outcome(read, data) == outcome(lambda text: classify(wire.loads(text)), data)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[]", b"null", b"1e400", b'{"id":1e400}', b"\xff", b'"\\ud800"', b"[" * 3000,
        b'{"jsonrpc":"2.0","id":"\\ud800","method":"m"}', b'{"jsonrpc":"2.0","id":1,"method":"m","params":NaN}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":' + b"[" * 3000 + b"]" * 3000 + b"}}",
        b'{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"m","params":{"a":1e3}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","x\xff":1}', b'{"jsonrpc":"2.0","id":1,"method":"m","x":"\xff"}',
    ],
)  # fmt: skip
def test_a_text_that_is_no_usual_request_ends_the_same_way(text: bytes) -> None:
    assert outcome(read, text) == outcome(lambda text: classify(wire.loads(text)), text)


ANSWERED = st.lists(
    st.tuples(
        st.sampled_from(["jsonrpc", "id", "result", "error", "method", "x"]),
        st.sampled_from([1, 1.0, 2, True, "1", None, "2.0", {}, {"content": []}, []]),
    ),
    max_size=5,
)


@settings(max_examples=500, deadline=None)
@given(ANSWERED)
@example([("jsonrpc", "2.0"), ("id", 1), ("result", {"content": []})])
@example([("id", 2), ("id", 1), ("result", []), ("result", {})])
@example([("id", 1), ("result", {}), ("error", None)])
def test_a_result_is_read_at_once_only_where_a_closer_look_finds_the_same(members: list[tuple[str, Any]]) -> None:
    text = "{" + ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in members) + "}"
    found = read_result(text.encode(), 1)
    if found is not None:
        message = wire.loads(text.encode())
        assert (message["id"], message["result"]) == (1, found)
        assert message.keys() <= {"jsonrpc", "id", "result"}


@pytest.mark.parametrize(
    "text", [b"", b"{", b"null", b"\xff", b'{"id":1,"result":{"a":1e400}}', b'{"id":1,"result":{},"\xff":1}',
             b'{"id":1,"result":{"a":"\\ud800"}}', b'{"id":1,"result":{"a":' + b"[" * 99_999 + b"]" * 99_999 + b"}}"],
)  # fmt: skip
def test_what_is_no_plain_result_takes_a_closer_look(text: bytes) -> None:
    assert read_result(text, 1) is None


def test_a_plain_result_is_read_at_once() -> None:
    assert read_result(b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}', 1) == {"content": []}
    assert read_result(b'{"jsonrpc":"2.0","id":2,"result":{"content":[]}}', 1) is None
