"""Listings in, one immutable Catalog out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from registry.catalog.names import (
    BUILTIN_NAMES,
    SEPARATOR,
    CompiledName,
    ServerName,
    ToolName,
    WrapperName,
    compile_names,
    fold,
)
from registry.catalog.notes import Note, notes_about
from registry.catalog.overrides import enrich
from registry.catalog.prompts_and_resources import Offerings, build_offerings
from registry.catalog.shape import ServerShape, Shape
from registry.errors import SchemaRejected, UnknownTool
from registry.intake import param_headers
from registry.intake.tools import Finding
from registry.schema.schemas import canonical, digest, digest_of

ListKind = Literal["tools", "prompts", "resources"]
"""The lists whose changes are announced, each by a notification of its own."""

_NO_HEADERS: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerListing:
    """What one upstream said on one connection, after intake; nothing in it is ever changed in place."""

    server: ServerName
    epoch: int
    tools: tuple[dict[str, Any], ...]
    prompts: tuple[dict[str, Any], ...] = ()
    resources: tuple[dict[str, Any], ...] = ()
    templates: tuple[dict[str, Any], ...] = ()
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    quarantined: tuple[Finding, ...] = ()
    repaired: tuple[Finding, ...] = ()
    ttl_ms: int | None = None
    scope: Literal["public", "private"] = "public"
    origin: Literal["live", "snapshot"] = "live"
    stale: bool = False
    transport: Literal["stdio", "http"] = "stdio"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWrapper:
    """One tool as we expose it; `definition` is the upstream's object under its name and overlay.

    Attributes:
        documented: The arguments of which configuration said something that is shown.
        notes: What operators noted about this very definition.
    """

    name: WrapperName
    server: ServerName
    tool: ToolName
    epoch: int
    definition: dict[str, Any]
    digest: str
    schema_digest: str
    name_reason: str | None = None
    stale: bool = False
    origin: Literal["live", "snapshot"] = "live"
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NO_HEADERS)
    documented: frozenset[str] = frozenset()
    notes: tuple[Note, ...] = ()

    @property
    def input_schema(self) -> Any:
        """The schema that arguments are checked against, whatever a profile advertises."""
        return self.definition.get("inputSchema", {})


@dataclass(frozen=True, slots=True)
class _Part:
    """One server's share of a catalog, kept so that only the changed server is rebuilt."""

    listing: ServerListing
    shape: ServerShape
    max_length: int
    wrappers: tuple[ToolWrapper, ...]
    findings: tuple[Finding, ...]
    warnings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All wrappers at one moment, ordered by name, and all else that servers offer; never changed, only replaced."""

    version: int = 0
    wrappers: tuple[ToolWrapper, ...] = ()
    offerings: Offerings = field(default_factory=Offerings)
    servers: Mapping[ServerName, ServerListing] = field(default_factory=dict)
    quarantined: tuple[tuple[ServerName, Finding], ...] = ()
    warnings: tuple[tuple[ServerName, Finding], ...] = ()
    digest: str = ""
    _by_name: Mapping[str, ToolWrapper] = field(default_factory=dict, repr=False, compare=False)
    _by_server: Mapping[str, tuple[ToolWrapper, ...]] = field(default_factory=dict, repr=False, compare=False)
    _by_tool: Mapping[tuple[str, str], ToolWrapper] = field(default_factory=dict, repr=False, compare=False)
    # What `build` reuses; of no interest to readers.
    parts: Mapping[ServerName, _Part] = field(default_factory=dict, repr=False, compare=False)
    offered_under: object = field(default=None, repr=False, compare=False)

    def resolve(self, name: str) -> ToolWrapper:
        """Return the wrapper of this name.

        Raises:
            UnknownTool: there is none.
        """
        wrapper = self._by_name.get(name)
        if wrapper is None:
            raise UnknownTool(name)
        return wrapper

    def get(self, name: str) -> ToolWrapper | None:
        """Return the wrapper of this name, or None."""
        return self._by_name.get(name)

    def exactly(self, server: str, tool: str) -> ToolWrapper | None:
        """Return the wrapper of the tool that its upstream calls so, or None."""
        return self._by_tool.get((server, tool))

    def find(self, server: str, tool: str) -> ToolWrapper | None:
        """Return the wrapper that a caller means: by its upstream's name, or else by its own, with or without alias."""
        wrapper = self.exactly(server, tool)
        if wrapper is not None:
            return wrapper
        for name in (tool, server + SEPARATOR + tool):
            if (named := self._by_name.get(name)) is not None and named.server == server:
                return named
        return None

    def narrowed(self, permits: Callable[[ToolWrapper], bool], permits_server: Callable[[ServerName], bool]) -> Catalog:
        """Return the part of it that these permit; the same object where they permit everything."""
        wrappers = tuple(wrapper for wrapper in self.wrappers if permits(wrapper))
        servers = {server: one for server, one in self.servers.items() if permits_server(server)}
        if len(wrappers) == len(self.wrappers) and len(servers) == len(self.servers):
            return self
        return _indexed(
            replace(
                self,
                servers=MappingProxyType(servers),
                offerings=self.offerings.only(frozenset(servers)),
                quarantined=tuple(one for one in self.quarantined if one[0] in servers),
                warnings=tuple(one for one in self.warnings if one[0] in servers),
            ),
            wrappers,
        )

    def of(self, server: str) -> tuple[ToolWrapper, ...]:
        """Return one server's wrappers, ordered by name."""
        return self._by_server.get(server, ())


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """What a caller could notice between two catalogs; true when there is anything."""

    before: Catalog
    after: Catalog
    added: tuple[WrapperName, ...] = field(init=False)
    removed: tuple[WrapperName, ...] = field(init=False)
    changed: tuple[WrapperName, ...] = field(init=False)
    kinds: frozenset[ListKind] = field(init=False)

    def __post_init__(self) -> None:
        old, new = self.before, self.after
        put = object.__setattr__
        if old.digest == new.digest and old.wrappers and new.wrappers:
            old = new
        put(self, "added", tuple(w.name for w in new.wrappers if old.get(w.name) is None))
        put(self, "removed", tuple(w.name for w in old.wrappers if new.get(w.name) is None))
        both = [(old.get(w.name), w) for w in new.wrappers]
        put(self, "changed", tuple(w.name for was, w in both if was and was.digest != w.digest))
        put(self, "kinds", frozenset(self._kinds()))

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def _kinds(self) -> Iterable[ListKind]:
        if self.added or self.removed or self.changed:
            yield "tools"
        before, after = self.before.offerings.digests, self.after.offerings.digests
        if before.get("prompts") != after.get("prompts"):
            yield "prompts"
        if any(before.get(kind) != after.get(kind) for kind in ("resources", "resourceTemplates")):
            yield "resources"


def handshake_definition(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the definition as clients of the `initialize` eras accept it; the same object when it is.

    Before 2026-07-28 an `outputSchema` had a root of `type: object`, and one other lost the whole list.
    """
    if "outputSchema" not in definition:
        return definition
    output = definition["outputSchema"]
    if isinstance(output, dict) and output.get("type") == "object":
        return definition
    return {key: value for key, value in definition.items() if key != "outputSchema"}


def build(
    listings: Mapping[ServerName, ServerListing],
    shape: Shape,
    *,
    version: int,
    previous: Catalog | None = None,
) -> Catalog:
    """Build the catalog of these listings, reusing every server that did not change.

    Compiles no schema: definitions were checked by intake, or come from a snapshot of what was.
    """
    parts = {
        server: _part(listing, shape, previous.parts.get(server) if previous is not None else None)
        for server, listing in listings.items()
    }
    chosen, refused = _settle_names(parts, shape)
    wrappers = tuple(sorted(chosen, key=lambda wrapper: wrapper.name))
    quarantined = [(s, finding) for s in sorted(parts) for finding in parts[s].listing.quarantined]
    quarantined += [(s, finding) for s in sorted(parts) for finding in parts[s].findings]
    catalog = Catalog(
        version=version,
        offerings=_offerings(listings, shape, previous),
        servers=MappingProxyType(dict(listings)),
        quarantined=(*quarantined, *refused),
        warnings=tuple((s, warning) for s in sorted(parts) for warning in parts[s].warnings),
        parts=parts,
        offered_under=_naming(shape),
    )
    return _indexed(catalog, wrappers)


def _indexed(catalog: Catalog, wrappers: tuple[ToolWrapper, ...]) -> Catalog:
    """The catalog with these wrappers, ordered by name, and everything that is found by them."""
    by_server: dict[str, list[ToolWrapper]] = {}
    for wrapper in wrappers:
        by_server.setdefault(wrapper.server, []).append(wrapper)
    return replace(
        catalog,
        wrappers=wrappers,
        digest=digest([[w.name, w.digest] for w in wrappers]),
        _by_name={w.name: w for w in wrappers},
        _by_server={s: tuple(ws) for s, ws in by_server.items()},
        _by_tool={(w.server, w.tool): w for w in wrappers},
    )


def _offerings(listings: Mapping[ServerName, ServerListing], shape: Shape, previous: Catalog | None) -> Offerings:
    """Everything but tools, built again only where one of its inputs is another object."""
    if previous is not None and previous.servers.keys() == listings.keys():
        same = all(
            one.prompts is was.prompts
            and one.resources is was.resources
            and one.templates is was.templates
            and one.capabilities is was.capabilities
            for server, one in listings.items()
            for was in (previous.servers[server],)
        )
        if same and previous.offered_under == _naming(shape):
            return previous.offerings
    order, bare, max_length = _naming(shape)
    return build_offerings(listings, order=order, bare=bare, max_length=max_length)


def _naming(shape: Shape) -> tuple[tuple[ServerName, ...], frozenset[ServerName], int]:
    """What of a shape names anything but tools."""
    bare = frozenset(server for server, one in shape.servers.items() if not one.prefixed)
    return tuple(shape.servers), bare, shape.max_length


def _part(listing: ServerListing, shape: Shape, known: _Part | None) -> _Part:
    server_shape = shape.servers.get(listing.server, ServerShape())
    if known is not None and known.shape == server_shape and known.max_length == shape.max_length:
        if known.listing is listing:
            return known
        if known.listing.tools is listing.tools:
            # Only the standing of the listing changed; names, digests and definitions hold.
            wrappers = tuple(
                replace(w, epoch=listing.epoch, stale=listing.stale, origin=listing.origin) for w in known.wrappers
            )
            return replace(known, listing=listing, wrappers=wrappers)
    return _Part(listing, server_shape, shape.max_length, *_wrap(listing, server_shape, shape.max_length))


def _wrap(
    listing: ServerListing, shape: ServerShape, max_length: int
) -> tuple[tuple[ToolWrapper, ...], tuple[Finding, ...], tuple[Finding, ...]]:
    tools: dict[ToolName, dict[str, Any]] = {}
    for definition in listing.tools:
        name = definition.get("name")
        if isinstance(name, str):
            tools.setdefault(ToolName(name), definition)
    # Hidden siblings take part in naming, so that hiding one renames nobody.
    names = compile_names(listing.server, tools, max_length=max_length, prefixed=shape.prefixed, renames=shape.renames)
    wrappers: list[ToolWrapper] = []
    findings: list[Finding] = []
    warnings = [
        Finding(tool=tool, code="no_such_tool", detail="the configuration speaks of a tool that this server has not")
        for tool in shape.overlays
        if tool not in tools and listing.origin == "live"
    ]
    for tool, definition in tools.items():
        if not shape.shows(tool):
            continue
        upstream = definition
        overlay = shape.overlays.get(tool)
        documented: frozenset[str] = frozenset()
        if overlay is not None:
            enriched = enrich(definition, overlay)
            definition, documented = enriched.definition, enriched.documented
            code = "overlay" if overlay.rejected is None else "overlay_rejected"
            warnings += [Finding(tool=tool, code=code, detail=detail) for detail in enriched.warnings]
        notes = notes_about(upstream, shape.notes.get(tool, ()))
        try:
            wrappers.append(_wrapper(listing, tool, names[tool], definition, documented, notes))
        except SchemaRejected as rejected:
            findings.append(Finding(tool=tool, code=rejected.code, detail=rejected.detail))
    return tuple(wrappers), tuple(findings), tuple(warnings)


def _wrapper(
    listing: ServerListing,
    tool: ToolName,
    compiled: CompiledName,
    definition: dict[str, Any],
    documented: frozenset[str],
    notes: tuple[Note, ...],
) -> ToolWrapper:
    named = {**definition, "name": compiled.name}
    text = canonical(named)
    schema = named.get("inputSchema", {})
    annotated = param_headers.KEYWORD_BYTES in text
    return ToolWrapper(
        name=compiled.name,
        server=listing.server,
        tool=tool,
        epoch=listing.epoch,
        definition=named,
        digest=digest_of(text),
        schema_digest=digest(schema),
        name_reason=compiled.reason,
        stale=listing.stale,
        origin=listing.origin,
        headers=MappingProxyType(param_headers.header_paths(schema)) if annotated else _NO_HEADERS,
        documented=documented,
        notes=notes,
    )


def _settle_names(
    parts: Mapping[ServerName, _Part], shape: Shape
) -> tuple[list[ToolWrapper], list[tuple[ServerName, Finding]]]:
    """Let prefixed names and built-ins stand, then bare names in the order of configuration."""
    place = {server: index for index, server in enumerate(shape.servers)}
    prefixed = [part for part in parts.values() if part.shape.prefixed]
    bare = sorted(
        (part for part in parts.values() if not part.shape.prefixed),
        key=lambda part: (place.get(part.listing.server, len(place)), part.listing.server),
    )
    chosen = [wrapper for part in prefixed for wrapper in part.wrappers]
    if not bare:
        return chosen, []
    refused: list[tuple[ServerName, Finding]] = []
    owners: dict[str, str] = {fold(wrapper.name): wrapper.name for wrapper in chosen}
    owners.update({fold(name): name for name in BUILTIN_NAMES})
    for part in bare:
        kept = list(_not_taken(part, owners, refused))
        owners.update({fold(wrapper.name): wrapper.name for wrapper in kept})
        chosen.extend(kept)
    return chosen, refused


def _not_taken(
    part: _Part, owners: Mapping[str, str], refused: list[tuple[ServerName, Finding]]
) -> Iterable[ToolWrapper]:
    for wrapper in part.wrappers:
        owner = owners.get(fold(wrapper.name))
        if owner is None:
            yield wrapper
        else:
            detail = f"without a prefix this tool would take the name of {owner}"
            refused.append((wrapper.server, Finding(tool=wrapper.tool, code="name_taken", detail=detail)))
