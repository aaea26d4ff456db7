"""Configuration and operators' notes about servers and their tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from registry.catalog.names import DEFAULT_NAME_LENGTH, NAME_SEPARATOR, ServerName, ToolName
from registry.catalog.overrides import Hints, Note, ToolOverride, hints_of, most_cautious_hints
from registry.catalog.uris import allows_uri, denies_uri


@dataclass(frozen=True, slots=True)
class NameFilter:
    """Patterns of names or URIs; `deny` has precedence over `allow`."""

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """True if every name passes."""
        return not self.deny and "*" in self.allow

    def admits(self, name: str) -> bool:
        """Return whether a name passes."""
        return _matches_any(name, self.allow) and not _matches_any(name, self.deny)

    def allows_uri(self, uri: str) -> bool:
        """Return whether `allow` matches a URI in every form in which its server may read it."""
        return allows_uri(uri, self.allow)

    def denies_uri(self, uri: str) -> bool:
        """Return whether `deny` matches any spelling of a URI that its server may treat as the same URI."""
        return denies_uri(uri, self.deny)


OPEN: Final = NameFilter()


def selects_name(pattern: str, *, server: str, original: str, exposed: str, prefixed: bool) -> bool:
    """Return whether a profile's pattern selects a tool or a prompt.

    The two sides of a pattern with `__` are matched against the server and the name separately, so that a server cannot
    enter a selection of another server's tools by its choice of names. A pattern without `__` is matched against the
    original and the exposed name.

    Args:
        server: The alias of the server.
        original: The item's name at the server.
        exposed: The item's exposed name.
        prefixed: Whether the exposed name begins with the alias.
    """
    alias, separator, local = pattern.partition(NAME_SEPARATOR)
    if not separator or not alias:
        return fnmatchcase(original, pattern) or fnmatchcase(exposed, pattern)
    # Exposed names may have an adapted alias and a renamed or shortened tool name; users may know either form.
    prefix, own = server, exposed
    if prefixed:
        prefix, _, own = exposed.partition(NAME_SEPARATOR)
    return (fnmatchcase(server, alias) or fnmatchcase(prefix, alias)) and (
        fnmatchcase(original, local) or fnmatchcase(own, local)
    )


def server_of(pattern: str) -> str | None:
    """Return the server part of a name pattern; None if nothing precedes a `__`."""
    alias, separator, _ = pattern.partition(NAME_SEPARATOR)
    return alias if separator and alias else None


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# How far a call may be repaired; the docstring of `registry.arguments.repair` defines the levels.
RepairLevel = Literal["off", "safe", "full"]
# Arguments that cannot be checked within bounds are refused (strict), or sent and reported as unchecked (lenient).
Validation = Literal["strict", "lenient"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolHints:
    """Configured hints to hosts, besides descriptions.

    Attributes:
        annotations: Annotations to add to definitions, in which the upstream's own annotations have precedence.
        search_hint: Words by which hosts find a tool.
        always_load: Whether hosts that load tools on demand load this tool at once; None if not configured.
        max_result_chars: How many characters of a result hosts may show to a model.
    """

    annotations: Mapping[str, Any] = field(default_factory=dict)
    search_hint: str | None = None
    always_load: bool | None = None
    max_result_chars: int | None = None

    def with_fallback(self, other: ToolHints) -> ToolHints:
        """Return these hints, with values from `other` for settings that these hints lack."""
        return ToolHints(
            annotations={**other.annotations, **self.annotations},
            search_hint=self.search_hint or other.search_hint,
            always_load=other.always_load if self.always_load is None else self.always_load,
            max_result_chars=other.max_result_chars if self.max_result_chars is None else self.max_result_chars,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRules:
    """How much of a tool's results callers receive at once; None for a setting that is not configured.

    Attributes:
        select: Whether calls may name the part of the result that they need.
        max_bytes: Size above which a result is cut; callers read the rest with `read_result`.
        max_binary_bytes: Size above which images, audio and blobs become resource links.
        binary_types: Patterns of the media types that are returned inline.
    """

    select: bool | None = None
    max_bytes: int | None = None
    max_binary_bytes: int | None = None
    binary_types: tuple[str, ...] | None = None

    @property
    def apply(self) -> bool:
        """True if some result may differ from the upstream's."""
        return bool(self.select) or self.makes_links

    @property
    def makes_links(self) -> bool:
        """True if binary content may become a resource link."""
        return (self.max_bytes, self.max_binary_bytes, self.binary_types) != (None, None, None)

    def with_fallback(self, other: ResultRules) -> ResultRules:
        """Return these rules, with values from `other` for settings that these rules lack."""
        return ResultRules(
            select=other.select if self.select is None else self.select,
            max_bytes=other.max_bytes if self.max_bytes is None else self.max_bytes,
            max_binary_bytes=other.max_binary_bytes if self.max_binary_bytes is None else self.max_binary_bytes,
            binary_types=other.binary_types if self.binary_types is None else self.binary_types,
        )

    def restricted_to(self, other: ResultRules) -> ResultRules:
        """Return rules that satisfy both rules: the smaller sizes, and `select` only if neither rule forbids it."""
        return ResultRules(
            select=False if False in (self.select, other.select) else self.select or other.select,
            max_bytes=_smaller_limit(self.max_bytes, other.max_bytes),
            max_binary_bytes=_smaller_limit(self.max_binary_bytes, other.max_binary_bytes),
            binary_types=other.binary_types if self.binary_types is None else self.binary_types,
        )


def _smaller_limit(first: int | None, second: int | None) -> int | None:
    return min((size for size in (first, second) if size is not None), default=None)


NO_RESULT_RULES: Final = ResultRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerShape:
    """How one server's tools are named, documented, called and exposed. Patterns match upstream names.

    Attributes:
        named: The names of all tools that configuration mentions.
        hidden: Tools that are not exposed, whatever `tools` says.
        tools, prompts, resources: Which items of each kind are exposed; `resources` applies to templates too.
        private_connections: Whether each session that can answer server requests has its own connection.
        has_instances: Whether each session or caller has its own process.
        notes: Operators' notes, by tool.
        repair: How far calls may be repaired; `repairs` overrides it for single tools.
        validation: Whether arguments that cannot be checked are refused.
        defaults: By parameter name, the value that is added if a call omits the parameter.
        hints: Hints for every tool; `tool_hints` overrides them for single tools.
        plain_nulls: Whether optional arguments are shown without null as an alternative.
        results: How much of a result callers receive; `tool_results` overrides it for single tools.
    """

    prefixed: bool = True
    plain_nulls: bool = False
    renames: Mapping[ToolName, str] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()
    tools: NameFilter = OPEN
    prompts: NameFilter = OPEN
    resources: NameFilter = OPEN
    private_connections: bool = False
    has_instances: bool = False
    overrides: Mapping[str, ToolOverride] = field(default_factory=dict)
    notes: Mapping[str, tuple[Note, ...]] = field(default_factory=dict)
    display_name: str | None = None
    tags: tuple[str, ...] = ()
    siblings: tuple[str, ...] = ()
    supplement: str | None = None
    supplements: Mapping[str, str] = field(default_factory=dict)
    examples: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    hints: ToolHints = ToolHints()
    tool_hints: Mapping[str, ToolHints] = field(default_factory=dict)
    pinned: frozenset[str] = frozenset()
    priority: int = 0
    priorities: Mapping[str, int] = field(default_factory=dict)
    repair: RepairLevel = "safe"
    repairs: Mapping[str, RepairLevel] = field(default_factory=dict)
    validation: Validation = "lenient"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    results: ResultRules = NO_RESULT_RULES
    tool_results: Mapping[str, ResultRules] = field(default_factory=dict)

    def result_rules(self, tool: str) -> ResultRules:
        """Return the configured rules for the results of this tool."""
        own = self.tool_results.get(tool)
        return self.results if own is None else own.with_fallback(self.results)

    def repair_level(self, tool: str) -> RepairLevel:
        """Return how far calls of this tool may be repaired."""
        return self.repairs.get(tool, self.repair)

    def hints_of(self, tool: str) -> ToolHints:
        """Return the configured hints of this tool."""
        own = self.tool_hints.get(tool)
        return self.hints if own is None else own.with_fallback(self.hints)

    def loads_at_once(self, tool: str) -> bool:
        """Return whether a tool is pinned, and its own configuration does not turn `always_load` off."""
        own = self.tool_hints.get(tool)
        return tool in self.pinned and (own is None or own.always_load is not False)

    def effective_hints(self, tool: str, hints: Hints) -> Hints:
        """Return the hints that decide about access to a tool that declares `hints`.

        Annotations configured for the tool win. Annotations configured for the server fill in missing hints, and never
        make a tool count as less harmful than it declares.
        """
        own, server_hints = self.tool_hints.get(tool), hints_of(self.hints.annotations)
        if server_hints:
            hints = most_cautious_hints(hints_of({**server_hints, **hints}), hints_of({**hints, **server_hints}))
        return hints if own is None else hints_of({**hints, **hints_of(own.annotations)})

    def exposes(self, tool: str) -> bool:
        """Return whether this tool has a wrapper."""
        return tool not in self.hidden and self.tools.admits(tool)


_DEFAULT: Final = ServerShape()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The configuration of the catalog; the order of servers decides which server keeps a shared unprefixed name."""

    max_length: int = DEFAULT_NAME_LENGTH
    servers: Mapping[ServerName, ServerShape] = field(default_factory=dict)

    def for_server(self, server: ServerName) -> ServerShape:
        """Return the shape of one server, or the default shape."""
        return self.servers.get(server, _DEFAULT)
