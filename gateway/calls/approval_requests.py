"""Ask a person to approve a call: the user, through the caller's host, or an administrator."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import anyio

from gateway.access.principal import LOCAL, Principal
from gateway.access.signing import BadSignature, Signer
from gateway.calls.approval_store import LASTS, ApprovalBackend, Decision, Lasts, Question, TooManyWaiting
from gateway.calls.call_stats import client_key
from gateway.calls.caller import Caller
from gateway.config.operation_config import Approver
from gateway.process.secrets import SECRETS
from gateway.process.tasks import OwnedTasks
from gateway.protocol.gateway_errors import RpcError, error_result
from gateway.protocol.versions import can_be_asked
from registry.catalog.catalog import ToolWrapper
from registry.policy.policy import Decision as PolicyDecision
from registry.schema.display_text import clean, clean_json, excerpt
from registry.schema.schemas import canonical_json

log = logging.getLogger(__name__)

T = TypeVar("T")

# Maximum length of the arguments shown to a person: one screen. If arguments were cut, a note tells the person that
# some of the arguments are not shown.
_SHOWN_CHARS: Final = 4_000
_RULE_CHARS: Final = 100
# Seconds between progress notifications. Some hosts abandon a call after half a minute without progress.
_PROGRESS_S: Final = 10.0
# Time limit for reporting a caller's disconnection to the process that has the approval store.
_WITHDRAW_S: Final = 2.0
# Progress values must increase. The step is small, because the upstream's progress follows and starts at about one.
_PROGRESS_STEP: Final = 0.0001
_KEY: Final = "approval"
_ELICITATION: Final = "elicitation/create"
_ANSWERS: Final = frozenset({"inputResponses", "requestState"})
# The choices offered to a host. Earlier versions of the gateway offered further choices, which now count as `once`.
_CHOICES: Final = {"once": "this call only"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision about how to continue with a call.

    Attributes:
        answer: The result to return instead of making the call; None if the call may be made.
        params: The request's params without the host's answer to the gateway's question.
        question: The question that was asked.
        decision: The decision. None if the call was approved earlier, if too many calls wait for approval, or if the
            host has to repeat the request with the user's answer.
    """

    answer: dict[str, Any] | None
    params: dict[str, Any]
    question: Question
    decision: Decision | None = None


def arguments_digest(arguments: object) -> str:
    """Return a digest that identifies the approved arguments."""
    return hashlib.sha256(canonical_json(arguments)).hexdigest()


class Approvals:
    """Asks persons to approve calls.

    Args:
        backend: The approval store, possibly in another process.
        signer: Signs the request state that a caller without a session returns with the user's answer.
        tasks: Runs each wait in a task of its own, so that the question can be withdrawn after the caller disconnects.
        asked_by_default: Returns the approver for rules that do not name an approver, or None to choose by the caller.
    """

    def __init__(
        self,
        backend: ApprovalBackend,
        signer: Signer,
        tasks: OwnedTasks,
        *,
        asked_by_default: Callable[[], Approver | None],
    ) -> None:
        self._backend = backend
        self._signer = signer
        self._tasks = tasks
        self._asked_by_default = asked_by_default

    async def request_approval(
        self,
        caller: Caller,
        wrapper: ToolWrapper,
        arguments: object,
        *,
        decision: PolicyDecision,
        params: dict[str, Any],
    ) -> Verdict:
        """Wait until the call is approved, denied or expired.

        If the caller's host has to ask its user and repeat the request, return the input request without waiting.

        Args:
            decision: The policy decision, with the rule that requires approval and who decides.
            params: The unmodified params of the request.
        """
        by = decision.by or self._asked_by_default() or _approver_of(caller.principal)
        question = _question(caller, wrapper, arguments, decision.rule or "", by)
        return await self._tasks.run(partial(self._ask, caller, wrapper, question, params))

    async def _ask(self, caller: Caller, wrapper: ToolWrapper, question: Question, params: dict[str, Any]) -> Verdict:
        if caller.modern and isinstance(state := params.get("requestState"), str):
            answered = await self._apply_answer(question, state, params)
            if answered is not None:
                return answered
        try:
            if await self._withdrawn_if_cancelled(question, self._backend.register(question)):
                return Verdict(answer=None, params=params, question=question)
        except TooManyWaiting as error:
            return Verdict(
                answer=error_result(f"Not called: {error}. Wait for an answer."), params=params, question=question
            )
        elicitation = _elicitation_params(question, wrapper)
        if question.by == "host" and caller.modern and can_be_asked(caller.capabilities, _ELICITATION, elicitation):
            # The host asks its user and repeats the request with the answer. An administrator may decide meanwhile.
            state = self._signer.sign(question.id, *_binding(question))
            return Verdict(answer=_input_required(elicitation, state), params=params, question=question)
        decision = await self._await_decision(question, caller, elicitation)
        return _verdict(question, decision, params)

    async def allow_continuation(self, verdict: Verdict) -> None:
        """Allow the caller to repeat an approved call once, with the answer to an upstream's input request."""
        await self._tasks.run(partial(self._backend.allow_again, verdict.question), shield=True)

    async def _apply_answer(self, question: Question, state: str, params: dict[str, Any]) -> Verdict | None:
        """Apply the answer that the caller's host returned, and return the verdict.

        Returns:
            None if the request state is not from a question about this call, or the question no longer exists.
        """
        try:
            question = replace(question, id=self._signer.verify(state, *_binding(question)))
        except BadSignature:
            return None
        responses = params.get("inputResponses")
        response = responses.get(_KEY) if isinstance(responses, dict) else None
        if isinstance(response, dict) and question.by == "host":
            allow, lasts = _host_decision(response)
            await self._backend.decide(question.id, allow=allow, lasts=lasts, by="host")
        remaining_params = {name: value for name, value in params.items() if name not in _ANSWERS}
        decision = await self._wait(question)
        # `unknown`: the question was already answered, or its wait has ended. Ask the person again.
        return None if decision.kind == "unknown" else _verdict(question, decision, remaining_params)

    async def _await_decision(self, question: Question, caller: Caller, elicitation: dict[str, Any]) -> Decision:
        decision = Decision(kind="expired")
        asks_host = question.by == "host" and can_be_asked(caller.capabilities, _ELICITATION, elicitation)
        async with anyio.create_task_group() as group:
            if caller.on_progress is not None:
                group.start_soon(_report_progress, caller, question)
            if asks_host and caller.ask is not None:
                group.start_soon(self._ask_host, caller, question, elicitation)
            decision = await self._wait(question)
            group.cancel_scope.cancel()
        return decision

    async def _wait(self, question: Question) -> Decision:
        return await self._withdrawn_if_cancelled(question, self._backend.wait(question))

    async def _withdrawn_if_cancelled(self, question: Question, answer: Awaitable[T]) -> T:
        """Await an answer of the approval store, and withdraw the question if the caller disconnects."""
        try:
            return await answer
        except TooManyWaiting:
            raise  # there is nothing to withdraw, because the store did not accept the question
        except BaseException:
            with anyio.move_on_after(_WITHDRAW_S, shield=True):
                await self._backend.withdraw(question)
            raise

    async def _ask_host(self, caller: Caller, question: Question, elicitation: dict[str, Any]) -> None:
        assert caller.ask is not None
        try:
            response = await caller.ask(_ELICITATION, elicitation)
        except RpcError as error:
            # An administrator may still decide.
            log.info("approval request to host failed: %s", error.message)
            return
        allow, lasts = _host_decision(response if isinstance(response, dict) else {})
        await self._backend.decide(question.id, allow=allow, lasts=lasts, by="host")


def _approver_of(principal: Principal) -> Approver:
    """Return the approver of a caller's calls if the configuration does not name an approver.

    A caller with an API key is a program without a user, and would approve its own calls, so an administrator decides.
    The same applies to a token whose subject is its client (RFC 9068, section 2.2). Other callers are hosts with a
    user, who decides.
    """
    if not principal.issuer:
        return "host" if principal.name == LOCAL.name else "administrator"
    return "administrator" if principal.name.startswith(f"{principal.client}@") else "host"


def _question(caller: Caller, wrapper: ToolWrapper, arguments: object, rule: str, by: Approver) -> Question:
    return Question(
        principal=caller.principal.name,
        session=caller.session_id or client_key(caller),
        wrapper=wrapper.name,
        server=wrapper.server,
        definition=wrapper.digest,
        call=arguments_digest(arguments),
        rule=rule,
        arguments=_format_arguments(arguments),
        by=by,
    )


def _format_arguments(arguments: object) -> str:
    """Format the arguments for a person, without known secrets and hidden characters, and say if they were cut."""
    value = clean_json(SECRETS.scrub_value(arguments))
    # Use only ASCII, so that no character can be mistaken for another.
    text = clean(json.dumps(value, indent=1, default=str))
    if len(text) <= _SHOWN_CHARS:
        return text
    return f"{text[:_SHOWN_CHARS]}\n… and {len(text) - _SHOWN_CHARS:,} more characters, not shown"


def _elicitation_params(question: Question, wrapper: ToolWrapper) -> dict[str, Any]:
    """Return the params of the elicitation that a host shows.

    Source: MCP 2025-11-25 and 2026-07-28, "Elicitation", "Form mode".
    """
    choice = {
        "type": "string",
        "title": "Allow",
        "description": "What to allow.",
        "enum": [*_CHOICES],
        "enumNames": [*_CHOICES.values()],
        "default": "once",
    }
    message = (
        f"Allow a call of {wrapper.name} (server {wrapper.server})? The rule "
        f"“{excerpt(question.rule, _RULE_CHARS)}” of the gateway requires this.\n\nArguments:\n{question.arguments}"
    )
    return {"mode": "form", "message": message, "requestedSchema": {"type": "object", "properties": {"allow": choice}}}


def _input_required(elicitation: dict[str, Any], state: str) -> dict[str, Any]:
    """Return a result that asks for input. Source: MCP 2026-07-28, "Patterns", "Multi Round-Trip Requests"."""
    return {
        "resultType": "input_required",
        "inputRequests": {_KEY: {"method": _ELICITATION, "params": elicitation}},
        "requestState": state,
    }


def _host_decision(response: dict[str, Any]) -> tuple[bool, Lasts]:
    """Return whether the answer of a host approves the call, and how far the approval extends.

    Everything except a clear approval is a refusal.
    """
    if response.get("action") != "accept":
        return False, "once"
    content = response.get("content")
    chosen = content.get("allow", "once") if isinstance(content, dict) else "once"
    lasts = next((choice for choice in LASTS if choice == chosen), None)
    return lasts is not None, lasts or "once"


def _binding(question: Question) -> tuple[str, ...]:
    return (
        _KEY,
        question.principal,
        question.session,
        question.wrapper,
        question.definition,
        question.call,
        question.rule,
        question.by,
    )


def _verdict(question: Question, decision: Decision, params: dict[str, Any]) -> Verdict:
    if decision.kind == "allowed":
        return Verdict(answer=None, params=params, question=question, decision=decision)
    rule = excerpt(question.rule, _RULE_CHARS)
    why = f"the rule '{rule}' of this gateway requires a person to allow calls of {question.wrapper}"
    if decision.kind == "denied":
        who = "the user" if decision.by == "host" else "the administrator"
        text = f"Not called: {why}, and {who} has denied this one. Do not call it again unless you are told to."
    else:
        cure = "Ask the user" if question.by == "host" else "The administrator of this gateway decides"
        text = f"Not called: {why}, and no decision was made in time. {cure}, then call the tool again."
    return Verdict(answer=error_result(text), params=params, question=question, decision=decision)


async def _report_progress(caller: Caller, question: Question) -> None:
    """Report progress while the call waits, so that the host does not abandon it."""
    assert caller.on_progress is not None
    progress = 0.0
    message = f"waits for a person to allow it ({question.id})"
    while True:
        progress += _PROGRESS_STEP
        caller.on_progress({"progress": progress, "message": message})
        await anyio.sleep(_PROGRESS_S)
