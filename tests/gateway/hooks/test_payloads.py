"""Payload shapes of arguments, and values returned by hooks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.hooks_config import HookConfig
from gateway.hooks import Block, Call, Hook, Metadata
from gateway.hooks.hook import Before
from gateway.hooks.hook_formats import Format, decode, encode
from gateway.hooks.payloads import BadPayload, deep_copy, plain
from gateway.hooks.runner import HookRunner

NAMES = st.sampled_from(["tool_name", "metadata", "arguments", "client_session_id", "server", "name", "args"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(), inner, max_size=4),
    max_leaves=12,
)
ARGUMENTS = st.dictionaries(NAMES | st.text(), VALUES, max_size=6)
METADATA = Metadata(
    kind="tool", wrapper="up__t", server="up", tool="t", principal="ann", session=None, request_id=1, call_id="c",
    via="wrapper", tags=("a",), profile="default",
)  # fmt: skip


class DoesNothing(Hook):
    async def before_call(self, call: Call) -> Before:
        return None


class HandsBack(Hook):
    async def before_call(self, call: Call) -> Before:
        return call.with_args(call.args)


def runner(hook: Hook, **options: Any) -> HookRunner:
    return HookRunner(hook, HookConfig(name="h", use="test", **options))


async def through(hook: Hook, args: dict[str, Any], shape: Format) -> dict[str, Any]:
    outcome = await runner(hook, payload_format=shape).run(
        "before_call", Call(name="t", args=deep_copy(args), metadata=METADATA)
    )
    return outcome.args if isinstance(outcome, Call) else args


@given(args=ARGUMENTS)
async def test_arguments_pass_a_no_op_hook_unchanged(args: dict[str, Any]) -> None:
    kept = copy.deepcopy(args)
    assert await through(DoesNothing({}), args, "native") == kept
    assert args == kept


@given(args=ARGUMENTS, shape=st.sampled_from(["native", "nested", "metadata"]))
async def test_lossless_shapes_round_trip(args: dict[str, Any], shape: Format) -> None:
    assert decode(shape, encode(shape, args, METADATA)) == args
    assert await through(HandsBack({}), args, shape) == args


@given(args=ARGUMENTS)
async def test_flat_shape_round_trips_or_refuses_an_argument_named_metadata(args: dict[str, Any]) -> None:
    if "metadata" in args:
        with pytest.raises(BadPayload, match="argument named `metadata`"):
            encode("flatMetadata", args, METADATA)
    else:
        assert decode("flatMetadata", encode("flatMetadata", args, METADATA)) == args
        assert await through(HandsBack({}), args, "flatMetadata") == args


def test_each_shape_matches_its_documented_form() -> None:
    args = {"to": "ann"}
    assert encode("native", args, METADATA) is args
    session = {"tool_name": "t", "client_session_id": METADATA.session or METADATA.principal}
    assert encode("nested", args, METADATA) == {**session, "tool_args": args}
    shaped = encode("metadata", args, METADATA)
    assert shaped["arguments"] == args
    assert shaped["metadata"]["callId"] == "c"
    assert shaped["metadata"].items() >= session.items()
    assert encode("flatMetadata", args, METADATA) == {"to": "ann", "metadata": shaped["metadata"]}


@pytest.mark.parametrize("shape", ["nested", "metadata"])
@pytest.mark.parametrize("shaped", [None, 1, [], {}, {"arguments": []}, {"tool_args": []}, {"other": {}}])
def test_payload_of_the_wrong_shape_is_refused(shape: Format, shaped: Any) -> None:
    with pytest.raises(BadPayload, match="not an object"):
        decode(shape, shaped)


@given(value=VALUES)
def test_deep_copy_is_equal_and_shares_no_container(value: Any) -> None:
    made = deep_copy(value)
    assert made == value
    assert made is not value or not isinstance(value, dict | list)
    out, size = plain(value)
    assert out == value
    assert size > 0


def test_oversized_value_is_refused_before_it_is_built() -> None:
    for value in ("x" * 1001, ["x" * 500] * 3, [0] * 1001, {str(at): 1 for at in range(500)}):
        with pytest.raises(BadPayload, match="more than 1000 bytes"):
            plain(value, 1000)
    assert plain(["x" * 500], 1000)[0] == ["x" * 500]


async def test_block_is_validated_and_truncated() -> None:
    class Blocks(Hook):
        async def before_call(self, call: Call) -> Before:
            return Block(reason="r" * 10_000, code=True)

    outcome = await runner(Blocks({})).run("before_call", Call(name="t", args={}, metadata=METADATA))
    assert isinstance(outcome, Block)
    assert (len(outcome.reason), outcome.code) == (2_000, -32000)


async def test_hook_may_return_its_edited_copy() -> None:
    class Edits(Hook):
        async def before_call(self, call: Call) -> Before:
            call.args["x"] = 2
            return call

    args = {"x": 1}
    outcome = await runner(Edits({})).run("before_call", Call(name="t", args=args, metadata=METADATA))
    assert isinstance(outcome, Call)
    assert outcome.args == {"x": 2}
    assert args == {"x": 1}


def test_call_attributes_are_read_only() -> None:
    call = Call(name="t", args={}, metadata=METADATA)
    for attribute in ("name", "args", "metadata", "memo", "definition", "other"):
        with pytest.raises(AttributeError):
            setattr(call, attribute, 1)
    with pytest.raises(AttributeError):
        METADATA.principal = "bob"  # type: ignore[misc] # that is the point


async def test_memo_is_kept_between_before_and_after_in_any_shape() -> None:
    class Notes(Hook):
        async def before_call(self, call: Call) -> Before:
            call.memo["noted"] = True
            return None

    call = Call(name="t", args={}, metadata=METADATA)
    await runner(Notes({}), payload_format="nested").run("before_call", call)
    assert call.memo == {"noted": True}
