"""Regular expressions in schemas: which of them can be run here, and what running them costs at most."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from registry.schema.ecma_patterns import to_engine_syntax

# The longest pattern in `tests/corpus` has 166 characters. There is room for an enumeration of 500 words written as
# one pattern, which compiles in 2 ms.
MAX_PATTERN_LENGTH: Final = 4_096
# Compiled size of one pattern; the time to compile grows with it.
PATTERN_BYTES: Final = 1 << 20
# Steps back over one text before the engine gives up, which takes it less than a millisecond.
BACKTRACK_LIMIT: Final = 10_000
# Bound on the cost of compiling the distinct patterns of one schema, see `compile_cost`: 20 ms, which is room for some
# 500 different patterns of UUIDs.
MAX_COMPILE_COST: Final = 80_000
# The engines stop at PATTERN_BYTES, which takes them at most 4 ms.
_MAX_COST_OF_PATTERN: Final = 16_000

# Weights of `compile_cost`, in characters of an ordinary pattern, which take 0.25 us each: every pattern has a fixed
# cost, a dot or a negated class is a small automaton over UTF-8, a Unicode class is a table of hundreds of ranges, and
# look-around needs the second engine.
_COST_OF_PATTERN: Final = 20
_COST_OF_NEGATION: Final = 12
_COST_OF_UNICODE_CLASS: Final = 500
_COST_OF_BACKTRACKING: Final = 300

_UNICODE_CLASS = re.compile(r"\\[pP]")
_LOOK_AROUND = re.compile(r"\(\?(?:<?[=!]|>)")
_BACKTRACKING = re.compile(r"\(\?[=!<>]|\\[1-9kK]")
# What `compile_cost` adds up: escapes, classes, counts, and any other character.
_PIECE = re.compile(
    r"\\[pP]\{[^}]*\}|\\.|\[\^?(?:\\.|[^\]\\])*\]|\{(?P<low>\d{1,9})(?:,(?P<high>\d{0,9}))?\}|.", re.DOTALL
)
_NEGATIONS: Final = (".", "[^", "\\D", "\\S", "\\W")
# One atom that stands for one character, whichever; and a pattern that is nothing but such an atom and a count.
_ATOM = (
    r"(?:\\[pP]\{[^}]*\}|\\[ux]\{[^}]*\}|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\[\^?(?:\\.|[^\]\[\\])+\]|\\[dDsSwW]|\.)"
)
_ONE_CHARACTER = re.compile(_ATOM)
_COUNTED_ATOM = re.compile(rf"\^({_ATOM})\{{(\d{{1,9}})(?:(,)(\d{{1,9}})?)?\}}\$")
# Compiled sizes that are told apart, from the smallest.
_WEIGHTS: Final = tuple(1 << power for power in range(10, 21))

# Compiled size up to which a pattern looks at each character once, at the lower of the two prices below.
CHEAP_PATTERN_BYTES: Final = 1024
# Measured on one core: what one character costs a pattern of 1 KiB at most, and one of more KiB for each of them. A
# small pattern has few states, which the engine builds once and then runs through; of a large one it may have to
# build a new state at every character.
_LIGHT_NS: Final = 5
_HEAVY_NS: Final = 200


@dataclass(frozen=True, slots=True)
class RunnablePattern:
    """A pattern as it is run here.

    Attributes:
        source: In the syntax of its engine, without the count that `lengths` stands for.
        lengths: The least and the greatest length of a text that matches, where the source leaves that out.
        weight: Bytes of its compiled form, as a power of two.
        quadratic: Whether it may look at the whole text again from every character.
    """

    source: str
    engine: Literal["linear", "backtracking"]
    weight: int
    quadratic: bool
    lengths: tuple[int, int | None] | None = None

    def cost_ns(self, length: int) -> int:
        """Return the longest that matching a text of this length may take, in nanoseconds."""
        steps = length * length if self.quadratic else length
        return steps * (_LIGHT_NS if self.weight <= CHEAP_PATTERN_BYTES else self.weight * _HEAVY_NS // 1024)

    def affordable_length(self, budget_ns: int) -> int:
        """Return the length of the longest text that can be matched within a time."""
        steps = budget_ns // self.cost_ns(1)
        return math.isqrt(steps) if self.quadratic else steps


def compile_cost(pattern: str) -> int:
    """Estimate what a pattern costs to compile, in characters of an ordinary pattern.

    The costs of parts in sequence add up. A count multiplies the cost of the part before it, so nested counts multiply.
    """
    cost = _COST_OF_PATTERN + (_COST_OF_BACKTRACKING if _BACKTRACKING.search(pattern) else 0)
    if _COUNTED_ATOM.fullmatch(pattern):
        return cost + len(pattern)  # compiled without its count
    groups: list[int] = []
    total = last = 0  # of the group that is open, and of its latest part
    for piece in _PIECE.finditer(pattern):
        text = piece[0]
        if text == "(":
            groups.append(total + last)
            total = last = 0
        elif text == ")" and groups:
            total, last = groups.pop(), total + last
        elif piece["low"]:
            # Capped, since nested counts multiply to numbers of any size.
            last = min(last * max(int(piece["high"] or piece["low"]), 1), _MAX_COST_OF_PATTERN)
        else:
            total, last = total + last, _cost_of_atom(text)
    return min(cost + sum(groups) + total + last, _MAX_COST_OF_PATTERN)


def _cost_of_atom(text: str) -> int:
    if tables := len(_UNICODE_CLASS.findall(text)):
        return _COST_OF_UNICODE_CLASS * tables
    return _COST_OF_NEGATION if text.startswith(_NEGATIONS) else 1


# The same few patterns (dates, identifiers) occur in thousands of schemas; texts are bounded by MAX_PATTERN_LENGTH.
@lru_cache(maxsize=4096)
def runnable_pattern(pattern: str) -> RunnablePattern | None:
    """Return how a pattern is run, or None for one that neither engine accepts within its bounds."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        return None
    for source in dict.fromkeys((pattern, to_engine_syntax(pattern))):
        if counted := _COUNTED_ATOM.fullmatch(source):
            # Counted copies of a class make the compiled form large, and say no more than a length does.
            atom, least, most = counted[1], int(counted[2]), int(counted[4]) if counted[4] else None
            lengths = (least, most if counted[3] else least)
            if _compiles(f"^{atom}*$", "linear", PATTERN_BYTES):
                return RunnablePattern(f"^{atom}*$", "linear", _WEIGHTS[0], quadratic=False, lengths=lengths)
        if _compiles(source, "linear", PATTERN_BYTES):
            return RunnablePattern(source, "linear", _weight(source), quadratic=False)
        if _compiles(source, "backtracking", PATTERN_BYTES):
            # The engine for look-around runs the parts between as the other one would.
            plain = re.sub(r"\\[1-9kK](?:<\w+>)?", "", _LOOK_AROUND.sub("(?:", source))
            return RunnablePattern(source, "backtracking", _weight(plain), quadratic=not _is_tried_once(source))
    return None


def _weight(source: str) -> int:
    # A class counts as one character: however many ranges it has, it is one place in the pattern.
    plain = _ONE_CHARACTER.sub("[ab]", source)
    return next((weight for weight in _WEIGHTS if _compiles(plain, "linear", weight)), PATTERN_BYTES)


def _is_tried_once(source: str) -> bool:
    """Return whether each look-ahead is tried at the beginning only, with nothing before it that could be tried again.

    That is `^`, then look-ahead without look-around inside, then a rest without any.
    """
    # Escapes and classes cannot open a group.
    bare = re.sub(r"\\[1-9kK]", "(?=)", _ONE_CHARACTER.sub("c", source))
    bare = re.sub(r"\\.", "c", bare)
    if not bare.startswith("^"):
        return False
    position, depth, inside = 1, 0, False
    while position < len(bare):
        if found := _LOOK_AROUND.match(bare, position):
            if inside or depth or found[0] not in ("(?=", "(?!"):
                return False
            inside, depth, position = True, 1, found.end()
            continue
        char = bare[position]
        depth += (char == "(") - (char == ")")
        if inside and depth == 0:
            inside = False
        elif depth == 0:
            rest = bare[position:]
            return not _LOOK_AROUND.search(rest) and "|" not in _outermost(rest)
        position += 1
    return True


def _outermost(text: str) -> str:
    """Return the characters of a pattern that stand in no group."""
    depth, kept = 0, []
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth == 0:
            kept.append(char)
    return "".join(kept)


def ends_in_time(source: str, text: str) -> bool:
    """Return whether the engine for look-around comes to an answer within `BACKTRACK_LIMIT` steps."""
    alone = _alone(source)
    if alone.is_valid(text):
        return True
    [error] = alone.iter_errors(text)
    return not error.message.startswith("Error executing regex")


@lru_cache(maxsize=256)
def _alone(source: str) -> Any:
    import jsonschema_rs

    options = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=PATTERN_BYTES)
    return jsonschema_rs.Draft202012Validator({"pattern": source}, pattern_options=options)


def _compiles(source: str, engine: Literal["linear", "backtracking"], size: int) -> bool:
    import jsonschema_rs  # here, so that importing the registry stays quick

    options: Any = jsonschema_rs.RegexOptions(size_limit=size)
    if engine == "backtracking":
        options = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=size)
    try:
        jsonschema_rs.Draft202012Validator({"pattern": source}, pattern_options=options)
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True
