"""Text as terms: identifiers taken apart, words folded and stemmed, words that say nothing left out."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from registry.search.stemming import stem

_RUN: Final = re.compile(r"[^\W_]+")
_PARTS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")
# Scripts that put no space between words: two characters at a time stand for a word.
_UNSPACED: Final = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]{2,}")
_WORD_LIMIT: Final = 64

_UNTOLD: Final = """
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
STOP_WORDS: Final = frozenset(_UNTOLD.split())
"""Words that say nothing of what is looked for, such as those in which a wish is clothed."""


def folded(text: str) -> str:
    """Return the text without accents and in one form for each character; case stays."""
    if text.isascii():
        return text
    return "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))


def words(text: str) -> Iterator[tuple[str, ...]]:
    """Give each run of letters and digits as its words in lower case: `sendEMail_now` gives `send e mail`, `now`."""
    for run in _runs(text):
        yield from _parts(run[:_WORD_LIMIT])


def terms(text: str, limit: int, *, prose: bool = False) -> list[str]:
    """Return the stems of about so many words of a text, with what a split word is when written as one.

    In prose what begins with a capital is somebody's name for something, and stays whole: `GitHub` has no hub.
    """
    found: list[str] = []
    for run in _runs(text):
        found += _stems(run[:_WORD_LIMIT], prose)
        if len(found) >= limit:
            break
    return found


def _runs(text: str) -> list[str]:
    # Composed, so that an accent is no edge of a word.
    return _RUN.findall(text if text.isascii() else unicodedata.normalize("NFC", text))


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
    run = folded(run)
    if run.isascii():
        yield (run,) if run.islower() else tuple(part.lower() for part in _PARTS.findall(run))
    elif _UNSPACED.search(run):
        yield from ((run[at : at + 2],) for at in range(len(run) - 1))
    else:
        yield (run.casefold(),)
