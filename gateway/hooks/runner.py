"""One configured hook with what stands around it: its time-out, its breaker, its counters, copies and checks."""

from __future__ import annotations

import inspect
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import random
from typing import Any, Final, Literal

from cachetools import LRUCache

from gateway.hooks.audit_queue import AuditQueue
from gateway.hooks.formats import Format, decode, encode
from gateway.hooks.hook import BLOCK_CODE, PHASES, After, Answer, Before, Block, Call, Hook, HookFailed, Mode, Result
from gateway.hooks.payloads import BadPayload, plain
from gateway.hooks.threads import Busy, Threads
from gateway.hooks.timeout import Driven, Interfered, Late
from gateway.upstream.breaker import Breaker

log = logging.getLogger(__name__)

MAX_BREAKERS: Final = 1_024
MAX_REASON: Final = 2_000
_LISTS: Final = {"tool": "content", "prompt": "messages", "resource": "contents"}
_PASSED_OVER: Final = "is passed over for now, because it has failed again and again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the configuration says of one hook, beside the hook itself."""

    name: str
    mode: Mode = "transform"
    phases: frozenset[str] = frozenset(PHASES.values())
    priority: int = 100
    timeout_s: float = 5.0
    ignores: bool = False
    block_as: Literal["result", "error"] = "result"
    shape: Format = "native"
    wrappers: tuple[str, ...] | None = None
    servers: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    principals: tuple[str, ...] | None = None


class Guard:
    """Runs one hook. Whatever that does, the outcome is a checked value of nobody else's, or `HookFailed`."""

    def __init__(self, hook: Hook, terms: Terms, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.hook = hook
        self.terms = terms
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0
        self.last_error: str | None = None
        self.queue = AuditQueue(self) if terms.mode == "audit" else None
        # One for each phase, since a hook that is fine after every call may fail before each; and for each
        # principal, since one whose calls make it fail must not shut it for all others.
        self._breakers: LRUCache[tuple[str, str], Breaker] = LRUCache(MAX_BREAKERS)
        self._troubled = False
        self.origin: object = None
        self._clock = clock
        self._threads: Threads | None = None
        self._methods: Mapping[str, tuple[Callable[..., Any], bool]] = {
            phase: (method, inspect.iscoroutinefunction(method))
            for phase in PHASES.values()
            if phase in terms.phases and hook.offers(phase) and callable(method := getattr(hook, phase, None))
        }
        if any(not is_coroutine for _, is_coroutine in self._methods.values()):
            self._threads = Threads(terms.name)

    @property
    def name(self) -> str:
        """As the configuration names it."""
        return self.terms.name

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases in which it runs."""
        return tuple(self._methods)

    def runs(self, phase: str) -> bool:
        """Whether it runs in this phase."""
        return phase in self._methods

    @property
    def open(self) -> bool:
        """Whether it is passed over for now."""
        now_s = self._clock()
        return any(not breaker.admits(now_s) for breaker in list(self._breakers.values()))

    async def before(self, phase: str, call: Call) -> Before:
        """What it says to a call that is about to be made; a rewritten one comes back in the native shape.

        Raises:
            HookFailed: It failed, or is passed over.
        """
        return await self._run(phase, call, None)  # type: ignore[return-value] # `_checked` knows the phase

    async def after(self, phase: str, call: Call, result: Result) -> After:
        """What it says to a result.

        Raises:
            HookFailed: It failed, or is passed over.
        """
        return await self._run(phase, call, result)  # type: ignore[return-value] # `_checked` knows the phase

    async def _run(self, phase: str, call: Call, result: Result | None) -> Call | Result | Answer | Block | None:
        now_s = self._clock()
        breaker = self._breakers.get((phase, call.metadata.principal)) if self._troubled else None
        if breaker is not None:
            if not breaker.admits(now_s):
                self.counts["skipped"] += 1
                raise HookFailed(_PASSED_OVER)
            self._breakers[phase, call.metadata.principal] = breaker.probing(now_s)
        terms = self.terms
        self.counts["runs"] += 1
        try:
            given = call
            if terms.shape != "native":
                given = call.with_args(encode(terms.shape, call.args, call.metadata))
            method, is_coroutine = self._methods[phase]
            if not is_coroutine:
                said = await Driven(self._threaded(method, given, result), terms.timeout_s)
            else:
                said = await Driven(method(given) if result is None else method(given, result), terms.timeout_s)
            checked = None if said is None else self._checked(said, call, result)
        except Late:
            self.counts["late"] += 1
            raise self._failure(phase, call, f"did not answer within {terms.timeout_s:g} s") from None
        except Interfered as error:
            raise self._failure(phase, call, f"raised {error}") from None
        except Busy:
            raise self._failure(phase, call, "has no thread left: earlier calls of it hang") from None
        except BadPayload as error:
            raise self._failure(phase, call, str(error)) from None
        except Exception as error:  # noqa: BLE001 - boundary: a hook may raise what it likes
            raise self._failure(phase, call, f"raised {type(error).__name__}{place_of(error)}") from None
        finally:
            self.seconds += self._clock() - now_s
        if breaker is not None:
            self._breakers.pop((phase, call.metadata.principal), None)
            self._troubled = bool(self._breakers)
        return checked

    async def _threaded(self, method: Callable[..., Any], call: Call, result: Result | None) -> Any:
        assert self._threads is not None
        said = (
            await self._threads.run(method, call) if result is None else await self._threads.run(method, call, result)
        )
        if isinstance(said, Awaitable):
            if inspect.iscoroutine(said):
                said.close()
            raise BadPayload("handed back something to await; expected `async def`")
        return said

    def _checked(self, said: Any, call: Call, result: Result | None) -> Call | Result | Answer | Block | None:
        if isinstance(said, Block):
            self.counts["blocked"] += 1
            return _block(said)
        if self.terms.mode != "transform":
            raise BadPayload(f"handed back a {type(said).__name__}, which its mode {self.terms.mode} does not allow")
        if isinstance(said, Call) and result is None:
            args, _ = plain(said.handed_back())
            args = decode(self.terms.shape, args)
            self.counts["changed"] += 1
            return call.with_args(args)
        if isinstance(said, Result) and result is not None:
            value = _result(said.handed_back(), call)
            self.counts["changed"] += 1
            return Result(value)
        if isinstance(said, Answer) and result is None:
            value = _result(said.value, call)
            self.counts["answered"] += 1
            return Answer(value=value)
        raise BadPayload(f"handed back a {type(said).__name__}, which is none of what it may")

    def _failure(self, phase: str, call: Call, text: str) -> HookFailed:
        now_s, key = self._clock(), (phase, call.metadata.principal)
        breaker = self._breakers.get(key, Breaker())
        self.counts["failed"] += 1
        self.last_error = text
        self._breakers[key] = breaker.failed(now_s, random())
        self._troubled = True
        if breaker.admits(now_s):
            log.warning("hook %s %s", self.name, text)
        return HookFailed(text)

    async def close(self) -> None:
        """Let its threads end, then the hook itself; what that raises is logged."""
        if self._threads is not None:
            self._threads.close()
        try:
            await Driven(self.hook.close(), 2.0)
        except (Exception, Late, Interfered) as error:  # noqa: BLE001 - boundary: as above
            log.warning("hook %s did not close: %s", self.name, type(error).__name__)

    def row(self) -> dict[str, Any]:
        """Its state, as `/admin/hooks` shows it."""
        return {
            "name": self.name,
            "mode": self.terms.mode,
            "phases": [spelled for spelled, phase in PHASES.items() if phase in self._methods],
            "priority": self.terms.priority,
            "onError": "ignore" if self.terms.ignores else "fail",
            "breaker": "open" if self.open else "closed",
            "lastError": self.last_error,
            "seconds": round(self.seconds, 6),
            "counts": {key: self.counts[key] for key in COUNTED},
        }


COUNTED: Final = (
    "runs", "changed", "answered", "blocked", "failed", "late", "ignored", "skipped", "dropped",
)  # fmt: skip
"""What is counted of each hook."""


def _block(said: Block) -> Block:
    if not isinstance(said.reason, str) or not isinstance(said.description, str):
        raise BadPayload("blocked without a text for its reason")
    code = said.code if isinstance(said.code, int) and not isinstance(said.code, bool) else BLOCK_CODE
    return Block(reason=said.reason[:MAX_REASON], description=said.description[:MAX_REASON], code=code)


def _result(value: Any, call: Call) -> dict[str, Any]:
    found, _ = plain(value)
    wanted = _LISTS[call.metadata.kind]
    if not isinstance(found, dict):
        raise BadPayload("handed back a result that is no object")
    if found.get("resultType", "complete") != "complete":
        return found
    structured = call.metadata.kind == "tool" and "structuredContent" in found and wanted not in found
    if not structured and not isinstance(found.get(wanted), list):
        raise BadPayload(f"handed back a result without a list of `{wanted}`")
    if not isinstance(found.get("isError", False), bool):
        raise BadPayload("handed back a result whose `isError` is neither true nor false")
    return found


def place_of(error: BaseException) -> str:
    """Where it was raised; its text may hold what was called with."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" at {trace.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
