"""The one path of every call, typed or generic: pin the catalog, resolve, repair, check, send, word what failed."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from gateway.calls import error_hints
from gateway.calls.builtin_tools import INVOKE_TOOL, unwritten
from gateway.calls.call_stats import Failure, Outcomes
from gateway.calls.context import Caller, Via
from gateway.calls.forwarding import Forwarder, StateRefused
from gateway.calls.prompts_and_resources import TaskNames
from gateway.calls.results import adapt, whole
from gateway.calls.search_tools import FINDER_NAMES, Finder
from gateway.calls.unknown_tool import Directions
from gateway.errors import INVALID_PARAMS, RpcError, UpstreamError, error_result, relay
from gateway.hooks.active import Hooks
from gateway.hooks.chain import Chains
from gateway.hooks.invocation import HookRefusal, Passage
from gateway.upstream.link import UpstreamLink
from registry.arguments import problems
from registry.arguments.prepare import Prepared, prepare
from registry.arguments.unwrapping import Addressed, Repair, addressed, report
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName
from registry.catalog.shape import ServerShape
from registry.catalog.store import Registry
from registry.dialects.definitions import Lowered, restore
from registry.views.profile import Profile

log = logging.getLogger(__name__)

REPAIRS_KEY: Final = "typegate/repairs"
"""The member of a result's `_meta` that tells what was read in another way than it was written."""
_UNSHAPED: Final = ServerShape()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call on its way: what was asked for, and by whom."""

    wrapper: ToolWrapper
    arguments: Any
    params: dict[str, Any]
    caller: Caller
    via: Via
    repairs: tuple[Repair, ...]


class CallPipeline:
    """Calls wrappers. The catalog is pinned by each call."""

    def __init__(
        self,
        registry: Registry,
        links: Mapping[str, UpstreamLink],
        forwarder: Forwarder,
        tasks: TaskNames,
        directions: Directions,
        outcomes: Outcomes,
        finder: Finder,
        hooks: Hooks,
    ) -> None:
        self._registry = registry
        self._links = links
        self._forwarder = forwarder
        self._tasks = tasks
        self._directions = directions
        self._outcomes = outcomes
        self._finder = finder
        self._hooks = hooks

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
        catalog = caller.view.catalog
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "params.name must be a string")
        via: Via = "wrapper"
        repairs: tuple[Repair, ...] = ()
        if name == INVOKE_TOOL["name"]:
            via = "invoke_tool"
            arguments = unwritten(arguments, caller.view.profile.dialect)
            target = addressed(
                arguments, catalog, caller.view.servers, repairs_for=partial(self._repairs_for, caller.view.profile)
            )
            if not isinstance(target, Addressed):
                return self._directions.misaddressed(caller.view, target, arguments)
            wrapper, arguments, repairs = target.wrapper, target.arguments, target.repairs
        elif caller.view.defers and name in FINDER_NAMES:
            return await self._finder.call(name, arguments, caller)
        else:
            found = catalog.get(name) or await self._directions.late(caller.view, name)
            if found is None:
                return self._directions.unknown(caller.view, name)
            wrapper = found
        outcome = "error"
        try:
            call = _Call(
                wrapper=wrapper, arguments=arguments, params=params, caller=caller, via=via, repairs=repairs
            )  # fmt: skip
            chains = self._hooks.chains
            result = await (self._run(call, None) if chains is None else self._through(chains, call))
            outcome = "error_result" if result.get("isError") else "ok"
            return result
        finally:
            took_s = time.perf_counter() - began_s
            self._outcomes.counted(wrapper, via, outcome, took_s)
            if log.isEnabledFor(logging.INFO):
                log.info(
                    "call",
                    extra={
                        "server": wrapper.server, "tool": wrapper.tool, "wrapper": wrapper.name, "via": via,
                        "principal": caller.principal.name, "outcome": outcome,
                        "duration_ms": round(took_s * 1000, 1),
                    },
                )  # fmt: skip

    async def _through(self, chains: Chains, call: _Call) -> dict[str, Any]:
        passage = chains.tool(call.wrapper, call.via, call.caller)
        if passage is None:
            return await self._run(call, None)
        with passage:
            return await self._run(call, passage)

    async def _run(self, call: _Call, passage: Passage | None) -> dict[str, Any]:
        wrapper = call.wrapper
        link = self._links.get(wrapper.server)
        if link is None:
            return error_result(f"Not called: server '{wrapper.server}' is no longer configured.")
        prepared = self._prepared(wrapper, call)
        if prepared.problems:
            return self._refused(wrapper, prepared, call)
        try:
            if link.session is None or link.epoch != wrapper.epoch:
                await link.wait_ready(link.patience_s)
                current = self._registry.catalog.exactly(wrapper.server, wrapper.tool)
                if current is None:
                    return error_result(
                        f"Not called: server '{wrapper.server}' no longer has the tool '{wrapper.tool}'."
                    )
                if current.digest != wrapper.digest:
                    prepared = self._prepared(current, call)
                    if prepared.problems:
                        return self._refused(current, prepared, call)
                wrapper = current
            result: Any = None
            if passage is not None:
                wrapper, prepared = await self._hooked(wrapper, prepared, call, passage)
                result = passage.answer
            if result is None:
                result = await self._forwarder.send(
                    wrapper.server,
                    "tools/call",
                    {**call.params, "name": wrapper.tool, "arguments": prepared.arguments},
                    call.caller,
                    repeatable=_repeatable(wrapper),
                    header_map={path: header for header, path in wrapper.headers.items()} if wrapper.headers else None,
                    asked=call.params if passage is not None else None,
                )
            if passage is not None:
                result = await passage.after(whole(result, wrapper.server) if isinstance(result, dict) else result)
            result = adapt(result, server=wrapper.server, version=call.caller.version)
            if result.get("resultType") == "task":
                result = self._tasks.began(result, wrapper, call.caller.principal.name)
        except (StateRefused, HookRefusal):
            raise
        except UpstreamError as error:
            self._outcomes.failed(wrapper, Failure.of(error), call.caller)
            worded = error_result(str(error))
            if passage is not None:
                worded = await passage.after(worded)
            return worded
        except RpcError as error:
            self._outcomes.failed(wrapper, Failure(kind="protocol_error", detail=str(error.code)), call.caller)
            shape = self._registry.shape.servers.get(wrapper.server, _UNSHAPED)
            result = None if passage is None else await passage.relayed(error)
            if result is None:
                result = relay(error, server=wrapper.server, verbatim=not shape.prefixed)
        else:
            if passage is None or passage.answer is None:
                self._outcomes.ended(wrapper, result, call.caller)
        lowered = call.caller.view.lowered(wrapper)
        result = error_hints.enrich(result, wrapper, prepared.arguments, via=call.via, lowered=lowered)
        return self._reported(result, prepared, call, lowered)

    def _prepared(self, wrapper: ToolWrapper, call: _Call) -> Prepared:
        shape = self._registry.shape.servers.get(wrapper.server, _UNSHAPED)
        view, arguments = call.caller.view, call.arguments
        lowered, entry = view.lowered(wrapper), view.entry(wrapper.name)
        if entry is not None and entry.lowered is not lowered:
            # The tool has changed since it was shown: what was sent is in the words of then.
            arguments = restore(arguments, entry.lowered)
        level = view.profile.repair or shape.repair_of(wrapper.tool)
        return prepare(wrapper, arguments, level=level, defaults=shape.defaults, lowered=lowered)

    async def _hooked(
        self, wrapper: ToolWrapper, prepared: Prepared, call: _Call, passage: Passage
    ) -> tuple[ToolWrapper, Prepared]:
        """Ask the hooks; what they have rewritten, or what waited for them over a change, is checked again."""
        arguments = await passage.before(prepared.arguments)
        current = self._registry.catalog.exactly(wrapper.server, wrapper.tool) or wrapper
        if passage.answer is not None or (not passage.changed_by and current.digest == wrapper.digest):
            return wrapper, prepared
        prepared = replace(prepared, arguments=arguments)
        found = problems.check(current, arguments)
        if found:
            lowered = call.caller.view.lowered(current)
            passage.unfit(
                problems.explain(current, found, arguments, via=call.via, understood=arguments, lowered=lowered)
            )
        return current, prepared

    def _refused(self, wrapper: ToolWrapper, prepared: Prepared, call: _Call) -> dict[str, Any]:
        view = call.caller.view
        lowered, entry = view.lowered(wrapper), view.entry(wrapper.name)
        text = problems.explain(
            wrapper,
            prepared.problems,
            call.arguments,
            via=call.via,
            understood=prepared.understood,
            lowered=lowered,
        )
        for problem in prepared.problems:
            self._outcomes.failed(wrapper, Failure.of_problem(problem), call.caller)
        names = {**(entry.lowered.names if entry is not None else {}), **lowered.names}
        return error_result(text + self._directions.renamed(wrapper, prepared.understood, names))

    def _reported(self, result: dict[str, Any], prepared: Prepared, call: _Call, lowered: Lowered) -> dict[str, Any]:
        """Add to a result what was repaired on the way to it."""
        repairs = (*call.repairs, *prepared.repairs)
        if repairs:
            self._outcomes.repaired(call.wrapper, repairs)
            meta = result.get("_meta")
            told = report(repairs, lowered.names)
            result = {**result, "_meta": {**(meta if isinstance(meta, dict) else {}), REPAIRS_KEY: told}}
        return result

    def _repairs_for(self, profile: Profile, server: str) -> bool:
        level = profile.repair or self._registry.shape.servers.get(ServerName(server), _UNSHAPED).repair
        return level != "off"


def _repeatable(wrapper: ToolWrapper) -> bool:
    hints = wrapper.definition.get("annotations")
    return isinstance(hints, dict) and (hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True)
