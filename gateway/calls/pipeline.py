"""The path of every tool call: resolve, repair, check, send through the hooks, and put failures into words."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from gateway.calls import error_hints
from gateway.calls.builtin_arguments import repair_builtin
from gateway.calls.builtin_tools import GET_SERVER_DETAILS, INVOKE_TOOL, parse_text_arguments
from gateway.calls.call_stats import CallStats, Failure
from gateway.calls.check_process import CheckJob
from gateway.calls.context import Caller
from gateway.calls.forwarding import Forwarder, StateRefused
from gateway.calls.prompts_and_resources import TaskIds
from gateway.calls.results import adapt, without_unfit_structure
from gateway.calls.search_tools import SEARCH_TOOL_NAMES, SearchTools
from gateway.calls.thorough_checks import ThoroughChecks
from gateway.calls.unknown_tool import UnknownToolErrors
from gateway.errors import INVALID_PARAMS, RpcError, UpstreamError, UpstreamUnavailable, error_result, relay
from gateway.hooks.active import ActiveHooks
from gateway.hooks.hook import CallRoute
from gateway.hooks.invocation import HookRefusal, Invocation, Rejection
from gateway.protocol import with_meta
from gateway.upstream.link import UpstreamLink
from registry.arguments import problems
from registry.arguments.diagnosis import ArgumentProblem
from registry.arguments.former_names import with_current_names
from registry.arguments.invoke_tool import ResolvedCall, resolve_invoke_tool
from registry.arguments.prepare import Prepared, prepare, refused
from registry.arguments.repair_report import Repair, report_repairs
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName
from registry.catalog.shape import RepairLevel
from registry.catalog.store import Registry
from registry.dialects.client_profiles import DIALECTS
from registry.dialects.definitions import LoweredDefinition, map_arguments
from registry.errors import NotChecked
from registry.views.profile import Profile

log = logging.getLogger(__name__)

# A server that always misses something its schema does not have costs a listing in this time, whoever calls it.
_LIST_AGAIN_S: Final = 30.0

REPAIRS_KEY: Final = "typegate/repairs"
"""The member of a result's `_meta` that lists how arguments were repaired."""


@dataclass(slots=True, kw_only=True, eq=False)
class _ToolCall:
    """One call on its way; to its invocation it is the request to send.

    Wrapper and prepared arguments are replaced where the upstream has reconnected or a hook has rewritten them.

    Attributes:
        wrapper: The tool as it is checked against and called.
        arguments: As the caller sent them.
        params: The request's params, as they came.
        via: The route by which the call came.
        repairs: Of the address, for `invoke_tool`.
        prepared: The arguments after repair and checks.
    """

    pipeline: CallPipeline
    wrapper: ToolWrapper
    arguments: Any
    params: dict[str, Any]
    caller: Caller
    via: CallRoute
    repairs: tuple[Repair, ...]
    prepared: Prepared = field(init=False)

    def prepare(self, wrapper: ToolWrapper) -> tuple[ArgumentProblem, ...]:
        """Repair and check the arguments for a wrapper; returns what is wrong with them.

        Raises:
            NotChecked: That could take longer than the loop can wait; see `prepare_thoroughly`.
        """
        shape = self.pipeline.registry.shape.of(wrapper.server)
        view, arguments = self.caller.view, self.arguments
        lowered, entry = view.lowered(wrapper), view.entry(wrapper.name)
        if entry is not None and entry.lowered is not lowered:
            # The tool has changed since this view was built: the arguments have the names that were shown then.
            arguments = map_arguments(arguments, entry.lowered)
        level = view.profile.repair or shape.repair_level(wrapper.tool)
        self.wrapper = wrapper
        self.prepared = prepare(
            wrapper, arguments, level=level, defaults=shape.defaults, lowered=lowered, validation=shape.validation
        )
        if self.pipeline.drift.knows_parameters and not self.prepared.problems:
            self._take_current_names(level, lowered)
        return self.prepared.problems

    def _take_current_names(self, level: RepairLevel, lowered: LoweredDefinition) -> None:
        changes = self.pipeline.drift.changes(self.wrapper.name)
        if changes:
            names = lowered.shown_names
            self.prepared = with_current_names(self.wrapper, self.prepared, changes, level=level, names=names)

    async def prepare_thoroughly(self, wrapper: ToolWrapper, doubt: NotChecked) -> tuple[ArgumentProblem, ...]:
        """Do the same where it may take long, with a deadline."""
        shape = self.pipeline.registry.shape.of(wrapper.server)
        view, arguments = self.caller.view, self.arguments
        lowered, entry = view.lowered(wrapper), view.entry(wrapper.name)
        self.wrapper = wrapper
        if entry is not None and entry.lowered is not lowered:
            try:
                arguments = map_arguments(arguments, entry.lowered)
            except NotChecked:
                self.prepared = refused(arguments, doubt)
                return self.prepared.problems
        level = view.profile.repair or shape.repair_level(wrapper.tool)
        job = CheckJob.of(
            wrapper, arguments, level=level, defaults=shape.defaults, lowered=lowered, validation=shape.validation
        )
        self.prepared = await self.pipeline.thorough_checks.prepare(job, self.caller.who, doubt)
        if self.pipeline.drift.knows_parameters and not self.prepared.problems:
            try:
                self._take_current_names(level, lowered)
            except NotChecked as unclear:
                self.prepared = refused(arguments, unclear)
        return self.prepared.problems

    async def revise(self, arguments: dict[str, Any], changed_by: tuple[str, ...]) -> Rejection | None:
        """Check again what hooks have rewritten, and whatever waited for them while the tool changed."""
        current = self.pipeline.registry.catalog.get_by_tool(self.wrapper.server, self.wrapper.tool) or self.wrapper
        is_same = current.digest == self.wrapper.digest
        if not changed_by and is_same:
            return None
        self.wrapper, self.prepared = current, replace(self.prepared, arguments=arguments)
        validation = self.pipeline.registry.shape.of(current.server).validation
        try:
            checked = prepare(current, arguments, level="off", validation=validation)
        except NotChecked as doubt:
            job = CheckJob.of(current, arguments, level="off", defaults={}, lowered=None, validation=validation)
            checked = await self.pipeline.thorough_checks.prepare(job, self.caller.who, doubt)
        if not checked.problems:
            self.prepared = replace(self.prepared, unchecked=checked.unchecked)
            return None
        if is_same:
            return Rejection(text=problems.in_short(checked.problems), by_hooks=True)
        lowered = self.caller.view.lowered(current)
        text = problems.explain(
            current, checked.problems, arguments, via=self.via, understood=arguments, lowered=lowered
        )
        return Rejection(text=text, by_hooks=False)

    def send(self) -> Awaitable[Any]:
        """Send the call to its upstream; returns the raw result."""
        wrapper = self.wrapper
        # Not a coroutine: it would be one more on the path of every call.
        return self.pipeline.forwarder.send(
            wrapper.server,
            "tools/call",
            {**self.params, "name": wrapper.tool, "arguments": self.prepared.arguments},
            self.caller,
            original_params=self.params,
            repeatable=_repeatable(wrapper),
            header_map={path: header for header, path in wrapper.headers.items()} if wrapper.headers else None,
            confirm=self.confirm,
        )

    async def confirm(self) -> None:
        """Check that the call still fits its tool, which may have changed with the connection.

        Raises:
            UpstreamUnavailable: It does not.
        """
        server, tool, before = self.wrapper.server, self.wrapper.tool, self.wrapper
        current = self.pipeline.registry.catalog.get_by_tool(server, tool)
        if current is None:
            raise UpstreamUnavailable(server, f"Not called: server '{server}' no longer has the tool '{tool}'.")
        rejection = await self.revise(self.prepared.arguments, ())
        problem = rejection.text if rejection is not None else None
        if problem is None and current.headers != before.headers:
            problem = f"Not called: the tool '{tool}' has changed. Nothing was sent; call it again."
        if problem is not None:
            raise UpstreamUnavailable(server, problem)


class CallPipeline:
    """Calls tools. Each call uses the catalog of its caller's view from start to end."""

    def __init__(
        self,
        *,
        registry: Registry,
        links: Mapping[str, UpstreamLink],
        forwarder: Forwarder,
        task_ids: TaskIds,
        unknown_tool: UnknownToolErrors,
        call_stats: CallStats,
        search_tools: SearchTools,
        hooks: ActiveHooks,
        thorough_checks: ThoroughChecks,
    ) -> None:
        self.registry = registry
        self._links = links
        self.forwarder = forwarder
        self._task_ids = task_ids
        self._unknown_tool = unknown_tool
        self.drift = unknown_tool.drift
        self._stats = call_stats
        self._search_tools = search_tools
        self._hooks = hooks
        self.thorough_checks = thorough_checks
        self._listed_again_s: dict[str, float] = {}  # one for each configured server

    async def call(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Answer one `tools/call`.

        Args:
            params: The request's `params`, as they came.
            caller: Who asks, and how it receives progress.

        Returns:
            The result object; failures that a model can act on are results with `isError`.

        Raises:
            RpcError: The name is unknown, or the upstream's error is to be seen as such.
        """
        started_s = time.perf_counter()
        view = caller.view
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "params.name must be a string")
        via: CallRoute = "wrapper"
        repairs: tuple[Repair, ...] = ()
        if name == INVOKE_TOOL["name"]:
            via = "invoke_tool"
            arguments = parse_text_arguments(arguments, view.profile.dialect)
            target = resolve_invoke_tool(
                arguments, view.catalog, view.servers, repairs_for=partial(self._repairs_for, view.profile)
            )
            if not isinstance(target, ResolvedCall):
                return self._unknown_tool.for_address(view, target, arguments)
            wrapper, arguments, repairs = target.wrapper, target.arguments, target.repairs
        elif name in SEARCH_TOOL_NAMES and (view.defers or name == GET_SERVER_DETAILS["name"]):
            if view.profile.repair != "off":
                arguments, repairs = repair_builtin(name, arguments)
            answer = await self._search_tools.call(name, arguments, caller)
            return with_meta(answer, REPAIRS_KEY, report_repairs(repairs)) if repairs else answer
        else:
            found = view.catalog.get(name)
            if found is None and (found := self._unknown_tool.under_former_name(view, name)) is not None:
                repairs = (Repair(name="former_name", was=name),)
            if found is None and (found := await self._unknown_tool.wait_for(view, name)) is None:
                return self._unknown_tool.for_name(view, name)
            wrapper = found
        call = _ToolCall(
            pipeline=self, wrapper=wrapper, arguments=arguments, params=params, caller=caller, via=via, repairs=repairs
        )
        outcome = "error"  # unless a result is returned: a call that raises or is cancelled counts, too
        try:
            # Entered before anything is awaited: a reload must not close hooks that this call still needs.
            with self._hooks.tool_call(wrapper, via, caller) as invocation:
                result = await self._run(call, invocation)
            outcome = "error_result" if result.get("isError") else "ok"
            return result
        finally:
            took_s = time.perf_counter() - started_s
            self._stats.count_call(wrapper, via, outcome, took_s)
            # Asked first: building the fields costs more than the test, and most gateways log no single calls.
            if log.isEnabledFor(logging.INFO):
                log.info(
                    "call",
                    extra={
                        "server": wrapper.server, "tool": wrapper.tool, "wrapper": wrapper.name, "via": via,
                        "principal": caller.principal.name, "outcome": outcome,
                        "duration_ms": round(took_s * 1000, 1),
                    },
                )  # fmt: skip

    async def _run(self, call: _ToolCall, invocation: Invocation) -> dict[str, Any]:
        link = self._links.get(call.wrapper.server)
        if link is None:
            return error_result(f"Not called: server '{call.wrapper.server}' is no longer configured.")
        # Before anything is waited for: wrong arguments are refused even while the upstream is away.
        try:
            wrong = call.prepare(call.wrapper)
        except NotChecked as doubt:
            wrong = await call.prepare_thoroughly(call.wrapper, doubt)
        if wrong:
            return self._refused(call)
        try:
            if link.session is None or link.epoch != call.wrapper.epoch:
                refusal = await self._resolve_again(call, link)
                if refusal is not None:
                    return refusal
            result = await invocation.send(call.prepared.arguments, call)
            if call.prepared.unchecked is not None:
                self._stats.record_failure(call.wrapper, Failure.of_unchecked(call.prepared.unchecked), call.caller)
            result = adapt(result, server=call.wrapper.server, version=call.caller.version)
            if DIALECTS[call.caller.view.profile.dialect].checks_results:
                result = await without_unfit_structure(result, call.wrapper)
            if result.get("resultType") == "task":
                result = self._task_ids.started(result, call.wrapper, call.caller.principal.name)
        except (StateRefused, HookRefusal):
            raise  # neither is a failure of the upstream, so neither is counted as one
        except UpstreamError as error:
            self._stats.record_failure(call.wrapper, Failure.of(error), call.caller)
            failed: dict[str, Any] = await invocation.after(error_result(str(error)))
            return failed
        except RpcError as error:
            self._stats.record_failure(call.wrapper, Failure.of_protocol_error(error), call.caller)
            shape = self.registry.shape.of(call.wrapper.server)
            result = await invocation.after_error(error)
            if result is None:
                result = relay(error, server=call.wrapper.server, verbatim=not shape.prefixed)
        else:
            if invocation.answer is None:  # a hook's answer says nothing about the upstream
                self._stats.record_result(call.wrapper, result, call.caller)
        lowered = call.caller.view.lowered(call.wrapper)
        hinted = error_hints.with_hint(
            result,
            call.wrapper,
            call.prepared.arguments,
            via=call.via,
            lowered=lowered,
            on_undeclared=self._list_again,
        )
        if hinted is not result and invocation.changed_by:
            # What the upstream complains of is not what the caller sent.
            hinted = error_hints.with_changes_by_hooks(result, invocation.changed_by)
        return self._with_repairs(hinted, call, lowered)

    async def _resolve_again(self, call: _ToolCall, link: UpstreamLink) -> dict[str, Any] | None:
        """Wait for the connection, and resolve the call on it, once; returns a result if it cannot be sent.

        Raises:
            UpstreamUnavailable: The upstream is not connected in time.
        """
        wrapper = call.wrapper
        await link.wait_ready(link.patience_s)
        # Here a call leaves the catalog that it has pinned: what it knew of this tool ended with the connection.
        current = self.registry.catalog.get_by_tool(wrapper.server, wrapper.tool)
        if current is None:
            return error_result(f"Not called: server '{wrapper.server}' no longer has the tool '{wrapper.tool}'.")
        if current.digest != wrapper.digest:
            try:
                wrong = call.prepare(current)
            except NotChecked as doubt:
                wrong = await call.prepare_thoroughly(current, doubt)
            if wrong:
                return self._refused(call)
        call.wrapper = current
        return None

    def _refused(self, call: _ToolCall) -> dict[str, Any]:
        view, wrapper, prepared = call.caller.view, call.wrapper, call.prepared
        lowered, entry = view.lowered(wrapper), view.entry(wrapper.name)
        text = problems.explain(
            wrapper, prepared.problems, call.arguments, via=call.via, understood=prepared.understood, lowered=lowered
        )
        for problem in prepared.problems:
            self._stats.record_failure(wrapper, Failure.of_problem(problem), call.caller)
        names = {**(entry.lowered.shown_names if entry is not None else {}), **lowered.shown_names}
        return error_result(text + self._unknown_tool.changed_parameters(wrapper, prepared.understood, names))

    def _list_again(self, server: str) -> None:
        """Have a server listed again that misses what its listing does not have; not at every such complaint."""
        now_s, link = time.monotonic(), self._links.get(server)
        if link is not None and now_s - self._listed_again_s.get(server, -math.inf) >= _LIST_AGAIN_S:
            self._listed_again_s[server] = now_s
            link.refresh()

    def _with_repairs(self, result: dict[str, Any], call: _ToolCall, lowered: LoweredDefinition) -> dict[str, Any]:
        """Add to a result how its call was repaired."""
        repairs = (*call.repairs, *call.prepared.repairs)
        if repairs:
            self._stats.record_repairs(call.wrapper, repairs)
            result = with_meta(result, REPAIRS_KEY, report_repairs(repairs, lowered.shown_names))
        return result

    def _repairs_for(self, profile: Profile, server: str) -> bool:
        level = profile.repair or self.registry.shape.of(ServerName(server)).repair
        return level != "off"


def _repeatable(wrapper: ToolWrapper) -> bool:
    hints = wrapper.definition.get("annotations")
    return isinstance(hints, dict) and (hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True)
