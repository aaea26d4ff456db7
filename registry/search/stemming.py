"""Reduce words to stems, so that `messages`, `messaging` and `messaged` become one term."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_PLAIN: Final = re.compile("[a-z]+")
# English has no longer word; what is longer is encoded data, and must not fill the cache. Words of one or two letters
# have no suffix.
_MIN_LENGTH: Final = 3
_MAX_LENGTH: Final = 40
# Porter's original algorithm (Program 14(3), 1980), and not its successor "english": the search was tuned with it.
_ALGORITHM: Final = "porter"


def stem(word: str) -> str:
    """Return the stem of a word in lower case; short and very long words and other scripts stay as they are."""
    return _stem(word) if _MIN_LENGTH <= len(word) <= _MAX_LENGTH and _PLAIN.fullmatch(word) else word


# Some 25 us for each new word. The 721 tools of `tests/corpus` have 5,000 different words: room for many more, and for
# queries, whose words are anyone's.
@lru_cache(maxsize=32_768)
def _stem(word: str) -> str:
    import snowballstemmer  # here, because it loads the stemmers of all languages, which takes 15 ms

    # A new one for each word, which costs next to nothing: a stemmer keeps state, and searches run in several threads.
    stemmed: str = snowballstemmer.stemmer(_ALGORITHM).stemWord(word)
    return stemmed
