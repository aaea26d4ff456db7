"""Run a hook with a timeout, a circuit breaker and counters, and check the values that it returns.

A phase is a method of a hook, such as `before_call`. A circuit breaker skips a hook for a while after repeated
failures.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from random import random
from typing import Any, Final, NamedTuple

import anyio

from gateway.config.hooks_config import HookConfig
from gateway.hooks.foreign_code import BaseExceptionRaised, DaemonThreads, ThreadsBusy, TimedOut, TimedRun
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
from gateway.hooks.hook_formats import Format, decode, encode, error_text, where_raised
from gateway.hooks.payloads import BadPayload, plain
from gateway.protocol import json_bytes
from gateway.telemetry.trace_context import CURRENT, note_event
from gateway.upstream.breaker import Breaker

log = logging.getLogger(__name__)

# The maximum number of queued events per audit hook. A hook that writes to a disk handles thousands of events per
# second, so this is a backlog of less than a second.
MAX_EVENTS: Final = 1_000
# The limit of the total size of queued events: two results of the largest size that an upstream may send (8 MiB).
# Typical events have a few kilobytes.
MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
# How long shutdown waits for queued events. Together with closing the hooks, this stays within the 10 s after which
# container runtimes kill a process.
DRAIN_S: Final = 2.0

Deliver = Callable[[str, Call, Result | None], Awaitable[object]]


class AuditQueue:
    """Delivers events to one audit hook, one at a time. Calls do not wait for the delivery.

    Args:
        counts: The hook's counters; this class updates `dropped` and `ignored`.
        deliver: Runs one phase of the hook.
    """

    def __init__(self, name: str, counts: dict[str, int], deliver: Deliver) -> None:
        self._name = name
        self._counts = counts
        self._deliver = deliver
        self._events: deque[tuple[str, Metadata, bytes]] = deque()
        self._queued_bytes = 0
        self._changed = anyio.Event()
        self._closed = False
        self.ended = anyio.Event()

    def put(self, phase: str, metadata: Metadata, args: dict[str, Any], result: dict[str, Any] | None) -> None:
        """Queue an event, or count it as dropped."""
        try:
            # Serialized immediately, because other hooks and the response encoder may change these objects in place.
            data = json_bytes.fitted(json_bytes.dumps([args, result]))
        except json_bytes.MalformedJson:
            data = b""
        fits = len(self._events) < MAX_EVENTS and self._queued_bytes + len(data) <= MAX_QUEUED_BYTES
        if not data or not fits or self._closed:
            if not self._counts["dropped"]:  # logged once, so that a slow hook does not flood the log
                log.warning("hook queue full, dropping events: %s", self._name)
            self._counts["dropped"] += 1
            return
        self._events.append((phase, metadata, data))
        self._queued_bytes += len(data)
        self._changed.set()

    def close(self) -> None:
        """Accept no more events; `run` returns once the queued events have been delivered."""
        self._closed = True
        self._changed.set()

    async def run(self) -> None:
        """Deliver events until closed. After a cancellation, spend at most `DRAIN_S` on the remaining events."""
        try:
            while not self._closed:
                await self._changed.wait()
                # Replaced before draining, so that a hook event that arrives meanwhile sets the new `anyio.Event`.
                self._changed = anyio.Event()
                await self._drain()
        finally:
            self._closed = True
            with anyio.move_on_after(DRAIN_S, shield=True):
                await self._drain()
            if self._events:
                self._counts["dropped"] += len(self._events)
                log.warning("hook events dropped at shutdown: %d for %s", len(self._events), self._name)
            self.ended.set()

    async def _drain(self) -> None:
        while self._events:
            phase, metadata, data = self._events.popleft()
            self._queued_bytes -= len(data)
            args, result = json_bytes.loads(data)
            call = Call(name=metadata.tool, args=args, metadata=metadata)
            try:
                await self._deliver(phase, call, None if result is None else Result(result))
            except HookFailed:
                self._counts["ignored"] += 1


# The time limit of `Hook.close`, stated in its docstring. Hooks usually close a file or a connection there.
CLOSE_S: Final = 2.0
# The maximum number of circuit breakers per hook. Each phase and principal with recent failures has one, and few
# gateways have hundreds of principals.
MAX_BREAKERS: Final = 1_024
# The maximum length of a block's reason and of its description. It is about a page, because a model reads them.
MAX_REASON_CHARS: Final = 2_000
COUNTED: Final = ("changed", "answered", "blocked", "failed", "late", "ignored", "skipped", "dropped", "refused")
"""The outcomes counted for each hook, in addition to its runs."""
PHASES_OF_TOOLS: Final = frozenset({"before_call", "after_call"})
_LIST_MEMBER: Final = {"tool": "content", "prompt": "messages", "resource": "contents"}


class _Run(NamedTuple):
    """One run of a hook: a phase of a call.

    Attributes:
        result: The result of the call; None in a phase before the call.
        is_probe: True if the hook has failed recently for this principal, so that success closes the circuit breaker.
    """

    phase: str
    call: Call
    result: Result | None
    began_s: float
    is_probe: bool


class HookRunner:
    """Runs one hook. Whatever the hook does, the outcome is `HookFailed` or a checked copy of what it returned.

    Attributes:
        entry: The hook's entry in the configuration.
        mode: The mode from the entry, or else the hook's default mode.
        queue: The pending events of an audit hook; None in other modes.
        source: The `HookSource` from which the hook was built.
        run_count: The number of runs.
        counts: The number of runs with each outcome in `COUNTED`.
        seconds: The total duration of all runs.
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
        # By phase and principal: a hook may fail in one phase only, and a principal whose calls make the hook fail must
        # not disable the hook for other principals.
        self._breakers: dict[tuple[str, str], Breaker] = {}
        self._timeout_s = entry.timeout
        self._translates = entry.payload_format != "native"
        self._clock = clock
        self._threads: DaemonThreads | None = None
        # The methods of the phases, by phase. Each returns a coroutine.
        self._methods: Mapping[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            phase: method if inspect.iscoroutinefunction(method) else self._in_thread(method)
            for phase in (PHASES[spelled] for spelled in PHASES if spelled in (entry.phases or PHASES))
            if hook.offers(phase) and callable(method := getattr(hook, phase, None))
        }

    @property
    def name(self) -> str:
        """The hook's name in the configuration."""
        return self.entry.name

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases in which the hook runs."""
        return tuple(self._methods)

    def runs(self, phase: str) -> bool:
        """Return whether the hook runs in this phase."""
        return phase in self._methods

    @property
    def open(self) -> bool:
        """True if a circuit breaker is open, so that some calls skip the hook."""
        now_s = self._clock()
        return any(not breaker.admits(now_s) for breaker in list(self._breakers.values()))

    async def run(self, phase: str, call: Call, result: Result | None = None) -> HookReturn:
        """Run one phase, then check and return the value from the hook. Changed arguments have the native format.

        Args:
            phase: A phase for which `runs` is true.
            result: The result of the call; None in a phase before the call.

        Raises:
            HookFailed: The hook failed, or its circuit breaker is open.
        """
        returned = self.start_phase(phase, call, result)
        return await returned if isinstance(returned, Coroutine) else returned

    def start_phase(
        self, phase: str, call: Call, result: Result | None = None
    ) -> HookReturn | Coroutine[Any, Any, HookReturn]:
        """Run a phase like `run`, but only up to the hook's first suspension.

        Returns:
            The checked return value if the hook does not suspend; otherwise a coroutine, which the caller has to await
            immediately.
        """
        if CURRENT.get() is not None:
            note_event("hook", hook=self.name, phase=phase)
        began_s = self._clock()
        # Look up the principal only after recent failures, because the lookup requires building the metadata.
        is_probe = self._is_probe(phase, call, began_s) if self._breakers else False
        self.run_count += 1
        try:
            encoded_call = self._encode_arguments(phase, call) if self._translates else call
            method = self._methods[phase]
            coroutine = method(encoded_call) if result is None else method(encoded_call, result)
            try:
                # Run the first step here: most hooks never suspend, and those need no timer and no second coroutine.
                waits_for = coroutine.send(None)
            except StopIteration as end:
                returned = end.value
            else:
                return self._finish(coroutine, waits_for, _Run(phase, call, result, began_s, is_probe))
        except Exception as error:  # noqa: BLE001 - boundary: a hook may raise anything
            raise self._to_hook_failed(error, _Run(phase, call, result, began_s, is_probe)) from None
        except BaseException as error:  # noqa: BLE001 - boundary: as above
            raised = BaseExceptionRaised(type(error).__name__)
            raise self._to_hook_failed(raised, _Run(phase, call, result, began_s, is_probe)) from None
        took_s = self._clock() - began_s
        if returned is None and not is_probe and took_s <= self._timeout_s:
            self.seconds += took_s
            return None  # fast path for most runs
        return self._accept(returned, _Run(phase, call, result, began_s, is_probe), took_s)

    async def _finish(self, coroutine: Coroutine[Any, Any, Any], waits_for: object, run: _Run) -> HookReturn:
        """Await the rest of a phase that has suspended, within the timeout."""
        try:
            returned = await TimedRun(coroutine, self._timeout_s, waits_for)
        except Exception as error:  # noqa: BLE001 - boundary: as above
            raise self._to_hook_failed(error, run) from None
        except BaseException:  # the call itself is cancelled
            self.seconds += self._clock() - run.began_s
            raise
        return self._accept(returned, run, self._clock() - run.began_s)

    def _accept(self, returned: Any, run: _Run, took_s: float) -> HookReturn:
        """Check what the hook has returned, and return the checked value.

        Raises:
            HookFailed: The value is not allowed, or the hook took too long.
        """
        try:
            checked = None if returned is None else self._check_returned(returned, run.call, run.result, run.phase)
        except Exception as error:  # noqa: BLE001 - boundary: the returned object may run its own code
            raise self._to_hook_failed(error, run) from None
        self.seconds += self._clock() - run.began_s
        # Checked here, too, because a hook that blocks the event loop prevents the timer from firing.
        if took_s > self._timeout_s:
            detail = f", it blocked the event loop, for up to {took_s:.1f} s"
            raise self._timeout_failure(run.phase, run.call, self._timeout_s, detail)
        if run.is_probe:
            self._breakers.pop((run.phase, run.call.metadata.principal), None)
        return checked

    def _to_hook_failed(self, error: Exception, run: _Run) -> HookFailed:
        """Count a hook's exception and convert it to a `HookFailed`."""
        self.seconds += self._clock() - run.began_s
        phase, call = run.phase, run.call
        if isinstance(error, HookFailed):
            return error
        if isinstance(error, TimedOut):
            return self._timeout_failure(phase, call, self._timeout_s)
        if isinstance(error, BaseExceptionRaised):
            return self._record_failure(phase, call, f"raised {error}")
        if isinstance(error, ThreadsBusy):
            return self._record_failure(phase, call, "has no free thread, because its earlier calls still run")
        if isinstance(error, BadPayload):
            return self._record_failure(phase, call, str(error))
        text = f"raised {type(error).__name__}{where_raised(error)}"
        return self._record_failure(phase, call, text, error_text(error, call, run.result))

    def _is_probe(self, phase: str, call: Call, now_s: float) -> bool:
        """Return whether the phase and principal have a circuit breaker, so that success of this run closes it.

        Raises:
            HookFailed: The circuit breaker is open.
        """
        key = (phase, call.metadata.principal)
        breaker = self._breakers.get(key)
        if breaker is None:
            return False
        if not breaker.admits(now_s):
            self.counts["skipped"] += 1
            raise HookFailed("is skipped for now, because it has failed repeatedly")
        # Let other calls skip the hook until the outcome of this run is known.
        self._store_breaker(key, breaker.probing(now_s))
        return True

    def _store_breaker(self, key: tuple[str, str], breaker: Breaker) -> None:
        self._breakers.pop(key, None)
        if len(self._breakers) >= MAX_BREAKERS:
            del self._breakers[next(iter(self._breakers))]  # the least recently updated breaker
        self._breakers[key] = breaker

    def enqueue(self, phase: str, metadata: Metadata, args: dict[str, Any], result: dict[str, Any] | None) -> None:
        """Queue an event for an audit hook if the hook runs in this phase."""
        if self.queue is not None and phase in self._methods:
            self.queue.put(phase, metadata, args, result)

    def _in_thread(self, method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
        self._threads = self._threads or DaemonThreads(self.name)
        return partial(self._run_in_thread, self._threads, method)

    async def _run_in_thread(
        self, threads: DaemonThreads, method: Callable[..., Any], *arguments: Call | Result
    ) -> Any:
        returned = await threads.run(method, *arguments)
        if isinstance(returned, Awaitable):
            if inspect.iscoroutine(returned):
                returned.close()  # otherwise Python warns that the coroutine was never awaited
            raise BadPayload("returned an awaitable; expected `async def`")
        return returned

    def report_failure(self, text: str) -> None:
        """Count and log a failure that was detected only after the run."""
        self.counts["failed"] += 1
        self.last_error = text
        log.warning("hook failed: %s %s", self.name, text)

    def _encode_arguments(self, phase: str, call: Call) -> Call:
        payload_format = self._format(phase)
        if payload_format == "native":
            return call
        return call.with_args(encode(payload_format, call.args, call.metadata))

    def _format(self, phase: str) -> Format:
        # Other gateways define their formats for tools only, so prompts and resources have the native format.
        return self.entry.payload_format if phase in PHASES_OF_TOOLS else "native"

    def _timeout_failure(self, phase: str, call: Call, timeout_s: float, detail: str = "") -> HookFailed:
        self.counts["late"] += 1
        return self._record_failure(phase, call, f"did not answer within {timeout_s:g} s", detail)

    def _check_returned(self, returned: Any, call: Call, result: Result | None, phase: str) -> HookReturn:
        if isinstance(returned, Block):
            self.counts["blocked"] += 1
            return _checked_block(returned)
        kind = type(returned).__name__
        if self.mode != "transform":
            raise BadPayload(f"returned a {kind}, which its mode {self.mode} does not allow")
        if isinstance(returned, Call) and result is None:
            args = decode(self._format(phase), plain(returned.unchecked())[0])
            self.counts["changed"] += 1
            return call.with_args(args)
        if isinstance(returned, Result) and result is not None:
            value = _checked_result(returned.unchecked(), call)
            self.counts["changed"] += 1
            return Result(value)
        if isinstance(returned, Answer) and result is None:
            value = _checked_result(returned.value, call)
            self.counts["answered"] += 1
            return Answer(value=value)
        raise BadPayload(f"returned a {kind}, which is not allowed in this phase")

    def _record_failure(self, phase: str, call: Call, text: str, detail: str = "") -> HookFailed:
        """Count and log a failure. `detail` is added to the text for the operator, but not to the text for callers."""
        now_s, key = self._clock(), (phase, call.metadata.principal)
        # Look up the breaker again: other calls may have failed during this run.
        breaker = self._breakers.get(key, Breaker())
        self.counts["failed"] += 1
        self.last_error = text + detail
        self._store_breaker(key, breaker.failed(now_s, random(), began_s=now_s))
        if breaker.admits(now_s):  # otherwise, earlier failures that opened the breaker have been logged
            log.warning("hook failed: %s %s", self.name, self.last_error)
        return HookFailed(text)

    async def close(self) -> None:
        """Let the hook's threads exit, then close the hook. Errors are logged."""
        if self._threads is not None:
            self._threads.close()
        try:
            await TimedRun(self.hook.close(), CLOSE_S)
        except (Exception, TimedOut, BaseExceptionRaised) as error:  # noqa: BLE001 - boundary: as above
            log.warning("hook close failed: %s %s", self.name, type(error).__name__)

    def row(self) -> dict[str, Any]:
        """Return the hook's state as a row for `/admin/hooks`."""
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
        raise BadPayload("returned a block without a text as its reason")
    # The hook may have set any value. Only integers are valid codes, but not booleans, although bool is a subclass of
    # int.
    code = block.code if isinstance(block.code, int) and not isinstance(block.code, bool) else BLOCK_CODE
    return Block(reason=block.reason[:MAX_REASON_CHARS], description=block.description[:MAX_REASON_CHARS], code=code)


def _checked_result(value: Any, call: Call) -> dict[str, Any]:
    result, _ = plain(value)
    kind = call.metadata.kind
    if not isinstance(result, dict):
        raise BadPayload("returned a result that is not an object")
    if result.get("resultType", "complete") != "complete":
        return result
    if kind == "completion":
        completion = result.get("completion")
        values = completion.get("values") if isinstance(completion, dict) else None
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise BadPayload("returned a completion without a list of `values`")
    else:
        member = _LIST_MEMBER[kind]
        only_structured = kind == "tool" and "structuredContent" in result and member not in result
        if not only_structured and not isinstance(result.get(member), list):
            raise BadPayload(f"returned a result without a list of `{member}`")
    if not isinstance(result.get("isError", False), bool):
        raise BadPayload("returned a result whose `isError` is not a boolean")
    return result
