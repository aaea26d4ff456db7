"""Convert the model of the file to the types of the registry: the shape of a server, and profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gateway.config.model import Config, GroupConfig, ProfileConfig
from gateway.config.server import Documentation, Prefix, ServerConfig, ToolConfig
from registry.catalog.filters import NameFilter
from registry.catalog.names import ToolName
from registry.catalog.notes import Note
from registry.catalog.overrides import OverrideRejected, ToolOverride, parse_arguments
from registry.catalog.shape import ServerShape, ToolHints
from registry.views.profile import Profile, Selection


def shape_of(config: ServerConfig, prefix: Prefix, notes: Mapping[str, tuple[Note, ...]]) -> ServerShape:
    """What the file says about one server and its tools, apart from how to reach it.

    Args:
        config: The server's entry.
        prefix: The default of the file, for entries without their own.
        notes: Notes of operators about its tools.
    """
    tools = config.tools
    return ServerShape(
        prefixed=(config.prefix or prefix) != "none",
        plain_nulls=config.plain_nulls,
        renames={ToolName(tool): entry.name for tool, entry in tools.items() if entry.name},
        named=frozenset(tools),
        hidden=frozenset(tool for tool, entry in tools.items() if entry.hidden),
        tools=_filter(config, "tools"),
        prompts=_filter(config, "prompts"),
        resources=_filter(config, "resources"),
        private_connections=config.elicitation,
        notes=notes,
        display_name=config.display_name,
        tags=tuple(config.tags),
        siblings=tuple(config.siblings),
        supplement=config.supplement,
        supplements={tool: entry.supplement for tool, entry in tools.items() if entry.supplement},
        examples={tool: tuple(entry.examples) for tool, entry in tools.items() if entry.examples},
        hints=_hints(config),
        tool_hints={tool: hints for tool, entry in tools.items() if (hints := _hints(entry)) != ToolHints()},
        pinned=frozenset(tool for tool, entry in tools.items() if entry.pinned),
        priority=config.priority,
        priorities={tool: entry.priority for tool, entry in tools.items() if entry.priority is not None},
        repair=config.repair,
        repairs={tool: entry.repair for tool, entry in tools.items() if entry.repair is not None},
        validation=config.validation,
        defaults=config.defaults,
        # Only tools with documentation: an empty override would cost every listing a merge.
        overrides={
            tool: _override(entry, config.documentation)
            for tool, entry in tools.items()
            if entry.arguments or entry.description
        },
    )


def profile_of(name: str, config: ProfileConfig, whole: Config) -> Profile:
    """One profile, with its groups resolved."""
    # None and an empty list differ: no restriction by groups, and nothing selected.
    groups = None
    if config.groups is not None:
        groups = tuple(_selection(whole.gateway.groups[group]) for group in config.groups)
    return Profile(
        name=name,
        selection=_selection(config),
        groups=groups,
        disclosure=config.disclosure,
        max_tools=config.max_tools,
        max_tokens=config.max_tokens,
        dialect=config.dialect,
        supplements=config.supplements,
        guidance=config.guidance,
        instructions=config.instructions,
        repair=config.repair,
    )


def _hints(config: ServerConfig | ToolConfig) -> ToolHints:
    return ToolHints(
        annotations=config.annotations.given, search_hint=config.search_hint, always_load=config.always_load
    )


def _selection(config: GroupConfig) -> Selection:
    return Selection(
        servers=_patterns(config.servers),
        tags=_patterns(config.tags),
        tools=_patterns(config.tools),
        prompts=_patterns(config.prompts),
        resources=_patterns(config.resources),
    )


def _filter(config: ServerConfig, kind: Literal["tools", "prompts", "resources"]) -> NameFilter:
    """What of a kind an entry exposes."""
    allowed: list[str] | None = getattr(config.allow, kind)
    denied: list[str] | None = getattr(config.deny, kind)
    return NameFilter(("*",) if allowed is None else tuple(allowed), tuple(denied or ()))


def _patterns(patterns: list[str] | None) -> tuple[str, ...] | None:
    return None if patterns is None else tuple(patterns)


def _override(config: ToolConfig, documentation: Documentation) -> ToolOverride:
    """The overrides of one tool of a server that says what arguments are. Invalid ones disable only themselves."""
    # Not an error of the whole file: one misspelt argument must not keep the gateway from starting.
    try:
        arguments, rejected = parse_arguments(config.arguments), None
    except OverrideRejected as error:
        arguments, rejected = (), str(error)
    return ToolOverride(
        arguments=arguments,
        replace=config.mode == "replace",
        hint=(config.documentation or documentation) == "hint",
        description=config.description,
        rejected=rejected,
    )
