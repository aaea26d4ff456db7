"""Read the table of word vectors, which were trained so that a request is similar to the tool that answers it.

A vector is kept and added as one whole number with a lane of bits for each dimension: Python adds and multiplies such
numbers hundreds of times as fast as lists of numbers, and needs no package for it.
"""

from __future__ import annotations

import struct
from binascii import a2b_base64
from bisect import bisect_left
from functools import cache
from importlib import resources
from typing import Final

DIMENSIONS: Final = 128
# Values from -127 to 127 are kept with this added: a negative lane would borrow from the next one.
OFFSET: Final = 128
# The sum of the products of two vectors of such values (128 x 255 x 255) needs 23 bits; `struct` reads words of 32.
_LANE_BYTES: Final = 4


def word_vector(term: str) -> int | None:
    """Return the vector of a stem as lanes, with `OFFSET` added to each value; None where the table has none."""
    lines = read_word_vectors()
    place = bisect_left(lines, f"{term} ")
    if place == len(lines) or not lines[place].startswith(f"{term} "):
        return None
    return lanes_of(a2b_base64(lines[place][len(term) + 1 :]))


def lanes_of(values: bytes) -> int:
    """Return bytes as one number, each in a lane of its own."""
    spread = bytearray(len(values) * _LANE_BYTES)
    spread[::_LANE_BYTES] = values
    return int.from_bytes(spread, "little")


def values_of(lanes: int, count: int) -> tuple[int, ...]:
    """Return what is in the first `count` lanes of a number, which has no more."""
    return struct.unpack(f"<{count}I", lanes.to_bytes(count * _LANE_BYTES, "little"))


@cache  # a line is taken apart when it is wanted
def read_word_vectors() -> list[str]:
    """Read the table, which takes some milliseconds; return its lines in order."""
    table = resources.files("registry.search").joinpath("word_vectors.txt").read_text(encoding="ascii")
    return [line for line in table.splitlines() if not line.startswith("#")]
