"""The catalog as one profile shows it: narrowed, worded, planned; a function of catalog and configuration only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.names import ServerName
from registry.catalog.shape import ServerShape, Shape
from registry.dialects.client_profiles import DIALECTS, misfits
from registry.dialects.definitions import Lowered, lower
from registry.dialects.nulls import without_nulls
from registry.schema.schemas import digest, text_of
from registry.views.descriptions import MAX_DESCRIPTION, worded
from registry.views.disclosure import Candidate, Plan, Reason, plan
from registry.views.profile import Profile, names_of
from registry.views.tokens import estimate

_UNSHAPED = ServerShape()
_Context = tuple[ServerShape, Mapping[str, str]]
"""What configuration says of a server, and the siblings that it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One wrapper as a profile shows it.

    Attributes:
        lowered: Its definition in the profile's words and dialect, and the way back for arguments.
        digest: Of that definition.
        tokens: What it costs in a list, estimated.
        listed: Whether it is in the list, or has to be found.
        reason: Why.
    """

    wrapper: ToolWrapper
    lowered: Lowered
    digest: str
    tokens: int
    listed: bool
    reason: Reason

    @property
    def shown(self) -> dict[str, Any]:
        """Its definition as it is listed."""
        return self.lowered.definition

    @property
    def name(self) -> str:
        """Its wrapper's name."""
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
    def definition(self) -> dict[str, Any]:
        """What is shown of it."""
        return self.shown


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What callers of one profile can see and call at one moment; never changed, only replaced.

    Attributes:
        catalog: Only what the profile permits, otherwise as it is.
        entries: Every permitted wrapper, ordered by name.
        own: Our own tools that are listed, in the dialect.
        servers: Every configured server that it permits, also one that has said nothing yet.
        defers: Whether some of them are not listed.
        warnings: What the profile says in vain.
        misfits: Names that the profile's host would lose, mangle or confuse, each with the reason.
        digest: Of what is listed.
        contexts: What its words were made of besides, for the next one.
    """

    profile: Profile
    catalog: Catalog
    entries: tuple[Entry, ...]
    own: tuple[dict[str, Any], ...]
    servers: tuple[ServerName, ...]
    defers: bool
    warnings: tuple[str, ...]
    misfits: Mapping[str, str]
    digest: str
    contexts: Mapping[ServerName, _Context] = field(default_factory=dict, repr=False)
    _by_name: Mapping[str, Entry] = field(default_factory=dict, repr=False)

    def entry(self, name: str) -> Entry | None:
        """The entry of this wrapper name, if the profile permits it."""
        return self._by_name.get(name)

    def lowered(self, wrapper: ToolWrapper) -> Lowered:
        """A wrapper in the dialect of the profile, also one that has come or changed since."""
        entry = self._by_name.get(wrapper.name)
        if entry is not None and entry.wrapper.digest == wrapper.digest:
            return entry.lowered
        return lower(wrapper.definition, self.profile.dialect)


def build_view(
    catalog: Catalog,
    shape: Shape,
    profile: Profile,
    *,
    always: tuple[dict[str, Any], ...] = (),
    finders: tuple[dict[str, Any], ...] = (),
    previous: View | None = None,
) -> View:
    """Show a catalog to the callers of a profile.

    Only what has changed since the previous view is worded and lowered anew.

    Args:
        catalog: Everything there is.
        shape: What configuration says of servers and tools.
        profile: Who is asking.
        always: Our own tools that every list has.
        finders: Our own tools that a list has which leaves something out.
        previous: Any earlier view.
    """

    def cost(definition: Mapping[str, Any]) -> int:
        return estimate(text_of(definition))

    def shape_of(server: ServerName) -> ServerShape:
        return shape.servers.get(server, _UNSHAPED)

    narrowed = catalog.narrowed(
        lambda wrapper: profile.permits(wrapper, shape_of(wrapper.server)),
        lambda server: profile.permits_server(server, shape_of(server)),
    )
    contexts = {server: (shape_of(server), _siblings(server, narrowed, shape)) for server in narrowed.servers}
    kept = _kept(previous, profile, contexts)
    rules = DIALECTS[profile.dialect]
    always = tuple(lower(one, rules).definition for one in always)
    finders = tuple(lower(one, rules).definition for one in finders)
    limit = MAX_DESCRIPTION if rules.description_limit is None else min(MAX_DESCRIPTION, rules.description_limit)
    shown: list[tuple[Lowered, str, int]] = []
    candidates: list[Candidate] = []
    for wrapper in narrowed.wrappers:
        own, siblings = contexts.get(wrapper.server, (_UNSHAPED, {}))
        before = kept.get(wrapper.name)
        if before is not None and before.wrapper.definition is wrapper.definition:
            shown.append((before.lowered, before.digest, before.tokens))
        else:
            definition = worded(wrapper, own, profile, siblings, limit=limit)
            lowered = lower(without_nulls(definition) if own.plain_nulls else definition, rules)
            same = lowered.definition is wrapper.definition
            tokens = cost(lowered.definition) if profile.disclosure == "auto" else 0
            shown.append((lowered, wrapper.digest if same else digest(lowered.definition), tokens))
        candidates.append(
            Candidate(
                name=wrapper.name,
                tokens=shown[-1][2],
                pinned=wrapper.tool in own.pinned,
                priority=own.priorities.get(wrapper.tool, own.priority),
            )
        )
    decided: Plan = plan(
        candidates,
        profile,
        always=len(always),
        always_tokens=sum(map(cost, always)) if profile.disclosure == "auto" else 0,
        finders=len(finders),
        finders_tokens=sum(map(cost, finders)) if profile.disclosure == "auto" else 0,
    )
    entries = tuple(
        Entry(
            wrapper=wrapper,
            lowered=lowered,
            digest=known,
            tokens=tokens,
            listed=wrapper.name in decided.listed,
            reason=decided.reasons[wrapper.name],
        )
        for wrapper, (lowered, known, tokens) in zip(narrowed.wrappers, shown, strict=True)
    )
    ours = (*always, *(finders if decided.defers else ()))
    return View(
        profile=profile,
        catalog=narrowed,
        entries=entries,
        own=ours,
        servers=tuple(server for server, one in shape.servers.items() if profile.permits_server(server, one)),
        defers=decided.defers,
        warnings=tuple(_warnings(profile, narrowed, catalog, shape)),
        misfits=misfits([entry.name for entry in entries if entry.listed], rules),
        digest=digest([[entry.digest for entry in entries if entry.listed], ours]),
        _by_name={entry.wrapper.name: entry for entry in entries},
        contexts=contexts,
    )


def _kept(previous: View | None, profile: Profile, contexts: Mapping[ServerName, _Context]) -> dict[str, Entry]:
    """The entries of servers about which nothing else is said than before."""
    if previous is None or previous.profile != profile:
        return {}
    before = previous.contexts
    same = {server for server, context in contexts.items() if before.get(server) == context}
    return {entry.name: entry for entry in previous.entries if entry.server in same}


def _siblings(server: ServerName, catalog: Catalog, shape: Shape) -> dict[str, str]:
    """The servers to name beside this one: its own siblings, and those whose sibling it is, if they are served."""
    own = shape.servers.get(server, _UNSHAPED).siblings
    named = [one for one in catalog.servers if one in own or server in shape.servers.get(one, _UNSHAPED).siblings]
    return {
        one: shape.servers.get(one, _UNSHAPED).display_name or one
        for one in sorted(named)
        if one != server and not catalog.servers[one].stale
    }


def _warnings(profile: Profile, narrowed: Catalog, whole: Catalog, shape: Shape) -> list[str]:
    selection = profile.selection
    tags = {tag for one in shape.servers.values() for tag in one.tags}
    names = {name for one in whole.wrappers for name in names_of(one)} if selection.tools else set[str]()
    warnings = [
        f"{key}: {pattern} selects nothing"
        for key, patterns, known in (
            ("servers", selection.servers, shape.servers),
            ("tags", selection.tags, tags),
            ("tools", selection.tools, names),
        )
        for pattern in patterns or ()
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in known)
    ]
    warnings += [f"guidance: {tag} selects nothing" for tag in profile.guidance if tag not in tags]
    for wrapper in profile.supplements:
        if narrowed.get(wrapper) is None:
            what = "is not in this profile" if whole.get(wrapper) is not None else "is no wrapper"
            warnings.append(f"supplements: {wrapper} {what}")
    return warnings
