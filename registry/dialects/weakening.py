"""What a lowered schema no longer says: noted for operators, told to readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from registry.dialects import hints
from registry.schema.json_paths import Path

PLACE: Final = frozenset({"$id", "$schema", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$defs", "definitions"})
"""Keywords that say where a schema is, and nothing about values."""
_UNTOLD: Final = PLACE | {"$comment", "title", "$vocabulary"}


@dataclass(frozen=True, slots=True)
class Weakening:
    """What one place of a lowered schema no longer says.

    Attributes:
        path: The steps from the root of the lowered schema; empty for the root and the tool as a whole.
        keyword: What was changed there.
        how: One phrase.
        narrower: A call that the original accepts may not be expressible; otherwise more is accepted.
    """

    path: Path
    keyword: str
    how: str
    narrower: bool = False


@dataclass(slots=True)
class Spot:
    """One schema while it is lowered.

    Attributes:
        path: Where it will be.
        told: What its description has to say.
        entered: The definitions that were opened for it.
    """

    path: Path
    told: list[str] = field(default_factory=list)
    entered: list[int] = field(default_factory=list)


class Report:
    """Everything that was noted in one pass."""

    __slots__ = ("weakened",)

    def __init__(self) -> None:
        self.weakened: list[Weakening] = []

    def note(self, path: Path, keyword: str, how: str, *, narrower: bool = False) -> None:
        """Note one thing for operators."""
        self.weakened.append(Weakening(path, keyword, how, narrower))

    def tell(self, keyword: str, node: Mapping[str, Any], spot: Spot) -> None:
        """Put a keyword that goes into words, as far as it has any, and note it."""
        words = hints.hint(keyword, node)
        if words:
            spot.told.append(words)
        if keyword not in _UNTOLD and not keyword.startswith("x-"):
            self.note(spot.path, keyword, f"told: {words}" if words else "removed")
