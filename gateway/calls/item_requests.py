"""Requests for prompts, resources, completions, tasks and methods of extensions.

An item is *held* while its new or changed definition waits for an administrator's approval. Requests for held items are
refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio

from gateway.calls.advice.error_hints import naming_hooks
from gateway.calls.builtin_tools import GATEWAY_TOOLS, complete_server, tool_manual
from gateway.calls.caller import Caller
from gateway.calls.caller_ids import TaskIds
from gateway.calls.forwarding import Forwarder
from gateway.calls.result_parts import ResultParts
from gateway.calls.result_store import HANDLE_PREFIX
from gateway.calls.results import ResourceUris, adapt_off_loop, adapt_other, rename_uri_members
from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.model import extensions_of
from gateway.hooks.hook_loading import ActiveHooks
from gateway.hooks.invocation import PASS_THROUGH, HookRefusal, Invocation, Rejection
from gateway.process.tasks import run_in_thread
from gateway.protocol.extensions import TASKS, Extensions
from gateway.protocol.gateway_errors import (
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
from registry.catalog.listed_items import ListedItem
from registry.catalog.listing import WHOLE_SERVER
from registry.catalog.names import NAME_SEPARATOR, ServerName
from registry.catalog.registry import Registry
from registry.schema.json_values import map_items

# Maximum number of servers to ask for a URI. Many servers may have an unlisted URI, and they are asked one by one.
# Eight round trips take about as long as a caller waits for a resource.
_MAX_OWNERS: Final = 8
# The error codes for an unknown resource: before 2026-07-28, and since that version.
_NOT_FOUND: Final = frozenset({RESOURCE_NOT_FOUND, INVALID_PARAMS})
# The members of a completion request that hooks see as its arguments.
_COMPLETED: Final = ("argument", "context")
Reached = list[tuple[str, str]]
"""The servers that were asked, each with the server's own name or URI of the requested item."""
# Time limit for listing an extension's items on all servers. Servers need less time than this, and all known hosts wait
# longer.
_JOINED_S: Final = 20.0
# Maximum pages and items of one server's list. A server that exceeds these limits probably never stops returning
# cursors.
_MAX_JOINED_PAGES: Final = 100
_MAX_JOINED_ITEMS: Final = 20_000


class PromptsAndResources(Reconfigurable):
    """Answers requests for prompts, resources, completions, tasks and methods of extensions.

    Attributes:
        extensions: The MCP extensions whose methods are forwarded.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        forwarder: Forwarder,
        task_ids: TaskIds,
        hooks: ActiveHooks,
        resource_uris: ResourceUris,
        result_parts: ResultParts,
        extensions: Extensions | None = None,
    ) -> None:
        self.extensions = extensions or Extensions()
        self._registry = registry
        self._forwarder = forwarder
        self._task_ids = task_ids
        self._hooks = hooks
        self._uris = resource_uris
        self._result_parts = result_parts

    async def validate(self, change: ConfigChange) -> Apply:
        return partial(self._replace, extensions_of(change.after))

    def _replace(self, extensions: Extensions) -> None:
        self.extensions = extensions

    async def get_prompt(
        self, params: dict[str, Any], caller: Caller, reached: Reached | None = None
    ) -> dict[str, Any]:
        """Answer `prompts/get`.

        Args:
            params: The params of the request.
            reached: The list to which the asked server is added, with the server's own name of the prompt.

        Raises:
            RpcError: The prompt does not exist or is held, or the server returned an error.
        """
        name = _required_text(params, "name")
        if name == GATEWAY_TOOLS["name"] and caller.view.grant.opens("prompts"):
            return await run_in_thread(partial(tool_manual, caller.view, params.get("arguments")))
        prompt = caller.view.catalog.prompts_and_resources.prompt(name)
        if prompt is None:
            raise RpcError(INVALID_PARAMS, f"Unknown prompt: {name[:MAX_QUOTED_CHARS]}{_held_hint(caller, name)}")
        if prompt.held is not None:
            raise _held_error("prompt", prompt.server, prompt.held)
        sent = {**params, "name": prompt.original}
        if reached is not None:
            reached.append((prompt.server, prompt.original))
        with self._hooks.prompt_or_resource("prompt", prompt.server, name, prompt.original, caller) as invocation:
            return await self._send_through_hooks(
                prompt.server,
                "prompts/get",
                sent,
                caller,
                invocation=invocation,
                arguments=params.get("arguments"),
            )

    async def read_resource(
        self, params: dict[str, Any], caller: Caller, reached: Reached | None = None
    ) -> dict[str, Any]:
        """Answer `resources/read`. If no server lists the URI, ask the servers that may have the resource one by one.

        Args:
            params: The params of the request.
            reached: The list to which each asked server is added, with the server's own URI of the resource.

        Raises:
            RpcError: The resource does not exist or is held, or a server returned an error.
        """
        uri = _required_text(params, "uri")
        if uri.startswith(HANDLE_PREFIX):
            return await self._result_parts.read_resource(uri, caller)

        def adapt_uri(result: dict[str, Any], server: str, original: str) -> dict[str, Any]:
            exposed = caller.view.catalog.prompts_and_resources.exposed_uri(server, original)
            return _with_uri(result, (original, exposed), uri)

        request = _UriRequest(method="resources/read", params=params, member="uri", uri=uri)
        return await self._ask_owners(request, caller, reached, adapt_uri)

    async def _ask_owners(
        self,
        request: _UriRequest,
        caller: Caller,
        reached: Reached | None,
        adapt_uri: Callable[[dict[str, Any], str, str], dict[str, Any]],
    ) -> dict[str, Any]:
        """Send a request to the servers that may have a URI, most likely first, until a server returns a result.

        Args:
            request: The request and the URI.
            reached: The list to which each asked server is added, with the server's own URI.
            adapt_uri: Renames URIs in the result, given the server and the server's own URI.

        Raises:
            RpcError: No server has the URI, or a server returned an error.
        """
        refused: RpcError | None = None
        uri, method = request.uri, request.method
        owners = self._uris.owners(caller.view.catalog, uri, caller.session_id, caller.principal.name)
        if request.servers is not None:
            owners = tuple(owner for owner in owners if owner[0] in request.servers)
        if len(owners) > 1:
            # Do not wait for disconnected servers, which may not even have the URI.
            owners = tuple(owner for owner in owners if self._forwarder.connected(owner[0], caller))[:_MAX_OWNERS]
        for server, original in owners:
            if (reason := caller.view.catalog.held_uri(server, original)) is not None:
                refused = refused or _held_error("resource", server, reason)
                continue
            if reached is not None:
                reached.append((server, original))
            try:
                with self._hooks.prompt_or_resource("resource", server, uri, original, caller) as invocation:
                    result = await self._send_through_hooks(
                        server,
                        method,
                        {**request.params, request.member: original},
                        caller,
                        invocation=invocation,
                        arguments={"uri": original},
                    )
            except HookRefusal:
                raise  # a hook has decided about this URI, so do not ask another server
            except RpcError as error:
                if error.code not in _NOT_FOUND:
                    raise
                refused = refused or error  # keep the error of the most likely owner, which is asked first
            else:
                return adapt_uri(result, server, original)
        code = INVALID_PARAMS if caller.modern else RESOURCE_NOT_FOUND
        raise refused or RpcError(code, "Resource not found", {"uri": uri})

    async def complete(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Answer `completion/complete` through the server that owns the prompt or resource template.

        Raises:
            RpcError: The prompt or resource is unknown or held, or the server returned an error.
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
                raise _held_error("prompt", prompt.server, prompt.held)
            exposed_name, server, original = ref["name"], prompt.server, prompt.original
            ref = {**ref, "name": original}
        elif isinstance(ref, dict) and kind == "ref/resource" and isinstance(ref.get("uri"), str):
            template = prompts_and_resources.template(ref["uri"])
            uri_owners = self._uris.owners(caller.view.catalog, ref["uri"], caller.session_id, caller.principal.name)
            owners = ((template.server, template.original),) if template else uri_owners
            if not owners or not self._completes_uri(owners[0], caller):
                raise RpcError(INVALID_PARAMS, "Unknown resource", {"uri": ref["uri"]})
            exposed_name, (server, original) = ref["uri"], owners[0]
            reason = template.held if template else caller.view.catalog.held_uri(server, original)
            if reason is not None:
                raise _held_error("resource", server, reason)
            ref = {**ref, "uri": original}
        else:
            raise RpcError(INVALID_PARAMS, "params.ref must be a ref/prompt with a name or a ref/resource with a uri")
        arguments = {key: params[key] for key in _COMPLETED if key in params}
        with self._hooks.prompt_or_resource("completion", server, exposed_name, original, caller) as invocation:
            return await self._send_through_hooks(
                server,
                "completion/complete",
                {**params, "ref": ref},
                caller,
                invocation=invocation,
                arguments=arguments,
            )

    def _completes_prompt(self, prompt: ListedItem, caller: Caller) -> bool:
        grant = caller.view.grant
        if grant.is_open:
            return True
        return grant.prompt(prompt, self._registry.shape.for_server(prompt.server), "completions").effect != "deny"

    def _completes_uri(self, owner: tuple[ServerName, str], caller: Caller) -> bool:
        grant = caller.view.grant
        return (
            grant.is_open
            or grant.uri(*owner, self._registry.shape.for_server(owner[0]), "completions").effect != "deny"
        )

    async def call_extension(
        self, method: str, params: dict[str, Any], caller: Caller, reached: Reached | None = None
    ) -> dict[str, Any]:
        """Answer an extension's method through one server, or through all servers that declare the extension.

        The method's rule in `Extensions` says which server answers: the server that has the URI or tool in the params,
        the only server that declares the extension, or all servers that declare it. In the last case, lists are joined.

        Raises:
            RpcError: None of the caller's servers declares the extension, the request does not identify a server, the
                item is held, or the server returned an error.
        """
        extension_method = self.extensions.method(method, modern=caller.modern)
        declaring = frozenset(
            server
            for server, listing in caller.view.catalog.servers.items()
            if extension_method is not None and extension_method[0].offers(extension_method[1], listing.capabilities)
        )
        if extension_method is None or not declaring:
            # Clients may send such a request: the gateway can advertise an extension before a server declares it.
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")
        rule = extension_method[1]
        if rule.owner == "all":
            return await self._list_from_servers(method, rule.member, params, caller, declaring)
        if rule.owner == "uri":

            def adapt_uri(result: dict[str, Any], server: str, original: str) -> dict[str, Any]:
                return _rename_uris(result, self._uris.exposing(server, caller))

            uri = _required_text(params, rule.member)
            request = _UriRequest(method=method, params=params, member=rule.member, uri=uri, servers=declaring)
            return await self._ask_owners(request, caller, reached, adapt_uri)
        sent = params
        if rule.owner == "tool":
            name = _required_text(params, rule.member)
            wrapper = caller.view.catalog.by_name.get(name)
            if wrapper is None or wrapper.server not in declaring:
                raise RpcError(INVALID_PARAMS, f"Unknown tool: {name[:MAX_QUOTED_CHARS]}")
            if wrapper.held is not None:
                raise _held_error("tool", wrapper.server, wrapper.held)
            server, sent = wrapper.server, {**params, rule.member: wrapper.tool}
        elif len(declaring) == 1:
            [server] = declaring
        else:
            names = ", ".join(sorted(declaring))
            raise RpcError(
                INVALID_PARAMS, f"{method} does not name a server, and several servers declare this method: {names}"
            )
        self._refuse_held(server, caller)
        if reached is not None:
            reached.append((server, method))
        result = await self._send_through_hooks(server, method, sent, caller)
        return _rename_uris(result, self._uris.exposing(server, caller))

    async def _list_from_servers(
        self, method: str, member: str, params: dict[str, Any], caller: Caller, servers: Collection[ServerName]
    ) -> dict[str, Any]:
        """Ask the connected servers concurrently for all pages of a list, and join the lists, ordered by server name.

        Servers that fail or do not answer in time are left out.

        Raises:
            RpcError: A server returned an error, and no server returned a list.
        """
        lists: dict[str, list[Any]] = {}
        errors: list[RpcError] = []

        async def ask(server: ServerName) -> None:
            try:
                self._refuse_held(server, caller)
                lists[server] = await self._all_pages(server, method, member, params, caller)
            except RpcError as error:
                errors.append(error)

        with anyio.move_on_after(_JOINED_S):
            async with anyio.create_task_group() as group:
                for server in servers:
                    if self._forwarder.connected(server, caller):
                        group.start_soon(ask, server)
        if errors and not lists:
            raise errors[0]
        joined = [item for server in sorted(lists) for item in lists[server]]
        return {member: joined, **({"resultType": "complete"} if caller.modern else {})}

    async def _all_pages(
        self, server: ServerName, method: str, member: str, params: dict[str, Any], caller: Caller
    ) -> list[Any]:
        items: list[Any] = []
        sent = {name: value for name, value in params.items() if name != "cursor"}
        for _ in range(_MAX_JOINED_PAGES):
            result = await self._send_through_hooks(server, method, sent, caller)
            page = result.get(member)
            if isinstance(page, list):
                items += rename_uri_members(page, self._uris.exposing(server, caller))
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str) or not cursor or cursor == sent.get("cursor"):
                break
            sent = {**sent, "cursor": cursor}
        return items[:_MAX_JOINED_ITEMS]

    def _refuse_held(self, server: str, caller: Caller) -> None:
        """Raise an error if the whole server waits for an administrator's approval."""
        listing = caller.view.catalog.servers.get(ServerName(server))
        reason = listing.held.get(WHOLE_SERVER, {}).get("") if listing is not None else None
        if reason is not None:
            raise _held_error("extension", server, reason)

    async def task(self, method: str, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Answer `tasks/get`, `tasks/update` and `tasks/cancel` through the server that owns the task.

        Raises:
            RpcError: No server supports tasks, the caller does not declare support for tasks, the task does not belong
                to this caller, or the server returned an error.
        """
        # This is checked first: without a server that supports tasks, the method does not exist for any caller.
        if not any(_knows_tasks(listing.capabilities) for listing in caller.view.catalog.servers.values()):
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")
        if not _knows_tasks(caller.capabilities):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            raise RpcError(MISSING_CLIENT_CAPABILITY, f"{method} is for clients that declare {TASKS}", needed)
        exposed = _required_text(params, "taskId")
        identity = caller.principal.identity
        task = self._task_ids.owner(exposed, identity, caller.view)
        result = await self._send_through_hooks(task.server, method, {**params, "taskId": task.original}, caller)
        if "result" in result:
            # The call ended when the task was created, so the hooks of the call see the result only now.
            with self._hooks.task_result(task.server, task.wrapper, caller) as invocation:
                result = {**result, "result": await invocation.after_earlier_call(result["result"])}
            result = {**result, "result": await self._result_parts.shape_task(result["result"], caller, task)}
        return self._task_ids.expose(result, task, identity)

    async def _send_through_hooks(
        self,
        server: str,
        method: str,
        params: dict[str, Any],
        caller: Caller,
        *,
        invocation: Invocation = PASS_THROUGH,
        arguments: Any = None,
    ) -> dict[str, Any]:
        """Send a request through the hooks of an invocation, and adapt the result to the caller's protocol version.

        Args:
            invocation: Runs the hooks; the default runs no hooks.
            arguments: The arguments that the hooks see.

        Raises:
            RpcError: The upstream returned an error or could not be reached, or a hook refused the request.
        """
        try:
            request = _Request(forwarder=self._forwarder, server=server, method=method, params=params, caller=caller)
            result = await invocation.send(arguments, request)
            # A hook may answer with an error result. Only tools have error results, so raise a protocol error instead.
            if invocation.answer is not None and result.get("isError"):
                raise RpcError(INTERNAL_ERROR, str(result["content"][0]["text"]))
            work = partial(
                adapt_other,
                result,
                server=server,
                version=caller.version,
                method=method,
                params=params,
                rename=self._uris.renaming(server, caller),
            )
            return await adapt_off_loop(result, work)
        except HookRefusal:
            raise
        except UpstreamError as error:
            failure = RpcError(INTERNAL_ERROR, str(error), {"server": server})
        except RpcError as error:
            shape = self._registry.shape.for_server(ServerName(server))
            failure = protocol_error(error, server=server, verbatim=not shape.prefixed)
        # Hooks see the error in the form that the caller would receive. If a hook changes the error, `after_error`
        # raises the changed error.
        await invocation.after_error(failure)
        if invocation.answer is None:
            invocation.note_error()
            failure = naming_hooks(failure, invocation.changed_by)
        try:
            raise failure
        finally:
            # The exception refers to this frame, and the variable refers to the exception. Without this deletion, that
            # cycle would keep the request in memory.
            del failure


@dataclass(frozen=True, slots=True, kw_only=True)
class _UriRequest:
    """A request for a URI, to be sent to the servers that may have the URI.

    Attributes:
        member: The name of the parameter that contains the URI.
        servers: The servers that may be asked; None for all servers.
    """

    method: str
    params: dict[str, Any]
    member: str
    uri: str
    servers: Collection[ServerName] | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    """A request that contains the upstream's own names and URIs, so that it can be sent.

    Attributes:
        changed: The params after hooks have changed them; None if no hook has.
    """

    forwarder: Forwarder
    server: str
    method: str
    params: dict[str, Any]
    caller: Caller
    changed: dict[str, Any] | None = None

    async def revise(self, arguments: dict[str, Any], changed_by: tuple[str, ...]) -> Rejection | None:
        """Replace the prompt arguments, resource URI or completion argument by those that the hooks have returned.

        Returns:
            The reason why the new values cannot be sent; None if they can be sent.
        """
        if not changed_by:
            return None
        if self.method == "completion/complete":
            argument = arguments.get("argument")
            texts = [argument.get("name"), argument.get("value")] if isinstance(argument, dict) else [None]
            other_params = {key: value for key, value in self.params.items() if key not in _COMPLETED}
            self.changed = {**other_params, **{key: arguments[key] for key in _COMPLETED if key in arguments}}
            fit = all(isinstance(text, str) for text in texts) and isinstance(arguments.get("context", {}), dict)
            if fit:
                return None
            return Rejection(text="`argument` must have a name and a value, and both must be strings", by_hooks=True)
        is_prompt = self.method == "prompts/get"
        changed_arguments = arguments if is_prompt else {"uri": arguments.get("uri")}
        self.changed = (
            {**self.params, "arguments": changed_arguments} if is_prompt else {**self.params, **changed_arguments}
        )
        fit = all(isinstance(text, str) for text in changed_arguments.values())
        return None if fit else Rejection(text="all values must be strings", by_hooks=True)

    def send(self) -> Awaitable[Any]:
        """Send the request and return the raw result."""
        return self.forwarder.send(
            self.server,
            self.method,
            (self.changed or self.params).copy(),
            self.caller,
            original_params=self.params,
            # Reads may be repeated, but repeating a task request would deliver its input or cancellation twice.
            repeatable=not self.method.startswith("tasks/"),
        )


def _held_error(what: str, server: str, reason: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"The {what} of server '{server}' is {reason}.", {"server": server})


def _held_hint(caller: Caller, name: str) -> str:
    """Return a hint for an unknown prompt name; empty unless a prompt of this name waits for approval."""
    server, separator, own = name.partition(NAME_SEPARATOR)
    reason = caller.view.catalog.held("prompts", server, own) if separator and server in caller.view.servers else None
    return "" if reason is None else f"; it is {reason}"


def _knows_tasks(capabilities: Mapping[str, Any]) -> bool:
    extensions = capabilities.get("extensions")
    return isinstance(extensions, dict) and TASKS in extensions


def _rename_uris(result: dict[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    renamed: dict[str, Any] = rename_uri_members(result, rename)
    return renamed


def _required_text(params: dict[str, Any], member: str) -> str:
    value = params.get(member)
    if not isinstance(value, str):
        raise RpcError(INVALID_PARAMS, f"params.{member} must be a string")
    return value


def _with_uri(result: dict[str, Any], known_as: tuple[str, str], uri: str) -> dict[str, Any]:
    """Replace a resource's original and exposed URI (`known_as`) in a result by the URI that the caller requested."""
    contents = result.get("contents")
    if not isinstance(contents, list):
        return result
    renamed = map_items(
        contents,
        lambda item: (
            {**item, "uri": uri}
            if isinstance(item, dict) and item.get("uri") in known_as and item["uri"] != uri
            else item
        ),
    )
    return result if renamed is contents else {**result, "contents": renamed}
