"""The way of one call through its hooks: what they make of its arguments and of its result."""

from __future__ import annotations

import itertools
import secrets
import time
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import anyio

from gateway.errors import INTERNAL_ERROR, RpcError, error_result
from gateway.hooks.hook import After, Answer, Before, Block, Call, HookFailed, Metadata, Result, Via
from gateway.hooks.runner import Guard

if TYPE_CHECKING:
    from gateway.calls.context import Caller
    from gateway.hooks.chain import Chain, Chains

BLOCKED_KEY: Final = "typegate/blockedBy"
"""The member of a result's `_meta` that names the hook which blocked the call."""
_IDS: Final = itertools.count(1)
_RUN: Final = secrets.token_hex(8)
_WORDS: Final = {"tool": "The tool was {}called.", "prompt": "The prompt was {}got.", "resource": "It was {}read."}
_UPSTREAM_ERROR: Final = "typegate/upstreamError"
_UNFINISHED: Final = frozenset({"task", "input_required"})


class HookRefusal(RpcError):
    """A hook blocked, and the caller is to see a JSON-RPC error."""


class Passage:
    """One call of one wrapper, prompt or resource. Enter it, ask `before`, then `after`; nothing runs twice.

    Attributes:
        answer: What the caller gets in place of the upstream's answer: a block, or a hook's own answer.
        blocked_by: The hook that has blocked it.
        changed_by: The hooks that have rewritten the arguments.
    """

    __slots__ = ("_about", "_args", "_began_s", "_begun", "_caller", "_calls", "_chain", "_known", "_over", "_owner",
                 "_reached", "_stem", "_via", "answer", "blocked_by", "changed_by")  # fmt: skip

    def __init__(self, chain: Chain, caller: Caller, via: Via, owner: Chains) -> None:
        self._chain = chain
        self._about = chain.subject
        self._caller = caller
        self._via: Via = via
        self._owner = owner
        self._stem = "call" if chain.subject.kind == "tool" else chain.subject.kind
        self._known: Metadata | None = None
        self._reached = 0
        self._begun = self._over = False
        self._began_s = 0.0
        self._args: dict[str, Any] = {}
        self._calls: dict[Guard, Call] = {}
        self.answer: dict[str, Any] | None = None
        self.blocked_by: str | None = None
        self.changed_by: tuple[str, ...] = ()

    def __enter__(self) -> Passage:
        self._owner.entered()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun and not self._over and self._chain.audits:
            self._tell(error_result(f"No answer: {'the call was given up' if error is None else kind_of(error)}."))
        self._owner.left()

    async def before(self, arguments: Any) -> dict[str, Any]:
        """Return the arguments as the hooks leave them; the very same object if none has changed them.

        Raises:
            HookRefusal: A hook blocked, and says so by a protocol error.
        """
        phase = f"before_{self._stem}"
        self._begun = True
        self._began_s = time.perf_counter()
        args: dict[str, Any] = arguments if isinstance(arguments, dict) else {}  # null and nothing are the same
        self._args = args
        for guard in self._chain.turns:
            self._reached += 1
            if not guard.runs(phase):
                continue
            try:
                said = await guard.before(phase, self._call(args, guard))
            except HookFailed as failure:
                if guard.terms.ignores:
                    guard.counts["ignored"] += 1
                    continue
                return self._failed(guard, failure, "not ")
            if isinstance(said, Call):
                self._args = args = said.handed_back()  # the guard's, and nobody else's
                self.changed_by = (*self.changed_by, guard.name)
            elif isinstance(said, Answer):
                self._reached -= 1
                self.answer = said.value
                return args
            elif isinstance(said, Block):
                return self._blocked(guard, said, "not ")
        if self._chain.together:
            for guard, verdict in await self._all(phase, args, None):
                if isinstance(verdict, HookFailed):
                    return self._failed(guard, verdict, "not ")
                if isinstance(verdict, Block):
                    return self._blocked(guard, verdict, "not ")
        for queue in self._chain.audits:
            if queue.guard.runs(phase):
                queue.tell(phase, self._metadata(), args, None)
        return args

    def resume(self) -> None:
        """Go on after a call of which nothing is known any more but that it was made."""
        self._begun = True
        self._began_s = time.perf_counter()
        self._reached = len(self._chain.turns)

    async def after(self, result: Any) -> Any:
        """Return a result as the hooks leave it; what is no result, or not yet one, passes as it is.

        Raises:
            HookRefusal: A hook blocked, and says so by a protocol error.
        """
        if self._over or not self._begun or not _is_result(result):
            return result
        self._over = True
        unfinished = result.get("resultType") in _UNFINISHED
        if self.blocked_by is None and not unfinished:
            result = await self._shown(result)
        self._tell(result)
        return result

    async def relayed(self, error: RpcError) -> dict[str, Any] | None:
        """Show the hooks a protocol error of the upstream; a result, if one of them would not have it so.

        Raises:
            HookRefusal: A hook blocked, and says so by a protocol error.
        """
        meta = {_UPSTREAM_ERROR: error.to_object()}
        form = error_result(error.message, meta=meta)
        if self._about.kind != "tool":
            form = {"messages": [], "contents": [], "isError": True, "_meta": meta}
        shown = await self.after(form)
        if shown == form or self._about.kind == "tool":
            return None if shown == form else shown
        kept = shown.get("_meta", {}).get(_UPSTREAM_ERROR)
        if isinstance(kept, dict) and isinstance(kept.get("message"), str):
            raise HookRefusal(error.code, kept["message"], kept.get("data"))
        raise HookRefusal(error.code, "A hook has left nothing of what the server answered.")

    def unfit(self, text: str) -> None:
        """Answer a call whose arguments have become wrong since they were checked; the call is not made."""
        names = ", ".join(self.changed_by)
        why = (
            f"the arguments were changed by hook {names}, and do not fit any more" if names else "the tool has changed"
        )
        self.blocked_by = names or "gateway"
        self.answer = error_result(f"Not called: {why}.\n\n{text}")

    async def _shown(self, result: dict[str, Any]) -> dict[str, Any]:
        phase = f"after_{self._stem}"
        for guard in reversed(self._chain.turns[: self._reached]):
            if not guard.runs(phase):
                continue
            try:
                said = await guard.after(phase, self._call(self._args, guard), Result(result))
            except HookFailed as failure:
                if guard.terms.ignores:
                    guard.counts["ignored"] += 1
                    continue
                self._failed(guard, failure, "")
                break
            if isinstance(said, Result):
                result = said.handed_back()
            elif isinstance(said, Block):
                self._blocked(guard, said, "")
                break
        if self._chain.together and self.answer is None:
            for guard, verdict in await self._all(phase, self._args, result):
                if isinstance(verdict, HookFailed):
                    self._failed(guard, verdict, "")
                    break
                if isinstance(verdict, Block):
                    self._blocked(guard, verdict, "")
                    break
        return self.answer if self.blocked_by is not None and self.answer is not None else result

    async def _all(
        self, phase: str, args: dict[str, Any], result: dict[str, Any] | None
    ) -> list[tuple[Guard, Before | After | HookFailed]]:
        """What those that run together say, in their order; failures that are ignored are left out."""
        said: dict[int, Before | After | HookFailed] = {}

        async def one(place: int, guard: Guard) -> None:
            try:
                if result is None:
                    said[place] = await guard.before(phase, self._call(args, guard))
                else:
                    said[place] = await guard.after(phase, self._call(args, guard), Result(result))
            except HookFailed as failure:
                if guard.terms.ignores:
                    guard.counts["ignored"] += 1
                else:
                    said[place] = failure

        guards = [guard for guard in self._chain.together if guard.runs(phase)]
        async with anyio.create_task_group() as group:
            for place, guard in enumerate(guards):
                group.start_soon(one, place, guard)
        return [(guards[place], said[place]) for place in sorted(said)]

    def _call(self, args: dict[str, Any], guard: Guard) -> Call:
        about = self._about
        before = self._calls.get(guard)
        memo = before.memo if before is not None else None
        call = self._calls[guard] = Call(
            name=about.original, args=args, metadata=self._metadata, memo=memo, definition=about.definition
        )  # fmt: skip
        return call

    def _metadata(self) -> Metadata:
        """What is told of the call beside its arguments, made when somebody wants to know."""
        if self._known is None:
            about, caller = self._about, self._caller
            self._known = Metadata(
                kind=about.kind,
                wrapper=about.name,
                server=about.server,
                tool=about.original,
                principal=caller.principal.name,
                session=caller.session_id,
                request_id=caller.request_id,
                call_id=f"{_RUN}-{next(_IDS):x}",
                via=self._via,
                tags=about.tags,
                profile=caller.view.profile.name,
                digest=about.digest,
                read_only=about.read_only,
            )
        return self._known

    def _failed(self, guard: Guard, failure: HookFailed, negation: str) -> dict[str, Any]:
        happened = _WORDS[self._about.kind].format(negation)
        return self._refused(guard, f"Hook '{guard.name}' {failure}. {happened}", INTERNAL_ERROR, as_error=False)

    def _blocked(self, guard: Guard, block: Block, negation: str) -> dict[str, Any]:
        happened = _WORDS[self._about.kind].format(negation)
        what = "Blocked" if negation else "Its result is withheld"
        more = f"\n{block.description}" if block.description else ""
        text = f"{what} by hook '{guard.name}': {block.reason}{more}\n\n{happened}"
        return self._refused(guard, text, block.code, as_error=guard.terms.block_as == "error", block=block)

    def _refused(
        self, guard: Guard, text: str, code: int, *, as_error: bool, block: Block | None = None
    ) -> dict[str, Any]:
        told: dict[str, Any] = {"hook": guard.name, "code": code}
        if block is not None:
            told |= {"reason": block.reason, "description": block.description}
        self.blocked_by = guard.name
        self.answer = error_result(text, meta={BLOCKED_KEY: told})
        if as_error or self._about.kind != "tool":
            self._over = True
            self._tell(self.answer)
            raise HookRefusal(code, text, told)
        return self._args

    def _tell(self, result: dict[str, Any]) -> None:
        if not self._chain.audits:
            return
        self._over = True
        phase = f"after_{self._stem}"
        elapsed_ms = round((time.perf_counter() - self._began_s) * 1000, 3)
        metadata = replace(self._metadata(), elapsed_ms=elapsed_ms, blocked_by=self.blocked_by)
        for queue in self._chain.audits:
            if queue.guard.runs(phase):
                queue.tell(phase, metadata, self._args, result)


def kind_of(error: BaseException) -> str:
    """What ended a call, in words."""
    if isinstance(error, RpcError):
        return error.message[:500]
    return "it was cancelled" if isinstance(error, anyio.get_cancelled_exc_class()) else "it failed"


def _is_result(result: Any) -> bool:
    if not isinstance(result, dict):
        return False
    if result.get("resultType", "complete") != "complete":
        return True
    lists = (result.get(name) for name in ("content", "messages", "contents"))
    return "structuredContent" in result or any(isinstance(one, list) for one in lists)
