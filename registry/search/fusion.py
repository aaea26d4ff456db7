"""Combine a ranking by words with how similar a query is to each tool as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Fusion:
    """How much a kind of similarity counts beside words. `tests/bench/README.md` has what is found with others.

    Attributes:
        power: What similarities are raised to, as parts of the greatest: it sets the most similar tools apart from the
            many that are nearly so.
        weight: What the greatest counts for a tool that has any of the words, where the best match by words counts 1.
    """

    power: int
    weight: float


BY_WORD_VECTORS: Final = Fusion(power=2, weight=2.0)
BY_SENTENCES: Final = Fusion(power=3, weight=1.0)
# What is less similar is about something else, and only found by its words.
_MIN_SIMILARITY: Final = 0.25


def fuse_scores(scores: Mapping[int, float], similarities: Sequence[float], fusion: Fusion) -> dict[int, float]:
    """Return the scores of tools by words and similarity together, each relative to its best value.

    For a tool that is not in `scores` similarity counts at most 1, so what is first there is never behind it.

    Args:
        scores: By words, for each tool that was found by them.
        similarities: How similar each tool is to the query, at most 1.
        fusion: How much the similarities count.
    """
    best, closest = max(scores.values(), default=0.0), max(similarities, default=0.0)
    if closest < _MIN_SIMILARITY:
        return dict(scores)
    fused = {tool: score / (best or 1.0) for tool, score in scores.items()}
    for tool, similarity in enumerate(similarities):
        if tool in fused:
            if similarity > 0:
                fused[tool] += fusion.weight * (similarity / closest) ** fusion.power
        elif similarity >= _MIN_SIMILARITY:
            fused[tool] = (similarity / closest) ** fusion.power
    return fused
