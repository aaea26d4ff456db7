"""Combine a ranking by words with how similar a query is to each tool as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

# The powers that similarities are raised to, by word vectors and by a model of sentences: they set the most similar
# tools apart from the many that are nearly so. `tests/bench/README.md` has what is found with others.
WORDS_POWER: Final = 2
SENTENCES_POWER: Final = 3
# What is less similar is about something else, and only found by its words.
_MIN_SIMILARITY: Final = 0.25


def fuse_scores(scores: Mapping[int, float], similarities: Sequence[float], power: int) -> dict[int, float]:
    """Return the scores of tools by words and similarity together; each counts at most 1, relative to its best value.

    So what is first in `scores` is never behind a tool that is not in them.

    Args:
        scores: By words, for each tool that was found by them.
        similarities: How similar each tool is to the query, at most 1.
        power: What similarities are raised to, as parts of the greatest.
    """
    best, closest = max(scores.values(), default=0.0), max(similarities, default=0.0)
    if closest < _MIN_SIMILARITY:
        return dict(scores)
    fused = {tool: score / (best or 1.0) for tool, score in scores.items()}
    for tool, similarity in enumerate(similarities):
        if similarity >= _MIN_SIMILARITY or (tool in fused and similarity > 0):
            fused[tool] = fused.get(tool, 0.0) + (similarity / closest) ** power
    return fused
