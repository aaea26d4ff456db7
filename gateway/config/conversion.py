"""Convert sections of the configuration to the types of the package `registry`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gateway.config.model import Config, GroupConfig, ProfileConfig
from gateway.config.policy_config import ArgumentConditionConfig, AskConfig, RuleConfig, WhenConfig
from gateway.config.server import Documentation, Prefix, ResultsConfig, ServerConfig, ToolConfig
from registry.catalog.names import ToolName
from registry.catalog.overrides import Note, OverrideRejected, ToolOverride, parse_arguments
from registry.catalog.shape import NO_RESULT_RULES, NameFilter, ResultRules, ServerShape, ToolHints
from registry.policy.policy import Policy
from registry.policy.rules import KINDS, ArgumentCondition, CallerPatterns, Conditions, ItemPatterns, Kind, Rule
from registry.views.profile import Profile, Selection


def shape_of(config: ServerConfig, prefix: Prefix, notes: Mapping[str, tuple[Note, ...]]) -> ServerShape:
    """Convert everything that a server entry says about the server and its tools, except how to connect.

    Args:
        config: The server entry.
        prefix: The prefix to use if the entry does not set one.
        notes: Notes about the tools of the server, by tool.
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
        has_instances=config.has_instances,
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
        results=_result_rules(config.results),
        tool_results={
            tool: rules for tool, entry in tools.items() if (rules := _result_rules(entry.results)) != NO_RESULT_RULES
        },
        # Leave out tools without documentation, because even an empty override would be merged into every listing.
        overrides={
            tool: _override(entry, config.documentation)
            for tool, entry in tools.items()
            if entry.arguments or entry.description
        },
    )


def profile_of(name: str, config: ProfileConfig, full_config: Config) -> Profile:
    """Convert a profile and resolve the names of its groups."""
    # None means no restriction by groups; an empty list selects nothing.
    groups = None
    if config.groups is not None:
        groups = tuple(_selection(full_config.gateway.groups[group]) for group in config.groups)
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
        results=_result_rules(config.results),
    )


def profiles_of(config: Config) -> dict[str, Profile]:
    """Convert all profiles."""
    return {name: profile_of(name, profile, config) for name, profile in config.gateway.profiles.items()}


def policy_of(config: Config) -> Policy:
    """Convert the policy rules."""
    policy = config.gateway.policy
    return Policy(map(_rule, policy.rules), default=policy.default, max_length=config.gateway.names.max_length)


def _rule(config: RuleConfig) -> Rule:
    ask = config.ask or AskConfig()
    conditions = _conditions(config.when)
    only_tools = config.effect == "ask" or bool(conditions.arguments) or config.wrappers is not None
    kinds: list[Kind] = ["tools"] if only_tools else [*(config.kinds or KINDS)]
    return Rule(
        name=config.name,
        effect=config.effect,
        who=CallerPatterns(
            principals=_patterns(config.principals),
            groups=_patterns(config.groups),
            scopes=_patterns(config.scopes),
            claims={name: tuple(patterns) for name, patterns in config.claims.items()},
        ),
        what=ItemPatterns(
            kinds=frozenset(kinds),
            servers=_patterns(config.servers),
            tags=_patterns(config.tags),
            patterns=_patterns(config.patterns),
            wrappers=_patterns(config.wrappers),
        ),
        conditions=conditions,
        ask_conditions=_conditions(ask.when),
        asks=ask.by,
    )


def _conditions(when: WhenConfig | None) -> Conditions:
    if when is None:
        return Conditions()
    hints = {
        "readOnlyHint": when.read_only,
        "destructiveHint": when.destructive,
        "idempotentHint": when.idempotent,
        "openWorldHint": when.open_world,
    }
    return Conditions(
        hints={name: value for name, value in hints.items() if value is not None},
        arguments=tuple(_argument_condition(path, condition) for path, condition in when.arguments.items()),
    )


def _argument_condition(path: str, config: ArgumentConditionConfig) -> ArgumentCondition:
    equals = config.one_of if "equals" not in config.model_fields_set else [config.equals, *(config.one_of or ())]
    return ArgumentCondition(
        path=path,
        equals=None if equals is None else tuple(equals),
        excludes=None if config.none_of is None else tuple(config.none_of),
        pattern=config.pattern,
        present=config.present,
        above=config.above,
        below=config.below,
    )


def _result_rules(config: ResultsConfig) -> ResultRules:
    return ResultRules(
        select=config.select,
        max_bytes=config.max_bytes,
        max_binary_bytes=config.max_binary_bytes,
        binary_types=_patterns(config.binary_types),
    )


def _hints(config: ServerConfig | ToolConfig) -> ToolHints:
    return ToolHints(
        annotations=config.annotations.as_members,
        search_hint=config.search_hint,
        always_load=config.always_load,
        max_result_chars=config.max_result_size_chars,
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
    """Return the patterns that `allow` and `deny` of an entry have for one kind of items."""
    allowed: list[str] | None = getattr(config.allow, kind)
    denied: list[str] | None = getattr(config.deny, kind)
    return NameFilter(("*",) if allowed is None else tuple(allowed), tuple(denied or ()))


def _patterns(patterns: list[str] | None) -> tuple[str, ...] | None:
    return None if patterns is None else tuple(patterns)


def _override(config: ToolConfig, documentation: Documentation) -> ToolOverride:
    """Convert the overrides of a tool, with the server's default for `documentation`."""
    # Invalid documentation disables only this override: one misspelt argument must not prevent the start.
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
