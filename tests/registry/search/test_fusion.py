"""What a tool is for, and its place when words and meaning are asked together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from registry.search.fusion import blended, sense
from registry.search.index import Hit


@dataclass(frozen=True)
class Tool:
    server: str
    tool: str
    definition: dict[str, Any]


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
NEAR = st.dictionaries(NAMES, st.floats(-1, 1), max_size=5)
HITS = st.dictionaries(NAMES, st.floats(0.001, 1_000), max_size=5).map(
    lambda scores: [Hit(name, score) for name, score in sorted(scores.items(), key=lambda one: (-one[1], one[0]))]
)


def test_the_sense_of_a_tool_is_its_name_in_words_and_the_first_sentence_about_it() -> None:
    said = {"description": "Sends a letter. Costs a stamp.\n\nSecond paragraph."}
    assert sense(Tool("post-office", "sendLetter_now", said)) == "post office: send letter now. Sends a letter."
    assert sense(Tool("a", "b", {})) == sense(Tool("a", "b", {"description": 7})) == "a: b. "


@given(st.text(max_size=3_000), st.text(max_size=3_000), st.text(st.characters(), max_size=3_000))
def test_every_tool_has_a_sense_that_is_short_and_can_be_written(server: str, tool: str, description: str) -> None:
    text = sense(Tool(server, tool, {"description": description}))
    assert len(text) < 1_000
    assert text.encode()
    assert text == sense(Tool(server, tool, {"description": description}))


@given(HITS, NEAR, st.integers(0, 6), st.integers(0, 6))
def test_a_smaller_limit_gives_the_beginning_of_the_same_list(
    hits: list[Hit], near: dict[str, float], one: int, other: int
) -> None:
    fewer, more = sorted((one, other))
    found = blended(hits, near, more)
    assert blended(hits, near, fewer) == found[:fewer]
    assert len({hit.name for hit in found}) == len(found) <= more
    assert blended(list(reversed(hits)), near, more) == found or max(near.values(), default=0) < 0.25


@given(HITS, st.dictionaries(NAMES, st.floats(-1, 0.24), max_size=5))
def test_where_nothing_is_near_words_alone_decide(hits: list[Hit], near: dict[str, float]) -> None:
    assert blended(hits, near, 5) == hits


@given(HITS, NEAR)
def test_what_is_found_by_its_words_stays_found(hits: list[Hit], near: dict[str, float]) -> None:
    assert {hit.name for hit in hits} <= {hit.name for hit in blended(hits, near, 5)}


def test_the_nearest_of_two_that_have_the_same_words_is_first_and_what_is_far_is_left_out() -> None:
    hits = [Hit("a", 2.0), Hit("b", 2.0)]
    assert [hit.name for hit in blended(hits, {"a": 0.3, "b": 0.6, "c": 0.5, "d": 0.2}, 5)] == ["b", "a", "c"]
