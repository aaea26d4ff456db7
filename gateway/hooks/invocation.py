"""One call on its way through its hooks: they see its arguments, then its result, and may change either."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, Self

import anyio

from gateway import wire
from gateway.access.principal import Principal
from gateway.errors import INTERNAL_ERROR, UPSTREAM_ERROR_KEY, RpcError, UpstreamProtocolError, error_result
from gateway.hooks.chain import HookChain, HookChains, HookTarget
from gateway.hooks.hook import Answer, Block, Call, CallRoute, HookFailed, HookReturn, Metadata, Result, Sharing
from gateway.hooks.runner import HookRunner
from registry.views.view import View

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


class HookRefusal(RpcError):
    """A hook blocked, and the caller is answered with a JSON-RPC error."""


class HookCaller(Protocol):
    """What hooks are told about the side that calls."""

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
    """Why a request cannot be sent as hooks have left it.

    Attributes:
        text: What is wrong; a phrase where hooks are to blame, an answer for the caller otherwise.
        by_hooks: Whether it is what hooks have changed.
    """

    text: str
    by_hooks: bool


class HookedRequest(Protocol):
    """A request that is ready to be sent, as an invocation sees it."""

    async def revise(self, arguments: dict[str, Any], changed_by: tuple[str, ...]) -> Rejection | None:
        """Take the arguments as the hooks left them; return what is wrong with them now, or None."""

    def send(self) -> Awaitable[Any]:
        """Send it; returns the upstream's raw result."""


class Invocation:
    """The invocation of a call without hooks: nothing is looked at, nothing is changed.

    It has no state, so all such calls share `PASS_THROUGH`. `HookInvocation` overrides everything.

    Attributes:
        answer: What the caller gets in place of the upstream's answer: a block, or a hook's own answer.
        changed_by: The hooks that have changed the arguments.
    """

    __slots__ = ()

    answer: dict[str, Any] | None = None
    changed_by: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        return None

    def send(self, arguments: Any, request: HookedRequest) -> Awaitable[Any]:
        """Run the hooks before, send the request, run the hooks after; returns the result as they leave it.

        Raises:
            HookRefusal: A hook blocked, and is configured to answer with a protocol error.
        """
        # A plain function: the caller awaits the request itself, with no coroutine in between.
        return request.send()

    async def after(self, result: Any) -> Any:
        """Return a result as the hooks leave it; what is no result, or not yet one, is returned as it is.

        Raises:
            HookRefusal: As `send`.
        """
        return result

    async def after_earlier_call(self, result: Any) -> Any:
        """As `after`, for the result of a task: of the call that started it nothing else is known any more."""
        return result

    async def after_error(self, error: RpcError) -> dict[str, Any] | None:
        """Show the hooks an upstream's protocol error; returns a result if one of them has changed it.

        Raises:
            HookRefusal: As `send`.
        """
        return None


PASS_THROUGH: Final = Invocation()


class HookInvocation(Invocation):
    """One call of a target that has hooks. Enter it, then use `send`; no hook runs twice for one phase."""

    __slots__ = ("_after_phase", "_args", "_before_phase", "_before_ran", "_blocked_by", "_caller", "_calls", "_chain",
                 "_chains", "_finished", "_metadata", "_reached", "_started_s", "_target", "_via", "answer",
                 "changed_by")  # fmt: skip

    def __init__(self, chain: HookChain, caller: HookCaller, via: CallRoute, chains: HookChains) -> None:
        self._chain = chain
        self._target = chain.target
        self._before_phase, self._after_phase = chain.target.phases
        self._caller = caller
        self._via: CallRoute = via
        self._chains = chains
        self._metadata: Metadata | None = None
        # How many sequential hooks the call has come to: only those see its result.
        self._reached = 0
        self._before_ran = self._finished = False
        self._started_s = 0.0
        self._args: dict[str, Any] = {}
        self._calls: dict[HookRunner, Call] = {}
        self._blocked_by: str | None = None
        self.changed_by: tuple[str, ...] = ()
        self.answer: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        self._chains.enter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # A call that was sent and has no result, because it was cancelled or failed, is still audited.
        if self._before_ran and not self._finished and self._chain.audits:
            self._audit(error_result(f"No answer: {'the call was given up' if error is None else _in_words(error)}."))
        self._chains.leave()

    async def send(self, arguments: Any, request: HookedRequest) -> Any:
        """Run the hooks before, send the request, run the hooks after; see `Invocation.send`."""
        await self._before(arguments)
        if self.answer is None and (rejection := await request.revise(self._args, self.changed_by)) is not None:
            self._reject(rejection)
        result = self.answer
        if result is None:
            result = await request.send()
            if isinstance(result, dict):
                try:
                    result = wire.whole(result)  # hooks look at everything, so nothing may stay unparsed
                except wire.MalformedJson as error:
                    raise UpstreamProtocolError.unreadable(self._target.server, error) from None
        return await self.after(result)

    async def after(self, result: Any) -> Any:
        """Run the hooks after; see `Invocation.after`."""
        if self._finished or not self._before_ran or not _is_result(result):
            return result
        self._finished = True  # before the hooks run: if one of them fails the call, it does not come here again
        if self._blocked_by is None and result.get("resultType") not in _UNFINISHED:
            reached, answer = self._chain.sequential[: self._reached], self.answer
            result = await self._run_sequential(self._after_phase, reversed(reached), result)
            if self.answer is None and self._chain.concurrent:
                await self._run_concurrent(self._after_phase, result)
            if self.answer is not answer:  # a hook has blocked, which replaces even an answer that another one gave
                result = self.answer
        self._audit(result)
        return result

    async def after_earlier_call(self, result: Any) -> Any:
        """Run the hooks after; see `Invocation.after_earlier_call`."""
        self._start()
        self._reached = len(self._chain.sequential)
        return await self.after(result)

    async def after_error(self, error: RpcError) -> dict[str, Any] | None:
        """Run the hooks after; see `Invocation.after_error`."""
        # In the form of a result, so that a hook which looks at results sees every text that reaches a caller.
        meta = {UPSTREAM_ERROR_KEY: error.to_object()}
        shown = error_result(error.message, meta=meta)
        if self._target.kind != "tool":
            shown = {"messages": [], "contents": [], "completion": {"values": []}, "isError": True, "_meta": meta}
        result: dict[str, Any] = await self.after(shown)
        if result == shown:
            return None
        if self._target.kind == "tool":
            return result
        # Prompts and resources have no error results: what the hooks left becomes a protocol error again.
        kept = result.get("_meta", {}).get(UPSTREAM_ERROR_KEY)
        if isinstance(kept, dict) and isinstance(kept.get("message"), str):
            raise HookRefusal(error.code, kept["message"], kept.get("data"))
        raise HookRefusal(error.code, "A hook has left nothing of what the server answered.")

    def _start(self) -> None:
        self._before_ran = True
        self._started_s = time.perf_counter()

    async def _before(self, arguments: Any) -> None:
        self._start()
        self._args = arguments if isinstance(arguments, dict) else {}  # null and absent arguments are the same
        await self._run_sequential(self._before_phase, self._chain.sequential, None)
        if self.answer is None and self._chain.concurrent:
            await self._run_concurrent(self._before_phase, None)
        if self.answer is None:
            for runner in self._chain.audits:
                runner.enqueue(self._before_phase, self._describe(), self._args, None)

    async def _run_sequential(
        self, phase: str, runners: Iterable[HookRunner], result: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Run hooks one after the other until one blocks or answers; return the result as they leave it.

        Args:
            phase: Which phase.
            runners: The hooks in order.
            result: The result so far; None before the call.
        """
        for runner in runners:
            if result is None:
                self._reached += 1
            if not runner.runs(phase):
                continue
            returned = await self._run(runner, phase, result)
            if isinstance(returned, Call):
                self._args = returned.handed_back()  # the runner's own copy, which no hook holds
                self.changed_by = (*self.changed_by, runner.name)
            elif isinstance(returned, Result):
                result = returned.handed_back()
            elif isinstance(returned, Answer):
                self._reached -= 1  # a hook does not see the result that it gave itself
                self.answer = returned.value
                break
            elif returned is not None:
                self._refuse(runner, returned, phase)
                break
        return result

    async def _run_concurrent(self, phase: str, result: dict[str, Any] | None) -> None:
        """Run the concurrent hooks; the first of them in order of priority that blocked or failed is reported."""
        runners = [runner for runner in self._chain.concurrent if runner.runs(phase)]
        returned: dict[HookRunner, HookReturn | HookFailed] = {}

        async def run(runner: HookRunner) -> None:
            returned[runner] = await self._run(runner, phase, result)

        async with anyio.create_task_group() as group:
            for runner in runners:
                group.start_soon(run, runner)
        # By priority, not by time: the same call is always refused in the same words.
        for runner in runners:
            if isinstance(verdict := returned[runner], Block | HookFailed):
                self._refuse(runner, verdict, phase)
                return

    async def _run(self, runner: HookRunner, phase: str, result: dict[str, Any] | None) -> HookReturn | HookFailed:
        """Return what one hook returns, or its failure if that is not to be ignored."""
        # A new call for each phase, because the arguments may be others, with the memo of the earlier phase.
        earlier = self._calls.get(runner)
        memo, target = earlier.memo if earlier is not None else None, self._target
        call = self._calls[runner] = Call(
            name=target.original, args=self._args, metadata=self._describe, memo=memo, definition=target.definition
        )
        try:
            return await runner.run(phase, call, None if result is None else Result(result))
        except HookFailed as failure:
            if not runner.ignores_errors:
                return failure
            runner.counts["ignored"] += 1
            return None

    def _describe(self) -> Metadata:
        """The call's metadata, built when somebody first asks for it."""
        if self._metadata is None:
            target, caller = self._target, self._caller
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
            )
        return self._metadata

    def _refuse(self, runner: HookRunner, verdict: Block | HookFailed, phase: str) -> None:
        """Answer the call with a block or a failure.

        Raises:
            HookRefusal: The answer is to be a protocol error; prompts and resources have no other.
        """
        before = phase == self._before_phase
        happened = _HAPPENED[self._target.kind].format("not " if before else "")
        details: dict[str, Any] = {"hook": runner.name, "code": INTERNAL_ERROR}
        as_error = self._target.kind != "tool"
        if isinstance(verdict, Block):
            what = "Blocked" if before else "Its result is withheld"
            more = f"\n{verdict.description}" if verdict.description else ""
            text = f"{what} by hook '{runner.name}': {verdict.reason}{more}\n\n{happened}"
            details |= {"code": verdict.code, "reason": verdict.reason, "description": verdict.description}
            as_error = as_error or runner.entry.block_as == "error"
        else:
            text = f"Hook '{runner.name}' {verdict}. {happened}"
        self._blocked_by = runner.name
        self.answer = error_result(text, meta={BLOCKED_KEY: details})
        if as_error:
            # The error leaves through everything above: nobody would run `after`, which tells the audit hooks.
            self._finished = True
            self._audit(self.answer)
            raise HookRefusal(details["code"], text, details)

    def _reject(self, rejection: Rejection) -> None:
        """Answer a call whose arguments no longer fit; it is not sent."""
        if not rejection.by_hooks:
            self._blocked_by = "gateway"
            self.answer = error_result(f"Not called: the tool has changed.\n\n{rejection.text}")
            return
        names = ", ".join(dict.fromkeys(self.changed_by))
        for runner in self._chain.sequential:
            if runner.name in self.changed_by:
                runner.blame(f"changed arguments so that they do not fit any more: {rejection.text}")
        self._blocked_by = names
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
        metadata = replace(self._describe(), elapsed_ms=elapsed_ms, blocked_by=self._blocked_by)
        for runner in self._chain.audits:
            runner.enqueue(self._after_phase, metadata, self._args, result)


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
    if result.get("resultType", "complete") != "complete":
        return True
    lists = (result.get(name) for name in ("content", "messages", "contents"))
    if isinstance(result.get("completion"), dict):
        return True
    return "structuredContent" in result or any(isinstance(items, list) for items in lists)
