"""A profile: what of the catalog one URL path shows, how much of it, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal

from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import SEPARATOR
from registry.catalog.shape import Level, ServerShape

DEFAULT: Final = "default"
PROTOCOL: Final = "mcp"
"""The dialect in which nothing is changed."""
Disclosure = Literal["eager", "auto", "lazy"]


def names_of(wrapper: ToolWrapper) -> tuple[str, ...]:
    """The names by which patterns select a wrapper: its own, its tool's, and both of its parts as they are."""
    return wrapper.name, wrapper.tool, f"{wrapper.server}{SEPARATOR}{wrapper.tool}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Servers, tags and tools by patterns; each that is given narrows further, `*` is all and empty is none."""

    servers: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None

    def selects_server(self, server: str, tags: tuple[str, ...]) -> bool:
        """Tell whether anything of a server can be selected."""
        if self.servers is not None and not _any(server, self.servers):
            return False
        return self.tags is None or "*" in self.tags or any(_any(tag, self.tags) for tag in tags)

    def selects(self, wrapper: ToolWrapper, tags: tuple[str, ...]) -> bool:
        """Tell whether a wrapper is selected; tool patterns match its name, with its alias or without."""
        if not self.selects_server(wrapper.server, tags):
            return False
        return self.tools is None or any(_any(name, self.tools) for name in names_of(wrapper))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One profile, as configuration describes it.

    Attributes:
        groups: Any one of them has to select, if there are any.
        max_tools: How many tools are listed at most, our own included; for `auto` only.
        max_tokens: How many tokens the list has at most; for `auto` only.
        supplements: Appended to descriptions, by wrapper name.
        guidance: Appended to descriptions of every server with that tag.
        instructions: Authored; generated where absent.
        repair: What may be repaired in its callers' calls, whatever servers and tools say.
    """

    name: str = DEFAULT
    selection: Selection = field(default_factory=Selection)
    groups: tuple[Selection, ...] | None = None
    disclosure: Disclosure = "eager"
    max_tools: int = 100
    max_tokens: int = 20_000
    dialect: str = PROTOCOL
    supplements: Mapping[str, str] = field(default_factory=dict)
    guidance: Mapping[str, str] = field(default_factory=dict)
    instructions: str | None = None
    repair: Level | None = None

    def permits(self, wrapper: ToolWrapper, shape: ServerShape) -> bool:
        """Tell whether callers of this profile may know of a wrapper and call it."""
        return self.selection.selects(wrapper, shape.tags) and (
            self.groups is None or any(group.selects(wrapper, shape.tags) for group in self.groups)
        )

    def permits_server(self, server: str, shape: ServerShape) -> bool:
        """Tell whether callers of this profile may know of a server."""
        return self.selection.selects_server(server, shape.tags) and (
            self.groups is None or any(group.selects_server(server, shape.tags) for group in self.groups)
        )


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
