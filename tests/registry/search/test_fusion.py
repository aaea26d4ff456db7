"""What a tool is for, and its place when words and meaning are asked together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from registry.search.fusion import embedding_text, fuse_scores
from registry.search.index import SearchHit


@dataclass(frozen=True)
class Tool:
    server: str
    tool: str
    definition: dict[str, Any]


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
NEAR = st.dictionaries(NAMES, st.floats(-1, 1), max_size=5)
HITS = st.dictionaries(NAMES, st.floats(0.001, 1_000), max_size=5).map(
    lambda scores: [SearchHit(name, score) for name, score in sorted(scores.items(), key=lambda one: (-one[1], one[0]))]
)


def test_the_text_to_embed_is_the_name_in_words_and_the_first_sentence() -> None:
    said = {"description": "Sends a letter. Costs a stamp.\n\nSecond paragraph."}
    assert (
        embedding_text(Tool("post-office", "sendLetter_now", said)) == "post office: send letter now. Sends a letter."
    )
    assert embedding_text(Tool("a", "b", {})) == embedding_text(Tool("a", "b", {"description": 7})) == "a: b. "


@given(st.text(max_size=3_000), st.text(max_size=3_000), st.text(st.characters(), max_size=3_000))
def test_every_tool_has_a_sense_that_is_short_and_can_be_written(server: str, tool: str, description: str) -> None:
    text = embedding_text(Tool(server, tool, {"description": description}))
    assert len(text) < 1_000
    assert text.encode()
    assert text == embedding_text(Tool(server, tool, {"description": description}))


@given(HITS, NEAR, st.integers(0, 6), st.integers(0, 6))
def test_a_smaller_limit_gives_the_beginning_of_the_same_list(
    hits: list[SearchHit], near: dict[str, float], one: int, other: int
) -> None:
    fewer, more = sorted((one, other))
    found = fuse_scores(hits, near, more)
    assert fuse_scores(hits, near, fewer) == found[:fewer]
    assert len({hit.name for hit in found}) == len(found) <= more
    assert fuse_scores(list(reversed(hits)), near, more) == found or max(near.values(), default=0) < 0.25


@given(HITS, st.dictionaries(NAMES, st.floats(-1, 0.24), max_size=5))
def test_where_nothing_is_near_words_alone_decide(hits: list[SearchHit], near: dict[str, float]) -> None:
    assert fuse_scores(hits, near, 5) == hits


@given(HITS, NEAR)
def test_what_is_found_by_its_words_stays_found(hits: list[SearchHit], near: dict[str, float]) -> None:
    assert {hit.name for hit in hits} <= {hit.name for hit in fuse_scores(hits, near, 5)}


def test_among_tools_with_the_same_words_the_most_similar_is_first() -> None:
    hits = [SearchHit("a", 2.0), SearchHit("b", 2.0)]
    assert [hit.name for hit in fuse_scores(hits, {"a": 0.3, "b": 0.6, "c": 0.5, "d": 0.2}, 5)] == ["b", "a", "c"]


@example([SearchHit("b", 4.0), SearchHit("c", 3.0)], {"a": 1.0, "c": 0.5})
@example([SearchHit("b", 4.0)], {"a": 1.0, "b": -0.5})
@given(HITS, st.dictionaries(NAMES, st.floats(-1, 1), max_size=5))
def test_what_is_first_by_its_words_is_never_behind_a_tool_with_none_of_them(
    hits: list[SearchHit], near: dict[str, float]
) -> None:
    if hits:
        found = [hit.name for hit in fuse_scores(hits, near, 5)]
        words = {hit.name for hit in hits}
        best = {hit.name for hit in hits if hit.score == hits[0].score}
        ahead = found[: min(found.index(name) for name in best)]
        assert words.issuperset(ahead)
