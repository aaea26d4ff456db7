"""One tool call on its way: its arguments as they were sent, as they are checked, and as they leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import Struct

from gateway.audit.call import UNREACHED, Outcome
from gateway.audit.record import Audit
from gateway.calls.approvals import Verdict, arguments_digest
from gateway.calls.check_process import CheckJob
from gateway.calls.context import Caller
from gateway.calls.forwarding import Forwarder
from gateway.calls.permission import Permission
from gateway.calls.results import passes_unread
from gateway.calls.thorough_checks import ThoroughChecks
from gateway.errors import CallRefused, UpstreamUnavailable
from gateway.hooks.hook import CallRoute
from gateway.hooks.hooked_request import PASS_THROUGH, Invocation, Rejection
from gateway.upstream.session import NO_HEADER_MAP
from registry.arguments import problems
from registry.arguments.diagnosis import ArgumentProblem
from registry.arguments.former_names import with_current_names
from registry.arguments.prepare import Prepared, passes, prepare, refused
from registry.arguments.repair_report import Repair
from registry.catalog.catalog import ToolWrapper
from registry.catalog.drift import Drift
from registry.catalog.store import Registry
from registry.dialects.definitions import map_arguments
from registry.errors import NotChecked
from registry.policy.grant import ALLOWED, Decision
from registry.views.view import View

UNRECORDED: Final = (
    "Not called: the record of calls cannot be written at present, and this gateway makes no call without it. "
    "Its operator has to make room, or to set gateway.audit otherwise."
)
"""What every call is told where the record has to be written and cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallParts:
    """What every call needs on its way."""

    registry: Registry
    forwarder: Forwarder
    thorough_checks: ThoroughChecks
    drift: Drift
    permission: Permission
    audit: Audit


# Nothing is to be said of the arguments of most calls: one object of their own for each would cost more than the check.
_AS_SENT: Final = Prepared(None)


class ToolCall(Struct, kw_only=True, eq=False):
    """One call on its way; to its invocation it is the request to send.

    Wrapper and checked arguments are replaced where the upstream has reconnected or a hook has rewritten them.

    Attributes:
        parts: What it needs on its way.
        wrapper: The tool as it is checked against and called.
        arguments: As the caller sent them.
        params: The request's params, as they came.
        via: The route by which the call came.
        repairs: Of the address, for `invoke_tool`.
        checked: The arguments as they leave, after repair and checks.
        prepared: What was repaired in them, and what is wrong with them.
        outcome: How it goes, for the record.
        invocation: Its way through the hooks.
        allowed: What persons have allowed of it.
        ask: Has a person allow it as it is now; None where nobody can be asked.
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
    _decided: tuple[Any, ToolWrapper, Decision] | None = None

    def prepare(self, wrapper: ToolWrapper) -> tuple[ArgumentProblem, ...]:
        """Repair and check the arguments for a wrapper; returns what is wrong with them.

        Raises:
            NotChecked: That could take longer than the loop can wait; see `prepare_thoroughly`.
        """
        registry, view, arguments = self.parts.registry, self.caller.view, self.arguments
        plain = view.plain_level(wrapper, registry.shape)
        if plain is not None and not self.parts.drift.knows_parameters and passes(wrapper, arguments, plain):
            self.wrapper, self.prepared, self.checked = wrapper, _AS_SENT, arguments
            return ()
        self.wrapper = wrapper
        self._take(prepare_shown(registry, view, wrapper, arguments))
        if self.parts.drift.knows_parameters and not self.prepared.problems:
            self._take_current_names()
        return self.prepared.problems

    def _take_current_names(self) -> None:
        changes = self.parts.drift.changes(self.wrapper.name)
        if changes:
            view, registry, wrapper = self.caller.view, self.parts.registry, self.wrapper
            level = view.profile.repair or registry.shape.of(wrapper.server).repair_level(wrapper.tool)
            names = view.lowered(wrapper).shown_names
            self._take(with_current_names(wrapper, self.prepared, changes, level=level, names=names))

    def _take(self, prepared: Prepared) -> None:
        self.prepared, self.checked, self._decided = prepared, prepared.arguments, None

    async def prepare_thoroughly(self, wrapper: ToolWrapper, doubt: NotChecked) -> tuple[ArgumentProblem, ...]:
        """Do the same where it may take long, with a deadline."""
        shape = self.parts.registry.shape.of(wrapper.server)
        view, arguments = self.caller.view, self.arguments
        lowered, entry = view.lowered(wrapper), view.entry(wrapper.name)
        self.wrapper = wrapper
        if entry is not None and entry.lowered is not lowered:
            try:
                arguments = map_arguments(arguments, entry.lowered)
            except NotChecked:
                self._take(refused(arguments, doubt))
                return self.prepared.problems
        level = view.profile.repair or shape.repair_level(wrapper.tool)
        job = CheckJob.of(
            wrapper, arguments, level=level, defaults=shape.defaults, lowered=lowered, validation=shape.validation
        )
        self._take(await self.parts.thorough_checks.prepare(job, self.caller.who, doubt))
        if self.parts.drift.knows_parameters and not self.prepared.problems:
            # Otherwise the arguments are right as they are; whether former names are among them is not known.
            with suppress(NotChecked):
                self._take_current_names()
        return self.prepared.problems

    async def revise(self, arguments: dict[str, Any], changed_by: tuple[str, ...]) -> Rejection | None:
        """Check again what hooks have rewritten, and whatever waited for them while the tool changed."""
        current = self.current(self.wrapper.server, self.wrapper.tool) or self.wrapper
        if (gone := self.not_permitted(current)) is not None:
            return Rejection(text=gone, by_hooks=False)
        is_same = current.digest == self.wrapper.digest
        if not changed_by and is_same:
            return None
        self.wrapper = current
        self._take(replace(self.prepared, arguments=arguments))
        validation = self.parts.registry.shape.of(current.server).validation
        try:
            checked = prepare(current, arguments, level="off", validation=validation)
        except NotChecked as doubt:
            job = CheckJob.of(current, arguments, level="off", defaults={}, lowered=None, validation=validation)
            checked = await self.parts.thorough_checks.prepare(job, self.caller.who, doubt)
        if not checked.problems:
            self._take(replace(self.prepared, unchecked=checked.unchecked))
            return None
        if is_same:
            return Rejection(text=problems.in_short(checked.problems), by_hooks=True)
        lowered = self.caller.view.lowered(current)
        text = problems.explain(
            current, checked.problems, arguments, via=self.via, understood=arguments, lowered=lowered
        )
        return Rejection(text=text, by_hooks=False)

    def current(self, server: str, tool: str) -> ToolWrapper | None:
        """Return the tool as the latest listing has it, which may be the caller's own."""
        return self.parts.registry.catalog_of(self.caller.principal.name).get_by_tool(server, tool)

    def not_permitted(self, current: ToolWrapper) -> str | None:
        """Return why the caller may not call a tool that has changed or is held since its view was built, or None."""
        view = self.caller.view
        if current.held is not None:
            return held_text(current)
        if current is self.wrapper or view.grant.is_open:
            return None
        if view.permits(current, self.parts.registry.shape.of(current.server)):
            return None
        return f"Not called: server '{current.server}' no longer has the tool '{current.tool}'."

    def decide(self) -> Decision:
        """Return what rules say of the arguments as they are now."""
        # Asked before hooks and after them: nothing changes arguments in place.
        decided = self._decided
        if decided is not None and decided[0] is self.checked and decided[1] is self.wrapper:
            return decided[2]
        rules = self.caller.view.call_rules.get(self.wrapper.name)
        decision = ALLOWED if rules is None else rules.decide(self.checked)
        self._decided = self.checked, self.wrapper, decision
        return decision

    def send(self) -> Awaitable[Any]:
        """Send the call to its upstream; returns the raw result.

        Raises:
            CallRefused: A rule does not allow it as hooks have left it.
        """
        if self.caller.view.call_rules:
            # Of the arguments that are sent, whatever hooks have made of them.
            decision = self.decide()
            asks = decision.effect == "ask" and not self._is_allowed(decision)
            if asks and self.ask is not None and any(one.question.rule == decision.rule for one in self.allowed):
                return self._send_if_allowed(decision)
            if asks or decision.effect == "deny":
                self.outcome = self.outcome.refused(decision.rule)
                raise CallRefused(self.parts.permission.refusal(self.caller, self.wrapper, decision))
        wrapper, params, caller = self.wrapper, self.params, self.caller
        hints = wrapper.shared_hints if wrapper.shared_hints is not None else wrapper.hints
        sent = {**params, "name": wrapper.tool, "arguments": self.checked}
        # Hosts are offered no tasks; the session runs one where the server wants it.
        sent.pop("task", None)
        if wrapper.needs_task:
            sent["task"] = {}
        # Not a coroutine: it would be one more on the path of every call.
        return self.parts.forwarder.send(
            wrapper.server,
            "tools/call",
            sent,
            caller,
            original_params=params,
            repeatable=hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True,
            header_map={path: header for header, path in wrapper.headers.items()} if wrapper.headers else NO_HEADER_MAP,
            confirm=self.confirm,
            results=None if caller.results is None else self,
        )

    def _is_allowed(self, decision: Decision) -> bool:
        """Whether a person has allowed this very call; hooks may have made another one of it since."""
        digest = arguments_digest(self.checked)
        return any(
            (one.question.rule, one.question.call, one.question.definition)
            == (decision.rule, digest, self.wrapper.digest)
            for one in self.allowed
        )

    async def _send_if_allowed(self, decision: Decision) -> Any:
        """Ask again about a call that hooks have changed since it was allowed, then send it."""
        assert self.ask is not None
        verdict = await self.ask(self, decision)
        return await self.send() if verdict.answer is None else verdict.answer

    # a large result, as a `ResultStream`

    def begin(self, close: Callable[[], bytes]) -> bool:
        """Begin a result in pieces, where nobody has to look at it as a whole."""
        caller, results = self.caller, self.caller.results
        return (
            results is not None
            and self.invocation is PASS_THROUGH
            and passes_unread(caller.version)
            and not caller.view.checks_results
            and not self.parts.audit.keeps_results
            # What has left cannot be renamed.
            and self.wrapper.server not in caller.view.catalog.prompts_and_resources.keys_of
            and results.begin(close)
        )

    def pass_on(self, items: bytes) -> Awaitable[None] | None:
        """Send a part of the list of its items."""
        assert self.caller.results is not None
        return self.caller.results.pass_on(items)

    async def confirm(self) -> None:
        """Check that the call still fits its tool, which may have changed with the connection.

        Raises:
            UpstreamUnavailable: It does not.
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
    """What a call of a tool that is held is told."""
    return f"Not called: the tool '{wrapper.tool}' of server '{wrapper.server}' is {wrapper.held}."


def prepare_shown(registry: Registry, view: View, wrapper: ToolWrapper, arguments: Any) -> Prepared:
    """Repair and check arguments for a tool as a view shows it; rules look at what is made of them.

    Args:
        registry: What there is.
        view: How the caller sees the tool.
        wrapper: The tool as it is today.
        arguments: As the caller sent them.

    Raises:
        NotChecked: That could take longer than the loop can wait.
    """
    shape = registry.shape.of(wrapper.server)
    lowered, entry = view.lowered(wrapper), view.entry(wrapper.name)
    if entry is not None and entry.lowered is not lowered:
        # The tool has changed since this view was built: the arguments have the names that were shown then.
        arguments = map_arguments(arguments, entry.lowered)
    level = view.profile.repair or shape.repair_level(wrapper.tool)
    return prepare(
        wrapper, arguments, level=level, defaults=shape.defaults, lowered=lowered, validation=shape.validation
    )
