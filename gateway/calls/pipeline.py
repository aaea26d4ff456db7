"""The path of every tool call: resolve, repair, check, send through the hooks, and put failures into words."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gateway.audit.record import Audit
from gateway.calls import error_hints
from gateway.calls.approvals import Approvals, Verdict
from gateway.calls.call_stats import CallStats, Failure
from gateway.calls.call_targets import OWN_NAMES, REPAIRS_KEY, UNCHECKED_KEY, CallTarget, CallTargets
from gateway.calls.context import Caller
from gateway.calls.forwarding import Forwarder, StateRefused
from gateway.calls.permission import Permission
from gateway.calls.resource_uris import ResourceUris
from gateway.calls.results import adapt, without_unfit_structure
from gateway.calls.search_tools import SearchTools
from gateway.calls.task_ids import TaskIds
from gateway.calls.thorough_checks import ThoroughChecks
from gateway.calls.tool_call import UNRECORDED, CallParts, ToolCall, held_text
from gateway.calls.unknown_tool import UnknownToolErrors
from gateway.errors import (
    INVALID_PARAMS,
    MAX_QUOTED_CHARS,
    CallRefused,
    RpcError,
    UpstreamError,
    UpstreamUnavailable,
    error_result,
    relay,
)
from gateway.hooks.active import ActiveHooks
from gateway.hooks.hook import CallRoute
from gateway.hooks.hooked_request import PASS_THROUGH, HookRefusal, Invocation
from gateway.protocol import with_meta
from gateway.upstream.credentials import SignInRequired
from gateway.upstream.link import UpstreamLink
from gateway.upstream.user_links import UserLinks
from registry.arguments import problems
from registry.arguments.former_names import with_near_names
from registry.arguments.repair_report import Repair, report_repairs
from registry.catalog.store import Registry
from registry.errors import NotChecked
from registry.policy.grant import ALLOWED, Decision
from registry.schema.json_paths import format_path

log = logging.getLogger(__name__)

# A server that always misses something its schema does not have costs a listing in this time, whoever calls it.
_LIST_AGAIN_S: Final = 30.0


class CallPipeline:
    """Calls tools. Each call uses the catalog of its caller's view from start to end."""

    def __init__(
        self,
        *,
        registry: Registry,
        links: Mapping[str, UpstreamLink],
        users: UserLinks,
        forwarder: Forwarder,
        task_ids: TaskIds,
        unknown_tool: UnknownToolErrors,
        call_stats: CallStats,
        search_tools: SearchTools,
        hooks: ActiveHooks,
        thorough_checks: ThoroughChecks,
        permission: Permission,
        audit: Audit,
        approvals: Approvals,
        resource_uris: ResourceUris | None = None,
    ) -> None:
        self.registry = registry
        self._links = links
        self._users = users
        self._task_ids = task_ids
        self._unknown_tool = unknown_tool
        self._permission = permission
        self._stats = call_stats
        self._hooks = hooks
        self._parts = CallParts(
            registry=registry,
            forwarder=forwarder,
            thorough_checks=thorough_checks,
            drift=unknown_tool.drift,
            permission=permission,
            audit=audit,
        )
        self._targets = CallTargets(
            registry=registry,
            users=users,
            forwarder=forwarder,
            unknown_tool=unknown_tool,
            search_tools=search_tools,
            permission=permission,
            audit=audit,
        )
        self._audit = audit
        self._approvals = approvals
        self._uris = resource_uris or ResourceUris()
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
        audit, hooks = self._audit, self._hooks
        if audit.required and not await audit.can_record():
            return error_result(UNRECORDED)
        if not view.opens_tools:
            self._targets.note_unknown(caller, None, name)
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {name[:MAX_QUOTED_CHARS]}")
        via: CallRoute = "wrapper"
        repairs: tuple[Repair, ...] = ()
        wrapper = view.catalog.get(name) if name not in OWN_NAMES else None
        if wrapper is None:
            target = await self._targets.find(name, params, caller)
            if not isinstance(target, CallTarget):
                return target
            wrapper, arguments, via, repairs = target.wrapper, target.arguments, target.via, target.repairs
        call = ToolCall(
            parts=self._parts,
            wrapper=wrapper,
            arguments=arguments,
            params=params,
            caller=caller,
            via=via,
            repairs=repairs,
        )
        result: dict[str, Any] | None = None
        outcome = "error"  # unless a result is returned: a call that raises or is cancelled counts, too
        try:
            if not hooks.runners:
                result = await self._run(call, PASS_THROUGH)
            else:
                # Entered before anything is awaited: a reload must not close hooks that this call still needs.
                with hooks.tool_call(wrapper, via, caller) as invocation:
                    call.invocation = invocation
                    result = await self._run(call, invocation)
            outcome = "error_result" if result.get("isError") else "ok"
            return result
        finally:
            took_s = time.perf_counter() - started_s
            self._stats.count_call(wrapper, via, outcome, took_s)
            if result is None:
                call.outcome = call.outcome.ended(sys.exception())
            if call.invocation is not PASS_THROUGH:
                call.outcome = call.outcome.hooked(call.invocation.blocked_by, call.invocation.changed_by)
            audit.call(caller, call.wrapper, via, call.outcome, took_s, arguments, result)
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

    async def _run(self, call: ToolCall, invocation: Invocation) -> dict[str, Any]:
        caller, wrapper = call.caller, call.wrapper
        view = caller.view
        link = self._links.get(wrapper.server)
        if link is None:
            call.outcome = call.outcome.unsent("server_gone")
            return error_result(f"Not called: server '{wrapper.server}' is no longer configured.")
        if link.per_user:
            try:
                link = self._users.own(link, caller.principal)
            except UpstreamUnavailable as error:
                return error_result(str(error))
        if wrapper.held is not None:
            call.outcome = call.outcome.unsent("held")
            return error_result(held_text(wrapper))
        # Before anything is waited for: wrong arguments are refused even while the upstream is away.
        try:
            wrong = call.prepare(wrapper)
        except NotChecked as doubt:
            wrong = await call.prepare_thoroughly(wrapper, doubt)
        if wrong:
            return self._refused(call)
        decision = ALLOWED
        if view.call_rules:
            # Before hooks see it; what they make of the arguments is looked at again.
            decision = call.decide()
            if decision.effect == "deny":
                call.outcome = call.outcome.refused(decision.rule)
                return error_result(self._permission.refusal(caller, wrapper, decision))
        try:
            listing = view.catalog.servers.get(wrapper.server)
            # What the caller looks at has to be what the present connection has brought.
            if link.state.session is None or listing is None or link.epoch != listing.epoch:
                refusal = await self._resolve_again(call, link)
                if refusal is not None:
                    return refusal
                if view.call_rules:
                    decision = call.decide()
            if decision.effect == "ask":
                call.ask = self._allowed
                verdict = await self._allowed(call, decision)
                if verdict.answer is not None:
                    return verdict.answer
            if call.prepared.unchecked or wrapper.unchecked is not None:
                self._record_unchecked(call)
            if invocation is not PASS_THROUGH:
                invocation.use_connection(link.epoch)
            result = await invocation.send(call.checked, call)
            if invocation.answer is None:
                call.outcome = call.outcome.answered(result)
            if call.allowed and isinstance(result, dict) and result.get("resultType") == "input_required":
                for one in call.allowed:
                    await self._approvals.goes_on(one)
            result = adapt(
                result,
                server=wrapper.server,
                version=caller.version,
                renaming=lambda: self._uris.renaming(wrapper.server, caller),
            )
            if view.checks_results:
                result = await without_unfit_structure(result, call.wrapper)
            if result.get("resultType") == "task":
                result = self._task_ids.started(result, call.wrapper, caller.principal.identity)
        except (StateRefused, HookRefusal):
            raise  # neither is a failure of the upstream, so neither is counted as one
        except CallRefused as refusal:
            text = " ".join((str(refusal), *error_hints.changes_by_hooks(invocation.changed_by)))
            shown: dict[str, Any] = await invocation.after(error_result(text))
            return shown
        except UpstreamError as error:
            failure = Failure.of(error)
            call.outcome = call.outcome.failed(failure.kind)
            self._stats.record_failure(call.wrapper, failure, caller)
            failed: dict[str, Any] = await invocation.after(error_result(str(error)))
            return failed
        except RpcError as error:
            call.outcome = call.outcome.failed("ok", error.code)
            self._stats.record_failure(call.wrapper, Failure.of_protocol_error(error), caller)
            shape = self.registry.shape.of(call.wrapper.server)
            result = await invocation.after_error(error)
            if result is None:
                try:
                    result = relay(error, server=call.wrapper.server, verbatim=not shape.prefixed)
                except RpcError as left:
                    # It leaves as a protocol error, and nothing can be added to it later.
                    invocation.note_error()
                    raise error_hints.naming_hooks(left, invocation.changed_by) from None
        else:
            if invocation.answer is None:  # a hook's answer says nothing about the upstream
                self._stats.record_result(call.wrapper, result, caller)
        # A refusal for what hooks have changed names these already.
        is_named = invocation.answer is not None and invocation.changed_by
        if error_hints.may_complain(result) and not is_named:
            result = self._with_hint(result, call, invocation)
        if call.repairs or call.prepared.repairs:
            result = self._with_repairs(result, call)
        if call.prepared.unchecked or call.wrapper.unchecked is not None:
            told = [one.message for one in call.prepared.unchecked]
            if call.wrapper.unchecked is not None:
                told.append(f"the arguments could not be checked in full: {call.wrapper.unchecked}")
            result = with_meta(result, UNCHECKED_KEY, told)
        return result

    def _record_unchecked(self, call: ToolCall) -> None:
        for problem in call.prepared.unchecked:
            self._stats.record_failure(call.wrapper, Failure.of_unchecked(problem), call.caller)
        paths = [format_path(one.path) for one in call.prepared.unchecked]
        call.outcome = call.outcome.not_checked(paths or [format_path(())])

    async def _allowed(self, call: ToolCall, decision: Decision) -> Verdict:
        """Have a person allow the call."""
        wrapper, rule = call.wrapper, decision.rule or ""
        call.outcome = call.outcome._replace(rule=rule)
        self._permission.asked(call.caller, wrapper, decision)
        verdict = await self._approvals.ask(call.caller, wrapper, call.checked, decision=decision, params=call.params)
        if verdict.answer is not None:
            call.outcome = call.outcome.unsent("asked" if verdict.decision is None else verdict.decision.kind)
            return verdict
        current = call.current(wrapper.server, wrapper.tool)
        if current is None or current.digest != wrapper.digest or current.held is not None:
            # What was allowed is not what would be called.
            call.outcome = call.outcome.unsent("tool_changed")
            text = (
                f"Not called: the tool '{wrapper.tool}' has changed while the call waited for a person. Call it again."
            )
            return replace(verdict, answer=error_result(text))
        call.params, call.allowed = verdict.params, (*call.allowed, verdict)
        return verdict

    async def _resolve_again(self, call: ToolCall, link: UpstreamLink) -> dict[str, Any] | None:
        """Wait for the connection, and resolve the call on it, once; returns a result if it cannot be sent.

        Raises:
            UpstreamUnavailable: The upstream is not connected in time.
        """
        wrapper = call.wrapper
        try:
            await link.wait_ready(link.patience_s)
        except SignInRequired as error:
            sign_in = call.parts.forwarder.sign_in
            asked = await sign_in(error, link, "tools/call", call.caller, original_params=call.params)
            if asked is not None:
                return asked
        # Here a call leaves the catalog that it has pinned: what it knew of this tool ended with the connection.
        current = call.current(wrapper.server, wrapper.tool)
        if current is None:
            listing = call.caller.view.catalog.servers.get(wrapper.server)
            if link.owner and (listing is None or not listing.epoch):
                return self._unknown_tool.signed_in(call.caller.view, wrapper.server, link.owner)
            call.outcome = call.outcome.unsent("tool_gone")
            return self._unknown_tool.no_longer(call.caller.view, wrapper)
        if (gone := call.not_permitted(current)) is not None:
            call.outcome = call.outcome.unsent("held" if current.held is not None else None)
            return error_result(gone)
        if current.digest != wrapper.digest:
            try:
                wrong = call.prepare(current)
            except NotChecked as doubt:
                wrong = await call.prepare_thoroughly(current, doubt)
            if wrong:
                return self._refused(call)
        call.wrapper = current
        return None

    def _refused(self, call: ToolCall) -> dict[str, Any]:
        call.outcome = call.outcome.unsent("arguments")
        view, wrapper, prepared = call.caller.view, call.wrapper, call.prepared
        lowered, entry = view.lowered(wrapper), view.entry(wrapper.name)
        names = {**(entry.lowered.shown_names if entry is not None else {}), **lowered.shown_names}
        found = with_near_names(prepared.problems, self._unknown_tool.drift.changes(wrapper.name), names)
        text = problems.explain(
            wrapper, found, call.arguments, via=call.via, understood=prepared.understood, filled=prepared.filled,
            lowered=lowered,
        )  # fmt: skip
        for problem in prepared.problems:
            self._stats.record_failure(wrapper, Failure.of_problem(problem), call.caller)
        return error_result(text + self._unknown_tool.changed_parameters(wrapper, prepared, names))

    def _list_again(self, server: str) -> None:
        """Have a server listed again that misses what its listing does not have; not at every such complaint."""
        now_s, link = time.monotonic(), self._links.get(server)
        if link is None or link.per_user:
            return
        if now_s - self._listed_again_s.get(server, -math.inf) >= _LIST_AGAIN_S:
            self._listed_again_s[server] = now_s
            link.list_again()

    def _with_hint(self, result: dict[str, Any], call: ToolCall, invocation: Invocation) -> dict[str, Any]:
        """Add a hint to a result that complains of arguments."""
        if invocation.changed_by:
            # What the upstream complains of is not what the caller sent, and no advice to the caller helps.
            if result.get("isError") is True:
                invocation.note_error()
            return error_hints.with_changes_by_hooks(result, invocation.changed_by)
        return error_hints.with_hint(
            result,
            call.wrapper,
            call.checked,
            via=call.via,
            lowered=call.caller.view.lowered(call.wrapper),
            on_undeclared=self._list_again,
        )

    def _with_repairs(self, result: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        """Add to a result how its call was repaired."""
        repairs, lowered = (*call.repairs, *call.prepared.repairs), call.caller.view.lowered(call.wrapper)
        self._stats.record_repairs(call.wrapper, repairs)
        return with_meta(result, REPAIRS_KEY, report_repairs(repairs, lowered.shown_names))
