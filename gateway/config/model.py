"""The pydantic model of the configuration file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from gateway.config.auth_config import AuthConfig, QuotasConfig, profile_of_audience
from gateway.config.cluster_config import ClusterConfig
from gateway.config.hooks_config import HookConfig
from gateway.config.operation_config import (
    AdminConfig,
    ApprovalsConfig,
    AuditConfig,
    LockConfig,
    ProcessesConfig,
    StoredResultsConfig,
    TelemetryConfig,
)
from gateway.config.policy_config import PolicyConfig
from gateway.config.section import (
    Count,
    Section,
    add_descriptions,
    default_section,
    fault,
    is_http_url,
    not_boolean,
    suggestion,
)
from gateway.config.server import Prefix, Repair, ResultsConfig, ServerConfig
from gateway.config.upstream_types.registration import AnyServerConfig
from gateway.protocol.extensions import OFFICIAL, Extension, ExtensionMethod, Extensions
from registry.dialects.client_profiles import DIALECTS
from registry.views.profile import DEFAULT_PROFILE

# Source: MCP 2026-07-28, "Extensions", "Identifiers".
_EXTENSION: Final = re.compile(
    r"[A-Za-z](?:[A-Za-z0-9.-]{0,126}[A-Za-z0-9])?/[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?"
)
_METHOD: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}(?:/[A-Za-z0-9._-]{1,64}){1,4}")
_OFFICIAL: Final = frozenset(each.identifier for each in OFFICIAL)
# The first parts of methods that MCP and its official extensions define.
_RESERVED: Final = frozenset(
    {
        *("completion", "elicitation", "logging", "notifications", "prompts", "resources", "roots", "sampling"),
        *("server", "skills", "subscriptions", "tasks", "tools", "ui"),
    }
)
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class NamesConfig(Section):
    """How wrapper names are built."""

    # The default is 64, the limit of model APIs, minus 16 characters that hosts may prepend. A name shorter than the
    # minimum would be little more than a hash. The maximum is the limit of MCP 2026-07-28.
    max_length: Count = Field(default=48, ge=24, le=128)
    """Maximum length of a wrapper name, in characters. Longer names are shortened and end in a hash."""
    prefix: Prefix = "always"
    """always: wrapper names begin with the alias of their server. none: they do not. `prefix` of a server overrides
    this setting."""


class ListenConfig(Section):
    """Where `typegate serve` listens, and which hosts and origins it accepts."""

    # The default is loopback, so that an unconfigured gateway is not exposed to the network.
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Any address other than loopback requires an API key, or --insecure."""
    port: Count = Field(default=8765, ge=0, le=65_535)
    """Port to listen on; 0 selects a free port."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """Values of the Host header to accept in addition to the names of this machine and to literal IP addresses."""
    allowed_origins: list[str] = Field(default_factory=list)
    """Origins of web pages that may call the gateway, such as https://chat.example.test. Their browsers receive CORS
    headers that permit credentials. Pages served from this machine may always call, without credentials. Clients other
    than browsers send no Origin header and are not affected."""

    connections_per_address: Count | None = Field(default=None, ge=1)
    """Maximum number of connections from one client address. The default is nine tenths of all connections, so that
    one client cannot block all others. All callers behind a proxy share the address of the proxy. When the limit is
    reached, connections without a request are closed first. With `serve --workers N`, each worker allows its share,
    rounded up."""

    @field_validator("allowed_origins")
    @classmethod
    def _without_slash(cls, origins: list[str]) -> list[str]:
        # Browsers send the origin without a trailing slash.
        return [origin.removesuffix("/") for origin in origins]


class MetricsConfig(Section):
    """Access to /metrics."""

    # Off by default, because metrics reveal the servers, the tools and how much they are used.
    public: bool = False
    """Let anyone read /metrics. If false and API keys or `gateway.admin.token` are configured, /metrics requires the
    admin token, an API key without scopes, or an API key with the scope `metrics`."""


class GroupConfig(Section):
    """A selection by patterns. All given keys have to match; an empty list matches nothing.

    If `tools` is given and `prompts` or `resources` is not, prompts or resources are selected only from servers that
    the selection names: by `servers`, by `tags`, or by the part of a pattern before `__`.
    """

    servers: list[str] | None = None
    """Patterns of server aliases, such as `crm` or `db-*`."""
    tags: list[str] | None = None
    """Patterns of tags. A server matches if at least one of its tags does."""
    tools: list[str] | None = None
    """Patterns of wrapper names or tool names, such as `crm__create_*`. If a pattern contains `__`, the part before
    it is matched against server aliases."""
    prompts: list[str] | None = None
    """Patterns of prompt names, in the same form as `tools`."""
    resources: list[str] | None = None
    """Patterns of resource URIs, listed or not, and of URI templates."""


class ProfileConfig(GroupConfig):
    """A named view of the catalog, served at /mcp/NAME."""

    groups: list[str] | None = None
    """Names of groups in `gateway.groups`. A tool is included if at least one of these groups selects it."""
    disclosure: Literal["auto", "eager", "lazy"] = "auto"
    """Which tools are listed. eager: all tools. auto: as many as fit `maxTools` and `maxTokens`, shared among the
    servers. lazy: pinned tools only. Tools that are not listed are found with find_tools."""
    # Hosts with a limit accept about 128 tools from all servers together, and models choose worse among more than 100.
    # The minimum leaves room for the gateway's own tools, which are always listed.
    max_tools: Count = Field(default=100, ge=5)
    """With auto and lazy: the maximum number of listed tools, including the tools of the gateway and those that a
    session has found."""
    # The list takes up context before the first message. The default is a tenth of a context of 200,000 tokens.
    max_tokens: Count = Field(default=20_000, ge=1)
    """With auto: the maximum size of the tool list, in tokens."""
    dialect: str = "mcp"
    """Host or model API whose rules for schemas and names the tool list has to satisfy."""
    supplements: dict[str, str] = Field(default_factory=dict)
    """Text to append to the description of a tool, by wrapper name."""
    guidance: dict[str, str] = Field(default_factory=dict)
    """Text to append to the description of every tool of the servers with a tag, by tag."""
    instructions: str | None = None
    """Instructions for the model. By default they are generated."""
    results: ResultsConfig = default_section(ResultsConfig)
    """How much of a result a caller of this profile receives at once. The limits of servers and tools apply
    as well: the smallest size counts, and `select: false` at any of the three levels disables `_select`."""
    repair: Repair | None = None
    """Repair of invalid arguments: off, safe or full, as for servers. Overrides `repair` of servers and tools."""


class SearchConfig(Section):
    """Settings of `find_tools`."""

    synonyms: dict[str, list[str]] = Field(default_factory=dict)
    """Additional words to search for, by word, as in `{ticket: [issue, bug]}`."""
    embeddings: bool = False
    """Let find_tools also compare the meaning of texts. Requires the extra `embeddings`."""


class ExtensionMethodConfig(Section):
    """How the gateway finds the server of a request."""

    owner: Literal["uri", "tool", "server", "all"]
    """uri: the server of a resource. tool: the server of a tool. server: the only server that declares the extension,
    among those that the caller can use. all: every server that declares it; the lists in the results are joined."""
    member: str | None = Field(default=None, min_length=1, max_length=64)
    """With uri and tool: the parameter that names the resource or wrapper; by default `uri` or `name`. With all: the
    member of the result that is a list."""


class ExtensionConfig(Section):
    """A protocol extension to pass through. It is declared to callers as soon as a server declares it."""

    methods: dict[str, ExtensionMethodConfig] = Field(default_factory=dict)
    """The methods of the extension, such as `notebooks/open`. An extension without methods only adds members to
    requests and results, which are passed on in any case."""
    modern_only: bool = False
    """Declare the extension only to callers of protocol version 2026-07-28."""

    def to_extension(self, identifier: str) -> Extension:
        """Return the extension in the form in which the gateway looks up its methods."""
        defaults = {"uri": "uri", "tool": "name"}
        methods = {
            name: ExtensionMethod(owner=rule.owner, member=rule.member or defaults.get(rule.owner, ""))
            for name, rule in self.methods.items()
        }
        return Extension(identifier=identifier, methods=methods, modern_only=self.modern_only)


class GatewayConfig(Section):
    """Settings of the gateway itself."""

    names: NamesConfig = default_section(NamesConfig)
    """Length and prefix of wrapper names."""
    listen: ListenConfig = default_section(ListenConfig)
    """Where to listen, and which hosts and origins to accept."""
    auth: AuthConfig = default_section(AuthConfig)
    """Authentication of callers: API keys and OAuth issuers."""
    public_url: str | None = None
    """URL at which browsers reach this gateway, such as https://gateway.example.test. Browsers return to it after a
    sign-in to a server. The default is the address that the gateway listens on."""
    admin: AdminConfig = default_section(AdminConfig)
    """Access to the admin API."""
    policy: PolicyConfig = default_section(PolicyConfig)
    """Rules that decide which callers may use which tools, prompts and resources."""
    quotas: QuotasConfig = default_section(QuotasConfig)
    """Limits per caller."""
    approvals: ApprovalsConfig = default_section(ApprovalsConfig)
    """How calls that need approval wait for a decision."""
    results: StoredResultsConfig = default_section(StoredResultsConfig)
    """Results that callers read in parts, or pass to other tools by handle."""
    audit: AuditConfig = default_section(AuditConfig)
    """The audit log of calls, refusals and changes; false disables it."""
    lock: LockConfig = default_section(LockConfig)
    """The lock file with the approved definitions of tools, and the handling of definitions that differ from it."""
    processes: ProcessesConfig = default_section(ProcessesConfig)
    """Defaults for servers that are processes: when they are started and ended."""
    metrics: MetricsConfig = default_section(MetricsConfig)
    """Access to /metrics."""
    telemetry: TelemetryConfig | None = None
    """Export of traces and metrics over OTLP. Without this key, nothing is exported unless
    OTEL_EXPORTER_OTLP_ENDPOINT is set."""
    cluster: ClusterConfig | None = None
    """Several replicas that serve as one gateway. Without this key, the gateway runs alone."""
    drain_delay: Annotated[float, BeforeValidator(not_boolean), Field(ge=0, le=3_600)] = 0.0
    """Seconds after SIGTERM during which new calls are still answered while /readyz returns 503, so that load balancers
    can take the gateway out of rotation."""
    profiles: dict[str, ProfileConfig] = Field(default_factory=dict)
    """Views of the catalog by name, each served at /mcp/NAME. `default` is served at /mcp."""
    groups: dict[str, GroupConfig] = Field(default_factory=dict)
    """Named selections of servers and tools, for use in profiles."""
    search: SearchConfig = default_section(SearchConfig)
    """Settings of find_tools, the search for tools that are not listed."""
    hooks: list[HookConfig] = Field(default_factory=list)
    """Code that runs before and after calls and may change or block them."""

    extensions: dict[str, ExtensionConfig] = Field(default_factory=dict)
    """Protocol extensions of servers to pass through, by identifier, in addition to those that the gateway knows. An
    extension that is not listed is not declared to callers, since its methods would not be answered."""

    @field_validator("extensions")
    @classmethod
    def _extensions_are_valid(cls, extensions: dict[str, ExtensionConfig]) -> dict[str, ExtensionConfig]:
        owners: dict[str, str] = {}
        for identifier, extension in extensions.items():
            if not _EXTENSION.fullmatch(identifier):
                raise fault(
                    "is not the identifier of an extension", "PREFIX/NAME, as in com.example/notes", key=identifier
                )
            if identifier in _OFFICIAL:
                raise fault("is an extension that the gateway knows", "another identifier, or no entry", key=identifier)
            for method, rule in extension.methods.items():
                where = f"{identifier}.methods.{method}"
                if not _METHOD.fullmatch(method) or method.partition("/")[0] in _RESERVED:
                    raise fault("is not a method of an extension", "NAME/NAME, which is no method of MCP", key=where)
                if (owner := owners.setdefault(method, identifier)) != identifier:
                    raise fault(f"is already a method of {owner}", "each method in one extension", key=where)
                if rule.owner == "all" and rule.member is None:
                    raise fault("does not name a list", "`member`, the member of the result that is a list", key=where)
        return extensions

    @field_validator("public_url")
    @classmethod
    def _is_an_origin(cls, url: str | None) -> str | None:
        if url is not None and (not is_http_url(url) or any(mark in url for mark in "?#@")):
            raise fault("is not the URL of a gateway", "an absolute URL such as https://gateway.example.test")
        return url

    @field_validator("hooks")
    @classmethod
    def _hook_names_are_unique(cls, hooks: list[HookConfig]) -> list[HookConfig]:
        names = [hook.name for hook in hooks]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise fault(
                    f"gives one name to two hooks ({name})", "a unique name for each hook", key=f"[{place}].name"
                )
        return hooks

    @model_validator(mode="after")
    def _profiles_are_valid(self) -> GatewayConfig:
        for name, profile in self.profiles.items():
            if not _PROFILE_NAME.fullmatch(name):
                raise fault("is not a valid profile name", "letters, digits, - and _", key=f"profiles.{name}")
            if profile.dialect not in DIALECTS:
                raise fault(
                    "is not a dialect", suggestion(profile.dialect, list(DIALECTS)), key=f"profiles.{name}.dialect"
                )
            for group in profile.groups or ():
                if group not in self.groups:
                    groups = ", ".join(self.groups) or "none"
                    raise fault(f"names an unknown group ({group})", f"one of: {groups}", key=f"profiles.{name}.groups")
        known_profiles = sorted({DEFAULT_PROFILE, *self.profiles})
        for place, key in enumerate(self.auth.api_keys):
            for opened in key.profiles or ():
                if opened not in known_profiles:
                    where = f"auth.apiKeys[{place}].profiles"
                    raise fault(f"names an unknown profile ({opened})", suggestion(opened, known_profiles), key=where)
        oauth = self.auth.oauth
        for place, issuer in enumerate(oauth.issuers if oauth is not None else ()):
            for audience in issuer.audiences:
                audience_profile = profile_of_audience(audience, oauth.resource if oauth is not None else None)
                if audience_profile is not None and audience_profile not in known_profiles:
                    where = f"auth.oauth.issuers[{place}].audiences"
                    raise fault(
                        f"names an unknown profile ({audience_profile})",
                        suggestion(audience_profile, known_profiles),
                        key=where,
                    )
        return self


class NoteRequest(Section):
    """The body of `POST /admin/notes`: a note about a tool."""

    wrapper: str = Field(min_length=1, examples=["calendar__list_events"])
    """Wrapper name of the tool."""
    text: str = Field(min_length=1, examples=["Events from before 2020 are missing."])
    """Text to append to the description of the tool."""
    failure: bool = False
    """Whether the note reports a failure. Such a note is removed after the next successful call."""
    # At most a year: a permanent note belongs in the configuration.
    seconds: Annotated[float, BeforeValidator(not_boolean), Field(gt=0, le=31_536_000)] | None = None
    """Seconds after which the note is removed. By default it is kept."""


class GatewayPart(Section):
    """The part of the file that only typegate reads."""

    gateway: GatewayConfig = default_section(GatewayConfig)
    """Settings of the gateway itself."""


class ConfigFile(Section):
    """The configuration file. Top-level keys of other programs are ignored."""

    model_config = ConfigDict(extra="ignore", title="typegate configuration")

    mcp_servers: dict[str, AnyServerConfig] = Field(default_factory=dict)
    """Upstream servers by alias, in the form that Claude Desktop, Claude Code and Cursor use."""
    servers: dict[str, AnyServerConfig] = Field(default_factory=dict)
    """The same as `mcpServers`, under the name that VS Code uses. Only one of the two keys may be given."""
    gateway: GatewayConfig = default_section(GatewayConfig)
    """Settings of the gateway itself, as opposed to those of a server."""
    include: list[str] = Field(default_factory=list)
    """Files of the same form to merge into this one, such as supplements/*.yaml, relative to this file. Objects are
    merged; any other value may be given in one file only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Why a server in the file is not served.

    Attributes:
        reason: The reason, for people.
        faulty: True if the entry has an error to fix. False if the server is disabled, or would start this gateway
            again.
    """

    reason: str
    faulty: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A validated configuration.

    Attributes:
        servers: Served servers by alias, in the order of the file.
        left_out: Servers of the file that are not served.
        warnings: Problems that do not prevent serving.
        path: The file; None if the configuration does not come from a file.
        secrets: Secret values that placeholders were replaced with.
        files: Files to watch besides `path`: settings files of hosts, and files that placeholders or `envFile` name.
        text: The text that was parsed; None if the configuration was built in code.
    """

    servers: dict[str, ServerConfig] = field(default_factory=dict)
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    gateway: GatewayConfig = field(default_factory=GatewayConfig.model_construct)
    warnings: list[str] = field(default_factory=list)
    path: Path | None = None
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    files: frozenset[Path] = frozenset()
    text: str | None = field(default=None, repr=False, compare=False)


def extensions_of(config: Config) -> Extensions:
    """Return the extensions that a gateway with this configuration forwards."""
    return Extensions(each.to_extension(identifier) for identifier, each in config.gateway.extensions.items())


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file, for editors."""
    schema = ConfigFile.model_json_schema(by_alias=True)
    add_descriptions(schema, ConfigFile)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


_PAGE: Final = """# Configuration reference

Every key of the configuration file. `typegate check --reference` prints this page from the models that read the file,
and `typegate check --schema` prints the same as a JSON Schema for editors.

## Example

```yaml
mcpServers:
  bank: {{command: python, args: [-m, gateway.demo.bank]}}
gateway:
  listen: {{port: 8765}}
```

## Reference

{sections}

## Troubleshooting

- **A key is rejected.** The error names the file and the key, and suggests the nearest known key.
- **A key has no effect.** Warnings of `typegate check` name patterns, aliases and conditions that match nothing.
- **A value must come from the environment.** Write `${{NAME}}`, `${{NAME:-default}}` or `${{file:/path}}`. A
  missing variable is an error that names the key.
"""


def reference_page() -> str:
    """Return the page of the manual that describes every key, as Markdown."""
    schema = json_schema()
    definitions = schema["$defs"]
    reached: dict[str, str] = {}  # the path of each section by the name of its model, in the order of the file
    pending = [(name, member) for name, member in reversed(schema["properties"].items()) if name != "servers"]
    while pending:
        path, member = pending.pop()
        for model, below in _models_of(member, path):
            if model not in reached:
                reached[model] = below
                inner = definitions[model].get("properties", {})
                pending += [(f"{below}.{name}", each) for name, each in reversed(inner.items())]
    sections = [
        f"### {path}\n\n{_one_line(definitions[model].get('description', ''))}\n\n"
        + "| key | type | default | description |\n|---|---|---|---|\n"
        + "\n".join(_row(name, member) for name, member in definitions[model]["properties"].items())
        for model, path in reached.items()
        if definitions[model].get("properties")
    ]
    return _PAGE.format(sections="\n\n".join(sections))


def _models_of(member: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield the models that a key refers to, each with its path in the file."""
    if "$ref" in member:
        yield str(member["$ref"]).removeprefix("#/$defs/"), path
    for option in member.get("anyOf", ()):
        yield from _models_of(option, path)
    if isinstance(member.get("items"), dict):
        yield from _models_of(member["items"], f"{path}[]")
    if isinstance(member.get("additionalProperties"), dict):
        yield from _models_of(member["additionalProperties"], f"{path}.NAME")


def _row(name: str, member: Mapping[str, Any]) -> str:
    """Return the line of one key in the table of its section."""
    default = f"`{json.dumps(member['default'], ensure_ascii=False)}`" if "default" in member else ""
    cells = (f"`{name}`", _type_of(member), default, _one_line(member.get("description", "")))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type_of(member: Mapping[str, Any]) -> str:
    """Return the type of a key in words: `list of string`, `integer or null`, `object`."""
    if "anyOf" in member:
        return " or ".join(dict.fromkeys(_type_of(option) for option in member["anyOf"]))
    if "enum" in member:
        return ", ".join(f"`{value}`" for value in member["enum"])
    if "const" in member:
        return f"`{member['const']}`"
    if member.get("type") == "array":
        items = member.get("items")
        return f"list of {_type_of(items)}" if isinstance(items, dict) and items else "list"
    return "object" if "$ref" in member else str(member.get("type", "any value"))


def _one_line(text: str) -> str:
    return " ".join(text.split())
