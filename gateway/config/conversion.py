"""Convert the model of the file to the types of the registry: the shape of a server, and profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gateway.config.model import Config, GroupConfig, ProfileConfig
from gateway.config.policy import ArgumentConditionConfig, AskConfig, RuleConfig, WhenConfig
from gateway.config.server import Documentation, Prefix, ServerConfig, ToolConfig
from registry.catalog.filters import NameFilter
from registry.catalog.names import ToolName
from registry.catalog.notes import Note
from registry.catalog.overrides import OverrideRejected, ToolOverride, parse_arguments
from registry.catalog.shape import ServerShape, ToolHints
from registry.policy.conditions import ArgumentCondition, Conditions
from registry.policy.policy import Policy
from registry.policy.rules import KINDS, Kind, Rule, What, Who
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


def policy_of(config: Config) -> Policy:
    """The rules of the file."""
    policy = config.gateway.policy
    return Policy(
        map(_rule, policy.rules), default=policy.default, max_length=config.gateway.names.max_length
    )  # fmt: skip


def _rule(config: RuleConfig) -> Rule:
    ask = config.ask or AskConfig()
    conditions = _conditions(config.when)
    only_tools = config.effect == "ask" or bool(conditions.arguments) or config.wrappers is not None
    kinds: list[Kind] = ["tools"] if only_tools else [*(config.kinds or KINDS)]
    return Rule(
        name=config.name,
        effect=config.effect,
        who=Who(
            principals=_patterns(config.principals),
            groups=_patterns(config.groups),
            scopes=_patterns(config.scopes),
            claims={name: tuple(patterns) for name, patterns in config.claims.items()},
        ),
        what=What(
            kinds=frozenset(kinds),
            servers=_patterns(config.servers),
            tags=_patterns(config.tags),
            patterns=_patterns(config.patterns),
            wrappers=_patterns(config.wrappers),
        ),
        conditions=conditions,
        asked=_conditions(ask.when),
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
        hints={name: wanted for name, wanted in hints.items() if wanted is not None},
        arguments=tuple(_argument_condition(path, one) for path, one in when.arguments.items()),
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
