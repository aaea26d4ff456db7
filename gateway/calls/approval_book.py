"""Calls that wait for a person, and what persons have allowed: the one place that knows, whoever asks."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, Protocol, get_args

import anyio

from gateway.audit.reading import as_time
from gateway.audit.record import Audit
from gateway.config.approvals import ApprovalsConfig, Approver

Lasts = Literal["once", "session", "tool"]
LASTS: Final[tuple[Lasts, ...]] = get_args(Lasts)

# All callers together: more than anybody decides about while they wait.
MAX_WAITING: Final = 1_000
# Each takes about 300 bytes; beyond it the one that was used longest ago is asked about again.
MAX_GRANTS: Final = 10_000
# How long a question of its upstream may interrupt a call that was allowed once: as long as a host is asked.
_CONTINUED_S: Final = 600.0
_FIELD_CHARS: Final = 32


class TooManyWaiting(Exception):
    """Nobody is asked, since too many calls wait already; the text says whose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One call, as a person decides about it.

    Attributes:
        principal: Whose call.
        session: In which session, or from which client where there are no sessions.
        wrapper: The tool.
        server: Its server.
        definition: The digest of the tool: another one was never allowed.
        call: The digest of the arguments.
        rule: The rule that asks.
        arguments: As they are shown: bounded, without hidden characters and known secrets.
        by: Who decides. An administrator may in place of a host, and never a host in place of an administrator.
        id: By which it is decided.
    """

    principal: str
    session: str
    wrapper: str
    server: str
    definition: str
    call: str
    rule: str
    arguments: str
    by: Approver = "administrator"
    id: str = field(default_factory=lambda: secrets.token_hex(6))

    def to_json(self) -> dict[str, Any]:
        """The question for another process."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided.

    Attributes:
        kind: Nobody did in time for `expired`; `unknown` where there is no such question any more.
        lasts: For what it is allowed.
        by: `host` or `administrator`; empty for nobody.
    """

    kind: Literal["allowed", "denied", "expired", "unknown"]
    lasts: Lasts = "once"
    by: str = ""


class Book(Protocol):
    """The seam to the process that has the book."""

    async def begin(self, question: Question) -> bool:
        """Whether it is allowed already; otherwise the call waits from now on.

        Raises:
            TooManyWaiting: Nobody is asked.
        """

    async def wait(self, question: Question) -> Decision:
        """Return once it is decided, or when nobody did in time; a decision is given out once."""

    async def decide(self, question_id: str, *, allow: bool, lasts: Lasts, by: str) -> bool:
        """Decide, or take back what was allowed; returns whether there is such a question."""

    async def withdraw(self, question: Question) -> None:
        """The caller has gone."""

    async def allow_again(self, question: Question) -> None:
        """The same call comes again, to go on where its upstream has asked for input."""


@dataclass(slots=True, eq=False)
class _Waiting:
    question: Question
    asked_s: float
    until_s: float
    # Asked by another gateway, which records what becomes of it.
    elsewhere: bool = False
    decision: Decision | None = None
    decided: anyio.Event = field(default_factory=anyio.Event)


@dataclass(slots=True, kw_only=True)
class _Grant:
    id: str
    question: Question
    lasts: Lasts
    until_s: float


class ApprovalBook:
    """The book itself.

    Args:
        settings: How long, and how many.
        audit: The record of what is decided.
        clock: Seconds since 1970.

    Attributes:
        on_change: Called whenever something is asked, decided or allowed, or is so no more.
    """

    def __init__(self, settings: ApprovalsConfig, audit: Audit, *, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self._audit = audit
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}
        self._grants: OrderedDict[tuple[str, ...], _Grant] = OrderedDict()
        self.on_change: Callable[[], None] = _nothing

    async def begin(self, question: Question) -> bool:
        """See `Book.begin`."""
        if self._is_granted(question):
            return True
        if question.id in self._waiting:
            return False
        self._expire()
        own = sum(one.question.principal == question.principal for one in self._waiting.values())
        if own >= self.settings.waiting:
            raise TooManyWaiting(f"{own} calls of {question.principal} wait for approval already")
        if len(self._waiting) >= MAX_WAITING:
            raise TooManyWaiting("too many calls wait for approval")
        now_s = self._clock()
        self._waiting[question.id] = _Waiting(question, now_s, now_s + self.settings.timeout)
        self._record(question, "asked", Decision(kind="unknown"))
        self.on_change()
        return False

    async def wait(self, question: Question) -> Decision:
        """See `Book.wait`."""
        waiting = self._waiting.get(question.id)
        if waiting is None:
            return Decision(kind="unknown")
        with anyio.move_on_after(max(0.0, waiting.until_s - self._clock())):
            await waiting.decided.wait()
        # Whoever comes second, as with a repeated answer, is told that it is over.
        taken = self._waiting.pop(question.id, None) is waiting
        self.on_change()
        if waiting.decision is not None:
            return waiting.decision if taken else Decision(kind="unknown")
        if taken:
            self._record(question, "expired", Decision(kind="expired"))
        return Decision(kind="expired")

    async def decide(self, question_id: str, *, allow: bool, lasts: Lasts, by: str) -> bool:
        """See `Book.decide`."""
        waiting = self._waiting.get(question_id)
        if waiting is None or waiting.decision is not None or waiting.until_s <= self._clock():
            return not allow and self._take_back(question_id, by)
        question = waiting.question
        if by == "host":
            if question.by != "host":
                return False
            # It speaks for the caller: what it has allowed must not let later calls through unseen.
            lasts = "once"
        decision = Decision(kind="allowed" if allow else "denied", lasts=lasts if allow else "once", by=by)
        waiting.decision = decision
        if allow and lasts != "once":
            self._grant(question, lasts, self.settings.expires)
        self._record(question, decision.kind, decision)
        waiting.decided.set()
        if allow and lasts != "once":
            # What else waits for the very same needs no further answer.
            for other in list(self._waiting.values()):
                if other.decision is None and self._is_granted(other.question):
                    other.decision = decision
                    self._record(other.question, decision.kind, decision)
                    other.decided.set()
        self.on_change()
        return True

    async def withdraw(self, question: Question) -> None:
        """See `Book.withdraw`."""
        if self._waiting.pop(question.id, None) is not None:
            self._record(question, "withdrawn", Decision(kind="unknown"))
            self.on_change()

    async def allow_again(self, question: Question) -> None:
        """See `Book.allow_again`."""
        self._grant(question, "once", _CONTINUED_S)

    def forget(self) -> None:
        """Forget what was allowed for longer than once: the rules are others."""
        self._grants.clear()
        self.on_change()

    def knows(self, question_id: str) -> bool:
        """Whether somebody waits for the answer to this."""
        return question_id in self._waiting

    # for other gateways

    def fields(self) -> dict[str, Any]:
        """What waits, what was decided and what is allowed, as fields that can be shared."""
        found: dict[str, Any] = {}
        for question_id, one in self._waiting.items():
            asked = {"question": one.question.to_json(), "asked": one.asked_s, "until": one.until_s}
            found[f"asked:{question_id}"] = asked
            if one.decision is not None:
                found[f"decided:{question_id}"] = asdict(one.decision)
        for key, grant in self._grants.items():
            name = hashlib.sha256("\n".join(key).encode("utf-8", "surrogatepass")).hexdigest()[:_FIELD_CHARS]
            found[f"grant:{name}"] = asdict(grant)
        return found

    def take(self, fields: Mapping[str, Any]) -> None:
        """Become what these fields say."""
        for question_id in [one for one in self._waiting if f"asked:{one}" not in fields]:
            # Answered, withdrawn or expired at another gateway.
            self._waiting.pop(question_id).decided.set()
        self._grants = OrderedDict()
        for place, value in fields.items():
            kind, _, name = place.partition(":")
            if kind == "asked" and name not in self._waiting:
                question = Question(**value["question"])
                self._waiting[name] = _Waiting(question, value["asked"], value["until"], elsewhere=True)
            elif kind == "grant":
                grant = _Grant(**{**value, "question": Question(**value["question"])})
                self._grants[_key(grant.question, grant.lasts)] = grant
        for question_id, one in self._waiting.items():
            decided = fields.get(f"decided:{question_id}")
            if decided is not None and one.decision is None:
                one.decision = Decision(**decided)
                one.decided.set()

    def rows(self) -> list[dict[str, Any]]:
        """What waits, the longest first, and what is allowed for longer."""
        self._expire()
        now_s = self._clock()
        waiting = [
            {**_row(one.question), "state": "waiting", "for": None, "asked": as_time(one.asked_s),
             "expires": as_time(one.until_s)}
            for one in self._waiting.values()
            if one.decision is None
        ]  # fmt: skip
        granted = [
            {**_row(one.question), "id": one.id, "arguments": None, "state": "allowed", "for": one.lasts,
             "asked": None, "expires": as_time(one.until_s)}
            for one in self._grants.values()
            if one.lasts != "once" and one.until_s > now_s
        ]  # fmt: skip
        return [*waiting, *granted]

    def _is_granted(self, question: Question) -> bool:
        for lasts in LASTS:
            key = _key(question, lasts)
            grant = self._grants.get(key)
            if grant is None:
                continue
            if lasts == "once" or grant.until_s <= self._clock():
                del self._grants[key]
                self.on_change()
            else:
                self._grants.move_to_end(key)
            if grant.until_s > self._clock():
                return True
        return False

    def _grant(self, question: Question, lasts: Lasts, for_s: float) -> None:
        self._grants[_key(question, lasts)] = _Grant(
            id=question.id, question=question, lasts=lasts, until_s=self._clock() + for_s
        )
        if len(self._grants) > MAX_GRANTS:
            self._grants.popitem(last=False)
        self.on_change()

    def _take_back(self, question_id: str, by: str) -> bool:
        found = [key for key, grant in self._grants.items() if grant.id == question_id and grant.lasts != "once"]
        for key in found:
            grant = self._grants.pop(key)
            self._record(grant.question, "taken_back", Decision(kind="denied", lasts=grant.lasts, by=by))
            self.on_change()
        return bool(found)

    def _expire(self) -> None:
        """Forget what nobody waits for any more: a modern caller that was asked may never come back."""
        now_s = self._clock()
        for question_id, one in list(self._waiting.items()):
            if one.until_s <= now_s:
                del self._waiting[question_id]
                one.decided.set()
                self.on_change()
                if one.decision is None and not one.elsewhere:
                    self._record(one.question, "expired", Decision(kind="expired"))

    def _record(self, question: Question, what: str, decision: Decision) -> None:
        self._audit.approval(
            question.principal, question.wrapper, what,
            rule=question.rule, by=decision.by, approval=question.id, lasts=decision.lasts,
        )  # fmt: skip


def _nothing() -> None:
    """Stand for whoever wants to hear of changes."""


def _key(question: Question, lasts: Lasts) -> tuple[str, ...]:
    common = (lasts, question.rule, question.wrapper, question.definition, question.principal)
    if lasts == "tool":
        return common
    return (*common, question.session) if lasts == "session" else (*common, question.session, question.call)


def _row(question: Question) -> dict[str, Any]:
    names = ("id", "principal", "wrapper", "server", "rule", "arguments", "by")
    return {name: getattr(question, name) for name in names}
