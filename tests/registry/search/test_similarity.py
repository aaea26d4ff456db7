"""Similarity of words and tools by the vector table."""

from __future__ import annotations

from binascii import a2b_base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.search.index import (
    DIMENSIONS,
    OFFSET,
    WordSimilarity,
    pack_lanes,
    read_word_vectors,
    unpack_lanes,
    word_vector,
)
from registry.search.terms import stem, terms

# The lines of the table, one for each stem, in order.
LINES = read_word_vectors()
KNOWN = [line.partition(" ")[0] for line in LINES]
some_known = st.lists(st.sampled_from(KNOWN), min_size=1, max_size=8)


def fields(name: str, description: str = "") -> list[list[str]]:
    return [terms(name, 20), [], [], terms(description, 50), [], [], []]


def cosine(one: list[int], other: list[int]) -> float:
    def length(values: list[int]) -> float:
        return sum(value * value for value in values) ** 0.5

    return sum(x * y for x, y in zip(one, other, strict=True)) / (length(one) * length(other))


def plain(term: str) -> list[int]:
    line = next(line for line in LINES if line.startswith(f"{term} "))
    return [value - OFFSET for value in a2b_base64(line.partition(" ")[2])]


def test_vector_table_is_sorted_with_one_vector_per_stem() -> None:
    assert sorted(LINES) == LINES
    assert len(set(KNOWN)) == len(KNOWN) > 10_000
    assert {len(a2b_base64(line.partition(" ")[2])) for line in LINES} == {DIMENSIONS}


@given(st.lists(st.integers(0, 255), min_size=1, max_size=300))
def test_lanes_round_trip(values: list[int]) -> None:
    assert unpack_lanes(pack_lanes(bytes(values)), len(values)) == tuple(values)


@given(some_known, some_known)
def test_similarity_is_the_cosine_of_summed_vectors(one: list[str], other: list[str]) -> None:
    tool = WordSimilarity([[list(dict.fromkeys(one)), [], [], [], [], [], []]])
    [found] = tool.similarities_to(dict.fromkeys(other))
    sums = [
        [sum(column) for column in zip(*(plain(term) for term in dict.fromkeys(words)), strict=True)]
        for words in (one, other)
    ]
    if all(any(values) for values in sums):
        # Vectors are rounded to whole numbers of a length of 256.
        assert found == pytest.approx(cosine(*sums), abs=0.1)


@given(st.lists(some_known, max_size=6), st.lists(st.text(max_size=10), max_size=6))
def test_similarity_of_a_tool_does_not_depend_on_other_tools(tools: list[list[str]], query: list[str]) -> None:
    read = [[words, [], [], [], [], [], []] for words in tools]
    query_words = [*query, *KNOWN[:2]]
    together = WordSimilarity(read).similarities_to(query_words)
    assert together == [WordSimilarity([one]).similarities_to(query_words)[0] for one in read]
    assert all(-1.1 <= value <= 1.1 for value in together)


def test_unknown_words_have_similarity_zero() -> None:
    index = WordSimilarity([fields("send_email"), fields("zqzqzq"), fields("")])
    assert index.similarities_to(["zqzqzq", "", "é", "#"]) == [0, 0, 0]
    assert index.similarities_to([stem("email")])[1:] == [0, 0]
    assert WordSimilarity([]).similarities_to([stem("email")]) == []
    assert word_vector("zqzqzq") is word_vector("") is word_vector("#") is None


def test_everyday_words_are_similar_to_matching_tools() -> None:
    index = WordSimilarity(
        [
            fields("send_message", "Send a message to a channel."),
            fields("get_forecast", "Weather forecast for a place."),
            fields("list_branches", "List the branches of a repository."),
        ]
    )
    for query, meant in (("will it rain tomorrow", 1), ("ping my coworkers", 0), ("feature branch of the code", 2)):
        found = index.similarities_to([stem(word) for word in query.split()])
        assert max(range(3), key=found.__getitem__) == meant, query
