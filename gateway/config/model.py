"""The model of the configuration file: pydantic, with keys in camelCase as in the files of hosts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from gateway.config.admin import AdminConfig
from gateway.config.approvals import ApprovalsConfig
from gateway.config.audit import AuditConfig
from gateway.config.auth import AuthConfig
from gateway.config.cluster import ClusterConfig
from gateway.config.hooks import HookConfig
from gateway.config.issuers import profile_of_audience
from gateway.config.lock import LockConfig
from gateway.config.policy import PolicyConfig
from gateway.config.quotas import QuotasConfig
from gateway.config.section import Count, Section, absent, add_descriptions, fault, is_http_url, not_boolean, suggestion
from gateway.config.server import Prefix, Repair, ServerConfig
from gateway.config.telemetry import TelemetryConfig
from gateway.config.upstream_types.registration import AnyServerConfig
from registry.dialects.client_profiles import DIALECTS
from registry.views.profile import DEFAULT_PROFILE

_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class NamesConfig(Section):
    """How wrapper names are built."""

    # 48: hosts put a prefix of up to 16 characters before a name, and APIs take 64. At least 24: below, most names
    # would be little but a hash. At most 128: the limit of MCP 2026-07-28.
    max_length: Count = Field(default=48, ge=24, le=128)
    """Longest wrapper name in characters; longer ones are shortened and end in a hash."""
    prefix: Prefix = "always"
    """Whether wrapper names begin with the alias of their server. A server may say otherwise."""


class ListenConfig(Section):
    """Where `typegate serve` listens, and which hosts and origins it accepts."""

    # Loopback: a gateway that nobody configured must not be open to the network.
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Anything but a loopback address needs an API key, or --insecure."""
    port: Count = Field(default=8765, ge=0, le=65_535)
    """Port to listen on; 0 takes any free port."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """Values of the Host header to accept in addition to the names of this machine and to literal IP addresses."""
    allowed_origins: list[str] = Field(default_factory=list)
    """Origins of pages that may call, as https://chat.example.test; their browsers get the headers of CORS, with
    credentials. Pages of this machine may call in any case, without credentials. Clients that are no browsers send no
    Origin."""

    connections_per_address: Count | None = Field(default=None, ge=1)
    """Most connections of one client address; by default nine tenths of all, so that one address does not keep out the
    others. All callers behind a proxy have its address. Where there is no room, connections without a request end
    first."""

    @field_validator("allowed_origins")
    @classmethod
    def _without_slash(cls, origins: list[str]) -> list[str]:
        # A browser sends none.
        return [origin.removesuffix("/") for origin in origins]


class MetricsConfig(Section):
    """Access to /metrics."""

    # Off: it tells servers, tools and how much they are used.
    public: bool = False
    """Whether /metrics is open to everyone. By default, where there are API keys or `gateway.admin.token`, it takes
    the admin token, or a key without scopes or with the scope `metrics`."""


class GroupConfig(Section):
    """A selection by patterns. All given keys have to match; an empty list matches nothing.

    Where `tools` is given, prompts and resources are selected of servers that are named, unless it says which.
    """

    servers: list[str] | None = None
    """Patterns of server aliases."""
    tags: list[str] | None = None
    """Patterns of tags; one of the tags of a server has to match."""
    tools: list[str] | None = None
    """Patterns of wrapper names or tool names; in one with `__` the part before it is for aliases of servers."""
    prompts: list[str] | None = None
    """Patterns of names of prompts, as for tools."""
    resources: list[str] | None = None
    """Patterns of URIs of resources, listed or not, and of URI templates."""


class ProfileConfig(GroupConfig):
    """A named view of the catalog, at /mcp/NAME."""

    groups: list[str] | None = None
    """Names of groups; a tool has to be selected by at least one of them."""
    disclosure: Literal["auto", "eager", "lazy"] = "auto"
    """Which tools are listed: eager, all; auto, all within the budget, which all servers share; lazy, pinned ones only.
    The rest is found by find_tools."""
    # Hosts that limit a list take about 128 tools of all servers together, and models choose worse beyond a hundred.
    # At least 5: our own tools are always among them.
    max_tools: Count = Field(default=100, ge=5)
    """With auto and lazy: most tools in the list, those of the gateway and those that a session has found included."""
    # A tenth of a context of 200,000 tokens, before the first message.
    max_tokens: Count = Field(default=20_000, ge=1)
    """With auto: most tokens of the list."""
    dialect: str = "mcp"
    """Host or model API whose rules for schemas and names the list has to satisfy."""
    supplements: dict[str, str] = Field(default_factory=dict)
    """Text appended to the description of a tool, by wrapper name."""
    guidance: dict[str, str] = Field(default_factory=dict)
    """Text appended to the description of every tool of the servers with a tag, by tag."""
    instructions: str | None = None
    """Instructions for the model, in place of the generated ones."""
    repair: Repair | None = None
    """How far wrong arguments are repaired; overrides what servers and tools say."""


class SearchConfig(Section):
    """Settings of `find_tools`."""

    synonyms: dict[str, list[str]] = Field(default_factory=dict)
    """Words to search for in addition, by word."""
    embeddings: bool = False
    """Whether find_tools also compares meanings; needs the extra embeddings."""


class GatewayConfig(Section):
    """Settings of the gateway itself."""

    names: NamesConfig = absent(NamesConfig)
    """Length and prefix of wrapper names."""
    listen: ListenConfig = absent(ListenConfig)
    """Where to listen, and which hosts and origins to accept."""
    auth: AuthConfig = absent(AuthConfig)
    """Who may call."""
    public_url: str | None = None
    """Where browsers reach this gateway, as https://gateway.example.test, if that is not the address that it listens
    on: they come back there after a sign-in to a server."""
    admin: AdminConfig = absent(AdminConfig)
    """Who may use the admin API."""
    policy: PolicyConfig = absent(PolicyConfig)
    """Who may do what."""
    quotas: QuotasConfig = absent(QuotasConfig)
    """What one caller may use at a time."""
    approvals: ApprovalsConfig = absent(ApprovalsConfig)
    """How calls wait for a person, where a rule asks for one."""
    audit: AuditConfig = absent(AuditConfig)
    """The record of calls, refusals and changes; false for none."""
    lock: LockConfig = absent(LockConfig)
    """The lock file, in which reviewed definitions of tools stand, and what is done about others."""
    metrics: MetricsConfig = absent(MetricsConfig)
    """Who may read /metrics."""
    telemetry: TelemetryConfig | None = None
    """Where traces and metrics are sent; absent means nowhere."""
    cluster: ClusterConfig | None = None
    """Several gateways that serve as one; absent means a single one."""
    drain_delay: Annotated[float, BeforeValidator(not_boolean), Field(ge=0, le=3_600)] = 0.0
    """Seconds after SIGTERM in which new calls are still answered, while /readyz says 503 and balancers learn that."""
    profiles: dict[str, ProfileConfig] = Field(default_factory=dict)
    """Views of the catalog by name, each served at /mcp/NAME; `default` is served at /mcp."""
    groups: dict[str, GroupConfig] = Field(default_factory=dict)
    """Selections of servers and tools by name, for use in profiles."""
    search: SearchConfig = absent(SearchConfig)
    """Settings of find_tools, the search for tools that are not listed."""
    hooks: list[HookConfig] = Field(default_factory=list)
    """Code that sees calls before and after they are made, and may change or block them."""

    @field_validator("public_url")
    @classmethod
    def _is_an_origin(cls, url: str | None) -> str | None:
        if url is not None and (not is_http_url(url) or any(mark in url for mark in "?#@")):
            raise fault("is no address of a gateway", "an absolute URL, as https://gateway.example.test")
        return url

    @field_validator("hooks")
    @classmethod
    def _no_hook_twice(cls, hooks: list[HookConfig]) -> list[HookConfig]:
        names = [hook.name for hook in hooks]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise fault(
                    f"gives one name to two hooks ({name})", "a name of its own for each", key=f"[{place}].name"
                )
        return hooks

    @model_validator(mode="after")
    def _profiles_are_sound(self) -> GatewayConfig:
        for name, profile in self.profiles.items():
            if not _PROFILE_NAME.fullmatch(name):
                raise fault("is no name of a profile", "letters, digits, - and _", key=f"profiles.{name}")
            if profile.dialect not in DIALECTS:
                raise fault(
                    "is no dialect", suggestion(profile.dialect, list(DIALECTS)), key=f"profiles.{name}.dialect"
                )
            for group in profile.groups or ():
                if group not in self.groups:
                    known = ", ".join(self.groups) or "none"
                    raise fault(f"names no group ({group})", f"one of: {known}", key=f"profiles.{name}.groups")
        known_profiles = sorted({DEFAULT_PROFILE, *self.profiles})
        for place, key in enumerate(self.auth.api_keys):
            for opened in key.profiles or ():
                if opened not in known_profiles:
                    where = f"auth.apiKeys[{place}].profiles"
                    raise fault(f"names no profile ({opened})", suggestion(opened, known_profiles), key=where)
        oauth = self.auth.oauth
        for place, issuer in enumerate(oauth.issuers if oauth is not None else ()):
            for audience in issuer.audiences:
                named = profile_of_audience(audience, oauth.resource if oauth is not None else None)
                if named is not None and named not in known_profiles:
                    where = f"auth.oauth.issuers[{place}].audiences"
                    raise fault(f"names no profile ({named})", suggestion(named, known_profiles), key=where)
        return self


class NoteRequest(Section):
    """The body of `POST /admin/notes`: a note about a tool."""

    wrapper: str = Field(min_length=1, examples=["calendar__list_events"])
    """The tool, by its wrapper name."""
    text: str = Field(min_length=1, examples=["Events of before 2020 are missing."])
    """Appended to the description of the tool."""
    failure: bool = False
    """Whether the note reports a failure; it is then removed after the next successful call."""
    # At most a year: a note that is to stay longer belongs into the configuration.
    seconds: Annotated[float, BeforeValidator(not_boolean), Field(gt=0, le=31_536_000)] | None = None
    """Remove the note after this many seconds."""


class OwnPart(Section):
    """What of a file is ours alone."""

    gateway: GatewayConfig = absent(GatewayConfig)
    """What is about the gateway and not about one server."""


class ConfigFile(Section):
    """The file as it is written. Keys of other programs beside these are ignored."""

    model_config = ConfigDict(extra="ignore", title="typegate configuration")

    mcp_servers: dict[str, AnyServerConfig] = Field(default_factory=dict)
    """Upstream servers by alias, as Claude Desktop, Claude Code and Cursor write them."""
    servers: dict[str, AnyServerConfig] = Field(default_factory=dict)
    """The same block under the name that VS Code uses; only one of the two may be given."""
    gateway: GatewayConfig = absent(GatewayConfig)
    """What is about the gateway and not about one server."""
    include: list[str] = Field(default_factory=list)
    """Files of the same form that are joined with this one, relative to it, as supplements/*.yaml; a key that is no
    object stands in one of them only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Why a server that the file names is not served.

    Attributes:
        reason: In words.
        faulty: Whether something has to be mended; not so for one that is switched off, or would only lead back here.
    """

    reason: str
    faulty: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A checked configuration.

    Attributes:
        servers: By alias, in the order of the file.
        left_out: Those that are not served.
        gateway: Settings of the gateway itself.
        warnings: What is odd about it.
        path: The file; None where it is from none.
        secrets: What placeholders stand for, which the model alone does not show.
        files: Where placeholders read them.
        text: What was read; None for a configuration that nobody wrote.
    """

    servers: dict[str, ServerConfig] = field(default_factory=dict)
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    gateway: GatewayConfig = field(default_factory=GatewayConfig.model_construct)
    warnings: list[str] = field(default_factory=list)
    path: Path | None = None
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    files: frozenset[Path] = frozenset()
    text: str | None = field(default=None, repr=False, compare=False)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the configuration file, for editors."""
    schema = ConfigFile.model_json_schema(by_alias=True)
    add_descriptions(schema, ConfigFile)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
