"""The immutable catalog of all wrappers, and the difference between two catalogs.

An item is "held" if callers cannot use its current definition until an operator approves this definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal

from registry.catalog.listed_items import ItemCatalog, PermitsItem, PermitsUri
from registry.catalog.listing import WHOLE_SERVER, ServerListing
from registry.catalog.names import NAME_SEPARATOR, CompiledName, ServerName, ToolName, WrapperName
from registry.catalog.overrides import NO_HINTS, Hints, Note
from registry.catalog.shape import ServerShape
from registry.errors import UnknownTool
from registry.intake.issues import ItemIssue
from registry.schema.json_values import without_keys
from registry.schema.packed_definition import PackedDefinition, members_of
from registry.schema.schemas import digest

# The lists that have a `list_changed` notification. Resource templates share the notification of resources.
ListKind = Literal["tools", "prompts", "resources"]

# Shared by the many tools that do not mirror parameters in HTTP headers.
NO_HEADERS: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AppUse:
    """How a tool is used with MCP Apps, which are user interfaces that hosts show.

    Source: MCP Apps 2026-01-26, "Resource Discovery", "Visibility".

    Attributes:
        by_models: Whether hosts may offer the tool to their model.
        by_apps: Whether apps of the same server may call the tool.
        has_app: Whether the definition has app metadata; hosts may then show an app for the tool's results.
    """

    by_models: bool = True
    by_apps: bool = True
    has_app: bool = False


NO_APP: Final = AppUse()


@lru_cache(8)  # one object for each combination
def _app_use(by_models: bool, by_apps: bool) -> AppUse:
    return AppUse(by_models, by_apps, True)


def app_use(meta: object) -> AppUse:
    """Return how a tool with this `_meta` is used with apps."""
    if not isinstance(meta, dict):
        return NO_APP
    ui = meta.get("ui")
    if not isinstance(ui, dict):
        return _app_use(True, True) if isinstance(meta.get("ui/resourceUri"), str) else NO_APP
    visibility = ui.get("visibility")
    if not isinstance(visibility, list):
        return _app_use(True, True)
    return _app_use("model" in visibility, "app" in visibility)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWrapper:
    """One tool as the gateway exposes it. The state of the connection is in the server's listing, not here.

    Attributes:
        definition: The upstream's definition with the wrapper's name and configured overrides; a `PackedDefinition` in
            a catalog.
        digest: Digest of the definition.
        schema_digest: Digest of the schema that arguments are checked against; the cache key of the compiled schema.
        name_reason: Why the name is not simply `alias__tool`, or None.
        headers: HTTP headers that mirror parameters, each with the path of its property.
        documented: The arguments that configuration documents.
        notes: Operators' notes on exactly this definition.
        unenforced: The schema that arguments are checked against, if the schema in the definition shows arguments that
            are not enforced.
        unchecked: Why arguments are not fully checked, if the input schema could not be used as listed.
        held: Why the tool cannot be called until an operator approves its current definition. `definition` is then the
            last approved definition.
        needs_task: Whether the server runs the tool only as an MCP task. The exposed definition omits this requirement.
        app: How the tool is used with MCP Apps.
        declared: The hints in the definition.
        shared_hints: The value of `hints`, as an object shared by equal hints; None if not computed yet.
        source: The object that the definition was derived from. If the next build starts from this object, the wrapper
            can be reused.
    """

    name: WrapperName
    server: ServerName
    tool: ToolName
    definition: Mapping[str, Any]
    digest: str
    schema_digest: str
    name_reason: str | None = None
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NO_HEADERS)
    documented: frozenset[str] = frozenset()
    notes: tuple[Note, ...] = ()
    unenforced: dict[str, Any] | None = None
    unchecked: str | None = None
    held: str | None = None
    needs_task: bool = False
    app: AppUse = NO_APP
    declared: Hints = field(default_factory=lambda: NO_HINTS, repr=False, compare=False)
    shared_hints: Hints | None = field(default=None, repr=False, compare=False)
    source: object = field(default=None, repr=False, compare=False)

    @property
    def hints(self) -> Hints:
        """The hints that rules, scopes and retries use. Every call reads them, and rules read those of every tool."""
        if self.shared_hints is not None:
            return self.shared_hints
        annotations = self.definition.get("annotations")
        return annotations if isinstance(annotations, dict) else NO_HINTS

    @property
    def input_schema(self) -> Any:
        """The input schema of the definition, regardless of what a profile advertises."""
        return self.definition.get("inputSchema", {})

    @property
    def checked_schema(self) -> Any:
        """The schema that arguments are checked against."""
        return self.definition.get("inputSchema", {}) if self.unenforced is None else self.unenforced


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPart:
    """One server's part of a catalog, stored so that a rebuild can reuse whatever did not change.

    Attributes:
        wrappers: The same tuple as in the previous part if no wrapper changed.
        names: The names of all tools, exposed or not.
        named: The URIs in the `_meta` of the server's tools, such as the URIs of apps.
        uris: The exposed URIs that differ from the upstream's, keyed by upstream URI. The `_meta` of the wrappers has
            the exposed URIs.
    """

    listing: ServerListing
    shape: ServerShape
    max_length: int
    wrappers: tuple[ToolWrapper, ...]
    quarantined: tuple[ItemIssue, ...]
    warnings: tuple[ItemIssue, ...]
    names: Mapping[ToolName, CompiledName]
    named: tuple[str, ...] = ()
    uris: Mapping[str, str] = field(default_factory=dict)

    def has_equal_names(self, shape: ServerShape, max_length: int) -> bool:
        """Return whether another configuration would give the same names to equal tools."""
        own = self.shape
        return (own.prefixed, own.renames, self.max_length) == (shape.prefixed, shape.renames, max_length)

    def has_equal_wrappers(self, shape: ServerShape, max_length: int) -> bool:
        """Return whether another configuration would give equal wrappers to equal tools, except for notes."""
        own = self.shape
        mine, theirs = (
            (each.hidden, each.tools, each.overrides, each.hints.annotations, each.tool_hints) for each in (own, shape)
        )
        return self.has_equal_names(shape, max_length) and mine == theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All wrappers, prompts and resources at one moment, ordered by name. Immutable.

    Attributes:
        digest: Digest of the names and definitions of all wrappers.
        by_name: The wrappers by name.
        by_tool: The wrappers by the server and the upstream's name of the tool.
        parts: Each server's part, reused by the next build.
        refused: Tools without a wrapper, because other wrappers have their names; reused by the next build.
        naming_inputs: The configuration that determined names, which the next build compares with its own.
    """

    version: int = 0
    wrappers: tuple[ToolWrapper, ...] = ()
    prompts_and_resources: ItemCatalog = field(default_factory=ItemCatalog)
    servers: Mapping[ServerName, ServerListing] = field(default_factory=dict)
    quarantined: tuple[tuple[ServerName, ItemIssue], ...] = ()
    warnings: tuple[tuple[ServerName, ItemIssue], ...] = ()
    digest: str = ""
    parts: Mapping[ServerName, ServerPart] = field(default_factory=dict, repr=False, compare=False)
    refused: tuple[tuple[ServerName, ItemIssue], ...] = field(default=(), repr=False, compare=False)
    naming_inputs: object = field(default=None, repr=False, compare=False)
    by_name: Mapping[str, ToolWrapper] = field(default_factory=dict, repr=False, compare=False)
    _by_server: Mapping[str, tuple[ToolWrapper, ...]] = field(default_factory=dict, repr=False, compare=False)
    by_tool: Mapping[tuple[str, str], ToolWrapper] = field(default_factory=dict, repr=False, compare=False)

    def resolve(self, name: str) -> ToolWrapper:
        """Return the wrapper with this name.

        Raises:
            UnknownTool: The catalog has no such wrapper.
        """
        wrapper = self.by_name.get(name)
        if wrapper is None:
            raise UnknownTool(name)
        return wrapper

    def find(self, server: str, tool: str) -> ToolWrapper | None:
        """Return a server's wrapper by the upstream's tool name, or by the wrapper name with or without the alias."""
        wrapper = self.by_tool.get((server, tool))
        if wrapper is not None:
            return wrapper
        for name in (tool, server + NAME_SEPARATOR + tool):
            if (wrapper_of_name := self.by_name.get(name)) is not None and wrapper_of_name.server == server:
                return wrapper_of_name
        return None

    def held(self, kind: str, server: str, name: str) -> str | None:
        """Return why an item with this upstream name is held; None if the item is unknown or not held."""
        listing = self.servers.get(ServerName(server))
        if listing is None or not listing.held:
            return None
        return listing.held.get(kind, {}).get(name)

    def held_uri(self, server: str, uri: str) -> str | None:
        """Return why this URI cannot be read from a server because an item is held, or None."""
        listing = self.servers.get(ServerName(server))
        if listing is None or not listing.held:
            return None
        items = self.prompts_and_resources
        server_reason = listing.held.get(WHOLE_SERVER, {}).get("")
        return server_reason or items.held_skill(server, uri) or items.held_template(server, uri)

    def wrappers_of(self, server: str) -> tuple[ToolWrapper, ...]:
        """Return one server's wrappers, ordered by name."""
        return self._by_server.get(server, ())

    def has_items_of(self, server: str) -> bool:
        """Return whether the catalog has a tool, prompt, resource or template of this server."""
        return server in self._by_server or self.prompts_and_resources.has_any_of(server)

    def narrowed(
        self,
        *,
        wrappers: Callable[[ToolWrapper], bool],
        server: Callable[[ServerName], bool],
        prompts: PermitsItem,
        resources: PermitsItem,
        uris: PermitsUri,
        never: PermitsUri | None = None,
    ) -> Catalog:
        """Return the part of the catalog that all predicates permit; see `ItemCatalog.narrowed`."""
        permitted = tuple(wrapper for wrapper in self.wrappers if wrappers(wrapper))
        servers = {name: listing for name, listing in self.servers.items() if server(name)}
        narrowed = replace(
            self,
            servers=MappingProxyType(servers),
            prompts_and_resources=self.prompts_and_resources.narrowed(
                servers=frozenset(servers), prompts=prompts, resources=resources, uris=uris, never=never
            ),
            quarantined=tuple((server, issue) for server, issue in self.quarantined if server in servers),
            warnings=tuple((server, issue) for server, issue in self.warnings if server in servers),
        )
        return narrowed.with_wrappers(permitted)

    def with_wrappers(self, wrappers: tuple[ToolWrapper, ...]) -> Catalog:
        """Return the catalog with these wrappers, which must be ordered by name, and with new indexes."""
        by_server: dict[str, list[ToolWrapper]] = {}
        for wrapper in wrappers:
            by_server.setdefault(wrapper.server, []).append(wrapper)
        return replace(
            self,
            wrappers=wrappers,
            digest=digest([[wrapper.name, wrapper.digest] for wrapper in wrappers]),
            by_name={wrapper.name: wrapper for wrapper in wrappers},
            _by_server={server: tuple(own) for server, own in by_server.items()},
            by_tool={(wrapper.server, wrapper.tool): wrapper for wrapper in wrappers},
        )

    def with_wrappers_of(self, other: Catalog) -> Catalog:
        """Return the catalog with the wrappers and indexes of another catalog."""
        return replace(
            self,
            wrappers=other.wrappers,
            digest=other.digest,
            by_name=other.by_name,
            _by_server=other._by_server,
            by_tool=other.by_tool,
        )


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """The differences between two catalogs that a caller could notice. The object is false if there are none."""

    before: Catalog
    after: Catalog
    added: tuple[WrapperName, ...] = field(init=False)
    removed: tuple[WrapperName, ...] = field(init=False)
    changed: tuple[WrapperName, ...] = field(init=False)
    kinds: frozenset[ListKind] = field(init=False)

    def __post_init__(self) -> None:
        old, new = self.before, self.after
        set_field = object.__setattr__  # the dataclass is frozen
        # Most new catalogs differ only in the state of a connection. If the digests are equal, skip comparing all
        # wrappers.
        if old.digest == new.digest and old.wrappers and new.wrappers:
            for each in ("added", "removed", "changed"):
                set_field(self, each, ())
            set_field(self, "kinds", frozenset(self._changed_kinds()))
            return
        set_field(self, "added", tuple(w.name for w in new.wrappers if old.by_name.get(w.name) is None))
        set_field(self, "removed", tuple(w.name for w in old.wrappers if new.by_name.get(w.name) is None))
        pairs = [(old.by_name.get(w.name), w) for w in new.wrappers]
        set_field(self, "changed", tuple(w.name for was, w in pairs if was and was.digest != w.digest))
        set_field(self, "kinds", frozenset(self._changed_kinds()))

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def _changed_kinds(self) -> Iterable[ListKind]:
        if self.added or self.removed or self.changed:
            yield "tools"
        before, after = self.before.prompts_and_resources.digests, self.after.prompts_and_resources.digests
        if before.get("prompts") != after.get("prompts"):
            yield "prompts"
        if any(before.get(kind) != after.get(kind) for kind in ("resources", "resourceTemplates", "skills")):
            yield "resources"


def handshake_definition(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a definition that clients of protocol versions with a handshake accept; the same object if unchanged.

    Versions before 2026-07-28 start with the `initialize` handshake, and require `type: object` at the root of an
    `outputSchema`. Their clients reject the whole list if one tool has another root, so such an `outputSchema` is
    removed.
    """
    if isinstance(definition, PackedDefinition) and not definition.may_have("outputSchema"):
        return definition  # fast path: called for thousands of tools in turn
    plain = members_of(definition)
    if "outputSchema" not in plain:
        return definition
    output = plain["outputSchema"]
    if isinstance(output, dict) and output.get("type") == "object":
        return definition
    return without_keys(plain, {"outputSchema"})
