"""Runs one configured hook: time-out, circuit breakers, counters, and checks of what it returns."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from random import random
from typing import Any, Final, NamedTuple

from gateway.config.hooks import HookConfig
from gateway.hooks.audit_queue import AuditQueue
from gateway.hooks.fault_text import where_raised, words_of
from gateway.hooks.formats import Format, decode, encode
from gateway.hooks.hook import (
    BLOCK_CODE,
    PHASES,
    Answer,
    Block,
    Call,
    Hook,
    HookFailed,
    HookReturn,
    Metadata,
    Mode,
    Result,
)
from gateway.hooks.payloads import BadPayload, plain
from gateway.hooks.threads import DaemonThreads, ThreadsBusy
from gateway.hooks.timeout import BaseExceptionRaised, TimedOut, TimedRun
from gateway.instruments.current import CURRENT, note_event
from gateway.upstream.breaker import Breaker

log = logging.getLogger(__name__)

# Closing usually means closing a file or a connection. `Hook.close` promises these two seconds.
CLOSE_S: Final = 2.0
# One for each phase and principal whose calls failed lately: principals are API keys, of which few have hundreds.
MAX_BREAKERS: Final = 1_024
# A model reads the reason of a block: this is about a page.
MAX_REASON_CHARS: Final = 2_000
COUNTED: Final = ("changed", "answered", "blocked", "failed", "late", "ignored", "skipped", "dropped", "refused")
"""What is counted of every hook, beside its runs."""
PHASES_OF_TOOLS: Final = frozenset({"before_call", "after_call"})
_LIST_MEMBER: Final = {"tool": "content", "prompt": "messages", "resource": "contents"}


class _Run(NamedTuple):
    """One phase of one call in one hook.

    Attributes:
        is_probe: The hook has failed lately for this principal: if this run ends well, that is forgotten.
    """

    phase: str
    call: Call
    result: Result | None
    began_s: float
    is_probe: bool


class HookRunner:
    """Runs one hook. Whatever the hook does, the outcome is a checked value that only we hold, or `HookFailed`.

    Attributes:
        entry: The hook's entry in the configuration.
        mode: The mode that the entry sets, or the hook's own.
        queue: Of an audit hook, the events that it has not received yet.
        source: What the hook was made from; see `loading`.
        run_count: How often it has run.
        counts: What has come of that, by the names in `COUNTED`.
    """

    def __init__(self, hook: Hook, entry: HookConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.hook = hook
        self.entry = entry
        self.mode: Mode = entry.mode or hook.mode
        self.ignores_errors = entry.on_error == "ignore"
        self.run_count = 0
        self.counts = dict.fromkeys(COUNTED, 0)
        self.seconds = 0.0
        self.last_error: str | None = None
        self.queue = AuditQueue(entry.name, self.counts, self.run) if self.mode == "audit" else None
        self.source: object = None
        # One for each phase, since a hook that is fine after every call may fail before each; and for each
        # principal, since one whose calls make it fail must not shut it for all others.
        self._breakers: dict[tuple[str, str], Breaker] = {}
        self._timeout_s = entry.timeout
        self._translates = entry.payload_format != "native"
        self._clock = clock
        self._threads: DaemonThreads | None = None
        # Each returns a coroutine.
        self._methods: Mapping[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            phase: method if inspect.iscoroutinefunction(method) else self._in_thread(method)
            for phase in (PHASES[spelled] for spelled in PHASES if spelled in (entry.phases or PHASES))
            if hook.offers(phase) and callable(method := getattr(hook, phase, None))
        }

    @property
    def name(self) -> str:
        """As the configuration names it."""
        return self.entry.name

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases in which it runs."""
        return tuple(self._methods)

    def runs(self, phase: str) -> bool:
        """Whether it runs in this phase."""
        return phase in self._methods

    @property
    def open(self) -> bool:
        """Whether a circuit breaker is open, so that it is skipped for some calls."""
        now_s = self._clock()
        return any(not breaker.admits(now_s) for breaker in list(self._breakers.values()))

    async def run(self, phase: str, call: Call, result: Result | None = None) -> HookReturn:
        """Run one phase and return what the hook returned, checked; rewritten arguments in the native format.

        Args:
            phase: One that it `runs`.
            call: The call.
            result: Its result; None in a phase before the call.

        Raises:
            HookFailed: It failed, or its circuit breaker is open.
        """
        returned = self.begin(phase, call, result)
        return await returned if isinstance(returned, Coroutine) else returned

    def begin(
        self, phase: str, call: Call, result: Result | None = None
    ) -> HookReturn | Coroutine[Any, Any, HookReturn]:  # fmt: skip
        """As `run`, as far as the hook goes without waiting; where it waits, return what is to be awaited at once."""
        if CURRENT.get() is not None:
            note_event("hook", hook=self.name, phase=phase)
        began_s = self._clock()
        # Metadata is built on demand: while nothing has failed lately, nobody needs the principal.
        is_probe = self._probes(phase, call, began_s) if self._breakers else False
        self.run_count += 1
        try:
            shown = self._translated(phase, call) if self._translates else call
            method = self._methods[phase]
            coroutine = method(shown) if result is None else method(shown, result)
            try:
                # By hand, since most hooks never wait: those need neither a timer nor a coroutine of ours.
                waits_for = coroutine.send(None)
            except StopIteration as end:
                returned = end.value
            else:
                return self._finish(coroutine, waits_for, _Run(phase, call, result, began_s, is_probe))
        except Exception as error:  # noqa: BLE001 - boundary: a hook may raise what it likes
            raise self._failed(error, _Run(phase, call, result, began_s, is_probe)) from None
        except BaseException as error:  # noqa: BLE001 - boundary: as above
            raised = BaseExceptionRaised(type(error).__name__)
            raise self._failed(raised, _Run(phase, call, result, began_s, is_probe)) from None
        took_s = self._clock() - began_s
        if returned is None and not is_probe and took_s <= self._timeout_s:
            self.seconds += took_s
            return None  # as most do, most of the time
        return self._taken(returned, _Run(phase, call, result, began_s, is_probe), took_s)

    async def _finish(self, coroutine: Coroutine[Any, Any, Any], waits_for: object, run: _Run) -> HookReturn:
        """Await the rest of a phase, no longer than the time-out."""
        try:
            returned = await TimedRun(coroutine, self._timeout_s, waits_for)
        except Exception as error:  # noqa: BLE001 - boundary: as above
            raise self._failed(error, run) from None
        except BaseException:  # the call itself is cancelled
            self.seconds += self._clock() - run.began_s
            raise
        return self._taken(returned, run, self._clock() - run.began_s)

    def _taken(self, returned: Any, run: _Run, took_s: float) -> HookReturn:
        """Return what the hook returned, checked.

        Raises:
            HookFailed: It is nothing that it may return, or came too late.
        """
        try:
            checked = None if returned is None else self._checked(returned, run.call, run.result, run.phase)
        except Exception as error:  # noqa: BLE001 - boundary: what it returns may have methods of its own
            raise self._failed(error, run) from None
        self.seconds += self._clock() - run.began_s
        # No timer fires while a hook keeps the event loop to itself.
        if took_s > self._timeout_s:
            detail = f", it blocked the event loop, for up to {took_s:.1f} s"
            raise self._late(run.phase, run.call, self._timeout_s, detail)
        if run.is_probe:
            self._breakers.pop((run.phase, run.call.metadata.principal), None)
        return checked

    def _failed(self, error: Exception, run: _Run) -> HookFailed:
        """Count what a hook has raised, and put it into words."""
        self.seconds += self._clock() - run.began_s
        phase, call = run.phase, run.call
        if isinstance(error, HookFailed):
            return error
        if isinstance(error, TimedOut):
            return self._late(phase, call, self._timeout_s)
        if isinstance(error, BaseExceptionRaised):
            return self._failure(phase, call, f"raised {error}")
        if isinstance(error, ThreadsBusy):
            return self._failure(phase, call, "has no thread left: earlier calls of it hang")
        if isinstance(error, BadPayload):
            return self._failure(phase, call, str(error))
        text = f"raised {type(error).__name__}{where_raised(error)}"
        return self._failure(phase, call, text, words_of(error, call, run.result))

    def _probes(self, phase: str, call: Call, now_s: float) -> bool:
        """Whether this run decides if the breaker of its phase and principal closes.

        Raises:
            HookFailed: It is open.
        """
        key = (phase, call.metadata.principal)
        breaker = self._breakers.get(key)
        if breaker is None:
            return False
        if not breaker.admits(now_s):
            self.counts["skipped"] += 1
            raise HookFailed("is passed over for now, because it has failed again and again")
        # Until its outcome is known all others are skipped.
        self._keep(key, breaker.probing(now_s))
        return True

    def _keep(self, key: tuple[str, str], breaker: Breaker) -> None:
        self._breakers.pop(key, None)
        if len(self._breakers) >= MAX_BREAKERS:
            del self._breakers[next(iter(self._breakers))]  # of whom nothing was heard for the longest time
        self._breakers[key] = breaker

    def enqueue(self, phase: str, metadata: Metadata, args: dict[str, Any], result: dict[str, Any] | None) -> None:
        """Queue an event for an audit hook, if it runs in this phase."""
        if self.queue is not None and phase in self._methods:
            self.queue.put(phase, metadata, args, result)

    def _in_thread(self, method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
        self._threads = self._threads or DaemonThreads(self.name)
        return partial(self._run_in_thread, self._threads, method)

    async def _run_in_thread(self, threads: DaemonThreads, method: Callable[..., Any], *given: Call | Result) -> Any:
        returned = await threads.run(method, *given)
        if isinstance(returned, Awaitable):
            if inspect.iscoroutine(returned):
                returned.close()  # otherwise Python warns that it was never awaited
            raise BadPayload("handed back something to await; expected `async def`")
        return returned

    def blame(self, text: str) -> None:
        """Count and log what turned out to be the hook's fault after it had run."""
        self.counts["failed"] += 1
        self.last_error = text
        log.warning("hook %s %s", self.name, text)

    def _translated(self, phase: str, call: Call) -> Call:
        payload_format = self._format(phase)
        if payload_format == "native":
            return call
        return call.with_args(encode(payload_format, call.args, call.metadata))

    def _format(self, phase: str) -> Format:
        # Other gateways have these shapes for tools only: prompts have their arguments as they are, resources a URI.
        return self.entry.payload_format if phase in PHASES_OF_TOOLS else "native"

    def _late(self, phase: str, call: Call, timeout_s: float, detail: str = "") -> HookFailed:
        self.counts["late"] += 1
        return self._failure(phase, call, f"did not answer within {timeout_s:g} s", detail)

    def _checked(self, returned: Any, call: Call, result: Result | None, phase: str) -> HookReturn:
        if isinstance(returned, Block):
            self.counts["blocked"] += 1
            return _checked_block(returned)
        kind = type(returned).__name__
        if self.mode != "transform":
            raise BadPayload(f"handed back a {kind}, which its mode {self.mode} does not allow")
        if isinstance(returned, Call) and result is None:
            args = decode(self._format(phase), plain(returned.handed_back())[0])
            self.counts["changed"] += 1
            return call.with_args(args)
        if isinstance(returned, Result) and result is not None:
            value = _checked_result(returned.handed_back(), call)
            self.counts["changed"] += 1
            return Result(value)
        if isinstance(returned, Answer) and result is None:
            value = _checked_result(returned.value, call)
            self.counts["answered"] += 1
            return Answer(value=value)
        raise BadPayload(f"handed back a {kind}, which is none of what it may")

    def _failure(self, phase: str, call: Call, text: str, detail: str = "") -> HookFailed:
        """Count and log a failure; `detail` is for the operator, and not for callers."""
        now_s, key = self._clock(), (phase, call.metadata.principal)
        # Read again: other calls may have failed while this one ran.
        breaker = self._breakers.get(key, Breaker())
        self.counts["failed"] += 1
        self.last_error = text + detail
        self._keep(key, breaker.failed(now_s, random(), began_s=now_s))
        if breaker.admits(now_s):  # what fails while the breaker is open was logged when it opened
            log.warning("hook %s %s", self.name, self.last_error)
        return HookFailed(text)

    async def close(self) -> None:
        """Let its threads end, then close the hook; what that raises is logged."""
        if self._threads is not None:
            self._threads.close()
        try:
            await TimedRun(self.hook.close(), CLOSE_S)
        except (Exception, TimedOut, BaseExceptionRaised) as error:  # noqa: BLE001 - boundary: as above
            log.warning("hook %s did not close: %s", self.name, type(error).__name__)

    def row(self) -> dict[str, Any]:
        """Its state, as `/admin/hooks` shows it."""
        return {
            "name": self.name,
            "mode": self.mode,
            "phases": [spelled for spelled, phase in PHASES.items() if phase in self._methods],
            "priority": self.entry.priority,
            "onError": self.entry.on_error,
            "breaker": "open" if self.open else "closed",
            "lastError": self.last_error,
            "seconds": round(self.seconds, 6),
            "counts": {"runs": self.run_count, **self.counts},
        }


def _checked_block(block: Block) -> Block:
    if not isinstance(block.reason, str) or not isinstance(block.description, str):
        raise BadPayload("blocked without a text for its reason")
    # A hook may put anything there, and only integers are codes; in Python true is one, too.
    code = block.code if isinstance(block.code, int) and not isinstance(block.code, bool) else BLOCK_CODE
    return Block(reason=block.reason[:MAX_REASON_CHARS], description=block.description[:MAX_REASON_CHARS], code=code)


def _checked_result(value: Any, call: Call) -> dict[str, Any]:
    result, _ = plain(value)
    kind = call.metadata.kind
    if not isinstance(result, dict):
        raise BadPayload("handed back a result that is no object")
    if result.get("resultType", "complete") != "complete":
        return result
    if kind == "completion":
        completion = result.get("completion")
        values = completion.get("values") if isinstance(completion, dict) else None
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise BadPayload("handed back a completion without a list of `values`")
    else:
        member = _LIST_MEMBER[kind]
        only_structured = kind == "tool" and "structuredContent" in result and member not in result
        if not only_structured and not isinstance(result.get(member), list):
            raise BadPayload(f"handed back a result without a list of `{member}`")
    if not isinstance(result.get("isError", False), bool):
        raise BadPayload("handed back a result whose `isError` is neither true nor false")
    return result
