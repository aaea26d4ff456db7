"""What a tool is for, in one line, and its place when words and meaning are asked together.

Vectors are no business of this room: whoever has them says how near a query is to each tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Final

from registry.schema.text import words
from registry.search.index import Described, Hit

_SENTENCE_CHARS: Final = 240
_NAME_CHARS: Final = 200
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s|\n")

# Tuned over half of the queries of `tests/bench/bench_search.py`, where anything from 0.85 to 2 does as well. Words,
# whose thesaurus was written with that half at hand, are too good there: so the upper end.
_WEIGHT: Final = 2.0
# What is farther away than this is about something else, and is only found by its words.
_FLOOR: Final = 0.25


def sense(tool: Described) -> str:
    """Return what a tool is for: the words of its server and its name, and the first sentence about it."""
    said = tool.definition.get("description")
    first = _SENTENCE_END.split(said[: _SENTENCE_CHARS * 4].strip(), 1)[0] if isinstance(said, str) else ""
    named = f"{words(tool.server[:_NAME_CHARS])}: {words(tool.tool[:_NAME_CHARS])}".lower()
    text = f"{named}. {first[:_SENTENCE_CHARS]}"
    return text.encode("utf-8", "replace").decode("utf-8")


def blended(hits: Sequence[Hit], nearness: Mapping[str, float], limit: int) -> list[Hit]:
    """Return the best tools by their words and by their meaning, best first; each is a share of the best there is.

    Args:
        hits: What was found by its words.
        nearness: How near each tool is to what was asked, at most 1, by name.
        limit: How many at most.
    """
    found = {hit.name: hit.score for hit in hits}
    best, closest = max(found.values(), default=0.0), max(nearness.values(), default=0.0)
    if closest < _FLOOR:
        return list(hits[: max(limit, 0)])
    scored = (
        Hit(name, round(found.get(name, 0.0) / (best or 1.0) + _WEIGHT * nearness.get(name, 0.0) / closest, 6))
        for name in {**found, **{name: 0.0 for name, near in nearness.items() if near >= _FLOOR}}
    )
    return nsmallest(max(limit, 0), scored, key=lambda hit: (-hit.score, hit.name))
