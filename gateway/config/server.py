"""The keys that the entry of an upstream has whatever its type, and those of its tools."""

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

from gateway.config.launch_identity import of_url
from gateway.config.lock import LockPolicyConfig
from gateway.config.section import Count, OptionalText, Seconds, Section, Texts, absent, fault
from gateway.secrets import secrets_in

Prefix = Literal["always", "none"]
Repair = Literal["off", "safe", "full"]
Validation = Literal["strict", "lenient"]
Documentation = Literal["schema", "hint"]


class HostKeys(BaseModel):
    """What hosts write in the entry of any MCP server, whichever of it its type uses."""

    command: str | None = None
    args: Texts | None = None
    env: dict[str, OptionalText] | None = None
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, OptionalText] | None = None


class AnnotationsConfig(Section):
    """Annotations of tools; hosts decide by them whether a call needs the user's consent."""

    # One value of a wrong type makes SDK clients refuse the lists of all servers.
    title: str | None = None
    """Name of the tool for people."""
    read_only_hint: bool | None = None
    """Whether the tool changes nothing."""
    destructive_hint: bool | None = None
    """Whether the tool may delete or overwrite."""
    idempotent_hint: bool | None = None
    """Whether a repeated call with the same arguments changes nothing more."""
    open_world_hint: bool | None = None
    """Whether the tool reaches beyond a closed system, as a web search does."""

    @property
    def given(self) -> dict[str, Any]:
        """What is set, as MCP writes it."""
        return self.model_dump(by_alias=True, exclude_none=True)


class ToolConfig(Section):
    """Overrides and documentation of one tool, by the name that its upstream gives it."""

    name: str | None = Field(default=None, min_length=1)
    """Name of the tool in its wrapper name, in place of the upstream's."""
    description: str | None = None
    """Description in place of the upstream's."""
    supplement: str | None = None
    """Text appended to the description."""
    hidden: bool = False
    """Whether the tool is neither listed nor callable."""
    pinned: bool = False
    """Whether the tool is listed even where a profile leaves others to search."""
    arguments: list[Any] = Field(default_factory=list)
    """Documentation of arguments: objects with name, type, description, required."""
    examples: list[Any] = Field(default_factory=list)
    """Argument objects shown as examples in the description."""
    priority: int | None = None
    """Tools with a higher priority are listed first where a budget is short."""
    search_hint: str | None = None
    """Words by which hosts find the tool (anthropic/searchHint)."""
    always_load: bool | None = None
    """Whether hosts that load tools on demand load this one at once (anthropic/alwaysLoad); by default as for its
    server."""
    annotations: AnnotationsConfig = absent(AnnotationsConfig)
    """Annotations to add where the upstream gives none; they have precedence over those of the server."""
    repair: Repair | None = None
    """How far wrong arguments of this tool are repaired; by default as for its server."""
    documentation: Documentation | None = None
    """What the `arguments` of this tool are; by default as for its server."""
    mode: Literal["replace"] | None = None
    """replace: `arguments` replace the upstream's schema. By default they only fill what it leaves undocumented."""


class KindPatterns(Section):
    """Patterns for single kinds; what is not given is not restricted."""

    tools: list[str] | None = None
    """Patterns of tool names."""
    prompts: list[str] | None = None
    """Patterns of prompt names."""
    resources: list[str] | None = None
    """Patterns of URIs of resources, listed or not, and of URI templates."""


def _kinds_of(*kinds: str) -> Callable[[object], object]:
    """Read a list as patterns for these kinds."""

    def read(value: object) -> object:
        if isinstance(value, list) and all(isinstance(pattern, str) for pattern in value):
            return dict.fromkeys(kinds, value)
        if not isinstance(value, dict | KindPatterns):
            raise fault("is no list of patterns", "a list, or an object with lists for tools, prompts and resources")
        return value

    return read


_FORMS: Final = WithJsonSchema(
    {"anyOf": [{"type": "array", "items": {"type": "string"}}, KindPatterns.model_json_schema(by_alias=True)]}
)
# What exposes tools has said nothing of prompts and resources; what denies something denies it whatever it is.
Allowed = Annotated[KindPatterns, BeforeValidator(_kinds_of("tools")), _FORMS]
Denied = Annotated[KindPatterns, BeforeValidator(_kinds_of("tools", "prompts", "resources")), _FORMS]


class ServerConfig(Section):
    """One upstream. Keys of hosts stay as hosts write them; unknown ones are ignored with a warning.

    Each type of upstream is a subclass, which declares for every field of its own what a change of it means.

    Attributes:
        connector: `module:Class` of what opens connections; imported when the first one is opened.
        inferred_from: The key from which this type is inferred where an entry has no `type`.
        spellings: Other names of the type in the files of hosts.
        tolerated_keys: Keys without a meaning here that earn no warning.
        listed_over: What its tools are called over; over HTTP the rules of `x-mcp-header` hold for them.
        identity: Fields of which a change makes it another server, for which no saved listing holds. No secrets.
        connection: Fields of which a change needs a new connection to the same server.
        in_place: Fields of which a change is taken over while the connection lives.
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
        *("annotations", "search_hint", "always_load", "lock"),
    )

    # Values that may hold credentials are kept out of every repr, here and in each type.
    type: str = ""
    """Kind of upstream. By default from the other keys: command → stdio, url → http, endpoint → graphql."""
    # Time for an interpreter or a container to start, and well below the 30 s after which hosts give a server up.
    connect_timeout: Seconds = 10.0
    """Seconds to wait for the connection and its handshake; for a process see startTimeout."""
    # What the TypeScript SDK, and so most hosts, wait for an answer.
    call_timeout: Seconds = 60.0
    """Seconds to wait for a result; progress notifications extend it."""
    # More than a host sends at once, and few enough that one slow server cannot take all sockets.
    max_concurrency: Count = Field(default=64, ge=1, le=10_000)
    """Most calls in flight at once; calls beyond it are refused."""
    disabled: bool = False
    """Whether the server is left out."""
    tags: list[str] = Field(default_factory=list)
    """Labels for selection by profiles, groups and hooks."""
    prefix: Prefix | None = None
    """none: tools, prompts and resources keep their own names, without the alias."""
    allow: Allowed = absent(KindPatterns)
    """Patterns of tool names to expose; or an object with `tools`, `prompts` and `resources`, each a list of patterns
    of names or URIs."""
    deny: Denied = absent(KindPatterns)
    """Patterns of tools, prompts and resources (their URIs) to leave out, even where `allow` matches; or an object with
    lists for `tools`, `prompts` and `resources`, which leaves the kinds out of account that it does not name."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Values for parameters that a call leaves out, by parameter name."""
    supplement: str | None = None
    """Text appended to the description of every tool."""
    siblings: list[str] = Field(default_factory=list)
    """Aliases of related servers; while both are served, the descriptions of each name the other."""
    display_name: str | None = None
    """Name of the server in texts for models and people."""
    annotations: AnnotationsConfig = absent(AnnotationsConfig)
    """Annotations to add to every tool where the upstream gives none."""
    search_hint: str | None = None
    """Words by which hosts find every tool of the server (anthropic/searchHint)."""
    always_load: bool = False
    """Whether hosts that load tools on demand load those of the server at once (anthropic/alwaysLoad)."""
    priority: int = 0
    """Tools of servers with a higher priority are listed first where a budget is short."""
    # Off: a server that may ask needs a connection of its own for each session.
    elicitation: bool = False
    """Whether an upstream of an earlier protocol version may ask the user; each session then has a connection of its
    own."""
    copies: bool = False
    """Whether each worker may run its own process of this server (serve --workers)."""
    repair: Repair = "safe"
    """How far wrong arguments are repaired: off, not at all; safe, where only one reading is possible; full, also by
    convention."""
    validation: Validation = "lenient"
    """What happens where a schema or arguments cannot be checked: a pattern cannot be run, a check would take too long,
    or a definition is out of bounds. lenient: the rest is checked, the call is sent, and the result's `_meta`,
    `/admin/quarantine` and the audit log name what was not checked. strict: the call or the tool is refused."""
    documentation: Documentation = "schema"
    """What the `arguments` of tools are: schema, calls are checked against them; hint, they are shown and never
    enforced, and the upstream judges."""
    tools: dict[str, ToolConfig] = Field(default_factory=dict)
    """Overrides and documentation of single tools, by the upstream's names of them."""
    lock: LockPolicyConfig = absent(LockPolicyConfig)
    """What is done when the server lists something else than what was approved: accept, warn or hold, for each class of
    changes; by default as in `gateway.lock.policy`."""

    @property
    def proxy_choice(self) -> str | Literal[False] | None:
        """What the entry says of a forward proxy: its URL, False for none, or None for what the environment says."""
        return None

    @property
    def address(self) -> str | None:
        """Where it is on the network; None for a process."""
        return None

    @property
    def start_limit_s(self) -> float:
        """For how many seconds the handshake is waited for, and the first list of tools."""
        return self.connect_timeout

    @property
    def plain_nulls(self) -> bool:
        """Whether arguments that accept null are shown without it."""
        return False

    @property
    def authenticated(self) -> bool:
        """Whether credentials are sent to it."""
        return False

    @property
    def per_user(self) -> bool:
        """Whether each caller has credentials of its own there."""
        return False

    @property
    def exchanges_callers(self) -> bool:
        """Whether these are made of the token that a caller comes with."""
        return False

    @property
    def local_keys(self) -> tuple[str, ...]:
        """The keys that are set and name something of this machine: a program to start, a file to read."""
        return ()

    def leads_back(self, path: Path) -> bool:
        """Whether it only leads to a gateway with the configuration at this path."""
        return False

    def secrets(self) -> set[str]:
        """The values in it that no text may repeat."""
        # What documents tools holds none, and is most of a large entry.
        return secrets_in(self.model_dump(by_alias=True, exclude_unset=True, exclude={"tools"}))

    def identity_key(self) -> tuple[object, ...]:
        """Equal for entries that stand for the same server, however it is connected to."""
        return self.listed_over, *(getattr(self, field) for field in self.identity)

    def reach_key(self) -> tuple[object, ...]:
        """Equal for entries between which a connection can be kept."""
        return self.type, *self.identity_key(), *(getattr(self, field) for field in self.connection)

    def launch_identity(self, folder: Path | None) -> str:
        """What is started or connected to, for the lock file; paths below this folder are relative to it."""
        return of_url(self.address or "")

    def with_absolute_paths(self, folder: Path) -> ServerConfig:
        """The same with its paths made absolute; relative ones start at this folder."""
        return self

    def check_entry(self, entry: Mapping[str, Any]) -> None:
        """Raise `fault` for what one field alone does not show; `entry` is what was written, foreign keys included."""

    @model_validator(mode="wrap")
    @classmethod
    def _check_whole(cls, entry: Any, validate: ModelWrapValidatorHandler[ServerConfig]) -> ServerConfig:
        # After the fields: where one of them is wrong, only that is reported.
        config = validate(entry)
        if isinstance(entry, dict):
            config.check_entry(entry)
        return config
