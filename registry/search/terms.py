"""Turn text into search terms: split identifiers, strip accents, stem words, and leave out stop words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from registry.schema.display_text import strip_accents
from registry.search.stemming import stem

_RUN: Final = re.compile(r"[^\W_]+")
_PARTS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")
# Scripts without spaces between words, where each pair of characters is a term.
_UNSPACED: Final = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]{2,}")
# Longer runs of letters are encoded data. What is cut off would only cost memory.
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
# Words that say nothing about what is looked for, among them those of polite requests.
STOP_WORDS: Final = frozenset(_STOP_WORDS_TEXT.split())


def split_words(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each run of letters and digits, in lower case: `sendEMail_now` gives `send e mail`, `now`."""
    for run in _runs(text):
        yield from _parts(run[:_MAX_WORD])


def terms(text: str, limit: int, *, prose: bool = False) -> list[str]:
    """Return the stems of about `limit` words of a text, and those of compound words as a whole.

    In prose, a word that begins with a capital letter is a name and stays whole: `GitHub` has nothing to do with hubs.
    """
    found: list[str] = []
    for run in _runs(text):
        found += _stems(run[:_MAX_WORD], prose)
        if len(found) >= limit:
            break
    return found


def _runs(text: str) -> list[str]:
    # In composed form, so that an accent does not end a word.
    return _RUN.findall(text if text.isascii() else unicodedata.normalize("NFC", text))


# Keyed by runs of at most 64 characters; sized as the cache of stems.
@lru_cache(maxsize=32_768)
def _stems(run: str, prose: bool) -> tuple[str, ...]:
    if prose and run[0].isupper() and run.isascii():
        run = run.lower()
    found: list[str] = []
    for parts in _parts(run):
        if len(parts) > 1:
            found.append(stem("".join(parts)))
        found.extend(stem(part) for part in parts if part not in STOP_WORDS)
    return tuple(found)


def _parts(run: str) -> Iterator[tuple[str, ...]]:
    run = strip_accents(run)
    if run.isascii():
        yield (run,) if run.islower() else tuple(part.lower() for part in _PARTS.findall(run))
    elif _UNSPACED.search(run):
        yield from ((run[start : start + 2],) for start in range(len(run) - 1))
    else:
        yield (run.casefold(),)
