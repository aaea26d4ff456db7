"""One call on its way through its hooks: they see its arguments, then its result, and may change either."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import Any, Final, Self

import anyio
from msgspec import Struct, field

from gateway import wire
from gateway.errors import INTERNAL_ERROR, UPSTREAM_ERROR_KEY, RpcError, UpstreamProtocolError, error_result
from gateway.hooks.chain import HookChain, HookChains, HookTarget
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
from gateway.hooks.hooked_request import HookCaller, HookedRequest, HookRefusal, Invocation, Rejection
from gateway.hooks.runner import HookRunner

BLOCKED_KEY: Final = "typegate/blockedBy"
"""The member of a result's `_meta` that names the hook which blocked the call."""
# Call ids are unique over restarts and processes (64 random bits) and cheap to make (a counter).
_CALL_IDS: Final = itertools.count(1)
_PROCESS_ID: Final = secrets.token_hex(8)
# Ends every text about a block or failure: a model must know whether the tool ran before it tries again.
_HAPPENED: Final = {
    "tool": "The tool was {}called.",
    "prompt": "The prompt was {}fetched.",
    "resource": "It was {}read.",
    "completion": "Its values were {}asked for.",
}
# Not the answer yet: a task's result passes the hooks when it is requested, and a question ends in another call.
_UNFINISHED: Final = frozenset({"task", "input_required"})
# An upstream's own error text may be long; in an audit event it only has to be recognised.
_MAX_ERROR_CHARS: Final = 500


# What a hook has returned, or what is to be awaited for that.
_Begun = HookReturn | HookFailed | Coroutine[Any, Any, HookReturn]


class HookInvocation(Invocation, Struct, eq=False):
    """One call of a target that has hooks. Enter it, then use `send`; no hook runs twice for one phase."""

    _chain: HookChain
    _caller: HookCaller
    _via: CallRoute
    _chains: HookChains
    # Where a hook has answered, those of the sequential ones that see it; all of them otherwise.
    _seen_by: tuple[HookRunner, ...] | None = None
    _before_ran: bool = False
    _finished: bool = False
    # Whether a hook has let others run before the call.
    _has_waited: bool = False
    _started_s: float = 0.0
    _metadata: Metadata | None = None
    # As the hooks have left it so far.
    _result: dict[str, Any] = field(default_factory=dict)
    _args: dict[str, Any] = field(default_factory=dict)
    _calls: dict[HookRunner, Call] = field(default_factory=dict)
    blocked_by: str | None = None
    changed_by: tuple[str, ...] = ()
    answer: dict[str, Any] | None = None
    _connection: int = 0

    def __enter__(self) -> Self:
        self._chains.in_flight += 1
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # A call that was sent and has no result, because it was cancelled or failed, is still audited.
        if self._before_ran and not self._finished and self._chain.audits:
            self._audit(error_result(f"No answer: {'the call was given up' if error is None else _in_words(error)}."))
        self._chains.leave()

    def use_connection(self, number: int) -> None:
        """See `Invocation.use_connection`."""
        self._connection = number

    async def send(self, arguments: Any, request: HookedRequest) -> Any:
        """Run the hooks before, send the request, run the hooks after; see `Invocation.send`."""
        chain = self._chain
        self._before_ran = True
        if chain.audits:
            self._started_s = time.perf_counter()
        if isinstance(arguments, dict):  # null and absent arguments are the same
            self._args = arguments
        for runner in chain.before:
            begun = self._begin(chain.first_phase, runner, None)
            if begun is not None and await self._ends(begun, chain.first_phase, runner):
                break
        if chain.concurrent_before and self.answer is None:
            await self._run_concurrent(chain.first_phase, chain.concurrent_before, None)
        if self.answer is None:
            for runner in chain.audits:
                runner.enqueue(chain.first_phase, self._describe(), self._args, None)
            # Otherwise everything is as it was when the request was looked at.
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
                    result = wire.whole(result)  # hooks look at everything, so nothing may stay unparsed
                except wire.MalformedJson as error:
                    raise UpstreamProtocolError.unreadable(chain.target.server, error) from None
        return await self.after(result)

    async def after(self, result: Any) -> Any:
        """Run the hooks after; see `Invocation.after`."""
        if self._finished or not self._before_ran or not _is_result(result):
            return result
        self._finished = True  # before the hooks run: if one of them fails the call, it does not come here again
        chain = self._chain
        if self.blocked_by is None and result.get("resultType") not in _UNFINISHED:
            answer, self._result = self.answer, result
            for runner in chain.after if self._seen_by is None else self._seen_by:
                begun = self._begin(chain.last_phase, runner, Result(self._result))
                if begun is not None and await self._ends(begun, chain.last_phase, runner):
                    break
            result = self._result
            if chain.concurrent_after and self.answer is None:
                await self._run_concurrent(chain.last_phase, chain.concurrent_after, result)
            if self.answer is not answer:  # a hook has blocked, which replaces even an answer that another one gave
                result = self.answer
        if chain.audits:
            self._audit(result)
        return result

    async def after_earlier_call(self, result: Any) -> Any:
        """Run the hooks after; see `Invocation.after_earlier_call`."""
        self._before_ran, self._started_s = True, time.perf_counter()
        return await self.after(result)

    def note_error(self) -> None:
        """See `Invocation.note_error`."""
        for runner in self._chain.sequential:
            if runner.name in self.changed_by:
                runner.counts["refused"] += 1

    async def after_error(self, error: RpcError) -> dict[str, Any] | None:
        """Run the hooks after; see `Invocation.after_error`."""
        # In the form of a result, so that a hook which looks at results sees every text that reaches a caller.
        meta = {UPSTREAM_ERROR_KEY: error.to_object()}
        shown = error_result(error.message, meta=meta)
        if self._chain.target.kind != "tool":
            shown = {"messages": [], "contents": [], "completion": {"values": []}, "isError": True, "_meta": meta}
        result: dict[str, Any] = await self.after(shown)
        if result == shown:
            return None
        if self._chain.target.kind == "tool":
            return result
        # Prompts and resources have no error results: what the hooks left becomes a protocol error again.
        kept = result.get("_meta", {}).get(UPSTREAM_ERROR_KEY)
        if isinstance(kept, dict) and isinstance(kept.get("message"), str):
            raise HookRefusal(error.code, kept["message"], kept.get("data"))
        raise HookRefusal(error.code, "A hook has left nothing of what the server answered.")

    def _begin(self, phase: str, runner: HookRunner, result: Result | None) -> _Begun:
        """Run one hook as far as it goes without waiting, as most go to their end; what `_ends` takes, unless None."""
        call = self._calls.get(runner)
        if call is None or not call.is_untouched(self._args):
            call = self._new_call(runner, call)
        try:
            return runner.begin(phase, call, result)
        except HookFailed as failure:
            return _unless_ignored(failure, runner)

    async def _ends(self, begun: _Begun, phase: str, runner: HookRunner) -> bool:
        """Take what a hook has made of the call; returns whether no other is to see it in this phase."""
        if isinstance(begun, Coroutine):
            self._has_waited = True
            try:
                begun = await begun
            except HookFailed as failure:
                begun = _unless_ignored(failure, runner)
        if begun is None:
            return False
        if isinstance(begun, Call):
            self._args = begun.handed_back()  # the runner's own copy, which no hook holds
            self.changed_by = (*self.changed_by, runner.name)
            return False
        if isinstance(begun, Result):
            self._result = begun.handed_back()
            return False
        if isinstance(begun, Answer):
            self._seen_by = self._chain.after_answer_of(runner)
            self.answer = begun.value
        else:
            self._refuse(runner, begun, phase)
        return True

    async def _run_concurrent(
        self, phase: str, runners: Iterable[HookRunner], result: dict[str, Any] | None
    ) -> None:  # fmt: skip
        """Run the concurrent hooks; the first of them in order of priority that blocked or failed is reported."""
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
        # By priority, not by time: the same call is always refused in the same words.
        for runner in runners:
            if isinstance(verdict := returned[runner], Block | HookFailed):
                self._refuse(runner, verdict, phase)
                return

    def _new_call(self, runner: HookRunner, earlier: Call | None) -> Call:
        """The call as one hook sees it, with its memo of the phase before where it had another one there."""
        memo, target = earlier.memo if earlier is not None else None, self._chain.target
        # By position: one is made for each call and hook, and keywords would take longer than all the rest.
        call = self._calls[runner] = Call(target.original, self._args, self._describe, memo, target.definition)
        return call

    def _describe(self) -> Metadata:
        """The call's metadata, built when somebody first asks for it."""
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

    def _refuse(self, runner: HookRunner, verdict: Block | HookFailed, phase: str) -> None:
        """Answer the call with a block or a failure.

        Raises:
            HookRefusal: The answer is to be a protocol error; prompts and resources have no other.
        """
        before = phase == self._chain.first_phase
        happened = _HAPPENED[self._chain.target.kind].format("not " if before else "")
        details: dict[str, Any] = {"hook": runner.name, "code": INTERNAL_ERROR}
        as_error = self._chain.target.kind != "tool"
        if isinstance(verdict, Block):
            what = "Blocked" if before else "Its result is withheld"
            more = f"\n{verdict.description}" if verdict.description else ""
            text = f"{what} by hook '{runner.name}': {verdict.reason}{more}\n\n{happened}"
            details |= {"code": verdict.code, "reason": verdict.reason, "description": verdict.description}
            as_error = as_error or runner.entry.block_as == "error"
        else:
            text = f"Hook '{runner.name}' {verdict}. {happened}"
        self.blocked_by = runner.name
        self.answer = error_result(text, meta={BLOCKED_KEY: details})
        if as_error:
            # The error leaves through everything above: nobody would run `after`, which tells the audit hooks.
            self._finished = True
            self._audit(self.answer)
            raise HookRefusal(details["code"], text, details)

    def _reject(self, rejection: Rejection) -> None:
        """Answer a call whose arguments no longer fit; it is not sent."""
        if not rejection.by_hooks:
            self.blocked_by = "gateway"
            self.answer = error_result(f"Not called: the tool has changed.\n\n{rejection.text}")
            return
        names = ", ".join(dict.fromkeys(self.changed_by))
        for runner in self._chain.sequential:
            if runner.name in self.changed_by:
                runner.blame(f"changed arguments so that they do not fit any more: {rejection.text}")
        self.blocked_by = names
        self.answer = error_result(
            f"Not called: hook '{names}' changed the arguments so that they do not fit any more: {rejection.text}. "
            "What you sent was right; calling again does not help. Whoever runs this gateway has to mend the hook.",
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
    # A host that can be asked may have been, and its user's answer is in the result.
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
