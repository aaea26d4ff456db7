"""What every upstream's entry in the configuration has, whatever its type."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, model_validator

from gateway.config.sections import Count, Seconds, Section

Prefix = Literal["always", "none"]
Repair = Literal["off", "safe", "full"]


class HostKeys(BaseModel):
    """What hosts write in the entry of any MCP server, whichever of it its type uses."""

    command: str | None = None
    args: list[str] | None = None
    env: dict[str, str] | None = None
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] | None = None


class ToolConfig(Section):
    """What is said about one tool of one server, by the name that its upstream gives it."""

    name: str | None = Field(default=None, min_length=1, description="The tool part of the name it is exposed under.")
    description: str | None = Field(default=None, description="Replaces the upstream's description.")
    supplement: str | None = Field(default=None, description="Appended to the description.")
    hidden: bool = Field(default=False, description="Neither listed nor callable.")
    pinned: bool = Field(default=False, description="Listed even where a profile defers wrappers.")
    arguments: list[Any] = Field(default_factory=list, description="Arguments, as name, type, description, required.")
    examples: list[Any] = Field(default_factory=list, description="Argument objects to show.")
    priority: int | None = Field(default=None, description="Higher is listed first where a budget is short.")
    search_hint: str | None = Field(default=None, description="Words by which hosts find it (anthropic/searchHint).")
    always_load: bool = Field(default=False, description="Hosts that defer tools load it at once.")
    annotations: dict[str, Any] = Field(default_factory=dict, description="Hints where the upstream has none.")
    repair: Repair | None = Field(default=None, description="What may be repaired in calls of this tool.")
    mode: Literal["replace"] | None = Field(default=None, description="replace: `arguments` win over the upstream.")


class ServerConfig(Section):
    """One upstream. The host's own keys stay as hosts write them; unknown ones are ignored by the loader.

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
        *("display_name", "priority", "copies", "repair", "tools"),
    )

    # Values that may hold credentials are kept out of every repr, here and in each type.
    type: str = Field(default="", description="Inferred when absent: command → stdio, url → http, endpoint → graphql.")
    # Time for an interpreter or a container to start, and well below the 30 s after which hosts give a server up.
    connect_timeout: Seconds = Field(default=10.0, description="Seconds.")
    # What the TypeScript SDK, and so most hosts, wait for an answer.
    call_timeout: Seconds = Field(default=60.0, description="Seconds; progress notifications extend it.")
    # More than a host sends at once, and few enough that one slow server cannot take all sockets.
    max_concurrency: Count = Field(default=64, ge=1, le=10_000, description="Calls in flight at once.")
    tags: list[str] = Field(default_factory=list)
    prefix: Prefix | None = Field(default=None, description="none: tools under the names that the upstream gives.")
    allow: list[str] = Field(default_factory=lambda: ["*"], description="Patterns of tool names to expose.")
    deny: list[str] = Field(default_factory=list, description="Patterns of tool names to refuse.")
    defaults: dict[str, Any] = Field(default_factory=dict, description="Values for parameters that a call leaves out.")
    supplement: str | None = None
    siblings: list[str] = Field(default_factory=list)
    display_name: str | None = None
    priority: int = Field(default=0, description="Higher is listed first where a budget is short.")
    # Off: a server that may ask needs a connection of its own for each session.
    elicitation: bool = False
    copies: bool = Field(default=False, description="A process of its own for each worker of the gateway is fine.")
    repair: Repair = Field(default="safe", description="What may be repaired in calls: nothing, the sure, or more.")
    tools: dict[str, ToolConfig] = Field(default_factory=dict)

    @property
    def address(self) -> str | None:
        """Where it is on the network; None for a process."""
        return None

    @property
    def plain_nulls(self) -> bool:
        """Whether arguments that accept null are shown without it."""
        return False

    @property
    def authenticated(self) -> bool:
        """Whether credentials are sent to it."""
        return False

    def identity_key(self) -> tuple[object, ...]:
        """Equal for entries that stand for the same server, however it is connected to."""
        return self.listed_over, *(getattr(self, field) for field in self.identity)

    def reach_key(self) -> tuple[object, ...]:
        """Equal for entries between which a connection can be kept."""
        return self.type, *self.identity_key(), *(getattr(self, field) for field in self.connection)

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
