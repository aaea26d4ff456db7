"""Prompts, resources and resource templates of every server, and which server owns a name or a URI.

A prompt is named like a wrapper. A URI stays as it is while one server has it; where several do, each is qualified, as
`shared_uris` says. A caller that remembers the URI from before still reaches the server that had it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName, ToolName, compile_names
from registry.catalog.shape import Shape
from registry.catalog.shared_uris import (
    UI_PREFIX,
    is_url,
    qualified_uri,
    shared_uris,
    taken_apart,
    with_renamed_meta,
)
from registry.catalog.uri_spellings import EXPRESSION, allows_uri, denies_uri, normalize_uri, pattern_of_template
from registry.intake.prompts_and_resources import ITEM_KEYS, OWN_URI_PREFIX, ItemKind, is_own_uri
from registry.schema.schemas import digest

_Literals = tuple[str, ...]
PermitsItem = Callable[["ListedItem"], bool]
PermitsUri = Callable[[ServerName, str], bool]
_Owner = tuple[ServerName, str]
# Links to the web are for browsers, whichever server's template would match them.
_WEB: Final = ("http://", "https://")


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
        keys_of: For each server, our URI or template by its own, where they differ.
    """

    prompts: tuple[ListedItem, ...] = ()
    resources: tuple[ListedItem, ...] = ()
    templates: tuple[ListedItem, ...] = ()
    digests: Mapping[ItemKind, str] = field(default_factory=dict)
    keys_of: Mapping[ServerName, Mapping[str, str]] = field(default_factory=dict, repr=False)
    _prompts: Mapping[str, ListedItem] = field(default_factory=dict, repr=False)
    _resources: Mapping[str, ListedItem] = field(default_factory=dict, repr=False)
    _sharers: Mapping[str, tuple[ServerName, ...]] = field(default_factory=dict, repr=False)
    # By our URI, the owners of what tools name and no server lists.
    _named: Mapping[str, _Owner] = field(default_factory=dict, repr=False)
    # By the servers' own URI, the last server that had it alone.
    _former: Mapping[str, ServerName] = field(default_factory=dict, repr=False)
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
            keys_of=self.keys_of,
            _named={key: owner for key, owner in self._named.items() if owner[0] in servers},
            _former={uri: server for uri, server in self._former.items() if server in servers},
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
        """Return the template with this text; of several, that of the server that had the text alone before."""
        found = next((item for _, item in self._templates if item.key == text), None)
        if found is None:
            former = self._former.get(text)
            shared = [item for item in self.templates if item.original == text]
            found = next((item for item in shared if item.server == former), shared[0] if shared else None)
        return found

    def held_template(self, server: str, uri: str) -> str | None:
        """Return why a URI cannot be read, where only a template stands for it that is held; None where it can be."""
        held = [item for item in self.templates if item.held and item.server == server]
        if not held or any(item.server == server and item.original == uri for item in self.resources):
            return None
        return next((item.held for item in held if denies_uri(uri, (pattern_of_template(item.original),))), None)

    def owners(self, uri: str) -> tuple[_Owner, ...]:
        """Return the servers that may know a URI, most likely first, each with its own URI for it.

        A listed resource has one owner, and so has a URI that a tool names. A URI that matches a template has the
        template's. Any other URI may be known to every server that has resources at all, since servers need not list
        what they can read.
        """
        listed = self._resources.get(uri)
        if listed is not None:
            return ((listed.server, listed.original),)
        qualified = taken_apart(uri, self._servers)
        refused = None
        if qualified is not None and not self._may_read(*qualified):
            refused = qualified[0], uri  # what is denied is not asked for under another name
        return tuple(owner for owner in self._possible_owners(uri) if owner != refused and self._may_read(*owner))

    def _possible_owners(self, uri: str) -> tuple[_Owner, ...]:
        named = self._named.get(uri) or self._listed_as(uri)
        if named is not None:
            return (named,)
        if is_own_uri(uri):
            # Our scheme is nobody's: what cannot be taken apart into a server and its URI is not asked of any.
            alias, _, rest = uri.removeprefix(OWN_URI_PREFIX).partition("/")
            known = rest and alias in self._servers and not is_own_uri(rest)
            return ((ServerName(alias), rest),) if known else ()
        sharers = self._sharers.get(uri)
        if sharers is not None:
            former = self._former.get(uri)
            # No other server is asked behind its back: it would answer for an app or a file of another one.
            return tuple((server, uri) for server in ((former,) if former in sharers else sharers))
        matching = (owner for owner, _ in self._matching(uri))
        qualified = taken_apart(uri, self._servers)
        others = ((server, uri) for server in self._servers)
        return tuple(dict.fromkeys([*matching, *((qualified,) if qualified else ()), *others]))

    def exposed_uri(self, server: str, uri: str) -> str:
        """Return the URI by which a caller reads what a server names in a result.

        It is the server's own unless another server would be asked for that.
        """
        own = ServerName(server)
        key = self.keys_of.get(own, {}).get(uri)
        if key is not None:
            return key
        if is_own_uri(uri):
            return uri
        listed = self._resources.get(uri)
        owner = (listed.server, listed.original) if listed is not None else self._named.get(uri)
        if owner is not None:
            return uri if owner == (own, uri) else qualified_uri(server, uri)
        if uri in self._sharers:
            return qualified_uri(server, uri)
        if uri.startswith(_WEB):
            return uri
        for owner, literals in self._matching(uri):
            if any(literals):
                return uri if owner == (own, uri) else qualified_uri(server, uri)
        qualified = taken_apart(uri, self._servers)
        return uri if qualified is None or qualified[0] == server else qualified_uri(server, uri)

    def _matching(self, uri: str) -> list[tuple[_Owner, _Literals]]:
        """Return whose templates a URI matches, most likely first, each with the literal parts of the template."""
        found = [(literals, item) for literals, item in self._templates if _matches(uri, literals)]
        found.sort(key=lambda one: self._former.get(one[1].original, one[1].server) != one[1].server)
        return [
            ((item.server, uri if literals == _literals(item.original) else _unqualified(uri, item.server)), literals)
            for literals, item in found
        ]

    def is_settled(self, uri: str) -> bool:
        """Return whether it is known which servers a URI belongs to, since they list it or it names them."""
        return uri in self._resources or uri in self._named or uri in self._sharers or is_own_uri(uri)

    def _listed_as(self, uri: str) -> _Owner | None:
        """Return the owner of one of our own URIs that a caller has sent as a URL parser writes it."""
        if "%" not in uri:
            return None
        if is_own_uri(uri):
            alias = ServerName(uri.removeprefix(OWN_URI_PREFIX).partition("/")[0])
        elif uri.startswith(UI_PREFIX):
            alias = ServerName(uri.removeprefix(UI_PREFIX).partition("/")[0])
        else:
            return None
        keys = self.keys_of.get(alias, {}) if alias in self._servers else {}
        return next(((alias, own) for own, key in keys.items() if normalize_uri(key) == uri), None)

    def had_alone(self, uri: str) -> ServerName | None:
        """Return the server that has a URI or a template under its own name, or was the last one that had."""
        found = self._resources.get(uri) or next((item for item in self.templates if item.key == uri), None)
        if found is not None:
            return found.server if found.original == uri else None
        named = self._named.get(uri)
        return named[0] if named is not None and named[1] == uri else self._former.get(uri)

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


def build_item_catalog(
    listings: Mapping[ServerName, ServerListing],
    shape: Shape,
    *,
    named: Mapping[ServerName, tuple[str, ...]] | None = None,
    previous: ItemCatalog | None = None,
) -> ItemCatalog:
    """Index all prompts, resources and templates of these servers that configuration exposes.

    Of the servers that share a URI, the first in the order of configuration answers to it, unless another one had it
    alone before.

    Args:
        listings: What the servers list.
        shape: What configuration says about them.
        named: The URIs that their tools name.
        previous: The catalog before this one.
    """
    position = {server: index for index, server in enumerate(shape.servers)}
    ordered = sorted(listings, key=lambda server: (position.get(server, len(position)), server))
    permits = _permits_uri(listings, shape)
    resources = _claims(listings, ordered, shape, "resources", permits, named or {})
    templates = _claims(listings, ordered, shape, "resourceTemplates", permits, {})
    keys_of = {server: {**resources.keys_of(server), **templates.keys_of(server)} for server in ordered}
    keys_of = {server: keys for server, keys in keys_of.items() if keys}
    by_kind = {
        "prompts": _prompts(listings, ordered, shape, keys_of),
        "resources": _by_uri(listings, resources, "resources", keys_of),
        "resourceTemplates": _by_uri(listings, templates, "resourceTemplates", keys_of),
    }
    indexed = _indexed(
        {kind: [by_kind[kind][key] for key in sorted(by_kind[kind])] for kind in ITEM_KEYS},
        sharers={uri: tuple(found) for uri, found in resources.servers.items() if uri in resources.shared},
        servers=tuple(server for server in ordered if _has_resources(listings[server])),
    )
    unlisted = {key: (server, uri) for (server, uri), key in resources.keys.items() if key not in by_kind["resources"]}
    former = {
        uri: before
        for one in (resources, templates)
        for uri in one.shared
        for alike in one.alike.get(uri, (uri,))
        if previous is not None and (before := previous.had_alone(alike)) is not None and before in one.servers[alike]
    }
    indexed = replace(indexed, keys_of=keys_of, _named=unlisted, _former=former)
    if all(shape.of(server).resources.is_open for server in ordered):
        return indexed
    return replace(
        indexed, _denials=(permits,), _allowances=(lambda server, uri: shape.of(server).resources.allows_uri(uri),)
    )


def _prompts(
    listings: Mapping[ServerName, ServerListing],
    ordered: list[ServerName],
    shape: Shape,
    keys_of: Mapping[ServerName, Mapping[str, str]],
) -> dict[str, ListedItem]:
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
                definition = {**with_renamed_meta(item, keys_of.get(server, {})), "name": name}
                listed = ListedItem(key=name, server=server, original=original, definition=definition, held=held)
                prompts.setdefault(name, listed)
    return prompts


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

    texts = [
        (text, item)
        for item in items["resourceTemplates"]
        # What is in our scheme is taken apart without a look at templates.
        for text in {item.original, item.key if item.key.startswith(UI_PREFIX) else item.original}
    ]
    templates = [(_literals(text), item) for text, item in texts]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claims:
    """Who has which URIs, or templates, and what we call them.

    Attributes:
        servers: Of each URI, those that list it or whose tools name it.
        shared: The URIs that are qualified.
        alike: Of each template, those of the same literal parts, which stand for the same URIs.
        keys: By server and its URI, ours.
        items: What is listed of them.
    """

    servers: Mapping[str, list[ServerName]]
    shared: frozenset[str]
    alike: Mapping[str, list[str]]
    keys: Mapping[_Owner, str]
    items: Mapping[_Owner, Mapping[str, Any]]

    def keys_of(self, server: ServerName) -> dict[str, str]:
        """Return our URIs of one server by its own, where they differ."""
        return {uri: key for (owner, uri), key in self.keys.items() if owner == server and key != uri}


def _claims(
    listings: Mapping[ServerName, ServerListing],
    ordered: list[ServerName],
    shape: Shape,
    kind: ItemKind,
    permits: PermitsUri,
    named: Mapping[ServerName, tuple[str, ...]],
) -> _Claims:
    member = ITEM_KEYS[kind]
    listed = {
        (server, item[member]): item
        for server in ordered
        for item in (listings[server].resources if kind == "resources" else listings[server].templates)
        # In our scheme only if a snapshot is older than the rule that intake keeps.
        if not is_own_uri(item[member])
    }
    claimed = {*listed, *((server, uri) for server in ordered for uri in named.get(server, ()))}
    servers: dict[str, list[ServerName]] = {}
    for server, uri in sorted(claimed, key=lambda owner: (ordered.index(owner[0]), owner[1])):
        if shape.of(server).resources.allows_uri(uri) and permits(server, uri):
            servers.setdefault(uri, []).append(server)
    alike: dict[str, list[str]] = {}
    if kind == "resourceTemplates":
        by_literals: dict[_Literals, list[str]] = {}
        for text in servers:
            alike[text] = by_literals.setdefault(_literals(text), [])
            alike[text].append(text)
    shared = shared_uris({uri: {one for same in alike.get(uri, (uri,)) for one in servers[same]} for uri in servers})
    keys: dict[_Owner, str] = {}
    for uri, owners in servers.items():
        # The first unprefixed server keeps the URI itself, all others are qualified.
        bare = next((server for server in owners if not shape.of(server).prefixed), None)
        for server in owners:
            is_kept = server == bare or (uri not in shared and (kind == "resourceTemplates" or is_url(uri)))
            keys[server, uri] = uri if is_kept else qualified_uri(server, uri)
    return _Claims(servers=servers, shared=shared, alike=alike, keys=keys, items=listed)


def _by_uri(
    listings: Mapping[ServerName, ServerListing],
    claims: _Claims,
    kind: ItemKind,
    keys_of: Mapping[ServerName, Mapping[str, str]],
) -> dict[str, ListedItem]:
    """Return the items by our URI."""
    items: dict[str, ListedItem] = {}
    for (server, uri), item in claims.items.items():
        key = claims.keys.get((server, uri))
        if key is not None:
            definition = {**with_renamed_meta(item, keys_of.get(server, {})), ITEM_KEYS[kind]: key}
            held = _held(listings[server], kind, uri)
            items[key] = ListedItem(key=key, server=server, original=uri, definition=definition, held=held)
    return items


def _held(listing: ServerListing, kind: str, name: str) -> str | None:
    return listing.held[kind].get(name) if kind in listing.held else None


def _has_resources(listing: ServerListing) -> bool:
    return bool(listing.resources or listing.templates or "resources" in listing.capabilities)


def _literals(template: str) -> _Literals:
    return tuple(EXPRESSION.split(template))


def _unqualified(uri: str, server: str) -> str:
    return UI_PREFIX + uri.removeprefix(f"{UI_PREFIX}{server}/")


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
