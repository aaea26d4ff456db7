"""The immutable catalog of all wrappers, and what differs between two catalogs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from registry.catalog.hints import NO_HINTS, Hints
from registry.catalog.listing import WHOLE_SERVER, ServerListing
from registry.catalog.names import NAME_SEPARATOR, CompiledName, ServerName, ToolName, WrapperName
from registry.catalog.notes import Note
from registry.catalog.prompts_and_resources import ItemCatalog, PermitsItem, PermitsUri
from registry.catalog.shape import ServerShape
from registry.errors import UnknownTool
from registry.intake.issues import ItemIssue
from registry.schema.json_values import without_keys
from registry.schema.packed_definition import PackedDefinition, members_of
from registry.schema.schemas import digest

# The lists whose changes are announced, each by a notification of its own. Templates change with resources.
ListKind = Literal["tools", "prompts", "resources"]

# Most tools have no parameters in headers, and share this object.
NO_HEADERS: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWrapper:
    """One tool as we expose it; nothing of it says how its server is connected, which is in the server's listing.

    Attributes:
        definition: The upstream's under the wrapper's name and with configured overrides; that of a catalog is packed.
        digest: Of the definition.
        schema_digest: Of the schema that arguments are checked against, by which its compiled form is cached.
        name_reason: Why the name is not simply `alias__tool`, or None.
        headers: HTTP headers that mirror parameters, each with the path of its property.
        documented: The arguments that configuration documents.
        notes: Operators' notes on this very definition.
        unenforced: What arguments are checked against, where the definition documents some that are not enforced.
        unchecked: Why arguments are not checked in full, where the input schema could not be used as it was listed.
        held: Why it cannot be called until somebody has approved it as it is today; the definition is as approved.
        needs_task: Its server runs it as a task only, which its definition does not say any more.
        declared: The hints in its definition.
        shared_hints: Its `hints` in an object that equal ones share; None where nobody has looked yet.
        source: What the definition was made of: equal wrappers stay the same object as long as this one does.
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
    declared: Hints = field(default_factory=lambda: NO_HINTS, repr=False, compare=False)
    shared_hints: Hints | None = field(default=None, repr=False, compare=False)
    source: object = field(default=None, repr=False, compare=False)

    @property
    def hints(self) -> Hints:
        """What it counts as for rules, scopes and repeats; rules ask that of all tools in turn, and every call does."""
        if self.shared_hints is not None:
            return self.shared_hints
        annotations = self.definition.get("annotations")
        return annotations if isinstance(annotations, dict) else NO_HINTS

    @property
    def input_schema(self) -> Any:
        """The input schema of the definition, whatever a profile advertises."""
        return self.definition.get("inputSchema", {})

    @property
    def checked_schema(self) -> Any:
        """The schema that arguments are checked against."""
        return self.definition.get("inputSchema", {}) if self.unenforced is None else self.unenforced


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPart:
    """One server's share of a catalog, kept so that only what changed is rebuilt.

    Attributes:
        wrappers: The very tuple of the part before it where they are the same.
        names: Of every tool, exposed or not.
        named: The URIs of apps that its tools name.
        uris: Our URIs by the server's own, where they differ; the wrappers name them so.
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

    def is_named_alike(self, shape: ServerShape, max_length: int) -> bool:
        """Return whether equal tools would get equal names by another shape."""
        own = self.shape
        return (own.prefixed, own.renames, self.max_length) == (shape.prefixed, shape.renames, max_length)

    def wraps_alike(self, shape: ServerShape, max_length: int) -> bool:
        """Return whether equal tools would get equal wrappers by another shape, but for their notes."""
        own = self.shape
        mine, theirs = (
            (one.hidden, one.tools, one.overrides, one.hints.annotations, one.tool_hints) for one in (own, shape)
        )
        return self.is_named_alike(shape, max_length) and mine == theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All wrappers, prompts and resources at one moment, ordered by name; never changed, only replaced.

    Attributes:
        digest: Of the names and definitions of all wrappers.
        parts: Each server's share, for the next build.
        refused: Tools whose names others have, for the next build.
        naming_inputs: What prompts and resources were named by, for the next build.
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
    _by_name: Mapping[str, ToolWrapper] = field(default_factory=dict, repr=False, compare=False)
    _by_server: Mapping[str, tuple[ToolWrapper, ...]] = field(default_factory=dict, repr=False, compare=False)
    _by_tool: Mapping[tuple[str, str], ToolWrapper] = field(default_factory=dict, repr=False, compare=False)

    def resolve(self, name: str) -> ToolWrapper:
        """Return the wrapper of this name.

        Raises:
            UnknownTool: There is none.
        """
        wrapper = self._by_name.get(name)
        if wrapper is None:
            raise UnknownTool(name)
        return wrapper

    def get(self, name: str) -> ToolWrapper | None:
        """Return the wrapper of this name, or None."""
        return self._by_name.get(name)

    def get_by_tool(self, server: str, tool: str) -> ToolWrapper | None:
        """Return the wrapper of a tool by the name that its upstream gave it, or None."""
        return self._by_tool.get((server, tool))

    def find(self, server: str, tool: str) -> ToolWrapper | None:
        """Return the wrapper that a caller means by a tool's own name or a wrapper's, with or without its alias."""
        wrapper = self.get_by_tool(server, tool)
        if wrapper is not None:
            return wrapper
        for name in (tool, server + NAME_SEPARATOR + tool):
            if (named := self._by_name.get(name)) is not None and named.server == server:
                return named
        return None

    def held(self, kind: str, server: str, name: str) -> str | None:
        """Return why an item, by the name of its server, is held; None for what is not, or is unknown."""
        listing = self.servers.get(ServerName(server))
        if listing is None or not listing.held:
            return None
        return listing.held.get(kind, {}).get(name)

    def held_uri(self, server: str, uri: str) -> str | None:
        """Return why no resource of this URI can be read from a server, or None."""
        listing = self.servers.get(ServerName(server))
        if listing is None or not listing.held:
            return None
        return listing.held.get(WHOLE_SERVER, {}).get("") or self.prompts_and_resources.held_template(server, uri)

    def wrappers_of(self, server: str) -> tuple[ToolWrapper, ...]:
        """Return one server's wrappers, ordered by name."""
        return self._by_server.get(server, ())

    def shows(self, server: str) -> bool:
        """Return whether anything of a server is in the catalog: a tool, a prompt, a resource or a template."""
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
        """Return the part of the catalog that each of these permits; see `ItemCatalog.narrowed`."""
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
        """Return the catalog with these wrappers, which are ordered by name, and the indexes to find them by."""
        by_server: dict[str, list[ToolWrapper]] = {}
        for wrapper in wrappers:
            by_server.setdefault(wrapper.server, []).append(wrapper)
        return replace(
            self,
            wrappers=wrappers,
            digest=digest([[wrapper.name, wrapper.digest] for wrapper in wrappers]),
            _by_name={wrapper.name: wrapper for wrapper in wrappers},
            _by_server={server: tuple(own) for server, own in by_server.items()},
            _by_tool={(wrapper.server, wrapper.tool): wrapper for wrapper in wrappers},
        )

    def with_wrappers_of(self, other: Catalog) -> Catalog:
        """Return the catalog with the very wrappers and indexes of another one."""
        return replace(
            self,
            wrappers=other.wrappers,
            digest=other.digest,
            _by_name=other._by_name,
            _by_server=other._by_server,
            _by_tool=other._by_tool,
        )


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """What a caller could notice between two catalogs; true if there is anything."""

    before: Catalog
    after: Catalog
    added: tuple[WrapperName, ...] = field(init=False)
    removed: tuple[WrapperName, ...] = field(init=False)
    changed: tuple[WrapperName, ...] = field(init=False)
    kinds: frozenset[ListKind] = field(init=False)

    def __post_init__(self) -> None:
        old, new = self.before, self.after
        put = object.__setattr__  # the dataclass is frozen
        # Most swaps change only the state of a connection: equal digests spare the comparison of all wrappers.
        if old.digest == new.digest and old.wrappers and new.wrappers:
            for each in ("added", "removed", "changed"):
                put(self, each, ())
            put(self, "kinds", frozenset(self._changed_kinds()))
            return
        put(self, "added", tuple(w.name for w in new.wrappers if old.get(w.name) is None))
        put(self, "removed", tuple(w.name for w in old.wrappers if new.get(w.name) is None))
        both = [(old.get(w.name), w) for w in new.wrappers]
        put(self, "changed", tuple(w.name for was, w in both if was and was.digest != w.digest))
        put(self, "kinds", frozenset(self._changed_kinds()))

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def _changed_kinds(self) -> Iterable[ListKind]:
        if self.added or self.removed or self.changed:
            yield "tools"
        before, after = self.before.prompts_and_resources.digests, self.after.prompts_and_resources.digests
        if before.get("prompts") != after.get("prompts"):
            yield "prompts"
        if any(before.get(kind) != after.get(kind) for kind in ("resources", "resourceTemplates")):
            yield "resources"


def handshake_definition(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a definition as clients of the `initialize` handshake accept it; the same object if it is one already.

    Before 2026-07-28 the root of an `outputSchema` had to be `type: object`; one that is not makes such clients
    reject the whole list.
    """
    if isinstance(definition, PackedDefinition) and not definition.may_have("outputSchema"):
        return definition  # thousands are asked about in turn
    plain = members_of(definition)
    if "outputSchema" not in plain:
        return definition
    output = plain["outputSchema"]
    if isinstance(output, dict) and output.get("type") == "object":
        return definition
    return without_keys(plain, {"outputSchema"})
