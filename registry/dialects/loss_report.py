"""What a lowered schema no longer says: recorded for operators, and described to models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from registry.dialects import schema_prose
from registry.schema.json_paths import JsonPath

# Keywords that identify or locate a schema, and say nothing about values.
IDENTITY_KEYWORDS: Final = frozenset(
    {"$id", "$schema", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$defs", "definitions"}
)
# Without these a schema means the same, so their removal is no loss.
_NOT_REPORTED: Final = IDENTITY_KEYWORDS | {"$comment", "title", "$vocabulary"}


@dataclass(frozen=True, slots=True)
class SchemaLoss:
    """What one place of a lowered schema no longer says.

    Attributes:
        path: Where in the lowered schema; empty for the root and the tool as a whole.
        keyword: What was changed there.
        how: One phrase.
        narrower: Some call that the original accepts cannot be expressed; otherwise more is accepted.
    """

    path: JsonPath
    keyword: str
    how: str
    narrower: bool = False


@dataclass(slots=True)
class SchemaPosition:
    """One schema while it is lowered.

    Attributes:
        path: Where it will be.
        remarks: What has to be added to its description.
        opened: The definitions that were expanded into it, by identity.
    """

    path: JsonPath
    remarks: list[str] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)


class LossReport:
    """Everything that was lost in one pass."""

    __slots__ = ("losses",)

    def __init__(self) -> None:
        self.losses: list[SchemaLoss] = []

    def record(self, path: JsonPath, keyword: str, how: str, *, narrower: bool = False) -> None:
        """Record one loss for operators."""
        self.losses.append(SchemaLoss(path, keyword, how, narrower))

    def describe(self, keyword: str, node: Mapping[str, Any], position: SchemaPosition) -> None:
        """Record the loss of a keyword, and describe it to models if that is possible in a few words."""
        prose = schema_prose.describe_keyword(keyword, node)
        if prose:
            position.remarks.append(prose)
        if keyword not in _NOT_REPORTED and not keyword.startswith("x-"):
            self.record(position.path, keyword, f"told: {prose}" if prose else "removed")
