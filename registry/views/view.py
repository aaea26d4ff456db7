"""Build views. A view is the part of the catalog that callers with the same profile and the same rights see.

A definition is *lowered* when it is rewritten for the profile's dialect, the part of JSON Schema that a host or a model
API supports. A view depends only on the catalog, the configuration and the rights of the callers.
"""

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

# The default configuration, for servers that are not configured.
_UNSHAPED = ServerShape()
# The texts of a server's definitions depend on the server's configuration, and on the display names of the related
# servers (siblings) that descriptions mention.
_Context = tuple[ServerShape, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewEntry:
    """One wrapper as a profile shows it.

    Attributes:
        lowered: The definition in the profile's dialect, with the data to convert arguments back to the original
            schema.
        digest: The digest of the definition in the profile's dialect.
        tokens: The estimated tokens of the definition; computed only for the disclosure `auto`.
        listed: True if the wrapper is listed; false if models have to search for it.
        reason: The reason why the wrapper is listed or not.
        omitted: Names the configured texts that do not fit into the definition's description; None if all texts fit.
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
    """An immutable snapshot of the items that callers with the same profile and the same rights can see and use.

    Attributes:
        catalog: The part of the catalog that the profile and the rights permit.
        entries: Every permitted wrapper, ordered by name.
        for_models: The entries that models may use: all except tools that are meant only for MCP Apps.
        builtin_tools: The listed tools of the gateway itself, in the profile's dialect.
        servers: All permitted servers in the configuration, even if they have not been connected yet.
        defers: Whether some entries are not listed, so that models have to search for them.
        warnings: Texts about parts of the profile's configuration that have no effect.
        found_places: Maximum number of found tools to add to the list of a session; None without a limit.
        found_tokens: Maximum number of tokens of the found tools in the list of a session; None without a limit.
        unsupported_names: Tool names that the profile's client would drop, change or confuse, each with the reason.
        digest: The digest of the list of tools.
        contexts: The data that the texts of definitions depend on, by server. The next view reuses the entries of a
            server whose data has not changed.
        grant: The rights of the callers.
        call_rules: The policy rules that decide about each call, by wrapper name, for tools that have such rules.
        result_rules: The limits of results that callers receive, by wrapper name, for tools that have limits.
        owner: The caller to whom upstreams sent the listings; empty for listings that all callers share.
        mirrors_arguments: Whether calls of at least one tool repeat arguments in HTTP headers.
        opens_tools: Whether the scopes of the callers permit any tools.
        checks_results: Whether clients of the dialect validate structured results.
        key: The profile, the rights and the owner. A new view replaces an earlier view with the same key.
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
    key: tuple[str, Grant, str] = field(init=False, repr=False)
    _by_name: Mapping[str, ViewEntry] = field(default_factory=dict, repr=False)
    _plain_levels: dict[str, tuple[ToolWrapper, RepairLevel]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Compute these attributes in advance, because every call reads them.
        put = object.__setattr__  # the dataclass is frozen
        used = tuple(entry for entry in self.entries if entry.wrapper.app.by_models)
        put(self, "for_models", self.entries if len(used) == len(self.entries) else used)
        put(self, "mirrors_arguments", any(entry.wrapper.headers for entry in self.entries))
        put(self, "opens_tools", self.grant.opens("tools"))
        put(self, "checks_results", DIALECTS[self.profile.dialect].checks_results)
        put(self, "key", (self.profile.name, self.grant, self.owner))

    def permits(self, wrapper: ToolWrapper, shape: ServerShape) -> bool:
        """Return whether callers may see and call a wrapper. The wrapper may be newer than this view."""
        return self.profile.permits(wrapper, shape) and (self.grant.is_open or self.grant.permits(wrapper, shape))

    def permits_server(self, server: str, shape: ServerShape) -> bool:
        """Return whether callers may see a server. The server may be newer than this view."""
        return self.profile.permits_server(server, shape) and self.grant.permits_server(server, shape)

    def entry(self, name: str) -> ViewEntry | None:
        """Return the entry of a permitted wrapper by its name, or None."""
        return self._by_name.get(name)

    def plain_wrappers(self, wrapper: ToolWrapper, shape: Shape) -> RepairLevel | None:
        """Return the repair level of a tool, if this view shows the tool with its original schema.

        The result is None if the wrapper is not in this view, or if the arguments of calls have to be converted or
        completed, because the schema is lowered or the server has configured default arguments.

        Args:
            shape: The configuration of the servers. It is read only once for each wrapper.
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
        """Return whether a server has a tool that belongs to an MCP App."""
        return any(wrapper.app.has_app for wrapper in self.catalog.wrappers_of(server))

    def siblings(self, server: str) -> Mapping[str, str]:
        """Return the display names of the related servers that a server's descriptions mention, by alias."""
        context = self.contexts.get(ServerName(server))
        return context[1] if context is not None else {}

    def select_found(self, names: Sequence[str]) -> frozenset[str]:
        """Return the names of the found tools that fit into the reserved budget and are added to the session's list.

        Args:
            names: The names of the found wrappers, the latest last. The latest take precedence.
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
        """Return the definition of a wrapper in the profile's dialect. The wrapper may be newer than this view."""
        entry = self._by_name.get(wrapper.name)
        if entry is not None and entry.wrapper.digest == wrapper.digest:
            return entry.lowered
        # The result is not cached, because lowering takes about a millisecond and the next view will contain it.
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

    Only definitions that have changed since the previous view are processed again.

    Args:
        always_listed: The gateway's own tools that are in every list.
        search_tools: The gateway's own tools that are listed if some wrappers are not listed.
        result_tools: The gateway's own tools that are listed if the result of any tool may be returned in parts.
        previous: An earlier view whose entries can be reused, or None.
        grant: The rights of the callers.
        owner: The caller to whom `catalog` belongs; empty for the catalog that all callers share.
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
    # The contexts are computed from the narrowed catalog, because descriptions must not mention servers that the caller
    # may not see.
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
        # Compare by identity, because the catalog reuses the definition objects of servers that have not changed.
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
            # Most dialects do not change most tools, so the digest of the wrapper can be reused.
            same = lowered.definition is wrapper.definition
            tokens = cost(lowered.definition)
            lowered_digest = wrapper.digest if same else digest(lowered.definition)
            lowered_entries.append((lowered.packed(), lowered_digest, tokens, worded.omitted))
        if not wrapper.app.by_models:
            continue  # tools for apps are always listed, because hosts do not show them to models
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
            # Callers with restricted rights get no warnings, since rules hide items from them on purpose.
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
    """Return the effective result rules by wrapper name, for tools that have any."""
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
    """Return the entries of the previous view whose server has the same configuration and siblings as before.

    The previous view may belong to callers with other rights. An entry is left out if a person has to allow every call
    of only one of these two groups of callers, because the definition states this.
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
    """Return the display names of a server's siblings by alias. The configuration of either server can declare them.

    Args:
        catalog: The permitted part of the catalog. Servers without items in it are left out.
    """

    def shape_of(name: ServerName) -> ServerShape:
        return shape.servers.get(name, _UNSHAPED)

    return {
        sibling: shape_of(sibling).display_name or sibling
        for sibling in sorted(catalog.servers)
        if sibling in shape_of(server).siblings or server in shape_of(sibling).siblings
        # Leave out disconnected servers, because a mention of them would mislead models.
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
                # Callers can also read URIs that match a template, so a pattern may be correct without a listed match.
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
        if wrapper not in narrowed.by_name:
            what = "is not in this profile" if wrapper in catalog.by_name else "is not a wrapper"
            hint = "" if wrapper in catalog.by_name else near("tools", wrapper)
            warnings.append(f"supplements: {wrapper} {what}{hint}")
    return list(dict.fromkeys(warnings))
