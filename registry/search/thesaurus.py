"""Read tables of synonyms: the general one, and those of the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import chain
from typing import Final

from registry.search.stemming import stem
from registry.search.terms import split_words

# Weights of a synonym and of a related word, where the word of the query itself has 1. Below 1, so that a tool with the
# very word is ranked first.
SYNONYM_WEIGHT: Final = 0.85
RELATED_WEIGHT: Final = 0.8
# What configuration calls the same is the same.
_CONFIGURED_WEIGHT: Final = 1.0
# The longest phrase that the index looks for in a query.
MAX_PHRASE_WORDS: Final = 3

# For the stems of a word or phrase, the stems that may stand for it, each with its weight.
Expansions = Mapping[tuple[str, ...], Mapping[str, float]]


# Words or phrases, what they may be replaced by, and the weight of that.
_Group = tuple[Sequence[str], Sequence[str], float]


@cache  # read once, when something is searched for the first time
def general_expansions() -> Expansions:
    """Return the expansions of the general table."""
    return _expansions(_general_groups())


def configured_expansions(synonyms: Mapping[str, Sequence[str]], *, general: bool = False) -> Expansions:
    """Return the expansions of configured synonyms, which apply in both directions.

    A phrase in a query stands for all the others; as one of the others it is looked for in the names of tools.

    Args:
        synonyms: Words or phrases with their synonyms.
        general: Add the general table.
    """
    return _expansions(chain(_general_groups() if general else (), _configured_groups(synonyms)))


def _general_groups() -> Iterator[_Group]:
    # A part of the package as its modules are: read with them, and once.
    table = resources.files("registry.search").joinpath("synonyms.txt").read_text(encoding="utf-8")
    for line in table.splitlines():
        if not line or line.startswith("#"):
            continue
        left, arrow, right = line.partition(">")
        yield left.split(), (right or left).split(), RELATED_WEIGHT if arrow else SYNONYM_WEIGHT


def _configured_groups(synonyms: Mapping[str, Sequence[str]]) -> Iterator[_Group]:
    for word, others in synonyms.items():
        alike = ["_".join(part for parts in split_words(entry) for part in parts) for entry in (word, *others)]
        alike = [entry for entry in alike if entry]
        yield alike, alike, _CONFIGURED_WEIGHT


def _expansions(groups: Iterable[_Group]) -> Expansions:
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for left, right, weight in groups:
        for entry in left:
            key = tuple(stem(word) for word in entry.split("_"))
            if len(key) > MAX_PHRASE_WORDS:
                continue
            targets = found.setdefault(key, {})
            for other in right:
                target = stem(other.replace("_", ""))
                if key != (target,):
                    # Several groups may have the same pair: the greatest weight holds.
                    targets[target] = max(targets.get(target, 0.0), weight)
    return {key: targets for key, targets in found.items() if targets}
