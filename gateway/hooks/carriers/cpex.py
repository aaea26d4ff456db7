"""Runs unmodified plugins of the ContextForge framework, with their own configuration file.

The framework (package `cpex`, the extra `cpex`) loads the file, orders the plugins and runs them; this
hook builds their payloads and reads their results. Each hook has its own instance of the framework, so that plugins
of two files are separate.

What a plugin sees: `payload.name` is the tool as its upstream names it (`names: wrapper` in the hook's `config`
gives `server__tool` instead) and `payload.args` the arguments; after a call `payload.result` is the whole result
object, and so is what a plugin returns: of what it replaces nothing reaches the caller. `context.global_context` has
`request_id` (our call id, unique), `user` (the principal), `server_id` (the alias), `tenant_id` (the profile) and, in
`metadata`, what our own hooks get apart from the arguments. What it stores in `context.state` before a call it finds
there after it. A violation blocks; its `mcp_error_code` is the code
of the block. A resource's contents are shown one by one. Modified headers and retry delays are ignored, and
completions are not shown: the framework has no hook for them. Plugins may import the framework by the name that it
had in ContextForge, too.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway import wire
from gateway.extras import install_command
from gateway.hooks.carriers.framework_names import answer_to_former_name
from gateway.hooks.formats import described
from gateway.hooks.hook import BLOCK_CODE, After, Before, Block, Call, Hook, Result
from gateway.hooks.payloads import BadPayload

KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "before_call": ("tool_pre_invoke", "ToolPreInvokePayload"),
    "after_call": ("tool_post_invoke", "ToolPostInvokePayload"),
    "before_prompt": ("prompt_pre_fetch", "PromptPrehookPayload"),
    "after_prompt": ("prompt_post_fetch", "PromptPosthookPayload"),
    "before_resource": ("resource_pre_fetch", "ResourcePreFetchPayload"),
    "after_resource": ("resource_post_fetch", "ResourcePostFetchPayload"),
}
# Of an error of the framework, which may quote a whole plugin configuration.
_MAX_ERROR_CHARS: Final = 1_000
# Errors of a configuration file that are listed; after those are corrected the next start shows the rest.
_MAX_FAULTS: Final = 5
# Members of results that say nothing of their content (MCP 2026-07-28, "Base protocol").
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
            raise ValueError(f"cpex names a file that is not there ({file.name}); expected one of plugins")
        try:
            self._cpex: Any = importlib.import_module("cpex.framework")
            manager: Any = importlib.import_module("cpex.framework.manager")
        except ImportError as error:
            how = install_command("cpex")
            raise ImportError(f"the plugin framework is missing ({error}); expected: {how}") from None
        answer_to_former_name()
        try:
            self._manager: Any = manager.TenantPluginManager(str(file), default_hook_policy="allow")
        except Exception as error:  # noqa: BLE001 - boundary: YAML, templates, models; whatever it is, it is no use
            raise ValueError(f"{file.name} is no configuration of plugins: {_why(error)}") from None
        self._plugins: list[Any] = [
            plugin
            for plugin in self._manager.config.plugins or []
            if str(plugin.mode) not in ("disabled", "PluginMode.DISABLED")
        ]
        # The framework resolves these against the working directory; we resolve them against the file.
        for folder in self._manager.config.plugin_dirs or []:
            beside = str((file.parent / folder).resolve())
            if Path(beside).is_dir() and beside not in sys.path:
                sys.path.append(beside)
        self._hooks = {str(hook) for plugin in self._plugins for hook in plugin.hooks}
        # External plugins may name their hooks only once they are connected.
        self._any = any(plugin.kind == _EXTERNAL and not plugin.hooks for plugin in self._plugins)

    def offers(self, phase: str) -> bool:
        """Whether any plugin is registered for a phase."""
        return phase in KINDS and (self._any or KINDS[phase][0] in self._hooks)

    async def start(self) -> None:
        """Load every plugin; the framework would leave out one that fails, here it is an error."""
        try:
            await self._manager.initialize()
        except (RuntimeError, ValueError) as error:
            raise ValueError(str(error)[:_MAX_ERROR_CHARS]) from None
        missing = [plugin.name for plugin in self._plugins if self._manager.get_plugin(plugin.name) is None]
        if missing:
            raise ValueError(f"plugins cannot be loaded: {', '.join(missing)} (the log says why)")

    async def close(self) -> None:
        """Shut every plugin down."""
        await self._manager.shutdown()

    async def before_call(self, call: Call) -> Before:
        """Show a tool call to the plugins."""
        modified = await self._invoke("before_call", call, name=self._name(call), args=call.args)
        return modified if isinstance(modified, Block | None) else call.with_args(_object(modified.args))

    async def after_call(self, call: Call, result: Result) -> After:
        """Show a tool's result to the plugins."""
        modified = await self._invoke("after_call", call, name=self._name(call), result=result.value)
        if isinstance(modified, Block | None):
            return modified
        return Result(value=replaced_result(result.value, _plain(modified.result)))

    async def before_prompt(self, call: Call) -> Before:
        """Show the arguments of a prompt to the plugins."""
        modified = await self._invoke("before_prompt", call, prompt_id=self._name(call), args=call.args)
        return modified if isinstance(modified, Block | None) else call.with_args(_object(modified.args))

    async def after_prompt(self, call: Call, result: Result) -> After:
        """Show a prompt's messages to the plugins."""
        modified = await self._invoke("after_prompt", call, prompt_id=self._name(call), result=result.value)
        return modified if isinstance(modified, Block | None) else Result(value=_object(modified.result))

    async def before_resource(self, call: Call) -> Before:
        """Show the URI of a resource to the plugins."""
        uri = str(call.args["uri"])
        modified = await self._invoke("before_resource", call, uri=uri, metadata=described(call.metadata))
        return modified if isinstance(modified, Block | None) else call.with_args({"uri": modified.uri})

    async def after_resource(self, call: Call, result: Result) -> After:
        """Show a resource's contents to the plugins, one by one."""
        contents, changed = list(result.content), False
        # The framework has its own classes for contents, chosen by a `type` that MCP does not have there.
        coerce = importlib.import_module("cpex.framework.utils").coerce_nested
        for index, item in enumerate(contents):
            shown = coerce({"type": "resource", **item}) if isinstance(item, dict) else item
            modified = await self._invoke("after_resource", call, uri=call.name, content=shown)
            if isinstance(modified, Block):
                return modified
            if modified is not None:
                members = _object(modified.content)
                contents[index] = {key: value for key, value in members.items() if key != "type" or "type" in item}
                changed = True
        if not changed:
            return None
        # Plugins are not shown the other members, which may repeat what they have removed.
        kept: dict[str, Any] = {name: result.value[name] for name in _ABOUT_ANSWERS if name in result.value}
        return result.with_value({**kept, "contents": contents})

    async def _invoke(self, phase: str, call: Call, **payload: Any) -> Any:
        kind, model = KINDS[phase]
        if not self._manager.has_hooks_for(kind):
            return None
        metadata = call.metadata
        # Kept from the phase before the call, so that plugins find their state again after it.
        context = call.memo.get(_GLOBAL)
        if context is None:
            context = call.memo[_GLOBAL] = self._cpex.GlobalContext(
                request_id=metadata.call_id,
                user=metadata.principal,
                server_id=metadata.server,
                tenant_id=metadata.profile,
                metadata=described(metadata),
            )
        shown_payload = getattr(self._cpex, model)(**payload)
        ask = partial(self._manager.invoke_hook, kind, shown_payload, context, violations_as_exceptions=False)
        result, contexts = await ask(local_contexts=call.memo.get(_CONTEXTS))
        call.memo[_CONTEXTS] = contexts
        if not result.continue_processing:
            return _block(result.violation)
        return result.modified_payload

    def _name(self, call: Call) -> str:
        return call.metadata.wrapper if self._by_wrapper else call.name


def replaced_result(before: dict[str, Any], value: Any) -> dict[str, Any]:
    """Return what a plugin has made of a tool's result, as a result: nothing that it replaced is left.

    Args:
        before: The result that the plugin was given.
        value: What it returned: a whole result, or content in any form, as plugins of other gateways do.
    """
    if isinstance(value, dict) and isinstance(value.get("content"), list):
        made = {**value, "content": [_item(one) for one in value["content"]]}
        structured = before.get("structuredContent")
        # The plugin has changed the text form and left the structured form, which says the same, as it was.
        if "structuredContent" in made and structured == made["structuredContent"]:
            was_told = any(_tells(item, structured) for item in before.get("content") or ())
            if was_told and not any(_tells(item, structured) for item in made["content"]):
                del made["structuredContent"]
        return made
    if isinstance(value, dict) and "structuredContent" in value and "content" not in value:
        return value
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        value = value["content"]
    items = value if isinstance(value, list) else [] if value is None else [value]
    about: dict[str, Any] = {name: before[name] for name in (*_ABOUT_ANSWERS, "isError") if name in before}
    return {**about, "content": [_item(one) for one in items]}


def _item(value: Any) -> dict[str, Any]:
    """A content item; whatever is none becomes a text."""
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        return value
    if isinstance(value, str):
        return {"type": "text", "text": value}
    try:
        text = wire.dumps(value).decode()
    except wire.MalformedJson:
        text = repr(value)
    return {"type": "text", "text": text}


def _tells(item: Any, structured: Any) -> bool:
    """Whether an item is the text form of structured content."""
    text = item.get("text") if isinstance(item, dict) else None
    if not isinstance(text, str):
        return False
    try:
        return bool(wire.loads(text.encode("utf-8", "surrogatepass")) == structured)
    except wire.MalformedJson:
        return False


def _block(violation: Any) -> Block:
    if violation is None:
        return Block(reason="a plugin stopped it")
    details = [str(violation.description or "")]
    if violation.code:
        details.append(f"({violation.code})")
    plugin = f"plugin '{violation.plugin_name}': " if getattr(violation, "plugin_name", "") else ""
    return Block(
        reason=f"{plugin}{violation.reason}",
        description=" ".join(part for part in details if part),
        code=violation.mcp_error_code if violation.mcp_error_code is not None else BLOCK_CODE,
    )


def _why(error: Exception) -> str:
    """Where a file is wrong, without the values: they may be secrets."""
    faults: Any = getattr(error, "errors", None)
    if not callable(faults):
        return type(error).__name__
    found = [f"{'.'.join(map(str, fault['loc']))}: {fault['type']}" for fault in faults()]
    return "; ".join(found[:_MAX_FAULTS])


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", by_alias=True) if callable(dump) else value


def _object(value: Any) -> dict[str, Any]:
    found = _plain(value)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadPayload(f"handed back a {type(found).__name__} where an object belongs")
    return found
