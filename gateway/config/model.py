"""What the configuration file may say: one pydantic model, camelCase as in the files of hosts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

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
from gateway.config.sections import Count, Section, fault, near, not_boolean
from gateway.config.server import Prefix, Repair, ServerConfig
from gateway.config.upstream_types.registration import AnyServerConfig
from registry.dialects.client_profiles import DIALECTS

_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


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

    mcp_servers: dict[str, AnyServerConfig] = Field(default_factory=dict, description="Servers by alias.")
    servers: dict[str, AnyServerConfig] = Field(default_factory=dict, description="The same, as VS Code spells it.")
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
    return schema
