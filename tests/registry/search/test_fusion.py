"""Ranking by words and similarity together."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from registry.search.index import Fusion, fuse_scores

NEAR = st.lists(st.floats(-1, 1), min_size=5, max_size=5)
SCORES = st.dictionaries(st.integers(0, 4), st.floats(0.001, 1_000), max_size=5)
FUSIONS = st.builds(Fusion, power=st.integers(1, 4), weight=st.floats(0.1, 4))
EVEN = Fusion(power=1, weight=1.0)


@given(SCORES, st.lists(st.floats(-1, 0.24), max_size=5), FUSIONS)
def test_words_alone_decide_if_nothing_is_similar(scores: dict[int, float], near: list[float], fusion: Fusion) -> None:
    assert fuse_scores(scores, near, fusion) == scores


@given(SCORES, NEAR, FUSIONS)
def test_fusion_keeps_every_word_match(scores: dict[int, float], near: list[float], fusion: Fusion) -> None:
    assert scores.keys() <= fuse_scores(scores, near, fusion).keys()


@given(SCORES, NEAR, FUSIONS)
def test_similar_tools_without_matching_words_are_added(
    scores: dict[int, float], near: list[float], fusion: Fusion
) -> None:
    found = fuse_scores(scores, near, fusion).keys() - scores.keys()
    assert found == {tool for tool, value in enumerate(near) if value >= 0.25} - scores.keys()


def test_word_score_ties_are_ordered_by_similarity() -> None:
    found = fuse_scores({0: 2.0, 1: 2.0}, [0.3, 0.6, 0.5, 0.2], EVEN)
    assert sorted(found, key=lambda tool: -found[tool]) == [1, 0, 2]


@example({1: 4.0, 2: 3.0}, [1.0, 0.0, 0.5, 0.0, 0.0], Fusion(power=3, weight=2.0))
@example({1: 4.0}, [1.0, -0.5, 0.0, 0.0, 0.0], EVEN)
@given(SCORES, NEAR, FUSIONS)
def test_best_word_match_stays_ahead_of_similarity_only_tools(
    scores: dict[int, float], near: list[float], fusion: Fusion
) -> None:
    found = fuse_scores(scores, near, fusion)
    if scores:
        first = max(found[tool] for tool, score in scores.items() if score == max(scores.values()))
        assert all(value <= first for tool, value in found.items() if tool not in scores)


def test_power_increases_the_distance_of_the_most_similar_tool() -> None:
    plain, cubed = (fuse_scores({0: 1.0}, [0.4, 0.5, 0.4], Fusion(power=power, weight=1.0)) for power in (1, 3))
    assert cubed[1] == plain[1] == 1.0
    assert cubed[2] == pytest.approx(0.8**3)
    assert max(plain, key=plain.__getitem__) == max(cubed, key=cubed.__getitem__) == 0


def test_weight_lets_similarity_reorder_word_matches() -> None:
    even, more = (fuse_scores({0: 2.0, 1: 1.0}, [0.3, 0.5, 0.5], Fusion(power=1, weight=weight)) for weight in (1, 2))
    assert even == pytest.approx({0: 1.6, 1: 1.5, 2: 1.0})
    assert more == pytest.approx({0: 2.2, 1: 2.5, 2: 1.0})
