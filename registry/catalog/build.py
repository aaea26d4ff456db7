"""Build a catalog from listings, reusing the share of every server that did not change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter, is_
from types import MappingProxyType
from typing import Any

from registry.catalog.catalog import NO_HEADERS, Catalog, ServerPart, ToolWrapper
from registry.catalog.hints import careful, hints_of
from registry.catalog.listing import ServerListing
from registry.catalog.names import BUILTIN_NAMES, CompiledName, ServerName, ToolName, compile_names, normalized_name
from registry.catalog.notes import Note, notes_about
from registry.catalog.overrides import apply_override
from registry.catalog.prompts_and_resources import ItemCatalog, build_item_catalog
from registry.catalog.shape import ServerShape, Shape
from registry.catalog.shared_uris import UI_PREFIX, is_url, uris_named_by, with_renamed_meta
from registry.catalog.unmatched import CODES, unmatched_names
from registry.errors import SchemaRejected
from registry.intake import param_headers
from registry.intake.issues import UNCHECKED_CODES, ItemIssue
from registry.schema.display_text import excerpt
from registry.schema.json_values import without_keys
from registry.schema.packed_definition import PackedDefinition
from registry.schema.schemas import canonical_json, digest, digest_of_canonical


def build_catalog(
    listings: Mapping[ServerName, ServerListing], shape: Shape, *, version: int, previous: Catalog | None = None
) -> Catalog:
    """Return the catalog of these listings.

    Compiles no schema: definitions were checked by intake, now or before they went into a snapshot.
    """
    named = {server: _named_uris(listing, previous) for server, listing in listings.items()}
    items = _prompts_and_resources(listings, shape, named, previous)
    parts = {
        server: _server_part(
            listing,
            shape,
            known=previous.parts.get(server) if previous is not None else None,
            named=named[server],
            keys=items.keys_of.get(server, {}),
        )
        for server, listing in listings.items()
    }
    naming_inputs = _naming_inputs(shape)
    quarantined = [(server, issue) for server in sorted(parts) for issue in parts[server].listing.quarantined]
    quarantined += [(server, issue) for server in sorted(parts) for issue in parts[server].quarantined]
    same = previous is not None and _has_same_wrappers(previous, parts, naming_inputs)
    chosen: Sequence[ToolWrapper] = ()
    refused: Sequence[tuple[ServerName, ItemIssue]] = ()
    if previous is not None and same:
        refused = previous.refused
    else:
        chosen, refused = _assign_names(parts, shape)
    catalog = Catalog(
        version=version,
        prompts_and_resources=items,
        servers=MappingProxyType(dict(listings)),
        quarantined=(*quarantined, *refused),
        warnings=(
            *((server, warning) for server in sorted(parts) for warning in parts[server].warnings),
            *_not_urls(items),
        ),
        parts=parts,
        refused=tuple(refused),
        naming_inputs=naming_inputs,
    )
    if previous is not None and same:
        # Only connections, or words about servers, have changed: nothing here grows with the number of tools.
        return catalog.with_wrappers_of(previous)
    # Sorted, so that equal catalogs list in equal order whichever server connected first.
    return catalog.with_wrappers(tuple(sorted(chosen, key=attrgetter("name"))))


def _has_same_wrappers(previous: Catalog, parts: Mapping[ServerName, ServerPart], naming_inputs: object) -> bool:
    """Return whether these parts have the very wrappers of a catalog, and the same names for them."""
    return (
        previous.naming_inputs == naming_inputs
        and previous.parts.keys() == parts.keys()
        and all(part.wrappers is previous.parts[server].wrappers for server, part in parts.items())
    )


def _named_uris(listing: ServerListing, previous: Catalog | None) -> tuple[str, ...]:
    """Return the URIs that the tools of a server name, looked for only where its tools have changed."""
    known = previous.parts.get(listing.server) if previous is not None else None
    if known is not None and known.listing.tools is listing.tools:
        return known.named
    return uris_named_by(listing.tools)


def _prompts_and_resources(
    listings: Mapping[ServerName, ServerListing],
    shape: Shape,
    named: Mapping[ServerName, tuple[str, ...]],
    previous: Catalog | None,
) -> ItemCatalog:
    """Return everything but tools, built again only if one of its inputs is another object."""
    if previous is not None and previous.servers.keys() == listings.keys():
        same = all(
            listing.prompts is before.prompts
            and listing.resources is before.resources
            and listing.templates is before.templates
            and listing.capabilities is before.capabilities
            and listing.held == before.held
            and named[server] == previous.parts[server].named
            for server, listing in listings.items()
            for before in (previous.servers[server],)
        )
        if same and previous.naming_inputs == _naming_inputs(shape):
            return previous.prompts_and_resources
    before = previous.prompts_and_resources if previous is not None else None
    return build_item_catalog(listings, shape, named=named, previous=before)


def _not_urls(items: ItemCatalog) -> Iterable[tuple[ServerName, ItemIssue]]:
    """Yield an issue for each resource that is listed under another URI because its own is not a URL."""
    for server, keys in items.keys_of.items():
        for uri, key in keys.items():
            if not key.startswith(UI_PREFIX) and "{" not in uri and not is_url(uri):
                detail = f"its URI is not a URL, for which some clients refuse the whole list; it is listed as {key}"
                yield server, ItemIssue(tool=excerpt(uri, 128), code="not_a_url", detail=detail, kind="resources")


def _naming_inputs(shape: Shape) -> tuple[object, ...]:
    """Return what prompts and resources depend on, names and filters, apart from the listings."""
    servers = tuple((server, own.prefixed, own.prompts, own.resources) for server, own in shape.servers.items())
    return servers, shape.max_length


def _server_part(
    listing: ServerListing,
    shape: Shape,
    *,
    known: ServerPart | None,
    named: tuple[str, ...],
    keys: Mapping[str, str],
) -> ServerPart:
    """Return one server's share of a catalog.

    Args:
        listing: What it lists.
        shape: What configuration says.
        known: Its share of the catalog before.
        named: The URIs that its tools name.
        keys: Our URIs by its own, where they differ.
    """
    server_shape = shape.servers.get(listing.server, ServerShape())
    if known is not None and known.uris == keys and known.wraps_alike(server_shape, shape.max_length):
        if known.listing is listing and known.shape == server_shape:
            return known
        if known.listing.tools is listing.tools and _states(known.listing) == _states(listing):
            # Only the state of the connection changed; names, digests and definitions hold.
            warnings = (
                *unmatched_names(listing, server_shape),
                *(one for one in known.warnings if one.code not in CODES),
            )
            wrappers = _with_notes(known, server_shape)
            return replace(known, listing=listing, shape=server_shape, wrappers=wrappers, warnings=warnings)
    return replace(_wrap_tools(listing, server_shape, shape.max_length, known, keys), named=named, uris=keys)


def _states(listing: ServerListing) -> tuple[object, ...]:
    """Return what wrappers depend on besides the definitions."""
    return listing.held, listing.first_hints


def _with_notes(part: ServerPart, shape: ServerShape) -> tuple[ToolWrapper, ...]:
    """Return the wrappers of a part with the notes of another shape; the very tuple where these are the same."""
    before, now = part.shape.notes, shape.notes
    differing = {tool for tool in (*before, *now) if before.get(tool) != now.get(tool)}
    if not differing:
        return part.wrappers
    # By the upstream's definition: a note outlives a change of our own documentation.
    upstream = {name: tool for tool in reversed(part.listing.tools) if (name := tool.get("name")) in differing}
    return tuple(
        replace(one, notes=notes_about(upstream[one.tool], now.get(one.tool, ()))) if one.tool in differing else one
        for one in part.wrappers
    )


def _wrap_tools(
    listing: ServerListing,
    shape: ServerShape,
    max_length: int,
    known: ServerPart | None,
    uris: Mapping[str, str],
) -> ServerPart:
    tools: dict[ToolName, Mapping[str, Any]] = {}
    for definition in listing.tools:
        name = definition.get("name")
        if isinstance(name, str):  # a snapshot may have been edited
            tools.setdefault(ToolName(name), definition)
    # Hidden tools take part in naming, so that hiding one renames no other.
    if known is not None and known.is_named_alike(shape, max_length) and known.names.keys() == tools.keys():
        names = known.names
    else:
        names = compile_names(
            listing.server, tools, max_length=max_length, prefixed=shape.prefixed, renames=shape.renames
        )
    before = {wrapper.tool: wrapper for wrapper in known.wrappers} if known is not None else {}
    held = listing.held.get("tools", {})
    unchecked = {one.tool: one.detail for one in reversed(listing.repaired) if one.code in UNCHECKED_CODES}
    wrappers: list[ToolWrapper] = []
    quarantined: list[ItemIssue] = []
    warnings = list(unmatched_names(listing, shape))
    for tool, upstream in tools.items():
        if not shape.exposes(tool):
            continue
        definition = upstream
        documented: frozenset[str] = frozenset()
        unenforced: dict[str, Any] | None = None
        if (override := shape.overrides.get(tool)) is not None:
            result = apply_override(upstream, override)
            definition = PackedDefinition.of(result.definition)
            documented, unenforced = result.documented, result.checked
            code = "overlay" if override.rejected is None else "overlay_rejected"
            warnings += [ItemIssue(tool=tool, code=code, detail=detail) for detail in result.warnings]
        definition = with_renamed_meta(definition, uris)
        # By the upstream's definition: a note outlives a change of our own documentation.
        notes = notes_about(upstream, shape.notes.get(tool, ()))
        was = before.get(tool)
        if (
            was is not None
            and was.source is definition
            and (was.name, was.name_reason) == (names[tool].name, names[tool].reason)
            and (was.documented, was.unenforced) == (documented, unenforced)
            and was.notes == notes
            and (was.held, was.unchecked) == (held.get(tool), unchecked.get(tool))
        ):
            # The same object: whoever has worked with it need not do so again.
            made = was
        else:
            try:
                made = _wrapper(listing, tool, names[tool], definition, documented, notes, unenforced, held.get(tool))
            except SchemaRejected as rejected:
                quarantined.append(ItemIssue(tool=tool, code=rejected.code, detail=rejected.detail))
                continue
            made = replace(made, unchecked=unchecked[tool]) if tool in unchecked else made
        trusted = careful(made.declared, listing.first_hints.get(tool))
        if trusted is not made.declared:
            warnings.append(_promises_more(tool))
        hints = shape.rights_of(tool, trusted)
        wrappers.append(made if made.shared_hints == hints else replace(made, shared_hints=hints))
    kept = tuple(wrappers)
    if known is not None and len(kept) == len(known.wrappers) and all(map(is_, kept, known.wrappers)):
        kept = known.wrappers
    return ServerPart(
        listing=listing,
        shape=shape,
        max_length=max_length,
        wrappers=kept,
        quarantined=tuple(quarantined),
        warnings=tuple(warnings),
        names=names,
    )


def _wrapper(
    listing: ServerListing,
    tool: ToolName,
    compiled: CompiledName,
    definition: Mapping[str, Any],
    documented: frozenset[str],
    notes: tuple[Note, ...],
    unenforced: dict[str, Any] | None,
    held: str | None,
) -> ToolWrapper:
    packed = PackedDefinition.of(definition).renamed(compiled.name)
    named = packed.read()
    if needs_task := _needs_task(named):
        # No caller can run a task here: what is asked of callers is left out, and the gateway does it.
        named = _without_task_support(named)
        packed = PackedDefinition.of(named)
    text = canonical_json(named)
    schema = named.get("inputSchema", {})
    # Looking for the keyword in the text spares the walk over the schemas of nearly all tools.
    annotated = param_headers.KEYWORD_BYTES in text
    return ToolWrapper(
        name=compiled.name,
        server=listing.server,
        tool=tool,
        definition=packed,
        digest=digest_of_canonical(text),
        schema_digest=digest(schema if unenforced is None else unenforced),
        name_reason=compiled.reason,
        headers=MappingProxyType(param_headers.header_paths(schema)) if annotated else NO_HEADERS,
        documented=documented,
        notes=notes,
        unenforced=unenforced,
        held=held,
        needs_task=needs_task,
        declared=hints_of(named.get("annotations")),
        source=definition,
    )


def _needs_task(definition: Mapping[str, Any]) -> bool:
    execution = definition.get("execution")
    return isinstance(execution, dict) and execution.get("taskSupport") == "required"


def _without_task_support(definition: dict[str, Any]) -> dict[str, Any]:
    execution = without_keys(definition["execution"], {"taskSupport"})
    return {**definition, "execution": execution} if execution else without_keys(definition, {"execution"})


def _promises_more(tool: str) -> ItemIssue:
    detail = (
        "its hints promise more than they did when it was first listed or approved; rules, scopes and repeats go by "
        "what it promised then, until `annotations` of this tool in the configuration or `typegate approve` say more"
    )
    return ItemIssue(tool=tool, code="hints_changed", detail=detail)


def _assign_names(
    parts: Mapping[ServerName, ServerPart], shape: Shape
) -> tuple[list[ToolWrapper], list[tuple[ServerName, ItemIssue]]]:
    """Return the wrappers whose names stand, and an issue for each whose name was taken.

    Prefixed names and those of builtin tools always stand; unprefixed ones follow in the order of configuration.
    """
    position = {server: index for index, server in enumerate(shape.servers)}
    unprefixed = sorted(
        (part for part in parts.values() if not part.shape.prefixed),
        key=lambda part: (position.get(part.listing.server, len(position)), part.listing.server),
    )
    chosen = [wrapper for part in parts.values() if part.shape.prefixed for wrapper in part.wrappers]
    refused: list[tuple[ServerName, ItemIssue]] = []
    if unprefixed:
        owners = _owners([*(wrapper.name for wrapper in chosen), *BUILTIN_NAMES])
    for part in unprefixed:
        kept: list[ToolWrapper] = []
        for wrapper in part.wrappers:
            if (owner := owners.get(normalized_name(wrapper.name))) is None:
                kept.append(wrapper)
                continue
            detail = f"without a prefix this tool would take the name of {owner}"
            refused.append((wrapper.server, ItemIssue(tool=wrapper.tool, code="name_taken", detail=detail)))
        # Only now: tools of one server may look alike, since their names were told apart already.
        owners |= _owners(wrapper.name for wrapper in kept)
        chosen.extend(kept)
    return chosen, refused


def _owners(names: Iterable[str]) -> dict[str, str]:
    return {normalized_name(name): name for name in names}
