"""Read tables of words that stand for each other: the general one, and what configuration says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final

from registry.search.stemming import stem
from registry.search.synonyms import GENERAL
from registry.search.terms import words

SAME: Final = 0.85
"""How much a word counts that stands for the one in a query."""
NEAR: Final = 0.8
"""How much a word counts that one might look for on speaking of another."""
_PHRASE_WORDS: Final = 3

Expansions = Mapping[tuple[str, ...], Mapping[str, float]]
"""For the stems of a word or phrase, the stems that stand for it, and how much each counts."""


def _key(entry: str) -> tuple[str, ...]:
    return tuple(stem(word) for word in entry.split("_"))


def expansions(groups: Iterable[tuple[Sequence[str], Sequence[str], float]]) -> dict[tuple[str, ...], dict[str, float]]:
    """Return what each word or phrase on a left side may be replaced by, at the most that any group gives it."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for left, right, weight in groups:
        for entry in left:
            key = _key(entry)
            if len(key) > _PHRASE_WORDS:
                continue
            targets = found.setdefault(key, {})
            for other in right:
                target = stem(other.replace("_", ""))
                if key != (target,):
                    targets[target] = max(targets.get(target, 0.0), weight)
    return {key: targets for key, targets in found.items() if targets}


def merged(first: Expansions, second: Expansions) -> Expansions:
    """Return both tables as one; where they speak of the same word, the greater weight holds."""
    whole = {key: dict(targets) for key, targets in first.items()}
    for key, targets in second.items():
        own = whole.setdefault(key, {})
        for target, weight in targets.items():
            own[target] = max(own.get(target, 0.0), weight)
    return whole


@cache
def general() -> Expansions:
    """Return the expansions of the general table."""
    groups: list[tuple[Sequence[str], Sequence[str], float]] = []
    for line in GENERAL.splitlines():
        if not line or line.startswith("#"):
            continue
        left, arrow, right = line.partition(">")
        if arrow:
            groups.append((left.split(), right.split(), NEAR))
        else:
            groups.append((left.split(), left.split(), SAME))
    return expansions(groups)


def configured(synonyms: Mapping[str, Sequence[str]]) -> Expansions:
    """Return what configuration says: words and phrases that stand for each other.

    A phrase in a query stands for all the others; as one of the others it is found in the names of tools.
    """
    groups: list[tuple[Sequence[str], Sequence[str], float]] = []
    for word, others in synonyms.items():
        alike = ["_".join(part for parts in words(entry) for part in parts) for entry in (word, *others)]
        alike = [entry for entry in alike if entry]
        groups.append((alike, alike, 1.0))
    return expansions(groups)
