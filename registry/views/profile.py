"""A profile: which part of the catalog one URL path shows, how much of it, and in which dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal

from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import NAME_SEPARATOR
from registry.catalog.shape import RepairLevel, ServerShape

DEFAULT_PROFILE: Final = "default"
# The dialect of the protocol itself, in which definitions are not changed.
PROTOCOL_DIALECT: Final = "mcp"
Disclosure = Literal["eager", "auto", "lazy"]


def selectable_names(wrapper: ToolWrapper) -> tuple[str, ...]:
    """Return the names that patterns may select a wrapper by: its own, its tool's, and alias and tool as configured."""
    return wrapper.name, wrapper.tool, f"{wrapper.server}{NAME_SEPARATOR}{wrapper.tool}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Patterns for servers, tags and tools. Each that is given narrows the selection; `*` is all, and empty is none."""

    servers: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None

    def selects_server(self, server: str, tags: tuple[str, ...]) -> bool:
        """Return whether anything of a server can be selected."""
        if self.servers is not None and not _matches_any(server, self.servers):
            return False
        return self.tags is None or "*" in self.tags or any(_matches_any(tag, self.tags) for tag in tags)

    def selects(self, wrapper: ToolWrapper, tags: tuple[str, ...]) -> bool:
        """Return whether a wrapper is selected; tool patterns match its name with or without the alias."""
        if not self.selects_server(wrapper.server, tags):
            return False
        return self.tools is None or any(_matches_any(name, self.tools) for name in selectable_names(wrapper))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One profile, as configuration describes it.

    Attributes:
        groups: If there are any, one of them has to select as well.
        max_tools: The most tools that are listed, our own included; for `auto` only.
        max_tokens: The most tokens that the list may cost; for `auto` only.
        supplements: Texts appended to descriptions, by wrapper name.
        guidance: Texts appended to the descriptions of every server with a tag.
        instructions: Configured instructions; generated if absent.
        repair: What may be repaired in its callers' calls, whatever is configured for servers and tools.
    """

    name: str = DEFAULT_PROFILE
    selection: Selection = field(default_factory=Selection)
    groups: tuple[Selection, ...] | None = None
    disclosure: Disclosure = "eager"
    # Below the 128 tools that OpenAI and VS Code accept, and a tenth of a context of 200,000 tokens.
    max_tools: int = 100
    max_tokens: int = 20_000
    dialect: str = PROTOCOL_DIALECT
    supplements: Mapping[str, str] = field(default_factory=dict)
    guidance: Mapping[str, str] = field(default_factory=dict)
    instructions: str | None = None
    repair: RepairLevel | None = None

    def permits(self, wrapper: ToolWrapper, shape: ServerShape) -> bool:
        """Return whether callers of this profile may see and call a wrapper."""
        return self._permits(lambda selection: selection.selects(wrapper, shape.tags))

    def permits_server(self, server: str, shape: ServerShape) -> bool:
        """Return whether callers of this profile may see a server."""
        return self._permits(lambda selection: selection.selects_server(server, shape.tags))

    def _permits(self, selects: Callable[[Selection], bool]) -> bool:
        return selects(self.selection) and (self.groups is None or any(map(selects, self.groups)))


def _matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
