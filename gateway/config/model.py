"""What the configuration file may say: one pydantic model, camelCase as in the files of hosts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from gateway.config.hooks import HookConfig
from gateway.config.sections import Count, Seconds, Section, fault, near, not_boolean
from registry.dialects.client_profiles import DIALECTS

ServerType = Literal["stdio", "http", "sse", "graphql"]
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
Prefix = Literal["always", "none"]
Repair = Literal["off", "safe", "full"]

# What only a server of type graphql has; in other entries these are keys of somebody else.
GRAPHQL_KEYS = ("endpoint", "operations", "schema", "nullable", "excludeMutations", "introspectionTools")
_FOREIGN_TO_GRAPHQL = ("args", "env", "cwd")

# Spellings of Streamable HTTP in the files of several hosts.
_HTTP_SPELLINGS = frozenset({"streamable-http", "streamable_http", "streamablehttp"})


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
    """One upstream. The host's own keys stay as hosts write them; unknown ones are ignored by the loader."""

    model_config = ConfigDict(extra="ignore")

    # Values that may hold credentials are kept out of every repr.
    type: ServerType = Field(
        default="stdio", description="Inferred when absent: command → stdio, url → http, endpoint → graphql."
    )
    command: str | None = Field(default=None, description="The program to start.")
    args: list[str] = Field(default_factory=list, repr=False)
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str | None = Field(default=None, repr=False)
    endpoint: str | None = Field(default=None, repr=False, description="graphql: the URL that operations go to.")
    operations: str | None = Field(
        default=None, description="graphql: the folder of .graphql and .gql files, one operation in each."
    )
    schema_file: str | None = Field(
        default=None,
        alias="schema",
        description="graphql: a file with the schema, as SDL or introspection JSON; without it the endpoint is asked.",
    )
    nullable: Literal["plain", "union"] = Field(
        default="plain", description="graphql: whether arguments that take null are shown with it; all accept it."
    )
    exclude_mutations: bool = Field(default=False, description="graphql: mutations are neither listed nor sent.")
    introspection_tools: bool = Field(default=False, description="graphql: adds get_schema and execute_graphql.")
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    connect_timeout: Seconds = Field(default=10.0, description="Seconds.")
    call_timeout: Seconds = Field(default=60.0, description="Seconds; progress notifications extend it.")
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
    elicitation: bool = False
    copies: bool = Field(default=False, description="A process of its own for each worker of the gateway is fine.")
    repair: Repair = Field(default="safe", description="What may be repaired in calls: nothing, the sure, or more.")
    tools: dict[str, ToolConfig] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _infer_type(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kind = _type_of(data)
        if kind is None:
            return data
        foreign = _FOREIGN_TO_GRAPHQL if kind == "graphql" else GRAPHQL_KEYS
        return {**{key: value for key, value in data.items() if key not in foreign}, "type": kind}

    @property
    def address(self) -> str | None:
        """Where it is on the network; None for a process."""
        return self.endpoint if self.type == "graphql" else self.url

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> ServerConfig:
        if self.type == "graphql":
            self._check_graphql()
            return self
        if self.command is not None and self.url is not None:
            raise fault("has both command and url", "command for a process, or url for a server on the network")
        if self.type == "stdio":
            if self.url is not None:
                raise fault("is stdio, which has no url", "http or sse", key="type")
            if not (self.command and self.command.strip()):
                raise fault("is missing or empty", "the program to start, or a url beside it", key="command")
            if "\0" in self.command or any("\0" in arg for arg in self.args):
                raise fault("holds a NUL character", "text that can be an argument of a program", key="command")
        else:
            if self.command is not None:
                raise fault(f"is {self.type}, which has no command", "stdio", key="type")
            _check_url(self.url, "url", "https://example.test/mcp")
        return self

    def _check_graphql(self) -> None:
        if self.command is not None or self.url is not None:
            stray = "command" if self.command is not None else "url"
            raise fault(f"is graphql, which has no {stray}", "endpoint: the URL that operations go to", key="type")
        _check_url(self.endpoint, "endpoint", "https://example.test/graphql")
        if self.operations is None and not self.introspection_tools:
            expected = "a folder of .graphql files, or introspectionTools: true"
            raise fault("is missing", expected, key="operations")
        for key, path in (("operations", self.operations), ("schema", self.schema_file)):
            if path is not None and (not path.strip() or "\0" in path):
                raise fault("is no path", "where it is, relative to this file", key=key)
        if self.elicitation:
            raise fault("is graphql, which asks nobody", "elicitation: false", key="type")

    def beside(self, folder: Path) -> ServerConfig:
        """The same with its paths made absolute; relative ones start at this folder."""
        paths = {
            field: str(folder.absolute() / path)
            for field, path in (("operations", self.operations), ("schema_file", self.schema_file))
            if path is not None
        }
        return self.model_copy(update=paths) if paths else self

    @field_validator("headers")
    @classmethod
    def _headers_fit_on_a_line(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not name or not name.isascii() or any(c.isspace() or c in ':"(),/;<=>?@[\\]{}' for c in name):
                raise fault("is no header name", "letters, digits and -", key=name)
            if not (value.isascii() and value.isprintable()):
                raise fault("holds what no header can carry", "one line of ASCII text", key=name)
        return headers


def _type_of(entry: dict[str, Any]) -> object:
    """The type of a server as it is stated or can be told; None where it is stated as something odd."""
    stated = entry.get("type")
    if isinstance(stated, str):
        spelled = stated.casefold()
        return "http" if spelled in _HTTP_SPELLINGS else spelled
    if stated is not None:
        return None
    if entry.get("command"):
        return "stdio"
    return "http" if entry.get("url") else "graphql" if entry.get("endpoint") else "stdio"


def strange_keys(entry: dict[str, Any]) -> list[str]:
    """The keys of a server's entry that mean nothing for a server of its type."""
    known = {*ServerConfig.keys(), *ServerConfig.model_fields}
    foreign = _FOREIGN_TO_GRAPHQL if _type_of(entry) == "graphql" else GRAPHQL_KEYS
    return [key for key in entry if key not in known or key in foreign]


def _check_url(url: str | None, key: str, example: str) -> None:
    expected = f"an absolute URL, as {example}"
    if not url:
        raise fault("is missing or empty", expected, key=key)
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or any(c.isspace() for c in url):
        raise fault("is no absolute http or https URL", expected, key=key)


class NamesConfig(Section):
    """How wrapper names are compiled."""

    max_length: Count = Field(default=48, ge=24, le=128, description="The longest wrapper name.")
    prefix: Prefix = "always"


class ListenConfig(Section):
    """Where `typegate serve` listens, and for whom."""

    host: str = Field(default="127.0.0.1", min_length=1)
    port: Count = Field(default=8765, ge=0, le=65_535, description="0: any free port.")
    allowed_hosts: list[str] = Field(default_factory=list, description="Host headers to accept beside our own.")
    allowed_origins: list[str] = Field(default_factory=list, description="Origins of browsers to accept.")


class ApiKey(Section):
    """A key that callers may present."""

    name: str = Field(min_length=1)
    key: SecretStr = Field(min_length=1)
    scopes: list[str] = Field(default_factory=list)


class AuthConfig(Section):
    """Who may call. Without keys everybody who reaches the port may."""

    api_keys: list[ApiKey] = Field(default_factory=list)

    @field_validator("api_keys")
    @classmethod
    def _no_two_alike(cls, keys: list[ApiKey]) -> list[ApiKey]:
        if len({key.name for key in keys}) < len(keys):
            raise fault("gives one name to two keys", "a name of its own for each key")
        if len({key.key.get_secret_value() for key in keys}) < len(keys):
            raise fault("gives one key two names", "a key of its own for each name")
        return keys


class AdminConfig(Section):
    """The administrator's token; TYPEGATE_ADMIN_TOKEN goes before it."""

    token: SecretStr | None = Field(default=None, min_length=1)


class GroupConfig(Section):
    """A selection of servers and tools by patterns: each that is given narrows further; `*` is all, empty is none."""

    servers: list[str] | None = Field(default=None, description="Patterns of aliases.")
    tags: list[str] | None = Field(default=None, description="Patterns of tags, of which a server has one.")
    tools: list[str] | None = Field(default=None, description="Patterns of wrapper names or of tool names.")


class ProfileConfig(GroupConfig):
    """A named view of the catalog, at /mcp/NAME."""

    groups: list[str] | None = Field(default=None, description="Groups, one of which has to select a tool.")
    disclosure: Literal["auto", "eager", "lazy"] = Field(
        default="auto", description="eager: all listed; auto: within the budget; lazy: only what is pinned."
    )
    max_tools: Count = Field(default=100, ge=5, description="For auto: tools listed at most, our own included.")
    max_tokens: Count = Field(default=20_000, ge=1, description="For auto: tokens of the list at most.")
    dialect: str = Field(default="mcp", description="The host or model API whose schema rules hold.")
    supplements: dict[str, str] = Field(default_factory=dict, description="Appended to descriptions, by wrapper.")
    guidance: dict[str, str] = Field(default_factory=dict, description="Appended for every server with that tag.")
    instructions: str | None = Field(default=None, description="Replaces the generated ones.")
    repair: Repair | None = Field(default=None, description="What may be repaired in calls, whatever servers say.")


class SearchConfig(Section):
    """How find_tools searches."""

    synonyms: dict[str, list[str]] = Field(default_factory=dict, description="Words that mean the same, by word.")
    embeddings: bool = Field(default=False, description="Search by meaning too; needs the extra typegate[embeddings].")


class GatewayConfig(Section):
    """Everything that is about the gateway itself."""

    names: NamesConfig = NamesConfig()
    listen: ListenConfig = ListenConfig()
    auth: AuthConfig = AuthConfig()
    admin: AdminConfig = AdminConfig()
    profiles: dict[str, ProfileConfig] = Field(default_factory=dict)
    groups: dict[str, GroupConfig] = Field(default_factory=dict, description="Selections to use in profiles.")
    search: SearchConfig = SearchConfig()
    hooks: list[HookConfig] = Field(default_factory=list, description="What looks at calls, and may change them.")

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
                raise fault("is no dialect", near(profile.dialect, list(DIALECTS)), key=f"profiles.{name}.dialect")
            for group in profile.groups or ():
                if group not in self.groups:
                    known = ", ".join(self.groups) or "none"
                    raise fault(f"names no group ({group})", f"one of: {known}", key=f"profiles.{name}.groups")
        return self


class NoteRequest(Section):
    """What `POST /admin/notes` takes: a note about a tool, for as long as it is true."""

    wrapper: str = Field(min_length=1, description="The tool, by its wrapper's name.")
    text: str = Field(min_length=1, description="Appended to the tool's description.")
    failure: bool = Field(default=False, description="It tells of a failure, and goes after the next success.")
    seconds: Annotated[float, BeforeValidator(not_boolean), Field(gt=0, le=31_536_000)] | None = None


class ConfigFile(Section):
    """The file as it is written; hosts keep other things beside our two blocks."""

    model_config = ConfigDict(extra="ignore", title="typegate configuration")

    mcp_servers: dict[str, ServerConfig] = Field(default_factory=dict, description="Servers by alias.")
    servers: dict[str, ServerConfig] = Field(default_factory=dict, description="The same, as VS Code spells it.")
    gateway: GatewayConfig = GatewayConfig()


class Config(BaseModel):
    """What the rest of the program reads: servers by alias, in the order of the file."""

    model_config = ConfigDict(frozen=True)

    servers: dict[str, ServerConfig] = Field(default_factory=dict)
    gateway: GatewayConfig = GatewayConfig()
    warnings: list[str] = Field(default_factory=list)
    path: Path | None = None


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the configuration file, for editors."""
    schema = ConfigFile.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$defs"]["ServerConfig"]["properties"]["type"].pop("default", None)  # it is inferred
    return schema
