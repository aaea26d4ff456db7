"""A call that a rule wants a person to allow: asks through the caller's host where it can, and waits for an answer."""

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
from gateway.calls.approval_book import LASTS, Book, Decision, Lasts, Question, TooManyWaiting
from gateway.calls.call_stats import name_of
from gateway.calls.context import Caller
from gateway.config.approvals import Approver
from gateway.errors import RpcError, error_result
from gateway.owned_tasks import OwnedTasks
from gateway.protocol import can_be_asked
from gateway.secrets import SECRETS
from registry.catalog.catalog import ToolWrapper
from registry.policy.grant import Decision as PolicyDecision
from registry.schema.display_text import clean, clean_json, excerpt
from registry.schema.schemas import canonical_json

log = logging.getLogger(__name__)

T = TypeVar("T")

# Of the arguments, as a person sees them: a screenful. What is cut is said to be, so that nobody allows it unseen.
_SHOWN_CHARS: Final = 4_000
_RULE_CHARS: Final = 100
# Hosts give up a call after a minute without a sign of life, some after half of it.
_PROGRESS_S: Final = 10.0
# How long the process that has the book may take to hear that a caller has gone.
_TELL_S: Final = 2.0
# Progress has to increase, and what the upstream tells afterwards begins at about one.
_PROGRESS_STEP: Final = 0.0001
_KEY: Final = "approval"
_ELICITATION: Final = "elicitation/create"
_ANSWERS: Final = frozenset({"inputResponses", "requestState"})
# What a host is offered. One that was asked by an earlier version may still answer with more, which counts as this.
_CHOICES: Final = {"once": "this call only"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a call goes on.

    Attributes:
        answer: What its caller gets instead of a call; None where it may be made.
        params: Those of the request, without what answered our own question.
        question: What was asked.
        decision: What was decided; None where it was allowed before, or the caller has to come back with an answer.
    """

    answer: dict[str, Any] | None
    params: dict[str, Any]
    question: Question
    decision: Decision | None = None


def arguments_digest(arguments: object) -> str:
    """By which the arguments that were allowed are known again."""
    return hashlib.sha256(canonical_json(arguments)).hexdigest()


class Approvals:
    """Asks persons.

    Args:
        book: Knows what waits and what is allowed.
        signer: Signs what a caller of the modern era brings back with its answer.
        tasks: Runs the questions, so that one whose caller has left is withdrawn wherever the book is.
        asked_by_default: Who decides where a rule does not say; None for whoever fits the caller.
    """

    def __init__(
        self, book: Book, signer: Signer, tasks: OwnedTasks, *, asked_by_default: Callable[[], Approver | None]
    ) -> None:
        self._book = book
        self._signer = signer
        self._tasks = tasks
        self._asked_by_default = asked_by_default

    async def ask(
        self,
        caller: Caller,
        wrapper: ToolWrapper,
        arguments: object,
        *,
        decision: PolicyDecision,
        params: dict[str, Any],
    ) -> Verdict:
        """Return once the call may be made or not, or what its caller has to be asked.

        Args:
            caller: Whose call.
            wrapper: The tool.
            arguments: What it would be called with.
            decision: Which rule asks, and whom.
            params: Those of the request, as they came.
        """
        by = decision.by or self._asked_by_default() or _approver_of(caller.principal)
        question = _question(caller, wrapper, arguments, decision.rule or "", by)
        return await self._tasks.run(partial(self._ask, caller, wrapper, question, params))

    async def _ask(self, caller: Caller, wrapper: ToolWrapper, question: Question, params: dict[str, Any]) -> Verdict:
        if caller.modern and isinstance(state := params.get("requestState"), str):
            answered = await self._answered(question, state, params)
            if answered is not None:
                return answered
        try:
            if await self._withdrawn_if_cancelled(question, self._book.begin(question)):
                return Verdict(answer=None, params=params, question=question)
        except TooManyWaiting as error:
            return Verdict(
                answer=error_result(f"Not called: {error}. Wait for an answer."), params=params, question=question
            )
        asked = _asked(question, wrapper)
        if question.by == "host" and caller.modern and can_be_asked(caller.capabilities, _ELICITATION, asked):
            # Its host asks, and repeats the request with the answer; an administrator may decide meanwhile.
            state = self._signer.sign(question.id, *_binding(question))
            return Verdict(answer=_input_required(asked, state), params=params, question=question)
        decision = await self._decided(question, caller, asked)
        return _verdict(question, decision, params)

    async def goes_on(self, verdict: Verdict) -> None:
        """The upstream has asked for input: the same call comes again, and is not asked about twice."""
        await self._tasks.run(partial(self._book.allow_again, verdict.question), shield=True)

    async def _answered(self, question: Question, state: str, params: dict[str, Any]) -> Verdict | None:
        """What comes of an answer that the caller's host has brought; None if it answers nothing of ours."""
        try:
            question = replace(question, id=self._signer.verify(state, *_binding(question)))
        except BadSignature:
            return None
        responses = params.get("inputResponses")
        response = responses.get(_KEY) if isinstance(responses, dict) else None
        if isinstance(response, dict) and question.by == "host":
            allow, lasts = _of_host(response)
            await self._book.decide(question.id, allow=allow, lasts=lasts, by="host")
        rest = {name: value for name, value in params.items() if name not in _ANSWERS}
        decision = await self._wait(question)
        # It was used already, or is forgotten: the person is asked again.
        return None if decision.kind == "unknown" else _verdict(question, decision, rest)

    async def _decided(self, question: Question, caller: Caller, asked: dict[str, Any]) -> Decision:
        decision = Decision(kind="expired")
        asks_host = question.by == "host" and can_be_asked(caller.capabilities, _ELICITATION, asked)
        async with anyio.create_task_group() as group:
            if caller.on_progress is not None:
                group.start_soon(_tell, caller, question)
            if asks_host and caller.ask is not None:
                group.start_soon(self._ask_host, caller, question, asked)
            decision = await self._wait(question)
            group.cancel_scope.cancel()
        return decision

    async def _wait(self, question: Question) -> Decision:
        return await self._withdrawn_if_cancelled(question, self._book.wait(question))

    async def _withdrawn_if_cancelled(self, question: Question, answer: Awaitable[T]) -> T:
        """Await an answer of the book; a question whose caller leaves meanwhile is withdrawn."""
        try:
            return await answer
        except TooManyWaiting:
            raise  # the book has not taken the question
        except BaseException:
            with anyio.move_on_after(_TELL_S, shield=True):
                await self._book.withdraw(question)
            raise

    async def _ask_host(self, caller: Caller, question: Question, asked: dict[str, Any]) -> None:
        assert caller.ask is not None
        try:
            response = await caller.ask(_ELICITATION, asked)
        except RpcError as error:
            # Whoever administers the gateway may still decide.
            log.info("a host could not be asked for an approval: %s", error.message)
            return
        allow, lasts = _of_host(response if isinstance(response, dict) else {})
        await self._book.decide(question.id, allow=allow, lasts=lasts, by="host")


def _approver_of(principal: Principal) -> Approver:
    """Who decides about the calls of a caller, where nothing else is configured.

    A key is for programs, which would answer for themselves, and so is a token whose subject is its client (RFC 9068,
    section 2.2). Others come from hosts with somebody in front of them.
    """
    if not principal.issuer:
        return "host" if principal.name == LOCAL.name else "administrator"
    return "administrator" if principal.name.startswith(f"{principal.client}@") else "host"


def _question(caller: Caller, wrapper: ToolWrapper, arguments: object, rule: str, by: Approver) -> Question:
    return Question(
        principal=caller.principal.name,
        session=caller.session_id or name_of(caller),
        wrapper=wrapper.name,
        server=wrapper.server,
        definition=wrapper.digest,
        call=arguments_digest(arguments),
        rule=rule,
        arguments=_shown(arguments),
        by=by,
    )


def _shown(arguments: object) -> str:
    """The arguments for a person: nothing hidden in them, and what does not fit is told."""
    value = clean_json(SECRETS.scrub_value(arguments))
    # ASCII, so that no letter passes for another one.
    text = clean(json.dumps(value, indent=1, default=str))
    if len(text) <= _SHOWN_CHARS:
        return text
    return f"{text[:_SHOWN_CHARS]}\n… and {len(text) - _SHOWN_CHARS:,} more characters, not shown"


def _asked(question: Question, wrapper: ToolWrapper) -> dict[str, Any]:
    """The question as a host shows it.

    Source: MCP 2025-11-25 and 2026-07-28, "Elicitation", "Form mode".
    """
    choice = {
        "type": "string",
        "title": "Allow",
        "description": "What is allowed.",
        "enum": [*_CHOICES],
        "enumNames": [*_CHOICES.values()],
        "default": "once",
    }
    message = (
        f"Allow a call of {wrapper.name} (server {wrapper.server})? The rule "
        f"“{excerpt(question.rule, _RULE_CHARS)}” of the gateway asks for it.\n\nArguments:\n{question.arguments}"
    )
    return {"mode": "form", "message": message, "requestedSchema": {"type": "object", "properties": {"allow": choice}}}


def _input_required(asked: dict[str, Any], state: str) -> dict[str, Any]:
    """Source: MCP 2026-07-28, "Patterns", "Multi Round-Trip Requests"."""
    return {
        "resultType": "input_required",
        "inputRequests": {_KEY: {"method": _ELICITATION, "params": asked}},
        "requestState": state,
    }


def _of_host(response: dict[str, Any]) -> tuple[bool, Lasts]:
    """What a host answered; whatever is not clearly a yes is none."""
    if response.get("action") != "accept":
        return False, "once"
    content = response.get("content")
    chosen = content.get("allow", "once") if isinstance(content, dict) else "once"
    lasts = next((one for one in LASTS if one == chosen), None)
    return lasts is not None, lasts or "once"


def _binding(question: Question) -> tuple[str, ...]:
    return (
        _KEY, question.principal, question.session, question.wrapper, question.definition, question.call, question.rule,
        question.by,
    )  # fmt: skip


def _verdict(question: Question, decision: Decision, params: dict[str, Any]) -> Verdict:
    if decision.kind == "allowed":
        return Verdict(answer=None, params=params, question=question, decision=decision)
    rule = excerpt(question.rule, _RULE_CHARS)
    why = f"the rule '{rule}' of this gateway wants a person to allow calls of {question.wrapper}"
    if decision.kind == "denied":
        who = "the user" if decision.by == "host" else "the administrator"
        text = f"Not called: {why}, and {who} has denied this one. Do not call it again unless you are told to."
    else:
        cure = "Ask the user" if question.by == "host" else "Whoever administers this gateway decides about it"
        text = f"Not called: {why}, and nobody has answered in time. {cure}; then it can be called again."
    return Verdict(answer=error_result(text), params=params, question=question, decision=decision)


async def _tell(caller: Caller, question: Question) -> None:
    """Tell the host that the call still waits, so that it does not give it up."""
    assert caller.on_progress is not None
    count = 0
    while True:
        count += 1
        message = f"waits for a person to allow it ({question.id})"
        caller.on_progress({"progress": count * _PROGRESS_STEP, "message": message})
        await anyio.sleep(_PROGRESS_S)
