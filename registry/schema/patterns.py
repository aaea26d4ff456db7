"""Regular expressions in schemas: which of them can be compiled and run here in bounded time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from registry.schema.json_values import edited, map_items
from registry.schema.references import DATA_KEYWORDS, SUBSCHEMA_MAPS

# The longest pattern in `tests/corpus` has 166 characters. There is room for an enumeration of 500 words written as
# one pattern, which compiles in 2 ms.
MAX_PATTERN_LENGTH: Final = 4_096
# Compiled size of one pattern; the time to compile grows with it.
PATTERN_BYTES: Final = 1 << 20
# Steps back over one text before the engine gives up, which takes it less than a millisecond.
BACKTRACK_LIMIT: Final = 10_000
# Bound on the cost of compiling all patterns of one schema, see `compile_cost`: some 20 ms for the most expensive kind,
# counted repetitions of Unicode classes.
MAX_COMPILE_COST: Final = 60_000

# Weights of `compile_cost`, in characters of an ordinary pattern: every pattern has a fixed cost, a Unicode class is a
# table of hundreds of ranges, and look-around needs the second engine.
_COST_OF_PATTERN: Final = 20
_COST_OF_UNICODE_CLASS: Final = 500
_COST_OF_BACKTRACKING: Final = 300
# What is reported of a pattern that is left out: enough to find it in a definition.
_MAX_REPORTED_PATTERN: Final = 200

_UNICODE_CLASS = re.compile(r"\\[pP]")
_BACKTRACKING = re.compile(r"\(\?[=!<>]|\\[1-9kK]")
_COUNTED = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")


def without_unsupported_patterns(schema: Any, *, linear_only: bool = False) -> tuple[Any, tuple[str, ...], bool]:
    """Return a schema whose patterns all compile, the patterns that were left out, and whether one backtracks.

    The same object is returned when nothing had to be left out. The schema is within bounds, so recursion is shallow.
    """
    found = _PatternFilter(linear_only)
    return found.filtered(schema, True), tuple(found.left_out), found.backtracking


@dataclass(slots=True)
class _PatternFilter:
    linear_only: bool
    left_out: list[str] = field(default_factory=list)
    backtracking: bool = False
    cost: int = 0

    def filtered(self, node: Any, is_schema: bool) -> Any:
        if isinstance(node, list):
            return map_items(node, lambda item: self.filtered(item, True))
        if not isinstance(node, dict):
            return node
        changed: dict[str, Any] = {}
        dropped: set[str] = set()
        for key, child in node.items():
            if is_schema and key == "pattern" and isinstance(child, str):
                if not self._keeps(child):
                    dropped.add(key)
            elif isinstance(child, dict | list) and not (is_schema and key in DATA_KEYWORDS):
                below = child
                if is_schema and key == "patternProperties" and isinstance(child, dict):
                    kept = {name: sub for name, sub in child.items() if self._keeps(name)}
                    below = child if len(kept) == len(child) else kept
                # Members of `properties` and the like are names, where `pattern` is a name as good as any other.
                new = self.filtered(below, not (is_schema and key in SUBSCHEMA_MAPS))
                if new is not child:
                    changed[key] = new
        return edited(node, changes=changed, dropped=dropped)

    def _keeps(self, pattern: str) -> bool:
        self.cost += compile_cost(pattern)
        engine = None if self.cost > MAX_COMPILE_COST else engine_for(pattern)
        if engine is None or (self.linear_only and engine != "linear"):
            self.left_out.append(pattern[:_MAX_REPORTED_PATTERN])
            return False
        self.backtracking = self.backtracking or engine == "backtracking"
        return True


def compile_cost(pattern: str) -> int:
    """Estimate what a pattern costs to compile: its length times its counted repetitions."""
    cost = len(pattern) + _COST_OF_PATTERN + _COST_OF_UNICODE_CLASS * len(_UNICODE_CLASS.findall(pattern))
    if _BACKTRACKING.search(pattern):
        cost += _COST_OF_BACKTRACKING
    for low, high in _COUNTED.findall(pattern):
        # Capped, since nested counts multiply to numbers of any size.
        cost = min(cost * max(int(high or low), 1), MAX_COMPILE_COST * 2)
    return cost


# The same few patterns (dates, identifiers) occur in thousands of schemas; texts are bounded by MAX_PATTERN_LENGTH.
@lru_cache(maxsize=4096)
def engine_for(pattern: str) -> str | None:
    """Return `linear`, `backtracking`, or None for a pattern that neither engine accepts within its bounds."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        return None
    import jsonschema_rs  # here, so that importing the registry stays quick

    linear = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES)
    fancy = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=PATTERN_BYTES)
    for name, options in (("linear", linear), ("backtracking", fancy)):
        try:
            jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=options)
        except (jsonschema_rs.ValidationError, ValueError):
            continue
        return name
    return None
