"""The steps of every tool call: resolve, prepare, authorize, send, finish.

Policy rules may have conditions on arguments. Therefore a call is authorized only after its arguments were repaired and
default values were added.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from gateway.calls.advice import error_hints
from gateway.calls.approval_requests import Approvals, Verdict
from gateway.calls.builtin_tools import SearchTools
from gateway.calls.call_stats import CallStats, Failure
from gateway.calls.call_targets import OWN_NAMES, REPAIRS_KEY, UNCHECKED_KEY, CallTarget, CallTargets, Permission
from gateway.calls.caller import Caller
from gateway.calls.caller_ids import TaskIds
from gateway.calls.process_choice import StateRefused
from gateway.calls.result_parts import ResultRequest
from gateway.calls.result_store import HandleRefused
from gateway.calls.results import ResourceUris, adapt, adapt_off_loop, may_complain, without_invalid_structure
from gateway.calls.selection import SelectionRefused
from gateway.calls.tool_call import UNRECORDED, CallParts, ToolCall, held_text
from gateway.hooks.hook import CallRoute
from gateway.hooks.hook_loading import ActiveHooks
from gateway.hooks.invocation import PASS_THROUGH, HookRefusal, Invocation
from gateway.protocol.gateway_errors import (
    INVALID_PARAMS,
    MAX_QUOTED_CHARS,
    CallRefused,
    RpcError,
    UpstreamError,
    UpstreamUnavailable,
    error_result,
    relay,
)
from gateway.protocol.versions import with_meta
from gateway.upstream.caller_links import UserLinks
from gateway.upstream.link import UpstreamLink
from gateway.upstream.upstream_credentials import SignInRequired
from registry.arguments import problems
from registry.arguments.coercion import Repair, report_repairs
from registry.arguments.prepare import suggest_current_names
from registry.catalog.catalog import ToolWrapper
from registry.errors import NotChecked
from registry.policy.policy import ALLOWED, Decision
from registry.schema.json_paths import format_path
from registry.views.descriptions import SELECT

log = logging.getLogger(__name__)

# Minimum seconds between two requests for a server's tool list after errors about undeclared parameters. A faulty
# server may return such an error for every call.
_LIST_AGAIN_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedNames:
    """The names under which callers see tasks and resources of upstreams."""

    task_ids: TaskIds
    resource_uris: ResourceUris


class CallPipeline:
    """Calls tools. A call uses the tool definitions in the caller's view, except after the upstream has reconnected."""

    def __init__(
        self,
        parts: CallParts,
        *,
        links: Mapping[str, UpstreamLink],
        users: UserLinks,
        names: ExposedNames,
        call_stats: CallStats,
        search_tools: SearchTools,
        hooks: ActiveHooks,
        approvals: Approvals,
    ) -> None:
        self._parts = parts
        self._registry = parts.registry
        self._links = links
        self._users = users
        self._task_ids, self._uris = names.task_ids, names.resource_uris
        self._unknown_tool = parts.unknown_tool
        self._permission = parts.permission
        self._stats = call_stats
        self._hooks = hooks
        self._targets = CallTargets(
            registry=parts.registry,
            users=users,
            forwarder=parts.forwarder,
            unknown_tool=parts.unknown_tool,
            search_tools=search_tools,
            permission=parts.permission,
            audit=parts.audit,
            result_parts=parts.result_parts,
        )
        self._audit = parts.audit
        self._approvals = approvals
        self._listed_again_s: dict[str, float] = {}  # bounded by the number of configured servers

    @property
    def permission(self) -> Permission:
        """Return the object that counts and explains refused calls."""
        return self._permission

    async def call(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Answer one `tools/call`.

        Args:
            params: The request's unmodified `params`.

        Returns:
            The result object. Failures that a model can act on are results with `isError`.

        Raises:
            RpcError: The tool is unknown, or the upstream returned a protocol error that is not converted to a result.
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
        wrapper = view.catalog.by_name.get(name) if name not in OWN_NAMES else None
        if wrapper is None:
            target = await self._targets.resolve(name, params, caller)
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
        outcome = "error"  # counted if the call raises an exception or is cancelled
        try:
            if not hooks.runners:
                result = await self._run(call, PASS_THROUGH)
            else:
                # Enter the context before the next await, so that a reload does not close hooks that this call needs.
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
            # Do not build the fields if they are not logged. Most gateways do not log individual calls.
            if log.isEnabledFor(logging.INFO):
                log.info(
                    "call",
                    extra={
                        "server": wrapper.server,
                        "tool": wrapper.tool,
                        "wrapper": wrapper.name,
                        "via": via,
                        "principal": caller.principal.name,
                        "outcome": outcome,
                        "duration_ms": round(took_s * 1000, 1),
                    },
                )

    async def _run(self, call: ToolCall, invocation: Invocation) -> dict[str, Any]:
        """Run the steps of a call: resolve, prepare, authorize, send, finish.

        Each step before `_send` may end the call with a result that says why the call was not sent. `_admit` waits for
        the connection and for approvals. Failures of the upstream become results, except for some protocol errors.
        """
        link = self._resolve(call)
        if isinstance(link, dict):
            return link
        if call.caller.view.result_rules and (refusal := await self._prepare_parts(call)) is not None:
            return refusal
        # Prepare before waiting for a connection: invalid arguments are refused even if the upstream is disconnected.
        refusal = await self._prepare(call, call.wrapper)
        if refusal is not None:
            return refusal
        # Apply the rules before the hooks run. If hooks change the arguments, `ToolCall.send` applies the rules again.
        decision = call.decide() if call.caller.view.call_rules else ALLOWED
        if decision.effect == "deny":
            call.outcome = call.outcome.refused(decision.rule)
            return error_result(self._permission.refusal(call.caller, call.wrapper, decision))
        try:
            refusal = await self._admit(call, link, decision)
            if refusal is not None:
                return refusal
            result = await self._send(call, link, invocation)
        except (StateRefused, HookRefusal):
            raise  # not a failure of the upstream, so it is not counted as a failure
        except CallRefused as refused:
            text = " ".join((str(refused), *error_hints.changes_by_hooks(invocation.changed_by)))
            refusal_result: dict[str, Any] = await invocation.after(error_result(text))
            return refusal_result
        except UpstreamError as error:
            failure = Failure.from_error(error)
            call.outcome = call.outcome.failed(failure.kind)
            self._stats.record_failure(call.wrapper, failure, call.caller)
            failed: dict[str, Any] = await invocation.after(error_result(str(error)))
            return failed
        except RpcError as error:
            result = await self._relay(call, error, invocation)
        else:
            if invocation.answer is None:  # the result is from the upstream, not from a hook
                self._stats.record_result(call.wrapper, result, call.caller, call.arguments)
        result = self._finish(call, result, invocation)
        if call.caller.view.result_rules:
            request = ResultRequest(selection=call.selection, arguments=call.checked)
            result = await self._parts.result_parts.shape(result, call.caller, call.wrapper, request)
        return result

    async def _prepare_parts(self, call: ToolCall) -> dict[str, Any] | None:
        """Remove `_select` from the arguments, and replace handles in them by stored values.

        Returns:
            A result that says why the selection or a handle cannot be used, or None.
        """
        try:
            call.arguments, call.selection = await self._parts.result_parts.prepare(
                call.arguments, call.caller, call.wrapper
            )
        except (HandleRefused, SelectionRefused) as refused:
            call.outcome = call.outcome.unsent("arguments")
            what = f"`{SELECT}`: " if isinstance(refused, SelectionRefused) else ""
            return error_result(f"Not called: {what}{refused}.")
        return None

    def _resolve(self, call: ToolCall) -> UpstreamLink | dict[str, Any]:
        """Return the link for the call, or a result that says why the call cannot be sent."""
        wrapper = call.wrapper
        link = self._links.get(wrapper.server)
        if link is None:
            call.outcome = call.outcome.unsent("server_gone")
            return error_result(f"Not called: server '{wrapper.server}' is no longer configured.")
        if link.per_user:
            try:
                link = self._users.get_or_open(link, call.caller.principal)
            except UpstreamUnavailable as error:
                return error_result(str(error))
        if wrapper.held is not None:
            call.outcome = call.outcome.unsent("held")
            return error_result(held_text(wrapper))
        return link

    async def _prepare(self, call: ToolCall, wrapper: ToolWrapper) -> dict[str, Any] | None:
        """Repair the arguments, add default values and validate; return an error result if they remain invalid."""
        try:
            wrong = call.prepare(wrapper)
        except NotChecked as doubt:
            wrong = await call.prepare_thoroughly(wrapper, doubt)
        if not wrong and call.caller.view.result_rules:
            call.drop_selection()
        return self._refuse_arguments(call) if wrong else None

    async def _admit(self, call: ToolCall, link: UpstreamLink, decision: Decision) -> dict[str, Any] | None:
        """Wait for a connection and for an approval, if the call needs them.

        Returns:
            A result if the call cannot be sent, or None.

        Raises:
            UpstreamUnavailable: The upstream was not connected in time.
        """
        view, wrapper = call.caller.view, call.wrapper
        listing = view.catalog.servers.get(wrapper.server)
        # Resolve again unless the view's definition comes from the current connection. Servers with `instances` are
        # exempt, because their processes do not provide tool lists.
        if not link.has_instances and (link.state.session is None or listing is None or link.epoch != listing.epoch):
            refusal = await self._resolve_again(call, link)
            if refusal is not None:
                return refusal
            if view.call_rules:
                decision = call.decide()
        if decision.effect == "ask":
            call.ask = self._request_approval
            return (await self._request_approval(call, decision)).answer
        return None

    async def _send(self, call: ToolCall, link: UpstreamLink, invocation: Invocation) -> dict[str, Any]:
        """Send the call through its hooks, and adapt the result to the caller's protocol version."""
        caller, server = call.caller, call.wrapper.server
        if call.prepared.unchecked or call.wrapper.unchecked is not None:
            self._record_unchecked(call)
        if invocation is PASS_THROUGH:
            result = await call.send()
        else:
            invocation.use_connection(link.epoch)
            result = await invocation.send(call.checked, call)
        if invocation.answer is None:
            call.outcome = call.outcome.answered(result)
        if call.allowed and isinstance(result, dict) and result.get("resultType") == "input_required":
            for approval in call.allowed:
                await self._approvals.allow_continuation(approval)
        renaming = partial(self._uris.renaming, server, caller)
        work = partial(adapt, result, server=server, version=caller.version, renaming=renaming)
        result = await adapt_off_loop(result, work)
        if caller.view.checks_results:
            result = await without_invalid_structure(result, call.wrapper)
        if result.get("resultType") == "task":
            result = self._task_ids.started(result, call.wrapper, caller.principal.identity, call.selection)
        return result

    async def _relay(self, call: ToolCall, error: RpcError, invocation: Invocation) -> dict[str, Any]:
        """Convert the upstream's protocol error to a result for the model.

        Raises:
            RpcError: The error is returned to the caller as a protocol error.
        """
        call.outcome = call.outcome.failed("ok", error.code)
        self._stats.record_failure(call.wrapper, Failure.from_protocol_error(error), call.caller)
        caller = call.caller.principal.name
        self._stats.mistakes.record_error(call.wrapper, error.message, call.arguments, caller)
        shape = self._registry.shape.for_server(call.wrapper.server)
        result: dict[str, Any] | None = await invocation.after_error(error)
        if result is not None:
            return result
        try:
            return relay(error, server=call.wrapper.server, verbatim=not shape.prefixed)
        except RpcError as protocol_error:
            # `_finish` does not see this error, so add the names of hooks here.
            invocation.note_error()
            raise error_hints.naming_hooks(protocol_error, invocation.changed_by) from None

    def _finish(self, call: ToolCall, result: dict[str, Any], invocation: Invocation) -> dict[str, Any]:
        """Add information to a result: a hint about an error, the repairs, and the arguments that were not checked."""
        # If the call was refused after hooks changed its arguments, the result already names the hooks.
        is_named = invocation.answer is not None and invocation.changed_by
        if may_complain(result) and not is_named:
            result = self._with_hint(result, call, invocation)
        if call.repairs or call.prepared.repairs:
            result = self._with_repairs(result, call)
        if call.prepared.unchecked or call.wrapper.unchecked is not None:
            messages = [problem.message for problem in call.prepared.unchecked]
            if call.wrapper.unchecked is not None:
                messages.append(f"the arguments could not be checked in full: {call.wrapper.unchecked}")
            result = with_meta(result, UNCHECKED_KEY, messages)
        return result

    def _record_unchecked(self, call: ToolCall) -> None:
        for problem in call.prepared.unchecked:
            self._stats.record_failure(call.wrapper, Failure.from_unchecked(problem), call.caller)
        paths = [format_path(problem.path) for problem in call.prepared.unchecked]
        call.outcome = call.outcome.not_checked(paths or [format_path(())])

    async def _request_approval(self, call: ToolCall, decision: Decision) -> Verdict:
        """Ask a person to approve the call; return the verdict, with a result if the call must not be sent."""
        wrapper, rule = call.wrapper, decision.rule or ""
        call.outcome = call.outcome._replace(rule=rule)
        self._permission.count_pending(call.caller, wrapper, decision)
        verdict = await self._approvals.request_approval(
            call.caller, wrapper, call.checked, decision=decision, params=call.params
        )
        if verdict.answer is not None:
            call.outcome = call.outcome.unsent("asked" if verdict.decision is None else verdict.decision.kind)
            return verdict
        current = call.current(wrapper.server, wrapper.tool)
        if current is None or current.digest != wrapper.digest or current.held is not None:
            # The approval was for the previous definition of the tool.
            call.outcome = call.outcome.unsent("tool_changed")
            text = (
                f"Not called: the tool '{wrapper.tool}' has changed while the call waited for a person. Call it again."
            )
            return replace(verdict, answer=error_result(text))
        call.params, call.allowed = verdict.params, (*call.allowed, verdict)
        return verdict

    async def _resolve_again(self, call: ToolCall, link: UpstreamLink) -> dict[str, Any] | None:
        """Wait for the connection, and replace the wrapper by the tool that the upstream lists now.

        Returns:
            A result if the call cannot be sent, or None.

        Raises:
            UpstreamUnavailable: The upstream was not connected in time.
        """
        wrapper = call.wrapper
        try:
            await link.wait_ready(link.patience_s)
        except SignInRequired as error:
            sign_in = call.parts.forwarder.sign_in
            sign_in_result = await sign_in(error, link, "tools/call", call.caller, original_params=call.params)
            if sign_in_result is not None:
                return sign_in_result
        # From here on the call uses the current catalog, because the view's definition is from an earlier connection.
        current = call.current(wrapper.server, wrapper.tool)
        if current is None:
            listing = call.caller.view.catalog.servers.get(wrapper.server)
            if link.owner and (listing is None or not listing.epoch):
                return self._unknown_tool.signed_in(call.caller.view, wrapper.server, link.owner)
            call.outcome = call.outcome.unsent("tool_gone")
            return self._unknown_tool.removed_tool_result(call.caller.view, wrapper)
        if (denial := call.not_permitted(current)) is not None:
            call.outcome = call.outcome.unsent("held" if current.held is not None else None)
            return error_result(denial)
        if current.digest != wrapper.digest:
            refusal = await self._prepare(call, current)
            if refusal is not None:
                return refusal
        call.wrapper = current
        return None

    def _refuse_arguments(self, call: ToolCall) -> dict[str, Any]:
        call.outcome = call.outcome.unsent("arguments")
        view, wrapper, prepared = call.caller.view, call.wrapper, call.prepared
        lowered, entry = view.lowered(wrapper), view.entry(wrapper.name)
        names = {**(entry.lowered.shown_names if entry is not None else {}), **lowered.shown_names}
        current_problems = suggest_current_names(
            prepared.problems, self._unknown_tool.drift.changes(wrapper.name), names
        )
        text = problems.explain(
            wrapper,
            current_problems,
            call.arguments,
            via=call.via,
            checked=prepared.checked,
            filled=prepared.filled,
            lowered=lowered,
        )
        for problem in prepared.problems:
            self._stats.record_failure(wrapper, Failure.from_problem(problem), call.caller)
        self._stats.mistakes.record_problems(wrapper, current_problems, call.arguments, call.caller.principal.name)
        return error_result(text + self._unknown_tool.changed_parameters(wrapper, prepared, names))

    def _list_again(self, server: str) -> None:
        """Request the tool list of a server again, because an error of the server mentions an undeclared parameter.

        This is done at most once per `_LIST_AGAIN_S` for each server.
        """
        now_s, link = time.monotonic(), self._links.get(server)
        if link is None or link.per_user:
            return
        if now_s - self._listed_again_s.get(server, -math.inf) >= _LIST_AGAIN_S:
            self._listed_again_s[server] = now_s
            link.list_again()

    def _with_hint(self, result: dict[str, Any], call: ToolCall, invocation: Invocation) -> dict[str, Any]:
        """Add a hint to a result that reports invalid arguments."""
        if invocation.changed_by:
            # The error is about the changed arguments, so advice about the caller's own arguments would not help.
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
        """Add the repairs of the call to a result."""
        repairs, lowered = (*call.repairs, *call.prepared.repairs), call.caller.view.lowered(call.wrapper)
        self._stats.record_repairs(call.wrapper, repairs)
        self._stats.mistakes.record_repairs(call.wrapper, repairs, call.arguments, call.caller.principal.name)
        return with_meta(result, REPAIRS_KEY, report_repairs(repairs, lowered.shown_names))
