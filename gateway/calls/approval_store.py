"""Calls that wait for approval, and approvals that have been granted."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final, Literal, Protocol, get_args

import anyio

from gateway.audit.audit_entries import format_time
from gateway.audit.recording import Audit
from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.operation_config import ApprovalsConfig, Approver

Lasts = Literal["once", "session", "tool"]
LASTS: Final[tuple[Lasts, ...]] = get_args(Lasts)

# Maximum number of waiting calls of all callers: more than people can decide on while the calls wait.
MAX_WAITING: Final = 1_000
# Maximum number of granted approvals, at about 300 bytes each. Beyond the limit, the least recently used approval is
# dropped, and a person has to approve the next call again.
MAX_GRANTS: Final = 10_000
# Time within which an approved call may be repeated with the answer to an upstream's input request. A host may take
# this long to answer.
_CONTINUED_S: Final = 600.0
_FIELD_CHARS: Final = 32


class TooManyWaiting(Exception):
    """The question was not asked, because too many calls of the caller or of all callers are waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One call that needs a decision.

    Attributes:
        principal: The name of the caller.
        session: The id of the caller's session; without a session, the name from `client_key`.
        wrapper: The tool.
        server: The alias of the tool's server.
        definition: The digest of the tool's definition. An approval does not extend to a changed definition.
        call: The digest of the arguments.
        rule: The rule that requires approval.
        arguments: The arguments as shown to a person: cut to a maximum length, without hidden characters and without
            known secrets.
        by: Who decides: the user of the host, or an administrator. An administrator may also decide instead of the
            user.
        id: Identifies the question.
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
        """Return the question as JSON, for another process."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision about a question.

    Attributes:
        kind: `expired` if there was no decision in time, `unknown` if the question no longer exists.
        lasts: How far an approval extends: to this call only, to the session's calls of the tool, or to all of the
            caller's calls of the tool.
        by: `host` or `administrator`; empty if there was no decision.
    """

    kind: Literal["allowed", "denied", "expired", "unknown"]
    lasts: Lasts = "once"
    by: str = ""


class ApprovalBackend(Protocol):
    """The interface to the approval store, which may be in another process."""

    async def register(self, question: Question) -> bool:
        """Return true if the call is already approved; otherwise register it as waiting.

        Raises:
            TooManyWaiting: The call was not registered.
        """

    async def wait(self, question: Question) -> Decision:
        """Wait for the decision or the timeout. Each decision is returned only once."""

    async def decide(self, question_id: str, *, allow: bool, lasts: Lasts, by: str) -> bool:
        """Decide a question, or revoke a granted approval. Return false if there was nothing to decide or revoke."""

    async def withdraw(self, question: Question) -> None:
        """Remove a question whose caller has disconnected."""

    async def allow_again(self, question: Question) -> None:
        """Allow the same call to be repeated once, with the answer to an upstream's input request."""


@dataclass(slots=True, eq=False)
class _Waiting:
    question: Question
    asked_s: float
    until_s: float
    # True if another replica registered the question; that replica records the outcome in its audit log.
    elsewhere: bool = False
    decision: Decision | None = None
    decided: anyio.Event = field(default_factory=anyio.Event)


@dataclass(slots=True, kw_only=True)
class _Grant:
    id: str
    question: Question
    lasts: Lasts
    until_s: float


def _ignore_change() -> None:
    """Do nothing; the default for `on_change`."""


class ApprovalStore(Reconfigurable):
    """The waiting calls and granted approvals in the memory of this process (implements `ApprovalBackend`).

    Args:
        settings: Timeouts and limits.
        audit: Records questions and decisions in the audit log.
        clock: Returns seconds since 1970.
        on_change: Called after each change of questions, decisions or approvals.
    """

    def __init__(
        self,
        settings: ApprovalsConfig,
        audit: Audit,
        *,
        clock: Callable[[], float] = time.time,
        on_change: Callable[[], None] = _ignore_change,
    ) -> None:
        self.settings = settings
        self._audit = audit
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}
        self._grants: OrderedDict[tuple[str, ...], _Grant] = OrderedDict()
        self._on_change = on_change

    async def register(self, question: Question) -> bool:
        if self._is_granted(question):
            return True
        if question.id in self._waiting:
            return False
        self._expire()
        own = sum(entry.question.principal == question.principal for entry in self._waiting.values())
        if own >= self.settings.waiting:
            raise TooManyWaiting(f"{own} calls of {question.principal} already wait for approval")
        if len(self._waiting) >= MAX_WAITING:
            raise TooManyWaiting("too many calls wait for approval")
        now_s = self._clock()
        self._waiting[question.id] = _Waiting(question, now_s, now_s + self.settings.timeout)
        self._record(question, "asked", Decision(kind="unknown"))
        self._on_change()
        return False

    async def wait(self, question: Question) -> Decision:
        waiting = self._waiting.get(question.id)
        if waiting is None:
            return Decision(kind="unknown")
        with anyio.move_on_after(max(0.0, waiting.until_s - self._clock())):
            await waiting.decided.wait()
        # Only the first waiter gets the decision. If a client sends its answer twice, the question no longer exists.
        is_first = self._waiting.pop(question.id, None) is waiting
        self._on_change()
        if waiting.decision is not None:
            return waiting.decision if is_first else Decision(kind="unknown")
        if is_first:
            self._record(question, "expired", Decision(kind="expired"))
        return Decision(kind="expired")

    async def decide(self, question_id: str, *, allow: bool, lasts: Lasts, by: str) -> bool:
        waiting = self._waiting.get(question_id)
        if waiting is None or waiting.decision is not None or waiting.until_s <= self._clock():
            return not allow and self._revoke(question_id, by)
        question = waiting.question
        if by == "host":
            if question.by != "host":
                return False
            # A host acts for the caller, so its approval must not allow later calls without another question.
            lasts = "once"
        decision = Decision(kind="allowed" if allow else "denied", lasts=lasts if allow else "once", by=by)
        waiting.decision = decision
        if allow and lasts != "once":
            self._grant(question, lasts, self.settings.expires)
        self._record(question, decision.kind, decision)
        waiting.decided.set()
        if allow and lasts != "once":
            # The approval may also cover other waiting calls of the same tool.
            for covered in list(self._waiting.values()):
                if covered.decision is None and self._is_granted(covered.question):
                    covered.decision = decision
                    self._record(covered.question, decision.kind, decision)
                    covered.decided.set()
        self._on_change()
        return True

    async def withdraw(self, question: Question) -> None:
        if self._waiting.pop(question.id, None) is not None:
            self._record(question, "withdrawn", Decision(kind="unknown"))
            self._on_change()

    async def allow_again(self, question: Question) -> None:
        self._grant(question, "once", _CONTINUED_S)

    def repetition(self, question: Question) -> str | None:
        """Return the name of the permission to repeat exactly this call once, from `allow_again`; None if missing."""
        grant = self._grants.get(_key(question, "once"))
        return f"{grant.id}:{grant.until_s}" if grant is not None and grant.until_s > self._clock() else None

    def drop_repetition(self, question: Question) -> None:
        """Remove the permission to repeat this call, because another process has used it."""
        if self._grants.pop(_key(question, "once"), None) is not None:
            self._on_change()

    async def validate(self, change: ConfigChange) -> Apply:
        return partial(self._apply, change)

    def _apply(self, change: ConfigChange) -> None:
        self.settings = change.after.gateway.approvals
        if change.changes_rules:
            # Approvals refer to rules by name, and another rule may have the same name now.
            self.forget()

    def forget(self) -> None:
        """Drop all granted approvals, because the rules have changed."""
        self._grants.clear()
        self._on_change()

    def knows(self, question_id: str) -> bool:
        """Return whether a question is registered."""
        return question_id in self._waiting

    # State exchange between replicas

    def fields(self) -> dict[str, Any]:
        """Return all questions, decisions and approvals as fields that can be shared with other replicas."""
        fields: dict[str, Any] = {}
        for question_id, entry in self._waiting.items():
            waiting_fields = {"question": entry.question.to_json(), "asked": entry.asked_s, "until": entry.until_s}
            fields[f"asked:{question_id}"] = waiting_fields
            if entry.decision is not None:
                fields[f"decided:{question_id}"] = asdict(entry.decision)
        for key, grant in self._grants.items():
            name = hashlib.sha256("\n".join(key).encode("utf-8", "surrogatepass")).hexdigest()[:_FIELD_CHARS]
            fields[f"grant:{name}"] = asdict(grant)
        return fields

    def replace_state(self, fields: Mapping[str, Any]) -> None:
        """Replace the state by these fields from another replica."""
        for question_id in [known_id for known_id in self._waiting if f"asked:{known_id}" not in fields]:
            # The question was answered, was withdrawn or has expired at another replica.
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
        for question_id, entry in self._waiting.items():
            decided = fields.get(f"decided:{question_id}")
            if decided is not None and entry.decision is None:
                entry.decision = Decision(**decided)
                entry.decided.set()

    def rows(self) -> list[dict[str, Any]]:
        """Return the waiting calls, oldest first, and the approvals that last longer than one call."""
        self._expire()
        now_s = self._clock()
        waiting = [
            {
                **_row(entry.question),
                "state": "waiting",
                "for": None,
                "asked": format_time(entry.asked_s),
                "expires": format_time(entry.until_s),
            }
            for entry in self._waiting.values()
            if entry.decision is None
        ]
        granted = [
            {
                **_row(grant.question),
                "id": grant.id,
                "arguments": None,
                "state": "allowed",
                "for": grant.lasts,
                "asked": None,
                "expires": format_time(grant.until_s),
            }
            for grant in self._grants.values()
            if grant.lasts != "once" and grant.until_s > now_s
        ]
        return [*waiting, *granted]

    def _is_granted(self, question: Question) -> bool:
        for lasts in LASTS:
            key = _key(question, lasts)
            grant = self._grants.get(key)
            if grant is None:
                continue
            if lasts == "once" or grant.until_s <= self._clock():
                del self._grants[key]
                self._on_change()
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
        self._on_change()

    def _revoke(self, question_id: str, by: str) -> bool:
        keys = [key for key, grant in self._grants.items() if grant.id == question_id and grant.lasts != "once"]
        for key in keys:
            grant = self._grants.pop(key)
            self._record(grant.question, "taken_back", Decision(kind="denied", lasts=grant.lasts, by=by))
            self._on_change()
        return bool(keys)

    def _expire(self) -> None:
        """Drop expired questions. The callers of these questions may never repeat the request."""
        now_s = self._clock()
        for question_id, entry in list(self._waiting.items()):
            if entry.until_s <= now_s:
                del self._waiting[question_id]
                entry.decided.set()
                self._on_change()
                if entry.decision is None and not entry.elsewhere:
                    self._record(entry.question, "expired", Decision(kind="expired"))

    def _record(self, question: Question, what: str, decision: Decision) -> None:
        self._audit.approval(
            question.principal,
            question.wrapper,
            what,
            rule=question.rule,
            approval=question.id,
            approval_given=decision,
        )


def _key(question: Question, lasts: Lasts) -> tuple[str, ...]:
    common = (lasts, question.rule, question.wrapper, question.definition, question.principal)
    if lasts == "tool":
        return common
    return (*common, question.session) if lasts == "session" else (*common, question.session, question.call)


def _row(question: Question) -> dict[str, Any]:
    names = ("id", "principal", "wrapper", "server", "rule", "arguments", "by")
    return {name: getattr(question, name) for name in names}
