"""Prompts, resources and resource templates of every server, and the owners of their names and URIs.

A prompt is named like a tool wrapper. A URI stays unchanged while only one server lists it. If several servers list the
same URI, the gateway exposes a qualified URI for each server (see `uris`). The plain URI still reaches the server that
was the only one to list it before. "Held" items wait for an operator's approval (see `catalog`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName, ToolName, compile_names
from registry.catalog.shape import Shape
from registry.catalog.uris import (
    EXPRESSION,
    allows_uri,
    denies_uri,
    is_url,
    kept_prefix,
    normalize_uri,
    pattern_of_template,
    qualified_uri,
    shared_uris,
    split_qualified_uri,
    with_renamed_meta,
)
from registry.intake.item_intake import ITEM_KEYS, OWN_URI_PREFIX, SKILL_FILE, ItemKind, is_own_uri
from registry.schema.schemas import digest

_Literals = tuple[str, ...]
PermitsItem = Callable[["ListedItem"], bool]
PermitsUri = Callable[[ServerName, str], bool]
_Owner = tuple[ServerName, str]
# Web links are meant for browsers, even if a server's template matches them.
_WEB: Final = ("http://", "https://")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedItem:
    """One prompt, resource or template as the gateway exposes it.

    Attributes:
        key: The exposed name or URI.
        original: The upstream's name or URI.
        definition: The upstream's object with the exposed name or URI.
        held: Why the item cannot be used until an operator approves its current definition; None if it can be used.
            While an item is held, `definition` is the last approved definition.
    """

    key: str
    server: ServerName
    original: str
    definition: dict[str, Any]
    held: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCatalog:
    """Prompts, resources and templates at one moment, each kind ordered by key. Immutable.

    Attributes:
        digests: The digest of all definitions of each kind.
        keys_of: For each server, the exposed URIs and templates that differ from the upstream's, by the upstream's.
    """

    prompts: tuple[ListedItem, ...] = ()
    resources: tuple[ListedItem, ...] = ()
    templates: tuple[ListedItem, ...] = ()
    skills: tuple[ListedItem, ...] = ()
    digests: Mapping[ItemKind, str] = field(default_factory=dict)
    keys_of: Mapping[ServerName, Mapping[str, str]] = field(default_factory=dict, repr=False)
    _prompts: Mapping[str, ListedItem] = field(default_factory=dict, repr=False)
    _resources: Mapping[str, ListedItem] = field(default_factory=dict, repr=False)
    _sharers: Mapping[str, tuple[ServerName, ...]] = field(default_factory=dict, repr=False)
    # Skills, keyed by the exposed URI of their directory; and the exposed URIs of skill directories, keyed by server
    # and upstream URI.
    _skills: Mapping[str, ListedItem] = field(default_factory=dict, repr=False)
    _skill_roots: Mapping[_Owner, str] = field(default_factory=dict, repr=False)
    # The owners of URIs that tools mention in `_meta` but no server lists, keyed by exposed URI.
    _owner_by_named_uri: Mapping[str, _Owner] = field(default_factory=dict, repr=False)
    # The server that most recently was the only server with a URI, keyed by upstream URI.
    _former: Mapping[str, ServerName] = field(default_factory=dict, repr=False)
    _templates: tuple[tuple[_Literals, ListedItem], ...] = field(default=(), repr=False)
    _servers: tuple[ServerName, ...] = ()
    # A URI must pass all denials. It must also pass all allowances, unless a visible template matches it.
    _denials: tuple[PermitsUri, ...] = field(default=(), repr=False, compare=False)
    _allowances: tuple[PermitsUri, ...] = field(default=(), repr=False, compare=False)

    def items(self, kind: ItemKind) -> tuple[ListedItem, ...]:
        """Return all items of one kind."""
        if kind == "prompts":
            return self.prompts
        if kind == "skills":
            return self.skills
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
        """Return the part of the catalog that a caller may use, with unchanged names.

        Args:
            servers: The servers whose items remain.
            prompts: Returns whether a prompt is permitted.
            resources: Returns whether a resource or template is permitted.
            uris: Returns whether a URI that no server lists may be read.
            never: Returns false for a URI that must not be read even if a visible template matches it.
        """

        def permitted(item: ListedItem, kind: ItemKind) -> bool:
            return item.server in servers and (prompts(item) if kind == "prompts" else resources(item))

        def permitted_servers(owners: Iterable[ServerName]) -> tuple[ServerName, ...]:
            return tuple(server for server in owners if server in servers)

        narrowed = _index_items(
            {kind: [item for item in self.items(kind) if permitted(item, kind)] for kind in ITEM_KEYS},
            sharers={
                uri: remaining for uri, owners in self._sharers.items() if (remaining := permitted_servers(owners))
            },
            servers=permitted_servers(self._servers),
        )
        return replace(
            narrowed,
            keys_of=self.keys_of,
            _owner_by_named_uri={key: owner for key, owner in self._owner_by_named_uri.items() if owner[0] in servers},
            _former={uri: server for uri, server in self._former.items() if server in servers},
            _denials=self._denials if never is None else (*self._denials, never),
            _allowances=(*self._allowances, uris),
        )

    def has_any_of(self, server: str) -> bool:
        """Return whether a server has a prompt, resource or template in this catalog."""
        return any(item.server == server for kind in ITEM_KEYS for item in self.items(kind))

    def prompt(self, name: str) -> ListedItem | None:
        """Return the prompt with this name, or None."""
        return self._prompts.get(name)

    def template(self, text: str) -> ListedItem | None:
        """Return the template with this text, or None.

        If several servers share a template, the server that was the only one to have it before is preferred.
        """
        template = next((item for _, item in self._templates if item.key == text), None)
        if template is None:
            former = self._former.get(text)
            shared = [item for item in self.templates if item.original == text]
            template = next((item for item in shared if item.server == former), shared[0] if shared else None)
        return template

    def held_template(self, server: str, uri: str) -> str | None:
        """Return why an unlisted URI that matches a held template of a server cannot be read, or None."""
        held = [item for item in self.templates if item.held and item.server == server]
        if not held or any(item.server == server and item.original == uri for item in self.resources):
            return None
        return next((item.held for item in held if denies_uri(uri, (pattern_of_template(item.original),))), None)

    def held_skill(self, server: str, uri: str) -> str | None:
        """Return why a file cannot be read because it belongs to a held skill, or None."""
        for item in self.skills:
            root = item.original.removesuffix(SKILL_FILE)
            if item.held is not None and item.server == server and (uri == root or uri.startswith(root + "/")):
                return item.held
        return None

    def owners(self, uri: str) -> tuple[_Owner, ...]:
        """Return the servers that may have a resource with this URI, most likely first, each with its upstream URI.

        A listed resource has one owner, and so has a URI that a tool mentions. A URI that matches a template belongs to
        the template's server. Any other URI may belong to every server with resources, as servers need not list all
        resources that they can read.
        """
        listed = self._resources.get(uri)
        if listed is not None:
            return ((listed.server, listed.original),)
        qualified = split_qualified_uri(uri, self._servers)
        refused = None
        if qualified is not None and not self._may_read(*qualified):
            refused = qualified[0], uri  # a denied URI must not be readable in its qualified form either
        return tuple(owner for owner in self._possible_owners(uri) if owner != refused and self._may_read(*owner))

    def _possible_owners(self, uri: str) -> tuple[_Owner, ...]:
        named_owner = self._owner_by_named_uri.get(uri) or self._listed_as(uri)
        if named_owner is not None:
            return (named_owner,)
        if is_own_uri(uri):
            # No server owns the gateway's scheme, so a URI with this scheme has an owner only if it names a server.
            alias, _, rest = uri.removeprefix(OWN_URI_PREFIX).partition("/")
            is_qualified = rest and alias in self._servers and not is_own_uri(rest)
            return ((ServerName(alias), rest),) if is_qualified else ()
        sharers = self._sharers.get(uri)
        if sharers is not None:
            former = self._former.get(uri)
            # Do not ask servers without this URI: they could answer in place of the owner of an app or file.
            return tuple((server, uri) for server in ((former,) if former in sharers else sharers))
        if (skill := self._skill_of(uri)) is not None:
            return (skill,)  # a directory, or a file that the skill's entry does not list
        matching = (owner for owner, _ in self._matching(uri))
        qualified = split_qualified_uri(uri, self._servers)
        all_servers = ((server, uri) for server in self._servers)
        return tuple(dict.fromkeys([*matching, *((qualified,) if qualified else ()), *all_servers]))

    def exposed_uri(self, server: str, uri: str) -> str:
        """Return the URI with which a caller can read a resource that a server's result refers to as `uri`.

        This is `uri` itself, unless the gateway would forward a request for `uri` to another server.
        """
        own = ServerName(server)
        key = self.keys_of.get(own, {}).get(uri)
        if key is not None:
            return key
        if is_own_uri(uri):
            return uri
        for directory in _directories(uri):
            if (root := self._skill_roots.get((own, directory))) is not None:
                return root + uri.removeprefix(directory)
        listed = self._resources.get(uri)
        owner = (listed.server, listed.original) if listed is not None else self._owner_by_named_uri.get(uri)
        if owner is not None:
            return uri if owner == (own, uri) else qualified_uri(server, uri)
        if uri in self._sharers:
            return qualified_uri(server, uri)
        if uri.startswith(_WEB):
            return uri
        for owner, literals in self._matching(uri):
            if any(literals):
                return uri if owner == (own, uri) else qualified_uri(server, uri)
        qualified = split_qualified_uri(uri, self._servers)
        return uri if qualified is None or qualified[0] == server else qualified_uri(server, uri)

    def _skill_of(self, uri: str) -> _Owner | None:
        """Return the owner of a URI in the directory of a skill, with the upstream's URI."""
        for directory in _directories(uri):
            if (skill := self._skills.get(directory)) is not None:
                return skill.server, skill.original.removesuffix(SKILL_FILE) + uri.removeprefix(directory)
        return None

    def _matching(self, uri: str) -> list[tuple[_Owner, _Literals]]:
        """Return the owners of the templates that match a URI, most likely first, with the templates' literal parts."""
        matches = [(literals, item) for literals, item in self._templates if _matches(uri, literals)]
        matches.sort(key=lambda match: self._former.get(match[1].original, match[1].server) != match[1].server)
        return [
            ((item.server, uri if literals == _literals(item.original) else _remove_server(uri, item.server)), literals)
            for literals, item in matches
        ]

    def is_settled(self, uri: str) -> bool:
        """Return whether the owners of a URI are known, because servers list the URI or tools mention it."""
        return uri in self._resources or uri in self._owner_by_named_uri or uri in self._sharers or is_own_uri(uri)

    def _listed_as(self, uri: str) -> _Owner | None:
        """Return the owner of a qualified URI that the caller's URL parser has percent-encoded."""
        if "%" not in uri:
            return None
        if is_own_uri(uri):
            alias = ServerName(uri.removeprefix(OWN_URI_PREFIX).partition("/")[0])
        elif prefix := kept_prefix(uri):
            alias = ServerName(uri.removeprefix(prefix).partition("/")[0])
        else:
            return None
        keys = self.keys_of.get(alias, {}) if alias in self._servers else {}
        return next(((alias, own) for own, key in keys.items() if normalize_uri(key) == uri), None)

    def sole_owner(self, uri: str) -> ServerName | None:
        """Return the server that exposes a URI or template unqualified, or was the last to do so."""
        listed = self._resources.get(uri) or next((item for item in self.templates if item.key == uri), None)
        if listed is not None:
            return listed.server if listed.original == uri else None
        owner = self._owner_by_named_uri.get(uri)
        return owner[0] if owner is not None and owner[1] == uri else self._former.get(uri)

    def _may_read(self, server: ServerName, uri: str) -> bool:
        """Return whether callers may read this URI from this server, whether or not the server lists it."""
        if not self._denials and not self._allowances:
            return True
        if not all(permits(server, uri) for permits in self._denials):
            return False
        if all(permits(server, uri) for permits in self._allowances):
            return True
        # A caller that sees a template may read the URIs that the template expands to, but not merely similar URIs.
        templates = (item.original for item in self.templates if item.server == server)
        return any(allows_uri(uri, (pattern_of_template(template),)) for template in templates)


def build_item_catalog(
    listings: Mapping[ServerName, ServerListing],
    shape: Shape,
    *,
    named_uris: Mapping[ServerName, tuple[str, ...]] | None = None,
    previous: ItemCatalog | None = None,
) -> ItemCatalog:
    """Index all prompts, resources and templates that the configuration exposes.

    If several servers share a URI, the plain URI reaches the first of them in configuration order, unless another
    server was the only one to have the URI before.

    Args:
        named_uris: The URIs in the `_meta` of each server's tools.
    """
    position = {server: index for index, server in enumerate(shape.servers)}
    ordered = sorted(listings, key=lambda server: (position.get(server, len(position)), server))
    permits = _permits_uri(listings, shape)
    named_uris = {server: (*(named_uris or {}).get(server, ()), *_skill_uris(listings[server])) for server in ordered}
    resources = _claims(listings, ordered, shape, "resources", permits, named_uris)
    templates = _claims(listings, ordered, shape, "resourceTemplates", permits, {})
    keys_of = {server: {**resources.keys_of(server), **templates.keys_of(server)} for server in ordered}
    keys_of = {server: keys for server, keys in keys_of.items() if keys}
    by_kind = {
        "prompts": _prompts(listings, ordered, shape, keys_of),
        "resources": _by_uri(listings, resources, "resources", keys_of),
        "resourceTemplates": _by_uri(listings, templates, "resourceTemplates", keys_of),
        "skills": _skills(listings, resources),
    }
    indexed = _index_items(
        {kind: [by_kind[kind][key] for key in sorted(by_kind[kind])] for kind in ITEM_KEYS},
        sharers={uri: tuple(owners) for uri, owners in resources.servers.items() if uri in resources.shared},
        servers=tuple(server for server in ordered if _has_resources(listings[server])),
    )
    unlisted = {key: (server, uri) for (server, uri), key in resources.keys.items() if key not in by_kind["resources"]}
    former = {
        uri: before
        for claims in (resources, templates)
        for uri in claims.shared
        for alike in claims.alike.get(uri, (uri,))
        if previous is not None
        and (before := previous.sole_owner(alike)) is not None
        and before in claims.servers[alike]
    }
    indexed = replace(indexed, keys_of=keys_of, _owner_by_named_uri=unlisted, _former=former)
    if all(shape.for_server(server).resources.is_open for server in ordered):
        return indexed
    return replace(
        indexed,
        _denials=(permits,),
        _allowances=(lambda server, uri: shape.for_server(server).resources.allows_uri(uri),),
    )


def _prompts(
    listings: Mapping[ServerName, ServerListing],
    ordered: list[ServerName],
    shape: Shape,
    keys_of: Mapping[ServerName, Mapping[str, str]],
) -> dict[str, ListedItem]:
    prompts: dict[str, ListedItem] = {}
    # Servers without a prefix come first, because their names must stay exact. If several of them use the same name,
    # the first server keeps it.
    for server in sorted(ordered, key=lambda server: shape.for_server(server).prefixed):
        own = shape.for_server(server)
        items = {ToolName(item["name"]): item for item in listings[server].prompts}
        names = compile_names(server, items, max_length=shape.max_length, prefixed=own.prefixed, renames={})
        for original, item in items.items():
            # Denied prompts take part in naming, so that denying a prompt does not change the names of the server's
            # other prompts.
            if own.prompts.admits(original):
                name = names[original].name
                held = _held_reason(listings[server], "prompts", original)
                definition = {**with_renamed_meta(item, keys_of.get(server, {})), "name": name}
                listed = ListedItem(key=name, server=server, original=original, definition=definition, held=held)
                prompts.setdefault(name, listed)
    return prompts


def _permits_uri(listings: Mapping[ServerName, ServerListing], shape: Shape) -> PermitsUri:
    """Return a predicate that is false for a URI if a `deny` pattern matches the URI or its template."""
    denied: dict[ServerName, tuple[str, ...]] = {}
    for server, listing in listings.items():
        filtered = shape.for_server(server).resources
        texts = [item["uriTemplate"] for item in listing.templates if filtered.denies_uri(item["uriTemplate"])]
        if texts:
            denied[server] = tuple(pattern_of_template(text) for text in texts)

    def permits(server: ServerName, uri: str) -> bool:
        return not shape.for_server(server).resources.denies_uri(uri) and not denies_uri(uri, denied.get(server, ()))

    return permits


def _index_items(
    items: Mapping[ItemKind, list[ListedItem]],
    sharers: Mapping[str, tuple[ServerName, ...]],
    servers: tuple[ServerName, ...],
) -> ItemCatalog:
    def specific_first(template: tuple[_Literals, ListedItem]) -> tuple[int, int]:
        # More literal text means a more specific template. Equally specific templates keep the order of configuration.
        literals, item = template
        return -sum(map(len, literals)), servers.index(item.server)

    texts = [
        (text, item)
        for item in items["resourceTemplates"]
        # Exposed templates with the gateway's scheme are not indexed, because their URIs are split without them.
        for text in {item.original, item.key if kept_prefix(item.key) else item.original}
    ]
    templates = [(_literals(text), item) for text, item in texts]
    return ItemCatalog(
        prompts=tuple(items["prompts"]),
        resources=tuple(items["resources"]),
        templates=tuple(items["resourceTemplates"]),
        skills=tuple(items["skills"]),
        digests={kind: digest([item.definition for item in items[kind]]) for kind in ITEM_KEYS},
        _prompts={item.key: item for item in items["prompts"]},
        _resources={item.key: item for item in items["resources"]},
        _skills={item.key.removesuffix(SKILL_FILE): item for item in items["skills"]},
        _skill_roots={
            (item.server, item.original.removesuffix(SKILL_FILE)): item.key.removesuffix(SKILL_FILE)
            for item in items["skills"]
            if item.key != item.original
        },
        _sharers=sharers,
        _templates=tuple(sorted(templates, key=specific_first)),
        _servers=servers,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claims:
    """The owners and exposed URIs of all resources, or of all templates.

    Attributes:
        servers: For each URI, the servers that list it or whose tools name it.
        shared: The URIs that have to be qualified, such as URIs of several servers.
        alike: For each template, the templates with the same literal parts, which match the same URIs.
        keys: The exposed URI for each server and upstream URI.
        items: The listed definitions by server and URI.
    """

    servers: Mapping[str, list[ServerName]]
    shared: frozenset[str]
    alike: Mapping[str, list[str]]
    keys: Mapping[_Owner, str]
    items: Mapping[_Owner, Mapping[str, Any]]

    def keys_of(self, server: ServerName) -> dict[str, str]:
        """Return the exposed URIs that differ from their upstream URI, keyed by upstream URI."""
        return {uri: key for (owner, uri), key in self.keys.items() if owner == server and key != uri}


def _claims(
    listings: Mapping[ServerName, ServerListing],
    ordered: list[ServerName],
    shape: Shape,
    kind: ItemKind,
    permits: PermitsUri,
    named_uris: Mapping[ServerName, tuple[str, ...]],
) -> _Claims:
    member = ITEM_KEYS[kind]
    listed = {
        (server, item[member]): item
        for server in ordered
        for item in (listings[server].resources if kind == "resources" else listings[server].templates)
        # Intake rejects the gateway's scheme, but a snapshot may be older than that rule.
        if not is_own_uri(item[member])
    }
    claimed = {*listed, *((server, uri) for server in ordered for uri in named_uris.get(server, ()))}
    servers: dict[str, list[ServerName]] = {}
    for server, uri in sorted(claimed, key=lambda owner: (ordered.index(owner[0]), owner[1])):
        if shape.for_server(server).resources.allows_uri(uri) and permits(server, uri):
            servers.setdefault(uri, []).append(server)
    alike: dict[str, list[str]] = {}
    if kind == "resourceTemplates":
        by_literals: dict[_Literals, list[str]] = {}
        for text in servers:
            alike[text] = by_literals.setdefault(_literals(text), [])
            alike[text].append(text)
    shared = shared_uris(
        {uri: {server for same in alike.get(uri, (uri,)) for server in servers[same]} for uri in servers}
    )
    keys: dict[_Owner, str] = {}
    for uri, owners in servers.items():
        # The first unprefixed server with a shared URI keeps the plain URI; the URIs of all other servers are
        # qualified.
        bare = next((server for server in owners if not shape.for_server(server).prefixed), None)
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
    """Return the items, keyed by exposed URI."""
    items: dict[str, ListedItem] = {}
    for (server, uri), item in claims.items.items():
        key = claims.keys.get((server, uri))
        if key is not None:
            definition = {**with_renamed_meta(item, keys_of.get(server, {})), ITEM_KEYS[kind]: key}
            held = _held_reason(listings[server], kind, uri)
            items[key] = ListedItem(key=key, server=server, original=uri, definition=definition, held=held)
    return items


def _skill_uris(listing: ServerListing) -> Iterator[str]:
    """Yield the URI of every file of every skill."""
    for skill in listing.skills:
        yield skill["uri"]
        if skill["resources"] != "dynamic":
            yield from (file["uri"] for file in skill["resources"])


def _skills(listings: Mapping[ServerName, ServerListing], claims: _Claims) -> dict[str, ListedItem]:
    """Return the skills whose SKILL.md may be read, keyed by exposed URI."""
    skills: dict[str, ListedItem] = {}
    for server, listing in listings.items():
        for entry in listing.skills:
            uri = entry["uri"]
            key = claims.keys.get((server, uri))
            if key is None:
                continue
            root, exposed_root = uri.removesuffix(SKILL_FILE), key.removesuffix(SKILL_FILE)
            definition = {**entry, "uri": key}
            if root != exposed_root and entry["resources"] != "dynamic":
                # Change the URIs of all files in the same way, because the files refer to each other by relative path.
                definition["resources"] = [
                    {**file, "uri": exposed_root + file["uri"].removeprefix(root)} for file in entry["resources"]
                ]
            held = _held_reason(listing, "skills", uri)
            skills[key] = ListedItem(key=key, server=server, original=uri, definition=definition, held=held)
    return skills


def _directories(uri: str) -> Iterator[str]:
    """Yield a URI and the directories above it, the nearest first."""
    while uri and not uri.endswith(("/", ":")):
        yield uri
        uri = uri.rpartition("/")[0]


def _held_reason(listing: ServerListing, kind: str, name: str) -> str | None:
    return listing.held[kind].get(name) if kind in listing.held else None


def _has_resources(listing: ServerListing) -> bool:
    return bool(listing.resources or listing.templates or "resources" in listing.capabilities)


def _literals(template: str) -> _Literals:
    return tuple(EXPRESSION.split(template))


def _remove_server(uri: str, server: str) -> str:
    prefix = kept_prefix(uri)
    return prefix + uri.removeprefix(f"{prefix}{server}/")


def _matches(uri: str, literals: _Literals) -> bool:
    """Return whether a URI can be an expansion of the template with these literal parts."""
    # A regular expression would backtrack if there are many wildcards. This search is linear in the URI's length.
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
