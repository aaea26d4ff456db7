"""Profiles: a profile selects the wrappers for one URL path, and the dialect of JSON Schema for its clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal

from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.listed_items import ListedItem
from registry.catalog.names import ServerName
from registry.catalog.shape import (
    NO_RESULT_RULES,
    RepairLevel,
    ResultRules,
    ServerShape,
    Shape,
    selects_name,
    server_of,
)
from registry.catalog.uris import allows_uri, denies_uri, pattern_of_template
from registry.policy.policy import CallRules, Grant

DEFAULT_PROFILE: Final = "default"
# The dialect for clients that support the whole protocol. It does not change definitions.
PROTOCOL_DIALECT: Final = "mcp"
Disclosure = Literal["eager", "auto", "lazy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Patterns that select items by server, tag, tool, prompt and resource; `*` selects all, and an empty list none.

    Each given list narrows the selection. If `tools` does so, a kind whose list is not given (prompts or resources) is
    selected only from servers that the selection names in `servers`, by `tags`, or before `__` in `tools`.
    """

    servers: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    prompts: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None

    def selects_server(self, server: str, tags: tuple[str, ...]) -> bool:
        """Return whether at least one item of a server may be selected."""
        if not self._covers_server(server, tags):
            return False
        if self.tools is None or self.names_server(server, tags) or self.resources:
            return True
        aliases = map(server_of, (*self.tools, *(self.prompts or ())))
        return any(alias is None or fnmatchcase(server, alias) for alias in aliases)

    def names_server(self, server: str, tags: tuple[str, ...]) -> bool:
        """Return whether the selection names a server by its alias or by one of its tags, and not only by `*`."""
        if not self._covers_server(server, tags):
            return False
        if any("*" not in patterns for patterns in (self.servers, self.tags) if patterns is not None):
            return True
        aliases = map(server_of, self.tools or ())
        return any(alias not in (None, "*") and fnmatchcase(server, alias) for alias in aliases if alias is not None)

    def selects(self, wrapper: ToolWrapper, shape: ServerShape) -> bool:
        """Return whether a wrapper is selected."""
        if not self._covers_server(wrapper.server, shape.tags):
            return False
        return self.tools is None or any(selects_wrapper(pattern, wrapper, shape) for pattern in self.tools)

    def selects_prompt(self, prompt: ListedItem, shape: ServerShape, *, names_server: bool) -> bool:
        """Return whether a prompt is selected.

        Args:
            shape: The configuration of the prompt's server.
            names_server: Whether the profile names the prompt's server.
        """
        if not self._covers_server(prompt.server, shape.tags):
            return False
        if self.prompts is None:
            return names_server or not self._narrows_tools
        return any(selects_prompt(pattern, prompt, shape) for pattern in self.prompts)

    def selects_uri(self, server: str, uri: str, shape: ServerShape, *, names_server: bool) -> bool:
        """Return whether a resource, a template or another URI is selected. For arguments, see `selects_prompt`."""
        if not self._covers_server(server, shape.tags):
            return False
        return (names_server or not self._narrows_tools) if self.resources is None else allows_uri(uri, self.resources)

    @property
    def _narrows_tools(self) -> bool:
        return self.tools is not None and "*" not in self.tools

    def _covers_server(self, server: str, tags: tuple[str, ...]) -> bool:
        if self.servers is not None and not _matches_any(server, self.servers):
            return False
        return self.tags is None or "*" in self.tags or any(_matches_any(tag, self.tags) for tag in tags)


def selects_wrapper(pattern: str, wrapper: ToolWrapper, shape: ServerShape) -> bool:
    """Return whether a pattern selects a wrapper."""
    return selects_name(
        pattern, server=wrapper.server, original=wrapper.tool, exposed=wrapper.name, prefixed=shape.prefixed
    )


def selects_prompt(pattern: str, prompt: ListedItem, shape: ServerShape) -> bool:
    """Return whether a pattern selects a prompt."""
    return selects_name(
        pattern, server=prompt.server, original=prompt.original, exposed=prompt.key, prefixed=shape.prefixed
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The configuration of one profile.

    Attributes:
        groups: If given, an item has to match one of these selections in addition to `selection`.
        disclosure: Which of the tools are listed; `plan_disclosure` describes the values.
        max_tools, max_tokens: The limits of the tool list; `eager` has none, and only `auto` counts tokens.
        supplements: Texts appended to descriptions, by wrapper name.
        guidance: Texts appended to the descriptions of all tools of servers with a tag, by tag.
        instructions: The instructions for models; None for generated instructions.
        repair: How far the gateway may repair the arguments of calls; None for the setting of the server or tool.
        results: Limits of the results that callers receive, in addition to the limits of servers and tools.
    """

    name: str = DEFAULT_PROFILE
    selection: Selection = field(default_factory=Selection)
    groups: tuple[Selection, ...] | None = None
    disclosure: Disclosure = "eager"
    # 100 is less than the 128 tools that OpenAI and VS Code accept; 20,000 is a tenth of a context of 200,000 tokens.
    max_tools: int = 100
    max_tokens: int = 20_000
    dialect: str = PROTOCOL_DIALECT
    supplements: Mapping[str, str] = field(default_factory=dict)
    guidance: Mapping[str, str] = field(default_factory=dict)
    instructions: str | None = None
    repair: RepairLevel | None = None
    results: ResultRules = NO_RESULT_RULES

    def permits(self, wrapper: ToolWrapper, shape: ServerShape) -> bool:
        """Return whether the profile shows a wrapper."""
        return self._permits(lambda selection: selection.selects(wrapper, shape))

    def permits_prompt(self, prompt: ListedItem, shape: ServerShape) -> bool:
        """Return whether the profile shows a prompt."""
        names_server = self._names_server(prompt.server, shape)
        return self._permits(lambda selection: selection.selects_prompt(prompt, shape, names_server=names_server))

    def permits_uri(self, server: str, uri: str, shape: ServerShape) -> bool:
        """Return whether the profile lists a URI of a server and allows reading it."""
        names_server = self._names_server(server, shape)
        return self._permits(lambda selection: selection.selects_uri(server, uri, shape, names_server=names_server))

    @property
    def permits_all(self) -> bool:
        """True if the profile shows the whole catalog."""
        return self.selection == Selection() and self.groups is None

    def permits_server(self, server: str, shape: ServerShape) -> bool:
        """Return whether the profile shows a server."""
        return self._permits(lambda selection: selection.selects_server(server, shape.tags))

    def _names_server(self, server: str, shape: ServerShape) -> bool:
        return any(selection.names_server(server, shape.tags) for selection in (self.selection, *(self.groups or ())))

    def _permits(self, selects: Callable[[Selection], bool]) -> bool:
        return selects(self.selection) and (self.groups is None or any(map(selects, self.groups)))


def _matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def narrow_catalog(
    catalog: Catalog, shape: Shape, profile: Profile, grant: Grant
) -> tuple[Catalog, Mapping[str, CallRules], tuple[ServerName, ...]]:
    """Return the part of a catalog that a profile and the rights of a caller permit.

    Args:
        shape: The configuration of the servers.
        grant: The rights of the caller.

    Returns:
        The permitted part of the catalog; the rules that decide about each call of a tool, by wrapper name, for tools
        that have such rules; and all permitted servers in the configuration, even if they have not listed items yet.
    """

    def shape_of(server: str) -> ServerShape:
        return shape.for_server(ServerName(server))

    servers = tuple(server for server, own in shape.servers.items() if profile.permits_server(server, own))
    if profile.permits_all and grant.is_open:
        return catalog, {}, servers
    if grant.is_open:
        narrowed = catalog.narrowed(
            wrappers=lambda wrapper: profile.permits(wrapper, shape_of(wrapper.server)),
            server=lambda server: profile.permits_server(server, shape_of(server)),
            prompts=lambda prompt: profile.permits_prompt(prompt, shape_of(prompt.server)),
            resources=lambda item: profile.permits_uri(item.server, item.original, shape_of(item.server)),
            uris=lambda server, uri: profile.permits_uri(server, uri, shape_of(server)),
        )
        return narrowed, {}, servers

    call_rules: dict[str, CallRules] = {}

    def permits(wrapper: ToolWrapper) -> bool:
        own = shape_of(wrapper.server)
        if not profile.permits(wrapper, own):
            return False
        decided = grant.tool(wrapper, own, grant.rules_for_server(wrapper.server, own))
        if isinstance(decided, CallRules):
            call_rules[wrapper.name] = decided
            return True
        return decided.effect != "deny"

    def permits_server(server: ServerName) -> bool:
        own = shape_of(server)
        return profile.permits_server(server, own) and grant.permits_server(server, own)

    def permits_uri(server: str, uri: str) -> bool:
        own = shape_of(server)
        return profile.permits_uri(server, uri, own) and grant.uri(server, uri, own).effect != "deny"

    # A denied template denies all URIs to which it expands, as a `deny` in the configuration of its server would.
    denied: dict[str, tuple[str, ...]] = {}
    for item in catalog.prompts_and_resources.templates:
        if grant.denies_uri(item.server, item.original, shape_of(item.server)):
            denied[item.server] = (*denied.get(item.server, ()), pattern_of_template(item.original))

    def narrowed_to(permits_server: Mapping[ServerName, bool]) -> Catalog:
        return catalog.narrowed(
            wrappers=permits,
            server=lambda server: permits_server[server],
            prompts=lambda prompt: (
                profile.permits_prompt(prompt, shape_of(prompt.server))
                and grant.prompt(prompt, shape_of(prompt.server)).effect != "deny"
            ),
            resources=lambda item: permits_uri(item.server, item.original),
            uris=permits_uri,
            never=lambda server, uri: (
                not grant.denies_uri(server, uri, shape_of(server)) and not denies_uri(uri, denied.get(server, ()))
            ),
        )

    permitted = {server: permits_server(server) for server in catalog.servers}
    narrowed = narrowed_to(permitted)
    # If a server has items, but none that this caller may use, hide the server itself as well.
    empty = {
        server for server in narrowed.servers if catalog.has_items_of(server) and not narrowed.has_items_of(server)
    }
    if empty:
        narrowed = narrowed_to(
            {server: is_permitted and server not in empty for server, is_permitted in permitted.items()}
        )
    return (
        narrowed,
        call_rules,
        tuple(server for server in servers if server not in empty and grant.permits_server(server, shape_of(server))),
    )
