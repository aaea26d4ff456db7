"""How similar a query is to each tool: the cosine between the vectors of its words and of theirs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from math import isqrt
from operator import mul
from typing import Final

from registry.search.word_vectors import DIMENSIONS, OFFSET, lanes_of, values_of, word_vector

# How much the words of a field count, in the order of the index: name, title, server, the beginning of the
# description, its rest, names of arguments, their descriptions. Trained together with the vectors.
_FIELD_SHARES: Final = (17, 9, 15, 13, 4, 4, 4)
# As many different words of each field as there were in training: more would blur what a tool is for.
FIELD_WORDS: Final = (16, 12, 8, 48, 48, 32, 32)
# A vector of length one has this length as whole numbers. Few of its values are beyond 0.4, so few are cut at a byte.
_LENGTH: Final = 256
_GREATEST: Final = 255


class WordSimilarity:
    """The vectors of some tools; it never changes."""

    __slots__ = ("_columns", "_count", "_offsets")

    def __init__(self, tools: Iterable[Sequence[Sequence[str]]]) -> None:
        """Compute a vector for each tool, from the terms of each of its fields."""
        known: dict[str, int | None] = {}
        rows = [_tool_vector(fields, known) for fields in tools]
        self._count = len(rows)
        # One number for each dimension, with a lane for each tool: all are compared with a query at the same time.
        joined = b"".join(rows)
        self._columns = tuple(lanes_of(joined[dimension::DIMENSIONS]) for dimension in range(DIMENSIONS))
        # What the offsets of a tool's values add to each product, less what both offsets together do.
        self._offsets = tuple(OFFSET * sum(row) - OFFSET * OFFSET * DIMENSIONS for row in rows)

    def to(self, terms: Iterable[str]) -> list[float]:
        """Return how similar each tool is to these terms, from -1 to 1; all 0 where the table has none of them."""
        total, count = 0, 0
        for term in terms:
            vector = word_vector(term)
            if vector is not None:
                total, count = total + vector, count + 1
        query = _shortened(total, count)
        products = sum(column * value for column, value in zip(self._columns, query, strict=True))
        mine = OFFSET * sum(query)
        unit = _LENGTH * _LENGTH
        found = zip(values_of(products, self._count), self._offsets, strict=True)
        return [(product - offset - mine) / unit for product, offset in found]


def _tool_vector(fields: Sequence[Sequence[str]], known: dict[str, int | None]) -> bytes:
    """Return the vector of a tool, with `OFFSET` added to each value."""
    total, weight = 0, 0
    for terms, share, most in zip(fields, _FIELD_SHARES, FIELD_WORDS, strict=True):
        of_field, count = 0, 0
        for term in islice(dict.fromkeys(terms), most):
            if term not in known:
                known[term] = word_vector(term)
            vector = known[term]
            if vector is not None:
                of_field, count = of_field + vector, count + 1
        total, weight = total + share * of_field, weight + share * count
    return _shortened(total, weight)


def _shortened(total: int, weight: int) -> bytes:
    """Return a sum of vectors at length `_LENGTH`, with `OFFSET` added to each value."""
    added = OFFSET * weight
    values = [value - added for value in values_of(total, DIMENSIONS)]
    length = isqrt(sum(map(mul, values, values))) or 1
    scaled = [_LENGTH * value // length + OFFSET for value in values]
    if min(scaled) < 0 or max(scaled) > _GREATEST:
        scaled = [max(0, min(_GREATEST, value)) for value in scaled]
    return bytes(scaled)
