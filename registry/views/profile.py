"""A profile: which part of the catalog one URL path shows, how much of it, and in which dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal

from registry.catalog.catalog import ToolWrapper
from registry.catalog.filters import selects_name, server_of
from registry.catalog.prompts_and_resources import ListedItem
from registry.catalog.shape import RepairLevel, ServerShape
from registry.catalog.uri_spellings import allows_uri

DEFAULT_PROFILE: Final = "default"
# The dialect of the protocol itself, in which definitions are not changed.
PROTOCOL_DIALECT: Final = "mcp"
Disclosure = Literal["eager", "auto", "lazy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Patterns for servers, tags, tools, prompts and resources; `*` is all, and an empty list is none.

    Each that is given narrows the selection. Where tools are narrowed and prompts or resources are not mentioned, only
    those of servers are selected that it names: by `servers`, by `tags`, or in front of a `__`.
    """

    servers: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    prompts: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None

    def selects_server(self, server: str, tags: tuple[str, ...]) -> bool:
        """Return whether anything of a server can be selected."""
        if not self._covers(server, tags):
            return False
        if self.tools is None or self.names_server(server, tags) or self.resources:
            return True
        aliases = map(server_of, (*self.tools, *(self.prompts or ())))
        return any(alias is None or fnmatchcase(server, alias) for alias in aliases)

    def names_server(self, server: str, tags: tuple[str, ...]) -> bool:
        """Return whether a server is meant by its name or a tag of its own, and not just among all."""
        if not self._covers(server, tags):
            return False
        if any("*" not in patterns for patterns in (self.servers, self.tags) if patterns is not None):
            return True
        aliases = map(server_of, self.tools or ())
        return any(alias not in (None, "*") and fnmatchcase(server, alias) for alias in aliases if alias is not None)

    def selects(self, wrapper: ToolWrapper, shape: ServerShape) -> bool:
        """Return whether a wrapper is selected."""
        if not self._covers(wrapper.server, shape.tags):
            return False
        return self.tools is None or any(selects_wrapper(pattern, wrapper, shape) for pattern in self.tools)

    def selects_prompt(self, prompt: ListedItem, shape: ServerShape, *, named: bool) -> bool:
        """Return whether a prompt is selected.

        Args:
            prompt: The prompt.
            shape: Of its server.
            named: Whether the profile names its server.
        """
        if not self._covers(prompt.server, shape.tags):
            return False
        if self.prompts is None:
            return named or not self._narrows_tools
        return any(selects_prompt(pattern, prompt, shape) for pattern in self.prompts)

    def selects_uri(self, server: str, uri: str, shape: ServerShape, *, named: bool) -> bool:
        """Return whether a resource, a template or a URI that may be read is selected; see `selects_prompt`."""
        if not self._covers(server, shape.tags):
            return False
        return (named or not self._narrows_tools) if self.resources is None else allows_uri(uri, self.resources)

    @property
    def _narrows_tools(self) -> bool:
        return self.tools is not None and "*" not in self.tools

    def _covers(self, server: str, tags: tuple[str, ...]) -> bool:
        if self.servers is not None and not _matches_any(server, self.servers):
            return False
        return self.tags is None or "*" in self.tags or any(_matches_any(tag, self.tags) for tag in tags)


def selects_wrapper(pattern: str, wrapper: ToolWrapper, shape: ServerShape) -> bool:
    """Return whether a pattern selects a wrapper."""
    return selects_name(
        pattern, server=wrapper.server, original=wrapper.tool, shown=wrapper.name, prefixed=shape.prefixed
    )


def selects_prompt(pattern: str, prompt: ListedItem, shape: ServerShape) -> bool:
    """Return whether a pattern selects a prompt."""
    return selects_name(
        pattern, server=prompt.server, original=prompt.original, shown=prompt.key, prefixed=shape.prefixed
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One profile, as configuration describes it.

    Attributes:
        groups: If there are any, one of them has to select as well.
        max_tools: The most tools that are listed, our own included; not for `eager`.
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
        return self._permits(lambda selection: selection.selects(wrapper, shape))

    def permits_prompt(self, prompt: ListedItem, shape: ServerShape) -> bool:
        """Return whether callers of this profile may see and get a prompt."""
        named = self._names_server(prompt.server, shape)
        return self._permits(lambda selection: selection.selects_prompt(prompt, shape, named=named))

    def permits_uri(self, server: str, uri: str, shape: ServerShape) -> bool:
        """Return whether callers of this profile may have a server read a URI, or see it listed."""
        named = self._names_server(server, shape)
        return self._permits(lambda selection: selection.selects_uri(server, uri, shape, named=named))

    @property
    def permits_all(self) -> bool:
        """Whether it shows the whole catalog."""
        return self.selection == Selection() and self.groups is None

    def permits_server(self, server: str, shape: ServerShape) -> bool:
        """Return whether callers of this profile may see a server."""
        return self._permits(lambda selection: selection.selects_server(server, shape.tags))

    def _names_server(self, server: str, shape: ServerShape) -> bool:
        return any(selection.names_server(server, shape.tags) for selection in (self.selection, *(self.groups or ())))

    def _permits(self, selects: Callable[[Selection], bool]) -> bool:
        return selects(self.selection) and (self.groups is None or any(map(selects, self.groups)))


def _matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
