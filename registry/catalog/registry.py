"""The registry, which is the only mutable holder of the current catalog, and the construction of catalogs.

A new catalog reuses the parts of servers that did not change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from operator import attrgetter, is_
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from registry.catalog.catalog import NO_HEADERS, Catalog, CatalogChange, ServerPart, ToolWrapper, app_use
from registry.catalog.listed_items import ItemCatalog, build_item_catalog
from registry.catalog.listing import CODES, ServerListing, unmatched_names
from registry.catalog.names import BUILTIN_NAMES, CompiledName, ServerName, ToolName, compile_names, normalized_name
from registry.catalog.overrides import Note, apply_override, hints_of, most_cautious_hints, notes_about
from registry.catalog.shape import ServerShape, Shape
from registry.catalog.uris import is_url, kept_prefix, uris_in_meta, with_renamed_meta
from registry.errors import SchemaRejected
from registry.intake import schema_repairs
from registry.intake.issues import UNCHECKED_CODES, ItemIssue
from registry.schema.display_text import excerpt
from registry.schema.json_values import without_keys
from registry.schema.packed_definition import PackedDefinition
from registry.schema.schemas import canonical_json, digest, digest_of_canonical


def build_catalog(
    listings: Mapping[ServerName, ServerListing], shape: Shape, *, version: int, previous: Catalog | None = None
) -> Catalog:
    """Build the catalog from the listings of all servers.

    No schema is compiled: `registry.intake` has checked the definitions, in this run or before they were saved in a
    snapshot.
    """
    named_uris = {server: _named_uris(listing, previous) for server, listing in listings.items()}
    items = _prompts_and_resources(listings, shape, named_uris, previous)
    parts = {
        server: _server_part(
            listing,
            shape,
            previous=previous.parts.get(server) if previous is not None else None,
            named_uris=named_uris[server],
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
            *_non_url_issues(items),
        ),
        parts=parts,
        refused=tuple(refused),
        naming_inputs=naming_inputs,
    )
    if previous is not None and same:
        # Fast path: only connections or texts of servers have changed. Its cost does not depend on the number of tools.
        return catalog.with_wrappers_of(previous)
    # Sorted, so that equal catalogs have the same order regardless of which server connected first.
    return catalog.with_wrappers(tuple(sorted(chosen, key=attrgetter("name"))))


def _has_same_wrappers(previous: Catalog, parts: Mapping[ServerName, ServerPart], naming_inputs: object) -> bool:
    """Return whether these parts have the same wrapper objects as `previous`, and would give them the same names."""
    return (
        previous.naming_inputs == naming_inputs
        and previous.parts.keys() == parts.keys()
        and all(part.wrappers is previous.parts[server].wrappers for server, part in parts.items())
    )


def _named_uris(listing: ServerListing, previous: Catalog | None) -> tuple[str, ...]:
    """Return the URIs in the `_meta` of a server's tools; search for URIs only if the tools have changed."""
    previous_part = previous.parts.get(listing.server) if previous is not None else None
    if previous_part is not None and previous_part.listing.tools is listing.tools:
        return previous_part.named
    return uris_in_meta(listing.tools)


def _prompts_and_resources(
    listings: Mapping[ServerName, ServerListing],
    shape: Shape,
    named_uris: Mapping[ServerName, tuple[str, ...]],
    previous: Catalog | None,
) -> ItemCatalog:
    """Return prompts, resources and templates; rebuild them only if one of the inputs has changed."""
    if previous is not None and previous.servers.keys() == listings.keys():
        same = all(
            listing.prompts is before.prompts
            and listing.resources is before.resources
            and listing.templates is before.templates
            and listing.skills is before.skills
            and listing.capabilities is before.capabilities
            and listing.held == before.held
            and named_uris[server] == previous.parts[server].named
            for server, listing in listings.items()
            for before in (previous.servers[server],)
        )
        if same and previous.naming_inputs == _naming_inputs(shape):
            return previous.prompts_and_resources
    before = previous.prompts_and_resources if previous is not None else None
    return build_item_catalog(listings, shape, named_uris=named_uris, previous=before)


def _non_url_issues(items: ItemCatalog) -> Iterable[tuple[ServerName, ItemIssue]]:
    """Yield an issue for each resource that has a substitute URI because the upstream's URI is not a URL."""
    for server, keys in items.keys_of.items():
        for uri, key in keys.items():
            if not kept_prefix(key) and "{" not in uri and not is_url(uri):
                detail = f"its URI is not a URL, and some clients reject the whole list for that; it is listed as {key}"
                yield server, ItemIssue(tool=excerpt(uri, 128), code="not_a_url", detail=detail, kind="resources")


def _naming_inputs(shape: Shape) -> tuple[object, ...]:
    """Return the configuration (naming and filters) that prompts and resources depend on."""
    servers = tuple((server, own.prefixed, own.prompts, own.resources) for server, own in shape.servers.items())
    return servers, shape.max_length


def _server_part(
    listing: ServerListing,
    shape: Shape,
    *,
    previous: ServerPart | None,
    named_uris: tuple[str, ...],
    keys: Mapping[str, str],
) -> ServerPart:
    """Return one server's part of a catalog.

    Args:
        previous: The server's part of the previous catalog.
        named_uris: The URIs in the `_meta` of the server's tools.
        keys: The exposed URIs that differ from the upstream's, keyed by upstream URI.
    """
    server_shape = shape.servers.get(listing.server, ServerShape())
    if previous is not None and previous.uris == keys and previous.has_equal_wrappers(server_shape, shape.max_length):
        if previous.listing is listing and previous.shape == server_shape:
            return previous
        if previous.listing.tools is listing.tools and _held_and_hints(previous.listing) == _held_and_hints(listing):
            # Only the state of the connection or the notes changed: names, digests and definitions remain valid.
            warnings = (
                *unmatched_names(listing, server_shape),
                *(warning for warning in previous.warnings if warning.code not in CODES),
            )
            wrappers = _with_notes(previous, server_shape)
            return replace(previous, listing=listing, shape=server_shape, wrappers=wrappers, warnings=warnings)
    return replace(_wrap_tools(listing, server_shape, shape.max_length, previous, keys), named=named_uris, uris=keys)


def _held_and_hints(listing: ServerListing) -> tuple[object, ...]:
    """Return the fields of a listing, other than the definitions, that wrappers depend on."""
    return listing.held, listing.first_hints


def _with_notes(part: ServerPart, shape: ServerShape) -> tuple[ToolWrapper, ...]:
    """Return a part's wrappers with the notes of another configuration; the same tuple if the notes are equal."""
    before, now = part.shape.notes, shape.notes
    differing = {tool for tool in (*before, *now) if before.get(tool) != now.get(tool)}
    if not differing:
        return part.wrappers
    # A note is tied to the upstream's definition, so that it survives a change of the configured documentation.
    upstream = {name: tool for tool in reversed(part.listing.tools) if (name := tool.get("name")) in differing}
    return tuple(
        replace(wrapper, notes=notes_about(upstream[wrapper.tool], now.get(wrapper.tool, ())))
        if wrapper.tool in differing
        else wrapper
        for wrapper in part.wrappers
    )


def _wrap_tools(
    listing: ServerListing,
    shape: ServerShape,
    max_length: int,
    previous: ServerPart | None,
    uris: Mapping[str, str],
) -> ServerPart:
    tools: dict[ToolName, Mapping[str, Any]] = {}
    for definition in listing.tools:
        name = definition.get("name")
        if isinstance(name, str):  # a snapshot may have been edited
            tools.setdefault(ToolName(name), definition)
    # Hidden tools take part in naming, so that hiding a tool does not rename another tool.
    if previous is not None and previous.has_equal_names(shape, max_length) and previous.names.keys() == tools.keys():
        names = previous.names
    else:
        names = compile_names(
            listing.server, tools, max_length=max_length, prefixed=shape.prefixed, renames=shape.renames
        )
    before = {wrapper.tool: wrapper for wrapper in previous.wrappers} if previous is not None else {}
    held = listing.held.get("tools", {})
    unchecked = {issue.tool: issue.detail for issue in reversed(listing.repaired) if issue.code in UNCHECKED_CODES}
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
            definition = PackedDefinition.pack(result.definition)
            documented, unenforced = result.documented, result.checked
            code = "overlay" if override.rejected is None else "overlay_rejected"
            warnings += [ItemIssue(tool=tool, code=code, detail=detail) for detail in result.warnings]
        definition = with_renamed_meta(definition, uris)
        # A note is tied to the upstream's definition, so that it survives a change of the configured documentation.
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
            # Reuse the object, so that results cached for it stay valid.
            built = was
        else:
            try:
                additions = _Additions(documented, notes, unenforced, held.get(tool))
                built = _wrapper(listing, tool, names[tool], definition, additions)
            except SchemaRejected as rejected:
                quarantined.append(ItemIssue(tool=tool, code=rejected.code, detail=rejected.detail))
                continue
            built = replace(built, unchecked=unchecked[tool]) if tool in unchecked else built
        trusted = most_cautious_hints(built.declared, listing.first_hints.get(tool))
        if trusted is not built.declared:
            warnings.append(_hints_changed_issue(tool))
        hints = shape.effective_hints(tool, trusted)
        wrappers.append(built if built.shared_hints == hints else replace(built, shared_hints=hints))
    reused = tuple(wrappers)
    if previous is not None and len(reused) == len(previous.wrappers) and all(map(is_, reused, previous.wrappers)):
        reused = previous.wrappers
    return ServerPart(
        listing=listing,
        shape=shape,
        max_length=max_length,
        wrappers=reused,
        quarantined=tuple(quarantined),
        warnings=tuple(warnings),
        names=names,
    )


class _Additions(NamedTuple):
    """The fields of a `ToolWrapper` that do not come from the tool's definition."""

    documented: frozenset[str]
    notes: tuple[Note, ...]
    unenforced: dict[str, Any] | None
    held: str | None


def _wrapper(
    listing: ServerListing,
    tool: ToolName,
    compiled: CompiledName,
    definition: Mapping[str, Any],
    additions: _Additions,
) -> ToolWrapper:
    packed = PackedDefinition.pack(definition).renamed(compiled.name)
    renamed = packed.read()
    if needs_task := _needs_task(renamed):
        # Callers cannot run tasks. The gateway runs the task for them and hides that the tool requires a task.
        renamed = _without_task_support(renamed)
        packed = PackedDefinition.pack(renamed)
    text = canonical_json(renamed)
    schema = renamed.get("inputSchema", {})
    # Search the text for the keyword first: nearly all tools lack it, so their schemas need not be traversed.
    annotated = schema_repairs.KEYWORD_BYTES in text
    return ToolWrapper(
        name=compiled.name,
        server=listing.server,
        tool=tool,
        definition=packed,
        digest=digest_of_canonical(text),
        schema_digest=digest(schema if additions.unenforced is None else additions.unenforced),
        name_reason=compiled.reason,
        headers=MappingProxyType(schema_repairs.header_paths(schema)) if annotated else NO_HEADERS,
        **additions._asdict(),
        needs_task=needs_task,
        app=app_use(renamed.get("_meta")),
        declared=hints_of(renamed.get("annotations")),
        source=definition,
    )


def _needs_task(definition: Mapping[str, Any]) -> bool:
    execution = definition.get("execution")
    return isinstance(execution, dict) and execution.get("taskSupport") == "required"


def _without_task_support(definition: dict[str, Any]) -> dict[str, Any]:
    execution = without_keys(definition["execution"], {"taskSupport"})
    return {**definition, "execution": execution} if execution else without_keys(definition, {"execution"})


def _hints_changed_issue(tool: str) -> ItemIssue:
    detail = (
        "its hints promise more than they did when it was first listed or approved; rules, scopes and retries use the "
        "earlier hints until `annotations` of this tool in the configuration or `typegate approve` accept the new ones"
    )
    return ItemIssue(tool=tool, code="hints_changed", detail=detail)


def _assign_names(
    parts: Mapping[ServerName, ServerPart], shape: Shape
) -> tuple[list[ToolWrapper], list[tuple[ServerName, ItemIssue]]]:
    """Return the wrappers that keep their names, and an issue for each wrapper whose name is taken.

    Prefixed names and names of builtin tools are never refused. Unprefixed names are assigned after these names, in
    configuration order.
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
        remaining: list[ToolWrapper] = []
        for wrapper in part.wrappers:
            if (owner := owners.get(normalized_name(wrapper.name))) is None:
                remaining.append(wrapper)
                continue
            detail = f"without a prefix this tool would have the same name as {owner}"
            refused.append((wrapper.server, ItemIssue(tool=wrapper.tool, code="name_taken", detail=detail)))
        # Added after the loop, so that tools of one server are not refused because of each other: `compile_names` has
        # made their names distinct.
        owners |= _owners(wrapper.name for wrapper in remaining)
        chosen.extend(remaining)
    return chosen, refused


def _owners(names: Iterable[str]) -> dict[str, str]:
    return {normalized_name(name): name for name in names}


Listener = Callable[[CatalogChange], None]

_log = logging.getLogger("typegate.registry")

MAX_OWNERS: Final = 256
"""Maximum number of callers whose own listings are stored; one process serves about as many callers within a few
minutes. Each catalog takes a few hundred bytes per tool. Beyond the limit, the listings that were updated longest ago
are dropped.
"""


class Registry:
    """Holds the current catalog and replaces it as a whole. All methods are synchronous.

    A server with per-caller sign-in may list different items to each caller. Such a listing replaces the common listing
    of the server in the catalog of its caller (the owner), and is not visible to other callers.

    Attributes:
        catalog: The current catalog. A call reads this attribute once and uses that catalog to the end.
        shape: The configuration that the catalog was built with.
        owners: By caller, the listings that only this caller sees.
    """

    __slots__ = (
        "_ahead",
        "_ids",
        "_latest",
        "_listeners",
        "_max_owners",
        "_on_own_change",
        "_own_catalogs",
        "catalog",
        "owners",
        "shape",
    )

    def __init__(self, shape: Shape, *, max_owners: int = MAX_OWNERS) -> None:
        self.shape = shape
        self._max_owners = max_owners
        self.catalog: Catalog = build_catalog({}, shape, version=0)
        # The result of `build_ahead`, until the next swap uses or discards it.
        self._ahead: tuple[Shape, CatalogChange] | None = None
        self._listeners: dict[int, tuple[Listener, bool]] = {}
        self._ids = count()
        self.owners: dict[str, dict[ServerName, ServerListing]] = {}
        self._own_catalogs: dict[str, tuple[Catalog, Shape, Catalog]] = {}
        # By server, the latest listing of any owner. Most owners get equal lists of tools, which then share memory.
        self._latest: dict[ServerName, ServerListing] = {}
        self._on_own_change: list[Callable[[], object]] = []

    def put(self, listing: ServerListing) -> CatalogChange:
        """Replace a server's listing, unless the new listing belongs to an older connection (a lower epoch)."""
        # The listing of a slow, lost connection may arrive after the listing of the next connection.
        current = self.catalog.servers.get(listing.server)
        if current is not None and listing.epoch < current.epoch:
            return CatalogChange(self.catalog, self.catalog)
        return self._swap(_update_listings(self.catalog.servers, put=(listing,)))

    def mark_stale(self, server: ServerName, epoch: int) -> CatalogChange:
        """Record that the connection of this epoch is lost; its wrappers stay listed."""
        current = self.catalog.servers.get(server)
        if current is None or current.epoch != epoch or current.stale:
            return CatalogChange(self.catalog, self.catalog)
        return self._swap({**self.catalog.servers, server: replace(current, stale=True)})

    def drop(self, server: ServerName) -> CatalogChange:
        """Remove a server that is no longer configured."""
        if server not in self.catalog.servers:
            return CatalogChange(self.catalog, self.catalog)
        return self._swap(_update_listings(self.catalog.servers, drop=(server,)))

    def build_ahead(
        self, *, shape: Shape | None = None, drop: Iterable[ServerName] = (), put: Iterable[ServerListing] = ()
    ) -> Catalog:
        """Build the catalog that the next `put` or `reshape` will use if its arguments and the current catalog match.

        This may run in another thread. Readers see the old catalog until `put` or `reshape` swaps in the new catalog.

        Args:
            shape: The configuration; None for the current configuration.
            drop: See `reshape`.
            put: See `reshape`.

        Returns:
            The catalog that the build started from. If that catalog is no longer current at the next swap, the built
            catalog is discarded.
        """
        before, shape = self.catalog, shape or self.shape
        after = build_catalog(
            _update_listings(before.servers, drop, put), shape, version=before.version + 1, previous=before
        )
        self._ahead = shape, CatalogChange(before, after)
        return before

    def reshape(
        self, shape: Shape, *, drop: Iterable[ServerName] = (), put: Iterable[ServerListing] = ()
    ) -> CatalogChange:
        """Rebuild the catalog once with another configuration.

        Args:
            shape: The configuration.
            drop: Servers that the configuration no longer has.
            put: Listings of new servers; a listing with a lower epoch than the current listing is ignored.
        """
        self.shape = shape
        return self._swap(_update_listings(self.catalog.servers, drop, put))

    # Listings of single callers

    def catalog_of(self, owner: str) -> Catalog:
        """Return the catalog of a caller: the common catalog with the caller's own listings."""
        own = self.owners.get(owner)
        if own is None:
            return self.catalog
        cached = self._own_catalogs.get(owner)
        if cached is not None and cached[0] is self.catalog and cached[1] is self.shape:
            return cached[2]
        previous = cached or next(reversed(self._own_catalogs.values()), None)
        built = build_catalog(
            {**self.catalog.servers, **own},
            self.shape,
            version=self.catalog.version,
            previous=previous[2] if previous is not None else self.catalog,
        )
        self._own_catalogs[owner] = (self.catalog, self.shape, built)
        return built

    def own_listing(self, owner: str, server: ServerName) -> ServerListing | None:
        """Return the listing that a server gave to this caller alone, or None."""
        return self.owners.get(owner, {}).get(server)

    def put_own(self, owner: str, listing: ServerListing) -> None:
        """Replace the listing that a server gave to one caller."""
        latest = self._latest.get(listing.server)
        if latest is not None and latest.tools == listing.tools:
            listing = replace(listing, tools=latest.tools)
        self._latest[listing.server] = listing
        own = self.owners.pop(owner, {})
        # The owner is inserted again, so that the dict is ordered by the time of the last listing.
        self.owners[owner] = {**own, listing.server: listing}
        self._own_catalogs.pop(owner, None)
        while len(self.owners) > self._max_owners:
            self._forget_owner(next(iter(self.owners)))
        self._notify_own_change()

    def drop_own(self, server: ServerName) -> None:
        """Drop the listings that a server gave to single callers."""
        self._latest.pop(server, None)
        concerned = [owner for owner, own in self.owners.items() if server in own]
        for owner in concerned:
            remaining = {name: listing for name, listing in self.owners[owner].items() if name != server}
            self._own_catalogs.pop(owner, None)
            if remaining:
                self.owners[owner] = remaining
            else:
                self._forget_owner(owner)
        if concerned:
            self._notify_own_change()

    def subscribe_own(self, listener: Callable[[], object]) -> None:
        """Call a listener whenever a caller's own listings may have changed."""
        self._on_own_change.append(listener)

    def _forget_owner(self, owner: str) -> None:
        self.owners.pop(owner, None)
        self._own_catalogs.pop(owner, None)

    def _notify_own_change(self) -> None:
        for listener in self._on_own_change:
            listener()

    def subscribe(self, listener: Listener, *, always: bool = False) -> Callable[[], None]:
        """Call a listener after each swap that callers could notice; return a function to unsubscribe.

        Args:
            listener: Called with the change.
            always: True to call the listener after every swap, even if callers could not notice it.
        """
        key = next(self._ids)
        self._listeners[key] = (listener, always)

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def _swap(self, listings: Mapping[ServerName, ServerListing]) -> CatalogChange:
        before = self.catalog
        ahead, self._ahead = self._ahead, None
        if ahead is not None and self._is_next(*ahead, listings):
            change = ahead[1]
        else:
            after = build_catalog(listings, self.shape, version=before.version + 1, previous=before)
            change = CatalogChange(before, after)
        self.catalog = change.after
        # Iterate over a copy, because listeners may subscribe and unsubscribe.
        for listener, always in tuple(self._listeners.values()):
            if always or change:
                try:
                    listener(change)
                except Exception:  # noqa: BLE001 -- a failing listener must not prevent others from seeing the change
                    _log.exception("catalog listener failed")
        return change

    def _is_next(self, shape: Shape, change: CatalogChange, listings: Mapping[ServerName, ServerListing]) -> bool:
        built = change.after.servers
        return (
            change.before is self.catalog
            and (shape is self.shape or shape == self.shape)
            and list(built) == list(listings)
            and all(listing.is_equal_to(listings[server]) for server, listing in built.items())
        )


def _update_listings(
    listings: Mapping[ServerName, ServerListing],
    drop: Iterable[ServerName] = (),
    put: Iterable[ServerListing] = (),
) -> dict[ServerName, ServerListing]:
    dropped = set(drop)
    updated = {server: listing for server, listing in listings.items() if server not in dropped}
    for listing in put:
        current = updated.get(listing.server)
        if current is None or listing.epoch >= current.epoch:
            updated[listing.server] = listing
    return updated
