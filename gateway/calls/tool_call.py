"""One tool call: its arguments as sent, as validated, and as forwarded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import Struct

from gateway.audit.audit_entries import UNREACHED, Outcome
from gateway.audit.recording import Audit
from gateway.calls.advice.unknown_tool import UnknownToolErrors
from gateway.calls.approval_requests import Verdict, arguments_digest
from gateway.calls.call_targets import Permission
from gateway.calls.caller import Caller
from gateway.calls.check_process import CheckJob
from gateway.calls.forwarding import Forwarder
from gateway.calls.result_parts import ResultParts, take_selection
from gateway.calls.selection import Selection
from gateway.calls.thorough_checks import ThoroughChecks
from gateway.hooks.hook import CallRoute
from gateway.hooks.invocation import PASS_THROUGH, Invocation, Rejection
from gateway.protocol.gateway_errors import CallRefused, UpstreamUnavailable
from gateway.upstream.session import NO_HEADER_MAP
from registry.arguments import problems
from registry.arguments.coercion import WRAPPER_SPELLINGS, Repair
from registry.arguments.diagnosis import ArgumentProblem
from registry.arguments.prepare import Prepared, apply_current_names, prepare, refuse_unchecked
from registry.catalog.catalog import ToolWrapper
from registry.catalog.drift import Drift
from registry.catalog.registry import Registry
from registry.catalog.shape import RepairLevel
from registry.dialects.definitions import map_arguments
from registry.errors import NotChecked, SchemaRejected
from registry.policy.policy import ALLOWED, Decision
from registry.schema import schemas
from registry.schema.validators import Validator
from registry.views.view import View

UNRECORDED: Final = (
    "Not called: the audit log cannot be written at present, and this gateway does not make calls without it. "
    "Its operator has to free disk space, or change gateway.audit."
)
"""The answer to every call if the audit log is required but cannot be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallParts:
    """The services that every call needs."""

    registry: Registry
    forwarder: Forwarder
    thorough_checks: ThoroughChecks
    unknown_tool: UnknownToolErrors
    permission: Permission
    audit: Audit
    result_parts: ResultParts

    @property
    def drift(self) -> Drift:
        """Return the record of tools and parameters that servers have changed while the gateway was running."""
        return self.unknown_tool.drift


# The outcome for arguments that need no repair. Most calls share this object, because creating one for each call would
# cost more than the check.
_AS_SENT: Final = Prepared(None)


class ToolCall(Struct, kw_only=True, eq=False):
    """One tool call, which an `Invocation` sends through the hooks (implements `HookedRequest`).

    The wrapper and the checked arguments are replaced if the tool has changed after a reconnect, or if a hook changes
    the arguments.

    Attributes:
        wrapper: The tool to call, whose schema the arguments must match.
        arguments: The arguments as sent by the caller, without `_select` and with stored values instead of handles.
        params: The params of the request, without the host's answer to a request for approval.
        via: How the tool was called: by its wrapper name or through `invoke_tool`.
        repairs: Repairs of the tool's name, or of the server and tool in a call of `invoke_tool`.
        checked: The arguments to forward, after repair and checks.
        prepared: The repairs and problems of the arguments.
        outcome: The outcome so far, for the audit log.
        invocation: Runs the hooks of the call.
        allowed: The approvals of the call.
        ask: Requests approval for the call in its current state; None if no rule has required an approval so far.
        selection: The part of the result that the caller needs; None for the whole result.
    """

    parts: CallParts
    wrapper: ToolWrapper
    arguments: Any
    params: dict[str, Any]
    caller: Caller
    via: CallRoute
    repairs: tuple[Repair, ...]
    checked: Any = None
    prepared: Prepared = _AS_SENT
    outcome: Outcome = UNREACHED
    invocation: Invocation = PASS_THROUGH
    allowed: tuple[Verdict, ...] = ()
    ask: Callable[[ToolCall, Decision], Awaitable[Verdict]] | None = None
    selection: Selection | None = None
    _decided: tuple[Any, ToolWrapper, Decision] | None = None

    def prepare(self, wrapper: ToolWrapper) -> tuple[ArgumentProblem, ...]:
        """Repair and check the arguments for a wrapper, and return the problems.

        Raises:
            NotChecked: The check could block the event loop for too long; use `prepare_thoroughly`.
        """
        registry, view, arguments = self.parts.registry, self.caller.view, self.arguments
        plain = view.plain_wrappers(wrapper, registry.shape)
        if plain is not None and not self.parts.drift.knows_parameters and passes(wrapper, arguments, plain):
            self.wrapper, self.prepared, self.checked = wrapper, _AS_SENT, arguments
            return ()
        self.wrapper = wrapper
        self._set_prepared(prepare_shown(registry, view, wrapper, arguments))
        if self.parts.drift.knows_parameters and not self.prepared.problems:
            self._apply_current_names()
        return self.prepared.problems

    def _apply_current_names(self) -> None:
        changes = self.parts.drift.changes(self.wrapper.name)
        if changes:
            view, registry, wrapper = self.caller.view, self.parts.registry, self.wrapper
            level = view.profile.repair or registry.shape.for_server(wrapper.server).repair_level(wrapper.tool)
            names = view.lowered(wrapper).shown_names
            self._set_prepared(apply_current_names(wrapper, self.prepared, changes, level=level, names=names))

    def _set_prepared(self, prepared: Prepared) -> None:
        self.prepared, self.checked, self._decided = prepared, prepared.arguments, None

    def drop_selection(self) -> None:
        """Remove `_select` from the arguments if a repair, such as unwrapping, has made it an argument."""
        rules = self.caller.view.result_rules.get(self.wrapper.name)
        arguments, raw_selection = take_selection(self.checked) if rules is not None and rules.select else (None, None)
        if raw_selection is not None:
            self._set_prepared(replace(self.prepared, arguments=arguments))

    async def prepare_thoroughly(self, wrapper: ToolWrapper, doubt: NotChecked) -> tuple[ArgumentProblem, ...]:
        """Repair and check the arguments as `prepare` does, but in a separate process with a deadline."""
        shape = self.parts.registry.shape.for_server(wrapper.server)
        view, arguments = self.caller.view, self.arguments
        lowered, entry = view.lowered(wrapper), view.entry(wrapper.name)
        self.wrapper = wrapper
        if entry is not None and entry.lowered is not lowered:
            try:
                arguments = map_arguments(arguments, entry.lowered)
            except NotChecked:
                self._set_prepared(refuse_unchecked(arguments, doubt))
                return self.prepared.problems
        level = view.profile.repair or shape.repair_level(wrapper.tool)
        job = CheckJob.for_call(
            wrapper, arguments, level=level, defaults=shape.defaults, lowered=lowered, validation=shape.validation
        )
        self._set_prepared(await self.parts.thorough_checks.prepare(job, self.caller.who, doubt))
        if self.parts.drift.knows_parameters and not self.prepared.problems:
            # The arguments are valid even if this step does not end in time, but they may then contain former names.
            with suppress(NotChecked):
                self._apply_current_names()
        return self.prepared.problems

    async def revise(self, arguments: dict[str, Any], changed_by: tuple[str, ...]) -> Rejection | None:
        """Check the arguments again if hooks have changed them or the tool has changed since the first check.

        Args:
            arguments: The arguments after the hooks.
            changed_by: The hooks that changed the arguments.

        Returns:
            The reason why the call cannot be sent; None if it can be sent.
        """
        current = self.current(self.wrapper.server, self.wrapper.tool) or self.wrapper
        if (denial := self.not_permitted(current)) is not None:
            return Rejection(text=denial, by_hooks=False)
        is_same = current.digest == self.wrapper.digest
        if not changed_by and is_same:
            return None
        self.wrapper = current
        self._set_prepared(replace(self.prepared, arguments=arguments))
        validation = self.parts.registry.shape.for_server(current.server).validation
        try:
            checked = prepare(current, arguments, level="off", validation=validation)
        except NotChecked as doubt:
            job = CheckJob.for_call(current, arguments, level="off", defaults={}, lowered=None, validation=validation)
            checked = await self.parts.thorough_checks.prepare(job, self.caller.who, doubt)
        if not checked.problems:
            self._set_prepared(replace(self.prepared, unchecked=checked.unchecked))
            return None
        if is_same:
            return Rejection(text=problems.summarize_problems(checked.problems), by_hooks=True)
        lowered = self.caller.view.lowered(current)
        text = problems.explain(current, checked.problems, arguments, via=self.via, checked=arguments, lowered=lowered)
        return Rejection(text=text, by_hooks=False)

    def current(self, server: str, tool: str) -> ToolWrapper | None:
        """Return the tool from the server's latest tool list, which some servers provide for each caller separately."""
        return self.parts.registry.catalog_of(self.caller.principal.name).by_tool.get((server, tool))

    def not_permitted(self, current: ToolWrapper) -> str | None:
        """Return the reason why the caller may not call the current version of the tool; None if the caller may.

        Since the caller's view was built, the tool may have changed, or may wait for approval.
        """
        view = self.caller.view
        if current.held is not None:
            return held_text(current)
        if current is self.wrapper or view.grant.is_open:
            return None
        if view.permits(current, self.parts.registry.shape.for_server(current.server)):
            return None
        return f"Not called: server '{current.server}' no longer has the tool '{current.tool}'."

    def decide(self) -> Decision:
        """Return the rules' decision about the current arguments."""
        # Called before and after the hooks. The decision remains valid while the arguments are the same object, because
        # arguments are never modified in place.
        decided = self._decided
        if decided is not None and decided[0] is self.checked and decided[1] is self.wrapper:
            return decided[2]
        rules = self.caller.view.call_rules.get(self.wrapper.name)
        decision = ALLOWED if rules is None else rules.decide(self.checked)
        self._decided = self.checked, self.wrapper, decision
        return decision

    def send(self) -> Awaitable[Any]:
        """Send the call to its upstream, and return the raw result.

        Raises:
            CallRefused: A rule does not allow the call with the arguments that the hooks have returned.
        """
        if self.caller.view.call_rules:
            # Apply the rules to the arguments to be sent, which hooks may have changed.
            decision = self.decide()
            asks = decision.effect == "ask" and not self._is_allowed(decision)
            if (
                asks
                and self.ask is not None
                and any(approval.question.rule == decision.rule for approval in self.allowed)
            ):
                return self._send_if_allowed(decision)
            if asks or decision.effect == "deny":
                self.outcome = self.outcome.refused(decision.rule)
                raise CallRefused(self.parts.permission.refusal(self.caller, self.wrapper, decision))
        wrapper, params, caller = self.wrapper, self.params, self.caller
        hints = wrapper.shared_hints if wrapper.shared_hints is not None else wrapper.hints
        sent = {**params, "name": wrapper.tool, "arguments": self.checked}
        # The `task` member of earlier versions is not offered to hosts. If the server requires a task, the upstream
        # session runs the task and returns its result.
        sent.pop("task", None)
        if wrapper.needs_task:
            sent["task"] = {}
        # This method is not a coroutine function, to avoid an additional coroutine for every call.
        return self.parts.forwarder.send(
            wrapper.server,
            "tools/call",
            sent,
            caller,
            original_params=params,
            repeatable=hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True,
            header_map={path: header for header, path in wrapper.headers.items()} if wrapper.headers else NO_HEADER_MAP,
            confirm=self.confirm,
        )

    def _is_allowed(self, decision: Decision) -> bool:
        """Return whether a person has approved the call with exactly its current arguments and definition."""
        digest = arguments_digest(self.checked)
        return any(
            (approval.question.rule, approval.question.call, approval.question.definition)
            == (decision.rule, digest, self.wrapper.digest)
            for approval in self.allowed
        )

    async def _send_if_allowed(self, decision: Decision) -> Any:
        """Request approval again for a call that hooks have changed since its approval, then send it."""
        assert self.ask is not None
        verdict = await self.ask(self, decision)
        return await self.send() if verdict.answer is None else verdict.answer

    async def confirm(self) -> None:
        """Check that the call is still valid. The tool may have changed while the call waited for a connection.

        Raises:
            UpstreamUnavailable: The call is no longer valid.
        """
        server, tool, before = self.wrapper.server, self.wrapper.tool, self.wrapper
        current = self.current(server, tool)
        if current is None:
            raise UpstreamUnavailable(server, f"Not called: server '{server}' no longer has the tool '{tool}'.")
        rejection = await self.revise(self.checked, ())
        problem = rejection.text if rejection is not None else None
        if problem is None and current.headers != before.headers:
            problem = f"Not called: the tool '{tool}' has changed. Nothing was sent; call it again."
        if problem is not None:
            raise UpstreamUnavailable(server, problem)


def held_text(wrapper: ToolWrapper) -> str:
    """Return the answer to a call of a held tool, which waits for an administrator's approval."""
    return f"Not called: the tool '{wrapper.tool}' of server '{wrapper.server}' is {wrapper.held}."


def prepare_shown(registry: Registry, view: View, wrapper: ToolWrapper, arguments: Any) -> Prepared:
    """Repair and check arguments for a tool in a view.

    Args:
        view: The view that shows the tool to the caller.
        wrapper: The current version of the tool.
        arguments: The arguments as sent by the caller.

    Raises:
        NotChecked: The check could block the event loop for too long.
    """
    shape = registry.shape.for_server(wrapper.server)
    lowered, entry = view.lowered(wrapper), view.entry(wrapper.name)
    if entry is not None and entry.lowered is not lowered:
        # The tool has changed since this view was built, and the arguments use the names that were shown then.
        arguments = map_arguments(arguments, entry.lowered)
    level = view.profile.repair or shape.repair_level(wrapper.tool)
    return prepare(
        wrapper, arguments, level=level, defaults=shape.defaults, lowered=lowered, validation=shape.validation
    )


def passes(wrapper: ToolWrapper, arguments: Any, level: RepairLevel) -> bool:
    """Return whether arguments can be sent unchanged, provided that there are no defaults and no names to map back.

    Also return false if this quick check cannot decide. If the result is false, call `prepare`.

    Raises:
        NotChecked: The arguments have too many values; see `prepare`.
    """
    # The second condition is `may_be_wrapped`, without the call, because it runs for every tool call.
    if type(arguments) is not dict or (level != "off" and not WRAPPER_SPELLINGS.isdisjoint(arguments)):
        return False
    cached = schemas.VALIDATORS.get(wrapper.schema_digest)
    if type(cached) is Validator:
        return cached.passes(arguments)
    try:
        return schemas.validator(wrapper.checked_schema, wrapper.schema_digest).passes(arguments)
    except SchemaRejected:
        return False
