"""Run unmodified plugins of the ContextForge framework.

The framework (package `cpex`, installed by the extra `cpex`) was previously `mcpgateway.plugins.framework`, and plugins
for ContextForge still import that name. Unless ContextForge itself is installed, both names refer to the same modules.

The framework loads the configuration file, orders the plugins and runs them; this hook builds their payloads and reads
their results. Each hook has its own instance of the framework, so that the plugins of two files are independent.

Plugins receive `payload.args` and `payload.name`, which is the upstream's name of the tool, or `server__tool` with
`names: wrapper` in the hook's `config`. After a call, `payload.result` is the whole result object, and the object that
a plugin returns replaces it completely. `context.global_context` has `request_id` (the gateway's unique call id),
`user` (the principal), `server_id` (the alias), `tenant_id` (the profile) and `metadata` (as for native hooks). Values
that a plugin stores in `context.state` before a call are available after the call. A violation blocks the call; its
`mcp_error_code` is the code of the block. The contents of a resource are passed one by one. Modified headers and retry
delays are ignored. Completions are not passed to plugins, because the framework has no hook for them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from gateway.hooks.hook import BLOCK_CODE, After, Before, Block, Call, Hook, Result
from gateway.hooks.hook_formats import metadata_to_json
from gateway.hooks.payloads import BadPayload
from gateway.process.extras import install_command
from gateway.protocol import json_bytes

FORMER: Final = "mcpgateway.plugins.framework"
_PACKAGES: Final = ("mcpgateway", "mcpgateway.plugins")
_TODAY: Final = "cpex.framework"


def alias_former_name() -> None:
    """Make the framework importable by its former name, unless a package of that name is installed."""
    if not any(isinstance(finder, _FormerName) for finder in sys.meta_path) and _is_free():
        # Inserted as the first finder: other finders would locate submodules by path and load them a second time.
        sys.meta_path.insert(0, _FormerName())


def _is_free() -> bool:
    return _PACKAGES[0] not in sys.modules and importlib.util.find_spec(_PACKAGES[0]) is None


class _FormerName(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _PACKAGES:
            return ModuleSpec(fullname, self, is_package=True)
        if fullname != FORMER and not fullname.startswith(f"{FORMER}."):
            return None
        today = _TODAY + fullname.removeprefix(FORMER)
        # None for a module that no longer exists, so that the ImportError contains the former name.
        return ModuleSpec(fullname, self) if importlib.util.find_spec(today) is not None else None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ not in _PACKAGES:
            # The import system returns the entry in `sys.modules`, so both names refer to one module.
            sys.modules[module.__name__] = importlib.import_module(_TODAY + module.__name__.removeprefix(FORMER))


KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "before_call": ("tool_pre_invoke", "ToolPreInvokePayload"),
    "after_call": ("tool_post_invoke", "ToolPostInvokePayload"),
    "before_prompt": ("prompt_pre_fetch", "PromptPrehookPayload"),
    "after_prompt": ("prompt_post_fetch", "PromptPosthookPayload"),
    "before_resource": ("resource_pre_fetch", "ResourcePreFetchPayload"),
    "after_resource": ("resource_post_fetch", "ResourcePostFetchPayload"),
}
# Maximum length of a framework error, which may quote a whole plugin configuration.
_MAX_ERROR_CHARS: Final = 1_000
# Maximum number of reported errors in a plugin configuration; the next start reports the rest.
_MAX_FAULTS: Final = 5
# Members of a result that are not content (MCP 2026-07-28, "Base protocol").
_ABOUT_ANSWERS: Final = ("resultType", "ttlMs", "cacheScope")
_CONTEXTS: Final = "contexts"
_GLOBAL: Final = "global"
_EXTERNAL: Final = "external"


class CpexPlugins(Hook):
    """Runs the plugins of one configuration file."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        for key in config:
            if key not in ("file", "names"):
                raise ValueError(f"unknown key {key}; expected names")
        if config.get("names", "tool") not in ("tool", "wrapper"):
            raise ValueError("names has a wrong value; expected tool or wrapper")
        self._by_wrapper = config.get("names") == "wrapper"
        file = Path(str(config["file"]))
        if not file.is_file():
            raise ValueError(f"cpex names a file that does not exist ({file.name}); expected a plugin configuration")
        try:
            self._cpex: Any = importlib.import_module("cpex.framework")
            manager: Any = importlib.import_module("cpex.framework.manager")
        except ImportError as error:
            how = install_command("cpex")
            raise ImportError(f"the plugin framework is missing ({error}); expected: {how}") from None
        alias_former_name()
        try:
            self._manager: Any = manager.TenantPluginManager(str(file), default_hook_policy="allow")
        except Exception as error:  # noqa: BLE001 - boundary: errors of YAML, templates and models
            raise ValueError(f"{file.name} is not a valid plugin configuration: {_describe_location(error)}") from None
        self._plugins: list[Any] = [
            plugin
            for plugin in self._manager.config.plugins or []
            if str(plugin.mode) not in ("disabled", "PluginMode.DISABLED")
        ]
        # Resolve these folders against the folder of the file; the framework would resolve them against the working
        # directory.
        for folder in self._manager.config.plugin_dirs or []:
            plugin_dir = str((file.parent / folder).resolve())
            if Path(plugin_dir).is_dir() and plugin_dir not in sys.path:
                sys.path.append(plugin_dir)
        self._hooks = {str(hook) for plugin in self._plugins for hook in plugin.hooks}
        # External plugins may declare their hooks only after connecting.
        self._any = any(plugin.kind == _EXTERNAL and not plugin.hooks for plugin in self._plugins)

    def offers(self, phase: str) -> bool:
        """Return whether any plugin is registered for a phase."""
        return phase in KINDS and (self._any or KINDS[phase][0] in self._hooks)

    async def start(self) -> None:
        """Load every plugin. A plugin that cannot be loaded is an error, unlike in the framework."""
        try:
            await self._manager.initialize()
        except (RuntimeError, ValueError) as error:
            raise ValueError(str(error)[:_MAX_ERROR_CHARS]) from None
        missing = [plugin.name for plugin in self._plugins if self._manager.get_plugin(plugin.name) is None]
        if missing:
            raise ValueError(f"plugins cannot be loaded: {', '.join(missing)} (the log says why)")

    async def close(self) -> None:
        """Shut down every plugin."""
        await self._manager.shutdown()

    async def before_call(self, call: Call) -> Before:
        """Pass a tool call to the plugins."""
        modified = await self._invoke("before_call", call, name=self._name(call), args=call.args)
        return modified if isinstance(modified, Block | None) else call.with_args(_as_object(modified.args))

    async def after_call(self, call: Call, result: Result) -> After:
        """Pass a tool's result to the plugins."""
        modified = await self._invoke("after_call", call, name=self._name(call), result=result.value)
        if isinstance(modified, Block | None):
            return modified
        return Result(value=to_result(result.value, _plain(modified.result)))

    async def before_prompt(self, call: Call) -> Before:
        """Pass the arguments of a prompt to the plugins."""
        modified = await self._invoke("before_prompt", call, prompt_id=self._name(call), args=call.args)
        return modified if isinstance(modified, Block | None) else call.with_args(_as_object(modified.args))

    async def after_prompt(self, call: Call, result: Result) -> After:
        """Pass a prompt's messages to the plugins."""
        modified = await self._invoke("after_prompt", call, prompt_id=self._name(call), result=result.value)
        return modified if isinstance(modified, Block | None) else Result(value=_as_object(modified.result))

    async def before_resource(self, call: Call) -> Before:
        """Pass the URI of a resource to the plugins."""
        uri = str(call.args["uri"])
        modified = await self._invoke("before_resource", call, uri=uri, metadata=metadata_to_json(call.metadata))
        return modified if isinstance(modified, Block | None) else call.with_args({"uri": modified.uri})

    async def after_resource(self, call: Call, result: Result) -> After:
        """Pass a resource's contents to the plugins, one by one."""
        contents, changed = list(result.content), False
        # The framework selects its content classes by a member `type`, which contents of resources do not have in MCP.
        coerce = importlib.import_module("cpex.framework.utils").coerce_nested
        for index, item in enumerate(contents):
            typed_item = coerce({"type": "resource", **item}) if isinstance(item, dict) else item
            modified = await self._invoke("after_resource", call, uri=call.name, content=typed_item)
            if isinstance(modified, Block):
                return modified
            if modified is not None:
                members = _as_object(modified.content)
                contents[index] = {key: value for key, value in members.items() if key != "type" or "type" in item}
                changed = True
        if not changed:
            return None
        # Drop all other members of the result: plugins do not see them, and they may contain text that plugins removed.
        envelope: dict[str, Any] = {name: result.value[name] for name in _ABOUT_ANSWERS if name in result.value}
        return result.with_value({**envelope, "contents": contents})

    async def _invoke(self, phase: str, call: Call, **payload: Any) -> Any:
        kind, model = KINDS[phase]
        if not self._manager.has_hooks_for(kind):
            return None
        metadata = call.metadata
        # Stored in the memo, so that plugins find their state again after the call.
        context = call.memo.get(_GLOBAL)
        if context is None:
            context = call.memo[_GLOBAL] = self._cpex.GlobalContext(
                request_id=metadata.call_id,
                user=metadata.principal,
                server_id=metadata.server,
                tenant_id=metadata.profile,
                metadata=metadata_to_json(metadata),
            )
        shown_payload = getattr(self._cpex, model)(**payload)
        invoke = partial(self._manager.invoke_hook, kind, shown_payload, context, violations_as_exceptions=False)
        result, contexts = await invoke(local_contexts=call.memo.get(_CONTEXTS))
        call.memo[_CONTEXTS] = contexts
        if not result.continue_processing:
            return _block(result.violation)
        return result.modified_payload

    def _name(self, call: Call) -> str:
        return call.metadata.wrapper if self._by_wrapper else call.name


def to_result(before: dict[str, Any], value: Any) -> dict[str, Any]:
    """Convert a plugin's return value to a tool result in which nothing remains that the plugin has replaced.

    Args:
        before: The result that was passed to the plugin.
        value: The plugin's return value: a whole result, or content in any form, as plugins for other gateways return.
    """
    if isinstance(value, dict) and isinstance(value.get("content"), list):
        converted = {**value, "content": [_item(item) for item in value["content"]]}
        structured = before.get("structuredContent")
        # The text form is a content item that repeats `structuredContent` as JSON. If the plugin changed only the text
        # form, drop the unchanged structured content.
        if "structuredContent" in converted and structured == converted["structuredContent"]:
            had_text_form = any(_is_text_form(item, structured) for item in before.get("content") or ())
            if had_text_form and not any(_is_text_form(item, structured) for item in converted["content"]):
                del converted["structuredContent"]
        elif structured is not None and converted.get("structuredContent") is not None:
            # Replace an unchanged text form, which would contain what the plugin has removed from `structuredContent`.
            text = _item(converted["structuredContent"])["text"]
            converted["content"] = [
                {**item, "text": text} if _is_text_form(item, structured) else item for item in converted["content"]
            ]
        return converted
    if isinstance(value, dict) and "structuredContent" in value and "content" not in value:
        return value
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        value = value["content"]
    items = value if isinstance(value, list) else [] if value is None else [value]
    about: dict[str, Any] = {name: before[name] for name in (*_ABOUT_ANSWERS, "isError") if name in before}
    return {**about, "content": [_item(item) for item in items]}


def _item(value: Any) -> dict[str, Any]:
    """Return a content item, converting other values to text."""
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        return value
    if isinstance(value, str):
        return {"type": "text", "text": value}
    try:
        text = json_bytes.dumps(value).decode()
    except json_bytes.MalformedJson:
        text = repr(value)
    return {"type": "text", "text": text}


def _is_text_form(item: Any, structured: Any) -> bool:
    """Return whether a content item repeats the structured content as a JSON text."""
    text = item.get("text") if isinstance(item, dict) else None
    if not isinstance(text, str):
        return False
    try:
        return bool(json_bytes.loads(text.encode("utf-8", "surrogatepass")) == structured)
    except json_bytes.MalformedJson:
        return False


def _block(violation: Any) -> Block:
    if violation is None:
        return Block(reason="a plugin stopped the call")
    details = [str(violation.description or "")]
    if violation.code:
        details.append(f"({violation.code})")
    plugin = f"plugin '{violation.plugin_name}': " if getattr(violation, "plugin_name", "") else ""
    return Block(
        reason=f"{plugin}{violation.reason}",
        description=" ".join(part for part in details if part),
        code=violation.mcp_error_code if violation.mcp_error_code is not None else BLOCK_CODE,
    )


def _describe_location(error: Exception) -> str:
    """Describe where a configuration is invalid, without its values, which may be secrets."""
    faults: Any = getattr(error, "errors", None)
    if not callable(faults):
        return type(error).__name__
    locations = [f"{'.'.join(map(str, fault['loc']))}: {fault['type']}" for fault in faults()]
    return "; ".join(locations[:_MAX_FAULTS])


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", by_alias=True) if callable(dump) else value


def _as_object(value: Any) -> dict[str, Any]:
    plain = _plain(value)
    if plain is None:
        return {}
    if not isinstance(plain, dict):
        raise BadPayload(f"returned a {type(plain).__name__} instead of an object")
    return plain
