"""The one-step parser of usual requests agrees with the general one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.protocol import json_bytes
from gateway.protocol.jsonrpc import MAX_PARTS, InvalidMessage, RpcRequest, classify, read, read_result

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
    except json_bytes.MalformedJson:
        return "malformed"
    if isinstance(message, RpcRequest):
        return "request", message.id, type(message.id), message.method, message.params
    return message


@pytest.mark.heavy
@settings(max_examples=500, deadline=None)
@given(MEMBERS)
@example([("jsonrpc", "1.0"), ("jsonrpc", "2.0"), ("id", 1), ("method", "m")])
@example([("jsonrpc", "2.0"), ("id", True), ("method", "m")])
@example([("jsonrpc", "2.0"), ("id", 1), ("method", "m"), ("result", {})])
@example([("jsonrpc", "2.0"), ("id", 1.0), ("method", "m"), ("params", [1])])
def test_fast_parser_agrees_on_messages_with_duplicate_members(members: list[tuple[str, Any]]) -> None:
    text = "{" + ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in members) + "}"
    data = text.encode()
    assert outcome(read, data) == outcome(lambda text: classify(json_bytes.loads(text)), data)


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
def test_fast_parser_agrees_on_unusual_text(text: bytes) -> None:
    assert outcome(read, text) == outcome(lambda text: classify(json_bytes.loads(text)), text)


META = "io.modelcontextprotocol/"
IDENTIFIERS = [
    *(((name,), False) for name in ("name", "uri", "taskId", "cursor", "level", "protocolVersion", "requestId")),
    (("progressToken",), False), (("ref", "name"), False), (("ref", "uri"), False), (("argument", "name"), False),
    (("notifications", "resourceSubscriptions"), True), (("notifications", "taskIds"), True),
    (("_meta", "progressToken"), False), (("_meta", META + "protocolVersion"), False),
    (("_meta", META + "logLevel"), False), (("_meta", META + "related-task", "taskId"), False),
    (("_meta", META + "clientInfo", "name"), False), (("clientInfo", "version"), False),
]  # fmt: skip


@pytest.mark.parametrize(("path", "is_list"), IDENTIFIERS, ids=[".".join(path) for path, _ in IDENTIFIERS])
def test_identifiers_are_limited_to_8_kib_and_not_repeated_in_errors(path: tuple[str, ...], is_list: bool) -> None:
    def request(size_chars: int, *, answered: bool = True) -> bytes:
        value: Any = ["a", "x" * size_chars] if is_list else "x" * size_chars
        for member in reversed(path):
            value = {member: value}
        message = {"jsonrpc": "2.0", "method": "m", "params": value} | ({"id": 7} if answered else {})
        return json.dumps(message).encode()

    assert isinstance(read(request(8_192)), RpcRequest)
    for answered, request_id in ((True, 7), (False, None)):
        with pytest.raises(InvalidMessage) as refused:
            read(request(8_193, answered=answered))
        assert refused.value.message == f"params.{'.'.join(path)} has 8193 characters; expected at most 8192"
        assert (refused.value.code, refused.value.request_id) == (-32602, request_id)


@pytest.mark.parametrize(("member", "request_id"), [("id", None), ("method", 7)])
def test_id_and_method_are_limited_to_8_kib(member: str, request_id: int | None) -> None:
    message = {"jsonrpc": "2.0", "id": 7, "method": "m"}
    assert isinstance(read(json.dumps(message | {member: "x" * 8_192}).encode()), RpcRequest)
    with pytest.raises(InvalidMessage, match=f"the {member} has 8193 characters") as refused:
        read(json.dumps(message | {member: "x" * 8_193}).encode())
    assert (refused.value.code, refused.value.request_id) == (-32600, request_id)


@pytest.mark.parametrize(
    "params",
    [
        {"name": "n", "arguments": {"name": "x" * 9_000, "uri": "x" * 9_000}},
        {"name": "n", "arguments": "x" * 9_000},
        {"ref": {"type": "ref/prompt", "name": "n"}, "argument": {"name": "a", "value": "x" * 9_000}},
        {"name": 5, "ref": "x" * 9_000, "_meta": ["x" * 9_000], "notifications": {"taskIds": [None, 5]}},
        {"requestState": "x" * 9_000},
    ],
)
def test_values_may_have_any_length(params: dict[str, Any]) -> None:
    message = read(json.dumps({"jsonrpc": "2.0", "id": 7, "method": "m", "params": params}).encode())
    assert isinstance(message, RpcRequest)
    assert message.params == params


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
def test_fast_result_parser_agrees_with_the_full_one(members: list[tuple[str, Any]]) -> None:
    text = "{" + ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in members) + "}"
    found = read_result(text.encode(), 1)
    if found is not None:
        message = json_bytes.loads(text.encode())
        assert (message["id"], message["result"]) == (1, found)
        assert message.keys() <= {"jsonrpc", "id", "result"}


@pytest.mark.parametrize(
    "text", [b"", b"{", b"null", b"\xff", b'{"id":1,"result":{"a":1e400}}', b'{"id":1,"result":{},"\xff":1}',
             b'{"id":1,"result":{"a":"\\ud800"}}', b'{"id":1,"result":{"a":' + b"[" * 99_999 + b"]" * 99_999 + b"}}"],
)  # fmt: skip
def test_unusual_result_needs_the_full_parser(text: bytes) -> None:
    assert read_result(text, 1) is None


def test_plain_result_is_parsed_fast() -> None:
    assert read_result(b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}', 1) == {"content": []}
    assert read_result(b'{"jsonrpc":"2.0","id":2,"result":{"content":[]}}', 1) is None


SMALL = MAX_PARTS // 2


@pytest.mark.parametrize(
    ("value", "is_refused"),
    [
        (b"[" + b",".join([b"[]"] * (MAX_PARTS + 1)) + b"]", True),
        (b"[" + b",".join([b'{"a":{}}'] * (SMALL + 1)) + b"]", True),
        (b"{" + b",".join(b'"%07d":1' % number for number in range(MAX_PARTS + 1)) + b"}", True),
        (b"[" + b",".join([b'{"]":"\\"{"}'] * (SMALL + 1)) + b"]", True),
        # A few less than the bound, of which the message has some itself.
        (b"[" + b",".join([b"[]"] * (MAX_PARTS - 20)) + b"]", False),
        (b"{" + b",".join(b'"%07d":1' % number for number in range(MAX_PARTS - 20)) + b"}", False),
        # Numbers, texts, and brackets within texts.
        (b"[" + b",".join([b"1"] * 1_000_000) + b"]", False),
        (b"[" + b",".join([b'""'] * 900_000) + b"]", False),
        (b"[" + b",".join([b'":[{"'] * 400_000) + b"]", False),
        (b'"' + b"[{:" * 1_000_000 + b'"', False),
        (b'"' + rb"\"[" * 900_000 + b'"', False),
        (b'"' + rb"\\[" * 900_000 + b'"', False),
        (json.dumps("[{" * 700_000 + "\\").encode(), False),
        (json.dumps(["\\", '"[{', "[[" * 600_000]).encode(), False),
    ],
)
def test_number_of_parts_of_a_message_is_bounded(value: bytes, is_refused: bool) -> None:
    text = b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":' + value + b"}}"
    if is_refused:
        with pytest.raises(InvalidMessage, match="more than 150,000 objects, lists and members"):
            read(text)
    else:
        request = read(text)
        assert isinstance(request, RpcRequest)
        assert request.params == {"a": json.loads(value)}
