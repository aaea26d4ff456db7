"""The catalog as one profile shows it; depends on nothing but the catalog and configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.names import NAME_SEPARATOR, ServerName
from registry.catalog.shape import RepairLevel, ServerShape, Shape
from registry.catalog.unmatched import near_miss
from registry.catalog.uri_spellings import allows_uri
from registry.dialects.client_profiles import DIALECTS, unsupported_names
from registry.dialects.definitions import LoweredDefinition, lower_definition
from registry.dialects.null_removal import without_nulls
from registry.policy.grant import EVERYTHING, CallRules, Grant
from registry.schema.schemas import compact_json, digest
from registry.views.descriptions import MAX_DESCRIPTION, contextual_definition
from registry.views.disclosure import Candidate, Reason, plan_disclosure
from registry.views.narrowing import narrow
from registry.views.profile import Profile, selects_prompt, selects_wrapper
from registry.views.tokens import estimate_tokens

# For servers that configuration says nothing about.
_UNSHAPED = ServerShape()
# What a definition is worded from besides the wrapper: its server's configuration, and the siblings to name.
_Context = tuple[ServerShape, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewEntry:
    """One wrapper as a profile shows it.

    Attributes:
        lowered: Its definition in the profile's dialect, with what maps arguments back.
        digest: Of that definition.
        tokens: What it costs in a list, estimated; only counted for `auto`.
        listed: Whether it is in the list, or has to be searched for.
        reason: Why it is listed or not.
        omitted: What of the configured text its description has no room for, in words; None if all of it is shown.
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
        """The alias of its server."""
        return self.wrapper.server

    @property
    def tool(self) -> str:
        """The name that its upstream gave it."""
        return self.wrapper.tool

    @property
    def definition(self) -> Mapping[str, Any]:
        """The definition as it is listed."""
        return self.lowered.definition


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What callers of one profile with the same rights can see and call at one moment; never changed, only replaced.

    Attributes:
        catalog: The permitted part of the catalog.
        entries: Every permitted wrapper, ordered by name.
        builtin_tools: Our own tools that are listed, in the profile's dialect.
        servers: Every configured server that is permitted, also one that has not been connected yet.
        defers: Whether some of the entries are not listed.
        warnings: What the profile configures to no effect.
        found_places: How many more tools may be listed for a session that has searched; None for any number.
        found_tokens: How many tokens those may cost; None for any number.
        unsupported_names: Names that the profile's client would drop, change or confuse, each with the reason.
        digest: Of what is listed.
        contexts: What definitions were worded from, for the next view.
        grant: What its callers may do.
        call_rules: The rules of tools that look at the arguments of a call, by wrapper name.
        owner: The caller whose own listings it shows; empty where it shows everybody's.
        mirrors_arguments: Whether calls of some of the tools repeat arguments in HTTP headers.
        opens_tools: Whether its callers may use tools at all.
        checks_results: Whether its dialect has structured results checked.
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
    owner: str = ""
    mirrors_arguments: bool = field(init=False)
    opens_tools: bool = field(init=False)
    checks_results: bool = field(init=False)
    _by_name: Mapping[str, ViewEntry] = field(default_factory=dict, repr=False)
    _plain_levels: dict[str, tuple[ToolWrapper, RepairLevel]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Asked by every call.
        put = object.__setattr__  # the dataclass is frozen
        put(self, "mirrors_arguments", any(entry.wrapper.headers for entry in self.entries))
        put(self, "opens_tools", self.grant.opens("tools"))
        put(self, "checks_results", DIALECTS[self.profile.dialect].checks_results)

    @property
    def key(self) -> tuple[str, Grant, str]:
        """Whose view it is: equal for the views that follow each other."""
        return self.profile.name, self.grant, self.owner

    def permits(self, wrapper: ToolWrapper, shape: ServerShape) -> bool:
        """Return whether its callers may see and call a wrapper, which may have come or gone since it was built."""
        return self.profile.permits(wrapper, shape) and (self.grant.is_open or self.grant.permits(wrapper, shape))

    def permits_server(self, server: str, shape: ServerShape) -> bool:
        """Return whether its callers may see a server, which may have come or gone since it was built."""
        return self.profile.permits_server(server, shape) and self.grant.permits_server(server, shape)

    def entry(self, name: str) -> ViewEntry | None:
        """Return the entry of this wrapper name, or None if there is none that is permitted."""
        return self._by_name.get(name)

    def plain_level(self, wrapper: ToolWrapper, shape: Shape) -> RepairLevel | None:
        """Return how arguments are repaired for a tool that is shown as it is and has no defaults; None for another.

        Args:
            wrapper: The tool.
            shape: What configuration says; it is looked at once.
        """
        known = self._plain_levels.get(wrapper.name)
        if known is not None:
            return known[1] if known[0] is wrapper else None
        entry, of_server = self._by_name.get(wrapper.name), shape.of(wrapper.server)
        if entry is None or entry.wrapper is not wrapper or entry.lowered.document is not None or of_server.defaults:
            return None
        level = self.profile.repair or of_server.repair_level(wrapper.tool)
        self._plain_levels[wrapper.name] = wrapper, level
        return level

    def siblings(self, server: str) -> Mapping[str, str]:
        """Return the siblings of a server that its descriptions name, with their display names."""
        context = self.contexts.get(ServerName(server))
        return context[1] if context is not None else {}

    def fitting_found(self, found: Sequence[str]) -> frozenset[str]:
        """Return which of the tools that a session has found are listed beside the others, within the budget.

        Args:
            found: Wrapper names, the one that was found last at the end; the first ones give way.
        """
        kept: set[str] = set()
        tokens = 0
        for name in reversed(found):
            entry = self._by_name.get(name)
            if entry is None or entry.listed or name in kept:
                continue
            if self.found_places is not None and len(kept) >= self.found_places:
                break
            if self.found_tokens is not None:
                tokens += entry.tokens
                if tokens > self.found_tokens:
                    break
            kept.add(name)
        return frozenset(kept)

    def lowered(self, wrapper: ToolWrapper) -> LoweredDefinition:
        """Return a wrapper in the profile's dialect, also one that was added or changed after this view was built."""
        entry = self._by_name.get(wrapper.name)
        if entry is not None and entry.wrapper.digest == wrapper.digest:
            return entry.lowered
        # Not kept: the next view has it, and a call can wait the millisecond.
        return lower_definition(wrapper.definition, self.profile.dialect)


def build_view(
    catalog: Catalog,
    shape: Shape,
    profile: Profile,
    *,
    always_listed: tuple[dict[str, Any], ...] = (),
    search_tools: tuple[dict[str, Any], ...] = (),
    previous: View | None = None,
    grant: Grant = EVERYTHING,
    owner: str = "",
) -> View:
    """Return a catalog as a profile shows it to callers with the same rights.

    Only what changed since the previous view is worded and lowered again.

    Args:
        catalog: The whole catalog.
        shape: What configuration says about servers and tools.
        profile: The profile.
        always_listed: Our own tools that are in every list.
        search_tools: Our own tools that are listed if anything else is not.
        previous: Any earlier view.
        grant: What the callers may do.
        owner: The caller whose own catalog it is; empty for everybody's.
    """

    def cost(definition: Mapping[str, Any]) -> int:
        # Only `auto` has a budget: the others need no estimate of thousands of definitions.
        return estimate_tokens(compact_json(definition)) if profile.disclosure == "auto" else 0

    def shape_of(server: ServerName) -> ServerShape:
        return shape.servers.get(server, _UNSHAPED)

    narrowed, call_rules, servers = narrow(catalog, shape, profile, grant)
    if not grant.opens("tools"):
        always_listed = search_tools = ()
    contexts = {server: (shape_of(server), _siblings(server, narrowed, shape)) for server in narrowed.servers}
    # Narrowed first: names of servers that a caller may not see must not be in a description.
    kept = _kept(previous, profile, contexts)
    rules = DIALECTS[profile.dialect]
    always = tuple(dict(lower_definition(tool, rules).definition) for tool in always_listed)
    search = tuple(dict(lower_definition(tool, rules).definition) for tool in search_tools)
    limit = MAX_DESCRIPTION if rules.description_limit is None else min(MAX_DESCRIPTION, rules.description_limit)
    shown: list[tuple[LoweredDefinition, str, int, str | None]] = []
    candidates: list[Candidate] = []
    for wrapper in narrowed.wrappers:
        own, siblings = contexts.get(wrapper.server, (_UNSHAPED, {}))
        before = kept.get(wrapper.name)
        # By identity: the catalog keeps the definitions of servers that did not change.
        if before is not None and before.wrapper.definition is wrapper.definition:
            shown.append((before.lowered, before.digest, before.tokens, before.omitted))
        else:
            worded = contextual_definition(
                wrapper, own, profile, siblings, limit=limit, strict=rules.description_limit is not None
            )
            definition = worded.definition
            lowered = lower_definition(without_nulls(definition) if own.plain_nulls else definition, rules)
            # Most tools are shown as they are in most dialects: their digest is known, and costs nothing again.
            same = lowered.definition is wrapper.definition
            tokens = cost(lowered.definition)
            known = wrapper.digest if same else digest(lowered.definition)
            shown.append((lowered.packed(), known, tokens, worded.omitted))
        candidates.append(
            Candidate(
                name=wrapper.name,
                server=wrapper.server,
                tokens=shown[-1][2],
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
            digest=known,
            tokens=tokens,
            listed=wrapper.name in decided.listed,
            reason=decided.reasons[wrapper.name],
            omitted=omitted,
        )
        for wrapper, (lowered, known, tokens, omitted) in zip(narrowed.wrappers, shown, strict=True)
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
            # Operators look at profiles; what one caller lacks by a rule is meant.
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
        owner=owner,
    )


def _kept(previous: View | None, profile: Profile, contexts: Mapping[ServerName, _Context]) -> dict[str, ViewEntry]:
    """Return the entries of servers whose configuration and siblings have not changed."""
    if previous is None or previous.profile != profile:
        return {}
    before = previous.contexts
    same = {server for server, context in contexts.items() if before.get(server) == context}
    return {entry.name: entry for entry in previous.entries if entry.server in same}


def _siblings(server: ServerName, catalog: Catalog, shape: Shape) -> dict[str, str]:
    """Return servers that are siblings of this one, in either direction, with their display names.

    Args:
        server: The one whose siblings are wanted.
        catalog: What the profile permits. A server that shows nothing there is no sibling.
        shape: What configuration says about servers.
    """

    def shape_of(name: ServerName) -> ServerShape:
        return shape.servers.get(name, _UNSHAPED)

    return {
        other: shape_of(other).display_name or other
        for other in sorted(catalog.servers)
        if other in shape_of(server).siblings or server in shape_of(other).siblings
        # A server that is not connected would only mislead a model.
        if other != server and not catalog.servers[other].stale and catalog.shows(other)
    }


def _warnings(profile: Profile, narrowed: Catalog, whole: Catalog, shape: Shape) -> list[str]:
    selection = profile.selection
    tags = {tag for own in shape.servers.values() for tag in own.tags}
    items = whole.prompts_and_resources

    def selects_any(key: str, pattern: str) -> bool:
        match key:
            case "servers":
                return any(fnmatchcase(server, pattern) for server in shape.servers)
            case "tags":
                return any(fnmatchcase(tag, pattern) for tag in tags)
            case "tools":
                return any(selects_wrapper(pattern, one, shape.of(one.server)) for one in whole.wrappers)
            case "prompts":
                return any(selects_prompt(pattern, one, shape.of(one.server)) for one in items.prompts)
            case _:
                # A URI need not be listed to be read, so a pattern for one says nothing in vain for sure.
                return bool(items.templates) or any(allows_uri(one.original, (pattern,)) for one in items.resources)

    def near(key: str, pattern: str) -> str:
        known: dict[str, Iterable[str]] = {
            "servers": shape.servers,
            "tags": tags,
            "tools": [name for one in whole.wrappers for name in (one.name, one.tool)],
            "prompts": [name for one in items.prompts for name in (one.key, one.original)],
        }
        alias = pattern.partition(NAME_SEPARATOR)[0] if NAME_SEPARATOR in pattern else ""
        if alias and not any(fnmatchcase(server, alias) for server in shape.servers):
            return near_miss(alias, shape.servers)
        return near_miss(pattern, known.get(key, ()))

    warnings = [
        f"{key}: {pattern} selects nothing{near(key, pattern)}"
        for one in (selection, *(profile.groups or ()))
        for key in ("servers", "tags", "tools", "prompts", "resources")
        for pattern in getattr(one, key) or ()
        if pattern != "*" and not selects_any(key, pattern)
    ]
    if whole.wrappers and not narrowed.wrappers and not profile.permits_all:
        warnings.append("it selects no tool at all")
    warnings += [f"guidance: {tag} selects nothing{near('tags', tag)}" for tag in profile.guidance if tag not in tags]
    for wrapper in profile.supplements:
        if narrowed.get(wrapper) is None:
            what = "is not in this profile" if whole.get(wrapper) is not None else "is no wrapper"
            hint = "" if whole.get(wrapper) is not None else near("tools", wrapper)
            warnings.append(f"supplements: {wrapper} {what}{hint}")
    return list(dict.fromkeys(warnings))
