"""Configure a hook: its code, the calls it runs for, and its timeout."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from gateway.config.section import Count, Seconds, Section, default_section, fault, is_http_url

HookPhase = Literal[
    "beforeCall",
    "afterCall",
    "beforePrompt",
    "afterPrompt",
    "beforeResource",
    "afterResource",
    "beforeCompletion",
    "afterCompletion",
]
# The name is a metric label and appears in log lines, so it has to be short and printable without quotes.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
# Each entry has exactly one of these keys.
_ADAPTER_KEYS: Final = ("use", "path", "webhook", "cpex")


class HookConditions(Section):
    """The calls that a hook runs for. All given conditions have to match; an empty list matches nothing."""

    wrappers: list[str] | None = None
    """Patterns of wrapper or tool names, prompt names, or resource URIs."""
    servers: list[str] | None = None
    """Patterns of server aliases."""
    tags: list[str] | None = None
    """Patterns of tags. A server matches if at least one of its tags does."""
    principals: list[str] | None = None
    """Patterns of caller names."""


class HookConfig(Section):
    """A hook. Exactly one of `use`, `path`, `webhook` and `cpex` has to be given."""

    name: str
    """Name of the hook in logs, errors and /admin/hooks."""
    use: str | None = Field(default=None, min_length=1)
    """A bundled hook (redact, size_guard, instruction_guard, cache, audit_log, rate_limit), or the name of an entry
    point in the group `typegate.hooks`."""
    path: str | None = Field(default=None, min_length=1)
    """A class to import: package.module:Class, or ./file.py:Class relative to the configuration file."""
    webhook: str | None = Field(default=None, repr=False)
    """A URL that receives each call as a signed POST request."""
    cpex: str | None = Field(default=None, min_length=1)
    """The path of a file that configures ContextForge plugins, relative to the gateway's configuration file."""
    mode: Literal["transform", "validate", "audit", "concurrent"] | None = None
    """How the hook may affect calls. transform: change or block. validate: block. audit: observe afterwards.
    concurrent: block, running concurrently with other hooks. By default the mode that the hook declares."""
    phases: list[HookPhase] | None = None
    """Phases in which the hook runs. By default every phase that it implements."""
    priority: Count = Field(default=100, ge=-1_000_000, le=1_000_000)
    """Order of hooks. Hooks with a lower priority run earlier before a call, and later after it."""
    conditions: HookConditions = default_section(HookConditions)
    """The calls that the hook runs for. By default all."""
    # The caller waits for every hook in turn, and most hosts give up after 60 s.
    timeout: Seconds = 5.0
    """Seconds that the hook may take in each phase."""
    # Most hooks enforce a rule, so a call that could not be checked must not be made.
    on_error: Literal["fail", "ignore"] = "fail"
    """Effect of a failure of the hook. fail: the call fails. ignore: the call continues and the failure is counted."""
    block_as: Literal["result", "error"] = "result"
    """How a blocked tool call is answered. result: a result with isError. error: a JSON-RPC error."""
    payload_format: Literal["native", "nested", "metadata", "flatMetadata"] = "native"
    """Shape of the tool arguments that the hook receives. native: unchanged. nested: in `tool_args`, next to
    `tool_name` and `client_session_id`. metadata: in `arguments`, next to `metadata`, which contains `tool_name`,
    `client_session_id` and others. flatMetadata: unchanged, with `metadata` as an additional argument."""
    config: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Settings of the hook."""

    @field_validator("name")
    @classmethod
    def _name_is_short(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise fault("is not a valid hook name", "letters, digits, ., - and _, at most 64")
        return name

    @model_validator(mode="after")
    def _has_one_adapter(self) -> HookConfig:
        adapters = [key for key in _ADAPTER_KEYS if getattr(self, key) is not None]
        if len(adapters) != 1:
            what = f"has both {' and '.join(adapters)}" if adapters else "does not say what to run"
            raise fault(what, "one of use, path, webhook, cpex")
        # Only the form is checked: validating a file must not import code.
        if self.path is not None and not all(self.path.rpartition(":")[::2]):
            raise fault("does not name a class", "package.module:Class or ./file.py:Class", key="path")
        if self.webhook is not None and not is_http_url(self.webhook):
            expected = "a URL such as https://hooks.example.test/typegate"
            raise fault("is not an absolute http or https URL", expected, key="webhook")
        return self
