"""The place of a tool when words and similarity are asked together."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from registry.search.fusion import fuse_scores

NEAR = st.lists(st.floats(-1, 1), min_size=5, max_size=5)
SCORES = st.dictionaries(st.integers(0, 4), st.floats(0.001, 1_000), max_size=5)
POWERS = st.integers(1, 4)


@given(SCORES, st.lists(st.floats(-1, 0.24), max_size=5), POWERS)
def test_where_nothing_is_near_words_alone_decide(scores: dict[int, float], near: list[float], power: int) -> None:
    assert fuse_scores(scores, near, power) == scores


@given(SCORES, NEAR, POWERS)
def test_what_is_found_by_its_words_stays_found(scores: dict[int, float], near: list[float], power: int) -> None:
    assert scores.keys() <= fuse_scores(scores, near, power).keys()


@given(SCORES, NEAR, POWERS)
def test_what_has_none_of_the_words_is_found_where_it_is_near(
    scores: dict[int, float], near: list[float], power: int
) -> None:
    found = fuse_scores(scores, near, power).keys() - scores.keys()
    assert found == {tool for tool, value in enumerate(near) if value >= 0.25} - scores.keys()


def test_among_tools_with_the_same_words_the_most_similar_is_first() -> None:
    found = fuse_scores({0: 2.0, 1: 2.0}, [0.3, 0.6, 0.5, 0.2], 1)
    assert sorted(found, key=lambda tool: -found[tool]) == [1, 0, 2]


@example({1: 4.0, 2: 3.0}, [1.0, 0.0, 0.5, 0.0, 0.0], 3)
@example({1: 4.0}, [1.0, -0.5, 0.0, 0.0, 0.0], 1)
@given(SCORES, NEAR, POWERS)
def test_what_is_first_by_its_words_is_never_behind_a_tool_with_none_of_them(
    scores: dict[int, float], near: list[float], power: int
) -> None:
    found = fuse_scores(scores, near, power)
    if scores:
        first = max(found[tool] for tool, score in scores.items() if score == max(scores.values()))
        assert all(value <= first for tool, value in found.items() if tool not in scores)


def test_a_power_sets_the_most_similar_apart() -> None:
    plain, cubed = (fuse_scores({0: 1.0}, [0.4, 0.5, 0.4], power) for power in (1, 3))
    assert cubed[1] == plain[1] == 1.0
    assert cubed[2] == pytest.approx(0.8**3)
    assert max(plain, key=plain.__getitem__) == max(cubed, key=cubed.__getitem__) == 0
