"""Prompts, resources and resource templates of every server: who owns a name or a URI.

A prompt is named like a wrapper. A URI stays as it is while one server has it; where several do, each
becomes `typegate://{alias}/{uri}`, which can be taken apart again because an alias holds no slash.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from registry.catalog.names import ServerName, ToolName, compile_names
from registry.intake.prompts_and_resources import KEYS, OfferingKind
from registry.schema.schemas import digest

QUALIFIED: Final = "typegate://"
_EXPRESSION: Final = re.compile(r"\{[^{}]*\}")

Items = tuple[dict[str, Any], ...]


class Listed(Protocol):
    """What one server listed, after intake."""

    @property
    def prompts(self) -> Items:
        """Its prompts."""

    @property
    def resources(self) -> Items:
        """Its resources."""

    @property
    def templates(self) -> Items:
        """Its resource templates."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What it says it can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offering:
    """One prompt, resource or template as we expose it; `definition` differs in its key only."""

    key: str
    server: ServerName
    original: str
    definition: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offerings:
    """Everything but tools at one moment; each kind ordered by key, never changed, only replaced."""

    prompts: tuple[Offering, ...] = ()
    resources: tuple[Offering, ...] = ()
    templates: tuple[Offering, ...] = ()
    digests: Mapping[OfferingKind, str] = field(default_factory=dict)
    _prompts: Mapping[str, Offering] = field(default_factory=dict, repr=False)
    _resources: Mapping[str, Offering] = field(default_factory=dict, repr=False)
    _shared: Mapping[str, tuple[ServerName, ...]] = field(default_factory=dict, repr=False)
    _templates: tuple[tuple[tuple[str, ...], Offering], ...] = field(default=(), repr=False)
    _servers: tuple[ServerName, ...] = ()

    def of(self, kind: OfferingKind) -> tuple[Offering, ...]:
        """All of one kind."""
        if kind == "prompts":
            return self.prompts
        return self.resources if kind == "resources" else self.templates

    def only(self, servers: frozenset[ServerName]) -> Offerings:
        """Return what these servers have of it, under the same names."""

        def kept(offerings: Iterable[Offering]) -> tuple[Offering, ...]:
            return tuple(one for one in offerings if one.server in servers)

        by_kind = {"prompts": kept(self.prompts), "resources": kept(self.resources)}
        templates = kept(self.templates)
        return Offerings(
            prompts=by_kind["prompts"],
            resources=by_kind["resources"],
            templates=templates,
            digests={kind: digest([one.definition for one in by_kind.get(kind, templates)]) for kind in KEYS},
            _prompts={one.key: one for one in by_kind["prompts"]},
            _resources={one.key: one for one in by_kind["resources"]},
            _shared={
                uri: left
                for uri, owners in self._shared.items()
                if (left := tuple(server for server in owners if server in servers))
            },
            _templates=tuple((literals, one) for literals, one in self._templates if one.server in servers),
            _servers=tuple(server for server in self._servers if server in servers),
        )

    def prompt(self, name: str) -> Offering | None:
        """The prompt of this name, if there is one."""
        return self._prompts.get(name)

    def template(self, text: str) -> Offering | None:
        """The template that is written so, if there is one."""
        return next((one for _, one in self._templates if one.key == text), None)

    def owners(self, uri: str) -> tuple[tuple[ServerName, str], ...]:
        """Who may know this URI, most likely first, and what each of them calls it.

        Listed ones have one owner, those that fit a template the owners of it; any other may be
        known to every server that has resources at all, for servers need not list what they read.
        """
        listed = self._resources.get(uri)
        if listed is not None:
            return ((listed.server, listed.original),)
        alias, found, rest = uri.removeprefix(QUALIFIED).partition("/")
        if found and uri.startswith(QUALIFIED) and alias in self._servers:
            return ((ServerName(alias), rest),)
        shared = self._shared.get(uri)
        if shared is not None:
            return tuple((server, uri) for server in shared)
        fitting = [one.server for literals, one in self._templates if _fits(uri, literals)]
        return tuple((server, uri) for server in dict.fromkeys([*fitting, *self._servers]))


def build_offerings(
    listings: Mapping[ServerName, Listed],
    *,
    order: Iterable[ServerName],
    bare: frozenset[ServerName],
    max_length: int,
) -> Offerings:
    """Index everything that these servers offer beside tools.

    Args:
        listings: By server.
        order: The servers as configuration has them: the first of those that share a URI answers to it.
        bare: The servers whose names stay as they are.
        max_length: Of a prompt's name, in characters.
    """
    place = {server: index for index, server in enumerate(order)}
    ordered = sorted(listings, key=lambda server: (place.get(server, len(place)), server))
    prompts: dict[str, Offering] = {}
    # A bare name is a promise, so it settles first; among bare ones the earlier server has it.
    for server in sorted(ordered, key=lambda one: one not in bare):
        items = {ToolName(item["name"]): item for item in listings[server].prompts}
        names = compile_names(server, items, max_length=max_length, prefixed=server not in bare, renames={})
        for original, item in items.items():
            name = names[original].name
            offering = Offering(key=name, server=server, original=original, definition={**item, "name": name})
            prompts.setdefault(name, offering)
    resources, shared = _by_uri(listings, ordered, bare, "resources")
    templates, _ = _by_uri(listings, ordered, bare, "resourceTemplates")
    literal = [(tuple(_EXPRESSION.split(one.original)), one) for one in templates.values()]
    by_kind = {"prompts": prompts, "resources": resources, "resourceTemplates": templates}
    return Offerings(
        prompts=_sorted(prompts),
        resources=_sorted(resources),
        templates=_sorted(templates),
        digests={kind: digest([one.definition for one in _sorted(by_kind[kind])]) for kind in KEYS},
        _prompts=prompts,
        _resources=resources,
        _shared=shared,
        _templates=tuple(sorted(literal, key=lambda pair: -sum(map(len, pair[0])))),
        _servers=tuple(server for server in ordered if _has_resources(listings[server])),
    )


def _by_uri(
    listings: Mapping[ServerName, Listed],
    ordered: list[ServerName],
    bare: frozenset[ServerName],
    kind: OfferingKind,
) -> tuple[dict[str, Offering], dict[str, tuple[ServerName, ...]]]:
    member = KEYS[kind]
    found = [
        (server, item[member], item)
        for server in ordered
        for item in (listings[server].resources if kind == "resources" else listings[server].templates)
    ]
    count = Counter(uri for _, uri, _ in found)
    offerings: dict[str, Offering] = {}
    sharers: dict[str, list[ServerName]] = {}
    for server, uri, item in found:
        key = uri
        if count[uri] > 1:
            sharers.setdefault(uri, []).append(server)
            if server not in bare or uri in offerings:
                key = f"{QUALIFIED}{server}/{uri}"
        offerings[key] = Offering(key=key, server=server, original=uri, definition={**item, member: key})
    return offerings, {uri: tuple(servers) for uri, servers in sharers.items()}


def _sorted(offerings: Mapping[str, Offering]) -> tuple[Offering, ...]:
    return tuple(offerings[key] for key in sorted(offerings))


def _has_resources(listing: Listed) -> bool:
    return bool(listing.resources or listing.templates or "resources" in listing.capabilities)


def _fits(uri: str, literals: tuple[str, ...]) -> bool:
    """Whether a URI can be an expansion of a template with these literal parts; linear in its length."""
    if len(literals) == 1:
        return uri == literals[0]
    first, *middle, last = literals
    if not uri.startswith(first) or not uri.endswith(last):
        return False
    at, end = len(first), len(uri) - len(last)
    for part in middle:
        at = uri.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return at <= end
