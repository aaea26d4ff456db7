"""Patterns in schemas: which can be compiled here, in bounded time."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from registry.schema.references import DATA_KEYWORDS, SCHEMA_MAPS

MAX_PATTERN_LENGTH: Final = 4_096
PATTERN_BYTES: Final = 1 << 20
"""Compiled size of one pattern; time to compile grows with it."""
BACKTRACK_LIMIT: Final = 10_000
MAX_PATTERN_WEIGHT: Final = 60_000
"""Bound on length times repetitions, summed over one schema: what compiling its patterns may cost."""

_UNICODE_CLASS = re.compile(r"\\[pP]")
_BACKTRACKING = re.compile(r"\(\?[=!<>]|\\[1-9kK]")
_COUNTED = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")


def without_unreadable_patterns(schema: Any, *, linear_only: bool = False) -> tuple[Any, tuple[str, ...], bool]:
    """Return a schema whose patterns all compile, the patterns left out, and whether one backtracks.

    The same object comes back when nothing had to be left out. The schema is within bounds, so the
    recursion below is shallow.
    """
    walk = _Walk(linear_only)
    return walk.copy(schema, True), tuple(walk.left_out), walk.backtracking


class _Walk:
    __slots__ = ("backtracking", "left_out", "linear_only", "weight")

    def __init__(self, linear_only: bool) -> None:
        self.linear_only = linear_only
        self.left_out: list[str] = []
        self.backtracking = False
        self.weight = 0

    def copy(self, node: Any, is_schema: bool) -> Any:
        if isinstance(node, list):
            items = [self.copy(item, True) if isinstance(item, dict | list) else item for item in node]
            return node if all(a is b for a, b in zip(items, node, strict=True)) else items
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
                copied = self.copy(below, not (is_schema and key in SCHEMA_MAPS))
                if copied is not child:
                    changed[key] = copied
        if not changed and not dropped:
            return node
        return {k: changed.get(k, v) for k, v in node.items() if k not in dropped}

    def _keeps(self, pattern: str) -> bool:
        self.weight += pattern_weight(pattern)
        engine = None if self.weight > MAX_PATTERN_WEIGHT else engine_for(pattern)
        if engine is None or (self.linear_only and engine != "linear"):
            self.left_out.append(pattern[:200])
            return False
        self.backtracking = self.backtracking or engine == "backtracking"
        return True


def pattern_weight(pattern: str) -> int:
    """Estimate what a pattern costs to compile: its length times its counted repetitions."""
    weight = len(pattern) + 20 + 500 * len(_UNICODE_CLASS.findall(pattern))
    if _BACKTRACKING.search(pattern):
        weight += 300
    for low, high in _COUNTED.findall(pattern):
        weight = min(weight * max(int(high or low), 1), MAX_PATTERN_WEIGHT * 2)
    return weight


@lru_cache(maxsize=4096)
def engine_for(pattern: str) -> str | None:
    """Return `linear`, `backtracking`, or None for a pattern that neither engine reads in bounds."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        return None
    import jsonschema_rs

    linear = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES)
    fancy = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=PATTERN_BYTES)
    for name, options in (("linear", linear), ("backtracking", fancy)):
        try:
            jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=options)
        except (jsonschema_rs.ValidationError, ValueError):
            continue
        return name
    return None
