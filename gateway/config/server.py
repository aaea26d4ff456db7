"""The keys that server entries of every type share, and the keys of their tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    WithJsonSchema,
    model_validator,
)

from gateway.config.launch_identity import identity_of_url
from gateway.config.operation_config import LockPolicyConfig, ProcessesConfig
from gateway.config.section import Count, OptionalText, Seconds, Section, Texts, default_section, fault
from gateway.process.secrets import secrets_in

Prefix = Literal["always", "none"]
Repair = Literal["off", "safe", "full"]
Validation = Literal["strict", "lenient"]
Documentation = Literal["schema", "hint"]
# Claude Code, the only host known to read the hint, accepts no larger value.
_MAX_RESULT_CHARS: Final = 500_000


class HostKeys(BaseModel):
    """Keys that hosts may write in any server entry, whether or not the type of the server uses them."""

    command: str | None = None
    args: Texts | None = None
    env: dict[str, OptionalText] | None = None
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, OptionalText] | None = None


class AnnotationsConfig(Section):
    """Annotations of tools, from which hosts decide whether a call needs the user's consent."""

    # The types are strict: clients with an MCP SDK reject the whole tool list if one annotation has the wrong type.
    title: str | None = None
    """Display name of the tool."""
    read_only_hint: bool | None = None
    """Whether the tool changes nothing."""
    destructive_hint: bool | None = None
    """Whether the tool may delete or overwrite."""
    idempotent_hint: bool | None = None
    """Whether repeating a call with the same arguments has no further effect."""
    open_world_hint: bool | None = None
    """Whether the tool interacts with systems beyond its server, such as the web."""

    @property
    def as_members(self) -> dict[str, Any]:
        """The annotations that are set, in the form of MCP."""
        return self.model_dump(by_alias=True, exclude_none=True)


class ResultsConfig(Section):
    """How much of a result a caller receives at once. The rest stays in the gateway, for `read_result`."""

    select: bool | None = None
    """Add the optional argument `_select` to tools: a JMESPath expression, or a list of JSON pointers, for the part of
    the result that the caller needs. Tools with an argument of this name keep their own. By default false."""
    # The minimum leaves room for the 500-byte notice about the cut. No host shows a model more than the maximum.
    max_bytes: Count | None = Field(default=None, ge=2_000, le=64 * 1024 * 1024)
    """Size in bytes above which a result is cut at whole items of its largest list, or at whole lines of text. By
    default results are not cut."""
    max_binary_bytes: Count | None = Field(default=None, ge=0, le=64 * 1024 * 1024)
    """Size in bytes above which images, audio and other binary content become resource links, which hosts read with
    resources/read. By default `maxBytes`."""
    binary_types: list[str] | None = None
    """Patterns of media types that the host accepts in results, such as `image/*`. Other binary content becomes
    resource links. By default all."""


class ToolConfig(Section):
    """Overrides and documentation of one tool, keyed by the name that its upstream gives it."""

    name: str | None = Field(default=None, min_length=1)
    """Name to use for the tool in its wrapper name instead of the upstream's name."""
    description: str | None = None
    """Description that replaces the upstream's."""
    supplement: str | None = None
    """Text to append to the description."""
    hidden: bool = False
    """Remove the tool from the catalog, so that it can be neither listed nor called."""
    pinned: bool = False
    """Always list the tool, even if a profile lists other tools only through find_tools."""
    arguments: list[Any] = Field(default_factory=list)
    """Documentation of arguments: a list of objects with `name`, `type`, `description` and `required`."""
    examples: list[Any] = Field(default_factory=list)
    """Argument objects to show as examples in the description."""
    priority: int | None = None
    """Priority when the list is limited: tools with a higher priority are listed first. By default, the
    priority of the server."""
    search_hint: str | None = None
    """Words by which hosts find the tool (anthropic/searchHint)."""
    always_load: bool | None = None
    """Ask hosts that load tools on demand to load this tool immediately (anthropic/alwaysLoad). By default as for the
    server; for a pinned tool, true in the dialects of hosts that read this hint."""
    max_result_size_chars: Count | None = Field(default=None, ge=1, le=_MAX_RESULT_CHARS)
    """Characters of a result that hosts may show to their model (anthropic/maxResultSizeChars), unless the upstream
    states a number. By default as for the server."""
    annotations: AnnotationsConfig = default_section(AnnotationsConfig)
    """Annotations to add where the upstream gives none. They override `annotations` of the server."""
    repair: Repair | None = None
    """Repair of invalid arguments of this tool: off, safe or full. By default as for the server."""
    documentation: Documentation | None = None
    """Use of `arguments` of this tool: schema, which enforces them, or hint. By default as for the server."""
    results: ResultsConfig = default_section(ResultsConfig)
    """How much of a result of this tool a caller receives at once. It overrides `results` of the server."""
    mode: Literal["replace"] | None = None
    """replace: `arguments` replace the upstream's schema. By default they only add what the schema leaves
    undocumented."""


class KindPatterns(Section):
    """Patterns for tools, prompts and resources. A kind that is not given is not restricted."""

    tools: list[str] | None = None
    """Patterns of tool names."""
    prompts: list[str] | None = None
    """Patterns of prompt names."""
    resources: list[str] | None = None
    """Patterns of resource URIs, listed or not, and of URI templates."""


def _kinds_of(*kinds: str) -> Callable[[object], object]:
    """Return a validator that reads a plain list as patterns for `kinds`."""

    def read(value: object) -> object:
        if isinstance(value, list) and all(isinstance(pattern, str) for pattern in value):
            return dict.fromkeys(kinds, value)
        if not isinstance(value, dict | KindPatterns):
            expected = "a list, or an object with lists for tools, prompts and resources"
            raise fault("is not a list of patterns", expected)
        return value

    return read


_FORMS: Final = WithJsonSchema(
    {"anyOf": [{"type": "array", "items": {"type": "string"}}, KindPatterns.model_json_schema(by_alias=True)]}
)
# A plain list under `allow` restricts only tools; under `deny` it covers prompts and resources as well.
Allowed = Annotated[KindPatterns, BeforeValidator(_kinds_of("tools")), _FORMS]
Denied = Annotated[KindPatterns, BeforeValidator(_kinds_of("tools", "prompts", "resources")), _FORMS]


class ServerConfig(Section):
    """One upstream. Unknown keys are ignored with a warning, since entries are shared with hosts.

    Each type of upstream is a subclass. It assigns its fields to `identity`, `connection` or `in_place`, depending on
    what the gateway has to do if the value changes.

    Attributes:
        connector: `module:Class` of the connector, imported when the first connection is opened.
        inferred_from: The key from which this type is inferred if an entry has no `type`.
        spellings: Other names of the type in the files of hosts.
        tolerated_keys: Keys that are ignored without a warning.
        listed_over: The transport from which the tools come. Tools over HTTP have to satisfy the rules of
            `x-mcp-header`.
        identity: Fields that identify the server; a change invalidates saved listings. Must not contain secrets.
        connection: Fields whose change requires a new connection to the same server.
        in_place: Fields whose change is applied without reconnecting.
    """

    model_config = ConfigDict(extra="ignore")

    connector: ClassVar[str]
    inferred_from: ClassVar[str | None] = None
    spellings: ClassVar[frozenset[str]] = frozenset()
    tolerated_keys: ClassVar[frozenset[str]] = frozenset(HostKeys.model_fields)
    listed_over: ClassVar[Literal["stdio", "http"]] = "http"
    identity: ClassVar[tuple[str, ...]]
    connection: ClassVar[tuple[str, ...]] = ("connect_timeout", "elicitation")
    in_place: ClassVar[tuple[str, ...]] = (
        *("call_timeout", "max_concurrency", "tags", "prefix", "allow", "deny", "defaults", "supplement", "siblings"),
        *("display_name", "priority", "copies", "repair", "validation", "documentation", "tools", "disabled"),
        *("annotations", "search_hint", "always_load", "max_result_size_chars", "lock", "results"),
    )

    # Fields that may hold credentials have repr=False, here and in each type.
    type: str = ""
    """Type of the upstream: stdio, http, sse, graphql or openapi. By default it is inferred from the other keys:
    command → stdio, url → http, endpoint → graphql, spec → openapi."""
    # Enough for an interpreter or a container to start, and well below the 30 s after which hosts give up on a server.
    connect_timeout: Seconds = 10.0
    """Seconds to wait for the connection and the handshake. For a process, `startTimeout` applies instead."""
    # The default of the TypeScript SDK, and so of most hosts.
    call_timeout: Seconds = 60.0
    """Seconds to wait for the result of a call. Each progress notification restarts the wait."""
    # More calls than a host sends concurrently, but too few for one slow server to exhaust the sockets.
    max_concurrency: Count = Field(default=64, ge=1, le=10_000)
    """Maximum number of concurrent calls. Further calls are refused."""
    disabled: bool = False
    """Ignore the server."""
    tags: list[str] = Field(default_factory=list)
    """Labels by which profiles, groups, rules and hooks select the server."""
    prefix: Prefix | None = None
    """always: wrapper names begin with the alias of this server. none: tools, prompts and resources keep the names that
    the upstream gives them. By default as set by `gateway.names.prefix`."""
    allow: Allowed = default_section(KindPatterns)
    """Items to expose: a list of patterns of tool names, such as `["search_*", "get_issue"]`, or an object with lists
    of patterns of names or URIs for `tools`, `prompts` and `resources`."""
    deny: Denied = default_section(KindPatterns)
    """Items to leave out, even if `allow` matches: a list of patterns for tools, prompts and resource URIs, or an
    object with lists for `tools`, `prompts` and `resources`, which affects only the kinds that it names."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Values for arguments that a call omits, by parameter name."""
    supplement: str | None = None
    """Text to append to the description of every tool."""
    siblings: list[str] = Field(default_factory=list)
    """Aliases of related servers. If a related server is served as well, the tools' descriptions refer to it."""
    display_name: str | None = None
    """Name of the server in texts for models and people."""
    annotations: AnnotationsConfig = default_section(AnnotationsConfig)
    """Annotations to add to every tool where the upstream gives none."""
    search_hint: str | None = None
    """Words by which hosts find every tool of the server (anthropic/searchHint)."""
    always_load: bool = False
    """Ask hosts that load tools on demand to load the tools of this server immediately (anthropic/alwaysLoad)."""
    max_result_size_chars: Count | None = Field(default=None, ge=1, le=_MAX_RESULT_CHARS)
    """Characters of a result of each tool that hosts may show to their model (anthropic/maxResultSizeChars), unless the
    upstream states a number."""
    priority: int = 0
    """Priority when the list is limited: tools of servers with a higher priority are listed first."""
    # Off by default: a server that may ask the user for input needs a separate connection for each session.
    elicitation: bool = False
    """Let an upstream with an earlier protocol version ask the user for input. Each session then has a separate
    connection to the upstream."""
    copies: bool = False
    """Let each worker start a separate process of this server (serve --workers)."""
    repair: Repair = "safe"
    """Repair of invalid arguments. off: none. safe: only where a single interpretation is possible. full: also by
    convention."""
    validation: Validation = "lenient"
    """Handling of schemas and arguments that cannot be checked, because a pattern cannot be run, a check would take too
    long, or a definition exceeds a limit. lenient: check the rest, send the call, and report what was not checked in
    `_meta` of the result, in `/admin/quarantine` and in the audit log. strict: refuse the call or the tool."""
    documentation: Documentation = "schema"
    """How `arguments` of tools are used. schema: calls are checked against them. hint: they are shown to the model but
    not enforced, and the upstream validates the call."""
    tools: dict[str, ToolConfig] = Field(default_factory=dict)
    """Overrides and documentation of individual tools, by the name that the upstream gives them."""
    results: ResultsConfig = default_section(ResultsConfig)
    """How much of a result a caller receives at once. The limits of a profile apply in addition."""
    lock: LockPolicyConfig = default_section(LockPolicyConfig)
    """Handling of definitions that differ from the approved ones: accept, warn or hold, for each class of changes. By
    default as set by `gateway.lock.policy`."""

    @property
    def proxy_choice(self) -> str | Literal[False] | None:
        """The URL of the forward proxy, False for none, or None to use the proxy variables of the environment."""
        return None

    @property
    def address(self) -> str | None:
        """The URL of the server; None for a process."""
        return None

    @property
    def start_limit_s(self) -> float:
        """Seconds to wait for the handshake and the first list of tools."""
        return self.connect_timeout

    @property
    def starts_on_demand(self) -> bool:
        """True if the process of the server is started by the first call."""
        return False

    @property
    def idle_s(self) -> float:
        """Seconds without a call after which the process of the server ends; 0 to keep it running."""
        return 0.0

    @property
    def has_instances(self) -> bool:
        """True if each session or caller has its own process of the server."""
        return False

    @property
    def lists_at_start(self) -> bool:
        """True if the process is started once at the start of the gateway, only to list its tools."""
        return False

    @property
    def uses_roots(self) -> bool:
        """True if `cwd`, `args` or `sandbox` refers to the host's first root, a folder that the host has open."""
        return False

    def in_root(self, root: str = "") -> ServerConfig:
        """Return a copy with `root` in place of the placeholder of the host's first root.

        Args:
            root: The folder; empty for the first allowed folder, which is used to list the tools of the process.
        """
        return self

    def with_process_defaults(self, defaults: ProcessesConfig) -> ServerConfig:
        """Return a copy with the settings of `gateway.processes` where the entry has none."""
        return self

    @property
    def plain_nulls(self) -> bool:
        """True if the schemas that callers see do not mention null, although the arguments accept null."""
        return False

    @property
    def authenticated(self) -> bool:
        """True if the gateway sends credentials to the server."""
        return False

    @property
    def per_user(self) -> bool:
        """True if each caller has separate credentials for the server."""
        return False

    @property
    def exchanges_callers(self) -> bool:
        """True if the per-user credentials are obtained by exchanging the caller's token."""
        return False

    @property
    def local_keys(self) -> tuple[str, ...]:
        """The keys that are set and refer to this machine: a program to start, or a file to read."""
        return ()

    def is_loop(self, path: Path) -> bool:
        """Return true if the entry starts a gateway with the configuration at `path`, which would be a loop."""
        return False

    def secrets(self) -> set[str]:
        """Return the values in the entry that must not appear in any output."""
        # `tools` contains no secrets and makes up most of a large entry.
        return secrets_in(self.model_dump(by_alias=True, exclude_unset=True, exclude={"tools"}))

    def identity_key(self) -> tuple[object, ...]:
        """Return a key that is equal for all entries of one server, even if their connection settings differ."""
        return self.listed_over, *(getattr(self, field) for field in self.identity)

    def connection_key(self) -> tuple[object, ...]:
        """Return a key that is equal for entries that can share a connection."""
        return self.type, *self.identity_key(), *(getattr(self, field) for field in self.connection)

    def launch_identity(self, folder: Path | None) -> str:
        """Describe, for the lock file, the program or address of the server, with paths relative to `folder`."""
        return identity_of_url(self.address or "")

    def with_absolute_paths(self, folder: Path) -> ServerConfig:
        """Return a copy in which paths are absolute, with relative paths resolved against `folder`."""
        return self

    def check_entry(self, entry: Mapping[str, Any]) -> None:
        """Raise an error from `fault` for problems that involve several fields. `entry` is the raw entry."""

    @model_validator(mode="wrap")
    @classmethod
    def _check_whole(cls, entry: Any, validate: ModelWrapValidatorHandler[ServerConfig]) -> ServerConfig:
        # Runs after the validation of the fields, so that an invalid field is reported alone.
        config = validate(entry)
        if isinstance(entry, dict):
            config.check_entry(entry)
        return config
