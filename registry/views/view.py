"""The catalog as one profile shows it; a pure function of catalog and configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.listing import suggestion_for
from registry.catalog.names import NAME_SEPARATOR, ServerName
from registry.catalog.shape import RepairLevel, ResultRules, ServerShape, Shape
from registry.catalog.uris import allows_uri
from registry.dialects.client_profiles import DIALECTS, unsupported_names
from registry.dialects.definitions import LoweredDefinition, lower_definition
from registry.dialects.shaping import remove_null_alternatives
from registry.policy.policy import EVERYTHING, CallRules, Grant
from registry.schema.schemas import compact_json, digest
from registry.views.descriptions import (
    MAX_DESCRIPTION,
    contextual_definition,
    takes_selection,
    with_hints,
    with_result_rules,
)
from registry.views.disclosure import Candidate, Reason, estimate_tokens, plan_disclosure
from registry.views.profile import Profile, narrow_catalog, selects_prompt, selects_wrapper

# For servers without configuration.
_UNSHAPED = ServerShape()
# The inputs to a definition's texts besides the wrapper: its server's configuration, and the siblings to mention.
_Context = tuple[ServerShape, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewEntry:
    """One wrapper as a profile shows it.

    Attributes:
        lowered: The definition in the profile's dialect, with the data to map arguments back.
        digest: Digest of that definition.
        tokens: Estimated tokens of the definition in a list; only computed for `auto`.
        listed: Whether the wrapper is listed, or has to be searched for.
        reason: Why it is listed or not.
        omitted: The part of the configured text that the description has no room for, in words, or None.
    """

    wrapper: ToolWrapper
    lowered: LoweredDefinition
    digest: str
    tokens: int
    listed: bool
    reason: Reason
    omitted: str | None = None

    @property
    def name(self) -> str:
        """The wrapper's name."""
        return self.wrapper.name

    @property
    def server(self) -> str:
        """The alias of the wrapper's server."""
        return self.wrapper.server

    @property
    def tool(self) -> str:
        """The upstream's name of the tool."""
        return self.wrapper.tool

    @property
    def definition(self) -> Mapping[str, Any]:
        """The listed definition."""
        return self.lowered.definition


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The items that callers of one profile with the same rights can see and use at one moment. Immutable.

    Attributes:
        catalog: The permitted part of the catalog.
        entries: Every permitted wrapper, ordered by name.
        for_models: The entries that models may use: all except tools that are only for apps.
        builtin_tools: The listed tools of the gateway itself, in the profile's dialect.
        servers: Every permitted configured server, including servers that have not been connected yet.
        defers: Whether some of the entries are not listed.
        warnings: Parts of the profile's configuration that have no effect.
        found_places: How many more tools a session that has searched may list; None for any number.
        found_tokens: How many tokens these may cost; None for any number.
        unsupported_names: Names that the profile's client would drop, change or confuse, each with the reason.
        digest: Digest of the list.
        contexts: The inputs to the texts of definitions, compared by the next view.
        grant: The rights of the callers.
        call_rules: The rules of tools that depend on the arguments of a call, by wrapper name.
        result_rules: How much of a result callers receive, by wrapper name, for tools with such rules.
        owner: The caller whose own listings the view shows; empty for the common listings.
        mirrors_arguments: Whether calls of some of the tools repeat arguments in HTTP headers.
        opens_tools: Whether the callers may use tools at all.
        checks_results: Whether clients of the dialect check structured results.
    """

    profile: Profile
    catalog: Catalog
    entries: tuple[ViewEntry, ...]
    builtin_tools: tuple[dict[str, Any], ...]
    servers: tuple[ServerName, ...]
    defers: bool
    warnings: tuple[str, ...]
    found_places: int | None
    found_tokens: int | None
    unsupported_names: Mapping[str, str]
    digest: str
    contexts: Mapping[ServerName, _Context] = field(default_factory=dict, repr=False)
    grant: Grant = EVERYTHING
    call_rules: Mapping[str, CallRules] = field(default_factory=dict)
    result_rules: Mapping[str, ResultRules] = field(default_factory=dict)
    owner: str = ""
    for_models: tuple[ViewEntry, ...] = field(init=False, repr=False)
    mirrors_arguments: bool = field(init=False)
    opens_tools: bool = field(init=False)
    checks_results: bool = field(init=False)
    _by_name: Mapping[str, ViewEntry] = field(default_factory=dict, repr=False)
    _plain_levels: dict[str, tuple[ToolWrapper, RepairLevel]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Computed in advance, because every call reads these.
        put = object.__setattr__  # the dataclass is frozen
        used = tuple(entry for entry in self.entries if entry.wrapper.app.by_models)
        put(self, "for_models", self.entries if len(used) == len(self.entries) else used)
        put(self, "mirrors_arguments", any(entry.wrapper.headers for entry in self.entries))
        put(self, "opens_tools", self.grant.opens("tools"))
        put(self, "checks_results", DIALECTS[self.profile.dialect].checks_results)

    @property
    def key(self) -> tuple[str, Grant, str]:
        """Identifies a sequence of views: profile, grant and owner."""
        return self.profile.name, self.grant, self.owner

    def permits(self, wrapper: ToolWrapper, shape: ServerShape) -> bool:
        """Return whether callers may see and call a wrapper, which may be newer than this view."""
        return self.profile.permits(wrapper, shape) and (self.grant.is_open or self.grant.permits(wrapper, shape))

    def permits_server(self, server: str, shape: ServerShape) -> bool:
        """Return whether callers may see a server, which may be newer than this view."""
        return self.profile.permits_server(server, shape) and self.grant.permits_server(server, shape)

    def entry(self, name: str) -> ViewEntry | None:
        """Return the entry of a permitted wrapper, or None."""
        return self._by_name.get(name)

    def plain_wrappers(self, wrapper: ToolWrapper, shape: Shape) -> RepairLevel | None:
        """Return the repair level of a tool that is shown unchanged and has no defaults; None for any other tool.

        Args:
            shape: The configuration, which is only read once per wrapper.
        """
        cached = self._plain_levels.get(wrapper.name)
        if cached is not None:
            return cached[1] if cached[0] is wrapper else None
        entry, of_server = self._by_name.get(wrapper.name), shape.for_server(wrapper.server)
        if entry is None or entry.wrapper is not wrapper or entry.lowered.document is not None or of_server.defaults:
            return None
        level = self.profile.repair or of_server.repair_level(wrapper.tool)
        self._plain_levels[wrapper.name] = wrapper, level
        return level

    def has_apps(self, server: str) -> bool:
        """Return whether a tool of a server concerns an app."""
        return any(wrapper.app.has_app for wrapper in self.catalog.wrappers_of(server))

    def siblings(self, server: str) -> Mapping[str, str]:
        """Return the display names of a server's siblings that its descriptions mention."""
        context = self.contexts.get(ServerName(server))
        return context[1] if context is not None else {}

    def select_found(self, names: Sequence[str]) -> frozenset[str]:
        """Return the found tools of a session that fit the remaining budget, and are listed in addition.

        Args:
            names: Wrapper names, latest last. The latest have precedence.
        """
        selected: set[str] = set()
        tokens = 0
        for name in reversed(names):
            entry = self._by_name.get(name)
            if entry is None or entry.listed or name in selected:
                continue
            if self.found_places is not None and len(selected) >= self.found_places:
                break
            if self.found_tokens is not None:
                tokens += entry.tokens
                if tokens > self.found_tokens:
                    break
            selected.add(name)
        return frozenset(selected)

    def lowered(self, wrapper: ToolWrapper) -> LoweredDefinition:
        """Return a wrapper in the profile's dialect, including wrappers that are newer than this view."""
        entry = self._by_name.get(wrapper.name)
        if entry is not None and entry.wrapper.digest == wrapper.digest:
            return entry.lowered
        # Not cached: the next view contains it, and lowering takes about a millisecond.
        return lower_definition(wrapper.definition, self.profile.dialect)


def build_view(
    catalog: Catalog,
    shape: Shape,
    profile: Profile,
    *,
    always_listed: tuple[dict[str, Any], ...] = (),
    search_tools: tuple[dict[str, Any], ...] = (),
    result_tools: tuple[dict[str, Any], ...] = (),
    previous: View | None = None,
    grant: Grant = EVERYTHING,
    owner: str = "",
) -> View:
    """Build the view of a profile for callers with the same rights.

    Only definitions that changed since the previous view are processed again.

    Args:
        always_listed: The gateway's own tools that are in every list.
        search_tools: The gateway's own tools that are listed if any wrapper is not.
        result_tools: The gateway's own tools that are listed if any result may be returned in parts.
        previous: Any earlier view.
        grant: The rights of the callers.
        owner: The caller whose own catalog it is; empty for the common catalog.
    """

    def cost(definition: Mapping[str, Any]) -> int:
        # Only `auto` has a budget; other disclosures do not need estimates for thousands of definitions.
        return estimate_tokens(compact_json(definition)) if profile.disclosure == "auto" else 0

    def shape_of(server: ServerName) -> ServerShape:
        return shape.servers.get(server, _UNSHAPED)

    narrowed, call_rules, servers = narrow_catalog(catalog, shape, profile, grant)
    if not grant.opens("tools"):
        always_listed = search_tools = result_tools = ()
    contexts = {server: (shape_of(server), _siblings(server, narrowed, shape)) for server in narrowed.servers}
    # Computed for the narrowed catalog: descriptions must not mention servers that the caller may not see.
    reusable = _reusable_entries(previous, profile, contexts, call_rules)
    rules = DIALECTS[profile.dialect]
    result_rules = _result_rules(narrowed, shape, profile)
    always = tuple(
        dict(lower_definition(tool, rules).definition)
        for tool in (*always_listed, *(result_tools if result_rules else ()))
    )
    search = tuple(dict(lower_definition(tool, rules).definition) for tool in search_tools)
    limit = MAX_DESCRIPTION if rules.description_limit is None else min(MAX_DESCRIPTION, rules.description_limit)
    lowered_entries: list[tuple[LoweredDefinition, str, int, str | None]] = []
    candidates: list[Candidate] = []
    for wrapper in narrowed.wrappers:
        own, siblings = contexts.get(wrapper.server, (_UNSHAPED, {}))
        before = reusable.get(wrapper.name)
        # Compared by identity, as the catalog reuses the definitions of servers that did not change.
        if before is not None and before.wrapper.definition is wrapper.definition:
            lowered_entries.append((before.lowered, before.digest, before.tokens, before.omitted))
        else:
            worded = contextual_definition(
                wrapper, own, profile, siblings, limit=limit, strict=rules.description_limit is not None
            )
            definition = with_hints(
                worded.definition,
                own.hints_of(wrapper.tool),
                load=rules.loads_on_demand and own.loads_at_once(wrapper.tool),
                asks=_always_asks(call_rules, wrapper.name),
            )
            if result_rules and (limits := result_rules.get(wrapper.name)) is not None:
                definition = with_result_rules(definition, limits)
            lowered = lower_definition(remove_null_alternatives(definition) if own.plain_nulls else definition, rules)
            # Most tools are unchanged in most dialects, so their digest is known already.
            same = lowered.definition is wrapper.definition
            tokens = cost(lowered.definition)
            lowered_digest = wrapper.digest if same else digest(lowered.definition)
            lowered_entries.append((lowered.packed(), lowered_digest, tokens, worded.omitted))
        if not wrapper.app.by_models:
            continue  # listed for apps in any case, at no cost to a model
        candidates.append(
            Candidate(
                name=wrapper.name,
                server=wrapper.server,
                tokens=lowered_entries[-1][2],
                pinned=wrapper.tool in own.pinned,
                priority=own.priorities.get(wrapper.tool, own.priority),
            )
        )
    decided = plan_disclosure(
        candidates,
        profile,
        always=len(always),
        always_tokens=sum(map(cost, always)),
        search=len(search),
        search_tokens=sum(map(cost, search)),
    )
    entries = tuple(
        ViewEntry(
            wrapper=wrapper,
            lowered=lowered,
            digest=lowered_digest,
            tokens=tokens if wrapper.app.by_models else 0,
            listed=wrapper.name in decided.listed or not wrapper.app.by_models,
            reason=decided.reasons.get(wrapper.name, "for apps"),
            omitted=omitted,
        )
        for wrapper, (lowered, lowered_digest, tokens, omitted) in zip(narrowed.wrappers, lowered_entries, strict=True)
    )
    ours = (*always, *(search if decided.defers else ()))
    return View(
        profile=profile,
        catalog=narrowed,
        entries=entries,
        builtin_tools=ours,
        servers=servers,
        defers=decided.defers,
        warnings=(
            # Only for the profile itself: items that a rule hides from a caller are hidden on purpose.
            *(_warnings(profile, narrowed, catalog, shape) if grant.is_open else ()),
            *decided.warnings,
            *(f"supplements: {entry.name}: {entry.omitted}" for entry in entries if entry.omitted is not None),
        ),
        found_places=decided.found_places,
        found_tokens=decided.found_tokens,
        unsupported_names=unsupported_names([entry.name for entry in entries if entry.listed], rules),
        digest=digest([[entry.digest for entry in entries if entry.listed], ours]),
        _by_name={entry.wrapper.name: entry for entry in entries},
        contexts=contexts,
        grant=grant,
        call_rules=call_rules,
        result_rules=result_rules,
        owner=owner,
    )


def _result_rules(catalog: Catalog, shape: Shape, profile: Profile) -> dict[str, ResultRules]:
    """Return the effective rules for the results of each tool that has some, by wrapper name."""
    rules_by_name: dict[str, ResultRules] = {}
    own = profile.results.apply
    for server, part in shape.servers.items():
        if not (own or part.results.apply or part.tool_results):
            continue
        for wrapper in catalog.wrappers_of(server):
            rules = part.result_rules(wrapper.tool).restricted_to(profile.results)
            if rules.select and not takes_selection(wrapper.input_schema):
                rules = replace(rules, select=False)
            if rules.apply:
                rules_by_name[wrapper.name] = rules
    return rules_by_name


def _reusable_entries(
    previous: View | None,
    profile: Profile,
    contexts: Mapping[ServerName, _Context],
    call_rules: Mapping[str, CallRules],
) -> dict[str, ViewEntry]:
    """Return the entries of servers whose configuration and siblings have not changed.

    The previous view may be that of callers with other rights, so tools that a person decides about may differ.
    """
    if previous is None or previous.profile != profile:
        return {}
    before = previous.contexts
    same = {server for server, context in contexts.items() if before.get(server) == context}
    before_rules = previous.call_rules
    return {
        entry.name: entry
        for entry in previous.entries
        if entry.server in same and _always_asks(before_rules, entry.name) == _always_asks(call_rules, entry.name)
    }


def _always_asks(call_rules: Mapping[str, CallRules], name: str) -> bool:
    rules = call_rules.get(name)
    return rules is not None and rules.always_asks


def _siblings(server: ServerName, catalog: Catalog, shape: Shape) -> dict[str, str]:
    """Return the display names of a server's siblings, as declared by either side.

    Args:
        catalog: The permitted catalog. A server without visible items is not a sibling.
    """

    def shape_of(name: ServerName) -> ServerShape:
        return shape.servers.get(name, _UNSHAPED)

    return {
        sibling: shape_of(sibling).display_name or sibling
        for sibling in sorted(catalog.servers)
        if sibling in shape_of(server).siblings or server in shape_of(sibling).siblings
        # Mentioning a disconnected server would mislead a model.
        if sibling != server and not catalog.servers[sibling].stale and catalog.has_items_of(sibling)
    }


def _warnings(profile: Profile, narrowed: Catalog, catalog: Catalog, shape: Shape) -> list[str]:
    selection = profile.selection
    tags = {tag for own in shape.servers.values() for tag in own.tags}
    items = catalog.prompts_and_resources

    def selects_any(key: str, pattern: str) -> bool:
        match key:
            case "servers":
                return any(fnmatchcase(server, pattern) for server in shape.servers)
            case "tags":
                return any(fnmatchcase(tag, pattern) for tag in tags)
            case "tools":
                return any(
                    selects_wrapper(pattern, wrapper, shape.for_server(wrapper.server)) for wrapper in catalog.wrappers
                )
            case "prompts":
                return any(selects_prompt(pattern, prompt, shape.for_server(prompt.server)) for prompt in items.prompts)
            case _:
                # Unlisted URIs can be read too, so a pattern without a match is not necessarily a mistake.
                return bool(items.templates) or any(
                    allows_uri(resource.original, (pattern,)) for resource in items.resources
                )

    def near(key: str, pattern: str) -> str:
        names_by_key: dict[str, Iterable[str]] = {
            "servers": shape.servers,
            "tags": tags,
            "tools": [name for wrapper in catalog.wrappers for name in (wrapper.name, wrapper.tool)],
            "prompts": [name for prompt in items.prompts for name in (prompt.key, prompt.original)],
        }
        alias = pattern.partition(NAME_SEPARATOR)[0] if NAME_SEPARATOR in pattern else ""
        if alias and not any(fnmatchcase(server, alias) for server in shape.servers):
            return suggestion_for(alias, shape.servers)
        return suggestion_for(pattern, names_by_key.get(key, ()))

    warnings = [
        f"{key}: {pattern} selects nothing{near(key, pattern)}"
        for part in (selection, *(profile.groups or ()))
        for key in ("servers", "tags", "tools", "prompts", "resources")
        for pattern in getattr(part, key) or ()
        if pattern != "*" and not selects_any(key, pattern)
    ]
    if catalog.wrappers and not narrowed.wrappers and not profile.permits_all:
        warnings.append("it selects no tool at all")
    warnings += [f"guidance: {tag} selects nothing{near('tags', tag)}" for tag in profile.guidance if tag not in tags]
    for wrapper in profile.supplements:
        if narrowed.get(wrapper) is None:
            what = "is not in this profile" if catalog.get(wrapper) is not None else "is not a wrapper"
            hint = "" if catalog.get(wrapper) is not None else near("tools", wrapper)
            warnings.append(f"supplements: {wrapper} {what}{hint}")
    return list(dict.fromkeys(warnings))
