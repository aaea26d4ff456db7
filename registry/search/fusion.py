"""Combine a ranking by words with the similarity of embeddings.

Vectors are computed elsewhere: this module provides the text to embed, and takes how similar a query is to each tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Final

from registry.schema.display_text import name_as_words
from registry.search.index import SCORE_DIGITS, SearchableTool, SearchHit

# Small embedding models read some 250 tokens, and get less specific the more there are: one sentence is best.
_SENTENCE_CHARS: Final = 240
# Where the end of the first sentence is looked for, before it is cut.
_READ_CHARS: Final = _SENTENCE_CHARS * 4
# Names may have a thousand characters.
_NAME_CHARS: Final = 200
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s|\n")

# Weight of the similarity, where the best match by words has 1: with no more than that, what is first by its words is
# never behind a tool that has none of them. Whichever set of queries is left out of `tests/bench/bench_search.py
# --weights`, the others choose 1 to 1.4; with 2, tools were lost that were first by their words.
SIMILARITY_WEIGHT: Final = 1.0
# What is less similar is about something else, and only found by its words.
_MIN_SIMILARITY: Final = 0.25


def embedding_text(tool: SearchableTool) -> str:
    """Return the text to embed for a tool: server and name as words, and the first sentence of its description."""
    description = tool.definition.get("description")
    first = _SENTENCE_END.split(description[:_READ_CHARS].strip(), 1)[0] if isinstance(description, str) else ""
    names = f"{name_as_words(tool.server[:_NAME_CHARS])}: {name_as_words(tool.tool[:_NAME_CHARS])}".lower()
    text = f"{names}. {first[:_SENTENCE_CHARS]}"
    # Tokenizers refuse halves of surrogate pairs.
    return text.encode("utf-8", "replace").decode("utf-8")


def fuse_scores(
    hits: Sequence[SearchHit], similarity: Mapping[str, float], limit: int, *, weight: float = SIMILARITY_WEIGHT
) -> list[SearchHit]:
    """Return the best tools by words and similarity together, best first; each counts relative to its best value.

    Args:
        hits: What was found by words.
        similarity: How similar each tool is to the query, at most 1, by name.
        limit: The most hits to return.
        weight: How much similarity counts, where the best match by words counts 1.
    """
    found = {hit.name: hit.score for hit in hits}
    best, closest = max(found.values(), default=0.0), max(similarity.values(), default=0.0)
    if closest < _MIN_SIMILARITY:
        return list(hits[: max(limit, 0)])

    def score(name: str) -> float:
        by_words = found.get(name, 0.0) / (best or 1.0)
        return round(by_words + weight * max(similarity.get(name, 0.0), 0.0) / closest, SCORE_DIGITS)

    names = found.keys() | {name for name, value in similarity.items() if value >= _MIN_SIMILARITY}
    scored = (SearchHit(name, score(name)) for name in names)
    return nsmallest(max(limit, 0), scored, key=lambda hit: (-hit.score, -found.get(hit.name, 0.0), hit.name))
