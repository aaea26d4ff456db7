"""Convert text to search terms: split identifiers, strip accents, stem words, add synonyms.

A *term* is the stem of a word: `sending` and `sends` both have the stem `send`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib import resources
from itertools import chain
from typing import Final

from registry.schema.display_text import strip_accents

_PLAIN: Final = re.compile("[a-z]+")
# Lengths of words to stem. Words of one or two letters have no suffix. Longer runs of letters are not English words but
# encoded data, which must not fill the cache.
_MIN_LENGTH: Final = 3
_MAX_LENGTH: Final = 40
# Use Porter's original algorithm (Program 14(3), 1980), because the weights of the search were tuned with it. The
# package snowballstemmer also has its successor, called "english".
_ALGORITHM: Final = "porter"


def stem(word: str) -> str:
    """Return the stem of a lower-case word; very short, very long and non-English words are returned unchanged."""
    return _stem(word) if _MIN_LENGTH <= len(word) <= _MAX_LENGTH and _PLAIN.fullmatch(word) else word


# Stemming a new word takes about 25 us. The 721 tools of `tests/corpus` have 5,000 distinct words, so the cache has
# room for larger catalogs and for arbitrary words in queries.
@lru_cache(maxsize=32_768)
def _stem(word: str) -> str:
    import snowballstemmer  # imported lazily: it loads the stemmers of all languages, which takes 15 ms

    # Create a new stemmer for each word, because a stemmer has state and several threads run searches. This is cheap.
    stemmed: str = snowballstemmer.stemmer(_ALGORITHM).stemWord(word)
    return stemmed


_RUN: Final = re.compile(r"[^\W_]+")
_PARTS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")
# Matches scripts without spaces between words, in which each pair of adjacent characters becomes a term.
_UNSPACED: Final = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]{2,}")
# Longer runs of characters are encoded data. They are cut, because their terms would only take memory.
_MAX_WORD: Final = 64

_STOP_WORDS_TEXT: Final = """
a able about again all also am an and any anyone anything are as at be because been before being both but by can
could did do does doing don done each either else every everything few for from further go goes going had has
have having he help her here hers him his how i if im in into is it its itself ive just kindly let lets like
ll may maybe me might mine more most much must my need needs neither no nor not now of off on once one ones only
or other others our ours out over own please pls re s same shall she should so some somebody someone something
somewhere such t than thank thanks that the their theirs them then there these they thing things this those
through to together too tool tools try under until up upon us use used user uses using ve very via want wants was
way we well were what whatever when whenever where whether which while who whom whose why will wish with within
without won would yes you your yours
"""
# Words that say nothing about what the user is searching for, including words of polite requests.
STOP_WORDS: Final = frozenset(_STOP_WORDS_TEXT.split())


def split_words(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the lower-case words of each run of letters and digits.

    `sendEMail_now` consists of two runs, and gives `("send", "e", "mail")` and `("now",)`.
    """
    for run in _word_runs(text):
        yield from _parts(run[:_MAX_WORD])


def terms(text: str, limit: int, *, prose: bool = False) -> list[str]:
    """Return the stems of about `limit` words of a text. A compound such as `sendMail` also gives the stem of
    `sendmail`.

    Args:
        prose: Whether the text is prose, in which a capitalized word is a name and is not split: `GitHub` is not about
            hubs.
    """
    stems: list[str] = []
    for run in _word_runs(text):
        stems += _stems(run[:_MAX_WORD], prose)
        if len(stems) >= limit:
            break
    return stems


def _word_runs(text: str) -> list[str]:
    # Use the composed form (NFC), so that a combining accent does not end a word.
    return _RUN.findall(text if text.isascii() else unicodedata.normalize("NFC", text))


# A cached run has at most 64 characters. The cache has the same size as the cache of stems.
@lru_cache(maxsize=32_768)
def _stems(run: str, prose: bool) -> tuple[str, ...]:
    if prose and run[0].isupper() and run.isascii():
        run = run.lower()
    stems: list[str] = []
    for parts in _parts(run):
        if len(parts) > 1:
            stems.append(stem("".join(parts)))
        stems.extend(stem(part) for part in parts if part not in STOP_WORDS)
    return tuple(stems)


def _parts(run: str) -> Iterator[tuple[str, ...]]:
    run = strip_accents(run)
    if run.isascii():
        yield (run,) if run.islower() else tuple(part.lower() for part in _PARTS.findall(run))
    elif _UNSPACED.search(run):
        yield from ((run[start : start + 2],) for start in range(len(run) - 1))
    else:
        yield (run.casefold(),)


# Weights of a synonym and of a related word. A word of the query itself has the weight 1, so that tools that contain
# the word rank first.
SYNONYM_WEIGHT: Final = 0.85
RELATED_WEIGHT: Final = 0.8
# Configured synonyms count as much as the word itself.
_CONFIGURED_WEIGHT: Final = 1.0
# The longest phrase of a query that the index looks up, in words.
MAX_PHRASE_WORDS: Final = 3

# Maps the stems of a word or phrase to the stems that may replace it, each with a weight.
Expansions = Mapping[tuple[str, ...], Mapping[str, float]]


# Words or phrases, the words or phrases that may replace each of them, and the weight of a replacement.
_Group = tuple[Sequence[str], Sequence[str], float]


@cache  # read at the first search
def general_expansions() -> Expansions:
    """Return the expansions of the built-in synonym table."""
    return _expansions(_general_groups())


def configured_expansions(synonyms: Mapping[str, Sequence[str]], *, general: bool = False) -> Expansions:
    """Return the expansions of configured synonyms, which apply in both directions.

    A phrase in a query is expanded to all its synonyms. As a synonym of another word, a phrase is matched as a single
    compound term.

    Args:
        synonyms: Words or phrases with their synonyms.
        general: Add the built-in table.
    """
    return _expansions(chain(_general_groups() if general else (), _configured_groups(synonyms)))


def _general_groups() -> Iterator[_Group]:
    table = resources.files("registry.search").joinpath("synonyms.txt").read_text(encoding="utf-8")
    for line in table.splitlines():
        if not line or line.startswith("#"):
            continue
        left, arrow, right = line.partition(">")
        yield left.split(), (right or left).split(), RELATED_WEIGHT if arrow else SYNONYM_WEIGHT


def _configured_groups(synonyms: Mapping[str, Sequence[str]]) -> Iterator[_Group]:
    for word, related_words in synonyms.items():
        alike = ["_".join(part for parts in split_words(entry) for part in parts) for entry in (word, *related_words)]
        alike = [entry for entry in alike if entry]
        yield alike, alike, _CONFIGURED_WEIGHT


def _expansions(groups: Iterable[_Group]) -> Expansions:
    expansions: dict[tuple[str, ...], dict[str, float]] = {}
    for left, right, weight in groups:
        for entry in left:
            key = tuple(stem(word) for word in entry.split("_"))
            if len(key) > MAX_PHRASE_WORDS:
                continue
            targets = expansions.setdefault(key, {})
            for related in right:
                target = stem(related.replace("_", ""))
                if key != (target,):
                    # If several groups contain the same pair, the highest weight counts.
                    targets[target] = max(targets.get(target, 0.0), weight)
    return {key: targets for key, targets in expansions.items() if targets}
