"""What configuration says of servers and their tools, as the catalog and the calls need it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from registry.catalog.names import ServerName, ToolName
from registry.catalog.notes import Note
from registry.catalog.overrides import Overlay

Level = Literal["off", "safe", "full"]
"""What may be repaired in a call; `registry.arguments.repair` says what each contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerShape:
    """How one server's tools are named, documented and called, and which of them exist; patterns match upstream names.

    Attributes:
        notes: What operators have noted about tools.
        repair: What may be repaired in calls of this server, `repairs` of single tools.
        defaults: Values for parameters of these names that a call leaves out.
        plain_nulls: Schemas are shown without null where they take something else beside it.
    """

    prefixed: bool = True
    plain_nulls: bool = False
    renames: Mapping[ToolName, str] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    overlays: Mapping[str, Overlay] = field(default_factory=dict)
    notes: Mapping[str, tuple[Note, ...]] = field(default_factory=dict)
    display_name: str | None = None
    tags: tuple[str, ...] = ()
    siblings: tuple[str, ...] = ()
    supplement: str | None = None
    supplements: Mapping[str, str] = field(default_factory=dict)
    examples: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    annotations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    search_hints: Mapping[str, str] = field(default_factory=dict)
    always_load: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    priority: int = 0
    priorities: Mapping[str, int] = field(default_factory=dict)
    repair: Level = "safe"
    repairs: Mapping[str, Level] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def repair_of(self, tool: str) -> Level:
        """Tell what may be repaired in calls of this tool."""
        return self.repairs.get(tool, self.repair)

    def shows(self, tool: str) -> bool:
        """Tell whether this tool has a wrapper at all."""
        return (
            tool not in self.hidden
            and any(fnmatchcase(tool, pattern) for pattern in self.allow)
            and not any(fnmatchcase(tool, pattern) for pattern in self.deny)
        )


_DEFAULT: Final = ServerShape()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What configuration says about the catalog; the order of servers settles clashes of bare names."""

    max_length: int = 48
    servers: Mapping[ServerName, ServerShape] = field(default_factory=dict)

    def of(self, server: ServerName) -> ServerShape:
        """Return the shape of one server; the defaults if configuration says nothing about it."""
        return self.servers.get(server, _DEFAULT)
