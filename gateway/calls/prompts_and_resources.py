"""Requests for prompts, resources, completions and tasks: find the owner, ask it, translate names both ways."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gateway.calls.builtin_tools import GATEWAY_TOOLS, complete_server, tool_manual
from gateway.calls.context import Caller
from gateway.calls.error_hints import naming_hooks
from gateway.calls.forwarding import Forwarder
from gateway.calls.resource_uris import ResourceUris
from gateway.calls.results import adapt_other
from gateway.calls.task_ids import TaskIds
from gateway.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MAX_QUOTED_CHARS,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    RESOURCE_NOT_FOUND,
    RpcError,
    UpstreamError,
    protocol_error,
)
from gateway.hooks.active import ActiveHooks
from gateway.hooks.hooked_request import PASS_THROUGH, HookRefusal, Invocation, Rejection
from gateway.worker_thread import run_in_thread
from registry.catalog.names import NAME_SEPARATOR, ServerName
from registry.catalog.prompts_and_resources import ListedItem
from registry.catalog.store import Registry
from registry.schema.json_values import map_items

# An unlisted URI may match templates of many servers, which are asked one after the other: eight round trips
# are about as long as a caller waits for a resource.
_MAX_OWNERS: Final = 8
# The code of versions with a handshake, and that of modern ones.
_NOT_FOUND: Final = frozenset({RESOURCE_NOT_FOUND, INVALID_PARAMS})
# What of a completion is its arguments; the rest says whose.
_COMPLETED: Final = ("argument", "context")
Reached = list[tuple[str, str]]
"""The servers that were asked, each with its own name or URI of what was asked for."""
TASKS: Final = "io.modelcontextprotocol/tasks"


class PromptsAndResources:
    """Answers requests for prompts, resources, completions and tasks."""

    def __init__(
        self,
        *,
        registry: Registry,
        forwarder: Forwarder,
        task_ids: TaskIds,
        hooks: ActiveHooks,
        resource_uris: ResourceUris | None = None,
    ) -> None:
        self._registry = registry
        self._forwarder = forwarder
        self._task_ids = task_ids
        self._hooks = hooks
        self._uris = resource_uris or ResourceUris()

    async def get_prompt(
        self, params: dict[str, Any], caller: Caller, reached: Reached | None = None
    ) -> dict[str, Any]:
        """Answer `prompts/get`; `reached` takes the server that is asked, and its own name for the prompt.

        Raises:
            RpcError: There is no such prompt, or its server did not render it.
        """
        name = _required_text(params, "name")
        if name == GATEWAY_TOOLS["name"] and caller.view.grant.opens("prompts"):
            return await run_in_thread(partial(tool_manual, caller.view, params.get("arguments")))
        prompt = caller.view.catalog.prompts_and_resources.prompt(name)
        if prompt is None:
            raise RpcError(INVALID_PARAMS, f"Unknown prompt: {name[:MAX_QUOTED_CHARS]}{_held_hint(caller, name)}")
        if prompt.held is not None:
            raise _held("prompt", prompt.server, prompt.held)
        sent = {**params, "name": prompt.original}
        if reached is not None:
            reached.append((prompt.server, prompt.original))
        with self._hooks.prompt_or_resource("prompt", prompt.server, name, prompt.original, caller) as invocation:
            return await self._ask(
                prompt.server, "prompts/get", sent, caller,
                invocation=invocation, arguments=params.get("arguments"),
            )  # fmt: skip

    async def read_resource(
        self, params: dict[str, Any], caller: Caller, reached: Reached | None = None
    ) -> dict[str, Any]:
        """Answer `resources/read`; an unlisted URI is asked of every server that may have it.

        Args:
            params: The request's.
            caller: Who asks.
            reached: Takes each server that is asked, with its own URI.

        Raises:
            RpcError: There is no such resource, or its server did not read it.
        """
        uri = _required_text(params, "uri")
        refused: RpcError | None = None
        owners = self._uris.owners(caller.view.catalog, uri, caller.session_id, caller.principal.name)
        if len(owners) > 1:
            # A server that is away may not even know the URI, so it is not waited for.
            owners = tuple(owner for owner in owners if self._forwarder.connected(owner[0], caller))[:_MAX_OWNERS]
        for server, original in owners:
            if (reason := caller.view.catalog.held_uri(server, original)) is not None:
                refused = refused or _held("resource", server, reason)
                continue
            if reached is not None:
                reached.append((server, original))
            try:
                with self._hooks.prompt_or_resource("resource", server, uri, original, caller) as invocation:
                    result = await self._ask(
                        server, "resources/read", {**params, "uri": original}, caller,
                        invocation=invocation, arguments={"uri": original},
                    )  # fmt: skip
            except HookRefusal:
                raise  # a hook has decided about this URI: no other server is asked behind its back
            except RpcError as error:
                if error.code not in _NOT_FOUND:
                    raise
                refused = refused or error  # of the likeliest owner, which comes first
            else:
                shown = caller.view.catalog.prompts_and_resources.exposed_uri(server, original)
                return _with_uri(result, (original, shown), uri)
        code = INVALID_PARAMS if caller.modern else RESOURCE_NOT_FOUND
        raise refused or RpcError(code, "Resource not found", {"uri": uri})

    async def complete(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Answer `completion/complete` through the owner of what is being completed.

        Raises:
            RpcError: The reference names nothing of ours, or its server has no answer.
        """
        ref = params.get("ref")
        kind = ref.get("type") if isinstance(ref, dict) else None
        prompts_and_resources = caller.view.catalog.prompts_and_resources
        if isinstance(ref, dict) and kind == "ref/prompt" and isinstance(ref.get("name"), str):
            if ref["name"] == GATEWAY_TOOLS["name"] and caller.view.grant.opens("prompts"):
                return complete_server(caller.view.catalog, params.get("argument"))
            prompt = prompts_and_resources.prompt(ref["name"])
            if prompt is None or not self._completes_prompt(prompt, caller):
                raise RpcError(INVALID_PARAMS, f"Unknown prompt: {ref['name'][:MAX_QUOTED_CHARS]}")
            if prompt.held is not None:
                raise _held("prompt", prompt.server, prompt.held)
            shown, server, original = ref["name"], prompt.server, prompt.original
            ref = {**ref, "name": original}
        elif isinstance(ref, dict) and kind == "ref/resource" and isinstance(ref.get("uri"), str):
            template = prompts_and_resources.template(ref["uri"])
            known = self._uris.owners(caller.view.catalog, ref["uri"], caller.session_id, caller.principal.name)
            owners = ((template.server, template.original),) if template else known
            if not owners or not self._completes_uri(owners[0], caller):
                raise RpcError(INVALID_PARAMS, "Unknown resource", {"uri": ref["uri"]})
            shown, (server, original) = ref["uri"], owners[0]
            reason = template.held if template else caller.view.catalog.held_uri(server, original)
            if reason is not None:
                raise _held("resource", server, reason)
            ref = {**ref, "uri": original}
        else:
            raise RpcError(INVALID_PARAMS, "params.ref must be a ref/prompt with a name or a ref/resource with a uri")
        arguments = {key: params[key] for key in _COMPLETED if key in params}
        with self._hooks.prompt_or_resource("completion", server, shown, original, caller) as invocation:
            return await self._ask(
                server, "completion/complete", {**params, "ref": ref}, caller,
                invocation=invocation, arguments=arguments,
            )  # fmt: skip

    def _completes_prompt(self, prompt: ListedItem, caller: Caller) -> bool:
        grant = caller.view.grant
        if grant.is_open:
            return True
        return grant.prompt(prompt, self._registry.shape.of(prompt.server), "completions").effect != "deny"

    def _completes_uri(self, owner: tuple[ServerName, str], caller: Caller) -> bool:
        grant = caller.view.grant
        return grant.is_open or grant.uri(*owner, self._registry.shape.of(owner[0]), "completions").effect != "deny"

    async def task(self, method: str, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Answer `tasks/get`, `tasks/update` and `tasks/cancel` through the server that has the task.

        Raises:
            RpcError: No server has tasks, this caller does not declare them or has no such task, or
                its server's own error.
        """
        # Where no server has tasks the method does not exist, whatever the caller declares.
        if not any(_knows_tasks(listing.capabilities) for listing in caller.view.catalog.servers.values()):
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")
        if not _knows_tasks(caller.capabilities):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            raise RpcError(MISSING_CLIENT_CAPABILITY, f"{method} is for clients that declare {TASKS}", needed)
        exposed = _required_text(params, "taskId")
        identity = caller.principal.identity
        task = self._task_ids.owner(exposed, identity, caller.view)
        result = await self._ask(task.server, method, {**params, "taskId": task.original}, caller)
        if "result" in result:
            # The call ended when the task was created: what its hooks want to see comes only now.
            with self._hooks.task_result(task.server, task.wrapper, caller) as invocation:
                result = {**result, "result": await invocation.after_earlier_call(result["result"])}
        return self._task_ids.expose(result, task, identity)

    async def _ask(
        self, server: str, method: str, params: dict[str, Any], caller: Caller,
        *, invocation: Invocation = PASS_THROUGH, arguments: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Send a request through its hooks.

        Raises:
            RpcError: There is no result: the upstream's own error, or why it could not answer.
        """
        try:
            request = _Request(forwarder=self._forwarder, server=server, method=method, params=params, caller=caller)
            result = await invocation.send(arguments, request)
            # Only tools have error results: here a block, or an answer that is an error, becomes a protocol error.
            if invocation.answer is not None and result.get("isError"):
                raise RpcError(INTERNAL_ERROR, str(result["content"][0]["text"]))
            return adapt_other(
                result, server=server, version=caller.version, method=method, params=params,
                rename=self._uris.renaming(server, caller),
            )  # fmt: skip
        except HookRefusal:
            raise
        except UpstreamError as error:
            failure = RpcError(INTERNAL_ERROR, str(error), {"server": server})
        except RpcError as error:
            shape = self._registry.shape.of(ServerName(server))
            failure = protocol_error(error, server=server, verbatim=not shape.prefixed)
        # Hooks see the error as the caller would; one that changes it raises its own.
        await invocation.after_error(failure)
        if invocation.answer is None:
            invocation.note_error()
            failure = naming_hooks(failure, invocation.changed_by)
        try:
            raise failure
        finally:
            # An error that its own frame has a name for is freed by the collector only, and the request with it.
            del failure


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    """A request for a prompt, a resource or a completion, in its upstream's names, ready to be sent.

    Attributes:
        changed: The params as hooks have left them, if they have changed them.
    """

    forwarder: Forwarder
    server: str
    method: str
    params: dict[str, Any]
    caller: Caller
    changed: dict[str, Any] | None = None

    async def revise(self, arguments: dict[str, Any], changed_by: tuple[str, ...]) -> Rejection | None:
        """Take the arguments of a prompt, the URI of a resource, or what is completed, from the hooks."""
        if not changed_by:
            return None
        if self.method == "completion/complete":
            argument = arguments.get("argument")
            texts = [argument.get("name"), argument.get("value")] if isinstance(argument, dict) else [None]
            rest = {key: value for key, value in self.params.items() if key not in _COMPLETED}
            self.changed = {**rest, **{key: arguments[key] for key in _COMPLETED if key in arguments}}
            fit = all(isinstance(text, str) for text in texts) and isinstance(arguments.get("context", {}), dict)
            if fit:
                return None
            return Rejection(text="`argument` has to have a name and a value, both of them text", by_hooks=True)
        is_prompt = self.method == "prompts/get"
        named = arguments if is_prompt else {"uri": arguments.get("uri")}
        self.changed = {**self.params, "arguments": named} if is_prompt else {**self.params, **named}
        fit = all(isinstance(text, str) for text in named.values())
        return None if fit else Rejection(text="all of them have to be text", by_hooks=True)

    def send(self) -> Awaitable[Any]:
        """Send it; returns the raw result."""
        return self.forwarder.send(
            self.server,
            self.method,
            (self.changed or self.params).copy(),
            self.caller,
            original_params=self.params,
            # Reading twice does no harm; a task would get its input or its cancellation twice.
            repeatable=not self.method.startswith("tasks/"),
        )


def _held(what: str, server: str, reason: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"The {what} of server '{server}' is {reason}.", {"server": server})


def _held_hint(caller: Caller, name: str) -> str:
    """What is to be said of a prompt that is not there because nobody has approved it."""
    server, found, own = name.partition(NAME_SEPARATOR)
    reason = caller.view.catalog.held("prompts", server, own) if found and server in caller.view.servers else None
    return "" if reason is None else f"; it is {reason}"


def _knows_tasks(capabilities: Mapping[str, Any]) -> bool:
    extensions = capabilities.get("extensions")
    return isinstance(extensions, dict) and TASKS in extensions


def _required_text(params: dict[str, Any], member: str) -> str:
    value = params.get(member)
    if not isinstance(value, str):
        raise RpcError(INVALID_PARAMS, f"params.{member} must be a string")
    return value


def _with_uri(result: dict[str, Any], known_as: tuple[str, str], uri: str) -> dict[str, Any]:
    """Give the contents of a renamed resource the URI that was asked for."""
    contents = result.get("contents")
    if not isinstance(contents, list):
        return result
    named = map_items(
        contents,
        lambda item: (
            {**item, "uri": uri}
            if isinstance(item, dict) and item.get("uri") in known_as and item["uri"] != uri
            else item
        ),
    )
    return result if named is contents else {**result, "contents": named}
