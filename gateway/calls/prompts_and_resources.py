"""Requests for prompts, resources, completions and tasks: find the owner, ask it, give its answer our names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from gateway.access.signing import Signer
from gateway.calls.builtin_tools import GATEWAY_TOOLS, complete_server, tool_manual
from gateway.calls.context import Caller
from gateway.calls.forwarding import Forwarder
from gateway.calls.results import adapt_other
from gateway.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    RESOURCE_NOT_FOUND,
    RpcError,
    UpstreamError,
    protocol_error,
)
from gateway.hooks.active import Hooks
from gateway.hooks.invocation import HookRefusal, Passage
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName
from registry.catalog.store import Registry

# An unlisted URI is looked for at so many servers at most.
_MAX_OWNERS: Final = 8
_NOT_FOUND: Final = frozenset({RESOURCE_NOT_FOUND, INVALID_PARAMS})
TASKS: Final = "io.modelcontextprotocol/tasks"
_RELATED_TASK: Final = "io.modelcontextprotocol/related-task"


class OfferingCalls:
    """Answers everything that is asked of upstreams beside calls of tools."""

    def __init__(self, registry: Registry, forwarder: Forwarder, tasks: TaskNames, hooks: Hooks) -> None:
        self._registry = registry
        self._forwarder = forwarder
        self._tasks = tasks
        self._hooks = hooks

    async def get_prompt(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Answer `prompts/get`.

        Raises:
            RpcError: There is no such prompt, or its server did not render it.
        """
        name = _text(params, "name")
        if name == GATEWAY_TOOLS["name"]:
            return tool_manual(caller.view, params.get("arguments"))
        prompt = caller.view.catalog.offerings.prompt(name)
        if prompt is None:
            raise RpcError(INVALID_PARAMS, f"Unknown prompt: {name[:200]}")
        sent = {**params, "name": prompt.original}
        return await self._hooked("prompt", prompt.server, name, "prompts/get", sent, caller)

    async def read_resource(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Answer `resources/read`; an unlisted URI is asked for wherever it may be known.

        Raises:
            RpcError: There is no such resource, or its server did not read it.
        """
        uri = _text(params, "uri")
        refused: RpcError | None = None
        owners = caller.view.catalog.offerings.owners(uri)
        if len(owners) > 1:
            # Nobody waits for a server that may only perhaps know it.
            owners = tuple(one for one in owners if self._forwarder.connected(one[0]))[:_MAX_OWNERS]
        for server, original in owners:
            try:
                sent = {**params, "uri": original}
                result = await self._hooked("resource", server, uri, "resources/read", sent, caller)
            except HookRefusal:
                raise
            except RpcError as error:
                if error.code not in _NOT_FOUND:
                    raise
                refused = refused or error
            else:
                return _under(result, original, uri)
        code = INVALID_PARAMS if caller.modern else RESOURCE_NOT_FOUND
        raise refused or RpcError(code, "Resource not found", {"uri": uri})

    async def complete(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Answer `completion/complete` through the owner of what is being completed.

        Raises:
            RpcError: The reference names nothing of ours, or its server has no answer.
        """
        ref = params.get("ref")
        kind = ref.get("type") if isinstance(ref, dict) else None
        offerings = caller.view.catalog.offerings
        if isinstance(ref, dict) and kind == "ref/prompt" and isinstance(ref.get("name"), str):
            if ref["name"] == GATEWAY_TOOLS["name"]:
                return complete_server(caller.view.catalog, params.get("argument"))
            prompt = offerings.prompt(ref["name"])
            if prompt is None:
                raise RpcError(INVALID_PARAMS, f"Unknown prompt: {ref['name'][:200]}")
            server, ref = prompt.server, {**ref, "name": prompt.original}
        elif isinstance(ref, dict) and kind == "ref/resource" and isinstance(ref.get("uri"), str):
            template = offerings.template(ref["uri"])
            owners = ((template.server, template.original),) if template else offerings.owners(ref["uri"])
            if not owners:
                raise RpcError(INVALID_PARAMS, "Unknown resource", {"uri": ref["uri"]})
            server, ref = owners[0][0], {**ref, "uri": owners[0][1]}
        else:
            raise RpcError(INVALID_PARAMS, "params.ref must be a ref/prompt with a name or a ref/resource with a uri")
        return await self._send(server, "completion/complete", {**params, "ref": ref}, caller)

    async def task(self, method: str, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Answer `tasks/get`, `tasks/update` and `tasks/cancel` through the server that has the task.

        Raises:
            RpcError: No server has tasks, this caller does not say that it knows of them or has no such task, or
                its server's own error.
        """
        if not any(_knows_tasks(one.capabilities) for one in caller.view.catalog.servers.values()):
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")
        if not _knows_tasks(caller.capabilities):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            raise RpcError(MISSING_CLIENT_CAPABILITY, f"{method} is for clients that declare {TASKS}", needed)
        exposed = _text(params, "taskId")
        server, original = self._tasks.owner(exposed, caller.principal.name)
        result = await self._send(server, method, {**params, "taskId": original}, caller)
        passage = self._hooks.task(server, original, caller) if "result" in result else None
        if passage is not None:
            with passage:
                passage.resume()
                result = {**result, "result": await passage.after(result["result"])}
        return self._tasks.expose(result, server, caller.principal.name)

    async def _hooked(
        self, kind: Literal["prompt", "resource"], server: str, name: str, method: str,
        params: dict[str, Any], caller: Caller,
    ) -> dict[str, Any]:  # fmt: skip
        """Send a request through its hooks, if it has any."""
        original = str(params["name" if kind == "prompt" else "uri"])
        chains = self._hooks.chains
        passage = chains.offering(kind, server, name, original, caller) if chains is not None else None
        if passage is None:
            return await self._send(server, method, params, caller)
        with passage:
            asked = params
            given = params.get("arguments") if kind == "prompt" else {"uri": original}
            made = await passage.before(given)
            if passage.changed_by:
                params = {**params, "arguments": made} if kind == "prompt" else {**params, "uri": made.get("uri")}
                strings = made.values() if kind == "prompt" else [made.get("uri")]
                if not all(isinstance(one, str) for one in strings):
                    passage.unfit("All of them have to be text.")
            if passage.answer is not None:
                result = await passage.after(passage.answer)
                if result.get("isError"):
                    raise RpcError(INTERNAL_ERROR, str(result["content"][0]["text"]))
                return adapt_other(result, server=server, version=caller.version)
            try:
                return await self._send(server, method, params, caller, passage, asked)
            except HookRefusal:
                raise
            except RpcError as error:
                await passage.relayed(error)
                raise

    async def _send(
        self, server: str, method: str, params: dict[str, Any], caller: Caller,
        passage: Passage | None = None, asked: dict[str, Any] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        shape = self._registry.shape.servers.get(ServerName(server))
        try:
            result = await self._forwarder.send(
                server, method, params, caller, repeatable=not method.startswith("tasks/"), asked=asked
            )
            if passage is not None:
                result = await passage.after(result)
            return adapt_other(result, server=server, version=caller.version)
        except HookRefusal:
            raise
        except UpstreamError as error:
            raise RpcError(INTERNAL_ERROR, str(error), {"server": server}) from None
        except RpcError as error:
            raise protocol_error(error, server=server, verbatim=shape is not None and not shape.prefixed) from None


class TaskNames:
    """The ids of tasks as callers see them: each names its server and holds for its caller only.

    Source: MCP extension io.modelcontextprotocol/tasks, 2026-07-28, "Security": an id is all it takes to
    read a task, and an upstream knows every caller of ours by the same credential.
    """

    def __init__(self, signer: Signer, hooks: Hooks) -> None:
        self._signer = signer
        self._hooks = hooks

    def began(self, result: dict[str, Any], wrapper: ToolWrapper, principal: str) -> dict[str, Any]:
        """Give a task that a call has begun its id for this caller; hooks will want to know whose it is."""
        if self._hooks.chains is not None and isinstance(result.get("taskId"), str):
            self._hooks.began(result["taskId"], wrapper)
        return self.expose(result, wrapper.server, principal)

    def announced(self, params: dict[str, Any], server: str, principal: str) -> dict[str, Any]:
        """Give a task in a notification its id; where there are hooks its result is to be asked for, past them."""
        if self._hooks.chains is not None and "result" in params:
            params = {key: value for key, value in params.items() if key != "result"}
        return self.expose(params, server, principal)

    def name(self, original: str, server: str, principal: str) -> str:
        """The id for this caller."""
        return f"{server}.{self._signer.mark(original, 'task', server, principal)}.{original}"

    def owner(self, exposed: str, principal: str) -> tuple[str, str]:
        """The server, and the id as it knows it.

        Raises:
            RpcError: The id was not given to this caller.
        """
        server, _, rest = exposed.partition(".")
        _, found, original = rest.partition(".")
        if not found or self.name(original, server, principal) != exposed:
            raise RpcError(INVALID_PARAMS, "Unknown task")
        return server, original

    def expose(self, result: dict[str, Any], server: str, principal: str) -> dict[str, Any]:
        """Give a task in a result or a notification its id for this caller."""
        task_id = result.get("taskId")
        if isinstance(task_id, str):
            result = {**result, "taskId": self.name(task_id, server, principal)}
        meta = result.get("_meta")
        related = meta.get(_RELATED_TASK) if isinstance(meta, dict) else None
        if isinstance(meta, dict) and isinstance(related, dict) and isinstance(related.get("taskId"), str):
            named = {**related, "taskId": self.name(related["taskId"], server, principal)}
            result = {**result, "_meta": {**meta, _RELATED_TASK: named}}
        return result


def _knows_tasks(capabilities: Mapping[str, Any]) -> bool:
    extensions = capabilities.get("extensions")
    return isinstance(extensions, dict) and TASKS in extensions


def _text(params: dict[str, Any], member: str) -> str:
    value = params.get(member)
    if not isinstance(value, str):
        raise RpcError(INVALID_PARAMS, f"params.{member} must be a string")
    return value


def _under(result: dict[str, Any], original: str, uri: str) -> dict[str, Any]:
    """Let contents of a renamed resource stand under the URI that was asked for."""
    contents = result.get("contents")
    if original == uri or not isinstance(contents, list):
        return result
    named = [{**one, "uri": uri} if isinstance(one, dict) and one.get("uri") == original else one for one in contents]
    return {**result, "contents": named}
