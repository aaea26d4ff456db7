"""Prompts, resources and resource templates of every server, and which server owns a name or a URI.

A prompt is named like a wrapper. A URI stays as it is while one server has it; where several do, each
becomes `typegate://{alias}/{uri}`, which can be taken apart again because an alias contains no slash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName, ToolName, compile_names
from registry.catalog.shape import Shape
from registry.catalog.uri_spellings import EXPRESSION, allows_uri, denies_uri, pattern_of_template
from registry.intake.prompts_and_resources import ITEM_KEYS, OWN_URI_PREFIX, ItemKind, is_own_uri
from registry.schema.schemas import digest

_Literals = tuple[str, ...]
PermitsItem = Callable[["ListedItem"], bool]
PermitsUri = Callable[[ServerName, str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedItem:
    """One prompt, resource or template as we expose it.

    Attributes:
        key: Our name or URI for it.
        original: The upstream's.
        definition: The upstream's object under our key.
        held: Why it cannot be used until somebody has approved it as it is today; the definition is as approved.
    """

    key: str
    server: ServerName
    original: str
    definition: dict[str, Any]
    held: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCatalog:
    """Everything but tools at one moment; each kind ordered by key, never changed, only replaced.

    Attributes:
        digests: Of the definitions of each kind.
    """

    prompts: tuple[ListedItem, ...] = ()
    resources: tuple[ListedItem, ...] = ()
    templates: tuple[ListedItem, ...] = ()
    digests: Mapping[ItemKind, str] = field(default_factory=dict)
    _prompts: Mapping[str, ListedItem] = field(default_factory=dict, repr=False)
    _resources: Mapping[str, ListedItem] = field(default_factory=dict, repr=False)
    _sharers: Mapping[str, tuple[ServerName, ...]] = field(default_factory=dict, repr=False)
    _templates: tuple[tuple[_Literals, ListedItem], ...] = field(default=(), repr=False)
    _servers: tuple[ServerName, ...] = ()
    # All of the first have to permit a URI; all of the second too, unless a template that is shown stands for it.
    _denials: tuple[PermitsUri, ...] = field(default=(), repr=False, compare=False)
    _allowances: tuple[PermitsUri, ...] = field(default=(), repr=False, compare=False)

    def items(self, kind: ItemKind) -> tuple[ListedItem, ...]:
        """Return all items of one kind."""
        if kind == "prompts":
            return self.prompts
        return self.resources if kind == "resources" else self.templates

    def narrowed(
        self,
        *,
        servers: frozenset[ServerName],
        prompts: PermitsItem,
        resources: PermitsItem,
        uris: PermitsUri,
        never: PermitsUri | None = None,
    ) -> ItemCatalog:
        """Return the permitted part, under the same names as in the whole.

        Args:
            servers: What other servers have is left out.
            prompts: Whether a prompt is permitted.
            resources: Whether a resource or a template is permitted.
            uris: Whether a URI may be read that no server lists.
            never: Which URIs stay closed although a template that is shown stands for them; false for those.
        """

        def permitted(item: ListedItem, kind: ItemKind) -> bool:
            return item.server in servers and (prompts(item) if kind == "prompts" else resources(item))

        def known(owners: Iterable[ServerName]) -> tuple[ServerName, ...]:
            return tuple(server for server in owners if server in servers)

        narrowed = _indexed(
            {kind: [item for item in self.items(kind) if permitted(item, kind)] for kind in ITEM_KEYS},
            sharers={uri: left for uri, owners in self._sharers.items() if (left := known(owners))},
            servers=known(self._servers),
        )
        return replace(
            narrowed,
            _denials=self._denials if never is None else (*self._denials, never),
            _allowances=(*self._allowances, uris),
        )

    def has_any_of(self, server: str) -> bool:
        """Return whether a server has a prompt, a resource or a template here."""
        return any(item.server == server for kind in ITEM_KEYS for item in self.items(kind))

    def prompt(self, name: str) -> ListedItem | None:
        """Return the prompt of this name, or None."""
        return self._prompts.get(name)

    def template(self, text: str) -> ListedItem | None:
        """Return the template with this text, or None."""
        return next((item for _, item in self._templates if item.key == text), None)

    def held_template(self, server: str, uri: str) -> str | None:
        """Return why a URI cannot be read, where only a template stands for it that is held; None where it can be."""
        held = [item for item in self.templates if item.held and item.server == server]
        if not held or self._resources.get(uri) is not None:
            return None
        return next((item.held for item in held if denies_uri(uri, (pattern_of_template(item.original),))), None)

    def owners(self, uri: str) -> tuple[tuple[ServerName, str], ...]:
        """Return the servers that may know a URI, most likely first, each with its own URI for it.

        A listed resource has one owner, and a URI that matches a template has the template's. Any other URI may be
        known to every server that has resources at all, since servers need not list what they can read.
        """
        listed = self._resources.get(uri)
        if listed is not None:
            return ((listed.server, listed.original),)
        if is_own_uri(uri):
            # Our scheme is nobody's: what cannot be taken apart into a server and its URI is not asked of any.
            alias, _, rest = uri.removeprefix(OWN_URI_PREFIX).partition("/")
            known = rest and alias in self._servers and not is_own_uri(rest) and self._may_read(ServerName(alias), rest)
            return ((ServerName(alias), rest),) if known else ()
        candidates = self._sharers.get(uri)
        if candidates is None:
            matching = [item.server for literals, item in self._templates if _matches(uri, literals)]
            candidates = tuple(dict.fromkeys([*matching, *self._servers]))
        return tuple((server, uri) for server in candidates if self._may_read(server, uri))

    def _may_read(self, server: ServerName, uri: str) -> bool:
        """Return whether callers may have a server read this URI, listed or not."""
        if not self._denials and not self._allowances:
            return True
        if not all(permits(server, uri) for permits in self._denials):
            return False
        if all(permits(server, uri) for permits in self._allowances):
            return True
        # Whoever is shown a template may read what it stands for; and nothing that only looks like it.
        shown = (item.original for item in self.templates if item.server == server)
        return any(allows_uri(uri, (pattern_of_template(template),)) for template in shown)


def build_item_catalog(listings: Mapping[ServerName, ServerListing], shape: Shape) -> ItemCatalog:
    """Index all prompts, resources and templates of these servers that configuration exposes.

    Of the servers that share a URI, the first in the order of configuration answers to it.
    """
    position = {server: index for index, server in enumerate(shape.servers)}
    ordered = sorted(listings, key=lambda server: (position.get(server, len(position)), server))
    prompts: dict[str, ListedItem] = {}
    # Unprefixed names go first: they are promised exactly. Among them the earlier server keeps a shared name.
    for server in sorted(ordered, key=lambda server: shape.of(server).prefixed):
        own = shape.of(server)
        items = {ToolName(item["name"]): item for item in listings[server].prompts}
        names = compile_names(server, items, max_length=shape.max_length, prefixed=own.prefixed, renames={})
        for original, item in items.items():
            # What is denied takes part in naming, so that denying it renames nothing, and no other gets its name.
            if own.prompts.admits(original):
                name = names[original].name
                held = _held(listings[server], "prompts", original)
                listed = ListedItem(
                    key=name, server=server, original=original, definition={**item, "name": name}, held=held
                )
                prompts.setdefault(name, listed)
    permits = _permits_uri(listings, shape)
    resources, sharers = _by_uri(listings, ordered, shape, "resources", permits)
    templates, _ = _by_uri(listings, ordered, shape, "resourceTemplates", permits)
    by_kind = {"prompts": prompts, "resources": resources, "resourceTemplates": templates}
    indexed = _indexed(
        {kind: [by_kind[kind][key] for key in sorted(by_kind[kind])] for kind in ITEM_KEYS},
        sharers=sharers,
        servers=tuple(server for server in ordered if _has_resources(listings[server])),
    )
    if all(shape.of(server).resources.is_open for server in ordered):
        return indexed
    return replace(
        indexed, _denials=(permits,), _allowances=(lambda server, uri: shape.of(server).resources.allows_uri(uri),)
    )


def _permits_uri(listings: Mapping[ServerName, ServerListing], shape: Shape) -> PermitsUri:
    """Return what tells whether a server's `deny` leaves a URI alone; a denied template is denied with all its URIs."""
    denied: dict[ServerName, tuple[str, ...]] = {}
    for server, listing in listings.items():
        filtered = shape.of(server).resources
        texts = [item["uriTemplate"] for item in listing.templates if filtered.denies_uri(item["uriTemplate"])]
        if texts:
            denied[server] = tuple(pattern_of_template(text) for text in texts)

    def permits(server: ServerName, uri: str) -> bool:
        return not shape.of(server).resources.denies_uri(uri) and not denies_uri(uri, denied.get(server, ()))

    return permits


def _indexed(
    items: Mapping[ItemKind, list[ListedItem]],
    sharers: Mapping[str, tuple[ServerName, ...]],
    servers: tuple[ServerName, ...],
) -> ItemCatalog:
    def specific_first(template: tuple[_Literals, ListedItem]) -> tuple[int, int]:
        # The more literal text, the more specific the template; among equal ones the order of configuration decides.
        literals, item = template
        return -sum(map(len, literals)), servers.index(item.server)

    templates = [(tuple(EXPRESSION.split(item.original)), item) for item in items["resourceTemplates"]]
    return ItemCatalog(
        prompts=tuple(items["prompts"]),
        resources=tuple(items["resources"]),
        templates=tuple(items["resourceTemplates"]),
        digests={kind: digest([item.definition for item in items[kind]]) for kind in ITEM_KEYS},
        _prompts={item.key: item for item in items["prompts"]},
        _resources={item.key: item for item in items["resources"]},
        _sharers=sharers,
        _templates=tuple(sorted(templates, key=specific_first)),
        _servers=servers,
    )


def _by_uri(
    listings: Mapping[ServerName, ServerListing],
    ordered: list[ServerName],
    shape: Shape,
    kind: ItemKind,
    permits: PermitsUri,
) -> tuple[dict[str, ListedItem], dict[str, tuple[ServerName, ...]]]:
    """Return the items by our URI, and the servers of each URI that several have."""
    member = ITEM_KEYS[kind]
    found = [
        (server, item[member], item)
        for server in ordered
        for item in (listings[server].resources if kind == "resources" else listings[server].templates)
        # In our scheme only if a snapshot is older than the rule that intake keeps.
        if shape.of(server).resources.allows_uri(item[member])
        and permits(server, item[member])
        and not is_own_uri(item[member])
    ]
    count = Counter(uri for _, uri, _ in found)
    items: dict[str, ListedItem] = {}
    sharers: dict[str, list[ServerName]] = {}
    for server, uri, item in found:
        key = uri
        if count[uri] > 1:
            sharers.setdefault(uri, []).append(server)
            # The first unprefixed server keeps the URI itself, all others are qualified.
            if shape.of(server).prefixed or uri in items:
                key = f"{OWN_URI_PREFIX}{server}/{uri}"
        held = _held(listings[server], kind, uri)
        items[key] = ListedItem(key=key, server=server, original=uri, definition={**item, member: key}, held=held)
    return items, {uri: tuple(servers) for uri, servers in sharers.items()}


def _held(listing: ServerListing, kind: str, name: str) -> str | None:
    return listing.held[kind].get(name) if kind in listing.held else None


def _has_resources(listing: ServerListing) -> bool:
    return bool(listing.resources or listing.templates or "resources" in listing.capabilities)


def _matches(uri: str, literals: _Literals) -> bool:
    """Return whether a URI can be an expansion of the template with these literal parts."""
    # By hand and linear in the URI's length: as a regular expression, a template of many expressions would backtrack.
    if len(literals) == 1:
        return uri == literals[0]
    first, *middle, last = literals
    if not uri.startswith(first) or not uri.endswith(last):
        return False
    start, end = len(first), len(uri) - len(last)
    for part in middle:
        start = uri.find(part, start, end)
        if start < 0:
            return False
        start += len(part)
    return start <= end
