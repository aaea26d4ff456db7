"""Prompts, resources and resource templates of every server, and which server owns a name or a URI.

A prompt is named like a wrapper. A URI stays as it is while one server has it; where several do, each
becomes `typegate://{alias}/{uri}`, which can be taken apart again because an alias contains no slash.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName, ToolName, compile_names
from registry.intake.prompts_and_resources import ITEM_KEYS, ItemKind
from registry.schema.schemas import digest

QUALIFIED_URI_PREFIX: Final = "typegate://"
_EXPRESSION: Final = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedItem:
    """One prompt, resource or template as we expose it.

    Attributes:
        key: Our name or URI for it.
        original: The upstream's.
        definition: The upstream's object under our key.
    """

    key: str
    server: ServerName
    original: str
    definition: dict[str, Any]


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
    _templates: tuple[tuple[tuple[str, ...], ListedItem], ...] = field(default=(), repr=False)
    _servers: tuple[ServerName, ...] = ()

    def items(self, kind: ItemKind) -> tuple[ListedItem, ...]:
        """Return all items of one kind."""
        if kind == "prompts":
            return self.prompts
        return self.resources if kind == "resources" else self.templates

    def for_servers(self, servers: frozenset[ServerName]) -> ItemCatalog:
        """Return what these servers have, under the same names as in the whole."""

        def permitted(owners: Iterable[ServerName]) -> tuple[ServerName, ...]:
            return tuple(server for server in owners if server in servers)

        return _indexed(
            {kind: [item for item in self.items(kind) if item.server in servers] for kind in ITEM_KEYS},
            sharers={uri: left for uri, owners in self._sharers.items() if (left := permitted(owners))},
            servers=permitted(self._servers),
        )

    def prompt(self, name: str) -> ListedItem | None:
        """Return the prompt of this name, or None."""
        return self._prompts.get(name)

    def template(self, text: str) -> ListedItem | None:
        """Return the template with this text, or None."""
        return next((item for _, item in self._templates if item.key == text), None)

    def owners(self, uri: str) -> tuple[tuple[ServerName, str], ...]:
        """Return the servers that may know a URI, most likely first, each with its own URI for it.

        A listed resource has one owner, and a URI that matches a template has the template's. Any other URI may be
        known to every server that has resources at all, since servers need not list what they can read.
        """
        listed = self._resources.get(uri)
        if listed is not None:
            return ((listed.server, listed.original),)
        alias, found, rest = uri.removeprefix(QUALIFIED_URI_PREFIX).partition("/")
        if found and uri.startswith(QUALIFIED_URI_PREFIX) and alias in self._servers:
            return ((ServerName(alias), rest),)
        sharers = self._sharers.get(uri)
        if sharers is not None:
            return tuple((server, uri) for server in sharers)
        matching = [item.server for literals, item in self._templates if _matches(uri, literals)]
        return tuple((server, uri) for server in dict.fromkeys([*matching, *self._servers]))


def build_item_catalog(
    listings: Mapping[ServerName, ServerListing],
    *,
    order: Iterable[ServerName],
    unprefixed: frozenset[ServerName],
    max_length: int,
) -> ItemCatalog:
    """Index all prompts, resources and templates of these servers.

    Args:
        listings: By server.
        order: The servers in the order of configuration: of those that share a URI, the first answers to it.
        unprefixed: The servers whose names stay as they are.
        max_length: Of a prompt's name, in characters.
    """
    position = {server: index for index, server in enumerate(order)}
    ordered = sorted(listings, key=lambda server: (position.get(server, len(position)), server))
    prompts: dict[str, ListedItem] = {}
    # Unprefixed names go first: they are promised exactly. Among them the earlier server keeps a shared name.
    for server in sorted(ordered, key=lambda server: server not in unprefixed):
        items = {ToolName(item["name"]): item for item in listings[server].prompts}
        names = compile_names(server, items, max_length=max_length, prefixed=server not in unprefixed, renames={})
        for original, item in items.items():
            name = names[original].name
            prompts.setdefault(
                name, ListedItem(key=name, server=server, original=original, definition={**item, "name": name})
            )
    resources, sharers = _by_uri(listings, ordered, unprefixed, "resources")
    templates, _ = _by_uri(listings, ordered, unprefixed, "resourceTemplates")
    by_kind = {"prompts": prompts, "resources": resources, "resourceTemplates": templates}
    return _indexed(
        {kind: [by_kind[kind][key] for key in sorted(by_kind[kind])] for kind in ITEM_KEYS},
        sharers=sharers,
        servers=tuple(server for server in ordered if _has_resources(listings[server])),
    )


def _indexed(
    items: Mapping[ItemKind, list[ListedItem]],
    sharers: Mapping[str, tuple[ServerName, ...]],
    servers: tuple[ServerName, ...],
) -> ItemCatalog:
    def specific_first(template: tuple[tuple[str, ...], ListedItem]) -> tuple[int, int]:
        # The more literal text, the more specific the template; among equal ones the order of configuration decides.
        literals, item = template
        return -sum(map(len, literals)), servers.index(item.server)

    templates = [(tuple(_EXPRESSION.split(item.original)), item) for item in items["resourceTemplates"]]
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
    unprefixed: frozenset[ServerName],
    kind: ItemKind,
) -> tuple[dict[str, ListedItem], dict[str, tuple[ServerName, ...]]]:
    """Return the items by our URI, and the servers of each URI that several have."""
    member = ITEM_KEYS[kind]
    found = [
        (server, item[member], item)
        for server in ordered
        for item in (listings[server].resources if kind == "resources" else listings[server].templates)
    ]
    count = Counter(uri for _, uri, _ in found)
    items: dict[str, ListedItem] = {}
    sharers: dict[str, list[ServerName]] = {}
    for server, uri, item in found:
        key = uri
        if count[uri] > 1:
            sharers.setdefault(uri, []).append(server)
            # The first unprefixed server keeps the URI itself, all others are qualified.
            if server not in unprefixed or uri in items:
                key = f"{QUALIFIED_URI_PREFIX}{server}/{uri}"
        items[key] = ListedItem(key=key, server=server, original=uri, definition={**item, member: key})
    return items, {uri: tuple(servers) for uri, servers in sharers.items()}


def _has_resources(listing: ServerListing) -> bool:
    return bool(listing.resources or listing.templates or "resources" in listing.capabilities)


def _matches(uri: str, literals: tuple[str, ...]) -> bool:
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
