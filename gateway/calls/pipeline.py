"""The one path of every call, typed or generic: pin the catalog, resolve, check, send, word what failed."""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.calls.context import Caller, Via
from gateway.calls.forwarding import Forwarder, StateRefused
from gateway.calls.native import INVOKE_TOOL
from gateway.calls.offerings import TaskNames
from gateway.calls.results import adapt
from gateway.errors import INVALID_PARAMS, RpcError, UpstreamError, UpstreamUnavailable, error_result, relay
from gateway.upstream.link import UpstreamLink
from registry import problems
from registry.catalog import Catalog, ToolWrapper
from registry.drift import Drift
from registry.names import fold
from registry.store import Registry

log = logging.getLogger(__name__)

_NEAR: Final = 3


class CallPipeline:
    """Calls wrappers. The catalog is pinned by each call; all that is kept is what has changed lately."""

    def __init__(
        self,
        registry: Registry,
        links: Mapping[str, UpstreamLink],
        forwarder: Forwarder,
        tasks: TaskNames,
        *,
        retired: Callable[[str], bool] = lambda alias: False,
        successor: Callable[[str], str | None] = lambda alias: None,
    ) -> None:
        self._registry = registry
        self._drift = Drift()
        registry.subscribe(self._drift.note)
        self._links = links
        self._forwarder = forwarder
        self._tasks = tasks
        self._retired = retired
        self._successor = successor

    async def call(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Answer one `tools/call`.

        Args:
            params: The request's `params`, as they came.
            caller: Who asks, and how it hears of progress.

        Returns:
            The result object; failures that a model can act on are results with `isError`.

        Raises:
            RpcError: The name is nothing of ours, or the upstream's error is to be seen as such.
        """
        began_s = time.perf_counter()
        catalog = self._registry.catalog
        name = params.get("name")
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "params.name must be a string")
        arguments = params.get("arguments")
        via: Via = "wrapper"
        if name == INVOKE_TOOL["name"]:
            via = "invoke_tool"
            target = self._unwrap(catalog, arguments)
            if isinstance(target, dict):
                return target
            wrapper, arguments = target
        else:
            found = catalog.get(name)
            if found is None:
                found = await self._late(name)
            if found is None:
                return self._unknown(catalog, name)
            wrapper = found
        outcome = "error"
        try:
            result = await self._run(wrapper, arguments, params, caller, via)
            outcome = "error_result" if result.get("isError") else "ok"
            return result
        finally:
            if log.isEnabledFor(logging.INFO):
                log.info(
                    "call",
                    extra={
                        "server": wrapper.server, "tool": wrapper.tool, "wrapper": wrapper.name, "via": via,
                        "principal": caller.principal.name, "outcome": outcome,
                        "duration_ms": round((time.perf_counter() - began_s) * 1000, 1),
                    },
                )  # fmt: skip

    async def _run(
        self, wrapper: ToolWrapper, arguments: Any, params: dict[str, Any], caller: Caller, via: Via
    ) -> dict[str, Any]:
        link = self._links.get(wrapper.server)
        if link is None:
            return error_result(f"Not called: server '{wrapper.server}' is no longer configured.")
        if arguments is None:
            arguments = {}
        refused = self._check(wrapper, arguments, via)
        if refused is not None:
            return refused
        try:
            if link.session is None or link.epoch != wrapper.epoch:
                await link.wait_ready(link.patience_s)
                current = self._registry.catalog.exactly(wrapper.server, wrapper.tool)
                if current is None:
                    return error_result(
                        f"Not called: server '{wrapper.server}' no longer has the tool '{wrapper.tool}'."
                    )
                if current.digest != wrapper.digest and (refused := self._check(current, arguments, via)):
                    return refused
                wrapper = current
            result = await self._forwarder.send(
                wrapper.server,
                "tools/call",
                {**params, "name": wrapper.tool, "arguments": arguments},
                caller,
                repeatable=_repeatable(wrapper),
                header_map={path: header for header, path in wrapper.headers.items()} if wrapper.headers else None,
            )
            result = adapt(result, server=wrapper.server, version=caller.version)
            if result.get("resultType") == "task":
                return self._tasks.expose(result, wrapper.server, caller.principal.name)
            return result
        except StateRefused:
            raise
        except UpstreamError as error:
            return error_result(str(error))
        except RpcError as error:
            shape = self._registry.shape.servers.get(wrapper.server)
            return relay(error, server=wrapper.server, verbatim=shape is not None and not shape.prefixed)

    def _check(self, wrapper: ToolWrapper, arguments: Any, via: Via) -> dict[str, Any] | None:
        found = problems.check(wrapper, arguments)
        if not found:
            return None
        text = problems.explain(wrapper, found, arguments)
        sent = arguments if isinstance(arguments, dict) else {}
        renamed = [f"`{old}` is now `{new}`" for old, new in self._drift.renamed(wrapper.name).items() if old in sent]
        if renamed:
            text += f"\n\nThis tool has changed: {', '.join(renamed)}."
        if via == "invoke_tool":
            text += (
                f"\n\nThrough invoke_tool the parameters go inside `arguments`: "
                f'{{"server": "{wrapper.server}", "tool": "{wrapper.tool}", "arguments": {{…}}}}.'
            )
        return error_result(text)

    def _unwrap(self, catalog: Catalog, arguments: Any) -> tuple[ToolWrapper, Any] | dict[str, Any]:
        usage = 'Call it like {"server": "…", "tool": "…", "arguments": {…}}.'
        if not isinstance(arguments, dict):
            return error_result(f"Not called: invoke_tool takes an object. {usage}")
        server, tool = arguments.get("server"), arguments.get("tool")
        if not isinstance(server, str) or not isinstance(tool, str):
            missing = [key for key in ("server", "tool") if not isinstance(arguments.get(key), str)]
            return error_result(f"Not called: invoke_tool needs {' and '.join(missing)} as text. {usage}")
        wrapper = catalog.find(server, tool)
        if wrapper is not None:
            return wrapper, arguments.get("arguments")
        if server not in self._links:
            gone = self._gone(catalog, server, tool)
            return gone or error_result(f"Not called: there is no server '{server[:200]}'. {self._servers()}")
        return self._no_such_tool(catalog, server, tool)

    def _unknown(self, catalog: Catalog, name: str) -> dict[str, Any]:
        alias, found, tool = name.partition("__")
        if found and alias in self._links:
            return self._no_such_tool(catalog, alias, tool)
        if found and (gone := self._gone(catalog, alias, tool)) is not None:
            return gone
        near = difflib.get_close_matches(name, [wrapper.name for wrapper in catalog.wrappers], n=_NEAR)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise RpcError(INVALID_PARAMS, f"Unknown tool: {name[:200]}{hint}")

    def _gone(self, catalog: Catalog, alias: str, tool: str) -> dict[str, Any] | None:
        """Say what became of a server that was here under this alias; None if there was none."""
        if not self._retired(alias):
            return None
        today = self._successor(alias)
        if today is None:
            return error_result(f"Not called: server '{alias}' was removed. {self._servers()}")
        renamed = catalog.find(today, tool)
        what = f"Call {renamed.name} instead." if renamed else f"Its tools are named {today}__… now."
        return error_result(f"Not called: server '{alias}' is now called '{today}'. {what}")

    def _servers(self) -> str:
        return f"Servers: {', '.join(sorted(self._links)) or 'none'}."

    def _no_such_tool(self, catalog: Catalog, server: str, tool: str) -> dict[str, Any]:
        link = self._links[server]
        if server not in catalog.servers and link.session is None:
            reason = f" ({link.last_error})" if link.last_error else ""
            return error_result(f"Not called: server '{server}' is not reachable right now{reason}. Try again.")
        removed = self._drift.removed(tool) or self._drift.removed(f"{server}__{tool}")
        if removed is not None and removed.wrapper.server == server:
            heir = f" Call {removed.successor} instead." if removed.successor else ""
            gone = removed.wrapper.tool[:200]
            return error_result(f"Not called: server '{server}' no longer has the tool '{gone}'.{heir}")
        wrappers = catalog.of(server)
        names = {fold(wrapper.tool): wrapper.name for wrapper in wrappers}
        near = difflib.get_close_matches(fold(tool), list(names), n=_NEAR, cutoff=0.5)
        listed = [names[key] for key in near] or [wrapper.name for wrapper in wrappers[:20]]
        what = "Near" if near else "It has"
        return error_result(
            f"Not called: server '{server}' has no tool '{tool[:200]}'. {what}: {', '.join(listed) or 'no tools'}."
        )

    async def _late(self, name: str) -> ToolWrapper | None:
        """A wrapper whose server is only now connecting: wait for it, bounded."""
        alias, found, _ = name.partition("__")
        link = self._links.get(alias) if found else None
        if link is None or link.session is not None or alias in self._registry.catalog.servers:
            return None
        try:
            await link.wait_ready(link.patience_s)
        except UpstreamUnavailable:
            return None
        return self._registry.catalog.get(name)


def _repeatable(wrapper: ToolWrapper) -> bool:
    hints = wrapper.definition.get("annotations")
    return isinstance(hints, dict) and (hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True)
