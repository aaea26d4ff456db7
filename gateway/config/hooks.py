"""The entry of a hook: what it is, which calls it runs for, how long it may take, and what its failures do."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from gateway.config.section import Count, Seconds, Section, absent, fault, is_http_url

HookPhase = Literal[
    "beforeCall", "afterCall", "beforePrompt", "afterPrompt", "beforeResource", "afterResource", "beforeCompletion",
    "afterCompletion",
]  # fmt: skip
# It is a label of metrics and a part of log lines: printable without quotes, and short.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
# The keys of which each entry has exactly one.
_CARRIERS: Final = ("use", "path", "webhook", "cpex")


class HookConditions(Section):
    """Which calls a hook runs for. All given conditions have to match; an empty list matches nothing."""

    wrappers: list[str] | None = None
    """Patterns of wrapper or tool names, prompt names, or resource URIs."""
    servers: list[str] | None = None
    """Patterns of server aliases."""
    tags: list[str] | None = None
    """Patterns of tags; one of the tags of the server has to match."""
    principals: list[str] | None = None
    """Patterns of names of callers."""


class HookConfig(Section):
    """One hook. Exactly one of `use`, `path`, `webhook` and `cpex` is given."""

    name: str
    """Name of the hook in logs, errors and /admin/hooks."""
    use: str | None = Field(default=None, min_length=1)
    """A bundled hook (redact, size_guard, cache, audit_log, rate_limit), or an entry point of the group
    typegate.hooks."""
    path: str | None = Field(default=None, min_length=1)
    """A class to import: package.module:Class, or ./file.py:Class relative to this file."""
    webhook: str | None = Field(default=None, repr=False)
    """A URL that receives each call as a signed POST request."""
    cpex: str | None = Field(default=None, min_length=1)
    """A configuration file of ContextForge plugins, relative to this file."""
    mode: Literal["transform", "validate", "audit", "concurrent"] | None = None
    """What the hook may do: transform, change or block; validate, block; audit, observe afterwards; concurrent,
    block while others run. By default the hook's own."""
    phases: list[HookPhase] | None = None
    """When the hook runs; by default in every phase that it implements."""
    priority: Count = Field(default=100, ge=-1_000_000, le=1_000_000)
    """Hooks with a lower priority run earlier before a call, and later after it."""
    conditions: HookConditions = absent(HookConditions)
    """Which calls the hook runs for; by default all."""
    # A caller waits for every hook in turn, and most hosts give up after 60 s.
    timeout: Seconds = 5.0
    """Seconds that the hook may take in each phase."""
    # Most hooks enforce something: a call that could not be checked is not made.
    on_error: Literal["fail", "ignore"] = "fail"
    """What a failure of the hook does: fail, the call fails; ignore, the call goes on and the failure is counted."""
    block_as: Literal["result", "error"] = "result"
    """How a blocked tool call is answered: as a result with isError, or as a JSON-RPC error."""
    payload_format: Literal["native", "nested", "metadata", "flatMetadata"] = "native"
    """Shape in which the hook expects the arguments of a tool: native, as they are; nested, as `tool_args` beside
    `tool_name` and `client_session_id`; metadata, as `arguments` beside `metadata` with those two and more;
    flatMetadata, as they are, with `metadata` among them."""
    config: dict[str, Any] = Field(default_factory=dict, repr=False)
    """The hook's own settings."""

    @field_validator("name")
    @classmethod
    def _name_is_short(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise fault("is no name of a hook", "letters, digits, ., - and _, at most 64")
        return name

    @model_validator(mode="after")
    def _one_carrier(self) -> HookConfig:
        given = [key for key in _CARRIERS if getattr(self, key) is not None]
        if len(given) != 1:
            what = f"has both {' and '.join(given)}" if given else "says not what it is"
            raise fault(what, "one of use, path, webhook, cpex")
        # Whether the class exists is known only when it is imported, which is not for a model of a file.
        if self.path is not None and not all(self.path.rpartition(":")[::2]):
            raise fault("names no class", "package.module:Class or ./file.py:Class", key="path")
        if self.webhook is not None and not is_http_url(self.webhook):
            raise fault("is no absolute http or https URL", "as https://hooks.example.test/typegate", key="webhook")
        return self
