"""Read the table of words and those similar to them, which a model of the language derived."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import Final

# The very word ranks first.
_MAX_WEIGHT: Final = 0.9
_NEIGHBOUR: Final = re.compile(r"([a-z]+)(\d+)")


@lru_cache(maxsize=4_096)
def neighbours(term: str) -> Mapping[str, float]:
    """Return the stems that are similar to a stem, each with the weight that it may stand for it with.

    The weight is the similarity itself, at most 0.9: like synonyms, they count less than the word of the query.
    """
    lines = read_neighbours()
    place = bisect_left(lines, f"{term} ")
    line = lines[place] if place < len(lines) and lines[place].startswith(f"{term} ") else ""
    return {other: min(int(hundredths) / 100, _MAX_WEIGHT) for other, hundredths in _NEIGHBOUR.findall(line)}


@cache  # a line is taken apart when it is wanted
def read_neighbours() -> list[str]:
    """Read the table, which takes some milliseconds; return its lines in order."""
    table = resources.files("registry.search").joinpath("neighbours.txt").read_text(encoding="utf-8")
    return [line for line in table.splitlines() if not line.startswith("#")]
