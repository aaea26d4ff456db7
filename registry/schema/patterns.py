"""Regular expressions in schemas: which of them can be run here, and what running them costs at most."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal

from registry.schema.ecma_patterns import to_engine_syntax
from registry.schema.json_values import containers, edited, map_items
from registry.schema.references import DATA_KEYWORDS, SUBSCHEMA_MAPS

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternUse:
    """The patterns of one schema.

    Attributes:
        schema: The schema with patterns that all can be run; the same object if it had no others.
        runnable: What is run, by the pattern in the original schema.
        left_out: The others.
    """

    schema: Any
    runnable: dict[str, RunnablePattern]
    left_out: tuple[str, ...]

    @property
    def backtracking(self) -> bool:
        """Whether one needs the engine that goes back."""
        return any(pattern.engine == "backtracking" for pattern in self.runnable.values())


def read_patterns(schema: Any, *, without_quadratic: bool = False, max_weight: int = PATTERN_BYTES) -> PatternUse:
    """Return what can be run of the patterns of a schema within bounds, whose nesting is shallow enough to recurse.

    Args:
        schema: The schema.
        without_quadratic: Also leave out those that may not come to an end within `BACKTRACK_LIMIT` steps.
        max_weight: Leave out those whose compiled form takes more bytes.
    """
    found = _PatternFilter(without_quadratic, max_weight, _affordable(schema))
    filtered = found.filtered(schema, True)
    return PatternUse(schema=filtered, runnable=found.runnable, left_out=tuple(found.left_out))


@dataclass(slots=True)
class _PatternFilter:
    without_quadratic: bool
    max_weight: int
    affordable: frozenset[str]
    left_out: list[str] = field(default_factory=list)
    runnable: dict[str, RunnablePattern] = field(default_factory=dict)

    def filtered(self, node: Any, is_schema: bool) -> Any:
        if isinstance(node, list):
            return map_items(node, lambda item: self.filtered(item, True))
        if not isinstance(node, dict):
            return node
        changed: dict[str, Any] = {}
        dropped: set[str] = set()
        for key, child in node.items():
            if is_schema and key == "pattern" and isinstance(child, str):
                found = self._runnable(child)
                if found is None:
                    dropped.add(key)
                elif found.lengths is not None:
                    changed |= _with_lengths(node, found)
                elif found.source != child:
                    changed[key] = found.source
            elif isinstance(child, dict | list) and not (is_schema and key in DATA_KEYWORDS):
                below = child
                if is_schema and key == "patternProperties" and isinstance(child, dict):
                    below = self._members(child)
                    if len(below) < len(child):
                        # A name that this pattern may match is not undeclared.
                        dropped |= {"additionalProperties", "unevaluatedProperties"}
                before = len(self.left_out)
                # Members of `properties` and the like are names, where `pattern` is a name as good as any other.
                new = self.filtered(below, not (is_schema and key in SUBSCHEMA_MAPS))
                if is_schema and key in _REVERSING and len(self.left_out) > before:
                    # Without its pattern the schema accepts more, and what must not match it would accept less.
                    dropped.update(_REVERSING[key])
                elif new is not child:
                    changed[key] = new
        return edited(node, changes=changed, dropped=dropped)

    def _members(self, members: dict[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, child in members.items():
            found = self._runnable(name)
            # A name has no keyword for its length; and two that are run alike are not told apart.
            if found is not None and (found.lengths is not None or found.source in kept):
                self.left_out.append(name)
                found = None
            if found is not None:
                kept[found.source] = child
        return members if list(kept) == list(members) else kept

    def _runnable(self, pattern: str) -> RunnablePattern | None:
        found = runnable_pattern(pattern) if pattern in self.affordable else None
        if found is None or (self.without_quadratic and found.quadratic) or found.weight > self.max_weight:
            self.left_out.append(pattern)
            return None
        self.runnable[pattern] = found
        return found


def _affordable(schema: Any) -> frozenset[str]:
    """Return the patterns of a schema that are compiled within `MAX_COMPILE_COST`, the cheapest first."""
    patterns: set[str] = set()
    for node in containers(schema):
        if isinstance(node, dict):
            if isinstance(pattern := node.get("pattern"), str):
                patterns.add(pattern)
            if isinstance(members := node.get("patternProperties"), dict):
                patterns.update(members)
    cost, kept = 0, []
    for own, pattern in sorted((compile_cost(pattern), pattern) for pattern in patterns):
        cost += own
        if cost > MAX_COMPILE_COST:
            break
        kept.append(pattern)
    return frozenset(kept)


def _with_lengths(node: dict[str, Any], found: RunnablePattern) -> dict[str, Any]:
    """Return the keywords that say what a counted pattern says."""
    assert found.lengths is not None
    least, most = found.lengths
    declared_least, declared_most = node.get("minLength"), node.get("maxLength")
    changes: dict[str, Any] = {"pattern": found.source}
    changes["minLength"] = max(least, declared_least) if isinstance(declared_least, int) else least
    if most is not None:
        changes["maxLength"] = min(most, declared_most) if isinstance(declared_most, int) else most
    return changes


# Keywords under which a schema that accepts more makes the whole accept less or something else, with all that goes
# with them.
_REVERSING: Final = {"not": ("not",), "if": ("if", "then", "else"), "oneOf": ("oneOf",), "contains": ("contains",)}


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
