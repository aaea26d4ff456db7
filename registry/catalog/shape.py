"""What configuration says about servers and their tools, in the form that the catalog and calls need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from registry.catalog.filters import OPEN, NameFilter
from registry.catalog.hints import Hints, careful, hints_of
from registry.catalog.names import DEFAULT_NAME_LENGTH, ServerName, ToolName
from registry.catalog.notes import Note
from registry.catalog.overrides import ToolOverride

# What may be repaired in a call; the docstring of `registry.arguments.repair` defines the levels.
RepairLevel = Literal["off", "safe", "full"]
# What becomes of arguments that cannot be checked within bounds: refused, or sent and reported as unchecked.
Validation = Literal["strict", "lenient"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolHints:
    """What configuration tells hosts about tools beside their descriptions.

    Attributes:
        annotations: Those to add; the upstream's own have precedence.
        search_hint: Words by which hosts find a tool.
        always_load: Whether hosts that load tools on demand load it at once; None where that is not said.
    """

    annotations: Mapping[str, Any] = field(default_factory=dict)
    search_hint: str | None = None
    always_load: bool | None = None

    def over(self, other: ToolHints) -> ToolHints:
        """Return these hints, and others where these say nothing."""
        return ToolHints(
            annotations={**other.annotations, **self.annotations},
            search_hint=self.search_hint or other.search_hint,
            always_load=other.always_load if self.always_load is None else self.always_load,
        )


_NO_HINTS: Final = ToolHints()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerShape:
    """How one server's tools are named, documented and called, and which are exposed. Patterns match upstream names.

    Attributes:
        named: Every tool of which configuration says anything.
        hidden: Tools that are not exposed, whatever `tools` says.
        tools, prompts, resources: Which of each kind are exposed; those of resources are for their templates too.
        private_connections: A session that can be asked has a connection of its own.
        notes: Operators' notes, by tool.
        repair: What may be repaired in calls of this server; `repairs` has single tools.
        validation: Whether arguments that cannot be checked are refused.
        defaults: Values for parameters of these names, where a call omits them.
        hints: For every tool; `tool_hints` has those of single tools, which have precedence.
        plain_nulls: Show optional arguments without null as an alternative.
    """

    prefixed: bool = True
    plain_nulls: bool = False
    renames: Mapping[ToolName, str] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()
    tools: NameFilter = OPEN
    prompts: NameFilter = OPEN
    resources: NameFilter = OPEN
    private_connections: bool = False
    overrides: Mapping[str, ToolOverride] = field(default_factory=dict)
    notes: Mapping[str, tuple[Note, ...]] = field(default_factory=dict)
    display_name: str | None = None
    tags: tuple[str, ...] = ()
    siblings: tuple[str, ...] = ()
    supplement: str | None = None
    supplements: Mapping[str, str] = field(default_factory=dict)
    examples: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    hints: ToolHints = _NO_HINTS
    tool_hints: Mapping[str, ToolHints] = field(default_factory=dict)
    pinned: frozenset[str] = frozenset()
    priority: int = 0
    priorities: Mapping[str, int] = field(default_factory=dict)
    repair: RepairLevel = "safe"
    repairs: Mapping[str, RepairLevel] = field(default_factory=dict)
    validation: Validation = "lenient"
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def repair_level(self, tool: str) -> RepairLevel:
        """Return what may be repaired in calls of this tool."""
        return self.repairs.get(tool, self.repair)

    def hints_of(self, tool: str) -> ToolHints:
        """Return what hosts are told about this tool."""
        own = self.tool_hints.get(tool)
        return self.hints if own is None else own.over(self.hints)

    def rights_of(self, tool: str, hints: Hints) -> Hints:
        """Return what a tool with these hints counts as: the operator's word on the tool decides.

        What is said of the whole server stands for what the tool does not say, and never makes it less harmful.
        """
        own, whole = self.tool_hints.get(tool), hints_of(self.hints.annotations)
        if whole:
            hints = careful(hints_of({**whole, **hints}), hints_of({**hints, **whole}))
        return hints if own is None else hints_of({**hints, **hints_of(own.annotations)})

    def exposes(self, tool: str) -> bool:
        """Return whether this tool has a wrapper at all."""
        return tool not in self.hidden and self.tools.admits(tool)


_DEFAULT: Final = ServerShape()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What configuration says about the catalog; the order of servers decides who keeps a shared unprefixed name."""

    max_length: int = DEFAULT_NAME_LENGTH
    servers: Mapping[ServerName, ServerShape] = field(default_factory=dict)

    def of(self, server: ServerName) -> ServerShape:
        """Return the shape of one server; the defaults if configuration says nothing about it."""
        return self.servers.get(server, _DEFAULT)
