"""Rank tools by vector similarity, and combine that ranking with the ranking by words.

A vector is stored as a single large integer that is divided into *lanes*: groups of bits, one for each dimension.
Adding or multiplying such integers is hundreds of times as fast as the same operation on lists of numbers, and needs no
additional package.
"""

from __future__ import annotations

import struct
from binascii import a2b_base64
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import islice
from math import isqrt
from operator import mul
from typing import Final

DIMENSIONS: Final = 128
# This is added to each value (from -127 to 127), because a negative value would change the next lane.
OFFSET: Final = 128
# The size of a lane. The dot product of two vectors (at most 128 x 255 x 255) needs 23 bits; `struct` reads 32 bits.
_LANE_BYTES: Final = 4


def word_vector(term: str) -> int | None:
    """Return the vector of a stem in lanes, with `OFFSET` added to each value; None if the table lacks the stem."""
    lines = read_word_vectors()
    place = bisect_left(lines, f"{term} ")
    if place == len(lines) or not lines[place].startswith(f"{term} "):
        return None
    return pack_lanes(a2b_base64(lines[place][len(term) + 1 :]))


def pack_lanes(values: bytes) -> int:
    """Pack values from 0 to 255 into one integer, each into its own lane."""
    spread = bytearray(len(values) * _LANE_BYTES)
    spread[::_LANE_BYTES] = values
    return int.from_bytes(spread, "little")


def unpack_lanes(lanes: int, count: int) -> tuple[int, ...]:
    """Return the values of the `count` lanes of an integer."""
    return struct.unpack(f"<{count}I", lanes.to_bytes(count * _LANE_BYTES, "little"))


@cache  # `word_vector` parses single lines on demand
def read_word_vectors() -> list[str]:
    """Return the sorted lines of the word vector table. Reading the file takes some milliseconds."""
    table = resources.files("registry.search").joinpath("word_vectors.txt").read_text(encoding="ascii")
    return [line for line in table.splitlines() if not line.startswith("#")]


# The weight of a word in each field, trained together with the vectors. The fields are: name, title, server, beginning
# of the description, rest of the description, argument names, argument descriptions.
_FIELD_SHARES: Final = (17, 9, 15, 13, 4, 4, 4)
# Maximum number of distinct words to use from each field, the same as in training. More words make the vector less
# specific.
FIELD_WORDS: Final = (16, 12, 8, 48, 48, 32, 32)
# The length to which vectors are scaled, so that their values are integers. Few values are so large that they have to
# be clipped to the range of a byte.
_LENGTH: Final = 256
_GREATEST: Final = 255


class WordSimilarity:
    """The word vectors of a fixed set of tools, which are compared with the vector of a query."""

    __slots__ = ("_columns", "_count", "_offsets")

    def __init__(self, tools: Iterable[Sequence[Sequence[str]]]) -> None:
        """Compute the vector of each tool from the terms of its fields."""
        vectors: dict[str, int | None] = {}
        rows = [_tool_vector(fields, vectors) for fields in tools]
        self._count = len(rows)
        # Use one integer per dimension, with a lane for each tool, to compare a query with all tools at once.
        joined = b"".join(rows)
        self._columns = tuple(pack_lanes(joined[dimension::DIMENSIONS]) for dimension in range(DIMENSIONS))
        # Because of the offsets, the dot product of a row and a query is too high by OFFSET * (sum(row) + sum(query)) -
        # OFFSET**2 * DIMENSIONS. `_offsets` contains the part of this difference that does not depend on the query.
        self._offsets = tuple(OFFSET * sum(row) - OFFSET * OFFSET * DIMENSIONS for row in rows)

    def similarities_to(self, terms: Iterable[str]) -> list[float]:
        """Return the similarity of each tool to the terms, from -1 to 1; 0 for all if no term has a vector."""
        total, count = 0, 0
        for term in terms:
            vector = word_vector(term)
            if vector is not None:
                total, count = total + vector, count + 1
        query = _normalize(total, count)
        products = sum(column * value for column, value in zip(self._columns, query, strict=True))
        mine = OFFSET * sum(query)
        unit = _LENGTH * _LENGTH
        products_and_offsets = zip(unpack_lanes(products, self._count), self._offsets, strict=True)
        return [(product - offset - mine) / unit for product, offset in products_and_offsets]


def _tool_vector(fields: Sequence[Sequence[str]], vectors: dict[str, int | None]) -> bytes:
    """Return the vector of a tool, with `OFFSET` added to each value."""
    total, weight = 0, 0
    for terms, share, most in zip(fields, _FIELD_SHARES, FIELD_WORDS, strict=True):
        field_sum, count = 0, 0
        for term in islice(dict.fromkeys(terms), most):
            if term not in vectors:
                vectors[term] = word_vector(term)
            vector = vectors[term]
            if vector is not None:
                field_sum, count = field_sum + vector, count + 1
        total, weight = total + share * field_sum, weight + share * count
    return _normalize(total, weight)


def _normalize(total: int, weight: int) -> bytes:
    """Scale a sum of vectors to `_LENGTH`, and add `OFFSET` to each value."""
    added = OFFSET * weight
    values = [value - added for value in unpack_lanes(total, DIMENSIONS)]
    length = isqrt(sum(map(mul, values, values))) or 1
    scaled = [_LENGTH * value // length + OFFSET for value in values]
    if min(scaled) < 0 or max(scaled) > _GREATEST:
        scaled = [max(0, min(_GREATEST, value)) for value in scaled]
    return bytes(scaled)


@dataclass(frozen=True, slots=True)
class Fusion:
    """The influence of vector similarity on a ranking by words. `tests/bench/README.md` compares several values.

    Attributes:
        power: The exponent to which a similarity is raised, after division by the highest similarity. A higher power
            separates the most similar tools from the many tools that are almost as similar.
        weight: The score that the most similar tool gets for its similarity if it also matches by words. The best match
            by words gets the score 1 for its words.
    """

    power: int
    weight: float


BY_WORD_VECTORS: Final = Fusion(power=2, weight=2.0)
BY_SENTENCES: Final = Fusion(power=3, weight=1.0)
# Minimum similarity at which a tool is found without matching words.
_MIN_SIMILARITY: Final = 0.25


def fuse_scores(scores: Mapping[int, float], similarities: Sequence[float], fusion: Fusion) -> dict[int, float]:
    """Combine the scores by words with similarities, after dividing both by their respective maximum.

    A tool that does not match by words gets a score of at most 1, so it never ranks above the best match by words.

    Args:
        scores: The scores by words, by the position of the tool.
        similarities: The similarity of each tool to the query, from -1 to 1.
        fusion: The influence of the similarities.
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
