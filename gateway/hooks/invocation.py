"""Run the hooks of one call, send the call, and apply what the hooks return.

A target is the tool, prompt or resource that is called. A chain contains its hooks. A phase is a step before or after
the call.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Awaitable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, Self

import anyio
from msgspec import Struct, field

from gateway.access.principal import Principal
from gateway.hooks.chain_of_hooks import HookChain, HookChains, HookTarget
from gateway.hooks.hook import (
    Answer,
    Block,
    Call,
    CallRoute,
    HookFailed,
    HookReturn,
    Metadata,
    Result,
    Sharing,
)
from gateway.hooks.runner import HookRunner
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import (
    INTERNAL_ERROR,
    UPSTREAM_ERROR_KEY,
    RpcError,
    UpstreamProtocolError,
    error_result,
)
from registry.views.view import View


class HookRefusal(RpcError):
    """A hook blocked the call, or changed its error, and the caller gets this JSON-RPC error."""


class HookCaller(Protocol):
    """The caller, with the properties that hooks can see."""

    @property
    def principal(self) -> Principal: ...
    @property
    def view(self) -> View: ...
    @property
    def session_id(self) -> str | None: ...
    @property
    def request_id(self) -> str | int | float | None: ...
    @property
    def can_be_asked(self) -> bool: ...
    @property
    def answers(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """The reason why a request cannot be sent after hooks have run.

    Attributes:
        text: The problem: a phrase if hooks caused the problem, otherwise a complete text for the caller.
        by_hooks: Whether the hooks' changes caused the problem.
    """

    text: str
    by_hooks: bool


class HookedRequest(Protocol):
    """A request that is ready to be sent."""

    async def revise(self, arguments: dict[str, Any], changed_by: tuple[str, ...]) -> Rejection | None:
        """Apply the arguments after the hooks' changes. Return the reason if the request is now invalid, or None."""

    def send(self) -> Awaitable[Any]:
        """Send the request and return the upstream's unprocessed result."""


class Invocation:
    """The invocation of a call without hooks, which forwards everything unchanged.

    The class has no state, so all such calls share the object `PASS_THROUGH`. `HookInvocation` overrides every method.

    Attributes:
        answer: The result that replaces the upstream's result if a hook has blocked or answered the call; otherwise
            None.
        changed_by: The hooks that changed the arguments.
        blocked_by: The hook that blocked the call.
    """

    __slots__ = ()

    answer: dict[str, Any] | None = None
    changed_by: tuple[str, ...] = ()
    blocked_by: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        return None

    def use_connection(self, number: int) -> None:
        """Set the number of the upstream connection, which hooks receive in the metadata."""

    def send(self, arguments: Any, request: HookedRequest) -> Awaitable[Any]:
        """Run the hooks before the call, send the request, run the hooks after the call, and return the result.

        Raises:
            HookRefusal: A hook blocked the call, and the caller gets a protocol error.
        """
        # Not a coroutine function, so that the caller awaits the request directly.
        return request.send()

    async def after(self, result: Any) -> Any:
        """Run the hooks after the call and return the result; a value that is not a result is returned unchanged.

        Raises:
            HookRefusal: As for `send`.
        """
        return result

    async def after_earlier_call(self, result: Any) -> Any:
        """Do the same as `after` for a task's result if the call that started the task is no longer in memory."""
        return result

    def note_error(self) -> None:
        """Count an error of the upstream in the statistics of each hook that changed the arguments."""

    async def after_error(self, error: RpcError) -> dict[str, Any] | None:
        """Run the hooks after the call on an upstream's protocol error.

        Returns:
            The result to return instead of the error, or None if no hook changed the error.

        Raises:
            HookRefusal: A hook blocked the call, or changed the error, and the caller gets a protocol error.
        """
        return None


PASS_THROUGH: Final = Invocation()


BLOCKED_KEY: Final = "typegate/blockedBy"
"""The member of a result's `_meta` that names the hook that blocked the call."""
# A call id consists of 64 random bits for the process, which make it unique across restarts and processes, and of a
# cheap counter.
_CALL_IDS: Final = itertools.count(1)
_PROCESS_ID: Final = secrets.token_hex(8)
# Appended to every text about a block or failure, so that a model can decide whether to retry.
_OUTCOMES: Final = {
    "tool": "The tool was {}called.",
    "prompt": "The prompt was {}fetched.",
    "resource": "It was {}read.",
    "completion": "Its values were {}asked for.",
}
# Types of results that hooks do not see, because they are not final: a task's result is requested later, and after an
# input request, the caller repeats the call.
_UNFINISHED: Final = frozenset({"task", "input_required"})
# The maximum length of an error text in an audit event, which is enough to recognize the error.
_MAX_ERROR_CHARS: Final = 500


# The value that a hook has returned, its failure, or a coroutine that returns the value.
_Started = HookReturn | HookFailed | Coroutine[Any, Any, HookReturn]


class HookInvocation(Invocation, Struct, eq=False):
    """The invocation of a call that has hooks. Use it as a context manager, and call `send` in the context.

    Each hook runs at most once per phase.
    """

    _chain: HookChain
    _caller: HookCaller
    _via: CallRoute
    _chains: HookChains
    # The sequential hooks that process the answer of a hook; None if no hook has answered the call.
    _seen_by: tuple[HookRunner, ...] | None = None
    _before_ran: bool = False
    _finished: bool = False
    # True once a hook has suspended, in which case other tasks may have run.
    _has_waited: bool = False
    _started_s: float = 0.0
    _metadata: Metadata | None = None
    # The current result and arguments, including the changes of the hooks so far.
    _result: dict[str, Any] = field(default_factory=dict)
    _args: dict[str, Any] = field(default_factory=dict)
    _calls: dict[HookRunner, Call] = field(default_factory=dict)
    blocked_by: str | None = None
    changed_by: tuple[str, ...] = ()
    answer: dict[str, Any] | None = None
    _connection: int = 0

    def __enter__(self) -> Self:
        self._chains.begin_call()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Audit the call even if it has no result, because it was cancelled or has failed.
        if self._before_ran and not self._finished and self._chain.audits:
            self._audit(error_result(f"No answer: {'the call was given up' if error is None else _in_words(error)}."))
        self._chains.end_call()

    def use_connection(self, number: int) -> None:
        self._connection = number

    async def send(self, arguments: Any, request: HookedRequest) -> Any:
        chain = self._chain
        self._before_ran = True
        if chain.audits:
            self._started_s = time.perf_counter()
        if isinstance(arguments, dict):  # null is equivalent to absent arguments
            self._args = arguments
        for runner in chain.before:
            started = self._start(chain.first_phase, runner, None)
            if started is not None and await self._apply(started, chain.first_phase, runner):
                break
        if chain.concurrent_before and self.answer is None:
            await self._run_concurrent(chain.first_phase, chain.concurrent_before, None)
        if self.answer is None:
            for runner in chain.audits:
                runner.enqueue(chain.first_phase, self._describe(), self._args, None)
            # Validate again only if hooks changed the arguments, or if the tool may have changed during a suspension.
            if self._has_waited or self.changed_by:
                rejection = await request.revise(self._args, self.changed_by)
                if rejection is not None:
                    self._reject(rejection)
        result = self.answer
        if result is None:
            result = await request.send()
            if not chain.sees_results:
                return result
            if isinstance(result, dict):
                try:
                    result = json_bytes.parse_members(result)  # hooks may read any member
                except json_bytes.MalformedJson as error:
                    raise UpstreamProtocolError.unreadable(chain.target.server, error) from None
        return await self.after(result)

    async def after(self, result: Any) -> Any:
        if self._finished or not self._before_ran or not _is_result(result):
            return result
        self._finished = True  # set before the hooks run: if one fails, they must not run again
        chain = self._chain
        if self.blocked_by is None and result.get("resultType") not in _UNFINISHED:
            answer, self._result = self.answer, result
            for runner in chain.after if self._seen_by is None else self._seen_by:
                started = self._start(chain.last_phase, runner, Result(self._result))
                if started is not None and await self._apply(started, chain.last_phase, runner):
                    break
            result = self._result
            if chain.concurrent_after and self.answer is None:
                await self._run_concurrent(chain.last_phase, chain.concurrent_after, result)
            if self.answer is not answer:  # a block replaces even the answer of another hook
                result = self.answer
        if chain.audits:
            self._audit(result)
        return result

    async def after_earlier_call(self, result: Any) -> Any:
        self._before_ran, self._started_s = True, time.perf_counter()
        return await self.after(result)

    def note_error(self) -> None:
        for runner in self._chain.sequential:
            if runner.name in self.changed_by:
                runner.counts["refused"] += 1

    async def after_error(self, error: RpcError) -> dict[str, Any] | None:
        # Convert the error to a result, so that hooks that examine results see every text that callers get.
        meta = {UPSTREAM_ERROR_KEY: error.to_object()}
        presented = error_result(error.message, meta=meta)
        if self._chain.target.kind != "tool":
            presented = {"messages": [], "contents": [], "completion": {"values": []}, "isError": True, "_meta": meta}
        result: dict[str, Any] = await self.after(presented)
        if result == presented:
            return None
        if self._chain.target.kind == "tool":
            return result
        # Prompts and resources have no error results, so convert the changed result to a protocol error again.
        error_meta = result.get("_meta", {}).get(UPSTREAM_ERROR_KEY)
        if isinstance(error_meta, dict) and isinstance(error_meta.get("message"), str):
            raise HookRefusal(error.code, error_meta["message"], error_meta.get("data"))
        raise HookRefusal(error.code, "A hook has removed the server's error message.")

    def _start(self, phase: str, runner: HookRunner, result: Result | None) -> _Started:
        """Run one hook up to its first suspension. Return None if the hook changes nothing, or a value for `_apply`."""
        call = self._calls.get(runner)
        if call is None or not call.is_untouched(self._args):
            call = self._new_call(runner, call)
        try:
            return runner.start_phase(phase, call, result)
        except HookFailed as failure:
            return _unless_ignored(failure, runner)

    async def _apply(self, started: _Started, phase: str, runner: HookRunner) -> bool:
        """Apply what a hook has returned. Return whether to skip the remaining hooks of this phase."""
        if isinstance(started, Coroutine):
            self._has_waited = True
            try:
                started = await started
            except HookFailed as failure:
                started = _unless_ignored(failure, runner)
        if started is None:
            return False
        if isinstance(started, Call):
            self._args = started.unchecked()  # the runner's own copy, which hooks cannot change
            self.changed_by = (*self.changed_by, runner.name)
            return False
        if isinstance(started, Result):
            self._result = started.unchecked()
            return False
        if isinstance(started, Answer):
            self._seen_by = self._chain.hooks_after_answer(runner)
            self.answer = started.value
        else:
            self._stop_call(runner, started, phase)
        return True

    async def _run_concurrent(self, phase: str, runners: Iterable[HookRunner], result: dict[str, Any] | None) -> None:
        """Run the concurrent hooks. If several block or fail, apply only the outcome of the first by priority."""
        self._has_waited = True
        returned: dict[HookRunner, HookReturn | HookFailed] = {}

        async def run(runner: HookRunner) -> None:
            try:
                call = self._new_call(runner, self._calls.get(runner))
                returned[runner] = await runner.run(phase, call, None if result is None else Result(result))
            except HookFailed as failure:
                returned[runner] = _unless_ignored(failure, runner)

        async with anyio.create_task_group() as group:
            for runner in runners:
                group.start_soon(run, runner)
        # In the order of priority instead of time, so that equal calls are blocked with the same text.
        for runner in runners:
            if isinstance(verdict := returned[runner], Block | HookFailed):
                self._stop_call(runner, verdict, phase)
                return

    def _new_call(self, runner: HookRunner, earlier: Call | None) -> Call:
        """Return a `Call` for one hook, with the hook's memo from an earlier `Call`, if there is one."""
        memo, target = earlier.memo if earlier is not None else None, self._chain.target
        # Positional arguments, because this runs for each call and hook, and keywords would be the slowest part.
        call = self._calls[runner] = Call(target.original, self._args, self._describe, memo, target.definition)
        return call

    def _describe(self) -> Metadata:
        """Return the metadata of the call, which is built on first use."""
        if self._metadata is None:
            target, caller = self._chain.target, self._caller
            self._metadata = Metadata(
                kind=target.kind,
                wrapper=target.name,
                server=target.server,
                tool=target.original,
                principal=caller.principal.name,
                session=caller.session_id,
                request_id=caller.request_id,
                call_id=f"{_PROCESS_ID}-{next(_CALL_IDS):x}",
                via=self._via,
                tags=target.tags,
                profile=caller.view.profile.name,
                digest=target.digest,
                read_only=target.read_only,
                shared_within=_shared_within(target, caller),
                connection=self._connection,
            )
        return self._metadata

    def _stop_call(self, runner: HookRunner, verdict: Block | HookFailed, phase: str) -> None:
        """Set the answer to an error result about a block or a failure.

        Raises:
            HookRefusal: The answer has to be a protocol error, as for prompts, resources and `blockAs: error`.
        """
        before = phase == self._chain.first_phase
        outcome = _OUTCOMES[self._chain.target.kind].format("not " if before else "")
        details: dict[str, Any] = {"hook": runner.name, "code": INTERNAL_ERROR}
        as_error = self._chain.target.kind != "tool"
        if isinstance(verdict, Block):
            what = "Blocked" if before else "Its result is withheld"
            more = f"\n{verdict.description}" if verdict.description else ""
            text = f"{what} by hook '{runner.name}': {verdict.reason}{more}\n\n{outcome}"
            details |= {"code": verdict.code, "reason": verdict.reason, "description": verdict.description}
            as_error = as_error or runner.entry.block_as == "error"
        else:
            text = f"Hook '{runner.name}' {verdict}. {outcome}"
        self.blocked_by = runner.name
        self.answer = error_result(text, meta={BLOCKED_KEY: details})
        if as_error:
            # Inform the audit hooks here, because the exception prevents `after` from doing so.
            self._finished = True
            self._audit(self.answer)
            raise HookRefusal(details["code"], text, details)

    def _reject(self, rejection: Rejection) -> None:
        """Set the answer to an error result, because the request is no longer valid."""
        if not rejection.by_hooks:
            self.blocked_by = "gateway"
            self.answer = error_result(f"Not called: the tool has changed.\n\n{rejection.text}")
            return
        names = ", ".join(dict.fromkeys(self.changed_by))
        for runner in self._chain.sequential:
            if runner.name in self.changed_by:
                runner.report_failure(f"changed the arguments so that they are no longer valid: {rejection.text}")
        self.blocked_by = names
        self.answer = error_result(
            f"Not called: hook '{names}' changed the arguments so that they are no longer valid: {rejection.text}. "
            "What you sent was right; calling again does not help. The operator of this gateway has to fix the hook.",
            meta={BLOCKED_KEY: {"hook": names, "code": INTERNAL_ERROR}},
        )

    def _audit(self, result: dict[str, Any]) -> None:
        if not self._chain.audits:
            return
        self._finished = True
        elapsed_ms = round((time.perf_counter() - self._started_s) * 1000, 3)
        metadata = replace(self._describe(), elapsed_ms=elapsed_ms, blocked_by=self.blocked_by)
        for runner in self._chain.audits:
            runner.enqueue(self._chain.last_phase, metadata, self._args, result)


def _unless_ignored(failure: HookFailed, runner: HookRunner) -> HookFailed | None:
    if not runner.ignores_errors:
        return failure
    runner.counts["ignored"] += 1
    return None


def _shared_within(target: HookTarget, caller: HookCaller) -> Sharing:
    if caller.answers or (target.private_results and caller.session_id is None):
        return "request"
    # If the host accepts input requests, the upstream may have asked the user, and the result may contain the answer.
    if caller.session_id is not None and (target.private_results or target.private_connections or caller.can_be_asked):
        return "session"
    return "principal"


def _in_words(error: BaseException) -> str:
    if isinstance(error, RpcError):
        return error.message[:_MAX_ERROR_CHARS]
    return "it was cancelled" if isinstance(error, anyio.get_cancelled_exc_class()) else "it failed"


def _is_result(result: Any) -> bool:
    if not isinstance(result, dict):
        return False
    if isinstance(result.get("content"), list) or result.get("resultType", "complete") != "complete":
        return True
    lists = (result.get(name) for name in ("messages", "contents"))
    if isinstance(result.get("completion"), dict):
        return True
    return "structuredContent" in result or any(isinstance(items, list) for items in lists)
