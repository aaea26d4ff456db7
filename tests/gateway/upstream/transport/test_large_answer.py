"""A large answer that is passed on as it comes says what it would say as a whole, and no secret of a failure leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import wire
from gateway.secrets import Scrubber
from gateway.upstream.transport.bounds import LARGE_BYTES
from gateway.upstream.transport.large_answer import LargeAnswer

ID = 7
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.none() | st.booleans() | st.integers() | WORDS | st.lists(WORDS, max_size=2)
TYPES = st.sampled_from(["text", "image", "resource"])
ITEMS = st.lists(st.fixed_dictionaries({"type": TYPES, "a": VALUES}), max_size=3)
MEMBERS = st.dictionaries(WORDS.map(lambda word: f"x{word}"), VALUES, max_size=3)


class Results:
    """Takes what is passed on, if it does."""

    def __init__(self, *, willing: bool = True) -> None:
        self.willing = willing
        self.passed_on: list[bytes] | None = None

    def begin(self, close: Callable[[], bytes]) -> bool:
        self.close = close
        self.passed_on = [] if self.willing else None
        return self.willing

    def pass_on(self, items: bytes) -> None:
        assert self.passed_on is not None
        items.decode()  # no character is cut
        self.passed_on.append(items)


async def fed(text: bytes, cuts: list[int], results: Results, *secrets: str) -> LargeAnswer:
    scrubber = Scrubber()
    scrubber.hide(secrets)
    answer = LargeAnswer(ID, results, secrets=scrubber)
    offsets = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for begin, end in pairwise(offsets):
        await answer.feed(text[begin:end])
    return answer


async def read(text: bytes, cuts: list[int]) -> tuple[Any, bool]:
    """The message, its content put together again; and whether it was passed on in pieces."""
    results = Results()
    answer = await fed(text, cuts, results)
    if not answer.begun:
        assert results.passed_on is None
        return wire.loads(answer.text), False
    message = await answer.message()
    assert results.passed_on is not None
    content = message["result"]["content"]
    message["result"]["content"] = wire.loads(b"".join((*results.passed_on, content.rest, b"]")))
    assert content.types == {item["type"] for item in message["result"]["content"]}
    return message, True


def written(message: dict[str, Any], *, ascii_only: bool = False) -> bytes:
    return json.dumps(message, ensure_ascii=ascii_only).encode()


@given(
    ITEMS, ITEMS, MEMBERS, MEMBERS, st.booleans(), st.booleans(), st.sampled_from("xé𝄞\"\\\n\x85"),
    st.lists(st.integers(min_value=0, max_value=400_000), min_size=1, max_size=6),
)  # fmt: skip
async def test_it_says_what_it_would_say_as_a_whole(
    before: list[Any], after: list[Any], first: dict[str, Any], last: dict[str, Any], ascii_only: bool,
    result_first: bool, character: str, cuts: list[int],
) -> None:  # fmt: skip
    content = [*before, {"type": "text", "text": character * 70_000}, *after]
    result = {**first, "content": content, **last}
    message = {"result": result, "id": ID} if result_first else {"jsonrpc": "2.0", "id": ID, "result": result}
    text = written(message, ascii_only=ascii_only)
    found, in_pieces = await read(text, cuts)
    assert found == message
    # Some of it comes before the end, and enough to be begun with.
    assert in_pieces or not [cut for cut in cuts if LARGE_BYTES <= cut % (len(text) + 1) < len(text) - 200]


LONG = [{"type": "text", "text": "x" * 200_000}]
WHOLE: dict[str, dict[str, Any]] = {
    "a failure": {"id": ID, "result": {"isError": True, "content": LONG}},
    "a question": {"id": ID, "result": {"resultType": "input_required", "content": LONG}},
    "another request's": {"id": ID + 1, "result": {"content": LONG}},
    "an error": {"id": ID, "error": {"code": 1, "message": "x" * 200_000}},
    "a short content": {"id": ID, "result": {"content": [{"type": "text", "text": "a"}], "structuredContent": LONG}},
    "a content that is no list": {"id": ID, "result": {"content": {"a": LONG}}},
    "a result that is no object": {"id": ID, "result": LONG},
}


@pytest.mark.parametrize("why", WHOLE)
async def test_what_has_to_be_looked_at_is_kept(why: str) -> None:
    text = written(WHOLE[why])
    for cuts in ([], [LARGE_BYTES], list(range(0, len(text), 10_000))):
        assert await read(text, cuts) == (WHOLE[why], False)


async def test_who_cannot_take_pieces_gets_a_whole() -> None:
    text = written({"id": ID, "result": {"content": LONG}})
    answer = await fed(text, [100_000], Results(willing=False))
    assert not answer.begun
    assert answer.text == text


@pytest.mark.parametrize("secret", ["s3cr3t-of-this-test", "geheim-é-𝄞-" * 5])
@pytest.mark.parametrize("at", [0, 65_400, 65_530, 131_000, 199_000])
async def test_no_part_of_a_secret_leaves_before_it_is_known_whether_the_call_has_failed(secret: str, at: int) -> None:
    value = "é" * (at // 2) + secret + "x" * (200_000 - at)
    results = Results()
    text = written({"id": ID, "result": {"content": [{"type": "text", "text": value}], "isError": True}})
    answer = await fed(text, list(range(0, len(text), 7_001)), results, secret)
    if not answer.begun:
        assert at < LARGE_BYTES
        return
    content = (await answer.message())["result"]["content"]
    sent = b"".join(results.passed_on or ()).decode()
    assert not any(secret[:chars] in sent[-len(secret) :] for chars in range(4, len(secret) + 1))
    content.change_rest(lambda rest: rest.replace(secret, "[hidden]"))
    assert value.replace(secret, "[hidden]") in sent + content.rest.decode()


async def test_where_many_secrets_are_configured_answers_are_read_whole() -> None:
    many = [f"one-of-many-{number}" for number in range(40)]
    answer = await fed(written({"id": ID, "result": {"content": LONG}}), [100_000], Results(), *many)
    assert not answer.begun
